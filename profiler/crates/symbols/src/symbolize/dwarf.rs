//! Inlined functions and source lines, from DWARF 2 to 5.
//!
//! Made for hostile files of any size. No tree is kept: a unit is walked once
//! for all addresses of a batch, without recursion, and only the chain of
//! functions around each address is remembered; ranges, names and lines are
//! tested as they come. What stays from batch to batch is the bounded list of
//! the units' address ranges. Each batch has a deadline.
//!
//! Limits: split DWARF (`.dwo`, `.dwp`) and supplementary files (`dwz -m`) are
//! not followed; functions described there have their symbol's name only.

use super::dwarf_text::{Lines, Names};
use super::elf::ElfInfo;
use super::sections::{Sections, SectionsError};
use gimli::{AttributeValue, DebugInfoOffset, EndianSlice, NativeEndian, UnitOffset};
use std::fs::File;
use std::time::Instant;

pub(super) type Slice<'a> = EndianSlice<'a, NativeEndian>;
pub(super) type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;
pub(super) type Unit<'a> = gimli::Unit<Slice<'a>>;
pub(super) type Attr<'a> = AttributeValue<Slice<'a>>;

/// Most address ranges kept for one file (32 bytes each). Neighbouring ranges of
/// a unit are joined, so linkers leave far fewer.
const MAX_RANGES: usize = 256 << 10;
/// Most units whose offset is kept (8 bytes each).
const MAX_UNITS: usize = 1 << 20;
/// Most units that may claim one address.
const MAX_CANDIDATES: usize = 16;
/// Most functions inlined into each other at one address.
const MAX_INLINED: usize = 256;
/// Steps between two looks at the clock.
const STEPS: u32 = 4096;

/// Why DWARF was not used, or not to the end.
#[derive(Debug, thiserror::Error)]
pub(super) enum DwarfError {
    #[error("debug information not usable: {0}")]
    Sections(#[from] SectionsError),
    #[error("debug information corrupt: {0}")]
    Corrupt(#[from] gimli::Error),
    #[error("debug information corrupt: too many units or ranges")]
    TooMany,
    #[error("debug information takes too long to read")]
    Deadline,
}

/// One function at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DwarfFunction {
    /// Linkage name, else plain name, else empty.
    pub name: String,
    /// Source file and line of the address (innermost) or of the call to the
    /// next function.
    pub source: Option<(String, u32)>,
}

/// Counts work and stops it at the deadline.
pub(super) struct WorkLimit {
    left: u32,
    deadline: Instant,
}

impl WorkLimit {
    pub(super) fn until(deadline: Instant) -> Self {
        Self {
            left: STEPS,
            deadline,
        }
    }

    pub(super) fn tick(&mut self) -> Result<(), DwarfError> {
        self.left -= 1;
        if self.left == 0 {
            self.left = STEPS;
            self.check()?;
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), DwarfError> {
        if Instant::now() >= self.deadline {
            return Err(DwarfError::Deadline);
        }
        Ok(())
    }
}

/// Addresses that a unit says it covers.
#[derive(Clone, Copy, Debug)]
struct UnitRange {
    begin: u64,
    end: u64,
    /// Largest end of this range and all before it.
    max_end: u64,
    /// Offset of the unit in `.debug_info`.
    unit: usize,
}

/// The debug information of one file.
#[derive(Debug)]
pub(super) struct DwarfFile {
    /// `None` while they are not held, see [`DwarfFile::release`].
    sections: Option<Sections>,
    /// Sorted by begin.
    ranges: Vec<UnitRange>,
    /// Offsets of all units, ascending.
    units: Vec<usize>,
}

impl DwarfFile {
    /// Reads the file's sections and lists its units.
    pub(super) fn open(
        file: &File,
        info: &ElfInfo,
        clock: &mut WorkLimit,
    ) -> Result<Self, DwarfError> {
        let mut new = Self {
            sections: Some(Sections::open(file, info, clock)?),
            ranges: Vec::new(),
            units: Vec::new(),
        };
        let (mut ranges, units) = list_units(&new.dwarf(), clock)?;
        sort_and_join(&mut ranges);
        new.ranges = ranges;
        new.units = units;
        Ok(new)
    }

    /// Bytes of heap held.
    pub(super) fn memory(&self) -> u64 {
        let lists = self.ranges.capacity() * size_of::<UnitRange>()
            + self.units.capacity() * size_of::<usize>();
        self.sections.as_ref().map_or(0, Sections::memory) + lists as u64
    }

