//! Device captures: the bytes of a stream with the times at which they were read.
//!
//! Raw records have no time. A capture keeps each read of a stream with its window, so
//! that the samples of a machine can be decoded again on another. All numbers are
//! little-endian:
//!
//! ```text
//! header   8  magic "aipdevc1"
//!          1  layout: 0 pvc, 1 xe2, 2 xe3p
//!          1  clock: 0 nanoseconds since the recording began, 1 CLOCK_MONOTONIC
//!          2  bytes of a record
//!          4  card
//!          4  GT
//!          4  device cycles between samples, 0: not known
//!          8  instruction base address, all ones: not known
//!          4  bytes of the name, 256 at most
//!          …  name of the stream, UTF-8
//! frame    8  begin of the window
//!          8  end of the window
//!          4  drops in it
//!          4  bytes of records
//!          …  records as the driver handed them out
//! ```

#[cfg(any(test, feature = "testing"))]
pub mod testing;

use super::{Layout, Splitter};
use std::io::{self, Write};

/// The first bytes.
pub const MAGIC: [u8; 8] = *b"aipdevc1";
/// Bytes of the header before the name.
const HEADER: usize = 36;
/// Bytes of a frame before its records.
const FRAME: usize = 24;
/// Longest name in bytes.
const MAX_NAME: usize = 256;

/// Which clock a capture's times are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureClock {
    /// Nanoseconds since the recording began.
    Recording,
    /// CLOCK_MONOTONIC of the machine.
    Monotonic,
}

/// What a capture is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// How records are laid out.
    pub layout: Layout,
    /// What the times of frames are.
    pub clock: CaptureClock,
    /// Bytes of a record.
    pub record_size: u16,
    /// Index of the card among those sampled.
    pub card: u32,
    /// GT of the card.
    pub gt: u32,
    /// Device cycles between samples, 0 if not known.
    pub cycles: u32,
    /// The instruction base address, if it is known.
    pub base: Option<u64>,
    /// Name of what was sampled; cut at 256 bytes when written.
    pub name: String,
}

/// The window of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureFrame {
    /// Begin and end in nanoseconds of the header's [`CaptureClock`].
    pub from_ns: u64,
    /// Not before `from_ns`.
    pub to_ns: u64,
    /// Times that samples were dropped in it.
    pub drops: u32,
}

