//! The metrics files of AIUs, read while a recording runs.
//!
//! A runtime keeps `metrics.<PCI address>` in a folder that everybody may write to. So such a file
//! is not trusted: only regular files are opened, no links are followed, and what is read is
//! bounded. All of it happens on a thread of its own: a hung file system may stall that thread, and
//! nothing waits for it.

use super::clock;
use aiprof_model::{
    profile::{LossKind, Losses},
    wire::Counter,
};
use aiprof_record::aiu::metrics::{MAX_BYTES, Metrics, MetricsError, SectionKind, known, snapshot};
use aiprof_system::files::others;
use rustc_hash::FxHashMap;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

/// Where runtimes put the files by default.
pub const FOLDERS: [&str; 2] = ["/tmp", "/tmp/spyre-metrics"];
/// How the names of the files begin; the address of the device follows.
const PREFIX: &str = "metrics.";
/// How often files are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// How often a file is read whose interval is not known.
const USUAL: Duration = Duration::from_millis(100);
/// The bounds of a file's own interval.
const FASTEST: Duration = Duration::from_millis(10);
const SLOWEST: Duration = Duration::from_secs(1);
/// Most files that are read, and most names of a folder that are looked at.
const MAX_FILES: usize = 64;
const MAX_NAMES: usize = 65_536;
/// Most values that wait to be taken.
const MAX_WAITING: usize = 4096;
/// Readings of a file that is being rewritten.
const ATTEMPTS: usize = 4;

/// The reader of all metrics files. Dropping it ends its thread soon.
#[derive(Debug)]
pub(crate) struct MetricsReader {
    values: Receiver<Counter>,
    shared: Arc<MetricsShared>,
}

#[derive(Debug, Default)]
struct MetricsShared {
    stop: AtomicBool,
    /// Values that were dropped or overwritten.
    missed: AtomicU64,
}

impl MetricsReader {
    /// Begins to look for files in these folders.
    ///
    /// # Errors
    /// No thread could be started.
    pub(crate) fn start(folders: &[PathBuf]) -> io::Result<Self> {
        let (sender, values) = sync_channel(MAX_WAITING);
        let shared = Arc::new(MetricsShared::default());
        let mut worker = MetricsWorker {
            folders: folders.to_vec(),
            files: BTreeMap::new(),
            since_ms: clock::pair().unix_ns / 1_000_000,
            sender,
            shared: shared.clone(),
        };
        let thread = std::thread::Builder::new().name("aiprof-metrics".into());
        thread.spawn(move || worker.run())?;
        Ok(Self { values, shared })
    }

    /// A value that was read since the last call; `None`: no more.
    pub(crate) fn next(&self) -> Option<Counter> {
        self.values.try_recv().ok()
    }

    /// What was missed since the start.
    pub(crate) fn losses(&self) -> Losses {
        let mut losses = Losses::default();
        let missed = self.shared.missed.load(Ordering::Relaxed);
        losses.add(LossKind::CountersLost, missed);
        losses
    }
}

impl Drop for MetricsReader {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

/// A file that was found.
#[derive(Debug)]
struct Watched {
    source: String,
    due: Instant,
    every: Duration,
    /// Updates of each section that were seen last.
    seen: FxHashMap<SectionKind, u32>,
    /// Its content is in no known format, which was reported once.
    refused: bool,
}

struct MetricsWorker {
    folders: Vec<PathBuf>,
    files: BTreeMap<PathBuf, Watched>,
    /// When the recording began, milliseconds since 1970: what was written before
    /// is no part of it.
    since_ms: u64,
    sender: SyncSender<Counter>,
    shared: Arc<MetricsShared>,
}

impl MetricsWorker {
    fn run(&mut self) {
        let mut look = Instant::now();
        while !self.shared.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= look {
                self.look(now);
                look = now + LOOK;
            }
            let mut next = look;
            let mut files = std::mem::take(&mut self.files);
            files.retain(|path, watched| {
                if watched.due <= now {
                    watched.due = now + watched.every;
                    if let Err(error) = self.read(path, watched) {
                        tracing::debug!("{}: {error}", path.display());
                        return false;
                    }
                }
                next = next.min(watched.due);
                true
            });
            self.files = files;
            // The end is noticed within this time.
            let pause = next.saturating_duration_since(Instant::now());
            std::thread::sleep(pause.clamp(Duration::from_millis(1), USUAL));
        }
    }

    /// Looks for files that are new.
    fn look(&mut self, now: Instant) {
        for folder in &self.folders {
            for (path, name) in others::read_dir(folder, MAX_NAMES).unwrap_or_default() {
                let Some(address) = address(&name) else {
                    continue;
                };
                if self.files.len() < MAX_FILES {
                    self.files.entry(path).or_insert_with(|| Watched {
                        source: format!("AIU {address}"),
                        due: now,
                        every: USUAL,
                        seen: FxHashMap::default(),
                        refused: false,
                    });
                }
            }
        }
    }

    /// Reads a file and hands on what is new in it.
    fn read(&self, path: &Path, watched: &mut Watched) -> io::Result<()> {
        match snapshot(|| read_file(path), ATTEMPTS) {
            Ok(metrics) => self.tell(&metrics, watched),
            Err(MetricsError::Io(error)) => return Err(error),
            Err(MetricsError::Rewriting) => {}
            Err(error) if !watched.refused => {
                watched.refused = true;
                watched.every = SLOWEST;
                tracing::warn!("{}: {error}", path.display());
            }
            Err(_) => {}
        }
        Ok(())
    }