    /// Drops what can be read again, and keeps what takes time to make.
    pub(super) fn release(&mut self) {
        self.sections = None;
    }

    /// Reads the sections again if they were released.
    pub(super) fn reload(
        &mut self,
        file: &File,
        info: &ElfInfo,
        clock: &WorkLimit,
    ) -> Result<(), DwarfError> {
        if self.sections.is_none() {
            self.sections = Some(Sections::open(file, info, clock)?);
        }
        Ok(())
    }

    /// Finds the functions around each address, outermost first. Calls `found`
    /// with the address's index; not for addresses without a function.
    pub(super) fn lookup(
        &self,
        vaddrs: &[u64],
        lines: bool,
        clock: &mut WorkLimit,
        mut found: impl FnMut(usize, Vec<DwarfFunction>),
    ) -> Result<(), DwarfError> {
        let mut work: Vec<(usize, u64, usize)> = Vec::new();
        for (i, &addr) in vaddrs.iter().enumerate() {
            work.extend(self.candidates(addr).map(|unit| (unit, addr, i)));
        }
        work.sort_unstable();
        let dwarf = self.dwarf();
        let mut names = Names::new(&dwarf, &self.units);
        let mut done = vec![false; vaddrs.len()];
        for group in work.chunk_by(|a, b| a.0 == b.0) {
            let open: Vec<(u64, usize)> = group
                .iter()
                .filter(|(_, _, i)| !done[*i])
                .map(|&(_, addr, i)| (addr, i))
                .collect();
            let Some(&(offset, ..)) = group.first() else {
                continue;
            };
            clock.check()?;
            let unit = names.unit(offset)?;
            let mut walk = UnitWalk::new(&dwarf, &unit, &open);
            walk.run(clock)?;
            let mut lines = lines.then(|| Lines::new(&dwarf, &unit, &walk.addrs));
            if let Some(lines) = &mut lines {
                lines.run(clock)?;
            }
            for (slot, chain) in walk.chains.iter().enumerate() {
                if let (Some(&(_, i)), false) = (open.get(slot), chain.is_empty()) {
                    done[i] = true;
                    found(
                        i,
                        functions(chain, slot, offset, &mut names, lines.as_ref()),
                    );
                }
            }
        }
        Ok(())
    }

    fn dwarf(&self) -> Dwarf<'_> {
        let load = |id: gimli::SectionId| {
            let sections = self.sections.as_ref();
            let data = sections.map_or(&[][..], |sections| sections.get(id.name()));
            Ok::<_, std::convert::Infallible>(EndianSlice::new(data, NativeEndian))
        };
        match gimli::Dwarf::load(load) {
            Ok(dwarf) => dwarf,
        }
    }