/// What the next bytes of a capture were.
#[derive(Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// The header: once, first.
    Header(&'a Header),
    /// A frame begins.
    Begin(CaptureFrame),
    /// Bytes of its records.
    Records(&'a [u8]),
    /// It is complete.
    End,
}

/// Bytes that are no capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// Other first bytes.
    #[error("not a device capture (unknown first bytes)")]
    Magic,
    /// A header with values that are not known, or cannot be.
    #[error("the header of the device capture has no valid {0}")]
    Header(&'static str),
    /// A window that ends before it begins.
    #[error("a block of device samples ends before it begins; the rest of the file is not read")]
    Frame,
}

/// Reads a capture that arrives in pieces. Keeps less than 300 bytes.
#[derive(Debug, Default)]
pub struct CaptureReader {
    /// The begin of what is read next, up to its fixed length.
    kept: Vec<u8>,
    header: Option<Header>,
    /// Bytes of records that are still to come; `None`: between frames.
    left: Option<u32>,
    failed: Option<CaptureError>,
}

impl CaptureReader {
    /// Nothing read yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the next piece. After an error, nothing more is read.
    ///
    /// # Errors
    /// The bytes are no capture.
    pub fn read(
        &mut self,
        mut piece: &[u8],
        mut part: impl FnMut(Part<'_>),
    ) -> Result<(), CaptureError> {
        while self.failed.is_none() && (!piece.is_empty() || self.left == Some(0)) {
            if let Err(error) = self.step(&mut piece, &mut part) {
                self.failed = Some(error);
            }
        }
        self.failed.map_or(Ok(()), Err)
    }

    /// Whether a header or a frame has begun whose end has not come.
    pub fn is_within(&self) -> bool {
        self.left.is_some() || !self.kept.is_empty()
    }

    fn step(
        &mut self,
        piece: &mut &[u8],
        part: &mut impl FnMut(Part<'_>),
    ) -> Result<(), CaptureError> {
        if let Some(left) = self.left {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            let (records, rest) = piece.split_at(length);
            *piece = rest;
            if !records.is_empty() {
                part(Part::Records(records));
            }
            // `length` is at most `left`.
            let left = left - length as u32;
            self.left = (left > 0).then_some(left);
            if left == 0 {
                part(Part::End);
            }
        } else if self.header.is_some() {
            if let Some(bytes) = self.gather(piece, FRAME) {
                let (frame, length) = parse_frame(&bytes).ok_or(CaptureError::Frame)?;
                part(Part::Begin(frame));
                self.left = Some(length);
            }
        } else {
            let length = HEADER + name_length(&self.kept)?;
            if let Some(bytes) = self.gather(piece, length) {
                if field(&bytes, 0) != Some(MAGIC) {
                    return Err(CaptureError::Magic);
                }
                if bytes.len() == HEADER && name_length(&bytes)? > 0 {
                    // Now the length of the name is known.
                    self.kept = bytes;
                    return Ok(());
                }
                let header = parse_header(&bytes)?;
                part(Part::Header(self.header.insert(header)));
            }
        }
        Ok(())
    }

    /// `length` bytes, once they have come.
    fn gather(&mut self, piece: &mut &[u8], length: usize) -> Option<Vec<u8>> {
        let missing = length.saturating_sub(self.kept.len()).min(piece.len());
        let (head, rest) = piece.split_at(missing);
        self.kept.extend_from_slice(head);
        *piece = rest;
        (self.kept.len() >= length).then(|| std::mem::take(&mut self.kept))
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    field(bytes, at).map(u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    field(bytes, at).map(u64::from_le_bytes)
}

/// Length of the name in bytes; 0 while it is not known.
fn name_length(header: &[u8]) -> Result<usize, CaptureError> {
    let length = word(header, HEADER - 4).map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX));
    if length > MAX_NAME {
        return Err(CaptureError::Header("name"));
    }
    Ok(length)
}

fn parse_header(bytes: &[u8]) -> Result<Header, CaptureError> {
    let layout = match bytes.get(8) {
        Some(0) => Layout::Pvc,
        Some(1) => Layout::Xe2,
        Some(2) => Layout::Xe3p,
        _ => return Err(CaptureError::Header("layout")),
    };
    let clock = match bytes.get(9) {
        Some(0) => CaptureClock::Recording,
        Some(1) => CaptureClock::Monotonic,
        _ => return Err(CaptureError::Header("clock")),
    };
    let record_size = field(bytes, 10).map_or(0, u16::from_le_bytes);
    if Splitter::new(layout, record_size.into()).is_none() {
        return Err(CaptureError::Header("record size"));
    }
    let number = |at| word(bytes, at).unwrap_or(0);
    Ok(Header {
        layout,
        clock,
        record_size,
        card: number(12),
        gt: number(16),
        cycles: number(20),
        base: long(bytes, 24).filter(|base| *base != u64::MAX),
        name: String::from_utf8_lossy(bytes.get(HEADER..).unwrap_or_default()).into_owned(),
    })
}

fn parse_frame(bytes: &[u8]) -> Option<(CaptureFrame, u32)> {
    let frame = CaptureFrame {
        from_ns: long(bytes, 0)?,
        to_ns: long(bytes, 8)?,
        drops: word(bytes, 16)?,
    };
    (frame.from_ns <= frame.to_ns).then_some((frame, word(bytes, 20)?))
}

/// Writes a capture.
#[derive(Debug)]
pub struct CaptureWriter<W> {
    to: W,
}

impl<W: Write> CaptureWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// `to` cannot be written to.
    pub fn new(mut to: W, header: &Header) -> io::Result<Self> {
        let layout = match header.layout {
            Layout::Pvc => 0,
            Layout::Xe2 => 1,
            Layout::Xe3p => 2,
        };
        let clock = match header.clock {
            CaptureClock::Recording => 0,
            CaptureClock::Monotonic => 1,
        };
        let name = header.name.get(..header.name.floor_char_boundary(MAX_NAME));
        let name = name.unwrap_or_default();
        let mut bytes = MAGIC.to_vec();
        bytes.extend([layout, clock]);
        bytes.extend(header.record_size.to_le_bytes());
        for number in [header.card, header.gt, header.cycles] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(header.base.unwrap_or(u64::MAX).to_le_bytes());
        // At most 256.
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend(name.as_bytes());
        to.write_all(&bytes)?;
        Ok(Self { to })
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// It cannot be written, or is longer than 4 GiB.
    pub fn frame(&mut self, frame: CaptureFrame, records: &[u8]) -> io::Result<()> {
        let length = u32::try_from(records.len()).map_err(io::Error::other)?;
        self.to.write_all(&frame.from_ns.to_le_bytes())?;
        self.to.write_all(&frame.to_ns.to_le_bytes())?;
        self.to.write_all(&frame.drops.to_le_bytes())?;
        self.to.write_all(&length.to_le_bytes())?;
        self.to.write_all(records)
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.to
    }
}
