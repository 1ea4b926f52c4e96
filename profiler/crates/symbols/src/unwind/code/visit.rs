//! One function while its instructions are followed.

use super::machine::MachineState;
use rustc_hash::FxHashSet;

/// One function while it is followed.
#[derive(Default)]
pub(super) struct Visit {
    /// Addresses of the instructions that were reached.
    pub(super) seen: Vec<u64>,
    /// From which instruction to which one code goes: to, from.
    pub(super) ways: Vec<(u64, u64)>,
    /// Instructions at which the function is left.
    pub(super) ends: Vec<u64>,
    /// Calls followed only by padding, up to an aligned function.
    pub(super) last_calls: Vec<u64>,
    pub(super) waiting: Vec<OpenPath>,
    /// Code behind calls that do perhaps not return.
    pub(super) behind_calls: Vec<OpenPath>,
    pub(super) calls: Vec<u64>,
    /// Ends at which everything was as at the entry.
    pub(super) good_returns: usize,
    /// Jumps by a table, in the midst of the function: one of each state.
    pub(super) switches: Vec<(u64, MachineState)>,
}

/// How far a visit was before a way was tried.
pub(super) struct VisitMark {
    pub(super) seen: usize,
    pub(super) ways: usize,
    pub(super) ends: usize,
    pub(super) last_calls: usize,
    pub(super) calls: usize,
    pub(super) switches: usize,
    pub(super) good_returns: usize,
    pub(super) behind_calls: Vec<OpenPath>,
}

/// A way through a function that is still to be followed.
#[derive(Clone)]
pub(super) struct OpenPath {
    /// The instruction that leads there; `None` at the start.
    pub(super) from: Option<u64>,
    pub(super) at: u64,
    pub(super) machine: MachineState,
}

impl Visit {
    pub(super) fn mark(&self) -> VisitMark {
        VisitMark {
            seen: self.seen.len(),
            ways: self.ways.len(),
            ends: self.ends.len(),
            last_calls: self.last_calls.len(),
            calls: self.calls.len(),
            switches: self.switches.len(),
            good_returns: self.good_returns,
            behind_calls: self.behind_calls.clone(),
        }
    }

    /// The addresses from which the function's end can be reached. What follows a call
    /// that does not return is another function's.
    pub(super) fn proven(self) -> Vec<u64> {
        let mut ways = self.ways;
        ways.sort_unstable();
        let mut proven: FxHashSet<u64> = FxHashSet::default();
        let mut waiting = self.ends;
        while let Some(at) = waiting.pop() {
            if proven.insert(at) {
                let first = ways.partition_point(|&(to, _)| to < at);
                let here = ways.iter().skip(first).take_while(|&&(to, _)| to == at);
                waiting.extend(here.map(|&(_, from)| from));
            }
        }
        let mut kept = self.seen;
        kept.retain(|at| proven.contains(at));
        kept.sort_unstable();
        kept
    }
}
