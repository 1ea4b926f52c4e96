//! The names that an interpreter's file has. Libraries and `python3` export them. A program that
//! links the interpreter may have them in its symbol table only, or none. The section of
//! `_PyRuntime`, from 3.10 on, shows such programs.

use crate::elf::{
    CodeFile, Dynamic, DynamicSymbol, ElfHeader, ElfSymbol, ReadAt, SymbolTable, each_relative,
    each_word, read_full,
};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// The variable that every interpreter has, and its section.
const RUNTIME: &[u8] = b"_PyRuntime";
const RUNTIME_SECTION: &[u8] = b".PyRuntime";
/// The names that are looked up in symbol tables.
const LISTED: [&[u8]; 8] = [
    RUNTIME,
    b"PyCode_Type",
    b"_PyEval_EvalFrameDefault",
    b"PyGILState_GetThisThreadState",
    b"Py_Version",
    b"PyIter_Send",
    b"PyFrame_GetBack",
    b"PyCode_NewWithPosOnlyArgs",
];
const MAX_SECTIONS: u64 = 1024;
/// Most bytes of a symbol table, and how many of its names are read at once.
const MAX_TABLE: u64 = 64 << 20;
const AT_ONCE: usize = 16 << 10;
/// Most places that may be the type of code objects.
const MAX_PLACES: usize = 64;
/// Words of a type object: its name; bytes of an object; bytes of each of its items.
const TYPE_NAME: u64 = 24;
const TYPE_SIZE: u64 = 32;
/// Bytes of a unit of instructions, which are the items of code objects.
const UNIT: u64 = 2;

/// Where a file's names are.
enum NameTable<'a, R> {
    Exported(Dynamic<'a, R>),
    Listed {
        known: FxHashMap<&'static [u8], DynamicSymbol>,
        elf: Box<CodeFile>,
    },
}

/// What an interpreter's file names.
pub(super) struct PythonNames<'a, R> {
    file: &'a R,
    table: NameTable<'a, R>,
    /// The address of `_PyRuntime`.
    pub(super) runtime: u64,
    /// The interpreter's own functions, if other ones are in the file as well and names show
    /// which are whose. Otherwise it is empty.
    pub(super) functions: Range<u64>,
}

impl<'a, R: ReadAt> PythonNames<'a, R> {
    /// The names of a file; `None`: it has no interpreter.
    pub(super) fn read(file: &'a R) -> Option<Self> {
        if let Some(dynamic) = Dynamic::read(file)
            && let Some(runtime) = dynamic.find(RUNTIME)
        {
            return Some(Self {
                file,
                table: NameTable::Exported(dynamic),
                runtime: runtime.address,
                functions: 0..0,
            });
        }
        let elf = CodeFile::read(file).ok()?;
        let section = elf.section_named(file, &[RUNTIME_SECTION]).ok()??;
        let (known, functions) = listed(file).unwrap_or_default();
        let runtime = known.get(RUNTIME).map_or(section.vaddr, |at| at.address);
        Some(Self {
            file,
            table: NameTable::Listed {
                known,
                elf: Box::new(elf),
            },
            runtime,
            functions,
        })
    }

    /// Whether it has no names at all.
    pub(super) fn is_stripped(&self) -> bool {
        matches!(&self.table, NameTable::Listed { known, .. } if known.is_empty())
    }

    /// A symbol that the file defines.
    pub(super) fn find(&self, name: &[u8]) -> Option<DynamicSymbol> {
        match &self.table {
            NameTable::Exported(dynamic) => dynamic.find(name),
            NameTable::Listed { known, .. } => known.get(name).copied(),
        }
    }

    /// The bytes at a virtual address; `None` if the file does not have them all.
    pub(super) fn bytes(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        match &self.table {
            NameTable::Exported(dynamic) => dynamic.bytes(address, len),
            NameTable::Listed { elf, .. } => {
                let span = elf.loaded_from(address)?;
                let mut bytes = vec![0; len];
                let is_whole = len as u64 <= span.size
                    && read_full(self.file, &mut bytes, span.offset).ok()? == len;
                is_whole.then_some(bytes)
            }
        }
    }

    /// The type of code objects in a file without names: a type object that is called `code`,
    /// with objects of `size` bytes before their instructions.
    pub(super) fn unnamed_code_type(&self, size: u64) -> Option<u64> {
        let NameTable::Listed { elf, .. } = &self.table else {
            return None;
        };
        let mut places = Vec::new();
        for &span in &elf.data {
            let mut before = 0;
            let found = each_word(self.file, span, |at, word| {
                let is_it = (before, word) == (size, UNIT) && places.len() < MAX_PLACES;
                places.extend(at.checked_sub(8 + TYPE_SIZE).filter(|_| is_it));
                before = word;
            });
            found.ok()?;
        }
        let mut names: Vec<u64> = places
            .iter()
            .map(|at| {
                let name = self.bytes(at.wrapping_add(TYPE_NAME), 8);
                let name = name.and_then(|bytes| bytes.try_into().ok());
                name.map_or(0, u64::from_le_bytes)
            })
            .collect();
        // In a file that may be loaded anywhere, the relocations hold the addresses.
        each_relative(self.file, &elf.tables().relocations, |at, value| {
            for (place, name) in places.iter().zip(&mut names) {
                if place.wrapping_add(TYPE_NAME) == at {
                    *name = value;
                }
            }
        })
        .ok()?;
        let mut pairs = places.iter().zip(names);
        let is_code = |name| self.bytes(name, 5).is_some_and(|text| text == *b"code\0");
        let found = pairs.find(|(_, name)| is_code(*name));
        found.map(|(place, _)| *place)
    }
}

/// One of this number of functions is left out at either end: compilers place a few apart.
const APART: usize = 100;

/// The wanted names in a file's symbol table; and where most of its functions are whose names begin
/// as CPython's do.
type Listed = (FxHashMap<&'static [u8], DynamicSymbol>, Range<u64>);

fn listed(file: &impl ReadAt) -> Option<Listed> {
    let header = ElfHeader::read(file).ok()??;
    let table = SymbolTable::full(&header.sections(file, MAX_SECTIONS).ok()?)?;
    if table.symbols.size.max(table.strings.size) > MAX_TABLE {
        return None;
    }
    let mut names = table.names(file, AT_ONCE);
    let mut known = FxHashMap::default();
    let mut functions = Vec::new();
    let mut entries = table.entries(file);
    while let Some(symbols) = entries.more().ok()? {
        let symbols = symbols.filter_map(ElfSymbol::parse);
        for symbol in symbols.filter(|symbol| symbol.is_here() && symbol.is_shared()) {
            let name = names.get(symbol.name).ok()?;
            if let Some(wanted) = LISTED.iter().find(|wanted| **wanted == name.as_bytes()) {
                let at = DynamicSymbol {
                    address: symbol.value,
                    size: symbol.size,
                };
                known.insert(*wanted, at);
            }
            let is_own = name.starts_with("Py") || name.starts_with("_Py");
            if is_own && symbol.is_function() {
                let end = symbol.value.saturating_add(symbol.size);
                functions.push(symbol.value..end);
            }
        }
    }
    entries.check("symbol table").ok()?;
    functions.sort_unstable_by_key(|function| function.start);
    let skipped = functions.len() / APART;
    let first = functions.get(skipped)?.start;
    let last = functions.get(functions.len() - 1 - skipped)?.end;
    Some((known, first..last))
}
