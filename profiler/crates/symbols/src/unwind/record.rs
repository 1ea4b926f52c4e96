//! The records of `.eh_frame`: lengths, CIEs and FDEs, read in chunks.

use super::bytes::Bytes;
use super::cfi::{Interpreter, RuleState};
use super::cie::{Cie, encoded_address, encoded_value};
use crate::elf::{FileSpan, ReadAt, ReadWindow};
use std::io;
use std::ops::Range;

/// Longest record that is decoded; the longest seen (hand-written crypto code)
/// have a few kilobytes.
const MAX_RECORD_BYTES: usize = 256 * 1024;
/// Bytes that hold the two addresses of an FDE, whatever their encoding.
const RANGE_BYTES: usize = 20;
/// Bytes read at once: FDEs of neighbouring code are mostly neighbours.
const CHUNK: usize = 8 * 1024;
/// CIEs remembered; linkers merge equal ones, so files have few.
const CACHED_CIES: usize = 16;
/// Length that announces a 64-bit length.
const LENGTH_64: u32 = u32::MAX;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// A zero length; in the middle of a section when files were joined.
    Terminator,
    /// Common information.
    Cie,
    /// Frame description with the offset of its CIE.
    Fde { cie: u64 },
}

/// Where a record and its parts are; offsets from the start of the frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordHeader {
    pub(super) kind: RecordKind,
    /// First byte after the id.
    pub(super) body: u64,
    /// First byte after the record.
    pub(super) end: u64,
}

impl RecordHeader {
    /// Bytes after the id, if the record is not too long to be decoded.
    fn body_len(&self) -> Option<usize> {
        let len = usize::try_from(self.end.checked_sub(self.body)?).ok()?;
        (len <= MAX_RECORD_BYTES).then_some(len)
    }
}

/// A decoded FDE.
pub(super) struct Fde<'a> {
    /// Addresses of the code it describes.
    pub(super) range: Range<u64>,
    /// Its CIE.
    pub(super) cie: Cie,
    /// Its instructions.
    pub(super) code: &'a [u8],
    /// Address of the first of them.
    pub(super) code_vaddr: u64,
    /// Scratch for the interpreter.
    pub(super) states: &'a mut Vec<RuleState>,
}

impl Fde<'_> {
    /// Its rows, from the first on.
    pub(super) fn rows(&mut self) -> Interpreter<'_> {
        let start = self.range.start;
        Interpreter::new(&self.cie, self.code, self.code_vaddr, start, self.states)
    }
}

/// Reads records. Two windows, as FDEs and their CIEs are far apart.
pub(super) struct RecordReader {
    frames: FileSpan,
    fdes: ReadWindow,
    cies: ReadWindow,
    /// Parsed CIEs by offset; `None` for one that is malformed.
    cache: Vec<(u64, Option<Cie>)>,
    /// The entry of the cache to replace next.
    victim: usize,
    states: Vec<RuleState>,
}

impl RecordReader {
    /// For the frames in `frames`.
    pub(super) fn new(frames: FileSpan) -> Self {
        Self {
            frames,
            fdes: ReadWindow::new(CHUNK),
            cies: ReadWindow::new(512),
            cache: Vec::new(),
            victim: 0,
            states: Vec::new(),
        }
    }

    /// The record at `at`; `None` at the end of the frames or if it is malformed.
    pub(super) fn header<R: ReadAt>(
        &mut self,
        source: &R,
        at: u64,
    ) -> io::Result<Option<RecordHeader>> {
        read_header(source, &mut self.fdes, self.frames, at)
    }

    /// The code an FDE describes; its instructions are neither read nor
    /// checked. `None` if it or its CIE is malformed.
    pub(super) fn fde_range<R: ReadAt>(
        &mut self,
        source: &R,
        header: &RecordHeader,
    ) -> io::Result<Option<Range<u64>>> {
        let (RecordKind::Fde { cie }, Some(len)) = (header.kind, header.body_len()) else {
            return Ok(None);
        };
        let Some(cie) = self.cie(source, cie)? else {
            return Ok(None);
        };
        let len = len.min(RANGE_BYTES);
        let bytes = self
            .fdes
            .get(source, self.frames.offset + header.body, len)?;
        let vaddr = self.frames.vaddr + header.body;
        Ok(parse_range(&mut Bytes::new(bytes), vaddr, &cie))
    }

