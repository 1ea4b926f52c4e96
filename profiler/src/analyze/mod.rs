//! Analyses of traces: pure, no files, no command line.

pub mod config;
pub mod iterations;
pub mod limit;
pub mod messages;
pub mod numbers;
pub mod prep_queue;
pub mod stages;
#[cfg(test)]
mod testing;
