//! The rows of one page and their encoding as a table page, see
//! [`aiprof_common::PageHeader`] for the layout.

use super::rule::{NONE, UNSUPPORTED};
use aiprof_common::{
    CFA_REG, GROUP_BYTES, GROUP_ROWS, MAX_GROUPS, MAX_PAGE_RULES, PageHeader, Rule,
};
use std::ops::Range;

/// Longest distance that one row's delta bridges, in bytes.
const MAX_DELTA: u32 = u8::MAX as u32;
const HEADER_BYTES: usize = size_of::<PageHeader>();
const RULE_BYTES: usize = size_of::<Rule>();
/// Slots of the hash table from rule to index, twice the entries at most.
const SLOTS: usize = 2 * MAX_PAGE_RULES;

/// The rows of a page, by address, before they are encoded.
#[derive(Default)]
pub(super) struct PageRows(Vec<(u32, Rule)>);

impl PageRows {
    /// Forgets all rows.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// From `start` (offset in the page, in bytes) on, `rule` applies: rows at
    /// or after `start` are replaced, so that of overlapping ranges the one
    /// that starts last wins.
    pub(super) fn push(&mut self, start: u32, rule: Rule) {
        while self.0.last().is_some_and(|&(at, _)| at >= start) {
            self.0.pop();
        }
        if self.0.last().is_none_or(|&(_, last)| last != rule) {
            self.0.push((start, rule));
        }
    }

    /// The parts of the page, of `bytes` bytes, without a rule.
    pub(super) fn gaps(&self, bytes: u32) -> Vec<Range<u32>> {
        let gaps = self.parts(bytes).filter(|(_, rule)| *rule == NONE);
        gaps.map(|(part, _)| part).collect()
    }

    /// The parts of the page, of `bytes` bytes, whose CFA is in a register that is not
    /// followed.
    pub(super) fn by_register(&self, bytes: u32) -> Vec<(Range<u32>, Rule)> {
        let parts = self.parts(bytes);
        parts.filter(|(_, rule)| rule.kind >= CFA_REG).collect()
    }

    /// The parts of the page, of `bytes` bytes, with their rules.
    fn parts(&self, bytes: u32) -> impl Iterator<Item = (Range<u32>, Rule)> {
        let ends = self.0.iter().skip(1).map(|&(at, _)| at);
        let rows = self.0.iter().zip(ends.chain([bytes]));
        rows.map(|(&(start, rule), end)| (start..end, rule))
    }

    /// Gives parts of gaps, or of what [`PageRows::by_register`] gives, other rules; they
    /// come in order.
    pub(super) fn fill(&mut self, parts: &[(Range<u32>, Rule)]) {
        let old = std::mem::take(&mut self.0);
        let mut parts = parts.iter().peekable();
        let ends: Vec<u32> = old.iter().skip(1).map(|&(at, _)| at).collect();
        for (i, (start, rule)) in old.into_iter().enumerate() {
            self.push(start, rule);
            let end = ends.get(i).copied().unwrap_or(u32::MAX);
            while let Some((part, filling)) = parts.next_if(|(part, _)| part.start < end) {
                let open = rule == NONE || rule.kind >= CFA_REG;
                if !open || part.start < start || part.end > end {
                    continue;
                }
                self.push(part.start, *filling);
                self.push(part.end, rule);
            }
        }
    }