    fn tell(&self, metrics: &Metrics, watched: &mut Watched) {
        let pair = clock::pair();
        for section in &metrics.sections {
            if section.time_ms < self.since_ms {
                continue;
            }
            let last = watched.seen.insert(section.kind, section.sequence);
            if last == Some(section.sequence) {
                continue;
            }
            let values = section.values.iter();
            let values = values.filter_map(|v| Some((known(v.id)?, v.summary()?)));
            let skipped = last.map_or(0, |last| section.sequence.wrapping_sub(last) - 1);
            let every = Duration::from_millis(section.interval.into());
            watched.every = every.clamp(FASTEST, SLOWEST);
            // At most ten seconds ago: the file may contain any time.
            let behind = (pair.unix_ns / 1_000_000).saturating_sub(section.time_ms);
            let behind = behind.saturating_mul(1_000_000).min(10_000_000_000);
            for (metric, value) in values {
                // A sequence number that begins anew has skipped nothing.
                if skipped < 1 << 16 {
                    self.missed(skipped.into());
                }
                let counter = Counter {
                    time_ns: pair.time_ns.saturating_sub(behind),
                    source: watched.source.clone(),
                    name: metric.meaning.to_owned(),
                    unit: metric.unit.to_owned(),
                    // Saturates.
                    milli: (value * 1000.0) as i64,
                };
                if self.sender.try_send(counter).is_err() {
                    self.missed(1);
                }
            }
        }
    }

    fn missed(&self, values: u64) {
        self.shared.missed.fetch_add(values, Ordering::Relaxed);
    }
}

/// The device of a file of this name.
fn address(name: &OsStr) -> Option<&str> {
    let address = name.to_str()?.strip_prefix(PREFIX)?;
    let fits = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.');
    let is_address = address.contains(':') && address.len() <= 32 && address.chars().all(fits);
    is_address.then_some(address)
}

/// The bytes of a file, if it is a regular one.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = others::open_untrusted(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;

    /// A file of one section with power (0.1 W) and temperature.
    fn file(sequence: u32, time_ms: u64, power: u64) -> Vec<u8> {
        let mut section = Vec::new();
        for word in [0x20_u32, 32 + 16 + 16, sequence, 2] {
            section.extend(word.to_le_bytes());
        }
        section.extend(time_ms.to_le_bytes());
        for word in [20_u32, 0, 0x10, 1, 0x11, 1] {
            section.extend(word.to_le_bytes());
        }
        for value in [power, 450] {
            section.extend(value.to_le_bytes());
        }
        let mut bytes = b"AiuM".to_vec();
        bytes.extend((40 + section.len() as u32).to_le_bytes());
        bytes.extend([1, 0, 0, 0]);
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(time_ms.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(0x20_u32.to_le_bytes());
        bytes.extend((section.len() as u32).to_le_bytes());
        bytes.extend(section);
        bytes
    }

    /// Waits until this many values have come, 5 s at most.
    fn wait(reader: &MetricsReader, count: usize) -> Vec<Counter> {
        let end = Instant::now() + Duration::from_secs(5);
        let mut all = Vec::new();
        while all.len() < count && Instant::now() < end {
            all.extend(std::iter::from_fn(|| reader.next()));
            std::thread::sleep(Duration::from_millis(5));
        }
        all
    }

    #[test]
    fn each_update_of_a_file_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.0000:aa:00.0");
        let now = clock::pair();
        let now_ms = now.unix_ns / 1_000_000;
        // Left behind by an earlier run.
        std::fs::write(&path, file(7, now_ms - 5000, 1)).unwrap();
        let reader = MetricsReader::start(&[folder.path().into()]).unwrap();
        std::thread::sleep(Duration::from_millis(150));
        assert_eq!(reader.next(), None);
        std::fs::write(&path, file(8, now_ms + 200, 155)).unwrap();
        let values = wait(&reader, 2);
        let told: Vec<_> = values
            .iter()
            .map(|c| (&*c.name, &*c.unit, c.milli))
            .collect();
        assert_eq!(told, [("power", "W", 15_500), ("temperature", "C", 45_000)]);
        assert_eq!(values[0].source, "AIU 0000:aa:00.0");
        assert!(values[0].time_ns >= now.time_ns && values[0].time_ns <= clock::pair().time_ns);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(reader.next(), None);
        // Two updates were missed, of two values each.
        std::fs::write(&path, file(11, now_ms + 400, 160)).unwrap();
        assert_eq!(wait(&reader, 2).len(), 2);
        assert_eq!(reader.losses().get(LossKind::CountersLost), 4);
    }

    #[test]
    fn nothing_but_regular_files_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let good = at("good");
        std::fs::write(&good, b"content").unwrap();
        std::os::unix::fs::symlink(&good, at("link")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        let fifo = at("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        assert_eq!(read_file(&good).unwrap(), b"content");
        for name in ["link", "folder", "fifo", "none"] {
            // Opening the pipe would wait for a writer.
            assert!(read_file(&at(name)).is_err(), "{name}");
        }
        std::fs::write(&good, vec![1; MAX_BYTES + 10]).unwrap();
        assert_eq!(read_file(&good).unwrap().len(), MAX_BYTES);
    }

    #[test]
    fn only_names_with_an_address_are_metrics_files() {
        for (name, expected) in [
            ("metrics.0000:aa:00.0", Some("0000:aa:00.0")),
            ("metrics.txt", None),
            ("metrics.0000:aa/..", None),
            ("metrics.", None),
            ("other.0000:aa:00.0", None),
        ] {
            assert_eq!(address(OsStr::new(name)), expected, "{name}");
        }
    }
}
