//! Text of DWARF: names of functions, source files and lines.

use super::bytes::PagedBytes;
use super::limit::{DwarfError, WorkLimit};
use super::unit::{Attr, Dwarf, Unit};
use super::units::{Root, Supplement};
use aiprof_model::demangle;
use gimli::{AttributeValue, DebugInfoOffset, UnitOffset};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Most references followed for a name.
const MAX_ORIGINS: usize = 16;
/// Units kept parsed for references between units.
const UNIT_CACHE: usize = 8;
/// Longest name or path copied, in bytes.
const MAX_TEXT: usize = 16 << 10;

/// Offsets of units, ascending.
#[derive(Clone, Copy)]
pub(super) struct UnitLists<'d> {
    /// Those of the file.
    pub main: &'d [usize],
    /// Those of the file that `dwz` moved common parts to.
    pub supplement: Option<&'d Supplement>,
}

impl UnitLists<'_> {
    /// The unit that contains an offset of `.debug_info`, and where in it that is.
    fn owner(&self, is_supplement: bool, at: usize) -> Option<(usize, UnitOffset)> {
        let units = match is_supplement {
            true => self.supplement?.units(),
            false => self.main,
        };
        let after = units.partition_point(|o| *o <= at);
        let owner = *units.get(after.checked_sub(1)?)?;
        Some((owner, UnitOffset(at - owner)))
    }
}

/// Names of functions, by where they are described.
pub(super) struct DwarfNames<'d, 'a> {
    dwarf: &'d Dwarf<'a>,
    lists: UnitLists<'d>,
    /// Units parsed last, the newest at the end; whether each is of the supplement.
    units: Vec<((bool, usize), Rc<Root<'a>>)>,
    known: FxHashMap<(usize, usize), String>,
}

impl<'d, 'a> DwarfNames<'d, 'a> {
    pub(super) fn new(dwarf: &'d Dwarf<'a>, lists: UnitLists<'d>) -> Self {
        Self {
            dwarf,
            lists,
            units: Vec::new(),
            known: FxHashMap::default(),
        }
    }

    fn dwarf(&self, is_supplement: bool) -> gimli::Result<&'d Dwarf<'a>> {
        match is_supplement {
            true => self.dwarf.sup().ok_or(gimli::Error::MissingUnitDie),
            false => Ok(self.dwarf),
        }
    }

    /// The unit at an offset of `.debug_info`, of the file or its supplement.
    pub(super) fn unit(&mut self, is_supplement: bool, at: usize) -> gimli::Result<Rc<Root<'a>>> {
        let key = (is_supplement, at);
        if let Some((_, unit)) = self.units.iter().find(|(k, _)| *k == key) {
            return Ok(Rc::clone(unit));
        }
        let dwarf = self.dwarf(is_supplement)?;
        let header = dwarf.unit_header(DebugInfoOffset(at))?;
        let unit = Rc::new(Root::read(dwarf, header)?);
        if self.units.len() >= UNIT_CACHE {
            self.units.remove(0);
        }
        self.units.push((key, Rc::clone(&unit)));
        Ok(unit)
    }

    /// The name of the function described at an offset: its linkage name if that is mangled and so
    /// has more detail, else its plain name. A C function's linkage name differs only where an
    /// `asm` label renames it, as glibc's `__GI_...`. Empty if the function has no name, or none
    /// that is readable.
    pub(super) fn get(&mut self, unit: usize, offset: UnitOffset) -> String {
        if let Some(name) = self.known.get(&(unit, offset.0)) {
            return name.clone();
        }
        let name = self.resolve(unit, offset).unwrap_or_default();
        self.known.insert((unit, offset.0), name.clone());
        name
    }

    fn resolve(&mut self, mut unit_at: usize, mut offset: UnitOffset) -> gimli::Result<String> {
        let (mut plain, mut linkage) = (String::new(), String::new());
        let mut is_supplement = false;
        for _ in 0..MAX_ORIGINS {
            let root = self.unit(is_supplement, unit_at)?;
            let (unit, dwarf) = (&root.unit, self.dwarf(is_supplement)?);
            let mut entries = unit.entries_raw(Some(offset))?;
            let Some(abbrev) = entries.read_abbreviation()? else {
                break;
            };
            let mut origin = None;
            for spec in abbrev.attributes() {
                let attr = entries.read_attribute(*spec)?;
                match attr.name() {
                    gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                        let name = text(dwarf, unit, attr.value());
                        if demangle::is_mangled(&name) {
                            return Ok(name);
                        }
                        linkage = name;
                    }
                    gimli::DW_AT_name if plain.is_empty() => {
                        plain = text(dwarf, unit, attr.value());
                    }
                    gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                        origin = Some(attr.value());
                    }
                    _ => {}
                }
            }
            let owner = match origin {
                Some(AttributeValue::UnitRef(at)) => Some((unit_at, at)),
                Some(AttributeValue::DebugInfoRef(DebugInfoOffset(at))) => {
                    self.lists.owner(is_supplement, at)
                }
                Some(AttributeValue::DebugInfoRefSup(DebugInfoOffset(at))) => {
                    is_supplement = true;
                    self.lists.owner(true, at)
                }
                _ => None,
            };
            let Some(owner) = owner else { break };
            (unit_at, offset) = owner;
        }
        Ok(if plain.is_empty() { linkage } else { plain })
    }
}

