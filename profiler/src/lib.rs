//! aiprof: a system-wide profiler for Linux machines with AI accelerators.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod aggregate;
pub mod aiu;
pub mod analyze;
pub mod calibrate;
pub mod cli;
pub mod collect;
pub mod correlate;
pub mod demangle;
pub mod eu_stall;
pub mod export;
pub mod files;
pub mod import;
mod lines;
pub mod memory;
pub mod os;
pub mod parallel;
pub mod probes;
pub mod process;
pub mod profile;
pub mod remote;
pub mod symbolize;
pub mod timeline;
pub mod unwind;
mod visible;
pub mod wire;
pub mod workers;
