//! Tables of symbols and relocations, read in pieces.

use super::header::{ElfSection, ElfSections, SHT_SYMTAB};
use super::read::{ElfError, FileRange, ReadAt, ReadWindow, read_full};
use std::borrow::Cow;
use std::io;
use std::slice::ChunksExact;

pub(super) const SHT_RELA: u32 = 4;
pub(super) const SHT_DYNSYM: u32 = 11;
pub(crate) const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
pub(crate) const STB_LOCAL: u8 = 0;
pub(crate) const STB_GLOBAL: u8 = 1;
const STB_WEAK: u8 = 2;
/// The first of the indices of sections with a meaning of their own.
pub(super) const SHN_LORESERVE: u16 = 0xff00;
/// The index of symbols without a section. Their values do not change with the load address.
const SHN_ABS: u16 = 0xfff1;
pub(crate) const R_X86_64_IRELATIVE: u32 = 37;

/// Bytes of a symbol of a file with addresses of 64 bits.
pub(super) const SYMBOL: usize = 24;
/// Bytes of a relocation with addend, there too.
pub(super) const RELA: usize = 24;
/// Entries read at once.
const AT_ONCE: usize = 4096;
/// What most names are shorter than, and the longest name read, in bytes.
const USUAL_NAME: usize = 256;
const MAX_NAME: usize = 16 << 10;
const CUT_OFF: ElfError = ElfError::Malformed("symbol table truncated");

/// The entries of a table, of which some thousands are read at once.
pub struct Entries<'a, R> {
    source: &'a R,
    rest: FileRange,
    entry: usize,
    buffer: Vec<u8>,
    is_cut_off: bool,
}

impl<'a, R: ReadAt> Entries<'a, R> {
    /// The table whose entries have `entry` bytes each; nothing is read yet.
    pub fn new(source: &'a R, table: FileRange, entry: usize) -> Self {
        Self {
            source,
            rest: table,
            entry,
            buffer: Vec::new(),
            is_cut_off: false,
        }
    }

    /// A table of symbols of a file with addresses of 64 bits.
    pub(crate) fn symbols(source: &'a R, table: FileRange) -> Self {
        Self::new(source, table, SYMBOL)
    }

    /// The next entries; `None` at the end of the table or of the file.
    ///
    /// # Errors
    /// The source's own.
    pub fn more(&mut self) -> io::Result<Option<ChunksExact<'_, u8>>> {
        if self.rest.size == 0 || self.is_cut_off {
            return Ok(None);
        }
        let most = AT_ONCE * self.entry;
        let size = usize::try_from(self.rest.size).map_or(most, |size| size.min(most));
        self.buffer.resize(size, 0);
        let n = read_full(self.source, &mut self.buffer, self.rest.offset)?;
        self.is_cut_off = n < size;
        self.rest.offset = self.rest.offset.saturating_add(size as u64);
        self.rest.size -= size as u64;
        let read = self.buffer.get(..n).unwrap_or_default();
        Ok(Some(read.chunks_exact(self.entry)))
    }

    /// Checks that the file did not end within what was read of the table.
    ///
    /// # Errors
    /// [`ElfError::Malformed`] with `what`: it did.
    pub fn check(&self, what: &'static str) -> Result<(), ElfError> {
        match self.is_cut_off {
            true => Err(ElfError::Malformed(what)),
            false => Ok(()),
        }
    }
}

/// A symbol.
#[derive(Clone, Copy, Debug)]
pub struct ElfSymbol {
    /// Where its name begins among the strings of its table.
    pub name: u32,
    pub(crate) kind: u8,
    pub(crate) binding: u8,
    /// Index of the section it lies in; 0: in another file.
    pub section: u16,
    /// Its address.
    pub value: u64,
    /// Bytes; 0: not known.
    pub size: u64,
}

