//! The words of loaded data, and those that the loader sets.

use super::code::{FileSpan, each_relocation};
use super::read::{FileRange, ReadAt, read_full};
use super::tables::Relocation;
use std::io;

/// Most bytes of data that are searched, and of relocations.
const MAX_SEARCHED: u64 = 128 << 20;
/// Bytes that are searched at once.
const CHUNK: usize = 1 << 20;

/// Calls a function with each word of a span and its address.
///
/// # Errors
/// The source's own.
pub(crate) fn each_word<R: ReadAt>(
    source: &R,
    span: FileSpan,
    mut found: impl FnMut(u64, u64),
) -> io::Result<()> {
    let skip = span.vaddr.next_multiple_of(8) - span.vaddr;
    let mut bytes = vec![0; CHUNK];
    let mut at = skip;
    while at < span.size.min(MAX_SEARCHED) {
        let length = (span.size - at).min(CHUNK as u64) as usize;
        let chunk = bytes.get_mut(..length).unwrap_or_default();
        let n = read_full(source, chunk, span.offset.saturating_add(at))?;
        let words = chunk.get(..n).unwrap_or_default().as_chunks::<8>().0;
        for (i, word) in words.iter().enumerate() {
            let address = span.vaddr.saturating_add(at + 8 * i as u64);
            found(address, u64::from_le_bytes(*word));
        }
        at += CHUNK as u64;
    }
    Ok(())
}

/// Calls a function with each address that is set when the file is loaded, and with its new value.
///
/// # Errors
/// The source's own.
pub(crate) fn each_relative<R: ReadAt>(
    source: &R,
    tables: &[FileRange],
    mut found: impl FnMut(u64, u64),
) -> io::Result<()> {
    each_relocation(source, tables, MAX_SEARCHED, |relocation| {
        if relocation.kind == Relocation::RELATIVE {
            found(relocation.place, relocation.addend);
        }
    })
}
