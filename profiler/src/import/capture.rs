//! The capture file: the recorded event stream, replayed without root, device
//! or the profiled machine.
//!
//! Layout: `MAGIC`, then one zstd stream of records, each a little-endian
//! `u32` length and that many bytes of a `Record` in postcard's encoding. The
//! first record is the header, the last one the end mark: without it the capture
//! was cut off, which is reported, and what is there is used.

mod scan;

pub use scan::{ScanOptions, Scanned, scan, scan_file};

use crate::{
    aggregate::{Aggregator, Code, Limits, Names, Weighting, build_profile},
    process::ProcessTable,
    profile::{FrameKind, Losses, Meta, Profile},
    symbolize::SymFrame,
    unwind::TextSegment,
    wire::Event,
};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

/// First bytes of a capture; the digit is the version of the format.
pub const MAGIC: &[u8; 8] = b"aiprof\x001";
/// zstd level: 1 costs least and halves the size a second time at most.
const LEVEL: i32 = 1;
/// Largest record: bounds what a hostile length makes us allocate.
const MAX_RECORD: usize = 16 << 20;
/// Events gathered into one record.
const EVENTS_PER_RECORD: usize = 256;
/// Names gathered into one record.
const NAMES_PER_RECORD: usize = 4096;
/// Most names taken from a capture.
const MAX_NAMES: usize = 4 << 20;

/// Why a capture could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file cannot be opened or read.
    #[error("{}: cannot be read", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is no capture.
    #[error("{}: not an aiprof capture (made with `-o FILE.aiprof`)", .0.display())]
    NotACapture(PathBuf),
    /// The file is a capture of another version.
    #[error("{}: a capture of format version {found}; this aiprof reads version {}", .path.display(), char::from(MAGIC[7]))]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: char,
    },
    /// Not even the capture's header is whole.
    #[error("{}: truncated or corrupt: it ends before its header does", .0.display())]
    Headless(PathBuf),
}

/// How to replay a capture.
#[derive(Clone, Copy, Debug)]
pub struct ReplayOptions {
    /// Expand inlined functions when naming frames.
    pub inlines: bool,
    /// Keep kernel stacks.
    pub kernel_stacks: bool,
    /// Count launches and the time in calls instead of CPU samples.
    pub launches: bool,
}

impl ReplayOptions {
    /// Takes out of an event what is not wanted.
    fn thin(self, event: &mut Event) {
        match event {
            _ if self.kernel_stacks => {}
            Event::Sample(sample) => sample.kernel.clear(),
            Event::CallStack(stack) => stack.sample.kernel.clear(),
            _ => {}
        }
    }
}

/// What a capture is made of.
#[derive(Debug, Serialize, Deserialize)]
enum Record {
    Header {
        meta: Meta,
        period_ns: u64,
    },
    Events(Vec<Event>),
    Names(Vec<(Code, Vec<SymFrame>)>),
    Text {
        file: u32,
        segments: Vec<TextSegment>,
    },
    Cgroup {
        id: u64,
        path: String,
    },
    End {
        meta: Meta,
        losses: Losses,
        /// Busy nanoseconds by CPU, for samples of a hardware counter.
        busy: BTreeMap<u32, u64>,
    },
}

/// Writes a capture.
pub struct CaptureWriter {
    out: zstd::Encoder<'static, BufWriter<Box<dyn Write + Send>>>,
    pending: Vec<Event>,
}

