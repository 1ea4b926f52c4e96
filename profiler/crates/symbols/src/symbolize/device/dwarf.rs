//! Lines and inlined functions from a module's DWARF (4 and 5).
//!
//! All units are read once, when the module is. Each look at an entry is charged to the budget,
//! also a repeated one. So tables that refer to each other, or that thousands of units share, end
//! the reading and not the machine.

use super::dwarf_entry::{
    Attr, Dwarf, DwarfEntry, FunctionNames, MAX_ABBREVIATIONS, Slice, Unit, file_index, file_path,
    line_header_size, small, table_size,
};
use super::limits::{Exhausted, MAX_ROWS, MAX_SCOPES, StepBudget};
use super::line_table::{CodeScope, LineRow, LineTable, Position, ScopeRange};
use super::module::{Problems, display};
use super::names::{TextId, TextsBuilder};
use super::relocate::NAMELESS;
use gimli::{AttributeValue, EndianSlice, LittleEndian, Section as _, UnitOffset};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Largest header of a line table, in bytes.
const MAX_LINE_HEADER: u64 = 1 << 20;
/// Most references followed for a name.
const MAX_ORIGINS: usize = 16;
/// Most functions inlined into each other.
const MAX_DEPTH: usize = 256;
/// Where a piece of code is taken to lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeSpan<'s> {
    /// The kernel's name.
    pub(super) name: &'s str,
    pub(super) base: u64,
    pub(super) size: u32,
}

/// Why a unit was not read, or not to the end.
enum Stop {
    /// The unit is corrupt: the next may be sound.
    Unit,
    /// Nothing more is read.
    All,
}

impl From<gimli::Error> for Stop {
    fn from(_: gimli::Error) -> Self {
        Self::Unit
    }
}

impl From<Exhausted> for Stop {
    fn from(_: Exhausted) -> Self {
        Self::All
    }
}

/// The line table of each span, from the debug sections that `section` gives.
pub(super) fn line_tables<'d>(
    section: &dyn Fn(&str) -> &'d [u8],
    spans: &[CodeSpan<'_>],
    problems: &mut Problems,
    budget: &mut StepBudget,
) -> Vec<LineTable> {
    let load = |id: gimli::SectionId| {
        let data = EndianSlice::new(section(id.name()), LittleEndian);
        Ok::<_, std::convert::Infallible>(data)
    };
    let Ok(dwarf) = gimli::Dwarf::load(load);
    let mut by_base: Vec<(u64, u32, usize)> = spans
        .iter()
        .enumerate()
        .map(|(i, span)| (span.base, span.size, i))
        .collect();
    by_base.sort_unstable();
    let mut reader = DwarfReader {
        dwarf: &dwarf,
        by_base,
        names: names(spans),
        sizes: spans.iter().map(|span| span.size).collect(),
        nameless: None,
        parts: spans.iter().map(|_| CodeLines::default()).collect(),
        texts: TextsBuilder::new(),
        rows: 0,
        scopes: 0,
        budget,
    };
    let mut headers = dwarf.units();
    loop {
        let header = match headers.next() {
            Ok(Some(header)) => header,
            Ok(None) => break,
            Err(_) => {
                problems.debug_units = problems.debug_units.saturating_add(1);
                break;
            }
        };
        match reader.unit(header) {
            Ok(()) => {}
            Err(Stop::Unit) => problems.debug_units = problems.debug_units.saturating_add(1),
            Err(Stop::All) => {
                problems.debug_units = problems.debug_units.saturating_add(1);
                break;
            }
        }
    }
    let texts = reader.texts.build();
    let tables = reader.parts.into_iter();
    tables
        .map(|p| LineTable::new(p.rows, p.scopes, &p.ranges, texts.clone()))
        .collect()
}

