//! Which units may describe an address.

use super::bytes::PagedBytes;
use super::limit::{DwarfError, WorkLimit};
use super::sections::Sections;
use super::unit::{Attr, Dwarf, Unit};
use gimli::{AttributeValue, DebugInfoOffset, DebugLineOffset, UnitHeader, UnitType};
use std::cell::OnceCell;

/// Most address ranges kept for one file (32 bytes each). Neighbouring ranges of
/// a unit are joined, so linkers leave far fewer.
const MAX_RANGES: usize = 256 << 10;
/// Most units whose offset is kept (8 bytes each).
const MAX_UNITS: usize = 1 << 20;
/// Most units that may claim one address.
const MAX_CANDIDATES: usize = 16;
/// Largest index of gdb's that is read.
const MAX_GDB_INDEX: usize = 64 << 20;

/// Addresses that a unit covers by its own description.
#[derive(Clone, Copy, Debug)]
struct UnitRange {
    begin: u64,
    end: u64,
    /// Largest end of this range and all before it.
    max_end: u64,
    /// Offset of the unit in `.debug_info`.
    unit: usize,
}

/// The units of a file and their addresses.
#[derive(Debug)]
pub(super) struct UnitIndex {
    /// Sorted by begin.
    ranges: Vec<UnitRange>,
    /// Offsets of all units, ascending.
    units: Vec<usize>,
}

impl UnitIndex {
    /// From `.debug_aranges` where a unit has any there, else from `.gdb_index`, else from the unit
    /// itself. If a unit is found in one of the first two, only its length is read.
    pub(super) fn new(
        sections: &Sections,
        dwarf: &Dwarf<'_>,
        clock: &mut WorkLimit,
    ) -> Result<Self, DwarfError> {
        let units = unit_starts(sections)?;
        let mut ranges = UnitRanges::default();
        let mut known = ranges.take_aranges(dwarf, clock)?;
        if known.len() < units.len() {
            known.extend(ranges.take_gdb_index(sections, clock)?);
        }
        known.sort_unstable();
        for &unit in &units {
            if known.binary_search(&unit).is_err() {
                clock.check()?;
                ranges.take_unit(dwarf, unit, clock)?;
            }
        }
        let mut ranges = ranges.0;
        sort_and_join(&mut ranges);
        Ok(Self { ranges, units })
    }

    /// Offsets of all units, ascending.
    pub(super) fn units(&self) -> &[usize] {
        &self.units
    }

    /// Bytes of heap held.
    pub(super) fn memory(&self) -> u64 {
        let ranges = self.ranges.capacity() * size_of::<UnitRange>();
        (ranges + self.units.capacity() * size_of::<usize>()) as u64
    }

    /// Units that may describe an address.
    pub(super) fn candidates(&self, addr: u64) -> impl Iterator<Item = usize> {
        let after = self.ranges.partition_point(|r| r.begin <= addr);
        let before = self.ranges.get(..after).unwrap_or_default();
        before
            .iter()
            .rev()
            .take_while(move |r| r.max_end > addr)
            .filter(move |r| r.end > addr)
            .take(MAX_CANDIDATES)
            .map(|r| r.unit)
    }
}

/// Another file that a file's DWARF refers to: what `dwz -m` moved there.
#[derive(Debug)]
pub(super) struct Supplement {
    pub(super) sections: Sections,
    /// Offsets of its units, once one was asked for.
    units: OnceCell<Vec<usize>>,
}

impl Supplement {
    pub(super) fn new(sections: Sections) -> Self {
        Self {
            sections,
            units: OnceCell::new(),
        }
    }

    /// Bytes of heap held.
    pub(super) fn memory(&self) -> u64 {
        let units = self.units.get().map_or(0, Vec::len);
        self.sections.memory() + (units * size_of::<usize>()) as u64
    }

    /// Offsets of all units, ascending; none if they cannot be read.
    pub(super) fn units(&self) -> &[usize] {
        self.units
            .get_or_init(|| unit_starts(&self.sections).unwrap_or_default())
    }
}

/// Offsets of all units of `.debug_info`, by their lengths.
fn unit_starts(sections: &Sections) -> Result<Vec<usize>, DwarfError> {
    let info = sections.get(".debug_info");
    let mut starts = Vec::new();
    let mut at = 0_usize;
    while at < info.size() {
        let mut bytes = [0; 12];
        let len = bytes.len().min(info.size() - at);
        let head = bytes.get_mut(..len).unwrap_or_default();
        // Why it cannot be read is asked for by the caller.
        let read = info.peek(at, head, sections.access());
        read.ok_or(gimli::Error::Io)?;
        let [a, b, c, d, rest @ ..] = bytes;
        let (header, length) = match u32::from_ne_bytes([a, b, c, d]) {
            u32::MAX => (12, u64::from_ne_bytes(rest)),
            length => (4, u64::from(length)),
        };
        starts.push(at);
        bounded(starts.len(), MAX_UNITS)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        at = at.saturating_add(header).saturating_add(length);
    }
    Ok(starts)
}

