//! *zebin*: Intel's ELF of device code (`zebin/spec/elf.md` of
//! intel-graphics-compiler).
//!
//! Each kernel has a section `.text.NAME`; symbols in it name the functions it
//! calls, and `_entry` where the code proper begins after the one that loads the
//! kernel's arguments. Functions that several kernels call may have a section of
//! their own.

use super::limits::{MAX_KERNELS, MAX_MODULE, MAX_NAME, MAX_TEXT, StepBudget};
use super::line_table::LineTable;
use super::module::{Attributes, DeviceFunction, Module, ModuleError, Problems};
use super::names::{Strings, end_long_texts};
use super::relocate::{Bases, Header, Relocations, Section, Symbols};
use super::{dwarf, platform, ze_info};
use object::LittleEndian as LE;
use object::SectionIndex;
use object::elf;
use object::read::elf::{FileHeader, SectionHeader, SectionTable, Sym};
use rustc_hash::FxHashMap;
use std::borrow::Cow;

/// ELF machine of Intel's graphics devices (`EM_INTELGT`).
pub const EM_INTELGT: u16 = 205;
/// Code sections that are no kernels.
pub const NOT_KERNELS: [&str; 2] = ["Intel_Symbol_Table_Void_Program", "Intel_Scratch_Program"];
/// What comes before the name of a kernel in its section's.
pub const CODE_PREFIX: &[u8] = b".text.";
/// `.ze_info` by its type, where it has another name.
const SHT_ZEBIN_ZEINFO: u32 = 0xff00_0011;
/// Symbol at the end of the code that loads the arguments.
const ENTRY: &[u8] = b"_entry";

type Sections<'d> = SectionTable<'d, Header, &'d [u8]>;

/// A code section.
struct CodeSection<'d> {
    /// Index of the section.
    index: usize,
    section_name: &'d [u8],
    name: String,
    bytes: &'d [u8],
    /// The section's address in its header; 0 if it has none.
    address: u64,
}

/// A function of a code section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ZebinFunction {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) name: String,
}

/// Whether bytes begin as a zebin does.
pub(super) fn is_zebin(bytes: &[u8]) -> bool {
    let machine = bytes.get(18..20).and_then(|b| b.try_into().ok());
    bytes.starts_with(b"\x7fELF\x02\x01\x01") && machine.map(u16::from_le_bytes) == Some(EM_INTELGT)
}

/// The tables of a file.
struct Elf<'d> {
    bytes: &'d [u8],
    sections: Sections<'d>,
    names: Strings<'d>,
    symbols: Symbols<'d>,
    symbol_names: Strings<'d>,
}

impl<'d> Elf<'d> {
    fn parse(bytes: &'d [u8], problems: &mut Problems) -> Result<Self, object::Error> {
        let header = Header::parse(bytes)?;
        let sections = header.sections(LE, bytes)?;
        let symbols = sections.symbols(LE, bytes, elf::SHT_SYMTAB);
        let symbols = symbols.unwrap_or_else(|_| {
            problems.sections = problems.sections.saturating_add(1);
            Symbols::default()
        });
        let strings = |index: SectionIndex| {
            let section = sections.section(index).ok();
            let bytes = section.and_then(|s| s.data(LE, bytes).ok());
            Strings {
                bytes: bytes.unwrap_or_default(),
            }
        };
        let names = header.shstrndx(LE, bytes)?;
        Ok(Self {
            bytes,
            names: strings(SectionIndex(names as usize)),
            symbol_names: strings(symbols.string_section()),
            sections,
            symbols,
        })
    }

    fn name(&self, section: &Section) -> &'d [u8] {
        self.names.get(section.sh_name(LE))
    }

    /// The bytes of the first section with a name or type.
    fn section(&self, name: &[u8], kind: u32) -> Option<&'d [u8]> {
        let kind = elf::SectionType(kind);
        let mut all = self.sections.iter();
        let found = all.find(|s| self.name(s) == name || s.sh_type(LE) == kind)?;
        found.data(LE, self.bytes).ok()
    }
}

