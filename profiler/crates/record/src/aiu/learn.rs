//! Finds out which layouts a buffer's records have.
//!
//! A way to read a stretch of a buffer is a choice of one layout for each kind met. It is sound
//! when every record is followed by another or by the end, and nearly all are plausible. All
//! choices are tried, each until it fails or ends. The work is bounded by a budget in proportion to
//! the buffer.

use super::layouts::Layouts;
use super::record::{BufferContext, View};
use std::cmp::Reverse;

/// Records that are looked at to learn layouts.
pub(super) const WINDOW: usize = 512;
/// Records that must make sense to go on after bytes that made none.
const RESYNC_WINDOW: usize = 3;
/// Bytes that are searched for the next record.
const RESYNC_BYTES: usize = 4096;
/// Steps of learning and searching in any buffer.
const BASE_STEPS: usize = 1 << 17;
/// And in addition for each of its bytes.
const STEPS_PER_BYTE: usize = 4;
/// Solutions that are kept; with more, nothing is certain.
const MAX_SOLUTIONS: usize = 64;
/// Plausible records of a kind for each implausible one that is accepted.
const TOLERANCE: usize = 8;

/// Layout of each first byte; `None` where it is not known.
pub(super) type Chosen = [Option<u16>; 256];

/// A way to read a stretch of a buffer.
#[derive(Clone)]
pub(super) struct Solution {
    pub(super) chosen: Chosen,
    /// Plausible and implausible records of each kind.
    tally: [(u32, u32); 256],
    /// Whether it went to the end or through the window.
    is_complete: bool,
    records: usize,
    implausible: usize,
}

impl Solution {
    /// Better ones are greater. Complete ones are not judged by their records:
    /// small layouts have more of them on the same stretch.
    fn rank(&self) -> (bool, usize, Reverse<usize>) {
        let records = if self.is_complete { 0 } else { self.records };
        (self.is_complete, records, Reverse(self.implausible))
    }

    /// Whether each kind showed itself, nearly always plausible.
    fn is_sound(&self) -> bool {
        let mostly = |(good, bad): &(u32, u32)| *bad as usize * TOLERANCE <= *good as usize;
        self.records > self.implausible && self.tally.iter().all(mostly)
    }
}

/// How a walk with given layouts went.
enum WalkEnd {
    /// To the end or through the window.
    Complete,
    /// To a record of a kind that has no layout at all.
    Stopped,
    /// To a record at `at` of a kind that has layouts, none chosen.
    Open { at: usize, byte: u8 },
    /// To bytes that are no record, or out of budget.
    Failed,
}

/// A buffer, and how much work may still go into it.
pub(super) struct BufferWalk<'a> {
    layouts: &'a Layouts,
    pub(super) bytes: &'a [u8],
    pub(super) context: &'a BufferContext<'a>,
    steps: usize,
}

impl<'a> BufferWalk<'a> {
    pub(super) fn new(
        layouts: &'a Layouts,
        bytes: &'a [u8],
        context: &'a BufferContext<'a>,
    ) -> Self {
        Self {
            layouts,
            bytes,
            context,
            steps: BASE_STEPS.saturating_add(bytes.len().saturating_mul(STEPS_PER_BYTE)),
        }
    }

    fn plausible(&self, index: u16, at: usize) -> bool {
        let layout = self.layouts.get(index);
        layout
            .and_then(|layout| View::new(layout, self.bytes, at, self.context.endian))
            .is_some_and(|view| view.is_plausible(self.context))
    }

    /// Whether a record can begin here, or the buffer ends here.
    fn may_follow(&self, at: usize) -> bool {
        match self.bytes.get(at) {
            Some(byte) => self.layouts.kind(*byte).is_some(),
            None => at == self.bytes.len() || self.context.is_cut,
        }
    }

    /// Layouts with which the record here is plausible.
    pub(super) fn fitting(&self, at: usize, byte: u8) -> usize {
        let candidates = self.layouts.candidates(byte).iter();
        candidates
            .filter(|index| self.plausible(**index, at))
            .count()
    }

