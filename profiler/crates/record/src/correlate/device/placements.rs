//! Where kernels lie on their devices.

use super::CodeId;
use std::cmp::Reverse;

/// A kernel's code at an address, of one process, for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Process.
    pub pid: u32,
    /// Number of the kernel: executions name it.
    pub kernel: u64,
    /// What lies there.
    pub code: CodeId,
    /// Device address of its first byte.
    pub start: u64,
    /// The last byte's.
    pub last: u64,
    /// Instruction base address that relative addresses count from.
    pub base: u64,
    /// From when on: CLOCK_MONOTONIC nanoseconds.
    pub since_ns: u64,
    /// Until when; `u64::MAX`: still.
    pub until_ns: u64,
}

/// Relative addresses have 29 bits, in units of eight bytes.
const RELATIVE: u64 = u32::MAX as u64;

/// Index of a placement.
pub(super) type At = u32;

/// All placements, found by address.
#[derive(Debug, Default)]
pub(super) struct Placements {
    all: Vec<Placement>,
    /// Sorted by first address, for absolute and for relative ones.
    absolute: PlacementIndex,
    relative: PlacementIndex,
    is_stale: bool,
}

/// Ranges by their first address.
#[derive(Debug, Default)]
struct PlacementIndex {
    /// First and last address, and which placement.
    ranges: Vec<(u64, u64, At)>,
    /// The largest last address of all up to each.
    reach: Vec<u64>,
}

impl PlacementIndex {
    fn new(mut ranges: Vec<(u64, u64, At)>) -> Self {
        ranges.sort_unstable();
        let reach = ranges
            .iter()
            .scan(0, |reach, &(_, last, _)| {
                *reach = last.max(*reach);
                Some(*reach)
            })
            .collect();
        Self { ranges, reach }
    }

    fn find(&self, address: u64) -> impl Iterator<Item = At> {
        let end = self.ranges.partition_point(|&(start, ..)| start <= address);
        (0..end)
            .rev()
            .take_while(move |&i| self.reach.get(i).is_some_and(|&reach| reach >= address))
            .filter_map(|i| self.ranges.get(i))
            .filter(move |&&(_, last, _)| last >= address)
            .map(|&(.., at)| at)
    }
}

impl Placements {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, at: At) -> Option<&Placement> {
        self.all.get(at as usize)
    }

    /// Adds one; `false`: it is known, perhaps more exactly now.
    pub(super) fn add(&mut self, placement: Placement) -> bool {
        self.is_stale = true;
        let same = |p: &&mut Placement| {
            p.pid == placement.pid && p.kernel == placement.kernel && p.start == placement.start
        };
        if let Some(known) = self.all.iter_mut().rev().take(4096).find(same) {
            known.last = placement.last.max(known.last);
            known.base = placement.base;
            // It may have got its name since.
            known.code = placement.code;
            known.since_ns = placement.since_ns.min(known.since_ns);
            return false;
        }
        self.all.push(placement);
        true
    }

    /// Copies of a process's placements that were there at a time.
    pub(super) fn of(&self, pid: u32, at_ns: u64) -> Vec<Placement> {
        let own = self.all.iter().filter(|p| p.pid == pid);
        own.filter(|p| p.until_ns >= at_ns).cloned().collect()
    }

    /// A kernel is gone: what it was at is free from then on.
    pub(super) fn end(&mut self, ended_ns: u64, is_it: impl Fn(&Placement) -> bool) {
        for placement in &mut self.all {
            if placement.until_ns == u64::MAX && is_it(placement) {
                placement.until_ns = ended_ns;
            }
        }
    }

    /// Forgets what ended before a time; indices change.
    pub(super) fn forget(&mut self, before_ns: u64) {
        let have = self.all.len();
        self.all.retain(|p| p.until_ns >= before_ns);
        self.is_stale |= have != self.all.len();
    }

    /// Forgets the oldest `count`, those that have ended first.
    pub(super) fn forget_oldest(&mut self, count: usize) {
        self.all.sort_by_key(|p| (p.until_ns, Reverse(p.since_ns)));
        self.all.drain(..count.min(self.all.len()));
        self.is_stale = true;
    }

    /// Makes [`find`](Self::find) see all changes.
    pub(super) fn settle(&mut self) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        let ranges = |relative: bool| {
            let of = |(at, p): (usize, &Placement)| {
                let by = if relative { p.base } else { 0 };
                let start = p.start.wrapping_sub(by);
                let end = start.saturating_add(p.last.saturating_sub(p.start));
                let fits = !relative || start <= RELATIVE;
                Some((start, end, At::try_from(at).ok()?)).filter(|_| fits)
            };
            PlacementIndex::new(self.all.iter().enumerate().filter_map(of).collect())
        };
        self.absolute = ranges(false);
        self.relative = ranges(true);
    }

    /// The placements that hold an address at some time between two.
    pub(super) fn find(
        &self,
        relative: bool,
        address: u64,
        from_ns: u64,
        to_ns: u64,
    ) -> impl Iterator<Item = At> {
        let index = if relative {
            &self.relative
        } else {
            &self.absolute
        };
        index.find(address).filter(move |&at| {
            let held = |p: &Placement| p.since_ns <= to_ns && p.until_ns >= from_ns;
            self.get(at).is_some_and(held)
        })
    }
}
