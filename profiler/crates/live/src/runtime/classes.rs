//! The virtual functions of a library's C++ classes: where a jump through an object's
//! table may lead. Read from the relocations, for tables are data that the linker
//! completes at the start, and from the run-time type information (Itanium C++ ABI,
//! 2.5 "Virtual Table Layout" and 2.9.4 "RTTI Layout").

use aiprof_symbols::elf::{ElfError, ElfInfo, Relocation, TextSegment, offset_of};
use rustc_hash::FxHashMap;
use std::{fs::File, os::unix::fs::FileExt as _};

/// Most pointers that are read of a file, 16 bytes each; Intel's driver has 30,000.
const MAX_POINTERS: usize = 1 << 20;
/// Most virtual functions in a table.
const MAX_FUNCTIONS: usize = 4096;
/// Most classes that are looked at above one, and steps to reach one.
const MAX_BASES: usize = 64;
/// Most bases that a class names itself.
const MAX_DIRECT: u64 = 16;
/// Longest name of a class that is compared.
const MAX_NAME: usize = 256;
/// Most different functions in one place of the tables of unknown classes. With more, none is
/// taken: the right one is not known.
const MAX_UNKNOWN: usize = 32;
/// Bytes of a relocation with addend, and of a pointer.
const RELA: usize = 24;
const POINTER: u64 = 8;

/// A relocation's type (System V ABI, AMD64 supplement, 4.4.1).
const R_X86_64_64: u32 = 1;

/// The tables of virtual functions of a file.
#[derive(Debug, Default)]
pub(super) struct Classes {
    tables: Vec<VirtualTable>,
}

/// A table of virtual functions.
#[derive(Debug, Default)]
struct VirtualTable {
    /// Addresses of the functions, as in the file; 0: in another file.
    functions: Vec<u64>,
    /// Mangled names of its class and of all above it.
    classes: Vec<Box<[u8]>>,
}

/// The pointers in a file's data that are completed at its start: address and value,
/// by address. A value of 0 is in another file.
#[derive(Debug, Default)]
struct Pointers(Vec<(u64, u64)>);

impl Pointers {
    fn get(&self, at: u64) -> Option<u64> {
        let index = self.0.binary_search_by_key(&at, |&(at, _)| at).ok()?;
        Some(self.0.get(index)?.1)
    }
}

impl Classes {
    /// Reads a file. `loaded`: its parts in memory, `text`: those with code.
    ///
    /// # Errors
    /// It cannot be read, or is malformed.
    pub(super) fn read(
        file: &File,
        info: &ElfInfo,
        (loaded, text): (&[TextSegment], &[TextSegment]),
    ) -> Result<Self, ElfError> {
        let reader = ClassReader { file, info, loaded };
        let pointers = reader.pointers()?;
        let is_code = |at: u64| at == 0 || offset_of(text, at).is_some();
        let mut classes = Self::default();
        let mut names = FxHashMap::default();
        let mut end = None;
        for (index, &(at, value)) in pointers.0.iter().enumerate() {
            // A run of pointers to code, behind the pointer to the type or, in code
            // without types, nothing.
            let goes_on = end == Some(at);
            end = is_code(value).then(|| at.wrapping_add(POINTER));
            if goes_on || end.is_none() {
                continue;
            }
            let before = index.checked_sub(1).and_then(|i| pointers.0.get(i));
            let class = before.filter(|(before, _)| before.wrapping_add(POINTER) == at);
            let rest = pointers.0.get(index..).unwrap_or_default();
            let run = (0..).zip(rest).take(MAX_FUNCTIONS);
            let run = run.take_while(|(i, (next, value))| {
                at.checked_add(i * POINTER) == Some(*next) && is_code(*value)
            });
            classes.tables.push(VirtualTable {
                functions: run.map(|(_, &(_, value))| value).collect(),
                classes: class.map_or_else(Vec::new, |&(_, class)| {
                    reader.names(class, &pointers, &mut names)
                }),
            });
        }
        Ok(classes)
    }

    /// The functions, by address, that are `slot` bytes behind the beginning of the
    /// table of a class: of those at or below one of `classes`, where these are known.
    /// None if they are too many to know which it is.
    pub(super) fn functions(&self, slot: i32, classes: &[&str]) -> Vec<u64> {
        let Some(index) = usize::try_from(slot).ok().filter(|slot| slot % 8 == 0) else {
            return Vec::new();
        };
        let mangled = classes
            .iter()
            .map(|class| format!("{}{class}", class.len()));
        let mangled: Vec<String> = mangled.collect();
        let is_of = |table: &&VirtualTable| {
            let is = |name: &[u8]| mangled.iter().any(|wanted| wanted.as_bytes() == name);
            classes.is_empty() || table.classes.iter().any(|name| is(name))
        };
        let tables = self.tables.iter().filter(is_of);
        let mut found: Vec<u64> = tables
            .filter_map(|table| table.functions.get(index / 8).copied())
            .filter(|&function| function != 0)
            .collect();
        found.sort_unstable();
        found.dedup();
        if classes.is_empty() && found.len() > MAX_UNKNOWN {
            found.clear();
        }
        found
    }
}

