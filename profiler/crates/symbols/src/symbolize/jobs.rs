//! What there is to name for a process: addresses of one file, or of its JIT code.

use super::forks;
use super::jit_dumps::{self, JitDumps};
use super::job::{AddressNames, SymbolizeJob};
use super::native::{BinaryRef, NativeSymbolizer};
use super::options::SymbolizeOptions;
use super::perf_maps::{self, PerfMaps};
use crate::java::{HotSpot, JavaNames};
use crate::v8::{V8Library, V8Names};
use aiprof_common::JsFunction;
use aiprof_system::files::others;
use aiprof_system::os::process;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Does jobs, one after the other, and keeps what helps with the next.
#[derive(Debug)]
pub(crate) struct Jobs {
    native: NativeSymbolizer,
    perf_maps: PerfMaps,
    dumps: JitDumps,
    java: JavaNames,
    v8: V8Names,
    source_lines: bool,
}

impl Jobs {
    /// With nothing read yet.
    #[must_use]
    pub(crate) fn new(options: SymbolizeOptions) -> Self {
        Self {
            source_lines: options.source_lines,
            native: NativeSymbolizer::new(options),
            perf_maps: PerfMaps::default(),
            dumps: JitDumps::default(),
            java: JavaNames::default(),
            v8: V8Names::default(),
        }
    }

    /// `file` is that of a [`SymbolizeJob::File`], or the jitdump file of a [`SymbolizeJob::Jit`].
    /// Gives back a jitdump file that was opened for the job.
    pub(crate) fn run(
        &mut self,
        job: &SymbolizeJob,
        file: Option<&File>,
    ) -> (AddressNames, Option<File>) {
        let mut answer = AddressNames::default();
        let mut opened = None;
        match job {
            SymbolizeJob::File {
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
            SymbolizeJob::Jit {
                pid,
                started,
                uid,
                dump,
                java,
                v8,
                forked_from,
                addresses,
            } => {
                let process = (*pid, *started);
                if let (None, Some(path)) = (file, dump) {
                    opened = open_dump(process, path, &mut answer.warnings);
                }
                if let Some(file) = file.or(opened.as_ref()) {
                    self.read_dump(process, file, &mut answer.warnings);
                }
                self.dumps.name(process, addresses, &mut answer);
                if let Some(hotspot) = java {
                    self.name_java(process, hotspot, addresses, &mut answer);
                }
                if let Some(library) = v8 {
                    self.name_v8(process, library, addresses, &mut answer);
                }
                self.name_by_map(process, *uid, |_| true, (addresses, &mut answer));
                self.name_inherited((process, *uid), forked_from, addresses, &mut answer);
                answer.is_fetching = self.perf_maps.is_late(process);
                let is_late = answer.is_fetching || self.dumps.is_late(process);
                for frames in answer.frames.iter_mut().filter(|f| f.is_empty() && is_late) {
                    frames.push(job.too_long());
                }
                if !self.source_lines {
                    let all = answer.changes.iter_mut().flat_map(|c| &mut c.frames);
                    let all = all.chain(answer.frames.iter_mut().flatten());
                    all.for_each(|frame| frame.source = None);
                }
            }
        }
        (answer, opened)
    }

    fn read_dump(&mut self, process: (u32, u64), file: &File, warnings: &mut Vec<String>) {
        if let Err(error) = self.dumps.refresh(process, file, warnings) {
            warnings.push(format!("jit-{}.dump: {error}", process.0));
        }
    }

    /// Names methods of Java that have no name.
    fn name_java(
        &mut self,
        process: (u32, u64),
        hotspot: &HotSpot,
        addresses: &[u64],
        answer: &mut AddressNames,
    ) {
        let memory = forks::memory(process);
        for (frames, &address) in answer.frames.iter_mut().zip(addresses) {
            if frames.is_empty() {
                *frames = self.java.frames(process, hotspot, memory.as_ref(), address);
            }
        }
    }

    /// Names functions of V8.
    fn name_v8(
        &mut self,
        process: (u32, u64),
        library: &V8Library,
        addresses: &[u64],
        answer: &mut AddressNames,
    ) {
        let functions = addresses.iter().map(|&address| JsFunction::of(address));
        let functions = answer.frames.iter_mut().zip(functions);
        let mut functions = functions
            .filter_map(|(frames, function)| Some((frames, function?)))
            .peekable();
        if functions.peek().is_none() {
            return;
        }
        let memory = forks::memory(process);
        for (frames, function) in functions {
            *frames = self.v8.frames(process, library, memory.as_ref(), function);
        }
    }

    /// Names by a process's perf map what has no name and `may` have one.
    fn name_by_map(
        &mut self,
        process: (u32, u64),
        uid: u32,
        may: impl Fn(u64) -> bool,
        (addresses, answer): (&[u64], &mut AddressNames),
    ) {
        self.perf_maps.refresh(process, uid, &mut answer.warnings);
        // Its number may be that of another process by now.
        if process::start_time(process.0).is_some_and(|started| started != process.1) {
            return;
        }
        for (frames, &address) in answer.frames.iter_mut().zip(addresses) {
            if frames.is_empty() && may(address) {
                *frames = self.perf_maps.frames(process, address);
            }
        }
    }

    /// Names what has no name by the perf maps of the processes that it was forked from.
    fn name_inherited(
        &mut self,
        (process, uid): ((u32, u64), u32),
        forked_from: &[u32],
        addresses: &[u64],
        answer: &mut AddressNames,
    ) {
        let has_all = |answer: &AddressNames| answer.frames.iter().all(|f| !f.is_empty());
        if has_all(answer) {
            return;
        }
        for ancestor in forks::ancestors(process, forked_from) {
            let may = |address| ancestor.has_left(address);
            self.name_by_map(ancestor.process, uid, may, (addresses, answer));
            if has_all(answer) {
                return;
            }
        }
    }
}

/// Opens the jitdump file of a process that still is the one that was seen.
fn open_dump(process: (u32, u64), path: &str, warnings: &mut Vec<String>) -> Option<File> {
    let file = jit_dumps::open(process.0, path);
    if process::start_time(process.0) != Some(process.1) {
        return None;
    }
    let file = file.inspect_err(|error| warnings.push(format!("{path}: {error}")));
    file.ok()
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
