//! Addresses to names: native code, JIT code described by perf maps and jitdump files.
//!
//! * `NativeSymbolizer` names ELF virtual addresses of executables and shared
//!   objects from their symbol tables and DWARF, from separate debug files, or from
//!   the table of Go's linker.
//! * `PerfMap` names addresses of JIT code from `/tmp/perf-PID.map`.
//! * `JitDump` names them by the time at which they ran, from `jit-PID.dump`.
//!
//! * [`device`] reads modules of device code: kernels, their attributes, the source
//!   at each instruction.
//!
//! Names are looked up late and for unique addresses only; the caller keeps the results, so the
//! state kept here is small and bounded. Every address yields at least one frame: what cannot be
//! named gets a frame of kind [`Unknown`](aiprof_model::profile::FrameKind::Unknown) whose name
//! gives the reason.
//!
//! Debug files are looked for where distributions put them, on the host and in
//! the process's own root directory, and fetched from debuginfod servers where
//! `DEBUGINFOD_URLS` names some.
//!
//! A read of what others own may never return (FUSE), and then not even SIGKILL ends the process
//! that reads. So a recording has it done by separate processes ([`serve`]), which it can leave
//! behind.
//!
//! Everything read here is written by others. A file that is missing, corrupt,
//! truncated or replaced costs its own names and nothing else.

mod client;
mod debug_file;
mod debuginfod;
pub mod device;
mod dwarf;
mod forks;
mod go;
mod jit_dump;
mod jit_dumps;
mod jit_names;
mod job;
mod jobs;
mod layer;
mod mini;
mod native;
mod options;
mod perf_map;
mod perf_maps;
mod plt;
mod server;
mod symtab;

pub use crate::frame::SymFrame;
#[cfg(any(test, feature = "testing"))]
pub use crate::go::fuzz_go_table;
pub use client::{Client, NamingError, Patience};
#[cfg(any(test, feature = "testing"))]
pub use jit_dump::testing::fuzz_jit_dump;
pub use job::{AddressChange, AddressNames, SymbolizeJob};
pub use options::SymbolizeOptions;
#[cfg(any(test, feature = "testing"))]
pub use perf_map::testing::fuzz_perf_map;
pub use server::serve;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_files;
#[cfg(test)]
mod tests_lines;
