//! The perf maps of the processes that are being named.
//!
//! A perf map is read from the process's own root directory, or from the host's /tmp. It must
//! belong to the process's user or to root, be a regular file, and be no larger than any JIT
//! compiler makes it. It is not read to the end if that takes too long. Some compilers write it
//! when they end: then only the host's can be read.

use super::jit_names;
use super::perf_map::{PerfMap, PerfMapLimits};
use crate::frame::SymFrame;
use aiprof_system::files::{
    kernel,
    others::{RootDir, Trust},
};
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

/// Most perf maps kept in memory.
const MAX_MAPS: usize = 16;
/// Largest perf map, or jitdump file; the largest known have a fifth of it.
pub(super) const MAX_BYTES: u64 = 512 << 20;
/// Longest time that reading one may take.
pub(super) const MAX_TIME: Duration = Duration::from_secs(2);
/// A map is not read again before this many times the time that it took.
const PAUSE: u32 = 8;

/// Shows that a file has not changed: size and time of modification.
type Version = (u64, i64, i64);

/// A process with JIT code: its number and when it started.
pub(super) type Jitted = (u32, u64);

#[derive(Debug)]
struct PerfMapEntry {
    version: Option<Version>,
    /// Not to be read again before.
    until: Instant,
    /// Why it is not usable.
    error: Option<String>,
    /// It was not read to its end.
    is_late: bool,
    map: PerfMap,
}

/// Perf maps by process; read again when the file has grown or changed.
#[derive(Debug, Default)]
pub(super) struct PerfMaps {
    maps: FxHashMap<Jitted, PerfMapEntry>,
}

impl PerfMaps {
    /// The frame of an address; none where the map does not name it.
    pub(super) fn frames(&self, process: Jitted, address: u64) -> Vec<SymFrame> {
        let entry = self.maps.get(&process);
        let Some(name) = entry.and_then(|entry| entry.map.lookup(address)) else {
            return Vec::new();
        };
        vec![jit_names::frame(name)]
    }

    /// Whether reading the map took so long that only its begin is known.
    pub(super) fn is_late(&self, process: Jitted) -> bool {
        self.maps.get(&process).is_some_and(|entry| entry.is_late)
    }

    /// Reads a process's map if there is something new in it. `uid`: its effective user,
    /// when it was first seen.
    pub(super) fn refresh(&mut self, process: Jitted, uid: u32, warnings: &mut Vec<String>) {
        let start = Instant::now();
        let pid = process.0;
        let known = self.maps.get(&process);
        if known.is_some_and(|entry| start < entry.until) {
            return;
        }
        let version = known.and_then(|entry| entry.version);
        let mut new = match open(process, uid) {
            Ok(None) => return,
            Ok(Some((file, found))) => {
                if version == Some(found) {
                    return;
                }
                read(pid, file, found)
            }
            Err(error) => PerfMapEntry {
                version: None,
                until: start,
                error: Some(error.to_string()),
                is_late: false,
                map: PerfMap::default(),
            },
        };
        new.until = Instant::now() + start.elapsed() * PAUSE;
        if let Some(error) = &new.error {
            warnings.push(format!("perf-{pid}.map: {error}"));
        }
        if self.maps.len() >= MAX_MAPS && !self.maps.contains_key(&process) {
            self.maps.clear();
        }
        self.maps.insert(process, new);
    }
}

/// The user and the innermost namespace's id of a process.
pub(super) fn identity(pid: u32) -> Option<(u32, u32)> {
    let status = kernel::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
    // Real, effective, saved and file system user id.
    let uid = field("Uid:")?.split_ascii_whitespace().nth(1)?;
    let inner = field("NSpid:").and_then(|ids| ids.split_ascii_whitespace().last());
    let inner = inner.and_then(|id| id.parse().ok()).unwrap_or(pid);
    Some((uid.parse().ok()?, inner))
}

/// The perf map of a process, if it has one, and its version. That of the host
/// serves processes whose own root does not have it.
fn open((pid, _): Jitted, uid: u32) -> io::Result<Option<(File, Version)>> {
    let (uid, inner) = identity(pid).unwrap_or((uid, pid));
    let trust = Trust {
        uid,
        max_bytes: MAX_BYTES,
    };
    let own = RootDir::of_process(pid).map(|root| (root, inner));
    let host = RootDir::of_host().map(|root| (root, pid));
    let mut refused = None;
    for (root, id) in [own, host].into_iter().flatten() {
        match root.open(format!("tmp/perf-{id}.map"), trust) {
            Ok(file) => {
                let meta = file.metadata()?;
                let version = (meta.size(), meta.mtime(), meta.mtime_nsec());
                return Ok(Some((file, version)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    refused.map_or(Ok(None), Err)
}

fn read(pid: u32, file: File, version: Version) -> PerfMapEntry {
    let reader = TimedReader {
        inner: file.take(MAX_BYTES),
        deadline: Instant::now() + MAX_TIME,
    };
    let reader = BufReader::with_capacity(64 << 10, reader);
    let (map, stats) = PerfMap::read(reader, PerfMapLimits::default());
    let refused = stats.malformed + stats.over_limit;
    let error = match (stats.read_error, refused) {
        (true, _) => Some("not read to the end, because it takes too long".to_owned()),
        (false, 0) => None,
        (false, _) => Some(format!("{refused} lines cannot be used")),
    };
    tracing::debug!("perf map of process {pid}: {stats:?}");
    PerfMapEntry {
        version: Some(version),
        until: Instant::now(),
        error,
        is_late: stats.read_error,
        map,
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
                known.until = Instant::now();
            }
            maps.refresh(process, uid, &mut warnings);
            assert_eq!(warnings, [""; 0]);
            names.extend(maps.frames(process, 0x1004).into_iter().map(|f| f.name));
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(names, ["one", "two"]);
    }

    #[test]
    fn reading_ends_at_the_deadline() {
        let reader = TimedReader {
            inner: io::repeat(b'x'),
            deadline: Instant::now() + Duration::from_millis(50),
        };
        let mut reader = BufReader::new(reader);
        assert!(reader.skip_until(b'\n').is_err());
        let (_, stats) = PerfMap::read(reader, PerfMapLimits::default());
        assert!(stats.read_error);
    }
}
