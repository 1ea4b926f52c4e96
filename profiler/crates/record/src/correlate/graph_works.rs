//! The works of one execution of a graph, and which of them a device's record is of.
//!
//! One call executes all of a graph, so all its records have that call's id. The records
//! of one kernel (or of copies, or of fills) are of the works of that kernel, in the order
//! in which these were put into the graph.

use super::{KernelName, TrackedLaunch, tracker::is_cut};
use crate::aiu::operation::WorkKind;
use aiprof_model::probes::CallKind;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// `None`: devices record nothing of this launch.
pub(super) fn kind_of(launch: &TrackedLaunch) -> Option<WorkKind> {
    match (launch.kind, &launch.work.name) {
        // The runtime's record has a longer part of a name that was cut.
        (CallKind::Launch, KernelName::Known(name)) if !is_cut(name) => {
            Some(WorkKind::Kernel(Some(name.clone())))
        }
        (CallKind::Launch, _) => Some(WorkKind::Kernel(None)),
        (CallKind::Copy, _) => Some(WorkKind::Copy),
        (CallKind::Fill, _) => Some(WorkKind::Fill),
        _ => None,
    }
}

/// Works without a record yet. `P`: what is known of a launch.
#[derive(Clone, Debug, Default)]
pub(super) struct GraphWorks<P> {
    /// In the order in which they were put into the graph; `None`: has its record.
    works: Vec<Option<P>>,
    /// Indices in `works`, in order. Those taken through `kernels` are still here.
    by_kind: FxHashMap<WorkKind, VecDeque<usize>>,
    /// Indices of all kernels, likewise.
    kernels: VecDeque<usize>,
    left: usize,
}

impl<P: Copy + Default> GraphWorks<P> {
    /// Adds a work.
    pub(super) fn push(&mut self, kind: WorkKind, path: P) {
        let at = self.works.len();
        if matches!(kind, WorkKind::Kernel(_)) {
            self.kernels.push_back(at);
        }
        self.by_kind.entry(kind).or_default().push_back(at);
        self.works.push(Some(path));
        self.left += 1;
    }

    /// How many were added.
    pub(super) fn len(&self) -> usize {
        self.works.len()
    }

    /// How many have no record.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// The path of the work that a record is of; `None`: it is of none of these. If no work has a
    /// kernel's name, the record is of a kernel whose name is not known (it was loaded before the
    /// recording began). A record without a name is of the next kernel.
    pub(super) fn take(&mut self, kind: &WorkKind) -> Option<P> {
        let found = self.next(kind).or_else(|| match kind {
            WorkKind::Kernel(Some(_)) => self.next(&WorkKind::Kernel(None)),
            WorkKind::Kernel(None) => first(&mut self.works, &mut self.kernels),
            WorkKind::Copy | WorkKind::Fill => None,
        })?;
        self.left -= 1;
        Some(found)
    }

    fn next(&mut self, kind: &WorkKind) -> Option<P> {
        first(&mut self.works, self.by_kind.get_mut(kind)?)
    }
}

/// Takes the first work of a queue that has no record.
fn first<P>(works: &mut [Option<P>], queue: &mut VecDeque<usize>) -> Option<P> {
    while let Some(at) = queue.pop_front() {
        if let Some(path) = works.get_mut(at).and_then(Option::take) {
            return Some(path);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str) -> WorkKind {
        WorkKind::Kernel(Some(name.into()))
    }

    fn works(kinds: impl IntoIterator<Item = WorkKind>) -> GraphWorks<usize> {
        let mut works = GraphWorks::default();
        for (path, kind) in kinds.into_iter().enumerate() {
            works.push(kind, path);
        }
        works
    }

    #[test]
    fn records_of_one_name_are_of_the_works_of_that_name_in_their_order() {
        let unnamed = WorkKind::Kernel(None);
        let mut works = works([
            kernel("a"),
            WorkKind::Copy,
            kernel("b"),
            kernel("a"),
            unnamed,
        ]);
        // Branches end in any order.
        assert_eq!(works.take(&kernel("b")), Some(2));
        assert_eq!(works.take(&kernel("a")), Some(0));
        assert_eq!(works.take(&WorkKind::Copy), Some(1));
        assert_eq!(works.take(&kernel("a")), Some(3));
        assert_eq!(works.take(&WorkKind::Fill), None, "none was put there");
        assert_eq!(works.take(&kernel("c")), Some(4), "its name was not known");
        assert_eq!(works.take(&kernel("a")), None, "one more than there are");
        assert_eq!((works.left(), works.len()), (0, 5));
    }

    #[test]
    fn a_record_without_a_name_is_of_the_next_kernel() {
        let mut works = works([kernel("a"), WorkKind::Copy, kernel("b"), kernel("c")]);
        let unnamed = WorkKind::Kernel(None);
        assert_eq!(works.take(&kernel("b")), Some(2));
        assert_eq!(works.take(&unnamed), Some(0));
        assert_eq!(works.take(&unnamed), Some(3));
        assert_eq!(works.take(&unnamed), None);
        assert_eq!(works.take(&kernel("c")), None, "it was taken");
        assert_eq!(works.take(&WorkKind::Copy), Some(1));
        assert_eq!(works.left(), 0);
    }

    #[test]
    fn records_of_large_graphs_cost_no_search() {
        let count = 1 << 18;
        let name = |i: usize| kernel(&format!("k{}", i % 3));
        let mut works = works((0..count).map(name));
        // From the last to the first: a search would take 2^35 steps.
        for i in (0..count).rev() {
            let path = works.take(&name(i)).unwrap();
            assert_eq!(path % 3, i % 3);
        }
        assert_eq!(works.left(), 0);
    }
}
