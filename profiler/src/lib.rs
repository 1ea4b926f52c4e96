//! aiprof: a system-wide profiler for Linux machines with AI accelerators.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod cli;

pub use aiprof_analysis::{aggregate, aiu, analyze, calibrate, correlate, tables};
pub use aiprof_collect as collect;
pub use aiprof_formats::{export, import};
pub use aiprof_model::{demangle, eu_stall, parallel, probes, process, profile, timeline, wire};
pub use aiprof_symbols::{symbolize, unwind};
pub use aiprof_system::{files, memory, os, remote, workers};
