//! Makes the graph of all ranks: threads, streams, waits, collectives.

use super::arrivals::{self, Arrivals};
use super::graph::{EdgeKind, PathEvent, PathGraph, PathRole, begin, end};
use super::{device, host};
use crate::work::{RankedWork, WorkIndex, name_of};
use aiprof_model::timeline::{Event, Sym, Time, Timeline};
use rustc_hash::FxHashMap;

/// A graph that is being made.
pub(super) struct Builder<'b> {
    pub(super) timeline: &'b Timeline,
    pub(super) index: &'b WorkIndex,
    /// What is looked at of each rank.
    windows: Vec<(Time, Time)>,
    /// Functions of Python of each rank.
    pub(super) python: Vec<Vec<u32>>,
    pub(super) graph: PathGraph,
    /// Number of a call or operator by its event.
    numbers: FxHashMap<u32, u32>,
    /// Whether calls of a name wait for a device.
    waiting: Vec<Option<bool>>,
}

/// Makes the graph of what began in the windows, one for each rank.
pub(super) fn graph(
    timeline: &Timeline,
    index: &WorkIndex,
    windows: &[(Time, Time)],
) -> (PathGraph, Arrivals) {
    let mut builder = Builder {
        timeline,
        index,
        windows: windows.to_vec(),
        python: Vec::new(),
        graph: PathGraph::default(),
        numbers: FxHashMap::default(),
        waiting: vec![None; timeline.names.len()],
    };
    builder.python = host::python(&builder);
    let mut works = Vec::new();
    for rank in 0..index.ranks.len() {
        host::add(&mut builder, rank);
        works.push(device::add(&mut builder, rank));
    }
    let arrivals = arrivals::add(&mut builder, &works);
    for (number, work) in works.into_iter().flatten() {
        if !arrivals.members.contains(&number) {
            let took = work.end - work.start;
            let graph = &mut builder.graph;
            graph.add(EdgeKind::Own, begin(number), end(number), number, took);
        }
    }
    (builder.graph, arrivals)
}

impl<'b> Builder<'b> {
    /// Whether something that begins then is looked at.
    pub(super) fn is_within(&self, rank: usize, start: Time) -> bool {
        let window = self.windows.get(rank);
        window.is_some_and(|(from, to)| (*from..=*to).contains(&start))
    }

    /// The part of a time that is looked at.
    pub(super) fn cut(&self, rank: usize, from: Time, to: Time) -> Option<(Time, Time)> {
        let (first, last) = *self.windows.get(rank)?;
        Some((from.max(first), to.min(last)))
    }

    /// Adds what a thread did.
    pub(super) fn add_host(
        &mut self,
        event: u32,
        rank: usize,
        role: PathRole,
        times: (Time, Time),
    ) -> u32 {
        let number = self.graph.add_event(PathEvent {
            event,
            rank: rank as u32,
            role,
            times,
        });
        self.numbers.insert(event, number);
        number
    }

    /// Adds work of a device.
    pub(super) fn add_work(&mut self, work: &RankedWork, rank: usize) -> u32 {
        self.graph.add_event(PathEvent {
            event: work.event,
            rank: rank as u32,
            role: PathRole::Device(work.class),
            times: (work.start, work.end),
        })
    }

    /// The number of a call in the graph.
    pub(super) fn number_of(&self, event: u32) -> Option<u32> {
        self.numbers.get(&event).copied()
    }

    /// Whether a call waits for a device.
    pub(super) fn waits(&mut self, event: &Event) -> bool {
        let name = name_of(self.timeline, event);
        let waits = || is_wait(name);
        match self.waiting.get_mut(event.name.index()) {
            Some(known) => *known.get_or_insert_with(waits),
            None => waits(),
        }
    }
}

/// Whether a call of this name returns only when work of a device is done. Those of CUDA
/// are HTA's list, in which asynchronous copies are too: from pageable memory they wait.
fn is_wait(name: &str) -> bool {
    const PARTS: [&str; 6] = [
        "Synchronize",
        "EventQuery",
        "StreamQuery",
        "ScheduleWait",
        "WaitForEvents",
        "clFinish",
    ];
    let is_copy = [
        "cudaMemcpy",
        "cudaMemcpyAsync",
        "hipMemcpy",
        "hipMemcpyAsync",
    ];
    is_copy.contains(&name)
        || name == "hipMemcpyWithStream"
        || PARTS.iter().any(|part| name.contains(part))
}

/// The name of an event.
pub(super) fn sym(timeline: &Timeline, event: u32) -> Sym {
    let event = timeline.events.get(event as usize);
    event.map_or(Sym::EMPTY, Event::original_name)
}

/// The number of each of a rank's works that are looked at, in their order.
pub(super) type Numbered<'b> = Vec<(u32, &'b RankedWork)>;

#[cfg(test)]
mod tests {
    use super::is_wait;

    #[test]
    fn calls_that_wait_are_known() {
        for name in [
            "cudaStreamSynchronize",
            "cudaMemcpyAsync",
            "hipDeviceSynchronize",
            "cuCtxSynchronize",
            "aiuScheduleWait",
            "zeEventHostSynchronize",
        ] {
            assert!(is_wait(name), "{name}");
        }
        for name in ["cudaLaunchKernel", "cudaStreamWaitEvent", "cudaMemsetAsync"] {
            assert!(!is_wait(name), "{name}");
        }
    }
}