fn bounded(len: usize, limit: usize) -> Result<(), DwarfError> {
    if len > limit {
        return Err(DwarfError::TooMany);
    }
    Ok(())
}

/// The ranges found so far.
#[derive(Default)]
struct UnitRanges(Vec<UnitRange>);

impl UnitRanges {
    /// Takes `.debug_aranges`, and returns the units that have any there.
    fn take_aranges(
        &mut self,
        dwarf: &Dwarf<'_>,
        clock: &mut WorkLimit,
    ) -> Result<Vec<usize>, DwarfError> {
        let mut units = Vec::new();
        let mut headers = dwarf.debug_aranges.headers();
        while let Some(header) = headers.next()? {
            let unit = header.debug_info_offset().0;
            let count = self.0.len();
            let mut entries = header.entries();
            while let Some(entry) = entries.next()? {
                self.push(entry.range(), unit, clock)?;
            }
            if self.0.len() > count {
                units.push(unit);
                bounded(units.len(), MAX_UNITS)?;
            }
        }
        Ok(units)
    }

    /// Takes the address area of gdb's index (GDB manual, "Index Section Format";
    /// versions 7 to 9), and returns the units that it lists: it covers them wholly.
    fn take_gdb_index(
        &mut self,
        sections: &Sections,
        clock: &mut WorkLimit,
    ) -> Result<Vec<usize>, DwarfError> {
        let index = sections.get(".gdb_index");
        let mut header = [0; 24];
        if index.size() > MAX_GDB_INDEX || index.size() < header.len() {
            return Ok(Vec::new());
        }
        let read = |at: usize, bytes: &mut [u8]| -> Result<(), DwarfError> {
            let read = index.peek(at, bytes, sections.access());
            Ok(read.ok_or(gimli::Error::Io)?)
        };
        read(0, &mut header)?;
        let mut words = header.chunks_exact(4).map(|word| u32_le(word, 0) as usize);
        let mut next = || words.next().unwrap_or_default();
        let (version, list, types, areas, symbols) = (next(), next(), next(), next(), next());
        let sane = list <= types && types <= areas && areas <= symbols && symbols <= index.size();
        if !(7..=9).contains(&version) || !sane {
            return Ok(Vec::new());
        }
        let mut bytes = vec![0; types - list];
        read(list, &mut bytes)?;
        let units = bytes.chunks_exact(16).map(|unit| u64_le(unit, 0));
        let units: Vec<usize> = units.filter_map(|unit| unit.try_into().ok()).collect();
        let mut bytes = vec![0; symbols - areas];
        read(areas, &mut bytes)?;
        for area in bytes.chunks_exact(20) {
            let (begin, end) = (u64_le(area, 0), u64_le(area, 8));
            if let Some(&unit) = units.get(u32_le(area, 16) as usize) {
                self.push(gimli::Range { begin, end }, unit, clock)?;
            }
        }
        Ok(units)
    }

    /// Takes over a unit's description of itself.
    fn take_unit(
        &mut self,
        dwarf: &Dwarf<'_>,
        offset: usize,
        clock: &mut WorkLimit,
    ) -> Result<(), DwarfError> {
        let header = dwarf.unit_header(DebugInfoOffset(offset))?;
        if !matches!(
            header.type_(),
            UnitType::Compilation | UnitType::Skeleton(_)
        ) {
            return Ok(());
        }
        let root = Root::read(dwarf, header)?;
        let mut list = dwarf.unit_ranges(&root.unit)?;
        while let Some(range) = list.next()? {
            self.push(range, offset, clock)?;
        }
        Ok(())
    }

    fn push(
        &mut self,
        range: gimli::Range,
        unit: usize,
        clock: &mut WorkLimit,
    ) -> Result<(), DwarfError> {
        clock.tick()?;
        // Address 0: code that the linker removed.
        if range.begin == 0 || range.begin >= range.end {
            return Ok(());
        }
        match self.0.last_mut() {
            Some(last) if last.unit == unit && (last.end..last.end + 16).contains(&range.begin) => {
                last.end = range.end;
            }
            _ => self.0.push(UnitRange {
                begin: range.begin,
                end: range.end,
                max_end: 0,
                unit,
            }),
        }
        bounded(self.0.len(), MAX_RANGES)
    }
}

