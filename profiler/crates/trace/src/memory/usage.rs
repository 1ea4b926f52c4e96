//! What the changes of a device's memory add up to.

use super::gather::{MemoryChange, MemoryChanges};
use super::owners::MemoryOwner;
use super::{Holder, MemoryOf, MemoryUse};
use aiprof_model::timeline::{NONE, Time};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A number of allocations, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteSum {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl ByteSum {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Sums over a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySums {
    /// Allocations.
    pub allocated: ByteSum,
    /// Releases.
    pub freed: ByteSum,
    /// Bytes of the largest allocation.
    pub largest: u64,
    /// Bytes that were allocated before the first event: by the allocator's count, else the
    /// fewest that the releases need.
    pub held_before: u64,
    /// The allocator's own count is in the trace.
    pub has_totals: bool,
    /// Events have addresses.
    pub has_addresses: bool,
    /// Bytes that are allocated at the end.
    pub end: u64,
    /// Most bytes that the allocator held, in use or not.
    pub reserved: Option<u64>,
    /// Allocations without a release in the trace.
    pub not_freed: ByteSum,
    /// Releases of what was allocated before the trace.
    pub freed_before: ByteSum,
    /// Allocations that failed.
    pub failed: ByteSum,
}

/// When most was allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPeak {
    /// When.
    pub at: Time,
    /// Bytes.
    pub allocated: u64,
    /// Bytes that the allocator held then.
    pub reserved: Option<u64>,
    /// Bytes of it that were allocated before the trace.
    pub held_before: u64,
    /// Bytes of it whose allocation is not in the trace, though made while it was recorded.
    pub unknown: u64,
}

/// What was allocated at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLevel {
    /// When.
    pub at: Time,
    /// Bytes.
    pub allocated: u64,
    /// Bytes that the allocator held.
    pub reserved: Option<u64>,
}

/// Changes with what became of each.
pub(super) struct TracedMemory {
    of: MemoryOf,
    sums: MemorySums,
    levels: Vec<MemoryLevel>,
    /// The level of the peak.
    peak: usize,
    /// Releases until the peak of what was allocated before the trace, bytes.
    freed_until_peak: u64,
    /// Allocations that the peak consists of, by their event, and who made them.
    pub(super) at_peak: Vec<(u32, MemoryOwner)>,
    /// Their bytes, in the same order.
    sizes: Vec<u64>,
}

/// Which change ends an allocation, and by how much each changes what is allocated.
struct MemoryPairing {
    /// For each change: the one that frees it, or [`NONE`].
    freed_at: Vec<u32>,
    /// Bytes.
    deltas: Vec<i64>,
    /// Releases without an allocation: change, bytes.
    unmatched: Vec<(usize, u64)>,
}

impl MemoryPairing {
    fn new(changes: &[MemoryChange]) -> Self {
        let mut pairing = Self {
            freed_at: vec![NONE; changes.len()],
            deltas: vec![0; changes.len()],
            unmatched: Vec::new(),
        };
        let mut live: FxHashMap<u64, usize> = FxHashMap::default();
        for (index, change) in changes.iter().enumerate() {
            let delta = match change {
                change if change.is_failure => 0,
                change if change.is_release => pairing.release(&mut live, index, change, changes),
                change => pairing.allocate(&mut live, index, change, changes),
            };
            if let Some(place) = pairing.deltas.get_mut(index) {
                *place = delta;
            }
        }
        pairing
    }

    fn end(&mut self, allocation: usize, at: usize) {
        if let Some(end) = self.freed_at.get_mut(allocation) {
            *end = u32::try_from(at).unwrap_or(NONE);
        }
    }

    /// The release of what is at an address, by its own size if it has one.
    fn release(
        &mut self,
        live: &mut FxHashMap<u64, usize>,
        index: usize,
        change: &MemoryChange,
        changes: &[MemoryChange],
    ) -> i64 {
        let allocation = change.address.and_then(|address| live.remove(&address));
        let known = allocation.and_then(|one| changes.get(one));
        let bytes = match change.bytes {
            0 => known.map_or(0, |one| one.bytes),
            bytes => bytes,
        };
        match allocation {
            Some(allocation) => self.end(allocation, index),
            None if change.address.is_some() => self.unmatched.push((index, bytes)),
            None => {}
        }
        -signed(bytes)
    }