    /// The FDE with this header; `None` if it or its CIE is malformed.
    pub(super) fn fde<R: ReadAt>(
        &mut self,
        source: &R,
        header: &RecordHeader,
    ) -> io::Result<Option<Fde<'_>>> {
        let (RecordKind::Fde { cie }, Some(len)) = (header.kind, header.body_len()) else {
            return Ok(None);
        };
        let Some(cie) = self.cie(source, cie)? else {
            return Ok(None);
        };
        let bytes = self
            .fdes
            .get(source, self.frames.offset + header.body, len)?;
        let vaddr = self.frames.vaddr + header.body;
        let Some((range, code)) = parse_fde(bytes, len, vaddr, &cie) else {
            return Ok(None);
        };
        let code_vaddr = vaddr + (len - code.len()) as u64;
        Ok(Some(Fde {
            range,
            cie,
            code,
            code_vaddr,
            states: &mut self.states,
        }))
    }

    /// The CIE at offset `at`, parsed once.
    fn cie<R: ReadAt>(&mut self, source: &R, at: u64) -> io::Result<Option<Cie>> {
        if let Some((_, cie)) = self.cache.iter().find(|(key, _)| *key == at) {
            return Ok(*cie);
        }
        let cie = self.read_cie(source, at)?;
        if self.cache.len() < CACHED_CIES {
            self.cache.push((at, cie));
        } else if let Some(entry) = self.cache.get_mut(self.victim) {
            *entry = (at, cie);
            self.victim = (self.victim + 1) % CACHED_CIES;
        }
        Ok(cie)
    }

    /// Reads and parses the CIE at offset `at`.
    fn read_cie<R: ReadAt>(&mut self, source: &R, at: u64) -> io::Result<Option<Cie>> {
        let header = read_header(source, &mut self.cies, self.frames, at)?;
        let Some(header) = header.filter(|h| h.kind == RecordKind::Cie) else {
            return Ok(None);
        };
        let Some(len) = header.body_len() else {
            return Ok(None);
        };
        let body = self
            .cies
            .get(source, self.frames.offset + header.body, len)?;
        if body.len() < len {
            return Ok(None);
        }
        Ok(Cie::parse(
            body,
            self.frames.vaddr + header.body,
            &mut self.states,
        ))
    }
}

/// The record at offset `at` of `frames`.
fn read_header<R: ReadAt>(
    source: &R,
    window: &mut ReadWindow,
    frames: FileSpan,
    at: u64,
) -> io::Result<Option<RecordHeader>> {
    let room = frames.size.saturating_sub(at).min(16);
    if room < 4 {
        return Ok(None);
    }
    let bytes = window.get(source, frames.offset + at, room as usize)?;
    Ok(parse_header(bytes, at).filter(|header| header.end <= frames.size))
}

/// A record's length and id. The id of an FDE is the distance from the id back
/// to the CIE; it has 4 bytes even where the length has 8 (LSB).
fn parse_header(bytes: &[u8], at: u64) -> Option<RecordHeader> {
    let mut bytes = Bytes::new(bytes);
    let mut len = u64::from(bytes.u32()?);
    if len == 0 {
        let end = at + 4;
        return Some(RecordHeader {
            kind: RecordKind::Terminator,
            body: end,
            end,
        });
    }
    if len == u64::from(LENGTH_64) {
        len = bytes.u64()?;
    }
    let id_at = at + bytes.pos() as u64;
    let id = bytes.u32()?;
    let end = id_at.checked_add(len)?;
    let body = id_at + 4;
    if end < body {
        return None;
    }
    let kind = match id {
        0 => RecordKind::Cie,
        back => RecordKind::Fde {
            cie: id_at.checked_sub(u64::from(back))?,
        },
    };
    Some(RecordHeader { kind, body, end })
}

/// Range and instructions of an FDE of `len` bytes.
fn parse_fde<'a>(
    bytes: &'a [u8],
    len: usize,
    vaddr: u64,
    cie: &Cie,
) -> Option<(Range<u64>, &'a [u8])> {
    if bytes.len() < len {
        return None;
    }
    let mut bytes = Bytes::new(bytes);
    let range = parse_range(&mut bytes, vaddr, cie)?;
    if cie.augmented {
        let skip = bytes.uleb()?;
        bytes.take_u64(skip)?;
    }
    Some((range, bytes.rest()))
}

/// The addresses at the start of an FDE's body.
fn parse_range(bytes: &mut Bytes<'_>, vaddr: u64, cie: &Cie) -> Option<Range<u64>> {
    let start = encoded_address(bytes, cie.encoding, vaddr)?;
    let size = encoded_value(bytes, cie.encoding)?;
    Some(start..start.checked_add(size)?)
}