fn u32_le(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    u32::from_le_bytes(field.unwrap_or_default())
}

fn u64_le(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    u64::from_le_bytes(field.unwrap_or_default())
}

/// Sorts ranges by begin and joins those of one unit with nothing in between.
/// The joined range may claim a gap: the unit then finds no function there.
fn sort_and_join(ranges: &mut Vec<UnitRange>) {
    ranges.sort_unstable_by_key(|r| r.begin);
    ranges.dedup_by(|next, kept| {
        let same = next.unit == kept.unit;
        if same {
            kept.end = kept.end.max(next.end);
        }
        same
    });
    ranges.shrink_to_fit();
    let mut max_end = 0;
    for range in ranges {
        max_end = range.end.max(max_end);
        range.max_end = max_end;
    }
}

/// A unit's description of itself. Its line table is not read, nor the text of its names.
pub(super) struct Root<'a> {
    pub unit: Unit<'a>,
    /// Where its line table is.
    pub lines: Option<DebugLineOffset>,
    /// Its directory, which paths are relative to.
    pub directory: Option<Attr<'a>>,
    /// Its source file.
    pub source: Option<Attr<'a>>,
    /// The file that has its entries, of split DWARF.
    pub object: Option<Attr<'a>>,
}

impl<'a> Root<'a> {
    /// Reads the first entry of a unit.
    pub(super) fn read(
        dwarf: &Dwarf<'a>,
        header: UnitHeader<PagedBytes<'a>>,
    ) -> gimli::Result<Self> {
        let encoding = header.encoding();
        let kind = dwarf.file_type;
        let abbreviations = dwarf.abbreviations(&header)?;
        let unit = Unit {
            name: None,
            comp_dir: None,
            low_pc: 0,
            str_offsets_base: gimli::DebugStrOffsetsBase::default_for_encoding_and_file(
                encoding, kind,
            ),
            addr_base: gimli::DebugAddrBase(0),
            loclists_base: gimli::DebugLocListsBase::default_for_encoding_and_file(encoding, kind),
            rnglists_base: gimli::DebugRngListsBase::default_for_encoding_and_file(encoding, kind),
            line_program: None,
            dwo_id: match header.type_() {
                UnitType::Skeleton(id) | UnitType::SplitCompilation(id) => Some(id),
                _ => None,
            },
            abbreviations,
            header,
        };
        let mut root = Self {
            unit,
            lines: None,
            directory: None,
            source: None,
            object: None,
        };
        let low = root.take_attributes()?;
        if let Some(low) = low
            && let Some(low) = dwarf.attr_address(&root.unit, low)?
        {
            root.unit.low_pc = low;
        }
        Ok(root)
    }

    /// Takes the attributes, and returns that of the lowest address.
    fn take_attributes(&mut self) -> gimli::Result<Option<Attr<'a>>> {
        let abbreviations = std::sync::Arc::clone(&self.unit.abbreviations);
        let header = self.unit.header;
        let mut cursor = header.entries(&abbreviations);
        cursor.next_dfs()?;
        let entry = cursor.current().ok_or(gimli::Error::MissingUnitDie)?;
        let mut low = None;
        for attr in entry.attrs() {
            let value = attr.value();
            match (attr.name(), value) {
                (gimli::DW_AT_name, value) => self.source = Some(value),
                (gimli::DW_AT_comp_dir, value) => self.directory = Some(value),
                (gimli::DW_AT_low_pc, value) => low = Some(value),
                (gimli::DW_AT_dwo_name | gimli::DW_AT_GNU_dwo_name, value) => {
                    self.object = Some(value);
                }
                (gimli::DW_AT_stmt_list, AttributeValue::DebugLineRef(offset)) => {
                    self.lines = Some(offset);
                }
                (_, AttributeValue::DebugStrOffsetsBase(base)) => {
                    self.unit.str_offsets_base = base;
                }
                (_, AttributeValue::DebugAddrBase(base)) => self.unit.addr_base = base,
                (_, AttributeValue::DebugLocListsBase(base)) => self.unit.loclists_base = base,
                (_, AttributeValue::DebugRngListsBase(base)) => self.unit.rnglists_base = base,
                (gimli::DW_AT_GNU_dwo_id, AttributeValue::DwoId(id)) => {
                    self.unit.dwo_id.get_or_insert(id);
                }
                _ => {}
            }
        }
        Ok(low)
    }
}
