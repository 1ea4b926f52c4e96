//! What there is to name, and its names.

use crate::frame::SymFrame;
use crate::java::HotSpot;
use crate::v8::V8Library;
use aiprof_model::profile::BuildId;
#[cfg(doc)]
use aiprof_system::os::process;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Addresses to name, of one file or one process: what fails costs no others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum SymbolizeJob {
    /// ELF virtual addresses of a file, which is handed over open.
    File {
        /// Path as the process saw it.
        path: String,
        /// What its contents are known by.
        build_id: Option<BuildId>,
        /// A live process that maps it, for debug files in its container; else 0.
        pid: u32,
        /// The addresses.
        addresses: Vec<u64>,
    },
    /// Addresses of JIT code. The process's jitdump file is handed over open, once an
    /// answer gave it.
    Jit {
        /// The process.
        pid: u32,
        /// When the process started, see [`process::start_time`].
        started: u64,
        /// Its effective user, as long as it has not become another.
        uid: u32,
        /// The jitdump file that it mapped, as it calls it.
        dump: Option<String>,
        /// The HotSpot in it.
        java: Option<Box<HotSpot>>,
        /// The V8 in it.
        v8: Option<Box<V8Library>>,
        /// The processes that it was forked from, the nearest first, if the forks were seen, and
        /// no other program since.
        forked_from: Vec<u32>,
        /// The addresses; of HotSpot's interpreter methods, of V8 functions, see
        /// [`aiprof_common::ADDR_METHOD`] and [`aiprof_common::ADDR_JS`].
        addresses: Vec<u64>,
    },
}

impl SymbolizeJob {
    /// The file that the names are read from, for messages.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::File { path, .. } => path.into(),
            Self::Jit { pid, .. } => format!("perf-{pid}.map").into(),
        }
    }

    /// The frame of an address whose name takes too long to find.
    pub fn too_long(&self) -> SymFrame {
        SymFrame::unknown("symbols took too long", &self.path())
    }
}

/// The names of a job's addresses, in order; empty: none is known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AddressNames {
    /// From the outermost inlined function to the innermost.
    pub frames: Vec<Vec<SymFrame>>,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// The debug file is being fetched, or the perf map not read to its end yet: to be asked for
    /// again.
    pub is_fetching: bool,
    /// What was at addresses of JIT code, by address and time, ascending; of those that
    /// have any, `frames` are the last.
    pub changes: Vec<AddressChange>,
}

/// What was at an address of JIT code from a time on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AddressChange {
    /// Which of the job's addresses.
    pub address: u32,
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub since: u64,
    /// As in [`AddressNames::frames`]; empty: nothing that is known.
    pub frames: Vec<SymFrame>,
}