/// A string attribute; empty where it cannot be read.
pub(super) fn text(dwarf: &Dwarf<'_>, unit: &Unit<'_>, value: Attr<'_>) -> String {
    let found = dwarf.attr_string(unit, value);
    let Ok(bytes) = found.and_then(|bytes| bytes.text(MAX_TEXT)) else {
        return String::new();
    };
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Source positions of a unit's addresses.
pub(super) struct SourceLines<'d, 'a> {
    dwarf: &'d Dwarf<'a>,
    root: Rc<Root<'a>>,
    header: Option<gimli::LineProgramHeader<PagedBytes<'a>, usize>>,
    /// The directory that paths are relative to.
    directory: String,
    /// For each address file index and line.
    rows: Vec<Option<(u64, u32)>>,
}

impl<'d, 'a> SourceLines<'d, 'a> {
    /// Runs the line program of a unit once, for addresses in ascending order; each row
    /// covers the addresses up to the next.
    pub(super) fn read(
        dwarf: &'d Dwarf<'a>,
        root: &Rc<Root<'a>>,
        addrs: &[u64],
        clock: &mut WorkLimit,
    ) -> Result<Self, DwarfError> {
        let mut lines = Self {
            dwarf,
            root: Rc::clone(root),
            header: None,
            directory: String::new(),
            rows: vec![None; addrs.len()],
        };
        let Some(offset) = root.lines else {
            return Ok(lines);
        };
        let unit = &root.unit;
        let string = |value: Option<Attr<'a>>| dwarf.attr_string(unit, value?).ok();
        let (directory, source) = (string(root.directory), string(root.source));
        if let Some(directory) = root.directory {
            lines.directory = text(dwarf, unit, directory);
        }
        let size = unit.header.address_size();
        let program = dwarf.debug_line.program(offset, size, directory, source)?;
        lines.header = Some(program.header().clone());
        lines.run(program, addrs, clock)?;
        Ok(lines)
    }

    fn run(
        &mut self,
        program: gimli::IncompleteLineProgram<PagedBytes<'a>, usize>,
        addrs: &[u64],
        clock: &mut WorkLimit,
    ) -> Result<(), DwarfError> {
        let mut rows = program.rows();
        let mut last: Option<(u64, u64, u32)> = None;
        while let Some((_, row)) = rows.next_row()? {
            clock.tick()?;
            if let Some((begin, file, line)) = last {
                let first = addrs.partition_point(|&a| a < begin);
                let end = addrs.partition_point(|&a| a < row.address());
                for slot in self.rows.get_mut(first..end).unwrap_or_default() {
                    slot.get_or_insert((file, line));
                }
            }
            let line = row
                .line()
                .map_or(0, |l| u32::try_from(l.get()).unwrap_or(0));
            last = (!row.end_sequence()).then(|| (row.address(), row.file_index(), line));
        }
        Ok(())
    }

    /// The position of an address, by its place in the list.
    pub(super) fn of_address(&self, slot: usize) -> Option<(String, u32)> {
        let (file, line) = (*self.rows.get(slot)?)?;
        Some((self.file(file)?, line))
    }

    /// Path of a file of the line program, joined to its directory.
    pub(super) fn file(&self, index: u64) -> Option<String> {
        let header = self.header.as_ref()?;
        let file = header.file(index)?;
        let text = |value| text(self.dwarf, &self.root.unit, value);
        let mut path = text(file.path_name());
        if path.starts_with('/') {
            return Some(path);
        }
        if let Some(dir) = file.directory(header) {
            path = format!("{}/{path}", text(dir));
        }
        if !self.directory.is_empty() && !path.starts_with('/') {
            path = format!("{}/{path}", self.directory);
        }
        Some(path)
    }
}