impl CaptureWriter {
    /// Begins a capture.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: Box<dyn Write + Send>, meta: &Meta, period_ns: u64) -> io::Result<Self> {
        let mut out = BufWriter::new(out);
        out.write_all(MAGIC)?;
        let out = zstd::Encoder::new(out, LEVEL)?;
        let mut writer = Self {
            out,
            pending: Vec::with_capacity(EVENTS_PER_RECORD),
        };
        writer.record(&Record::Header {
            meta: meta.clone(),
            period_ns,
        })?;
        writer.out.flush()?;
        Ok(writer)
    }

    /// Adds an event.
    ///
    /// # Errors
    /// Those of the output.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        self.pending.push(event.clone());
        if self.pending.len() >= EVENTS_PER_RECORD {
            self.flush_events()
        } else {
            Ok(())
        }
    }

    /// Adds names, text segments and control groups, and ends the capture.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(
        mut self,
        names: &[(Code, Vec<SymFrame>)],
        texts: &[(u32, Vec<TextSegment>)],
        cgroups: &[(u64, String)],
        meta: &Meta,
        losses: &Losses,
        busy: &BTreeMap<u32, u64>,
    ) -> io::Result<()> {
        self.flush_events()?;
        for chunk in names.chunks(NAMES_PER_RECORD) {
            self.record(&Record::Names(chunk.to_vec()))?;
        }
        for (file, segments) in texts {
            self.record(&Record::Text {
                file: *file,
                segments: segments.clone(),
            })?;
        }
        for (id, path) in cgroups {
            self.record(&Record::Cgroup {
                id: *id,
                path: path.clone(),
            })?;
        }
        self.record(&Record::End {
            meta: meta.clone(),
            losses: losses.clone(),
            busy: busy.clone(),
        })?;
        self.out
            .finish()?
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?
            .flush()
    }

    fn flush_events(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let events = std::mem::take(&mut self.pending);
        self.record(&Record::Events(events))?;
        // Ends the compressed block: what is written so far can be read even
        // if the rest never comes.
        self.out.flush()
    }

    fn record(&mut self, record: &Record) -> io::Result<()> {
        let bytes = postcard::to_stdvec(record).map_err(io::Error::other)?;
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(&bytes)
    }
}

/// Names as a capture stores them.
#[derive(Debug, Default)]
pub struct StoredNames {
    names: FxHashMap<Code, Vec<SymFrame>>,
    texts: FxHashMap<u32, Vec<TextSegment>>,
    cgroups: FxHashMap<u64, String>,
}

impl StoredNames {
    fn take(&mut self, names: Vec<(Code, Vec<SymFrame>)>, inlines: bool) {
        for (code, mut frames) in names {
            if !inlines {
                frames.retain(|f| f.kind != FrameKind::Inlined);
            }
            if self.names.len() < MAX_NAMES {
                self.names.insert(code, frames);
            }
        }
    }
}

impl Names for StoredNames {
    fn frames(&self, code: &Code) -> &[SymFrame] {
        self.names.get(code).map_or(&[], Vec::as_slice)
    }

    fn file_address(&self, file: u32, offset: u64) -> u64 {
        let text = self.texts.get(&file).map_or(&[][..], Vec::as_slice);
        crate::unwind::address_of(text, offset).unwrap_or(offset)
    }

    fn cgroup(&self, id: u64) -> Option<&str> {
        self.cgroups.get(&id).map(String::as_str)
    }
}

/// State of a replay.
struct Replay {
    options: ReplayOptions,
    processes: ProcessTable,
    aggregate: Aggregator,
    names: StoredNames,
    meta: Meta,
    busy: BTreeMap<u32, u64>,
    ended: bool,
    /// Time of the last event.
    last_ns: u64,
}

impl Replay {
    fn take(&mut self, record: Record) {
        match record {
            // Only the first record is a header; see `replay_stream`.
            Record::Header { .. } => {}
            Record::Events(events) => {
                for mut event in events {
                    self.options.thin(&mut event);
                    self.last_ns = self.last_ns.max(event.time_ns());
                    self.aggregate.apply(&mut self.processes, &event);
                }
            }
            Record::Names(names) => self.names.take(names, self.options.inlines),
            Record::Text { file, segments } => {
                self.names.texts.insert(file, segments);
            }
            Record::Cgroup { id, path } => {
                self.names.cgroups.insert(id, path);
            }
            Record::End { meta, losses, busy } => {
                self.meta = meta;
                self.busy = busy;
                self.aggregate.losses.merge(&losses);
                self.ended = true;
            }
        }
    }
}

/// Reads one record; `None` at the end of the stream.
fn read_record(stream: &mut impl Read) -> io::Result<Option<Record>> {
    let mut len = [0; 4];
    match stream.read_exact(&mut len) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_RECORD {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "record too large",
        ));
    }
    let mut bytes = Vec::new();
    stream.by_ref().take(len as u64).read_to_end(&mut bytes)?;
    let record = postcard::from_bytes(&bytes);
    record
        .map(Some)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Replays a record stream; `Err` only if there is no header. The second value
