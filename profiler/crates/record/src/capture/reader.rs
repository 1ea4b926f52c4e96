//! Reads captures: their events, and the report about them at the end.

use super::{CaptureRecord, ImportError, MAGIC, ReplayOptions};
use crate::aggregate::{Code, NameSource};
use aiprof_common::MAX_PYTHON_WORDS;
use aiprof_model::{
    parallel,
    profile::{FrameKind, Losses, Meta},
    wire::{Event, PythonStack},
};
use aiprof_symbols::{symbolize::SymFrame, unwind::TextSegment};
use aiprof_system::files::caller;
use aiprof_system::memory::{self, Metered};
use rustc_hash::FxHashMap;
use std::{
    collections::BTreeMap,
    io::{self, BufReader, Read},
    path::Path,
    sync::mpsc::sync_channel,
};

/// Largest record: bounds what a hostile length makes us allocate.
const MAX_RECORD: usize = 16 << 20;
/// Records that are read before they are wanted: some 2 MiB, so that neither who reads
/// nor who takes them waits often.
const AHEAD: usize = 32;
/// Most names taken from a capture.
const MAX_NAMES: usize = 4 << 20;

/// Names as a capture stores them.
#[derive(Debug, Default)]
pub struct StoredNames {
    names: FxHashMap<Code, Vec<SymFrame>>,
    /// Times from which on names of generated code hold, ascending.
    changes: FxHashMap<Code, Vec<u64>>,
    texts: FxHashMap<u32, Vec<TextSegment>>,
    cgroups: FxHashMap<u64, String>,
}

impl NameSource for StoredNames {
    fn frames(&self, code: &Code) -> &[SymFrame] {
        self.names.get(code).map_or(&[], Vec::as_slice)
    }

    fn changes(&self, code: &Code) -> &[u64] {
        self.changes.get(code).map_or(&[], Vec::as_slice)
    }

    fn file_address(&self, file: u32, offset: u64) -> u64 {
        let text = self.texts.get(&file).map_or(&[][..], Vec::as_slice);
        aiprof_symbols::unwind::address_of(text, offset).unwrap_or(offset)
    }

    fn cgroup(&self, id: u64) -> Option<&str> {
        self.cgroups.get(&id).map(String::as_str)
    }
}

impl StoredNames {
    fn note_change(&mut self, code: Code) {
        if let Code::JitSince {
            pid,
            address,
            since,
        } = code
        {
            let changes = self.changes.entry(Code::Jit { pid, address }).or_default();
            if let Err(at) = changes.binary_search(&since) {
                changes.insert(at, since);
            }
        }
    }

    /// Takes in a record of names, texts or control groups.
    pub(super) fn take(&mut self, record: CaptureRecord, wanted: &ReplayOptions) {
        match record {
            CaptureRecord::Names(names) => {
                for (code, mut frames) in names {
                    if !wanted.inlines {
                        frames.retain(|f| f.kind != FrameKind::Inlined);
                    }
                    if !wanted.source_lines {
                        frames.iter_mut().for_each(|f| f.source = None);
                    }
                    if self.names.len() < MAX_NAMES {
                        self.note_change(code);
                        self.names.insert(code, frames);
                    }
                }
            }
            CaptureRecord::Text { file, segments } => {
                self.texts.insert(file, segments);
            }
            CaptureRecord::Cgroup { id, path } => {
                self.cgroups.insert(id, path);
            }
            CaptureRecord::Header { .. } | CaptureRecord::Events(_) | CaptureRecord::End { .. } => {
            }
        }
    }
}

/// Everything in a capture but its events.
#[derive(Debug, Default)]
pub struct Contents {
    /// About the recording; its length is 0 if the capture was cut off.
    pub meta: Meta,
    /// Nanoseconds per sample; 0 if each sample has its own period.
    pub period_ns: u64,
    /// Names of addresses and of control groups.
    pub names: StoredNames,
    /// What was lost while recording.
    pub losses: Losses,
    /// Busy nanoseconds by CPU.
    pub busy: BTreeMap<u32, u64>,
    /// Why it is not whole, if it is not.
    pub problem: Option<String>,
}

/// Reads everything but the events. `inlines`: keep the names of inlined functions.
///
/// # Errors
/// [`ImportError`] names the file and what is wrong with it.
pub fn contents(path: &Path, inlines: bool) -> Result<Contents, ImportError> {
    let mut contents = Contents::default();
    let wanted = ReplayOptions {
        inlines,
        ..ReplayOptions::default()
    };
    contents.problem = records(path, |record| {
        match record {
            CaptureRecord::Header { meta, period_ns } => {
                (contents.meta, contents.period_ns) = (meta, period_ns);
            }
            CaptureRecord::End { meta, losses, busy } => {
                contents.meta = meta;
                contents.losses = losses;
                contents.busy = busy;
            }
            other => contents.names.take(other, &wanted),
        }
        true
    })?;
    Ok(contents)
}

