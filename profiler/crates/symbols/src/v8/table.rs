//! A few symbols in the symbol table of a file (System V gABI, chapter 4). The table is read in
//! pieces: that of node has 4 MB, its names 10 MB.

use crate::unwind::ReadAt;
use std::ops::Range;

const SECTION: usize = 64;
const MAX_SECTIONS: u16 = 1024;
const SHT_SYMTAB: u32 = 2;
/// Bytes of a symbol.
const SYMBOL: usize = 24;
const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
/// Most bytes of a table, and how many are read at once: a multiple of a symbol's.
const MAX_TABLE: u64 = 64 << 20;
const AT_ONCE: usize = SYMBOL << 15;

/// A part of a file.
#[derive(Clone, Copy)]
struct Extent {
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

/// The virtual addresses of functions, and of symbols without a type, empty for those that
/// the file does not have; `None`: it has no symbol table.
pub(super) fn find<const N: usize>(
    file: &impl ReadAt,
    names: [&[u8]; N],
) -> Option<[Range<u64>; N]> {
    let (symbols, strings) = tables(file)?;
    let names = places(file, strings, names)?;
    let mut found = [const { 0..0 }; N];
    let mut bytes = vec![0; AT_ONCE];
    let mut done = 0;
    while done < symbols.size {
        let rest = usize::try_from(symbols.size - done).ok()?.min(AT_ONCE);
        let part = bytes.get_mut(..rest)?;
        read(file, symbols.offset.checked_add(done)?, part)?;
        for symbol in part.chunks_exact(SYMBOL) {
            let kind = symbol.get(4).map_or(u8::MAX, |info| info & 15);
            if kind != STT_NOTYPE && kind != STT_FUNC {
                continue;
            }
            let name = u32_at(symbol, 0)?;
            for (range, names) in found.iter_mut().zip(&names) {
                if names.contains(&name) {
                    let start = u64_at(symbol, 8)?;
                    *range = start..start.checked_add(u64_at(symbol, 16)?)?;
                }
            }
        }
        done += rest as u64;
    }
    Some(found)
}

/// The symbol table of a file, and its names.
fn tables(file: &impl ReadAt) -> Option<(Extent, Extent)> {
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
        (size <= MAX_TABLE).then_some(Extent { offset, size })
    };
    let mut all = sections.chunks_exact(SECTION);
    let symbols = all.find(|section| u32_at(section, 4) == Some(SHT_SYMTAB))?;
    let strings = usize::try_from(u32_at(symbols, 40)?).ok()?;
    let strings = sections.chunks_exact(SECTION).nth(strings)?;
    Some((part(symbols)?, part(strings)?))
}

/// Most places of one name.
const MAX_PLACES: usize = 64;

/// Where among a file's names these are, each with the zero byte that ends it.
fn places<const N: usize>(
    file: &impl ReadAt,
    strings: Extent,
    names: [&[u8]; N],
) -> Option<[Vec<u32>; N]> {
    let names = names.map(|name| [name, b"\0"].concat());
    let longest = names.iter().map(Vec::len).max()?;
    let mut found = [const { Vec::new() }; N];
    let mut bytes = vec![0; AT_ONCE + longest];
    let mut done = 0;
    while done < strings.size {
        let rest = usize::try_from(strings.size - done).ok()?;
        let part = bytes.get_mut(..rest.min(AT_ONCE + longest))?;
        read(file, strings.offset.checked_add(done)?, part)?;
        for (found, name) in found.iter_mut().zip(&names) {
            let first = *name.first()?;
            let mut from = 0;
            while let Some(next) = part.get(from..)?.iter().position(|&byte| byte == first) {
                let at = from + next;
                if at < AT_ONCE && part.get(at..)?.starts_with(name) && found.len() < MAX_PLACES {
                    found.push(u32::try_from(done + at as u64).ok()?);
                }
                from = at + 1;
            }
        }
        done += AT_ONCE as u64;
    }
    Some(found)
}
