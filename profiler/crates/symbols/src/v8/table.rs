//! One function in the symbol table of a file (System V gABI, chapter 4), which is read bit
//! by bit: that of node has 4 MB, its names 10 MB.

use crate::unwind::ReadAt;
use std::ops::Range;

const SECTION: usize = 64;
const MAX_SECTIONS: u16 = 1024;
const SHT_SYMTAB: u32 = 2;
/// Bytes of a symbol.
const SYMBOL: usize = 24;
const STT_FUNC: u8 = 2;
/// Most bytes of a table, and how many are read at once: a multiple of a symbol's.
const MAX_TABLE: u64 = 64 << 20;
const AT_ONCE: usize = SYMBOL << 15;

/// A part of a file.
#[derive(Clone, Copy)]
struct Part {
    offset: u64,
    size: u64,
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    word(bytes, at).map(u64::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    word(bytes, at).map(u32::from_le_bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    word(bytes, at).map(u16::from_le_bytes)
}

fn read(file: &impl ReadAt, offset: u64, bytes: &mut [u8]) -> Option<()> {
    let mut have = 0;
    while have < bytes.len() {
        let at = offset.checked_add(have as u64)?;
        match file.read_at(bytes.get_mut(have..)?, at).ok()? {
            0 => return None,
            more => have += more,
        }
    }
    Some(())
}

/// The virtual addresses of a function; `None`: the file has no such symbol.
pub(super) fn find(file: &impl ReadAt, name: &[u8]) -> Option<Range<u64>> {
    let (symbols, strings) = tables(file)?;
    let names = places(file, strings, name)?;
    let mut bytes = vec![0; AT_ONCE];
    let mut done = 0;
    while done < symbols.size {
        let rest = usize::try_from(symbols.size - done).ok()?.min(AT_ONCE);
        let part = bytes.get_mut(..rest)?;
        read(file, symbols.offset.checked_add(done)?, part)?;
        let mut all = part.chunks_exact(SYMBOL);
        let found = all.find(|symbol| {
            let is_function = symbol.get(4).is_some_and(|info| info & 15 == STT_FUNC);
            is_function && u32_at(symbol, 0).is_some_and(|name| names.contains(&name))
        });
        if let Some(symbol) = found {
            let start = u64_at(symbol, 8)?;
            return Some(start..start.checked_add(u64_at(symbol, 16)?)?);
        }
        done += rest as u64;
    }
    None
}

/// The symbol table of a file, and its names.
fn tables(file: &impl ReadAt) -> Option<(Part, Part)> {
    let mut header = [0; 64];
    read(file, 0, &mut header)?;
    let count = u16_at(&header, 60)?;
    if count > MAX_SECTIONS || usize::from(u16_at(&header, 58)?) != SECTION {
        return None;
    }
    let mut sections = vec![0; usize::from(count) * SECTION];
    read(file, u64_at(&header, 40)?, &mut sections)?;
    let part = |section: &[u8]| {
        let (offset, size) = (u64_at(section, 24)?, u64_at(section, 32)?);
        (size <= MAX_TABLE).then_some(Part { offset, size })
    };
    let mut all = sections.chunks_exact(SECTION);
    let symbols = all.find(|section| u32_at(section, 4) == Some(SHT_SYMTAB))?;
    let strings = usize::try_from(u32_at(symbols, 40)?).ok()?;
    let strings = sections.chunks_exact(SECTION).nth(strings)?;
    Some((part(symbols)?, part(strings)?))
}

/// Where in the names this one is, with the zero byte that ends it.
fn places(file: &impl ReadAt, strings: Part, name: &[u8]) -> Option<Vec<u32>> {
    let name = [name, b"\0"].concat();
    let mut found = Vec::new();
    let mut bytes = vec![0; AT_ONCE + name.len()];
    let mut done = 0;
    while done < strings.size {
        let rest = usize::try_from(strings.size - done).ok()?;
        let part = bytes.get_mut(..rest.min(AT_ONCE + name.len()))?;
        read(file, strings.offset.checked_add(done)?, part)?;
        let first = *name.first()?;
        let mut from = 0;
        while let Some(next) = part.get(from..)?.iter().position(|&byte| byte == first) {
            let at = from + next;
            if part.get(at..)?.starts_with(&name) && at < AT_ONCE {
                found.push(u32::try_from(done + at as u64).ok()?);
            }
            from = at + 1;
        }
        done += AT_ONCE as u64;
    }
    Some(found)
}
