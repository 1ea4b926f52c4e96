//! A few symbols in the symbol table of a file. The table is read in pieces: that of node has 4 MB,
//! its names 10 MB.

use crate::elf::{ElfHeader, ElfSymbol, FileRange, ReadAt, STT_NOTYPE, SymbolTable, read_full};
use std::ops::Range;

const MAX_SECTIONS: u64 = 1024;
/// Most bytes of a table, and how many of its names are read at once.
const MAX_TABLE: u64 = 64 << 20;
const AT_ONCE: usize = 768 << 10;
/// Most places of one name.
const MAX_PLACES: usize = 64;

/// The virtual addresses of functions, and of symbols without a type, empty for those that
/// the file does not have; `None`: it has no symbol table.
pub(super) fn find<const N: usize>(
    file: &impl ReadAt,
    names: [&[u8]; N],
) -> Option<[Range<u64>; N]> {
    let header = ElfHeader::read(file).ok()??;
    let table = SymbolTable::full(&header.sections(file, MAX_SECTIONS).ok()?)?;
    if table.symbols.size.max(table.strings.size) > MAX_TABLE {
        return None;
    }
    let names = places(file, table.strings, names)?;
    let mut found = [const { 0..0 }; N];
    let mut entries = table.entries(file);
    while let Some(symbols) = entries.more().ok()? {
        let symbols = symbols.filter_map(ElfSymbol::parse);
        for symbol in symbols.filter(|symbol| symbol.is_function() || symbol.kind == STT_NOTYPE) {
            for (range, names) in found.iter_mut().zip(&names) {
                if names.contains(&symbol.name) {
                    *range = symbol.value..symbol.value.checked_add(symbol.size)?;
                }
            }
        }
    }
    entries.check("symbol table").ok()?;
    Some(found)
}

/// Where among a file's names these are, each with the zero byte that ends it.
fn places<const N: usize>(
    file: &impl ReadAt,
    strings: FileRange,
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
        if read_full(file, part, strings.offset.checked_add(done)?).ok()? < part.len() {
            return None;
        }
        for (found, name) in found.iter_mut().zip(&names) {
            let places = memchr::memmem::find_iter(part, name);
            let places = places.take_while(|&at| at < AT_ONCE);
            for at in places.take(MAX_PLACES - found.len()) {
                found.push(u32::try_from(done + at as u64).ok()?);
            }
        }
        done += AT_ONCE as u64;
    }
    Some(found)
}
