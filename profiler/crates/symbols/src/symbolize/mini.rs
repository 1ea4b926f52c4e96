//! The symbols that distributions leave in stripped files (`.gnu_debugdata`): an ELF file
//! with a symbol table of what the dynamic one lacks, compressed with xz.
//!
//! Formats: GDB manual, "MiniDebugInfo"; "The .xz File Format", version 1.2.1. Only what
//! `xz` writes by default is read, LZMA2 without other filters. The checksums are not
//! compared: wrong symbols can be in any file.

use crate::elf::{self, ElfInfo};
use lzma_rust2::Lzma2Reader;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

/// Most bytes of the section; libraries of 100 MiB have a twentieth of this.
const MAX_STORED: u64 = 16 << 20;
/// Most bytes that it may inflate to. No reference in it reaches further back.
const MAX_SIZE: usize = 32 << 20;
/// Bytes inflated at once.
const CHUNK: usize = 64 << 10;
/// First bytes of a stream.
const MAGIC: &[u8] = b"\xfd7zXZ\0";
/// Id of the filter LZMA2.
const LZMA2: u8 = 0x21;

/// Why the symbols cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum MiniError {
    #[error("mini debug information: {0}")]
    Io(#[from] io::Error),
    #[error("mini debug information too large")]
    TooLarge,
    #[error("mini debug information takes too long to inflate")]
    TooSlow,
    #[error("mini debug information is not xz data of a supported kind")]
    Unknown,
    #[error("mini debug information: {0}")]
    Elf(#[from] elf::ElfError),
}

/// The ELF file at this place of a file, in memory, and the bytes that it takes.
pub(super) fn open(
    file: &File,
    (offset, size): (u64, u64),
    deadline: Instant,
) -> Result<(File, ElfInfo, u64), MiniError> {
    if size > MAX_STORED {
        return Err(MiniError::TooLarge);
    }
    let mut packed = vec![0; usize::try_from(size).map_err(|_| MiniError::TooLarge)?];
    file.read_exact_at(&mut packed, offset)?;
    let inner = rustix::fs::memfd_create(c"aiprof-symbols", MemfdFlags::CLOEXEC);
    let mut inner = File::from(inner.map_err(io::Error::from)?);
    let size = inflate(&packed, deadline, &mut inner)?;
    let info = elf::inspect(&inner)?;
    Ok((inner, info, size))
}

/// Inflates the first stream, and returns its bytes.
fn inflate(packed: &[u8], deadline: Instant, out: &mut File) -> Result<u64, MiniError> {
    // Magic, flags (the second names the checksum), checksum of those.
    let check = packed.get(7).filter(|_| packed.starts_with(MAGIC));
    let check_size = match check.ok_or(MiniError::Unknown)? & 15 {
        0 => 0,
        1 => 4,
        4 => 8,
        10 => 32,
        _ => return Err(MiniError::Unknown),
    };
    let mut rest = packed.get(12..).unwrap_or_default();
    let mut size = 0;
    let mut chunk = vec![0; CHUNK];
    // The index follows the last block, and begins with a zero.
    while let Some(words) = rest.first().filter(|&&words| words > 0) {
        let header = (usize::from(*words) + 1) * 4;
        let (head, data) = rest.split_at_checked(header).ok_or(MiniError::Unknown)?;
        let mut reader = Lzma2Reader::new(data, dictionary(head)?, None);
        loop {
            let read = reader.read(&mut chunk)?;
            size += read;
            match size {
                _ if read == 0 => break,
                _ if size > MAX_SIZE => return Err(MiniError::TooLarge),
                _ if Instant::now() >= deadline => return Err(MiniError::TooSlow),
                _ => out.write_all(chunk.get(..read).unwrap_or_default())?,
            }
        }
        let used = data.len() - reader.into_inner().len();
        let next = used.next_multiple_of(4) + check_size;
        rest = data.get(next..).unwrap_or_default();
    }
    Ok(size as u64)
}

/// Bytes of the dictionary that a block's header asks for.
fn dictionary(head: &[u8]) -> Result<u32, MiniError> {
    let flags = *head.get(1).ok_or(MiniError::Unknown)?;
    let mut at = 2;
    // The sizes, compressed and not, if they are there: numbers of 7 bits a byte.
    for _ in 0..(flags & 0x40 != 0) as u8 + (flags & 0x80 != 0) as u8 {
        let number = head.get(at..).unwrap_or_default();
        let last = number.iter().position(|byte| byte & 0x80 == 0);
        at += last.ok_or(MiniError::Unknown)? + 1;
    }
    let bits = match head.get(at..) {
        Some([LZMA2, 1, bits @ 0..=40, ..]) if flags & 3 == 0 => u32::from(*bits),
        _ => return Err(MiniError::Unknown),
    };
    let wanted = u64::from(2 | (bits & 1)) << (bits / 2 + 11);
    Ok(u32::try_from(wanted.min(MAX_SIZE as u64)).unwrap_or(u32::MAX))
}