/// says what cut the stream short, if anything did.
fn replay_stream(
    mut stream: impl Read,
    options: ReplayOptions,
) -> Result<(Profile, Option<String>), ()> {
    let Ok(Some(Record::Header { meta, period_ns })) = read_record(&mut stream) else {
        return Err(());
    };
    let mut replay = Replay {
        options,
        processes: ProcessTable::default(),
        aggregate: if options.launches {
            Aggregator::of_calls(Limits::default())
        } else {
            Aggregator::new(Weighting { period_ns }, Limits::default())
        },
        last_ns: 0,
        names: StoredNames::default(),
        meta,
        busy: BTreeMap::new(),
        ended: false,
    };
    let problem = loop {
        match read_record(&mut stream) {
            Ok(Some(record)) => replay.take(record),
            Ok(None) => break (!replay.ended).then(|| "it ends too early".to_owned()),
            Err(error) => break Some(error.to_string()),
        }
    };
    let Replay {
        processes,
        mut aggregate,
        names,
        meta,
        busy,
        last_ns,
        ..
    } = replay;
    aggregate.finish_calls(&processes, last_ns);
    aggregate.complete(&busy, meta.period_ns);
    Ok((
        build_profile(&aggregate, &processes.files, &names, meta),
        problem,
    ))
}

/// Opens a capture's record stream, behind its magic.
fn open(
    path: &Path,
    file: impl Read,
) -> Result<zstd::Decoder<'static, BufReader<impl Read>>, ImportError> {
    let mut file = BufReader::new(file);
    let mut magic = [0; 8];
    file.read_exact(&mut magic)
        .map_err(|_| ImportError::NotACapture(path.to_owned()))?;
    if magic[..7] != MAGIC[..7] {
        return Err(ImportError::NotACapture(path.to_owned()));
    }
    if magic[7] != MAGIC[7] {
        let found = char::from(magic[7]);
        return Err(ImportError::Version {
            path: path.to_owned(),
            found,
        });
    }
    zstd::Decoder::with_buffer(file).map_err(|source| ImportError::Read {
        path: path.to_owned(),
        source,
    })
}

fn open_file(path: &Path) -> Result<File, ImportError> {
    File::open(path).map_err(|source| ImportError::Read {
        path: path.to_owned(),
        source,
    })
}

fn warn_if_cut(path: &Path, problem: Option<String>) {
    if let Some(problem) = problem {
        tracing::warn!(
            "{}: truncated or corrupt ({problem}): using what is whole",
            path.display()
        );
    }
}

/// Replays a capture into the profile that the recording would have given. A
/// capture that is cut off or damaged gives what is whole, with a warning.
///
/// # Errors
/// [`ImportError`] names the file and what is wrong with it.
pub fn replay(path: &Path, options: &ReplayOptions) -> Result<Profile, ImportError> {
    let stream = open(path, open_file(path)?)?;
    let (profile, problem) =
        replay_stream(stream, *options).map_err(|()| ImportError::Headless(path.to_owned()))?;
    warn_if_cut(path, problem);
    Ok(profile)
}

