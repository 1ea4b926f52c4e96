//! The analyses of HolisticTraceAnalysis (HTA), on traces of any device. They show how the time of
//! a rank's device splits, what it waits for, and how launches and kernels take their time. They
//! also show what differs between ranks and between traces, and the critical path.
//!
//! Definitions are HTA 0.5.0's. Where they are not, the file notes it: times are not rounded to
//! microseconds, no step is left out, and rows of waits are no work.

mod annotations;
mod bandwidth;
mod breakdown;
mod counters;
mod critical_path;
mod describe;
mod diff;
mod idle;
mod launches;
mod op_delays;
mod queue;
mod sequences;
mod stack;
mod stragglers;
pub(super) mod temporal;

pub(super) use {
    annotations::ENTRY as ANNOTATIONS, bandwidth::ENTRY as MEMORY_BANDWIDTH,
    breakdown::ENTRY as KERNEL_BREAKDOWN, counters::ENTRY as CUPTI_COUNTERS,
    critical_path::ENTRY as CRITICAL_PATH, diff::ENTRY as TRACE_DIFF, idle::ENTRY as IDLE,
    launches::ENTRY as LAUNCH_STATS, launches::LAUNCHES, op_delays::ENTRY as OP_DELAYS,
    queue::ENTRY as QUEUE_LENGTH, sequences::ENTRY as KERNEL_SEQUENCES,
    stragglers::ENTRY as STRAGGLERS, temporal::COMM_OVERLAP, temporal::ENTRY as TEMPORAL,
    temporal::KERNEL_TYPES,
};
