//! Analyses of traces: what `aiprof analyze` and `aiprof acelyzer` do between reading
//! a trace and writing one. Pure: no files, no command line.

pub use crate::messages;

pub mod alignment;
pub mod alignment_compat;
pub mod all_reduce_bandwidth;
pub mod bandwidth;
mod busy;
pub mod calibration;
pub mod checks;
pub mod classes;
mod clip;
pub mod collectives;
pub mod comm_summary;
pub mod config;
pub mod device_stalls;
pub mod energy;
pub mod energy_fit;
pub mod exchanges;
pub mod flows;
pub mod frequency;
pub mod identity;
pub mod iterations;
pub mod job_shifts_compat;
pub mod launch_flows;
pub mod limit;
pub(crate) mod message_arrows;
pub mod normalize;
pub mod overlap;
pub mod overlap_share;
pub mod pipeline;
pub mod plots;
pub mod power;
pub mod prep_queue;
pub mod recordings;
pub mod refine;
pub mod report;
pub mod report_details;
pub mod rows;
pub mod sequence;
mod spare_rows;
pub mod split;
pub mod statistics;
pub mod token_times;
mod untimed;
pub mod utilization;
pub mod verify;
