//! The perf maps of the processes that are being named.
//!
//! A perf map is read from the process's own root directory, or from the host's /tmp. It must
//! belong to the process's user or to root, be a regular file, and be no larger than any JIT
//! compiler makes it. Where reading takes too long, the next reading goes on from there, as it
//! does where the file has grown. Some compilers write it when they end: then only the host's can
//! be read.

use super::jit_names;
use super::perf_map::{PerfMap, PerfMapLimits, PerfMapStats};
use crate::frame::SymFrame;
use aiprof_system::{
    files::others::{RootDir, Trust},
    os::process,
};
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::time::{Duration, Instant};

/// Most perf maps kept in memory.
const MAX_MAPS: usize = 16;
/// Largest jitdump file; the largest known have a fifth of it.
pub(super) const MAX_BYTES: u64 = 512 << 20;
/// Largest perf map: a program that compiles ten pieces of code a millisecond writes it in weeks.
const MAX_MAP_BYTES: u64 = 64 << 30;
/// Bytes in front of what is new in a file that show whether it only grew.
const TAIL: u64 = 64;
/// Longest time that reading one may take at once.
pub(super) const MAX_TIME: Duration = Duration::from_secs(2);
/// A map is not read again before this many times the time that it took.
const PAUSE: u32 = 8;

/// Shows that a file has not changed: its number, size and time of modification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FileVersion {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// A process with JIT code: its number and when it started.
pub(super) type Jitted = (u32, u64);

/// What is known of a perf map.
#[derive(Debug, Default)]
struct PerfMapEntry {
    version: Option<FileVersion>,
    /// Not to be read again before.
    until: Option<Instant>,
    /// Why it is not usable.
    error: Option<String>,
    /// What was read of it so far.
    stats: PerfMapStats,
    /// The end of that.
    tail: Vec<u8>,
    map: PerfMap,
}

/// Perf maps by process; read again when the file has grown or changed.
#[derive(Debug, Default)]
pub(super) struct PerfMaps {
    maps: FxHashMap<Jitted, PerfMapEntry>,
}

impl PerfMaps {
    /// The frame of an address; none where the map does not name it, or what was not read yet may
    /// name it anew.
    pub(super) fn frames(&self, process: Jitted, address: u64) -> Vec<SymFrame> {
        let entry = self.maps.get(&process);
        let entry = entry.filter(|entry| !entry.stats.read_error);
        let Some(name) = entry.and_then(|entry| entry.map.lookup(address)) else {
            return Vec::new();
        };
        vec![jit_names::frame(name)]
    }

    /// Whether reading the map takes so long that only its begin is known yet.
    pub(super) fn is_late(&self, process: Jitted) -> bool {
        let entry = self.maps.get(&process);
        entry.is_some_and(|entry| entry.stats.read_error)
    }

    /// Reads a process's map if there is something new in it. `uid`: its effective user,
    /// when it was first seen.
    pub(super) fn refresh(&mut self, process: Jitted, uid: u32, warnings: &mut Vec<String>) {
        let start = Instant::now();
        let pid = process.0;
        let known = self.maps.get(&process);
        if known.is_some_and(|entry| entry.until.is_some_and(|until| start < until)) {
            return;
        }
        let opened = match open(process, uid) {
            Ok(None) => return,
            Ok(Some((_, found)))
                if known.is_some_and(|known| {
                    known.version == Some(found) && !known.stats.read_error
                }) =>
            {
                return;
            }
            Ok(Some(opened)) => Ok(opened),
            Err(error) => Err(error),
        };
        let known = self.maps.remove(&process).unwrap_or_default();
        let error_before = known.error.clone();
        let mut new = match opened {
            Ok((file, found)) => read(pid, file, found, known),
            Err(error) => PerfMapEntry {
                error: Some(error.to_string()),
                ..PerfMapEntry::default()
            },
        };
        new.until = Some(Instant::now() + start.elapsed() * PAUSE);
        if let Some(error) = &new.error
            && new.error != error_before
        {
            warnings.push(format!("perf-{pid}.map: {error}"));
        }
        if self.maps.len() >= MAX_MAPS {
            self.maps.clear();
        }
        self.maps.insert(process, new);
    }
}