/// Spans by name. IGC gives functions their readable names.
fn names(spans: &[CodeSpan<'_>]) -> FxHashMap<String, Option<usize>> {
    let mut names = FxHashMap::default();
    for (i, span) in spans.iter().enumerate() {
        let twice = |part: &mut Option<usize>| *part = None;
        names
            .entry(display(span.name))
            .and_modify(twice)
            .or_insert(Some(i));
    }
    names
}

/// What was read of one piece of code.
#[derive(Default)]
struct CodeLines {
    rows: Vec<LineRow>,
    scopes: Vec<CodeScope>,
    ranges: Vec<ScopeRange>,
}

struct DwarfReader<'r, 'd> {
    dwarf: &'r Dwarf<'d>,
    /// Begin, size and index of the spans, by begin.
    by_base: Vec<(u64, u32, usize)>,
    /// Spans by name, readable; `None` where several have it.
    names: FxHashMap<String, Option<usize>>,
    /// Sizes of the spans.
    sizes: Vec<u32>,
    /// The span that the unit's addresses at [`NAMELESS`] are in.
    nameless: Option<usize>,
    parts: Vec<CodeLines>,
    texts: TextsBuilder,
    rows: usize,
    scopes: usize,
    budget: &'r mut StepBudget,
}

/// A function that the walk is in.
#[derive(Clone, Copy)]
struct OpenFunction {
    depth: isize,
    part: usize,
    scope: u32,
}

/// What a function is called, and where it stands.
#[derive(Clone, Copy)]
struct Origin {
    name: TextId,
    declared: Position,
}

/// What is remembered while a unit is read.
struct UnitNames<'u, 'd> {
    unit: &'u Unit<'d>,
    files: FxHashMap<u64, TextId>,
    origins: FxHashMap<usize, Origin>,
}

impl<'r, 'd> DwarfReader<'r, 'd> {
    fn unit(&mut self, header: gimli::UnitHeader<Slice<'d>>) -> Result<(), Stop> {
        let abbreviations = self.abbreviations(&header)?;
        self.check_line_header(&header, &abbreviations)?;
        let unit = Unit::new_with_abbreviations(self.dwarf, header, abbreviations)?;
        let mut known = UnitNames {
            unit: &unit,
            files: FxHashMap::default(),
            origins: FxHashMap::default(),
        };
        self.nameless = match unit.low_pc {
            NAMELESS.. => self.kernel_of(&unit)?,
            _ => None,
        };
        self.run_lines(&mut known)?;
        self.walk(&mut known)
    }

    /// The span with the name of one of the unit's functions.
    fn kernel_of(&mut self, unit: &Unit<'d>) -> Result<Option<usize>, Stop> {
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            self.budget.spend(1)?;
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            self.budget.spend(abbreviation.attributes().len() as u64)?;
            let mut names = FunctionNames::default();
            for spec in abbreviation.attributes() {
                let attribute = entries.read_attribute(*spec)?;
                if abbreviation.tag() == gimli::DW_TAG_subprogram {
                    names.take(attribute.name(), self.dwarf, unit, attribute.value());
                }
            }
            for name in [names.plain, names.linkage] {
                self.budget.spend(name.len() as u64)?;
                if let Some(part) = self.names.get(&display(&name)) {
                    return Ok(*part);
                }
            }
        }
        Ok(None)
    }

    /// A unit's abbreviations, if their table is no larger than it may be.
    fn abbreviations(
        &mut self,
        header: &gimli::UnitHeader<Slice<'d>>,
    ) -> Result<Arc<gimli::Abbreviations>, Stop> {
        let all = self.dwarf.debug_abbrev.reader().slice();
        let table = all
            .get(header.debug_abbrev_offset().0..)
            .unwrap_or_default();
        let size = table_size(table).ok_or(Stop::Unit);
        // What was looked at is paid for even if it was in vain.
        self.budget
            .spend(*size.as_ref().unwrap_or(&MAX_ABBREVIATIONS) as u64)?;
        size?;
        Ok(self.dwarf.abbreviations(header)?)
    }

    /// Refuses a unit whose line table's header is larger than it may be.
    fn check_line_header(
        &mut self,
        header: &gimli::UnitHeader<Slice<'d>>,
        abbreviations: &gimli::Abbreviations,
    ) -> Result<(), Stop> {
        let mut entries = header.entries_raw(abbreviations, None)?;
        let Some(abbreviation) = entries.read_abbreviation()? else {
            return Err(Stop::Unit);
        };
        self.budget.spend(abbreviation.attributes().len() as u64)?;
        for spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(*spec)?;
            if let AttributeValue::DebugLineRef(offset) = attribute.value() {
                let lines = self.dwarf.debug_line.reader().slice();
                let size = line_header_size(lines.get(offset.0..).unwrap_or_default());
                let size = size.filter(|s| *s <= MAX_LINE_HEADER).ok_or(Stop::Unit)?;
                self.budget.spend(size)?;
            }
        }
        Ok(())
    }

    /// The span that an address is in, and the offset there. An end may be just
    /// behind the span.
    fn place(&self, address: u64) -> Option<(usize, u32)> {
        if let Some(offset) = address.checked_sub(NAMELESS) {
            let part = self.nameless?;
            let offset = u32::try_from(offset).ok()?;
            return (offset <= *self.sizes.get(part)?).then_some((part, offset));
        }
        let after = self.by_base.partition_point(|(base, ..)| *base <= address);
        let (base, size, part) = self.by_base.get(after.checked_sub(1)?)?;
        let offset = u32::try_from(address - base).ok()?;
        (offset <= *size).then_some((*part, offset))
    }

    /// Runs a unit's line program.
    fn run_lines(&mut self, known: &mut UnitNames<'_, 'd>) -> Result<(), Stop> {
        let Some(program) = known.unit.line_program.clone() else {
            return Ok(());
        };
        let size = program.header().raw_program_buf().len();
        self.budget.spend(size as u64)?;
        let mut rows = program.rows();
        // The piece of code that the sequence began in.
        let mut part: Option<usize> = None;
        while let Some((_, row)) = rows.next_row()? {
            self.budget.spend(1)?;
            let (address, ends) = (row.address(), row.end_sequence());
            let number = |n: u64| u32::try_from(n).unwrap_or(0);
            let line = row.line().map_or(0, |line| number(line.get()));
            let column = match row.column() {
                gimli::ColumnType::LeftEdge => 0,
                gimli::ColumnType::Column(column) => number(column.get()),
            };
            let file = row.file_index();
            let placed = self
                .place(address)
                .filter(|(p, _)| *part.get_or_insert(*p) == *p);
            if ends {
                part = None;
            }
            let Some((place, offset)) = placed else {
                continue;
            };
            if self.rows >= MAX_ROWS {
                return Err(Stop::All);
            }
            self.rows += 1;
            let file = match ends {
                true => TextId::NONE,
                false => self.file(known, file)?,
            };
            if let Some(part) = self.parts.get_mut(place) {
                part.rows.push(LineRow {
                    offset,
                    file,
                    line,
                    column,
                });
            }
        }
        Ok(())
    }

    /// The path of a file of the unit's line table.
    fn file(&mut self, known: &mut UnitNames<'_, 'd>, index: u64) -> Result<TextId, Stop> {
        if let Some(id) = known.files.get(&index) {
            return Ok(*id);
        }
        let path = file_path(self.dwarf, known.unit, index).unwrap_or_default();
        self.budget.spend(path.len() as u64 + 1)?;
        let id = self.texts.add(&path);
        known.files.insert(index, id);
        Ok(id)
    }

    /// Walks a unit's entries without recursion.
    fn walk(&mut self, known: &mut UnitNames<'_, 'd>) -> Result<(), Stop> {
        let unit = known.unit;
        let mut entries = unit.entries_raw(None)?;
        let mut open: Vec<OpenFunction> = Vec::new();
        while !entries.is_empty() {
            self.budget.spend(1)?;
            let (depth, offset) = (entries.next_depth(), entries.next_offset());
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            while open.pop_if(|o| o.depth >= depth).is_some() {}
            self.budget.spend(abbreviation.attributes().len() as u64)?;
            let inlined = abbreviation.tag() == gimli::DW_TAG_inlined_subroutine;
            let begins = abbreviation.tag() == gimli::DW_TAG_subprogram;
            let parent = open.last().copied().filter(|_| inlined);
            let too_deep = open.len() >= MAX_DEPTH;
            if too_deep || !(begins || parent.is_some()) {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let entry = DwarfEntry::read(&mut entries, abbreviation)?;
            let ranges = self.ranges(unit, &entry)?;
            // A function without code is a declaration or where inlined ones
            // come from.
            let part = parent.map(|p| p.part).or(ranges.first().map(|r| r.0));
            let Some(part) = part else {
                continue;
            };
            let scope = self.scope(known, offset, &entry, parent, part, &ranges)?;
            open.push(OpenFunction { depth, part, scope });
        }
        Ok(())
    }

    /// Adds a function with its ranges.
    fn scope(
        &mut self,
        known: &mut UnitNames<'_, 'd>,
        offset: UnitOffset,
        entry: &DwarfEntry<'d>,
        parent: Option<OpenFunction>,
        part: usize,
        ranges: &[(usize, u32, u32)],
    ) -> Result<u32, Stop> {
        self.scopes = self.scopes.saturating_add(1 + ranges.len());
        if self.scopes > MAX_SCOPES {
            return Err(Stop::All);
        }
        let origin = self.origin(known, offset)?;
        let (file, line, column) = entry.call;
        let call = match parent {
            Some(_) => Position {
                file: self.file(known, file)?,
                line,
                column,
            },
            None => Position::NONE,
        };
        let Some(CodeLines {
            scopes,
            ranges: all,
            ..
        }) = self.parts.get_mut(part)
        else {
            return Err(Stop::All);
        };
        let index = u32::try_from(scopes.len()).map_err(|_| Stop::All)?;
        let around = parent.and_then(|p| scopes.get(p.scope as usize));
        let depth = around.map_or(0, |s| s.depth.saturating_add(1));
        let own = ranges.iter().filter(|(p, ..)| *p == part);
        let before = all.len();
        all.extend(own.map(|&(_, start, end)| ScopeRange {
            start,
            end,
            scope: index,
        }));
        scopes.push(CodeScope {
            parent: parent.map(|p| p.scope),
            name: origin.name,
            call,
            depth,
            declared: origin.declared,
            placed: all.len() > before,
        });
        Ok(index)
    }

    /// Where a function's code is: span, begin and end.
    fn ranges(
        &mut self,
        unit: &Unit<'d>,
        entry: &DwarfEntry<'d>,
    ) -> Result<Vec<(usize, u32, u32)>, Stop> {
        let mut out = Vec::new();
        let mut add = |begin: u64, end: u64| {
            if begin < end
                && let Some((part, start)) = self.place(begin)
                && let Some((_, last)) = self.place(end).filter(|(p, _)| *p == part)
            {
                out.push((part, start, last));
            }
        };
        if let Some(ranges) = entry.ranges {
            let mut list = self.dwarf.attr_ranges(unit, ranges)?;
            let mut all = Vec::new();
            while let Some(range) = list.as_mut().map(|l| l.next()).transpose()?.flatten() {
                all.push(range);
                if all.len() > MAX_SCOPES {
                    return Err(Stop::All);
                }
            }
            all.iter().for_each(|range| add(range.begin, range.end));
            self.budget.spend(all.len() as u64)?;
        } else if let (Some(low), Some(high)) = (entry.low, entry.high)
            && let Some(begin) = self.dwarf.attr_address(unit, low)?
        {
            let end = match high.udata_value() {
                Some(size) => begin.saturating_add(size),
                None => self.dwarf.attr_address(unit, high)?.unwrap_or(0),
            };
            add(begin, end);
        }
        Ok(out)
    }

    /// Name and place of the function described at an offset, through the entries that it refers
    /// to: its linkage name where that has more detail.
    fn origin(&mut self, known: &mut UnitNames<'_, 'd>, start: UnitOffset) -> Result<Origin, Stop> {
        if let Some(origin) = known.origins.get(&start.0) {
            return Ok(*origin);
        }
        let unit = known.unit;
        let (mut offset, mut names) = (start, FunctionNames::default());
        let (mut file, mut line) = (None, 0);
        for _ in 0..MAX_ORIGINS {
            let mut entries = unit.entries_raw(Some(offset))?;
            let Some(abbreviation) = entries.read_abbreviation()? else {
                break;
            };
            self.budget
                .spend(abbreviation.attributes().len() as u64 + 1)?;
            let mut next = None;
            for spec in abbreviation.attributes() {
                let attribute = entries.read_attribute(*spec)?;
                let value = attribute.value();
                match attribute.name() {
                    gimli::DW_AT_decl_file if file.is_none() => file = Some(file_index(value)),
                    gimli::DW_AT_decl_line if line == 0 => line = small(value),
                    gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                        next = self.reference(unit, value);
                    }
                    name => names.take(name, self.dwarf, unit, value),
                }
            }
            // Texts in the entry itself may be long, and be read again.
            let size = entries.next_offset().0.saturating_sub(offset.0);
            self.budget.spend(size as u64 / 32)?;
            match next {
                Some(at) => offset = at,
                None => break,
            }
        }
        let name = names.best();
        self.budget.spend(name.len() as u64)?;
        let origin = Origin {
            name: self.texts.add(&display(name)),
            declared: Position {
                file: file.map_or(Ok(TextId::NONE), |f| self.file(known, f))?,
                line,
                column: 0,
            },
        };
        known.origins.insert(start.0, origin);
        Ok(origin)
    }

    /// An entry of the same unit that an attribute refers to.
    fn reference(&self, unit: &Unit<'d>, value: Attr<'d>) -> Option<UnitOffset> {
        match value {
            AttributeValue::UnitRef(offset) => Some(offset),
            AttributeValue::DebugInfoRef(offset) => offset.to_unit_offset(&unit.header),
            _ => None,
        }
    }
}
