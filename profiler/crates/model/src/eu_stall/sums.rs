//! The records of a window, added up by address.

use super::layout::{Layout, StallRecord};
use crate::wire::StallCount;
use std::hash::{BuildHasher as _, Hasher as _};

/// Most records of a window: below it, no count can overflow.
const MAX_RECORDS: u64 = u32::MAX as u64 / 255;
/// Slots of a new table.
const FIRST_SLOTS: usize = 1024;
/// A slot that is free.
const FREE: u32 = u32::MAX;

/// Adds up records by address, in bounded memory: about 100 bytes for each address.
#[derive(Debug)]
pub struct Sums {
    layout: Layout,
    record_size: usize,
    max_addresses: usize,
    /// Open addressing, at most half full, a power of two long.
    slots: Vec<SumSlot>,
    /// What is counted, in the order of first appearance.
    entries: Vec<AddressCounts>,
    /// Random, so that no program can choose addresses that all fall into the same slots.
    seed: u64,
    totals: Totals,
}

#[derive(Clone, Copy, Debug)]
struct SumSlot {
    ip: u64,
    /// Index of the entry.
    entry: u32,
}

#[derive(Clone, Copy, Debug)]
struct AddressCounts {
    ip: u64,
    slot: u32,
    /// In the order of the hardware.
    counts: [u32; 10],
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    records: u64,
    drops: u32,
    refused: u64,
    refused_samples: u64,
    saturated: u64,
    strange: u64,
}

/// What [`Sums`] counted since the last time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Records in it, with those that were refused.
    pub records: u64,
    /// Records in which the driver reports that others were dropped.
    pub drops: u32,
    /// Records that found no room.
    pub refused: u64,
    /// Samples in those: they are missing from `counts`.
    pub refused_samples: u64,
    /// Counters at their limit of 255: there may have been more samples.
    pub saturated: u64,
    /// Records with bits set that the layout knows nothing of. Many of them: it is the
    /// wrong layout.
    pub strange: u64,
    /// Counts by address in bytes, in the order of addresses.
    pub counts: Vec<StallCount>,
}

impl Sums {
    /// Nothing yet. `record_size`, in bytes, as [`Splitter`](super::Splitter) allows it; at
    /// most `max_addresses` are counted separately in a window.
    pub fn new(layout: Layout, record_size: usize, max_addresses: usize) -> Self {
        let seed = std::hash::RandomState::new().build_hasher().finish();
        Self {
            layout,
            record_size: record_size.max(layout.bytes()),
            // Half of the slots have a 32-bit number.
            max_addresses: max_addresses.min(1 << 30),
            slots: vec![SumSlot { ip: 0, entry: FREE }; FIRST_SLOTS],
            entries: Vec::new(),
            seed,
            totals: Totals::default(),
        }
    }

    /// Records that were added since the last [`take`](Self::take).
    pub fn records(&self) -> u64 {
        self.totals.records
    }

    /// Records that still fit into the window, whatever their addresses.
    pub fn room(&self) -> u64 {
        MAX_RECORDS - self.totals.records.min(MAX_RECORDS)
    }

    /// Adds whole records; bytes behind the last whole one are left out.
    pub fn add(&mut self, records: &[u8]) {
        // A loop for each layout, and for the one size that exists.
        match self.layout {
            Layout::Pvc => self.add_as(Layout::Pvc, records),
            Layout::Xe2 => self.add_as(Layout::Xe2, records),
            Layout::Xe3p => self.add_as(Layout::Xe3p, records),
        }
    }

    #[inline(always)]
    fn add_as(&mut self, layout: Layout, records: &[u8]) {
        if self.record_size == 64 {
            for record in records.as_chunks::<64>().0 {
                self.add_record(layout.decode(&words(record)));
            }
            return;
        }
        for record in records.chunks_exact(self.record_size) {
            let mut front = [0; 64];
            let length = record.len().min(front.len());
            if let (Some(to), Some(from)) = (front.get_mut(..length), record.get(..length)) {
                to.copy_from_slice(from);
            }
            self.add_record(layout.decode(&words(&front)));
        }
    }

