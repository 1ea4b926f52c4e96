//! Analyses of traces: what `aiprof analyze` and `aiprof acelyzer` do between reading
//! a trace and writing one.

pub mod calibration;
pub mod config;
pub mod limit;
pub mod messages;
pub mod normalize;
pub mod overlap;
pub mod pipeline;
pub mod refine;
pub mod rows;
pub mod stages;
