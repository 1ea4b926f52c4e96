//! The jitdump files of the processes that are being named.
//!
//! A program maps the file that it writes, which shows where it is. It is opened once,
//! below the process's own root directory, under the rules for perf maps
//! ([`super::perf_maps`]), and is held from then on: a program may write most of it when
//! it ends.

use super::jit_dump::{Change, JitDump, JitDumpLimits};
use super::perf_maps::{Jitted, MAX_BYTES, MAX_TIME, identity};
use super::{AddressChange, Answer, SymFrame, jit_names};
use aiprof_system::files::others::{RootDir, Trust};
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

/// Most files kept in memory.
const MAX_DUMPS: usize = 16;
/// Most changes of code in one answer.
const MAX_CHANGES: usize = 16_384;
/// What V8 adds to the addresses of its line numbers.
const V8_SHIFT: u64 = 0x40;

#[derive(Debug)]
struct JitDumpEntry {
    dump: JitDump,
    /// Device and inode number.
    file: (u64, u64),
    is_late: bool,
    /// What was warned of already.
    warning: Option<String>,
}

/// Jitdump files by process.
#[derive(Debug, Default)]
pub(super) struct JitDumps {
    dumps: FxHashMap<Jitted, JitDumpEntry>,
}

/// Opens the jitdump file of a live process.
///
/// # Errors
/// It is not there, somebody else's, no regular file, or too large.
pub(super) fn open(pid: u32, path: &str) -> io::Result<File> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let (uid, _) = identity(pid).ok_or_else(gone)?;
    let trust = Trust {
        uid,
        max_bytes: MAX_BYTES,
    };
    RootDir::of_process(pid)?.open(Path::new(path), trust)
}

impl JitDumps {
    /// Reads on in a process's file.
    pub(super) fn refresh(
        &mut self,
        process: Jitted,
        file: &File,
        warnings: &mut Vec<String>,
    ) -> io::Result<()> {
        let meta = file.metadata()?;
        let found = (meta.dev(), meta.ino());
        if self.dumps.len() >= MAX_DUMPS && !self.dumps.contains_key(&process) {
            self.dumps.clear();
        }
        let entry = self
            .dumps
            .entry(process)
            .or_insert_with(|| JitDumpEntry::new(found));
        if entry.file != found || meta.size() < entry.dump.read_bytes() {
            *entry = JitDumpEntry::new(found);
        }
        let read = match meta.size() > MAX_BYTES {
            true => Err(format!("more than {MAX_BYTES} bytes")),
            false => {
                let mut reader = BufReader::with_capacity(64 << 10, file);
                let deadline = Instant::now() + MAX_TIME;
                entry
                    .dump
                    .read(&mut reader, deadline)
                    .map_err(|e| e.to_string())
            }
        };
        entry.is_late = read == Ok(false);
        let stats = entry.dump.stats;
        let refused = stats.malformed + stats.over_limit;
        let warning = match read {
            Err(error) => Some(error),
            Ok(_) if refused > 0 => Some(format!("{refused} records are not usable")),
            Ok(_) => None,
        };
        if let Some(warning) = warning.filter(|_| entry.warning.is_none()) {
            warnings.push(format!("jit-{}.dump: {warning}", process.0));
            entry.warning = Some(warning);
        }
        tracing::debug!("jitdump of process {}: {stats:?}", process.0);
        Ok(())
    }

    /// Whether reading the file takes so long that only its begin is known.
    pub(super) fn is_late(&self, process: Jitted) -> bool {
        self.dumps.get(&process).is_some_and(|entry| entry.is_late)
    }

    /// Names addresses: in `answer.frames` as they are last, and all that they were in
    /// `answer.changes`.
    pub(super) fn name(&self, process: Jitted, addresses: &[u64], answer: &mut Answer) {
        answer.frames = vec![Vec::new(); addresses.len()];
        let Some(entry) = self.dumps.get(&process) else {
            return;
        };
        let changes = entry.dump.changes(addresses, MAX_CHANGES);
        for (index, changes) in changes.into_iter().enumerate() {
            for change in changes {
                let frames = entry.frames(change);
                if !frames.is_empty() {
                    answer.frames[index].clone_from(&frames);
                }
                answer.changes.push(AddressChange {
                    address: index as u32,
                    since: change.since,
                    frames,
                });
            }
        }
    }
}

impl JitDumpEntry {
    fn new(file: (u64, u64)) -> Self {
        Self {
            dump: JitDump::new(JitDumpLimits::default()),
            file,
            is_late: false,
            warning: None,
        }
    }

    fn frames(&self, change: Change) -> Vec<SymFrame> {
        let Some(place) = self.dump.name(change) else {
            return Vec::new();
        };
        let mut frame = jit_names::frame(place.name);
        let shift = match jit_names::is_of_v8(place.name) {
            true => V8_SHIFT,
            false => 0,
        };
        if let Some((file, line)) = self.dump.line(place, shift) {
            let file = file.strip_prefix("file://").unwrap_or(file);
            frame.source = Some((file.to_owned(), line));
        }
        vec![frame]
    }
}