/// What a zebin records about its kernels; nothing if it cannot be read.
pub(super) fn attributes(bytes: &[u8]) -> FxHashMap<String, Attributes> {
    let mut problems = Problems::default();
    let elf = Elf::parse(bytes, &mut problems).ok();
    let text = elf.and_then(|elf| elf.section(b".ze_info", SHT_ZEBIN_ZEINFO));
    text.map(|text| ze_info::parse(text, &mut problems))
        .unwrap_or_default()
}

/// Reads a zebin.
pub(super) fn parse(bytes: &[u8]) -> Result<Module, ModuleError> {
    if bytes.len() > MAX_MODULE {
        return Err(ModuleError::TooLarge);
    }
    let mut problems = Problems::default();
    let elf = Elf::parse(bytes, &mut problems);
    let elf = elf.map_err(|e| ModuleError::Malformed(e.to_string()))?;
    let codes = codes(&elf, &mut problems);
    let (functions, entries) = functions(&codes, &elf);
    let lines = lines(&elf, &codes, &mut problems);
    let mut info = elf
        .section(b".ze_info", SHT_ZEBIN_ZEINFO)
        .map(|text| ze_info::parse(text, &mut problems))
        .unwrap_or_default();
    let notes = elf.section(b".note.intelgt.compat", u32::MAX);
    let mut module = Module {
        platform: notes.and_then(platform::of_notes),
        problems,
        ..Module::default()
    };
    let parts = codes.iter().zip(functions).zip(entries).zip(lines);
    for (((code, functions), entry), lines) in parts {
        let attributes = info.remove(&code.name).unwrap_or_default();
        let kernel = DeviceFunction::new(code.name.clone(), attributes)
            .with_code(code.bytes, code.address, entry)
            .with_functions(functions)
            .with_lines(lines);
        if NOT_KERNELS.contains(&code.name.as_str()) {
            module.functions.push(kernel);
        } else {
            module.kernels.push(kernel);
        }
    }
    Ok(module)
}

/// The code sections, those beyond the limits left out.
fn codes<'d>(elf: &Elf<'d>, problems: &mut Problems) -> Vec<CodeSection<'d>> {
    let mut codes: Vec<CodeSection<'d>> = Vec::new();
    // Sections that overlap must not multiply what is kept.
    let (mut code_left, mut names_left) = (elf.bytes.len(), MAX_TEXT);
    for (index, section) in elf.sections.iter().enumerate() {
        let section_name = elf.name(section);
        let Some(name) = section_name.strip_prefix(CODE_PREFIX) else {
            continue;
        };
        if section.sh_type(LE) != elf::SHT_PROGBITS {
            continue;
        }
        let usable = code(elf.bytes, index, section, section_name, name).filter(|code| {
            code.bytes.len() <= code_left
                && code.name.len() <= names_left
                && codes.len() < MAX_KERNELS
        });
        let Some(code) = usable else {
            problems.sections = problems.sections.saturating_add(1);
            continue;
        };
        code_left -= code.bytes.len();
        names_left -= code.name.len();
        codes.push(code);
    }
    codes
}

fn code<'d>(
    file: &'d [u8],
    index: usize,
    section: &Section,
    section_name: &'d [u8],
    name: &'d [u8],
) -> Option<CodeSection<'d>> {
    Some(CodeSection {
        index,
        section_name,
        name: readable(name)?,
        bytes: section.data(LE, file).ok()?,
        address: section.sh_addr(LE),
    })
}

/// A name, if it is one: text without control characters.
pub(super) fn readable(bytes: &[u8]) -> Option<String> {
    let fits = (1..=MAX_NAME).contains(&bytes.len());
    let text = std::str::from_utf8(bytes).ok().filter(|_| fits)?;
    (!text.chars().any(char::is_control)).then(|| text.to_owned())
}

