//! aiprof: a system-wide profiler for Linux machines with AI accelerators.

pub mod aggregate;
pub mod cli;
pub mod collect;
pub mod export;
pub mod import;
pub mod process;
pub mod profile;
pub mod symbolize;
pub mod unwind;
pub mod wire;
