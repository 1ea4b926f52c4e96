//! Tracks: the rows of the trace, and that what is on one is properly nested.

use rustc_hash::FxHashMap;

/// First number that no thread or process has: the kernel's own limit
/// (`FUTEX_TID_MASK`). Larger ones are ours.
pub(super) const FIRST_FREE_ID: u32 = 1 << 30;
/// Added to a thread's number for the track of its samples: a number that can still
/// be read.
pub(super) const SAMPLES: u32 = 2_000_000_000;

/// Numbers of what is no process, and of rows that are no threads.
pub(super) const FIRST_ROW: u32 = 1_100_000_000;
/// See [`FIRST_ROW`].
pub(super) const FIRST_LANE: u32 = 1_200_000_000;

/// Threads whose last times are remembered.
const MAX_THREADS: usize = 1 << 16;

/// Of each thread, the time before which nothing more can be put on its track.
///
/// Events of a thread come in time order, so nothing changes here. In a damaged
/// recording they may not, and their times are moved forward then: every entry lies
/// behind what was entered and left before it, which is what nesting means.
#[derive(Debug, Default)]
pub(super) struct Floors {
    threads: FxHashMap<u32, u64>,
    /// Of all other threads.
    others: u64,
}

impl Floors {
    /// `time`, or the thread's floor if that is later.
    pub(super) fn clamp(&self, tid: u32, time: u64) -> u64 {
        time.max(self.threads.get(&tid).copied().unwrap_or(self.others))
    }

    /// Raises a thread's floor.
    pub(super) fn raise(&mut self, tid: u32, time: u64) {
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            let highest = self.threads.values().copied().max();
            self.others = self.others.max(highest.unwrap_or(0));
            self.threads.clear();
        }
        let floor = self.threads.entry(tid).or_insert(self.others);
        *floor = (*floor).max(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_never_sinks_even_if_there_are_too_many() {
        let mut floors = Floors::default();
        floors.raise(1, 50);
        floors.raise(1, 40);
        assert_eq!((floors.clamp(1, 10), floors.clamp(1, 60)), (50, 60));
        assert_eq!(floors.clamp(2, 10), 10);
        for tid in 2..=MAX_THREADS as u32 + 1 {
            floors.raise(tid, 3);
        }
        assert!(floors.threads.len() < 10);
        assert_eq!(floors.clamp(1, 10), 50);
    }
}
