//! The functions of an ELF file that a table names: from `.dynsym` and
//! `.symtab`, local ones too.
//!
//! Names are read in the order of the string table and in batches. So the memory needed does not
//! depend on the file, and a large library costs a few hundred reads. Format: System V gABI,
//! chapter 4.

use aiprof_symbols::elf::{ElfError, ElfInfo, ElfSymbol, SymbolTable, TextSegment, offset_of};
use rustc_hash::FxHashMap;
use std::fs::File;

/// Symbols whose names are read together.
const BATCH: usize = 1 << 16;
/// Bytes of a string table read at once.
const WINDOW: usize = 64 << 10;
/// Most symbols of one file; the largest libraries have about a million.
const MAX_SYMBOLS: u64 = 8 << 20;
/// Most functions found in one file.
const MAX_FUNCTIONS: usize = 16_384;
/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFunction {
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
pub(crate) struct FoundFunctions {
    /// The functions, by address; of several names at one address the one of the
    /// lowest rank.
    pub(crate) functions: Vec<FileFunction>,
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
) -> Result<FoundFunctions, ElfError> {
    let mut found = FoundFunctions::default();
    if !info.wide {
        return Ok(found);
    }
    let mut by_address: FxHashMap<u64, FileFunction> = FxHashMap::default();
    let mut left = MAX_SYMBOLS;
    // Exported names first.
    for dynamic in [true, false] {
        for table in info.tables.iter().filter(|t| t.dynamic == dynamic) {
            read_table(file, table, &mut left, |symbol, name| {
                let name = name.split_once('@').map_or(name, |(name, _)| name);
                if let Some(rank) = rank(name) {
                    take(&mut found, &mut by_address, text, symbol, (name, rank));
                }
            })?;
        }
    }
    found.functions = by_address.into_values().collect();
    found.functions.sort_unstable_by_key(|f| f.vaddr);
    Ok(found)
}

/// Enters a symbol that is wanted.
fn take(
    found: &mut FoundFunctions,
    by_address: &mut FxHashMap<u64, FileFunction>,
    text: &[TextSegment],
    symbol: &ElfSymbol,
    (name, rank): (&str, usize),
) {
    if symbol.is_resolver() {
        found.resolvers += 1;
        return;
    }
    let Some(file_offset) = offset_of(text, symbol.value) else {
        found.without_code += 1;
        return;
    };
    let full = by_address.len() >= MAX_FUNCTIONS;
    match by_address.get_mut(&symbol.value) {
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
            let function = FileFunction {
                name: name.to_owned(),
                rank,
                vaddr: symbol.value,
                file_offset,
                size: symbol.size,
            };
            by_address.insert(symbol.value, function);
        }
    }
}

/// Gives the code symbols of a table with their names.
fn read_table(
    file: &File,
    table: &SymbolTable,
    left: &mut u64,
    mut sink: impl FnMut(&ElfSymbol, &str),
) -> Result<(), ElfError> {
    let mut entries = table.entries(file);
    let mut batch = Vec::new();
    loop {
        let symbols = entries.more()?;
        let is_last = symbols.is_none();
        if let Some(symbols) = symbols {
            let rest = left.checked_sub(symbols.len() as u64);
            *left = rest.ok_or(ElfError::Malformed("too many symbols"))?;
            let symbols = symbols.filter_map(ElfSymbol::parse);
            batch.extend(symbols.filter(|symbol| symbol.is_function() && symbol.is_defined()));
        }
        if batch.len() >= BATCH || is_last {
            batch.sort_unstable_by_key(|symbol: &ElfSymbol| symbol.name);
            let mut names = table.names(file, WINDOW);
            for symbol in batch.drain(..) {
                sink(&symbol, &names.get(symbol.name)?);
            }
        }
        if is_last {
            return entries.check("symbol table truncated");
        }
    }
}