impl ElfSymbol {
    /// Reads an entry of a table, in the form that its length shows.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let u16_at = |at| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let u32_at = |at| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let u64_at = |at| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let (value, size, info, section) = match bytes.len() {
            SYMBOL => (u64_at(8)?, u64_at(16)?, *bytes.get(4)?, u16_at(6)?),
            _ => {
                let (value, size) = (u32_at(4)?, u32_at(8)?);
                (value.into(), size.into(), *bytes.get(12)?, u16_at(14)?)
            }
        };
        Some(Self {
            name: u32_at(0)?,
            kind: info & 15,
            binding: info >> 4,
            section,
            value,
            size,
        })
    }

    /// Whether it is typed as a function, also as one that chooses a function.
    pub fn is_function(&self) -> bool {
        self.kind == STT_FUNC || self.is_resolver()
    }

    /// Whether it is a function that chooses one (`STT_GNU_IFUNC`).
    pub fn is_resolver(&self) -> bool {
        self.kind == STT_GNU_IFUNC
    }

    /// Whether a function may begin at it: assembly leaves the type out, but what other files may
    /// use is no label of its own.
    pub(crate) fn may_be_function(&self) -> bool {
        self.is_function() || self.kind == STT_NOTYPE && self.is_shared()
    }

    /// Whether other files of the program may use it.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.binding, STB_GLOBAL | STB_WEAK)
    }

    /// Whether it lies in a section of the file.
    pub(crate) fn is_here(&self) -> bool {
        (1..SHN_LORESERVE).contains(&self.section)
    }

    /// Whether its value counts from no section (`SHN_ABS`).
    pub(crate) fn is_number(&self) -> bool {
        self.section == SHN_ABS
    }

    /// Whether the file defines it.
    pub fn is_defined(&self) -> bool {
        self.section != 0
    }
}

/// Where a symbol table and its strings lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolTable {
    /// The symbols.
    pub symbols: FileRange,
    /// Their names.
    pub strings: FileRange,
    /// `.dynsym`: only what is exported or imported.
    pub dynamic: bool,
    /// Index of its section.
    pub section: u32,
    /// Bytes of a symbol.
    entry: usize,
}

impl SymbolTable {
    /// The table in a section; `None`: it has none, or no strings.
    pub(crate) fn of(
        sections: &ElfSections,
        index: u32,
        section: &ElfSection,
        wide: bool,
    ) -> Option<Self> {
        let is_table = matches!(section.kind, SHT_SYMTAB | SHT_DYNSYM);
        let strings = sections.list.get(section.link as usize);
        let strings = strings.filter(|_| is_table)?;
        Some(Self {
            symbols: section.file,
            strings: strings.file,
            dynamic: section.kind == SHT_DYNSYM,
            section: index,
            entry: if wide { SYMBOL } else { 16 },
        })
    }

    /// The first full table of a file for x86-64; `None`: it has none.
    pub(crate) fn full(sections: &ElfSections) -> Option<Self> {
        let mut all = (0..).zip(&sections.list);
        let (index, section) = all.find(|(_, section)| section.kind == SHT_SYMTAB)?;
        Self::of(sections, index, section, true)
    }

    /// Its symbols.
    pub fn entries<'a, R: ReadAt>(&self, source: &'a R) -> Entries<'a, R> {
        Entries::new(source, self.symbols, self.entry)
    }

    /// The symbol with a number.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn symbol<R: ReadAt>(&self, source: &R, index: u64) -> Result<ElfSymbol, ElfError> {
        let size = self.entry as u64;
        let at = index.checked_mul(size).filter(|at| {
            let end = at.checked_add(size);
            end.is_some_and(|end| end <= self.symbols.size)
        });
        let at = at.ok_or(ElfError::Malformed("no such symbol"))?;
        let offset = self.symbols.offset.checked_add(at).ok_or(CUT_OFF)?;
        let mut entry = Entries::new(source, FileRange { offset, size }, self.entry);
        let symbol = entry.more()?.and_then(|mut entries| entries.next());
        symbol.and_then(ElfSymbol::parse).ok_or(CUT_OFF)
    }

    /// Its names. `at_once`: the least bytes of them that are read at once.
    pub fn names<'a, R: ReadAt>(&self, source: &'a R, at_once: usize) -> SymbolNames<'a, R> {
        SymbolNames {
            source,
            strings: self.strings,
            window: ReadWindow::new(at_once),
        }
    }
}