    /// An allocation. What else is at its address was freed without an event.
    fn allocate(
        &mut self,
        live: &mut FxHashMap<u64, usize>,
        index: usize,
        change: &MemoryChange,
        changes: &[MemoryChange],
    ) -> i64 {
        let before = change
            .address
            .and_then(|address| live.insert(address, index));
        let gone = before.and_then(|before| {
            self.end(before, index);
            changes.get(before)
        });
        signed(change.bytes).saturating_sub(gone.map_or(0, |gone| signed(gone.bytes)))
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl TracedMemory {
    pub(super) fn new(changes: MemoryChanges) -> Self {
        let MemoryChanges { of, all: changes } = changes;
        let pairing = MemoryPairing::new(&changes);
        let mut sums = sums_of(&changes, &pairing);
        let levels = levels(&changes, &pairing, &mut sums);
        let most = levels.iter().map(|level| level.allocated).max();
        let peak = levels
            .iter()
            .position(|level| Some(level.allocated) == most);
        let peak = peak.unwrap_or(0);
        sums.end = levels.last().map_or(0, |level| level.allocated);
        sums.reserved = levels.iter().filter_map(|level| level.reserved).max();
        // Level 0 is before change 0.
        let is_until = |index: usize| index < peak;
        let early = pairing.unmatched.iter().filter(|one| is_until(one.0));
        let freed_until_peak = early.fold(0u64, |sum, one| sum.saturating_add(one.1));
        let (mut at_peak, mut sizes) = (Vec::new(), Vec::new());
        let ends = changes.iter().zip(&pairing.freed_at).take(peak);
        for (change, end) in ends.filter(|(one, _)| !one.is_release && !one.is_failure) {
            let is_held = *end == NONE || !is_until(*end as usize);
            if change.address.is_some() && is_held {
                at_peak.push((change.event, MemoryOwner::default()));
                sizes.push(change.bytes);
            }
        }
        Self {
            of,
            sums,
            levels,
            peak,
            freed_until_peak,
            at_peak,
            sizes,
        }
    }

    /// With the holders by the names of those who allocated.
    pub(super) fn finish(self) -> MemoryUse {
        let mut holders: BTreeMap<MemoryOwner, ByteSum> = BTreeMap::new();
        for ((_, owner), bytes) in self.at_peak.into_iter().zip(&self.sizes) {
            holders.entry(owner).or_default().add(*bytes);
        }
        let known = holders
            .values()
            .fold(0u64, |sum, one| sum.saturating_add(one.bytes));
        let level = self.levels.get(self.peak).copied().unwrap_or_default();
        let rest = level.allocated.saturating_sub(known);
        let before = self.sums.held_before.saturating_sub(self.freed_until_peak);
        let held_before = rest.min(before);
        let mut holders: Vec<Holder> = holders
            .into_iter()
            .map(|(owner, held)| Holder {
                operator: owner.operator.to_string(),
                module: owner.module.to_string(),
                python: owner.python.to_string(),
                held,
            })
            .collect();
        holders.sort_by_key(|holder| Reverse(holder.held.bytes));
        MemoryUse {
            of: self.of,
            sums: self.sums,
            peak: MemoryPeak {
                at: level.at,
                allocated: level.allocated,
                reserved: level.reserved,
                held_before,
                unknown: rest - held_before,
            },
            holders,
            levels: self.levels,
        }
    }
}

fn sums_of(changes: &[MemoryChange], pairing: &MemoryPairing) -> MemorySums {
    let mut sums = MemorySums {
        has_addresses: changes.iter().any(|one| one.address.is_some()),
        has_totals: changes.iter().any(|one| one.total.is_some()),
        ..MemorySums::default()
    };
    let ends = changes.iter().zip(&pairing.freed_at).zip(&pairing.deltas);
    for ((change, end), delta) in ends {
        if change.is_failure {
            sums.failed.add(change.bytes);
        } else if change.is_release {
            sums.freed.add(delta.unsigned_abs());
        } else {
            sums.allocated.add(change.bytes);
            sums.largest = sums.largest.max(change.bytes);
            let ended = changes.get(*end as usize);
            // An address that is allocated again was freed without an event.
            if change.address.is_some() && ended.is_none_or(|end| !end.is_release) {
                sums.not_freed.add(change.bytes);
            }
        }
    }
    for (_, bytes) in &pairing.unmatched {
        sums.freed_before.add(*bytes);
    }
    sums
}

/// What is allocated before all changes and after each. Fills in what was held before.
fn levels(
    changes: &[MemoryChange],
    pairing: &MemoryPairing,
    sums: &mut MemorySums,
) -> Vec<MemoryLevel> {
    let mut sum = 0i64;
    let mut least = 0i64;
    let mut before = None;
    for (change, delta) in changes.iter().zip(&pairing.deltas) {
        sum = sum.saturating_add(*delta);
        least = least.min(sum);
        if let (Some(total), None) = (change.total, before) {
            before = Some(signed(total).saturating_sub(sum).max(0).unsigned_abs());
        }
    }
    let freed = sums.freed_before.bytes.max(least.unsigned_abs());
    sums.held_before = before.unwrap_or(freed);
    let mut level = MemoryLevel {
        at: changes.first().map_or(Time::ORIGIN, |change| change.at),
        allocated: sums.held_before,
        reserved: None,
    };
    let mut levels = Vec::with_capacity(changes.len() + 1);
    levels.push(level);
    for (change, delta) in changes.iter().zip(&pairing.deltas) {
        level.at = change.at;
        level.allocated = match change.total {
            Some(total) => total,
            None => level.allocated.saturating_add_signed(*delta),
        };
        level.reserved = change.reserved.or(level.reserved);
        levels.push(level);
    }
    levels
}
