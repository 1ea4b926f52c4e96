//! The jitdump files of the processes that are being named.
//!
//! A program maps the file that it writes, which shows where it is. It is opened once, below the
//! process's own root directory, under the rules for perf maps ([`super::perf_maps`]). It is held
//! from then on, because a program may write most of it when it ends.

use super::jit_dump::{Change, JitDump, JitDumpLimits};
use super::jit_names;
use super::job::{AddressChange, AddressNames};
use super::perf_maps::{Jitted, MAX_BYTES, MAX_TIME, identity};
use crate::frame::SymFrame;
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
            true => Err(format!("larger than the limit of {MAX_BYTES} bytes")),
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
            Ok(_) if refused > 0 => Some(format!("{refused} records cannot be used")),
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
    pub(super) fn name(&self, process: Jitted, addresses: &[u64], answer: &mut AddressNames) {
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

#[cfg(test)]
mod tests {
    use super::super::jit_dump::tests::Writer;
    use super::*;

    const PROCESS: Jitted = (1, 2);

    fn names(dumps: &JitDumps) -> Vec<String> {
        let mut answer = AddressNames::default();
        dumps.name(PROCESS, &[0x1000, 0x2000], &mut answer);
        let frames = answer.frames.into_iter();
        frames
            .map(|frames| frames.first().map_or_else(String::new, |f| f.name.clone()))
            .collect()
    }

    #[test]
    fn files_that_are_no_dump_of_the_process_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let open = |path: &str| open(std::process::id(), path).map_err(|e| e.to_string());
        assert!(open(&path("jit-1.dump")).is_err());
        assert!(open(&path("")).unwrap_err().contains("not a regular file"));
        let large = File::create(path("jit-2.dump")).unwrap();
        large.set_len(MAX_BYTES + 1).unwrap();
        assert!(
            open(&path("jit-2.dump"))
                .unwrap_err()
                .contains("exceed the limit")
        );
        std::fs::write(path("jit-3.dump"), b"x").unwrap();
        assert!(open(&path("jit-3.dump")).is_ok());
        if std::os::unix::fs::chown(path("jit-3.dump"), Some(54_321), None).is_ok() {
            let error = open(&path("jit-3.dump")).unwrap_err();
            assert!(error.contains("belongs to user 54321"), "{error}");
        }
    }

    #[test]
    fn a_file_is_read_on_and_from_its_begin_when_it_was_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jit-1.dump");
        let (mut dumps, mut warnings) = (JitDumps::default(), Vec::new());
        let mut read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let file = File::open(&path).unwrap();
            dumps.refresh(PROCESS, &file, &mut warnings).unwrap();
            names(&dumps)
        };
        let mut writer = Writer::new();
        writer.load(1, "JS:*first /a.js:3:1", 0x1000, 16, 1);
        assert_eq!(read(writer.bytes()), ["first", ""]);
        writer.load(2, "second", 0x2000, 16, 2);
        assert_eq!(read(writer.bytes()), ["first", "second"]);
        let mut other = Writer::new();
        other.load(1, "other", 0x2000, 16, 1);
        assert_eq!(read(other.bytes()), ["", "other"]);
        assert_eq!(
            read(b"no dump at all, but as long as the begin of one"),
            ["", ""]
        );
        assert_eq!(warnings, ["jit-1.dump: not a jitdump file"]);
    }

    #[test]
    fn lines_of_v8_are_behind_a_header_that_is_not_there() {
        let mut writer = Writer::new();
        let lines: &[(u64, u32, &[u8])] = &[(0x1040, 3, b"file:///a.js"), (0x1048, 4, b"\xff")];
        writer
            .lines(0x1000, lines)
            .load(1, "JS:*f /a.js:3:1", 0x1000, 16, 1);
        writer.lines(0x2000, lines).load(1, "plain", 0x2000, 16, 2);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jit-1.dump");
        std::fs::write(&path, writer.bytes()).unwrap();
        let mut dumps = JitDumps::default();
        let file = File::open(&path).unwrap();
        dumps.refresh(PROCESS, &file, &mut Vec::new()).unwrap();
        let mut answer = AddressNames::default();
        dumps.name(PROCESS, &[0x1007, 0x1008], &mut answer);
        let sources: Vec<_> = answer.frames.iter().map(|f| f[0].source.clone()).collect();
        let of = |line| Some(("/a.js".to_owned(), line));
        assert_eq!(sources, [of(3), of(4)]);
    }
}