/// The names of a table's symbols. Neighbours share one read.
pub struct SymbolNames<'a, R> {
    source: &'a R,
    strings: FileRange,
    window: ReadWindow,
}

impl<R: ReadAt> SymbolNames<'_, R> {
    /// The name that begins at an offset among the strings, cut at 16 KiB.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn get(&mut self, name: u32) -> Result<Cow<'_, str>, ElfError> {
        let left = self.strings.size.saturating_sub(name.into());
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let at = self.strings.offset.checked_add(name.into());
        let at = at.ok_or(CUT_OFF)?;
        let mut length = left.min(MAX_NAME);
        for most in [USUAL_NAME, MAX_NAME] {
            let wanted = left.min(most);
            let bytes = self.window.get(self.source, at, wanted)?;
            if bytes.len() < wanted {
                return Err(CUT_OFF);
            }
            if let Some(end) = memchr::memchr(0, bytes) {
                length = end;
                break;
            }
        }
        let name = self.window.get(self.source, at, length)?;
        Ok(String::from_utf8_lossy(name))
    }
}

/// A table of relocations with addends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelaTable {
    /// Where it lies in the file.
    pub file: FileRange,
    /// Index of the section with the symbols it refers to.
    pub link: u32,
    /// Whether it is the PLT's, whose entries go by its numbers.
    pub plt: bool,
}

impl RelaTable {
    /// Its first relocations, which have `most` bytes together.
    pub fn entries<'a, R: ReadAt>(&self, source: &'a R, most: u64) -> Entries<'a, R> {
        let size = self.file.size.min(most);
        Entries::new(source, FileRange { size, ..self.file }, RELA)
    }
}

/// A relocation with addend, of a file with addresses of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// The address that it changes.
    pub place: u64,
    /// Its type (`R_X86_64_...`).
    pub kind: u32,
    /// The number of its symbol.
    pub symbol: u32,
    /// What is added, or the value.
    pub addend: u64,
}

impl Relocation {
    /// Type of those that add where the file is loaded.
    pub const RELATIVE: u32 = 8;

    /// Reads an entry of a table.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let info = word(8)?;
        Some(Self {
            place: word(0)?,
            kind: info as u32,
            symbol: (info >> 32) as u32,
            addend: word(16)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(kind: u8, binding: u8, section: u16) -> Option<u64> {
        let mut bytes = [0; SYMBOL];
        bytes[4] = binding << 4 | kind;
        bytes[6..8].copy_from_slice(&section.to_le_bytes());
        bytes[8..16].copy_from_slice(&0x1234u64.to_le_bytes());
        let symbol = ElfSymbol::parse(&bytes).unwrap();
        let is_function = symbol.is_here() && symbol.may_be_function();
        is_function.then_some(symbol.value)
    }

    #[test]
    fn functions_and_what_may_be_one() {
        for kind in [STT_FUNC, STT_GNU_IFUNC] {
            for binding in 0..3 {
                assert_eq!(symbol(kind, binding, 10), Some(0x1234));
            }
        }
        // Hand-written assembly: the function, and its labels.
        assert_eq!(symbol(STT_NOTYPE, STB_GLOBAL, 10), Some(0x1234));
        assert_eq!(symbol(STT_NOTYPE, STB_WEAK, 10), Some(0x1234));
        assert_eq!(symbol(STT_NOTYPE, 0, 10), None);
        // Symbols of other files, and numbers.
        assert_eq!(symbol(STT_FUNC, STB_GLOBAL, 0), None);
        assert_eq!(symbol(STT_NOTYPE, STB_GLOBAL, 0xfff1), None);
        // Data.
        assert_eq!(symbol(1, STB_GLOBAL, 10), None);
    }
}