    /// Units that may describe an address.
    fn candidates(&self, addr: u64) -> impl Iterator<Item = usize> {
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

/// Offsets and address ranges of all units, from `.debug_aranges` where a unit
/// has any there, else from the unit itself.
fn list_units(
    dwarf: &Dwarf<'_>,
    clock: &mut WorkLimit,
) -> Result<(Vec<UnitRange>, Vec<usize>), DwarfError> {
    let mut aranges = Vec::new();
    let mut headers = dwarf.debug_aranges.headers();
    while let Some(header) = headers.next()? {
        aranges.push((header.debug_info_offset().0, header.offset()));
        bounded(aranges.len(), MAX_UNITS)?;
    }
    aranges.sort_unstable_by_key(|(unit, _)| *unit);
    let mut ranges = Vec::new();
    let mut units = Vec::new();
    let mut headers = dwarf.units();
    while let Some(header) = headers.next()? {
        clock.check()?;
        let Some(DebugInfoOffset(offset)) = header.debug_info_offset() else {
            continue;
        };
        units.push(offset);
        bounded(units.len(), MAX_UNITS)?;
        if !matches!(header.type_(), gimli::UnitType::Compilation) {
            continue;
        }
        let first = aranges.partition_point(|(unit, _)| *unit < offset);
        let own = aranges
            .iter()
            .skip(first)
            .take_while(|(unit, _)| *unit == offset);
        let count = ranges.len();
        for (_, at) in own {
            let mut entries = dwarf.debug_aranges.header(*at)?.entries();
            while let Some(entry) = entries.next()? {
                push_range(&mut ranges, entry.range(), offset, clock)?;
            }
        }
        if ranges.len() == count {
            let unit = dwarf.unit(header)?;
            let mut list = dwarf.unit_ranges(&unit)?;
            while let Some(range) = list.next()? {
                push_range(&mut ranges, range, offset, clock)?;
            }
        }
    }
    Ok((ranges, units))
}

fn bounded(len: usize, limit: usize) -> Result<(), DwarfError> {
    if len > limit {
        return Err(DwarfError::TooMany);
    }
    Ok(())
}

fn push_range(
    ranges: &mut Vec<UnitRange>,
    range: gimli::Range,
    unit: usize,
    clock: &mut WorkLimit,
) -> Result<(), DwarfError> {
    clock.tick()?;
    // Address 0: code that the linker removed.
    if range.begin == 0 || range.begin >= range.end {
        return Ok(());
    }
    match ranges.last_mut() {
        Some(last) if last.unit == unit && (last.end..last.end + 16).contains(&range.begin) => {
            last.end = range.end;
        }
        _ => ranges.push(UnitRange {
            begin: range.begin,
            end: range.end,
            max_end: 0,
            unit,
        }),
    }
    bounded(ranges.len(), MAX_RANGES)
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

/// One function of a chain: where it is described, and from where it was called
/// when it is inlined.
#[derive(Clone, Copy, Debug)]
struct Link {
    offset: UnitOffset,
    call_file: u64,
    call_line: u32,
}

/// What of an entry matters here.
#[derive(Default)]
struct FunctionEntry<'a> {
    low: Option<Attr<'a>>,
    high: Option<Attr<'a>>,
    ranges: Option<Attr<'a>>,
    sibling: Option<UnitOffset>,
    call_file: u64,
    call_line: u32,
}

impl<'a> FunctionEntry<'a> {
    fn read(
        entries: &mut gimli::EntriesRaw<'_, Slice<'a>>,
        abbrev: &gimli::Abbreviation,
    ) -> gimli::Result<Self> {
        let mut entry = Self::default();
        for spec in abbrev.attributes() {
            let attr = entries.read_attribute(*spec)?;
            match attr.name() {
                gimli::DW_AT_low_pc => entry.low = Some(attr.value()),
                gimli::DW_AT_high_pc => entry.high = Some(attr.value()),
                gimli::DW_AT_ranges => entry.ranges = Some(attr.value()),
                gimli::DW_AT_sibling => {
                    if let AttributeValue::UnitRef(offset) = attr.value() {
                        entry.sibling = Some(offset);
                    }
                }
                gimli::DW_AT_call_file => {
                    entry.call_file = match attr.value() {
                        AttributeValue::FileIndex(index) => index,
                        other => other.udata_value().unwrap_or(0),
                    };
                }
                gimli::DW_AT_call_line => {
                    let line = attr.value().udata_value().unwrap_or(0);
                    entry.call_line = u32::try_from(line).unwrap_or(0);
                }
                _ => {}
            }
        }
        Ok(entry)
    }
}

/// A walk over one unit's entries for a sorted list of addresses.
struct UnitWalk<'d, 'a, 'u> {
    dwarf: &'d Dwarf<'a>,
    unit: &'u Unit<'a>,
    addrs: Vec<u64>,
    /// For each address the functions around it, outermost first.
    chains: Vec<Vec<Link>>,
    /// The functions that the walk is in: depth, and the addresses whose
    /// outermost function each is.
    inside: Vec<(isize, Vec<usize>)>,
    named: usize,
}

impl<'d, 'a, 'u> UnitWalk<'d, 'a, 'u> {
    fn new(dwarf: &'d Dwarf<'a>, unit: &'u Unit<'a>, open: &[(u64, usize)]) -> Self {
        Self {
            dwarf,
            unit,
            addrs: open.iter().map(|(addr, _)| *addr).collect(),
            chains: vec![Vec::new(); open.len()],
            inside: Vec::new(),
            named: 0,
        }
    }

