//! Which FDE covers an address: the sorted table of `.eh_frame_hdr` (LSB,
//! "Exception Frame Header") or, where a file has none, an index made by one
//! scan of `.eh_frame`.

use super::UnwindError;
use super::bytes::Bytes;
use super::cie::{encoded_address, encoded_value};
use super::record::{RecordKind, RecordReader};
use crate::elf::{CodeFile, FileSpan, ReadAt, ReadWindow, read_full};
use std::sync::OnceLock;

/// Table encodings that are searched in place: relative to the header's start,
/// signed, 4 or 8 bytes.
const TABLE_SDATA4: u8 = 0x3b;
const TABLE_SDATA8: u8 = 0x3c;
/// Bytes of `.eh_frame_hdr` before the table, at most: version, encodings and
/// two pointers.
const MAX_HDR_HEAD: usize = 4 + 8 + 8;
/// Bytes of table read at once.
const TABLE_CHUNK: usize = 4096;

/// Most FDEs of a file without a search table (8 bytes of memory each).
const MAX_SCANNED_FDES: usize = 1 << 20;
/// Most records looked at in that scan, terminators included.
const MAX_SCANNED_RECORDS: usize = 4 << 20;

/// The way from addresses to FDEs, for one file.
#[derive(Debug)]
pub(super) enum Index {
    /// The file has no `.eh_frame`.
    Absent,
    /// Search in the file's own table.
    Table(SearchTable),
    /// Search in an index that is made when the first page is asked for.
    Scan {
        frames: FileSpan,
        base: u64,
        /// Whether `frames` ends where `.eh_frame` does, so that what is no
        /// record is malformed and not another section.
        exact: bool,
        scanned: OnceLock<Scanned>,
    },
}

/// The search table of `.eh_frame_hdr`.
#[derive(Debug)]
pub(super) struct SearchTable {
    /// File offset of the first entry.
    offset: u64,
    /// What addresses in it are relative to.
    base: u64,
    /// Entries.
    count: u64,
    /// 8 bytes per number instead of 4.
    wide: bool,
    /// The loaded bytes from `.eh_frame`'s start on.
    frames: FileSpan,
}

/// What a scan found.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    /// FDEs by the address of their code.
    entries: Vec<ScanEntry>,
    /// Malformed records.
    malformed: u64,
}

/// An FDE found by scanning, relative to the file's first page and to
/// `.eh_frame`.
#[derive(Clone, Copy, Debug)]
struct ScanEntry {
    start: u32,
    fde: u32,
}

/// An entry of the index.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexEntry {
    /// Address of the first byte of code.
    pub(super) start: u64,
    /// Offset of the FDE from the start of [`Index::frames`]; it may lie
    /// outside, for it comes from the file.
    pub(super) fde: u64,
}

impl Index {
    /// Finds a file's unwind data. `base` is the address of its first page. The
    /// second value: whether `.eh_frame_hdr` is there, and malformed.
    pub(super) fn find<R: ReadAt>(
        source: &R,
        elf: &CodeFile,
        base: u64,
    ) -> Result<(Self, bool), UnwindError> {
        let (mut start, mut bad_hdr) = (None, false);
        if let Some(hdr) = elf.eh_frame_hdr {
            match parse_hdr(source, elf, hdr)? {
                Some(Hdr::Table(table)) => return Ok((Self::Table(table), false)),
                Some(Hdr::Frames(frames)) => start = Some(frames),
                None => bad_hdr = true,
            }
        }
        let section = elf.section_named(source, &[b".eh_frame"])?;
        let index = match section.or(start) {
            Some(frames) if frames.size > 0 => Self::Scan {
                frames,
                base,
                exact: section.is_some(),
                scanned: OnceLock::new(),
            },
            _ => Self::Absent,
        };
        Ok((index, bad_hdr))
    }

    /// The bytes that hold the FDEs.
    pub(super) fn frames(&self) -> Option<FileSpan> {
        match self {
            Self::Absent => None,
            Self::Table(table) => Some(table.frames),
            Self::Scan { frames, .. } => Some(*frames),
        }
    }

    /// Malformed records met when the index was made.
    pub(super) fn malformed(&self) -> u64 {
        match self {
            Self::Absent | Self::Table(_) => 0,
            Self::Scan { scanned, .. } => scanned.get().map_or(0, |s| s.malformed),
        }
    }

    /// A cursor for look-ups; makes the index if it is not there yet.
    pub(super) fn cursor<R: ReadAt>(&self, source: &R) -> Result<Cursor<'_>, UnwindError> {
        if let Self::Scan {
            frames,
            base,
            exact,
            scanned,
            ..
        } = self
            && scanned.get().is_none()
        {
            let found = scan(source, *frames, *base, *exact)?;
            // Another thread may have been faster, with the same result.
            let _ = scanned.set(found);
        }
        Ok(Cursor {
            index: self,
            window: ReadWindow::new(TABLE_CHUNK),
        })
    }
}

/// Reads entries of the index.
pub(super) struct Cursor<'a> {
    index: &'a Index,
    window: ReadWindow,
}

