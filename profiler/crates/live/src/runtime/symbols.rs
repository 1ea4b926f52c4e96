//! The functions of an ELF file that a table names: from `.dynsym` and
//! `.symtab`, local ones too.
//!
//! Names are read in the order of the string table and in batches. So the memory needed does not
//! depend on the file, and a large library costs a few hundred reads. Format: System V gABI,
//! chapter 4.

use aiprof_symbols::{
    symbolize::elf::{ElfError, ElfInfo, SymbolTable},
    unwind::TextSegment,
};
use rustc_hash::FxHashMap;
use std::{fs::File, io, os::unix::fs::FileExt as _};

/// Symbols whose names are read together.
const BATCH: usize = 1 << 16;
/// Bytes of a string table read at once.
const WINDOW: usize = 64 << 10;
/// Longest name that is compared; longer ones (none seen) match nothing.
const MAX_NAME: usize = 8 << 10;
/// Most symbols of one file; the largest libraries have about a million.
const MAX_SYMBOLS: u64 = 8 << 20;
/// Most functions found in one file.
const MAX_FUNCTIONS: usize = 16_384;
/// Bytes of a symbol in a 64-bit file.
const ENTRY: usize = 24;

const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const SHN_UNDEF: u16 = 0;

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its symbol, without version.
    pub(crate) name: String,
    /// Its rank by the caller's own order.
    pub(crate) rank: usize,
    /// Its virtual address in the file.
    pub(crate) vaddr: u64,
    /// Where it is in the file.
    pub(crate) file_offset: u64,
    /// Its bytes; 0: not known.
    pub(crate) size: u64,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The functions, by address; of several names at one address the one of the
    /// lowest rank.
    pub(crate) functions: Vec<Function>,
    /// Names left out because another name of the same function was taken.
    pub(crate) aliases: u64,
    /// Indirect functions: their symbol is that of the code that chooses one.
    pub(crate) resolvers: u64,
    /// Functions without code in the file.
    pub(crate) without_code: u64,
}

/// Looks for the functions that `rank` wants. A file for another machine has none.
///
/// # Errors
/// A file that cannot be read, or is malformed.
pub(crate) fn find(
    file: &File,
    info: &ElfInfo,
    text: &[TextSegment],
    mut rank: impl FnMut(&str) -> Option<usize>,
) -> Result<Found, ElfError> {
    let mut found = Found::default();
    if !info.wide {
        return Ok(found);
    }
    let mut by_address: FxHashMap<u64, Function> = FxHashMap::default();
    let mut left = MAX_SYMBOLS;
    // Exported names first.
    for dynamic in [true, false] {
        for table in info.tables.iter().filter(|t| t.dynamic == dynamic) {
            read_table(file, table, &mut left, |batch| {
                read_names(file, table, batch, |symbol, name| {
                    let name = name.split_once('@').map_or(name, |(name, _)| name);
                    if let Some(rank) = rank(name) {
                        take(&mut found, &mut by_address, text, symbol, (name, rank));
                    }
                })
            })?;
        }
    }
    found.functions = by_address.into_values().collect();
    found.functions.sort_unstable_by_key(|f| f.vaddr);
    Ok(found)
}

/// A symbol that names code.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    name: u32,
    is_resolver: bool,
    vaddr: u64,
    size: u64,
}

impl Symbol {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let u32_at = |at| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let u64_at = |at| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let kind = bytes.get(4)? & 15;
        let section = u16::from_ne_bytes(*bytes.get(6..)?.first_chunk()?);
        let is_code = matches!(kind, STT_FUNC | STT_GNU_IFUNC) && section != SHN_UNDEF;
        is_code.then_some(Self {
            name: u32_at(0)?,
            is_resolver: kind == STT_GNU_IFUNC,
            vaddr: u64_at(8)?,
            size: u64_at(16)?,
        })
    }
}