/// Fuzzing entry point: replays arbitrary bytes as an uncompressed stream.
#[doc(hidden)]
pub fn fuzz_capture(data: &[u8]) {
    let options = ReplayOptions {
        inlines: true,
        kernel_stacks: true,
        launches: data.first().is_some_and(|byte| byte & 1 == 1),
    };
    let _ = replay_stream(data, options);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        FileKey, MapEvent, ProcessEvent, ProcessEventKind, Sample, StopReason, Thread,
    };
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn events() -> Vec<Event> {
        let process = |kind| {
            Event::Process(ProcessEvent {
                time_ns: 1,
                pid: 4,
                tid: 4,
                kind,
            })
        };
        let file = FileKey {
            path: "/bin/p".into(),
            build_id: None,
            device: 1,
            inode: 9,
            version: 0,
        };
        let map = MapEvent {
            start: 0x1000,
            len: 0x1000,
            file_offset: 0,
            file,
        };
        let mut all = vec![
            process(ProcessEventKind::Exec { comm: "p".into() }),
            process(ProcessEventKind::Map(map)),
        ];
        all.extend((0..600).map(|i| {
            Event::Sample(Sample {
                time_ns: 10 + i,
                cpu: 0,
                thread: Thread {
                    pid: 4,
                    tid: 4,
                    comm: "p".into(),
                },
                cgroup: 3,
                period: 1,
                space: 0,
                miss_dir: 0,
                miss_page: 0,
                stop: StopReason::End,
                flags: 0,
                rip: 0,
                rsp: 0,
                rbp: 0,
                user: vec![0x1000 + i % 3],
                kernel: vec![],
            })
        }));
        all
    }

    fn capture() -> Vec<u8> {
        let sink = Sink::default();
        let meta = Meta {
            host: "h".into(),
            ..Meta::default()
        };
        let mut writer = CaptureWriter::new(Box::new(sink.clone()), &meta, 5).unwrap();
        events().iter().for_each(|e| writer.event(e).unwrap());
        let frame = |name: &str| SymFrame {
            name: name.into(),
            kind: FrameKind::Native,
            source: None,
        };
        let names = vec![(Code::File { file: 0, offset: 0 }, vec![frame("zero")])];
        let end = Meta {
            duration_ns: 77,
            ..meta
        };
        let cgroups = [(3, "/c".to_owned())];
        writer
            .finish(
                &names,
                &[],
                &cgroups,
                &end,
                &Losses::default(),
                &BTreeMap::new(),
            )
            .unwrap();
        Arc::into_inner(sink.0).unwrap().into_inner().unwrap()
    }

    fn replay_bytes(bytes: &[u8]) -> Result<Profile, ImportError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.aiprof");
        std::fs::write(&path, bytes).unwrap();
        replay(
            &path,
            &ReplayOptions {
                inlines: true,
                kernel_stacks: true,
                launches: false,
            },
        )
    }

    #[test]
    fn what_was_written_is_what_is_read() {
        let profile = replay_bytes(&capture()).unwrap();
        assert_eq!(
            (profile.total_count(), profile.total_time_ns()),
            (600, 3000)
        );
        assert_eq!(
            (profile.meta.host.as_str(), profile.meta.duration_ns),
            ("h", 77)
        );
        assert!(profile.strings.iter().any(|s| s == "zero"));
        assert_eq!(
            profile.samples[0].cgroup.map(|c| profile.str(c)),
            Some("/c")
        );
    }

    #[test]
    fn calls_are_replayed_as_launches_or_left_out() {
        use crate::correlate::tests::kit::Script;
        let mut script = Script::new();
        script.call("zeCommandListCreateImmediate", &[1, 2], &[0x11]);
        script.kernel("gemm", 0x21);
        for _ in 0..700 {
            script.launch(0x11, 0x21);
        }
        let sink = Sink::default();
        let meta = Meta::default();
        let mut writer = CaptureWriter::new(Box::new(sink.clone()), &meta, 5).unwrap();
        script.events.iter().for_each(|e| writer.event(e).unwrap());
        let (losses, busy) = (Losses::default(), BTreeMap::new());
        writer.finish(&[], &[], &[], &meta, &losses, &busy).unwrap();
        let bytes = Arc::into_inner(sink.0).unwrap().into_inner().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.aiprof");
        std::fs::write(&path, bytes).unwrap();
        let replayed = |launches| {
            let options = ReplayOptions {
                inlines: true,
                kernel_stacks: true,
                launches,
            };
            replay(&path, &options).unwrap()
        };
        assert_eq!(replayed(true).total_count(), 700);
        assert!(replayed(true).strings.iter().any(|s| s == "gemm"));
        assert_eq!(replayed(false).total_count(), 0);
    }

    #[test]
    fn every_prefix_gives_an_error_or_what_is_whole() {
        let full = capture();
        let mut usable = 0;
        for len in 0..full.len() {
            match replay_bytes(&full[..len]) {
                Ok(profile) => {
                    usable += 1;
                    assert!(profile.total_count() <= 600);
                }
                Err(ImportError::NotACapture(_)) => assert!(len < 8, "{len}"),
                Err(ImportError::Headless(_)) => {}
                Err(other) => panic!("{len}: {other}"),
            }
        }
        assert!(usable > 0, "no prefix was usable");
    }

    #[test]
    fn other_files_and_versions_are_named() {
        assert!(matches!(
            replay_bytes(b"\x7fELF...."),
            Err(ImportError::NotACapture(_))
        ));
        let mut other = capture();
        other[7] = b'9';
        assert!(matches!(
            replay_bytes(&other),
            Err(ImportError::Version { found: '9', .. })
        ));
    }
}
