//! Unused numbers of rows, for slices that must leave theirs.
//!
//! Each row has a chain of spare rows: the next numbers of its process that no row
//! has and no other chain took. A trace may have a row for every event, so a chain is
//! kept as runs of numbers, never number by number.

use aiprof_model::timeline::{Id, Timeline};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Most rows that a chain has from the start.
const MAX_SPARE: u32 = 64;

/// Spare rows of all processes.
#[derive(Debug, Default)]
pub(super) struct SpareRows {
    /// Numbers that are taken, by process and first: the last. No two runs touch.
    taken: BTreeMap<(Id, i64), i64>,
    /// Runs of a chain, by process and first: the last. Runs of one are left out.
    runs: BTreeMap<(Id, i64), i64>,
    /// By process and last number of a run, or a row itself: the first of the next run.
    links: FxHashMap<(Id, i64), i64>,
}

impl SpareRows {
    /// For each row of slices, in the order they come, the next `limit` numbers.
    pub(super) fn new(timeline: &Timeline, limit: u32) -> Self {
        let mut spare = Self::default();
        let mut rows = Vec::new();
        for event in timeline.events.iter().filter(|event| event.is_slice()) {
            let Some(tid) = timeline.tid(event).number() else {
                continue;
            };
            if !spare.is_taken(timeline.pid(event), tid) {
                spare.take(timeline.pid(event), tid, tid);
                rows.push((timeline.pid(event), tid));
            }
        }
        // What is beyond is found when it is needed.
        let limit = u64::from(limit.clamp(1, MAX_SPARE));
        for (pid, tid) in rows {
            spare.extend(pid, tid, limit);
        }
        spare
    }

    /// The row after this one in its chain; `None`: the chain ends here.
    pub(super) fn next(&self, pid: Id, tid: i64) -> Option<i64> {
        if let Some(next) = self.links.get(&(pid, tid)) {
            return Some(*next);
        }
        let (_, end) = at_or_before(&self.runs, pid, tid)?;
        (tid < end).then(|| tid.wrapping_add(1))
    }

    /// Adds a row after the last of a chain.
    pub(super) fn add(&mut self, pid: Id, tid: i64) -> i64 {
        self.extend(pid, tid, 1)
    }

    /// Adds `wanted` rows after the last of a chain; returns its new last.
    fn extend(&mut self, pid: Id, tid: i64, mut wanted: u64) -> i64 {
        let mut last = tid;
        while wanted > 0 {
            let first = self.free_after(pid, last);
            let run = self.free_until(pid, first, wanted);
            wanted -= (run.abs_diff(first) + 1).min(wanted);
            self.take(pid, first, run);
            self.links.insert((pid, last), first);
            if run != first {
                self.runs.insert((pid, first), run);
            }
            last = run;
        }
        last
    }

    fn is_taken(&self, pid: Id, tid: i64) -> bool {
        at_or_before(&self.taken, pid, tid).is_some_and(|(_, end)| tid <= end)
    }

    /// The next number that is free; after the largest comes the smallest.
    fn free_after(&self, pid: Id, tid: i64) -> i64 {
        let mut next = tid.wrapping_add(1);
        // Runs do not touch, unless one ends and another begins at the limits.
        for _ in 0..2 {
            match at_or_before(&self.taken, pid, next) {
                Some((_, end)) if next <= end => next = end.wrapping_add(1),
                _ => break,
            }
        }
        next
    }

    /// The last of at most `wanted` free numbers from `first` on.
    fn free_until(&self, pid: Id, first: i64, wanted: u64) -> i64 {
        let end = first.saturating_add_unsigned(wanted - 1);
        let mut later = self.taken.range((pid, first)..=(pid, end));
        later
            .next()
            .map_or(end, |((_, taken), _)| taken.saturating_sub(1))
    }

    /// Notes that numbers are taken which were free.
    fn take(&mut self, pid: Id, first: i64, last: i64) {
        let before = at_or_before(&self.taken, pid, first);
        let start = match before {
            Some((start, end)) if end.checked_add(1) == Some(first) => start,
            _ => first,
        };
        let after = last.checked_add(1).map(|after| (pid, after));
        let end = after.and_then(|after| self.taken.remove(&after));
        self.taken.insert((pid, start), end.unwrap_or(last));
    }
}

/// The run of a process that begins at or before a number.
fn at_or_before(runs: &BTreeMap<(Id, i64), i64>, pid: Id, tid: i64) -> Option<(i64, i64)> {
    let mut before = runs.range((pid, i64::MIN)..=(pid, tid));
    before.next_back().map(|((_, start), end)| (*start, *end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::{Event, Ph, Sym, Time, Track};
    use std::collections::BTreeSet;

    fn slices(rows: &[(i64, i64)]) -> Timeline {
        let mut timeline = Timeline::default();
        for (pid, tid) in rows {
            let track = Track::row(Id::Number(*pid), Id::Number(*tid));
            let track = timeline.tracks.intern(track);
            let slice = Event::new(Ph::Complete, Sym::EMPTY, track, Time::ORIGIN);
            timeline.events.push(slice);
        }
        timeline
    }

    /// The same, number by number.
    fn chains(rows: &[(i64, i64)], limit: u32) -> BTreeMap<(i64, i64), Vec<i64>> {
        let mut taken: BTreeSet<(i64, i64)> = rows.iter().copied().collect();
        let mut chains = BTreeMap::new();
        for &(pid, tid) in rows {
            chains.entry((pid, tid)).or_insert_with(|| {
                let mut last = tid;
                let next = |_| {
                    loop {
                        last = last.wrapping_add(1);
                        if taken.insert((pid, last)) {
                            return last;
                        }
                    }
                };
                (0..limit.clamp(1, MAX_SPARE)).map(next).collect()
            });
        }
        chains
    }

    #[test]
    fn chains_are_those_of_counting_one_by_one() {
        let mut state = 1u64;
        let mut below = |limit: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % limit
        };
        for _ in 0..500 {
            let rows: Vec<_> = (0..below(40))
                .map(|_| match below(4) {
                    0 => (below(3) as i64, i64::MAX - below(9) as i64),
                    _ => (below(3) as i64, below(40) as i64),
                })
                .collect();
            let limit = below(9) as u32;
            let spare = SpareRows::new(&slices(&rows), limit);
            for ((pid, tid), chain) in chains(&rows, limit) {
                let mut last = tid;
                for wanted in chain {
                    assert_eq!(spare.next(Id::Number(pid), last), Some(wanted), "{rows:?}");
                    last = wanted;
                }
                assert_eq!(spare.next(Id::Number(pid), last), None, "{rows:?}");
            }
        }
    }

    #[test]
    fn a_chain_goes_on_where_it_is_free() {
        let mut spare = SpareRows::new(&slices(&[(0, 1), (0, 2), (0, 5)]), 2);
        let pid = Id::Number(0);
        // 1: 3 and 4. 2: 6 and 7. 5: 8 and 9.
        assert_eq!(spare.next(pid, 4), None);
        assert_eq!(spare.add(pid, 4), 10);
        assert_eq!((spare.next(pid, 4), spare.next(pid, 10)), (Some(10), None));
    }

    #[test]
    fn a_row_for_every_event_takes_little() {
        let rows: Vec<_> = (0..100_000).map(|i| (i, 7 * i)).collect();
        let spare = SpareRows::new(&slices(&rows), 64);
        assert!(spare.runs.len() <= rows.len() && spare.taken.len() <= rows.len());
        assert!(spare.links.len() <= rows.len());
    }
}