    #[inline(always)]
    fn add_record(&mut self, record: StallRecord) {
        self.totals.records += 1;
        self.totals.drops = self.totals.drops.saturating_add(record.dropped.into());
        self.totals.strange += u64::from(record.strange);
        if record.low == 0 && record.high == 0 {
            // Nothing was counted.
            return;
        }
        self.totals.saturated += u64::from(saturated(&record));
        let room = self.totals.records <= MAX_RECORDS;
        match self.entry(record.ip).filter(|_| room) {
            Some(entry) => {
                let bytes = record.low.to_le_bytes();
                let [ninth, tenth] = record.high.to_le_bytes();
                let (low, high) = entry.counts.split_at_mut(8);
                // Below MAX_RECORDS, nothing wraps.
                for (count, byte) in low.iter_mut().zip(bytes) {
                    *count = count.wrapping_add(u32::from(byte));
                }
                for (count, byte) in high.iter_mut().zip([ninth, tenth]) {
                    *count = count.wrapping_add(u32::from(byte));
                }
            }
            None => self.refuse(&record),
        }
    }

    #[cold]
    fn refuse(&mut self, record: &StallRecord) {
        let bytes = record.low.to_le_bytes();
        let all = bytes.into_iter().chain(record.high.to_le_bytes());
        self.totals.refused += 1;
        self.totals.refused_samples += all.map(u64::from).sum::<u64>();
    }

    /// The entry of an address; `None`: no room.
    #[inline(always)]
    fn entry(&mut self, ip: u64) -> Option<&mut AddressCounts> {
        let mask = self.slots.len() - 1;
        let mut at = self.hash(ip) & mask;
        loop {
            let slot = self.slots.get(at)?;
            if slot.entry == FREE {
                let index = self.insert(ip, at)?;
                return self.entries.get_mut(index);
            }
            if slot.ip == ip {
                return self.entries.get_mut(slot.entry as usize);
            }
            at = (at + 1) & mask;
        }
    }

    /// Puts an address into a free slot.
    #[cold]
    fn insert(&mut self, ip: u64, at: usize) -> Option<usize> {
        let index = self.entries.len();
        if index >= self.max_addresses {
            return None;
        }
        let entry = u32::try_from(index).ok()?;
        *self.slots.get_mut(at)? = SumSlot { ip, entry };
        let slot = u32::try_from(at).ok()?;
        let counts = [0; 10];
        self.entries.push(AddressCounts { ip, slot, counts });
        if self.entries.len() * 2 > self.slots.len() {
            self.grow();
        }
        Some(index)
    }

    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        let mut slots = vec![SumSlot { ip: 0, entry: FREE }; mask + 1];
        let seed = self.seed;
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let mut at = hash(seed, entry.ip) & mask;
            while slots.get(at).is_some_and(|slot| slot.entry != FREE) {
                at = (at + 1) & mask;
            }
            if let Some(slot) = slots.get_mut(at) {
                slot.ip = entry.ip;
                // Fewer than 2^30 of them.
                slot.entry = index as u32;
                entry.slot = at as u32;
            }
        }
        self.slots = slots;
    }

    fn hash(&self, ip: u64) -> usize {
        hash(self.seed, ip)
    }

    /// What was counted since the last time. Addresses are in bytes, from `base`.
    pub fn take(&mut self, base: u64) -> Window {
        let layout = self.layout;
        let mut counts: Vec<_> = self
            .entries
            .iter()
            .map(|entry| StallCount {
                address: base.wrapping_add(entry.ip << 3),
                counts: layout.reorder(&entry.counts),
            })
            .collect();
        counts.sort_unstable_by_key(|count| count.address);
        // Clearing only what was used costs nothing in a window with few addresses.
        for entry in self.entries.drain(..) {
            if let Some(slot) = self.slots.get_mut(entry.slot as usize) {
                slot.entry = FREE;
            }
        }
        let totals = std::mem::take(&mut self.totals);
        Window {
            records: totals.records,
            drops: totals.drops,
            refused: totals.refused,
            refused_samples: totals.refused_samples,
            saturated: totals.saturated,
            strange: totals.strange,
            counts,
        }
    }
}

#[inline(always)]
fn words(record: &[u8; 64]) -> [u64; 8] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(record.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// Both halves of a product, folded: all bits of the address reach the low ones.
#[inline(always)]
fn hash(seed: u64, ip: u64) -> usize {
    let product = u128::from(ip ^ seed) * 0x9e37_79b9_7f4a_7c15;
    (product as u64 ^ (product >> 64) as u64) as usize
}

/// Counters of a record that are at 255.
#[inline(always)]
fn saturated(record: &StallRecord) -> u32 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let full = |bytes: u64| (((bytes & LOW) + 0x0101_0101_0101_0101) & bytes & !LOW).count_ones();
    full(record.low) + full(record.high.into())
}
