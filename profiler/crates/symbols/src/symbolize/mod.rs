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
//! named gets a frame of kind [`FrameKind::Unknown`] whose name gives the reason.
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

mod bytes;
mod client;
mod debug_file;
mod debuginfod;
pub mod device;
mod dwarf;
mod dwarf_split;
mod dwarf_text;
mod dwarf_units;
mod dwarf_walk;
pub mod elf;
mod go;
mod inflated;
mod jit_dump;
mod jit_dumps;
mod jit_names;
mod jobs;
mod mini;
mod native;
mod perf_map;
mod perf_maps;
mod plt;
mod sections;
mod server;
mod symtab;

#[cfg(any(test, feature = "testing"))]
pub use crate::go::fuzz_go_table;
pub use client::{Client, NamingError, Patience};
#[cfg(any(test, feature = "testing"))]
pub use jit_dump::testing::fuzz_jit_dump;
pub(crate) use jit_names::javascript;
pub(crate) use jobs::Jobs;
pub use jobs::{AddressChange, Answer, Job};
pub(crate) use native::NativeSymbolizer;
#[cfg(test)]
use native::SymbolizeStats;
pub(crate) use perf_map::PerfMap;
pub(crate) use perf_map::PerfMapLimits;
#[cfg(any(test, feature = "testing"))]
pub use perf_map::testing::fuzz_perf_map;
pub use server::serve;

use aiprof_model::profile::{BuildId, FrameKind};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_files;
#[cfg(test)]
mod tests_lines;

/// One named frame. An address yields several where functions were inlined,
/// from the outermost function to the innermost.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct SymFrame {
    /// Function name, demangled and without suffix; for kind `Unknown` the
    /// reason in brackets.
    pub name: String,
    /// What kind of code it is.
    pub kind: FrameKind,
    /// Source file and line (from 1, 0 if not known), where DWARF has them and
    /// [`SymbolizeOptions::source_lines`] asks for them.
    pub source: Option<(String, u32)>,
}

impl SymFrame {
    /// A frame without source position.
    pub fn plain(name: impl Into<String>, kind: FrameKind) -> Self {
        Self {
            name: name.into(),
            kind,
            source: None,
        }
    }
}

/// What to look up, and how much may be spent on it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SymbolizeOptions {
    /// Report functions inlined at an address, from DWARF. Default `true`.
    pub inlines: bool,
    /// Report source files and lines, from DWARF. Default `false`: folded stacks
    /// and flame graphs do not show them, and they cost memory.
    pub source_lines: bool,
    /// Look in `.gnu_debuglink` and build-id directories for debug files.
    /// Default `true`.
    pub debug_files: bool,
    /// Fetch debug files of stripped binaries from the servers in
    /// `DEBUGINFOD_URLS`, in the background. Default `true`; without that variable
    /// nothing is fetched.
    pub debuginfod: bool,
    /// Most bytes that the compressed debug sections of one file may inflate to. DWARF of larger
    /// files is not used, and that is counted; nor is that of files with more than 4 GiB of debug
    /// sections. Default 24 MiB.
    pub dwarf_limit: u64,
    /// Keep what was inflated of root's debug files below `/var/cache/aiprof`, if this
    /// process is root's. Default `true`.
    pub keep_inflated: bool,
    /// Longest that one batch of one file may read DWARF; addresses left then
    /// have their symbol's name only, and that is counted. Default 1 s.
    pub dwarf_time: Duration,
    /// Most bytes of symbol state kept from one call to the next, least recently
    /// used dropped first. Default 6 MiB: there are two who name.
    pub keep_limit: u64,
}

impl Default for SymbolizeOptions {
    fn default() -> Self {
        Self {
            inlines: true,
            source_lines: false,
            debug_files: true,
            debuginfod: true,
            dwarf_limit: 24 << 20,
            keep_inflated: true,
            dwarf_time: Duration::from_secs(1),
            keep_limit: 6 << 20,
        }
    }
}

/// The file that a batch of addresses belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BinaryRef<'a> {
    /// Path as the process saw it.
    pub path: &'a Path,
    /// The file itself, where it was opened while the process lived (through
    /// `/proc/PID/root` or `/proc/PID/map_files`): serves containers and deleted
    /// files. Without it `path` is opened below `root`.
    pub file: Option<&'a File>,
    /// Build id of what the process mapped. A file with another one is not
    /// used: wrong names are worse than none.
    pub build_id: Option<BuildId>,
    /// Root directory of the process, as `/proc/PID/root` while it lives: where
    /// debug files of a container are looked for besides the host's.
    pub root: Option<&'a Path>,
}

/// Why a file gave no names. The frames are filled in all the same.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SymbolizeError {
    /// The file could not be opened or read.
    #[error("{file}: cannot read symbols: {source}")]
    Unreadable {
        /// Path as the process saw it.
        file: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file on disk is not the one that was mapped.
    #[error("{file}: replaced since it was mapped (its build ID differs)")]
    Replaced {
        /// Path as the process saw it.
        file: String,
    },
    /// The file is no usable ELF file.
    #[error("{file}: no symbols: {reason}")]
    Malformed {
        /// Path as the process saw it.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
}
