//! The debug sections of a file: mapped, or inflated where they are compressed.

use super::dwarf::DwarfError;
use super::elf::{ElfInfo, Packing};
use super::guard;
use memmap2::Mmap;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;

/// Why the sections are not accessible.
#[derive(Debug, thiserror::Error)]
pub(super) enum SectionsError {
    #[error("cannot be mapped: {0}")]
    Map(io::Error),
    #[error("section beyond the end of the file")]
    Truncated,
    #[error("compressed section corrupt: {0}")]
    Inflate(io::Error),
    #[error("unknown compression")]
    UnknownPacking,
}

/// Where a section's bytes are.
#[derive(Debug)]
enum Bytes {
    Mapped(Range<usize>),
    Inflated(Vec<u8>),
}

/// A file's debug sections by name.
#[derive(Debug)]
pub(super) struct Sections {
    map: Mmap,
    list: Vec<(&'static str, Bytes)>,
}

impl Sections {
    /// Maps the file and inflates what is compressed. The caller has checked
    /// [`ElfInfo::packed_bytes`]; no section inflates beyond what it claims.
    pub(super) fn open(file: &File, info: &ElfInfo) -> Result<Self, SectionsError> {
        // SAFETY: the map is read-only and all reads of it happen in `read`,
        // where a file that shrinks gives zeros. A file that is rewritten
        // meanwhile gives arbitrary bytes, which every reader here must
        // withstand anyway.
        let map = unsafe { Mmap::map(file) }.map_err(SectionsError::Map)?;
        let mut list = Vec::with_capacity(info.debug.len());
        for section in &info.debug {
            let start = usize::try_from(section.offset).map_err(|_| SectionsError::Truncated)?;
            let size = usize::try_from(section.size).map_err(|_| SectionsError::Truncated)?;
            let range = start..start.checked_add(size).ok_or(SectionsError::Truncated)?;
            let bytes = map.get(range.clone()).ok_or(SectionsError::Truncated)?;
            let bytes = match section.packing {
                Packing::None => Bytes::Mapped(range),
                packing => Bytes::Inflated(guard::mapped(|| inflate(bytes, packing)).0?),
            };
            list.push((section.name, bytes));
        }
        Ok(Self { map, list })
    }

    /// A section's bytes; empty if the file does not have it. Only to be used
    /// within [`Sections::read`].
    pub(super) fn get(&self, name: &str) -> &[u8] {
        match self.list.iter().find(|(n, _)| *n == name) {
            Some((_, Bytes::Mapped(range))) => self.map.get(range.clone()).unwrap_or_default(),
            Some((_, Bytes::Inflated(bytes))) => bytes,
            None => &[],
        }
    }

    /// Runs code that reads the sections; an error if the file shrank meanwhile.
    pub(super) fn read<R>(&self, read: impl FnOnce() -> R) -> Result<R, DwarfError> {
        match guard::mapped(read) {
            (result, false) => Ok(result),
            (_, true) => Err(DwarfError::Truncated),
        }
    }

    /// Bytes of heap held.
    pub(super) fn memory(&self) -> u64 {
        let inflated = self.list.iter().map(|(_, bytes)| match bytes {
            Bytes::Inflated(bytes) => bytes.capacity() as u64,
            Bytes::Mapped(_) => 0,
        });
        inflated.sum()
    }
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