impl Cursor<'_> {
    /// Number of entries.
    pub(super) fn len(&self) -> u64 {
        match self.index {
            Index::Absent => 0,
            Index::Table(table) => table.count,
            Index::Scan { scanned, .. } => scanned.get().map_or(0, |s| s.entries.len()) as u64,
        }
    }

    /// Entry `i`.
    pub(super) fn entry<R: ReadAt>(
        &mut self,
        source: &R,
        i: u64,
    ) -> Result<IndexEntry, UnwindError> {
        let missing = UnwindError::Truncated(".eh_frame_hdr");
        match self.index {
            Index::Absent => Err(missing),
            Index::Table(table) => {
                let size = table.entry_size();
                let at = table.offset.saturating_add(i.saturating_mul(size as u64));
                let bytes = self.window.get(source, at, size)?;
                table.parse_entry(bytes).ok_or(missing)
            }
            Index::Scan { base, scanned, .. } => scanned
                .get()
                .and_then(|scanned| scanned.entries.get(usize::try_from(i).ok()?))
                .map(|e| IndexEntry {
                    start: base.wrapping_add(u64::from(e.start)),
                    fde: u64::from(e.fde),
                })
                .ok_or(missing),
        }
    }

    /// Number of entries that start at or before `vaddr`, if they are sorted.
    pub(super) fn count_up_to<R: ReadAt>(
        &mut self,
        source: &R,
        vaddr: u64,
    ) -> Result<u64, UnwindError> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.entry(source, middle)?.start <= vaddr {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

impl SearchTable {
    /// Bytes of one entry.
    fn entry_size(&self) -> usize {
        if self.wide { 16 } else { 8 }
    }

    /// One entry: the addresses of code and FDE.
    fn parse_entry(&self, bytes: &[u8]) -> Option<IndexEntry> {
        let encoding = if self.wide {
            TABLE_SDATA8
        } else {
            TABLE_SDATA4
        };
        let mut bytes = Bytes::new(bytes);
        let start = self.base.wrapping_add(encoded_value(&mut bytes, encoding)?);
        let fde = self.base.wrapping_add(encoded_value(&mut bytes, encoding)?);
        Some(IndexEntry {
            start,
            fde: fde.wrapping_sub(self.frames.vaddr),
        })
    }
}

/// What `.eh_frame_hdr` gives.
enum Hdr {
    /// A search table.
    Table(SearchTable),
    /// Only the place of `.eh_frame`.
    Frames(FileSpan),
}

/// Reads the head of `.eh_frame_hdr`; `None` if it leads nowhere.
fn parse_hdr<R: ReadAt>(
    source: &R,
    elf: &CodeFile,
    hdr: FileSpan,
) -> Result<Option<Hdr>, UnwindError> {
    let mut head = [0; MAX_HDR_HEAD];
    let n = read_full(source, &mut head, hdr.offset)?;
    let parse = || {
        let mut bytes = Bytes::new(head.get(..n)?);
        let (version, frames_encoding) = (bytes.u8()?, bytes.u8()?);
        let (count_encoding, table_encoding) = (bytes.u8()?, bytes.u8()?);
        if version != 1 {
            return None;
        }
        let at = encoded_address(&mut bytes, frames_encoding, hdr.vaddr)?;
        let frames = elf.loaded_from(at)?;
        let wide = match table_encoding {
            TABLE_SDATA4 => false,
            TABLE_SDATA8 => true,
            _ => return Some(Hdr::Frames(frames)),
        };
        // A count is a plain number: nothing it could be relative to.
        let Some(count) = encoded_value(&mut bytes, count_encoding).filter(|&n| n > 0) else {
            return Some(Hdr::Frames(frames));
        };
        let skip = bytes.pos() as u64;
        let entry_size = if wide { 16 } else { 8 };
        let room = hdr.size.checked_sub(skip)? / entry_size;
        Some(Hdr::Table(SearchTable {
            offset: hdr.offset + skip,
            base: hdr.vaddr,
            count: count.min(room),
            wide,
            frames,
        }))
    };
    Ok(parse())
}

/// All FDEs of `.eh_frame` by the address of their code. What follows a record of malformed length
/// is not found, because its end is unknown. Malformed ones are counted if `exact`: nothing but
/// records can be in `frames`.
fn scan<R: ReadAt>(
    source: &R,
    frames: FileSpan,
    base: u64,
    exact: bool,
) -> Result<Scanned, UnwindError> {
    let mut reader = RecordReader::new(frames);
    let mut found = Scanned::default();
    let mut at = 0;
    for _ in 0..MAX_SCANNED_RECORDS {
        let Some(record) = reader.header(source, at)? else {
            // Fewer bytes than a length has are padding.
            found.malformed += u64::from(exact && frames.size.saturating_sub(at) >= 4);
            break;
        };
        if let RecordKind::Fde { .. } = record.kind {
            let range = reader.fde_range(source, &record)?;
            found.malformed += u64::from(exact && range.is_none());
            if let Ok(fde) = u32::try_from(at)
                && let Some(range) = range
                && let Some(Ok(start)) = range.start.checked_sub(base).map(u32::try_from)
                && !range.is_empty()
            {
                if found.entries.len() >= MAX_SCANNED_FDES {
                    return Err(UnwindError::TooLarge(
                        "number of FDEs without a search table",
                    ));
                }
                found.entries.push(ScanEntry { start, fde });
            }
        }
        at = record.end;
    }
    found.entries.sort_by_key(|entry| entry.start);
    found.entries.shrink_to_fit();
    Ok(found)
}
