//! aiprof: a system-wide profiler for Linux machines with AI accelerators.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod cli;

pub use aiprof_formats::{export, import};
#[cfg(feature = "live")]
pub use aiprof_live as collect;
pub use aiprof_model::{
    calibrate, demangle, eu_stall, parallel, probes, process, profile, timeline, wire,
};
pub use aiprof_record::{aggregate, aiu, capture, correlate};
pub use aiprof_symbols::{symbolize, unwind};
pub use aiprof_system::{files, memory, os, remote, workers};
pub use aiprof_tables as tables;
pub use aiprof_trace::analyze;