/// For each code section its functions by offset, and where its `_entry` is.
fn functions(codes: &[CodeSection<'_>], elf: &Elf<'_>) -> (Vec<Vec<ZebinFunction>>, Vec<u32>) {
    let mut lists: Vec<Vec<ZebinFunction>> = codes.iter().map(|_| Vec::new()).collect();
    let mut entries = vec![0; codes.len()];
    let places: FxHashMap<usize, usize> = codes
        .iter()
        .enumerate()
        .map(|(i, code)| (code.index, i))
        .collect();
    let mut names_left = MAX_TEXT;
    for symbol in elf.symbols.iter() {
        let Some(&place) = places.get(&usize::from(symbol.st_shndx(LE).0)) else {
            continue;
        };
        let (Some(code), Some(list)) = (codes.get(place), lists.get_mut(place)) else {
            continue;
        };
        // Placed modules have addresses for values.
        let value = symbol.st_value(LE);
        let start = value.checked_sub(code.address).unwrap_or(value);
        let Ok(start) = u32::try_from(start) else {
            continue;
        };
        let name = elf.symbol_names.get(symbol.st_name(LE));
        if name == ENTRY {
            if let Some(entry) = entries.get_mut(place).filter(|_| inside(code, start)) {
                *entry = start;
            }
            continue;
        }
        let end = u64::from(start).saturating_add(symbol.st_size(LE));
        let is_function = symbol.st_type() == elf::STT_FUNC;
        if let (true, Some(name)) = (is_function && name.len() <= names_left, readable(name)) {
            names_left -= name.len();
            let end = u32::try_from(end).unwrap_or(u32::MAX);
            list.push(ZebinFunction { start, end, name });
        }
    }
    for list in &mut lists {
        list.sort_by_key(|f| (f.start, std::cmp::Reverse(f.end)));
    }
    (lists, entries)
}

fn inside(code: &CodeSection<'_>, offset: u32) -> bool {
    (offset as usize) < code.bytes.len()
}

/// The line table of each code section.
fn lines(elf: &Elf<'_>, codes: &[CodeSection<'_>], problems: &mut Problems) -> Vec<LineTable> {
    let mut budget = StepBudget::of_module();
    let none = || codes.iter().map(|_| LineTable::default()).collect();
    let bases = bases(codes);
    let is_table = |s: &&Section| s.sh_type(LE) == elf::SHT_RELA;
    let with = codes.iter().zip(&bases);
    let relocations = Relocations {
        bytes: elf.bytes,
        tables: elf.sections.iter().filter(is_table).collect(),
        symbols: &elf.symbols,
        names: elf.symbol_names,
        bases: Bases {
            by_name: with.clone().map(|(c, b)| (c.section_name, *b)).collect(),
            by_index: with.map(|(c, b)| (c.index, *b)).collect(),
        },
    };
    let mut debug: FxHashMap<&[u8], Cow<'_, [u8]>> = FxHashMap::default();
    for (index, section) in elf.sections.iter().enumerate() {
        let name = elf.name(section);
        if !name.starts_with(b".debug_") || debug.contains_key(name) {
            continue;
        }
        let done = relocations.section(index, section, &mut budget);
        let Ok((mut bytes, failed)) = done else {
            problems.debug_units = problems.debug_units.saturating_add(1);
            return none();
        };
        problems.relocations = problems.relocations.saturating_add(failed);
        if name.ends_with(b"str") {
            end_long_texts(&mut bytes);
        }
        debug.insert(name, bytes);
    }
    let spans: Vec<dwarf::CodeSpan> = codes
        .iter()
        .zip(bases)
        .map(|(code, base)| dwarf::CodeSpan {
            name: &code.name,
            base,
            size: u32::try_from(code.bytes.len()).unwrap_or(u32::MAX),
        })
        .collect();
    let section = |name: &str| debug.get(name.as_bytes()).map_or(&[][..], |bytes| bytes);
    dwarf::line_tables(&section, &spans, problems, &mut budget)
}

/// Where the code sections are taken to lie. A module placed on a device gives their addresses;
/// else all begin at 0, and are put far from each other.
fn bases(codes: &[CodeSection<'_>]) -> Vec<u64> {
    let placed = codes.iter().any(|code| code.address != 0);
    let addresses = codes.iter().map(|code| code.address);
    match codes.len() {
        // A single section needs no relocations to be identified.
        0 | 1 => addresses.collect(),
        _ if placed => addresses.collect(),
        count => (1..=count as u64).map(|i| i << 32).collect(),
    }
}