    fn run(&mut self, clock: &mut WorkLimit) -> Result<(), DwarfError> {
        let unit = self.unit;
        let mut entries = unit.entries_raw(None)?;
        // Depth at which `entries` was started.
        let mut base = 0;
        while !entries.is_empty() {
            clock.tick()?;
            let depth = base + entries.next_depth();
            let offset = entries.next_offset();
            let Some(abbrev) = entries.read_abbreviation()? else {
                continue;
            };
            self.inside.pop_if(|(d, _)| *d >= depth);
            if self.inside.is_empty() && self.named == self.addrs.len() {
                return Ok(());
            }
            match abbrev.tag() {
                gimli::DW_TAG_subprogram => {
                    let entry = FunctionEntry::read(&mut entries, abbrev)?;
                    let matched = self.enter(&entry, offset, depth, clock)?;
                    let next = entries.next_offset();
                    if let (false, Some(sibling)) = (matched, entry.sibling.filter(|s| *s > next)) {
                        entries = unit.entries_raw(Some(sibling))?;
                        base = depth;
                    }
                }
                gimli::DW_TAG_inlined_subroutine if !self.inside.is_empty() => {
                    let entry = FunctionEntry::read(&mut entries, abbrev)?;
                    self.inline(&entry, offset, clock)?;
                }
                _ => entries.skip_attributes(abbrev.attributes())?,
            }
        }
        Ok(())
    }

    /// Enters a function; `false` if it contains none of the addresses.
    fn enter(
        &mut self,
        entry: &FunctionEntry<'a>,
        offset: UnitOffset,
        depth: isize,
        clock: &mut WorkLimit,
    ) -> Result<bool, DwarfError> {
        let all: Vec<usize> = (0..self.addrs.len()).collect();
        let mut matched = self.matching(entry, &all, clock)?;
        // Where functions overlap the first one described counts.
        matched.retain(|&i| self.chains[i].is_empty());
        if matched.is_empty() {
            return Ok(false);
        }
        for &i in &matched {
            self.chains[i].push(Link {
                offset,
                call_file: 0,
                call_line: 0,
            });
        }
        self.named += matched.len();
        self.inside.push((depth, matched));
        Ok(true)
    }

    /// Adds an inlined function to the addresses in it.
    fn inline(
        &mut self,
        entry: &FunctionEntry<'a>,
        offset: UnitOffset,
        clock: &mut WorkLimit,
    ) -> Result<(), DwarfError> {
        let Some((_, among)) = self.inside.last() else {
            return Ok(());
        };
        for i in self.matching(entry, among, clock)? {
            let chain = &mut self.chains[i];
            if chain.len() < MAX_INLINED {
                chain.push(Link {
                    offset,
                    call_file: entry.call_file,
                    call_line: entry.call_line,
                });
            }
        }
        Ok(())
    }

    /// Those of `among` (ascending indices of addresses) that an entry covers.
    fn matching(
        &self,
        entry: &FunctionEntry<'a>,
        among: &[usize],
        clock: &mut WorkLimit,
    ) -> Result<Vec<usize>, DwarfError> {
        let mut matched = Vec::new();
        let mut take = |begin: u64, end: u64| {
            let first = among.partition_point(|&i| self.addrs[i] < begin);
            let inside = among
                .iter()
                .skip(first)
                .take_while(|&&i| self.addrs[i] < end);
            matched.extend(inside);
        };
        if let Some(ranges) = entry.ranges {
            if let Some(mut list) = self.dwarf.attr_ranges(self.unit, ranges)? {
                while let Some(range) = list.next()? {
                    clock.tick()?;
                    take(range.begin, range.end);
                }
            }
        } else if let (Some(low), Some(high)) = (entry.low, entry.high)
            && let Some(begin) = self.dwarf.attr_address(self.unit, low)?
        {
            let end = match high.udata_value() {
                Some(size) => begin.saturating_add(size),
                None => self.dwarf.attr_address(self.unit, high)?.unwrap_or(0),
            };
            take(begin, end);
        }
        matched.sort_unstable();
        matched.dedup();
        Ok(matched)
    }
}

/// The named functions of a chain. Each call site is where the function before
/// it in the chain stands.
fn functions(
    chain: &[Link],
    slot: usize,
    unit: usize,
    names: &mut Names<'_, '_>,
    lines: Option<&Lines<'_, '_, '_>>,
) -> Vec<DwarfFunction> {
    let source = |i: usize| {
        let lines = lines?;
        match chain.get(i + 1) {
            Some(callee) => lines.file(callee.call_file).map(|f| (f, callee.call_line)),
            None => lines.of_address(slot),
        }
    };
    let one = |(i, link): (usize, &Link)| DwarfFunction {
        name: names.get(unit, link.offset),
        source: source(i),
    };
    chain.iter().enumerate().map(one).collect()
}
