//! Writes captures.

use super::{CaptureRecord, MAGIC};
use crate::aggregate::Code;
use aiprof_model::{
    process::{FileId, FileTable},
    profile::{Losses, Meta},
    wire::{Event, ProcessEventKind, PythonStack},
};
use aiprof_symbols::{symbolize::SymFrame, unwind::TextSegment};
use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Write},
};

/// zstd level: 1 costs least and halves the size a second time at most.
const LEVEL: i32 = 1;
/// Events gathered into one record.
const EVENTS_PER_RECORD: usize = 256;
/// Names gathered into one record.
const NAMES_PER_RECORD: usize = 4096;

/// What a recording has found out about numbers in its events.
#[derive(Clone, Copy)]
pub struct ResolvedNames<'a> {
    /// Names of addresses, from the outermost function to the innermost.
    pub names: &'a [(Code, Vec<SymFrame>)],
    /// Executable segments of files.
    pub texts: &'a [(u32, Vec<TextSegment>)],
    /// The files whose numbers are in the names and texts.
    pub files: &'a FileTable,
    /// Paths of control groups.
    pub cgroups: &'a [(u64, String)],
}

/// Writes a capture.
pub struct CaptureWriter {
    out: zstd::Encoder<'static, BufWriter<Box<dyn Write + Send>>>,
    pending: Vec<Event>,
    /// The files by the numbers that they have where the events are read again. Those of
    /// the recording itself are others: what it stores of code without a file has numbers
    /// too, and what it forgot and met again has a second.
    files: FileTable,
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
            files: FileTable::default(),
        };
        writer.record(&CaptureRecord::Header {
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
        if let Event::Process(event) = event {
            let maps = match &event.kind {
                ProcessEventKind::Map(map) => std::slice::from_ref(map),
                ProcessEventKind::Snapshot { maps, .. } => maps,
                _ => &[],
            };
            // As the process table does.
            let valid = maps
                .iter()
                .filter(|map| map.start.checked_add(map.len).is_some());
            for map in valid {
                self.files.intern(&map.file);
            }
        }
        let sample = match event {
            Event::Sample(sample) => Some(sample),
            Event::CallStack(stack) => Some(&stack.sample),
            _ => None,
        };
        if let Some(sample) = sample.filter(|sample| !sample.python.is_empty()) {
            self.pending.push(Event::PythonStack(PythonStack {
                time_ns: sample.time_ns,
                tid: sample.thread.tid,
                words: sample.python.clone(),
            }));
        }
        self.pending.push(event.clone());
        if self.pending.len() >= EVENTS_PER_RECORD {
            self.flush_events()
        } else {
            Ok(())
        }
    }

    /// Adds what is known, and ends the capture.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(
        mut self,
        known: &ResolvedNames<'_>,
        meta: &Meta,
        losses: &Losses,
        busy: &BTreeMap<u32, u64>,
    ) -> io::Result<()> {
        self.flush_events()?;
        for chunk in known.names.chunks(NAMES_PER_RECORD) {
            let stored = chunk.iter().filter_map(|(code, frames)| {
                let code = match *code {
                    Code::File { file, offset } => Code::File {
                        file: self.number(file, known.files)?,
                        offset,
                    },
                    code => code,
                };
                Some((code, frames.clone()))
            });
            let stored = stored.collect();
            self.record(&CaptureRecord::Names(stored))?;
        }
        for (file, segments) in known.texts {
            let Some(file) = self.number(*file, known.files) else {
                continue;
            };
            self.record(&CaptureRecord::Text {
                file,
                segments: segments.clone(),
            })?;
        }
        for (id, path) in known.cgroups {
            self.record(&CaptureRecord::Cgroup {
                id: *id,
                path: path.clone(),
            })?;
        }
        self.record(&CaptureRecord::End {
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

    /// The number of a file where the capture is read; `None`: it is forgotten.
    fn number(&mut self, file: u32, files: &FileTable) -> Option<u32> {
        let key = files.key(FileId(file))?;
        Some(self.files.intern(key).0)
    }

    fn flush_events(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let events = std::mem::take(&mut self.pending);
        self.record(&CaptureRecord::Events(events))?;
        // Ends the compressed block: what is written so far can be read even
        // if the rest never comes.
        self.out.flush()
    }

    fn record(&mut self, record: &CaptureRecord) -> io::Result<()> {
        let bytes = postcard::to_stdvec(record).map_err(io::Error::other)?;
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(&bytes)
    }
}
