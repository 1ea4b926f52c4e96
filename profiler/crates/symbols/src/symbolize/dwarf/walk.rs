//! The functions around addresses, from the entries of one unit.

use super::bytes::PagedBytes;
use super::limit::{DwarfError, WorkLimit};
use super::unit::{Attr, Dwarf, Unit};
use gimli::{AttributeValue, UnitOffset};

/// Most functions inlined into each other at one address.
const MAX_INLINED: usize = 256;

/// One function of a chain: where it is described, and from where it was called
/// when it is inlined.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainLink {
    pub offset: UnitOffset,
    pub call_file: u64,
    pub call_line: u32,
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
        entries: &mut gimli::EntriesRaw<'_, PagedBytes<'a>>,
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
pub(super) struct UnitWalk<'d, 'a, 'u> {
    dwarf: &'d Dwarf<'a>,
    unit: &'u Unit<'a>,
    addrs: &'u [u64],
    /// For each address the functions around it, outermost first.
    chains: Vec<Vec<ChainLink>>,
    /// The functions that the walk is in: depth, and the addresses whose
    /// outermost function each is.
    inside: Vec<(isize, Vec<usize>)>,
    named: usize,
}

impl<'d, 'a, 'u> UnitWalk<'d, 'a, 'u> {
    /// The functions around each of some addresses (ascending), outermost first.
    pub(super) fn run(
        dwarf: &'d Dwarf<'a>,
        unit: &'u Unit<'a>,
        addrs: &'u [u64],
        clock: &mut WorkLimit,
    ) -> Result<Vec<Vec<ChainLink>>, DwarfError> {
        let mut walk = Self {
            dwarf,
            unit,
            addrs,
            chains: vec![Vec::new(); addrs.len()],
            inside: Vec::new(),
            named: 0,
        };
        walk.walk(false, clock)?;
        if walk.named < addrs.len() {
            // Members of local classes are described within the function around those.
            walk.walk(true, clock)?;
        }
        Ok(walk.chains)
    }

    /// Walks over the functions, and with `nested` also over those within them.
    fn walk(&mut self, nested: bool, clock: &mut WorkLimit) -> Result<(), DwarfError> {
        let unit = self.unit;
        self.inside.clear();
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
                    if let (false, Some(sibling)) =
                        (matched || nested, entry.sibling.filter(|s| *s > next))
                    {
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
            self.chains[i].push(ChainLink {
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
                chain.push(ChainLink {
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
