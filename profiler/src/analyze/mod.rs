//! Analyses of traces: what `aiprof analyze` and `aiprof acelyzer` do between reading
//! a trace and writing one.

pub mod alignment;
pub mod alignment_compat;
pub mod all_reduce_bandwidth;
pub mod calibration;
pub mod checks;
pub mod classes;
pub mod collectives;
pub mod comm_summary;
pub mod config;
pub mod exchanges;
pub mod flows;
pub mod launch_flows;
pub mod limit;
pub mod messages;
pub mod normalize;
pub mod overlap;
pub mod overlap_share;
pub mod pipeline;
pub mod refine;
pub mod rows;
#[cfg(test)]
mod scene;
pub mod stages;
pub mod verify;