    /// Gives a part of the page other rules, made of those that it has.
    pub(super) fn change(&mut self, part: &Range<u32>, new: impl Fn(Rule) -> Rule) {
        let rows: Vec<_> = self.parts(u32::MAX).collect();
        self.0.clear();
        for (row, rule) in rows {
            let (from, to) = (row.start.max(part.start), row.end.min(part.end));
            if from >= to {
                self.push(row.start, rule);
                continue;
            }
            if row.start < from {
                self.push(row.start, rule);
            }
            self.push(from, new(rule));
            if to < row.end {
                self.push(to, rule);
            }
        }
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Begins a table in which the rules of these rows have a place, whatever is filled
    /// in later.
    pub(super) fn reserve(&self, encoder: &mut Encoder) {
        encoder.clear();
        for &(_, rule) in &self.0 {
            encoder.intern(rule);
        }
    }

    /// Writes the table page that [`PageRows::reserve`] began, owner and time of use left 0.
    pub(super) fn encode(&self, encoder: &mut Encoder, out: &mut Vec<u8>) {
        for &(start, rule) in &self.0 {
            encoder.add(start, rule);
        }
        encoder.write(out);
    }
}

/// Packs rows into groups.
pub(super) struct Encoder {
    rules: Vec<Rule>,
    /// Index + 1 of a rule, by hash; 0: free.
    slots: Box<[u16; SLOTS]>,
    anchors: Vec<u16>,
    groups: Vec<[u8; GROUP_BYTES]>,
    /// Rows used in the last group.
    used: usize,
    /// Where the last row starts, and its rule's index.
    last: (u32, u8),
}

impl Encoder {
    /// Empty.
    pub(super) fn new() -> Self {
        Self {
            rules: Vec::new(),
            slots: Box::new([0; SLOTS]),
            anchors: Vec::new(),
            groups: Vec::new(),
            used: 0,
            last: (0, 0),
        }
    }

    fn clear(&mut self) {
        self.rules.clear();
        self.slots.fill(0);
        self.anchors.clear();
        self.groups.clear();
        self.used = 0;
        self.last = (0, 0);
    }

    /// Appends a row; rows come in order of their start, the first one at 0.
    fn add(&mut self, start: u32, rule: Rule) {
        let index = self.intern(rule);
        let (last_start, last_index) = self.last;
        let gap = start - last_start.min(start);
        // Rows that only repeat the last rule, to get near enough.
        let bridges = (gap.saturating_sub(1) / MAX_DELTA) as usize;
        if self.groups.is_empty() || self.used + bridges >= GROUP_ROWS {
            self.open_group(start, index);
        } else {
            for _ in 0..bridges {
                self.set_row(u8::MAX, last_index);
            }
            let rest = gap - bridges as u32 * MAX_DELTA;
            self.set_row(u8::try_from(rest).unwrap_or(u8::MAX), index);
        }
        self.last = (start, index);
    }

    /// Starts a group whose first row is at `start`. The rest of the group
    /// before it repeats its last rule; those rows start before the new anchor
    /// or are never reached.
    fn open_group(&mut self, start: u32, index: u8) {
        self.pad_group();
        self.anchors.push(u16::try_from(start).unwrap_or(u16::MAX));
        self.groups.push([0; GROUP_BYTES]);
        self.used = 0;
        self.set_row(0, index);
    }

    /// Fills the last group with rows that repeat its last rule.
    fn pad_group(&mut self) {
        while !self.groups.is_empty() && self.used < GROUP_ROWS {
            self.set_row(u8::MAX, self.last.1);
        }
    }

    /// Writes the next row of the last group.
    fn set_row(&mut self, delta: u8, index: u8) {
        if let Some(group) = self.groups.last_mut() {
            let (deltas, indices) = group.split_at_mut(GROUP_ROWS);
            if let (Some(d), Some(i)) = (deltas.get_mut(self.used), indices.get_mut(self.used)) {
                (*d, *i) = (delta, index);
                self.used += 1;
            }
        }
    }

    /// Index of a rule, new or known. The last free index is kept for
    /// `UNSUPPORTED`, which stands for all rules that find none.
    fn intern(&mut self, rule: Rule) -> u8 {
        let mut slot = hash(rule);
        loop {
            let Some(entry) = self.slots.get_mut(slot % SLOTS) else {
                return 0;
            };
            match usize::from(*entry) {
                0 => break,
                n if self.rules.get(n - 1) == Some(&rule) => {
                    return u8::try_from(n - 1).unwrap_or(u8::MAX);
                }
                _ => slot += 1,
            }
        }
        let full = self.rules.len() >= MAX_PAGE_RULES - 1;
        if full && rule != UNSUPPORTED {
            return self.intern(UNSUPPORTED);
        }
        let index = self.rules.len();
        if let Some(entry) = self.slots.get_mut(slot % SLOTS) {
            *entry = u16::try_from(index + 1).unwrap_or(0);
        }
        self.rules.push(rule);
        u8::try_from(index).unwrap_or(u8::MAX)
    }