    /// The best ways to read from `at` on; none when too many are as good.
    pub(super) fn solve(&mut self, at: usize, chosen: &Chosen, window: usize) -> Vec<Solution> {
        let mut solutions = Vec::new();
        let start = Solution {
            chosen: *chosen,
            tally: [(0, 0); 256],
            is_complete: false,
            records: 0,
            implausible: 0,
        };
        self.explore(at, start, window, &mut solutions);
        if solutions.len() > MAX_SOLUTIONS {
            return Vec::new();
        }
        if let Some(best) = solutions.iter().map(Solution::rank).max() {
            solutions.retain(|solution| solution.rank() == best);
        }
        solutions
    }

    /// Goes on from `at` with each layout of each kind met. The depth is at most
    /// the number of kinds that have layouts.
    fn explore(&mut self, at: usize, mut one: Solution, window: usize, all: &mut Vec<Solution>) {
        match self.follow(at, &mut one, window) {
            WalkEnd::Complete => one.is_complete = true,
            WalkEnd::Stopped => {}
            WalkEnd::Failed => return,
            WalkEnd::Open { at, byte } => {
                let layouts = self.layouts;
                for index in layouts.candidates(byte) {
                    let mut next = one.clone();
                    next.chosen[usize::from(byte)] = Some(*index);
                    self.explore(at, next, window, all);
                }
                return;
            }
        }
        if one.is_sound() && all.len() <= MAX_SOLUTIONS {
            all.push(one);
        }
    }

    /// Follows records of chosen layouts.
    fn follow(&mut self, mut at: usize, one: &mut Solution, window: usize) -> WalkEnd {
        loop {
            if one.records >= window {
                return WalkEnd::Complete;
            }
            let Some(byte) = self.bytes.get(at).copied() else {
                return if self.may_follow(at) {
                    WalkEnd::Complete
                } else {
                    WalkEnd::Failed
                };
            };
            if self.steps == 0 || self.layouts.kind(byte).is_none() {
                return WalkEnd::Failed;
            }
            self.steps -= 1;
            let Some(index) = one.chosen[usize::from(byte)] else {
                return match self.layouts.candidates(byte) {
                    [] => WalkEnd::Stopped,
                    _ => WalkEnd::Open { at, byte },
                };
            };
            let size = self.layouts.get(index).map_or(1, |layout| layout.size);
            // The capture ends in this record: nothing to judge it by.
            if self.context.is_cut && at + size > self.bytes.len() {
                return WalkEnd::Complete;
            }
            let (good, bad) = &mut one.tally[usize::from(byte)];
            if self.plausible(index, at) {
                *good += 1;
            } else {
                *bad += 1;
                one.implausible += 1;
                if *bad as usize * TOLERANCE > *good as usize + WINDOW / 4 {
                    return WalkEnd::Failed;
                }
            }
            one.records += 1;
            at += size;
        }
    }

    /// The next place from `from` on where records begin that make sense.
    pub(super) fn resync(&mut self, from: usize, chosen: &Chosen) -> Option<usize> {
        let limit = from.saturating_add(RESYNC_BYTES).min(self.bytes.len());
        for at in from..limit {
            self.steps = self.steps.checked_sub(1)?;
            let byte = *self.bytes.get(at)?;
            let found = match chosen[usize::from(byte)] {
                // A layout that has proved itself.
                Some(index) => self.is_record_of(index, at),
                None => {
                    self.fitting(at, byte) > 0 && {
                        let solutions = self.solve(at, chosen, RESYNC_WINDOW);
                        solutions.first().is_some_and(|one| one.is_complete)
                    }
                }
            };
            if found {
                return Some(at);
            }
        }
        None
    }

    fn is_record_of(&self, index: u16, at: usize) -> bool {
        let size = self.layouts.get(index).map_or(1, |layout| layout.size);
        self.plausible(index, at) && self.may_follow(at + size)
    }
}