/// The user and the innermost namespace's id of a process.
pub(super) fn identity(pid: u32) -> Option<(u32, u32)> {
    let status = process::status(pid)?;
    let uid = process::numbers(&status, "Uid:").nth(1)?;
    let inner = process::numbers(&status, "NSpid:").last();
    Some((uid, inner.unwrap_or(pid)))
}

/// The perf map of a process, if it has one, and its version. That of the host
/// serves processes whose own root does not have it.
fn open((pid, _): Jitted, uid: u32) -> io::Result<Option<(File, FileVersion)>> {
    let (uid, inner) = identity(pid).unwrap_or((uid, pid));
    let trust = Trust {
        uid,
        max_bytes: MAX_MAP_BYTES,
    };
    let own = RootDir::of_process(pid).map(|root| (root, inner));
    let host = RootDir::of_host().map(|root| (root, pid));
    let mut refused = None;
    for (root, id) in [own, host].into_iter().flatten() {
        match root.open(format!("tmp/perf-{id}.map"), trust) {
            Ok(file) => {
                let meta = file.metadata()?;
                let version = FileVersion {
                    inode: meta.ino(),
                    size: meta.size(),
                    modified: (meta.mtime(), meta.mtime_nsec()),
                };
                return Ok(Some((file, version)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    refused.map_or(Ok(None), Err)
}

/// Reads a map, from where the reading of `known` ended if it has only grown since.
fn read(pid: u32, mut file: File, version: FileVersion, known: PerfMapEntry) -> PerfMapEntry {
    let mut entry = match known.is_begin_of(&file, version) {
        true => known,
        false => PerfMapEntry::default(),
    };
    entry.version = Some(version);
    let (from, map) = (entry.stats.bytes, &mut entry.map);
    let more = match file.seek(SeekFrom::Start(from)) {
        Ok(_) => {
            let reader = TimedReader {
                inner: (&file).take(MAX_MAP_BYTES.saturating_sub(from)),
                deadline: Instant::now() + MAX_TIME,
            };
            let reader = BufReader::with_capacity(64 << 10, reader);
            map.read(reader, PerfMapLimits::default())
        }
        Err(_) => PerfMapStats {
            read_error: true,
            ..PerfMapStats::default()
        },
    };
    entry.stats = entry.stats.followed_by(more);
    entry.tail = tail(&file, entry.stats.bytes);
    entry.error = error_of(&entry.stats);
    tracing::debug!("perf map of process {pid}: {:?}", entry.stats);
    entry
}

/// What of a map is not usable, and why.
fn error_of(stats: &PerfMapStats) -> Option<String> {
    let malformed = (stats.malformed > 0).then(|| {
        format!(
            "{} lines are not of the format START SIZE NAME",
            stats.malformed
        )
    });
    let dropped = (stats.dropped > 0).then(|| {
        let PerfMapLimits {
            pieces, name_bytes, ..
        } = PerfMapLimits::default();
        let limit = name_bytes >> 20;
        format!(
            "the program has more than {pieces} pieces of code, or {limit} MiB of names, at once: \
             the oldest have no names"
        )
    });
    let late = stats
        .read_error
        .then(|| "not read to the end yet, because it takes too long".to_owned());
    let all: Vec<String> = [malformed, dropped, late].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// The bytes in front of a place in a file.
fn tail(file: &File, end: u64) -> Vec<u8> {
    let from = end.saturating_sub(TAIL);
    let mut bytes = vec![0; (end - from) as usize];
    match file.read_exact_at(&mut bytes, from) {
        Ok(()) => bytes,
        Err(_) => Vec::new(),
    }
}

impl PerfMapEntry {
    /// Whether what was read is still how a file begins.
    fn is_begin_of(&self, file: &File, version: FileVersion) -> bool {
        let known = self.version.unwrap_or_default();
        let end = self.stats.bytes;
        known.inode == version.inode && end <= version.size && self.tail == tail(file, end)
    }
}

/// A reader that fails once its time is over.
struct TimedReader<R> {
    inner: R,
    deadline: Instant,
}

impl<R: Read> Read for TimedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if Instant::now() > self.deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.inner.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, Write as _};
    use std::time::SystemTime;

    /// A JIT compiler writes many functions within a second.
    #[test]
    fn a_map_that_changed_within_the_second_is_read_again() {
        let pid = std::process::id();
        let path = format!("/tmp/perf-{pid}.map");
        let process = (pid, 1);
        let uid = rustix::process::geteuid().as_raw();
        let mut maps = PerfMaps::default();
        let mut names = Vec::new();
        for (name, ns) in [("one", 1), ("two", 2)] {
            let mut file = File::create(&path).unwrap();
            writeln!(file, "1000 10 {name}").unwrap();
            let modified = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, ns);
            file.set_modified(modified).unwrap();
            let mut warnings = Vec::new();
            if let Some(known) = maps.maps.get_mut(&process) {
                known.until = None;
            }
            maps.refresh(process, uid, &mut warnings);
            assert_eq!(warnings, [""; 0]);
            names.extend(maps.frames(process, 0x1004).into_iter().map(|f| f.name));
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(names, ["one", "two"]);
    }

    #[test]
    fn a_map_that_has_grown_is_read_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let read_on = |text: &str, known: PerfMapEntry| {
            std::fs::write(&path, text).unwrap();
            let file = File::open(&path).unwrap();
            let meta = file.metadata().unwrap();
            let version = FileVersion {
                inode: meta.ino(),
                size: meta.size(),
                modified: (meta.mtime(), meta.mtime_nsec()),
            };
            read(1, file, version, known)
        };
        let accepted = |entry: &PerfMapEntry| entry.stats.accepted;
        let first = read_on("1000 10 one\n2000 10 tw", PerfMapEntry::default());
        assert_eq!((accepted(&first), first.stats.bytes), (1, 12));
        let grown = read_on("1000 10 one\n2000 10 two\n", first);
        assert_eq!((accepted(&grown), grown.stats.bytes), (2, 24));
        assert_eq!(grown.map.lookup(0x1000), Some("one"));
        assert_eq!(grown.map.lookup(0x2000), Some("two"));
        // Another content, of the same length and longer, and a shorter one.
        let other = read_on("1000 10 one\n3000 10 six\n4000 10 x\n", grown);
        assert_eq!(other.map.lookup(0x2000), None);
        assert_eq!(other.map.lookup(0x4000), Some("x"));
        let shorter = read_on("5000 10 y\n", other);
        assert_eq!(shorter.map.lookup(0x1000), None);
        assert_eq!(shorter.map.lookup(0x5000), Some("y"));
    }

    /// A later line may name the same code anew.
    #[test]
    fn a_map_that_is_not_read_to_its_end_names_nothing() {
        let process = (1, 1);
        let mut maps = PerfMaps::default();
        let mut entry = PerfMapEntry::default();
        entry
            .map
            .read(&b"1000 10 old\n"[..], PerfMapLimits::default());
        entry.stats.read_error = true;
        maps.maps.insert(process, entry);
        assert!(maps.is_late(process) && maps.frames(process, 0x1000).is_empty());
        maps.maps.get_mut(&process).unwrap().stats.read_error = false;
        assert_eq!(maps.frames(process, 0x1000)[0].name, "old");
    }

    #[test]
    fn a_warning_says_what_is_wrong() {
        let error = |malformed, dropped, read_error| {
            error_of(&PerfMapStats {
                malformed,
                dropped,
                read_error,
                ..PerfMapStats::default()
            })
        };
        assert_eq!(error(0, 0, false), None);
        assert!(error(3, 0, false).unwrap().starts_with("3 lines"));
        let full = error(0, 7, false).unwrap();
        assert!(full.contains("the program has more than 262144"), "{full}");
        assert!(!full.contains("lines"), "{full}");
        assert!(error(0, 0, true).unwrap().contains("too long"));
    }

    #[test]
    fn reading_ends_at_the_deadline() {
        let reader = TimedReader {
            inner: io::repeat(b'x'),
            deadline: Instant::now() + Duration::from_millis(50),
        };
        let mut reader = BufReader::new(reader);
        assert!(reader.skip_until(b'\n').is_err());
        let stats = PerfMap::default().read(reader, PerfMapLimits::default());
        assert!(stats.read_error);
    }
}
