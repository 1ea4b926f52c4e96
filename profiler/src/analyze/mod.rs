//! Analyses of traces: pure, no files, no command line.

pub mod alignment;
pub mod config;
pub mod exchanges;
pub mod limit;
pub mod messages;
#[cfg(test)]
mod scene;
pub mod stages;