    /// Writes header, anchors, rules and groups.
    fn write(&mut self, out: &mut Vec<u8>) {
        self.pad_group();
        let rules_off = (HEADER_BYTES + 2 * self.anchors.len()).next_multiple_of(8);
        let groups_off = rules_off + RULE_BYTES * self.rules.len();
        out.clear();
        out.reserve(groups_off + GROUP_BYTES * self.groups.len());
        out.extend([0; 8]); // owner, last_used
        out.extend((self.groups.len() as u16).to_le_bytes());
        out.extend((self.rules.len() as u16).to_le_bytes());
        out.extend((rules_off as u32).to_le_bytes());
        out.extend((groups_off as u32).to_le_bytes());
        out.extend([0; 4]);
        for anchor in &self.anchors {
            out.extend(anchor.to_le_bytes());
        }
        out.resize(rules_off, 0);
        for rule in &self.rules {
            out.extend(rule.cfa_off.to_le_bytes());
            out.extend(rule.rbp_off.to_le_bytes());
            out.extend([rule.kind, rule.rbp]);
        }
        for group in &self.groups {
            out.extend(group);
        }
    }
}

/// Where the search for a rule starts in the hash table.
fn hash(rule: Rule) -> usize {
    let bits = u64::from(rule.cfa_off.cast_unsigned())
        | u64::from(rule.rbp_off.cast_unsigned()) << 32
        | u64::from(rule.kind) << 48
        | u64::from(rule.rbp) << 56;
    // Fibonacci hashing: the product's upper bits depend on all bits.
    (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize
}

/// The rule for the byte at `pc_low` of a page, found as the kernel-side
/// unwinder finds it: the reference reading, for tests and debugging.
///
/// `None` if the bytes are not a table page.
pub fn lookup(page: &[u8], pc_low: u16) -> Option<Rule> {
    let n_groups = usize::from(read_u16(page, 8)?);
    let rules_off = usize::try_from(read_u32(page, 12)?).ok()?;
    let groups_off = usize::try_from(read_u32(page, 16)?).ok()?;
    if n_groups == 0 || n_groups > MAX_GROUPS {
        return None;
    }
    let (mut low, mut high) = (0, n_groups);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if read_u16(page, HEADER_BYTES + 2 * middle)? <= pc_low {
            low = middle;
        } else {
            high = middle;
        }
    }
    let distance = pc_low.checked_sub(read_u16(page, HEADER_BYTES + 2 * low)?)?;
    let at = groups_off.checked_add(low * GROUP_BYTES)?;
    let group = page.get(at..at.checked_add(GROUP_BYTES)?)?;
    let (deltas, indices) = group.split_at(GROUP_ROWS);
    let row = deltas
        .iter()
        .scan(0u32, |start, &delta| {
            *start += u32::from(delta);
            Some(*start)
        })
        .take_while(|&start| start <= u32::from(distance))
        .count();
    let index = usize::from(*indices.get(row.checked_sub(1)?)?);
    read_rule(page, rules_off.checked_add(index * RULE_BYTES)?)
}

fn read_u16(page: &[u8], at: usize) -> Option<u16> {
    let bytes = page.get(at..at.checked_add(2)?)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

fn read_u32(page: &[u8], at: usize) -> Option<u32> {
    let bytes = page.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn read_rule(page: &[u8], at: usize) -> Option<Rule> {
    let low = read_u32(page, at)?;
    let high = read_u32(page, at.checked_add(4)?)?.to_le_bytes();
    Some(Rule {
        cfa_off: low.cast_signed(),
        rbp_off: i16::from_le_bytes([high[0], high[1]]),
        kind: high[2],
        rbp: high[3],
    })
}