/// Reads what lies in a file.
struct ClassReader<'a> {
    file: &'a File,
    info: &'a ElfInfo,
    loaded: &'a [TextSegment],
}

impl ClassReader<'_> {
    /// All pointers, by address.
    fn pointers(&self) -> Result<Pointers, ElfError> {
        let mut found = Vec::new();
        for table in self.info.relocations.iter().filter(|table| !table.plt) {
            let symbols = self.info.tables.iter().find(|t| t.section == table.link);
            let mut entries = table.entries(self.file, (MAX_POINTERS * RELA) as u64);
            while let Some(relocations) = entries.more()? {
                for relocation in relocations.filter_map(Relocation::parse) {
                    let value = match relocation.kind {
                        Relocation::RELATIVE => relocation.addend,
                        R_X86_64_64 => {
                            let index = relocation.symbol.into();
                            let symbol = symbols.and_then(|t| t.symbol(self.file, index).ok());
                            // A symbol without a value is in another file.
                            let symbol = symbol.filter(|symbol| symbol.value != 0);
                            symbol.map_or(0, |symbol| symbol.value.wrapping_add(relocation.addend))
                        }
                        _ => continue,
                    };
                    found.push((relocation.place, value));
                }
            }
            entries.check("relocations truncated")?;
        }
        self.packed(&mut found);
        found.sort_unstable();
        found.dedup_by_key(|(at, _)| *at);
        found.truncate(MAX_POINTERS);
        Ok(Pointers(found))
    }

    /// Adds the pointers whose values lie in their places. The file lists only their addresses:
    /// one, and then bits for those behind it (generic ABI, `SHT_RELR`).
    fn packed(&self, found: &mut Vec<(u64, u64)>) {
        let Some(table) = self.info.packed_relocations else {
            return;
        };
        let mut next = 0_u64;
        let mut add = |at: u64| {
            if found.len() < MAX_POINTERS {
                found.extend(self.word_at(at).map(|value| (at, value)));
            }
        };
        for i in 0..table.size.min((MAX_POINTERS / 8) as u64) / POINTER {
            let Some(entry) = self.word_in_file(table.offset.saturating_add(i * POINTER)) else {
                return;
            };
            if entry & 1 == 0 {
                add(entry);
                next = entry.wrapping_add(POINTER);
                continue;
            }
            for bit in (1..64).filter(|bit| entry >> bit & 1 == 1) {
                add(next.wrapping_add((bit - 1) * POINTER));
            }
            next = next.wrapping_add(63 * POINTER);
        }
    }

    /// The names of a class and of those above it.
    fn names(
        &self,
        class: u64,
        pointers: &Pointers,
        known: &mut FxHashMap<u64, Option<Box<[u8]>>>,
    ) -> Vec<Box<[u8]>> {
        let mut classes = vec![class];
        let mut names = Vec::new();
        let mut next = 0;
        while let Some(&class) = classes.get(next) {
            next += 1;
            let name = known.entry(class).or_insert_with(|| {
                let at = pointers.get(class.wrapping_add(POINTER))?;
                self.name(at)
            });
            let Some(name) = name else { continue };
            names.push(name.clone());
            for base in self.bases(class, pointers) {
                if classes.len() < MAX_BASES && !classes.contains(&base) {
                    classes.push(base);
                }
            }
        }
        names
    }

    /// The classes that one names as directly above it.
    fn bases(&self, class: u64, pointers: &Pointers) -> Vec<u64> {
        // A class with one base has: the vtable of the type, the name, the base.
        let first = class.wrapping_add(2 * POINTER);
        if let Some(base) = pointers.get(first) {
            return vec![base];
        }
        // Others have: flags and the number of bases; then a pointer and an offset each.
        let count = self.word_at(first).map_or(0, |word| word >> 32);
        let at = |i: u64| first.wrapping_add(POINTER + i * 2 * POINTER);
        let bases = (0..count.min(MAX_DIRECT)).map_while(|i| pointers.get(at(i)));
        bases.collect()
    }

    /// A text that ends with 0.
    fn name(&self, vaddr: u64) -> Option<Box<[u8]>> {
        let at = offset_of(self.loaded, vaddr)?;
        let mut bytes = [0; MAX_NAME];
        let len = self.file.read_at(&mut bytes, at).ok()?;
        let bytes = bytes.get(..len)?;
        let end = bytes.iter().position(|&byte| byte == 0)?;
        bytes.get(..end).map(Box::from)
    }

    fn word_at(&self, vaddr: u64) -> Option<u64> {
        self.word_in_file(offset_of(self.loaded, vaddr)?)
    }

    fn word_in_file(&self, offset: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}
