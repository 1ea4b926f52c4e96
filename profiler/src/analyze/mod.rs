//! Analyses of traces: what `aiprof analyze` and `aiprof acelyzer` do between reading
//! a trace and writing one. Pure: no files, no command line.

pub mod alignment;
pub mod alignment_compat;
pub mod bandwidth;
pub mod calibration;
pub mod classes;
pub mod config;
pub mod energy;
pub mod exchanges;
mod findings;
pub mod frequency;
pub mod iterations;
pub mod launch_flows;
pub mod limit;
pub mod messages;
pub mod normalize;
pub mod numbers;
pub mod overlap;
pub mod pipeline;
pub mod plots;
pub mod power;
pub mod prep_queue;
pub mod refine;
pub mod report;
pub mod rows;
pub mod sequence;
pub mod stages;
pub mod statistics;
pub mod token_times;
pub mod utilization;

#[cfg(test)]
mod scene;
#[cfg(test)]
pub(crate) mod testing;
