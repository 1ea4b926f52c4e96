//! Analyses of traces: pure, no files, no command line.

pub mod alignment;
pub mod alignment_compat;
pub mod classes;
pub mod config;
pub mod exchanges;
pub mod launch_flows;
pub mod limit;
pub mod messages;
#[cfg(test)]
mod scene;
pub mod stages;
