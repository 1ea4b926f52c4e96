//! Text of DWARF: names of functions, source files and lines.

use super::dwarf::{Attr, Dwarf, DwarfError, Unit, WorkLimit};
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

/// Names of functions, by where they are described.
pub(super) struct Names<'d, 'a> {
    dwarf: &'d Dwarf<'a>,
    offsets: &'d [usize],
    /// Units parsed last, the newest at the end.
    units: Vec<(usize, Rc<Unit<'a>>)>,
    known: FxHashMap<(usize, usize), String>,
}

impl<'d, 'a> Names<'d, 'a> {
    pub(super) fn new(dwarf: &'d Dwarf<'a>, offsets: &'d [usize]) -> Self {
        Self {
            dwarf,
            offsets,
            units: Vec::new(),
            known: FxHashMap::default(),
        }
    }

    /// The unit at an offset of `.debug_info`.
    pub(super) fn unit(&mut self, offset: usize) -> gimli::Result<Rc<Unit<'a>>> {
        if let Some((_, unit)) = self.units.iter().find(|(o, _)| *o == offset) {
            return Ok(Rc::clone(unit));
        }
        let header = self.dwarf.unit_header(DebugInfoOffset(offset))?;
        let unit = Rc::new(self.dwarf.unit(header)?);
        if self.units.len() >= UNIT_CACHE {
            self.units.remove(0);
        }
        self.units.push((offset, Rc::clone(&unit)));
        Ok(unit)
    }

    /// The name of the function described at an offset: its linkage name if that
    /// is mangled, and so says more, else its plain name (a C function's linkage
    /// name differs only where an `asm` label renames it, as glibc's `__GI_...`);
    /// empty if it has none or is not readable.
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
        for _ in 0..MAX_ORIGINS {
            let unit = self.unit(unit_at)?;
            let mut entries = unit.entries_raw(Some(offset))?;
            let Some(abbrev) = entries.read_abbreviation()? else {
                break;
            };
            let mut origin = None;
            for spec in abbrev.attributes() {
                let attr = entries.read_attribute(*spec)?;
                match attr.name() {
                    gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                        let name = text(self.dwarf, &unit, attr.value());
                        if demangle::is_mangled(&name) {
                            return Ok(name);
                        }
                        linkage = name;
                    }
                    gimli::DW_AT_name if plain.is_empty() => {
                        plain = text(self.dwarf, &unit, attr.value());
                    }
                    gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                        origin = Some(attr.value());
                    }
                    _ => {}
                }
            }
            match origin {
                Some(AttributeValue::UnitRef(at)) => offset = at,
                Some(AttributeValue::DebugInfoRef(DebugInfoOffset(at))) => {
                    let after = self.offsets.partition_point(|o| *o <= at);
                    let Some(&owner) = after.checked_sub(1).and_then(|i| self.offsets.get(i))
                    else {
                        break;
                    };
                    unit_at = owner;
                    offset = UnitOffset(at - owner);
                }
                _ => break,
            }
        }
        Ok(if plain.is_empty() { linkage } else { plain })
    }
}

/// A string attribute; empty where it cannot be read.
fn text(dwarf: &Dwarf<'_>, unit: &Unit<'_>, value: Attr<'_>) -> String {
    let Ok(slice) = dwarf.attr_string(unit, value) else {
        return String::new();
    };
    let bytes = slice.slice();
    let bytes = bytes.get(..MAX_TEXT).unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}

/// Source positions of a unit's addresses.
pub(super) struct Lines<'d, 'a, 'u> {
    dwarf: &'d Dwarf<'a>,
    unit: &'u Unit<'a>,
    /// Sorted.
    addrs: &'u [u64],
    /// For each address file index and line.
    rows: Vec<Option<(u64, u32)>>,
}

impl<'d, 'a, 'u> Lines<'d, 'a, 'u> {
    pub(super) fn new(dwarf: &'d Dwarf<'a>, unit: &'u Unit<'a>, addrs: &'u [u64]) -> Self {
        Self {
            dwarf,
            unit,
            addrs,
            rows: vec![None; addrs.len()],
        }
    }

    /// Runs the line program once; each row covers the addresses up to the next.
    pub(super) fn run(&mut self, clock: &mut WorkLimit) -> Result<(), DwarfError> {
        let Some(program) = self.unit.line_program.clone() else {
            return Ok(());
        };
        let mut rows = program.rows();
        let mut last: Option<(u64, u64, u32)> = None;
        while let Some((_, row)) = rows.next_row()? {
            clock.tick()?;
            if let Some((begin, file, line)) = last {
                let first = self.addrs.partition_point(|&a| a < begin);
                let end = self.addrs.partition_point(|&a| a < row.address());
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

    pub(super) fn of_address(&self, slot: usize) -> Option<(String, u32)> {
        let (file, line) = (*self.rows.get(slot)?)?;
        Some((self.file(file)?, line))
    }

    /// Path of a file of the line program, joined to its directory.
    pub(super) fn file(&self, index: u64) -> Option<String> {
        let header = self.unit.line_program.as_ref()?.header();
        let file = header.file(index)?;
        let mut path = text(self.dwarf, self.unit, file.path_name());
        if path.starts_with('/') {
            return Some(path);
        }
        if let Some(dir) = file.directory(header) {
            path = format!("{}/{path}", text(self.dwarf, self.unit, dir));
        }
        if let (Some(dir), false) = (self.unit.comp_dir, path.starts_with('/')) {
            path = format!("{}/{path}", dir.to_string_lossy());
        }
        Some(path)
    }
}