/// Enters a symbol that is wanted.
fn take(
    found: &mut Found,
    by_address: &mut FxHashMap<u64, Function>,
    text: &[TextSegment],
    symbol: &Symbol,
    (name, rank): (&str, usize),
) {
    if symbol.is_resolver {
        found.resolvers += 1;
        return;
    }
    let Some(file_offset) = offset_of(text, symbol.vaddr) else {
        found.without_code += 1;
        return;
    };
    let full = by_address.len() >= MAX_FUNCTIONS;
    match by_address.get_mut(&symbol.vaddr) {
        // The same symbol in the other table.
        Some(known) if known.name == name => known.size = known.size.max(symbol.size),
        Some(known) => {
            found.aliases += 1;
            if rank < known.rank {
                name.clone_into(&mut known.name);
                known.rank = rank;
            }
        }
        None if full => found.without_code += 1,
        None => {
            let function = Function {
                name: name.to_owned(),
                rank,
                vaddr: symbol.vaddr,
                file_offset,
                size: symbol.size,
            };
            by_address.insert(symbol.vaddr, function);
        }
    }
}

/// Where in the file an address of its code is.
pub(crate) fn offset_of(text: &[TextSegment], vaddr: u64) -> Option<u64> {
    text.iter().find_map(|t| {
        let at = vaddr.checked_sub(t.vaddr).filter(|&at| at < t.size)?;
        t.file_offset.checked_add(at)
    })
}

/// Gives the code symbols of a table in batches.
fn read_table(
    file: &File,
    table: &SymbolTable,
    left: &mut u64,
    mut sink: impl FnMut(&mut Vec<Symbol>) -> Result<(), ElfError>,
) -> Result<(), ElfError> {
    let mut buffer = vec![0; WINDOW / ENTRY * ENTRY];
    let mut batch = Vec::new();
    let mut done = 0;
    while done < table.size {
        let len = usize::try_from(table.size - done).map_or(buffer.len(), |n| n.min(buffer.len()));
        let bytes = buffer.get_mut(..len).unwrap_or_default();
        let at = table.offset.checked_add(done).ok_or(TRUNCATED)?;
        file.read_exact_at(bytes, at).map_err(truncated)?;
        *left = left
            .checked_sub((len / ENTRY) as u64)
            .ok_or(ElfError::Malformed("too many symbols"))?;
        batch.extend(bytes.chunks_exact(ENTRY).filter_map(Symbol::parse));
        if batch.len() >= BATCH {
            sink(&mut batch)?;
            batch.clear();
        }
        done += len as u64;
    }
    sink(&mut batch)
}

/// Gives symbols with their names.
fn read_names(
    file: &File,
    table: &SymbolTable,
    batch: &mut [Symbol],
    mut sink: impl FnMut(&Symbol, &str),
) -> Result<(), ElfError> {
    batch.sort_unstable_by_key(|symbol| symbol.name);
    let mut window: Vec<u8> = Vec::new();
    let mut start = 0;
    for symbol in batch {
        let at = u64::from(symbol.name);
        let inside = |window: &[u8], start: u64| -> Option<(usize, usize)> {
            let from = usize::try_from(at.checked_sub(start)?).ok()?;
            let len = window.get(from..)?.iter().position(|&b| b == 0)?;
            Some((from, from + len))
        };
        let range = match inside(&window, start) {
            Some(range) => Some(range),
            None => {
                let left = table.strings_size.saturating_sub(at);
                let len = usize::try_from(left).map_or(WINDOW, |left| left.min(WINDOW));
                let from = table.strings_offset.checked_add(at).ok_or(TRUNCATED)?;
                window.resize(len, 0);
                file.read_exact_at(&mut window, from).map_err(truncated)?;
                start = at;
                inside(&window, start)
            }
        };
        // Names without an end, or too long, are left out.
        let name = range.and_then(|(from, to)| window.get(from..to));
        let name = name.filter(|name| name.len() <= MAX_NAME);
        if let Some(Ok(name)) = name.map(std::str::from_utf8) {
            sink(symbol, name);
        }
    }
    Ok(())
}

const TRUNCATED: ElfError = ElfError::Malformed("symbol table truncated");

fn truncated(error: io::Error) -> ElfError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput => TRUNCATED,
        _ => ElfError::Io(error),
    }
}
