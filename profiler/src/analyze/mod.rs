//! Analyses of traces: pure, no files, no command line.

pub mod config;
pub mod limit;
pub mod messages;
pub mod stages;
