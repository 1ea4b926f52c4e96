//! Analyses of traces: pure, no files, no command line.

pub mod bandwidth;
pub mod config;
pub mod energy;
pub mod frequency;
pub mod iterations;
pub mod limit;
pub mod messages;
pub mod numbers;
pub mod power;
pub mod prep_queue;
pub mod stages;
pub mod statistics;
#[cfg(test)]
pub(crate) mod testing;
pub mod token_times;
