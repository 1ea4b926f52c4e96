//! The debug sections of a file, read into memory of our own.
//!
//! They are not mapped: their owner may change or cut off the file at any time,
//! which would change what the parser has checked, or end this program with a
//! signal.

use super::dwarf::{DwarfError, WorkLimit};
use super::elf::{DebugSection, ElfInfo, Packing};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;

/// Most bytes that are read of the sections of one file.
pub(super) const MAX_BYTES: u64 = 384 << 20;
/// Bytes read at once.
const CHUNK: usize = 4 << 20;

/// Why the sections are not accessible.
#[derive(Debug, thiserror::Error)]
pub(super) enum SectionsError {
    #[error("cannot be read: {0}")]
    Read(io::Error),
    #[error("section beyond the end of the file")]
    Truncated,
    #[error("sections too large")]
    TooLarge,
    #[error("compressed section corrupt: {0}")]
    Inflate(io::Error),
    #[error("unknown compression")]
    UnknownPacking,
}

/// A file's debug sections by name.
#[derive(Debug)]
pub(super) struct Sections {
    list: Vec<(&'static str, Vec<u8>)>,
}

impl Sections {
    /// Reads the sections and inflates what is compressed. The caller has checked
    /// [`ElfInfo::packed_bytes`]; no section inflates beyond what it claims.
    pub(super) fn open(file: &File, info: &ElfInfo, clock: &WorkLimit) -> Result<Self, DwarfError> {
        let mut left = MAX_BYTES;
        let mut list = Vec::with_capacity(info.debug.len());
        for section in &info.debug {
            left = left
                .checked_sub(section.size)
                .ok_or(SectionsError::TooLarge)?;
            let bytes = read(file, section, clock)?;
            let bytes = match section.packing {
                Packing::None => bytes,
                packing => inflate(&bytes, packing)?,
            };
            list.push((section.name, bytes));
        }
        Ok(Self { list })
    }

    /// A section's bytes; empty if the file does not have it.
    pub(super) fn get(&self, name: &str) -> &[u8] {
        let found = self.list.iter().find(|(n, _)| *n == name);
        found.map_or(&[], |(_, bytes)| bytes)
    }

    /// Bytes of heap held.
    pub(super) fn memory(&self) -> u64 {
        let held = self.list.iter().map(|(_, bytes)| bytes.capacity() as u64);
        held.sum()
    }
}

/// Reads a section as it is in the file. Its size is a claim: memory is taken as
/// the bytes come.
fn read(file: &File, section: &DebugSection, clock: &WorkLimit) -> Result<Vec<u8>, DwarfError> {
    let length = file.metadata().map_err(SectionsError::Read)?.len();
    let end = section.offset.checked_add(section.size);
    if end.is_none_or(|end| end > length) {
        return Err(SectionsError::Truncated.into());
    }
    let size = usize::try_from(section.size).map_err(|_| SectionsError::TooLarge)?;
    let mut bytes: Vec<u8> = Vec::new();
    bytes
        .try_reserve_exact(size)
        .map_err(|_| SectionsError::TooLarge)?;
    while bytes.len() < size {
        clock.check()?;
        let at = bytes.len();
        bytes.resize(size.min(at + CHUNK), 0);
        let chunk = bytes.get_mut(at..).unwrap_or_default();
        file.read_exact_at(chunk, section.offset + at as u64)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => SectionsError::Truncated,
                _ => SectionsError::Read(error),
            })?;
    }
    Ok(bytes)
}

/// Inflates a section after its header; it must not be larger than it claims.
fn inflate(bytes: &[u8], packing: Packing) -> Result<Vec<u8>, SectionsError> {
    let (zstd, header, size) = match packing {
        Packing::Zlib { header, size } => (false, header, size),
        Packing::Zstd { header, size } => (true, header, size),
        Packing::None | Packing::Unknown => return Err(SectionsError::UnknownPacking),
    };
    let packed = bytes.get(header..).unwrap_or_default();
    let mut out = Vec::new();
    out.try_reserve_exact(usize::try_from(size).unwrap_or(usize::MAX))
        .map_err(|e| SectionsError::Inflate(io::Error::other(e)))?;
    let inflated = if zstd {
        zstd::stream::read::Decoder::with_buffer(packed)
            .and_then(|decoder| decoder.take(size).read_to_end(&mut out))
    } else {
        flate2::bufread::ZlibDecoder::new(packed)
            .take(size)
            .read_to_end(&mut out)
    };
    inflated.map_err(SectionsError::Inflate)?;
    Ok(out)
}
