//! Writes captures.

use super::{MAGIC, Record};
use aiprof_analysis::aggregate::Code;
use aiprof_model::{
    profile::{Losses, Meta},
    wire::Event,
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
