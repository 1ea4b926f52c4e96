//! Function names from `.symtab` and `.dynsym`.
//!
//! A batch of addresses is matched in one pass over the tables, read with `pread` through a small
//! buffer. No index is built, so the memory needed does not depend on the file. No file is mapped,
//! so a file that shrinks meanwhile is an error and no signal. A pass over the 250,000 symbols of a
//! large library takes a few milliseconds.
//!
//! A function often has several names; which one is reported is decided by
//! [`Symbol::score`].
//!
//! Format: System V gABI, chapter 4, "Symbol Table".

use crate::elf::{ElfError, ElfInfo, ElfSymbol, STB_GLOBAL, STB_LOCAL, STT_NOTYPE, SymbolTable};
use std::fs::File;

/// Most comparisons of a symbol with an address in one pass. Symbols of real
/// files hardly overlap; millions that all cover everything are an attack.
const MAX_MATCHES: u64 = 1 << 24;
/// Most names read in one pass to choose among those of the same function; later ones are chosen by
/// the symbol table's own fields.
const MAX_COMPARED: u32 = 1 << 16;
/// Bytes read for a name at first.
const NAME: usize = 256;
/// How far a symbol without a size (hand-written assembly) reaches at most.
const SIZELESS_REACH: u64 = 64 << 10;

/// One symbol table entry that names code.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    table: usize,
    name: u32,
    start: u64,
    size: u64,
    /// Where the symbol's section ends: a symbol without a size cannot reach
    /// further.
    limit: u64,
    /// Preference among symbols with the same start, by type and binding, and by the name once that
    /// has been read.
    score: Score,
}

/// Preference among the names of one function; the greater is reported. By field,
/// the first that differs decides:
///
/// 1. a typed symbol over one of assembly without a type;
/// 2. a name as written in a source over one that compilers or glibc decorated:
///    `malloc` over `__GI___libc_malloc`;
/// 3. an exported symbol over a local one;
/// 4. fewer leading underscores: `poll` over `__poll`;
/// 5. a global symbol over a weak one;
/// 6. the default version (`@@`) over an old one.
///
/// Among equals, the first in the table is reported. perf asks 5 before 4, and so reports `__poll`,
/// because glibc's functions are global under their internal and weak under their public names.
/// addr2line has no such order: it reports whichever of them its search ends at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    function: bool,
    plain: bool,
    exported: bool,
    /// Most for the fewest underscores.
    clean: u8,
    global: bool,
    current: bool,
}

impl Score {
    /// Adds what the name shows.
    fn with_name(self, name: &str) -> Self {
        // A version has dots and shows nothing about the name.
        let (name, version) = name.split_once('@').unwrap_or((name, "@"));
        let (plain, clean) = readability(name);
        Self {
            plain,
            clean,
            current: version.starts_with('@'),
            ..self
        }
    }
}

/// How much a name is like one in a source, to be compared: undecorated, and without leading
/// underscores (but `__vdso_` distinguishes the kernel's function from libc's of the same name).
pub(super) fn readability(name: &str) -> (bool, u8) {
    let underscores = match name.starts_with("__vdso_") {
        true => 0,
        false => name.bytes().take_while(|&b| b == b'_').count(),
    };
    let decorated = name.starts_with("__GI_") || name.get(1..).is_some_and(|n| n.contains('.'));
    (
        !decorated,
        u8::MAX - u8::try_from(underscores).unwrap_or(u8::MAX),
    )
}

/// The best symbols seen for one address.
#[derive(Clone, Copy, Debug, Default)]
struct Match {
    /// Among those that contain the address, the one that starts last.
    covering: Option<Symbol>,
    /// Among all that start at or before the address and after the previous address of the batch,
    /// the one that starts last.
    nearest: Option<Symbol>,
}

/// Looks up ELF virtual addresses; `None` where no symbol covers one.
pub(super) fn lookup(
    file: &File,
    info: &ElfInfo,
    vaddrs: &[u64],
) -> Result<Vec<Option<String>>, ElfError> {
    let mut order: Vec<usize> = (0..vaddrs.len()).collect();
    order.sort_unstable_by_key(|&i| vaddrs[i]);
    let sorted: Vec<u64> = order.iter().map(|&i| vaddrs[i]).collect();
    let mut pass = Pass {
        file,
        info,
        matches: vec![Match::default(); sorted.len()],
        sorted,
        budget: MAX_MATCHES,
        compared: 0,
    };
    for (index, table) in info.tables.iter().enumerate() {
        pass.scan(index, table)?;
    }
    let chosen = pass.choose();
    let mut names = vec![None; vaddrs.len()];
    let mut last: Option<(Symbol, String)> = None;
    for (&i, symbol) in order.iter().zip(chosen) {
        let Some(symbol) = symbol else { continue };
        let known = last.take_if(|(s, _)| s.table == symbol.table && s.name == symbol.name);
        let name = match known {
            Some((_, name)) => name,
            None => match info.tables.get(symbol.table) {
                Some(table) => read_name(file, table, symbol.name)?,
                None => continue,
            },
        };
        // Nameless symbols, and those that mark code and data on Arm.
        if !name.is_empty() && !name.starts_with('$') {
            names[i] = Some(name.clone());
        }
        last = Some((symbol, name));
    }
    Ok(names)
}

