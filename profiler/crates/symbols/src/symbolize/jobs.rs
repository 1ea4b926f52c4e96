//! What there is to name for a process: addresses of one file, or of its JIT code.

use super::perf_maps::{self, PerfMaps};
use super::{BinaryRef, NativeSymbolizer, SymFrame, SymbolizeOptions};
use aiprof_model::profile::{BuildId, FrameKind};
use aiprof_system::files::others;
use aiprof_system::os::process;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Addresses to name, of one file or one process: what fails costs no others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
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
    /// Addresses of JIT code.
    Jit {
        /// The process.
        pid: u32,
        /// When the process started, see [`process::start_time`].
        started: u64,
        /// The addresses.
        addresses: Vec<u64>,
    },
}

impl Job {
    /// The file that the names are read from, for messages.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::File { path, .. } => path.into(),
            Self::Jit { pid, .. } => format!("perf-{pid}.map").into(),
        }
    }
}

impl Job {
    /// The frame of an address whose name takes too long to find.
    pub fn too_long(&self) -> SymFrame {
        let path = self.path();
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy();
        let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
        SymFrame {
            name: format!("[symbols took too long {name}]"),
            kind: FrameKind::Unknown,
            source: None,
        }
    }
}

/// The names of a job's addresses, in order; empty: none is known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// From the outermost inlined function to the innermost.
    pub frames: Vec<Vec<SymFrame>>,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// The debug file is being fetched: to be asked for again.
    pub is_fetching: bool,
}

/// Does jobs, one after the other, and keeps what helps with the next.
#[derive(Debug)]
pub(crate) struct Jobs {
    native: NativeSymbolizer,
    perf_maps: PerfMaps,
}

impl Jobs {
    /// With nothing read yet.
    #[must_use]
    pub(crate) fn new(options: SymbolizeOptions) -> Self {
        Self {
            native: NativeSymbolizer::new(options),
            perf_maps: PerfMaps::default(),
        }
    }

    /// `file` is that of a [`Job::File`].
    pub(crate) fn run(&mut self, job: &Job, file: Option<&File>) -> Answer {
        let mut answer = Answer::default();
        match job {
            Job::File {
                path,
                build_id,
                pid,
                addresses,
            } => {
                let root = PathBuf::from(format!("/proc/{pid}/root"));
                let is_believed = *pid != 0 && is_believed(*pid, file);
                let binary = BinaryRef {
                    path: Path::new(path),
                    file,
                    build_id: *build_id,
                    root: is_believed.then_some(root.as_path()),
                };
                let named = self
                    .native
                    .symbolize(&binary, addresses, &mut answer.frames);
                answer.warnings.extend(named.err().map(|e| e.to_string()));
                answer.is_fetching = self.native.is_fetching(*build_id);
            }
            Job::Jit {
                pid,
                started,
                addresses,
            } => {
                let process = (*pid, *started);
                self.perf_maps.refresh(process, &mut answer.warnings);
                let is_same = process::start_time(*pid) == Some(*started);
                let is_late = self.perf_maps.is_late(process);
                let name = |&address: &u64| match is_same {
                    true => match self.perf_maps.frames(process, address) {
                        none if none.is_empty() && is_late => vec![job.too_long()],
                        frames => frames,
                    },
                    false => Vec::new(),
                };
                answer.frames = addresses.iter().map(name).collect();
            }
        }
        answer
    }
}

/// Whether what lies in the root directory of a process may name functions of a file:
/// it must be root's, or the file be of the process's own user. Anybody can map others'
/// files where they have built the directories.
fn is_believed(pid: u32, file: Option<&File>) -> bool {
    others::is_mounted_by_root(pid).unwrap_or(false) || {
        let owner = file.and_then(|file| Some(file.metadata().ok()?.uid()));
        let user = perf_maps::identity(pid).map(|(uid, _)| uid);
        owner == user && owner.is_some_and(|uid| uid != 0)
    }
}