/// Gives every event of a capture to `take`, in time order, until it returns
/// `false`.
///
/// # Errors
/// [`ImportError`] names the file and what is wrong with it. A capture that is cut
/// off or damaged gives what is whole.
pub fn for_each_event(path: &Path, mut take: impl FnMut(Event) -> bool) -> Result<(), ImportError> {
    records(path, |record| match record {
        CaptureRecord::Events(events) => events.into_iter().all(&mut take),
        _ => true,
    })
    .map(drop)
}

/// Gives every record of a capture to `take`, the header first, until it returns
/// `false`. Returns what cut the stream short, if anything did.
pub(super) fn records(
    path: &Path,
    take: impl FnMut(CaptureRecord) -> bool,
) -> Result<Option<String>, ImportError> {
    let file = caller::open(path).map_err(|source| ImportError::Read {
        path: path.to_owned(),
        source,
    })?;
    file_records(path, file, take)
}

/// The same for an open file or pipe, from where it is; `path` is for messages.
pub(super) fn file_records(
    path: &Path,
    file: impl Read,
    take: impl FnMut(CaptureRecord) -> bool,
) -> Result<Option<String>, ImportError> {
    let stream = open(path, file)?;
    verdict(path, stream_records(stream, take))
}

/// The same, with a thread that reads ahead: for who has much to do with each record.
pub(super) fn records_ahead(
    path: &Path,
    file: impl Read + Send,
    mut take: impl FnMut(CaptureRecord) -> bool,
) -> Result<Option<String>, ImportError> {
    let stream = open(path, file)?;
    let (to, records) = sync_channel(AHEAD);
    let ((), problem) = parallel::both(
        || {
            // The reader stops once the receiver is gone.
            let _ = records.into_iter().all(&mut take);
        },
        move || stream_records(stream, |record| to.send(record).is_ok()),
    );
    verdict(path, problem)
}

/// The result for a stream that ended with `problem`.
fn verdict(path: &Path, problem: Option<Option<String>>) -> Result<Option<String>, ImportError> {
    memory::check().map_err(|limit| ImportError::Limit {
        path: path.to_owned(),
        limit,
    })?;
    let problem = problem.ok_or(ImportError::Headless(path.to_owned()))?;
    if let Some(problem) = &problem {
        tracing::warn!(
            "{}: truncated or corrupt ({problem}): using the intact part",
            path.display()
        );
    }
    Ok(problem)
}

fn open<R: Read>(path: &Path, file: R) -> Result<impl Read + use<R>, ImportError> {
    let read = |source| ImportError::Read {
        path: path.to_owned(),
        source,
    };
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
    let plain = zstd::Decoder::with_buffer(file).map_err(read)?;
    Ok(Metered::decompressed(plain, None))
}

/// The same for an opened, uncompressed stream; `None` if there is no header.
pub(super) fn stream_records(
    mut stream: impl Read,
    mut take: impl FnMut(CaptureRecord) -> bool,
) -> Option<Option<String>> {
    match read_record(&mut stream) {
        Ok(Some(header @ CaptureRecord::Header { .. })) => {
            if !take(header) {
                return Some(None);
            }
        }
        _ => return None,
    }
    let mut ended = false;
    let mut python = None;
    Some(loop {
        match read_record(&mut stream) {
            // Only the first record is a header.
            Ok(Some(CaptureRecord::Header { .. })) => {}
            Ok(Some(mut record)) => {
                if let CaptureRecord::Events(events) = &mut record {
                    join_stacks(events, &mut python);
                }
                ended |= matches!(record, CaptureRecord::End { .. });
                if !take(record) {
                    break None;
                }
            }
            Ok(None) => break (!ended).then(|| "it ends too early".to_owned()),
            Err(error) => break Some(error.to_string()),
        }
    })
}

/// Puts the Python frames of samples, which are stored before them, where they belong.
/// `python` are those of the sample to come.
fn join_stacks(events: &mut Vec<Event>, python: &mut Option<PythonStack>) {
    events.retain_mut(|event| {
        let sample = match event {
            Event::PythonStack(stack) => {
                stack.words.truncate(MAX_PYTHON_WORDS);
                *python = Some(PythonStack {
                    words: std::mem::take(&mut stack.words),
                    ..*stack
                });
                return false;
            }
            Event::Sample(sample) => sample,
            Event::CallStack(stack) => &mut stack.sample,
            _ => return true,
        };
        let of_it =
            |stack: &PythonStack| (stack.time_ns, stack.tid) == (sample.time_ns, sample.thread.tid);
        if let Some(stack) = python.take().filter(of_it) {
            sample.python = stack.words;
        }
        true
    });
}

/// Reads one record; `None` at the end of the stream.
fn read_record(stream: &mut impl Read) -> io::Result<Option<CaptureRecord>> {
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
