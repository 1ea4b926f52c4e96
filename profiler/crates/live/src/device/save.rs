//! Keeps what streams hand out in device captures, to be replayed elsewhere.

use super::recorder::Shape;
use aiprof_model::{
    eu_stall::capture::{CaptureClock, CaptureFrame, CaptureWriter, Header},
    wire::DeviceStream,
};
use aiprof_system::files::place;
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, BufWriter, Write as _},
    path::Path,
};

/// Most bytes that are kept for a frame.
const MAX_FRAME: usize = 64 << 20;

/// The capture of a stream, while it is written.
#[derive(Debug)]
pub(super) struct Save {
    to: CaptureWriter<BufWriter<File>>,
    /// Records since the last frame.
    records: Vec<u8>,
    drops: u32,
}

impl Save {
    /// Begins the file of a stream, `device-N.devcap` with its number, in a folder,
    /// which is created if it is not there; where another user planted a link, nothing is.
    ///
    /// # Errors
    /// It cannot be created, or is there already.
    pub(super) fn new(folder: &Path, stream: &DeviceStream, shape: Shape) -> io::Result<Self> {
        let header = Header {
            layout: shape.layout,
            clock: CaptureClock::Monotonic,
            record_size: u16::try_from(shape.record_size).map_err(io::Error::other)?,
            card: stream.card,
            gt: stream.gt,
            cycles: stream.cycles_per_sample,
            base: shape.base,
            name: stream.name.clone(),
        };
        let folder = place::make_directory(folder, |_| Ok(())).map_err(io::Error::other)?;
        let folder = folder.ok_or_else(|| io::Error::other("not a directory"))?;
        let name = format!("device-{}.devcap", stream.id);
        let file = BufWriter::new(folder.create_new(OsStr::new(&name))?);
        Ok(Self {
            to: CaptureWriter::new(file, &header)?,
            records: Vec::new(),
            drops: 0,
        })
    }

    /// The next whole records.
    ///
    /// # Errors
    /// They are too many for a frame.
    pub(super) fn add(&mut self, records: &[u8]) -> io::Result<()> {
        if self.records.len() + records.len() > MAX_FRAME {
            return Err(io::Error::other(
                "more records came between two writes than the limit of 64 MiB",
            ));
        }
        self.records.extend_from_slice(records);
        Ok(())
    }

    /// Samples were dropped.
    pub(super) fn dropped(&mut self, times: u32) {
        self.drops = self.drops.saturating_add(times);
    }

    /// Writes what came since the last frame as one.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn close(&mut self, from_ns: u64, to_ns: u64) -> io::Result<()> {
        if self.records.is_empty() && self.drops == 0 {
            return Ok(());
        }
        let frame = CaptureFrame {
            from_ns,
            to_ns: to_ns.max(from_ns),
            drops: std::mem::take(&mut self.drops),
        };
        self.to.frame(frame, &self.records)?;
        self.records.clear();
        Ok(())
    }

    /// Writes what is still in memory.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn end(self) -> io::Result<()> {
        self.to.into_inner().flush()
    }
}