/// One pass over the symbol tables of a file.
struct Pass<'a> {
    file: &'a File,
    info: &'a ElfInfo,
    sorted: Vec<u64>,
    matches: Vec<Match>,
    budget: u64,
    /// Names read so far.
    compared: u32,
}

impl Pass<'_> {
    fn scan(&mut self, index: usize, table: &SymbolTable) -> Result<(), ElfError> {
        let mut entries = table.entries(self.file);
        while let Some(symbols) = entries.more()? {
            for symbol in symbols.filter_map(ElfSymbol::parse) {
                if let Some(symbol) = self.code(&symbol, index, table) {
                    self.offer(symbol)?;
                }
            }
        }
        entries.check("symbol table truncated")
    }

    /// An entry that names code of this file.
    fn code(&self, symbol: &ElfSymbol, index: usize, table: &SymbolTable) -> Option<Symbol> {
        let &ElfSymbol { value, size, .. } = symbol;
        if !self.may_matter(value, size) {
            return None;
        }
        let function = symbol.is_function();
        if !symbol.is_defined() || !(function || symbol.kind == STT_NOTYPE) {
            return None;
        }
        // Sparse dynamic tables would give sizeless symbols far too much. One in no section is
        // a number, not a place.
        if size == 0 && (table.dynamic || symbol.is_number()) {
            return None;
        }
        Some(Symbol {
            table: index,
            name: symbol.name,
            start: value,
            size,
            limit: self.info.code_end(symbol.section)?,
            score: Score {
                function,
                exported: symbol.binding != STB_LOCAL,
                global: symbol.binding == STB_GLOBAL,
                ..Score::default()
            },
        })
    }

    /// Whether a symbol may be one of an address's: most of a large table are far from all
    /// addresses of a batch, and this costs least.
    #[inline]
    fn may_matter(&self, start: u64, size: u64) -> bool {
        let (Some(&lowest), Some(&highest)) = (self.sorted.first(), self.sorted.last()) else {
            return false;
        };
        if start > highest {
            return false;
        }
        // What ends before the lowest may still be the nearest to it.
        let nearest = self.matches.first().and_then(|slot| slot.nearest);
        start.saturating_add(size) > lowest || nearest.is_none_or(|n| n.start <= start)
    }

    /// Enters a symbol for the addresses it concerns.
    fn offer(&mut self, mut symbol: Symbol) -> Result<(), ElfError> {
        let first = self.sorted.partition_point(|&a| a < symbol.start);
        let rest = self.sorted.get(first..).unwrap_or_default();
        let Some(nearest) = self.matches.get(first).map(|slot| slot.nearest) else {
            return Ok(());
        };
        let covered = rest.partition_point(|&a| a - symbol.start < symbol.size);
        self.budget = self
            .budget
            .checked_sub(covered as u64)
            .ok_or(ElfError::Malformed("too many symbols overlap"))?;
        // The name matters where the symbol may be reported.
        let rival = nearest.is_none_or(|n| n.start <= symbol.start);
        if covered > 0 || symbol.size == 0 && rival {
            self.read_score(&mut symbol)?;
        }
        if let Some(slot) = self.matches.get_mut(first)
            && better(&slot.nearest, &symbol)
        {
            slot.nearest = Some(symbol);
        }
        for slot in self.matches.iter_mut().skip(first).take(covered) {
            if better(&slot.covering, &symbol) {
                slot.covering = Some(symbol);
            }
        }
        Ok(())
    }

    /// Completes a symbol's score by its name.
    fn read_score(&mut self, symbol: &mut Symbol) -> Result<(), ElfError> {
        if let Some(table) = self.info.tables.get(symbol.table)
            && self.compared < MAX_COMPARED
        {
            self.compared += 1;
            let mut names = table.names(self.file, NAME);
            symbol.score = symbol.score.with_name(&names.get(symbol.name)?);
        }
        Ok(())
    }

    /// The symbol of each address, in sorted order: one that contains it, else
    /// the one before it if that has no size.
    fn choose(self) -> Vec<Option<Symbol>> {
        let mut nearest: Option<Symbol> = None;
        let mut chosen = Vec::with_capacity(self.sorted.len());
        for (addr, found) in self.sorted.into_iter().zip(self.matches) {
            if let Some(symbol) = found.nearest {
                nearest = Some(symbol);
            }
            let sizeless = nearest
                .filter(|s| s.size == 0 && addr - s.start < SIZELESS_REACH && addr < s.limit);
            chosen.push(found.covering.or(sizeless));
        }
        chosen
    }
}

/// Whether to prefer `new`: it starts later, or at the same address and scores higher. The first of
/// equals stays.
fn better(old: &Option<Symbol>, new: &Symbol) -> bool {
    old.is_none_or(|old| (new.start, new.score) > (old.start, old.score))
}

/// The name of the symbol with this number in a table.
pub(super) fn name_of(file: &File, table: &SymbolTable, index: u32) -> Result<String, ElfError> {
    let symbol = table.symbol(file, index.into())?;
    read_name(file, table, symbol.name)
}

/// Reads a symbol's name without its version (`@@GLIBC_2.17`).
fn read_name(file: &File, table: &SymbolTable, name: u32) -> Result<String, ElfError> {
    let mut name = table.names(file, NAME).get(name)?.into_owned();
    if let Some(at) = name.find('@').filter(|&at| at > 0) {
        name.truncate(at);
    }
    Ok(name)
}
