//! A graph of what had to wait for what, and its longest path.
//!
//! Every event has a node for its begin and one for its end. An edge means that its second node
//! cannot be before its first plus the edge's weight. The longest path through all of them is the
//! critical path: what is not on it can take longer without making the whole longer. Linear in
//! nodes and edges.
//!
//! No edge weighs more than the time between its nodes, so that no path is longer than the time
//! from its first node to its last. Where clocks or rounding have something end before what it
//! waited for, that time is negative.

use crate::work::WorkClass;
use aiprof_model::timeline::{Length, NONE, Time};

/// What an edge stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum EdgeKind {
    /// Work of its owner: of a device, or of the host between the calls in it.
    Own,
    /// One top-level operation of a thread comes after the other; takes no time.
    Order,
    /// From a call to the work it launched, where nothing else held that back.
    LaunchDelay,
    /// Work does not begin before its call; takes no time.
    Launch,
    /// From the end of a stream's work to the begin of the next.
    KernelKernel,
    /// A wait ends when what it waits for does; takes no time.
    Sync,
    /// All ranks have begun a collective; takes no time.
    Arrival,
}

/// What an event is in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum PathRole {
    /// A call or operator on the host.
    Host,
    /// Another span of a thread: a function of Python, a note of the program, a wait for data.
    Code,
    /// Work of a device.
    Device(WorkClass),
    /// The moment when all ranks have begun a collective.
    Arrival,
}

/// An event of the graph: node `2 * n` is its begin, `2 * n + 1` its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathEvent {
    /// The event of the timeline; [`NONE`] for an arrival.
    pub event: u32,
    /// Rank, in the index.
    pub rank: u32,
    /// Its role.
    pub role: PathRole,
    /// When its begin and its end were.
    pub times: (Time, Time),
}

/// An edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathEdge {
    /// Node it comes from.
    pub from: u32,
    /// Node it leads to.
    pub to: u32,
    /// Number of the event whose time it is.
    pub owner: u32,
    /// What it stands for.
    pub kind: EdgeKind,
    /// Its time.
    pub weight: Length,
}

/// What had to wait for what.
#[derive(Debug, Default)]
pub(super) struct PathGraph {
    /// Events.
    pub events: Vec<PathEvent>,
    /// Edges.
    pub edges: Vec<PathEdge>,
}

/// The longest path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LongestPath {
    /// The sum of its weights.
    pub length: Length,
    /// Its edges in order, and their weights.
    pub(super) steps: Vec<(u32, Length)>,
    /// Nodes that wait for themselves, which nothing real does; they are left out.
    pub circular: usize,
}

/// Node of an event's begin.
pub(super) fn begin(event: u32) -> u32 {
    event.saturating_mul(2)
}

/// Node of an event's end.
pub(super) fn end(event: u32) -> u32 {
    event.saturating_mul(2).saturating_add(1)
}

impl PathGraph {
    /// Adds an event; gives its number.
    pub(super) fn add_event(&mut self, event: PathEvent) -> u32 {
        let number = u32::try_from(self.events.len()).unwrap_or(NONE);
        self.events.push(event);
        number
    }

    /// Adds an edge. Its time is at most that between its nodes.
    pub(super) fn add(&mut self, kind: EdgeKind, from: u32, to: u32, owner: u32, weight: Length) {
        let (Some(begins), Some(ends)) = (self.time(from), self.time(to)) else {
            return;
        };
        self.edges.push(PathEdge {
            from,
            to,
            owner,
            kind,
            weight: weight.max(Length::ZERO).min(ends - begins),
        });
    }

    /// When a node was.
    pub(super) fn time(&self, node: u32) -> Option<Time> {
        let (begin, end) = self.events.get(node as usize / 2)?.times;
        Some(if node.is_multiple_of(2) { begin } else { end })
    }

    /// The longest path of each group of events, with the weights that `weight` gives the
    /// edges. `groups` has the group of each event, of which there are `count`.
    pub(super) fn longest(
        &self,
        groups: &[u32],
        count: usize,
        weight: &dyn Fn(&PathEdge) -> Length,
    ) -> Vec<LongestPath> {
        let nodes = self.events.len().saturating_mul(2);
        let outgoing = Outgoing::new(nodes, &self.edges);
        let mut waits = vec![0u32; nodes];
        for edge in &self.edges {
            if let Some(count) = waits.get_mut(edge.to as usize) {
                *count += 1;
            }
        }
        let mut reached = vec![(Length::ZERO, NONE); nodes];
        let is_ready = |node: &u32| waits_for_none(&waits, *node);
        let mut ready: Vec<u32> = (0..nodes as u32).filter(is_ready).collect();
        let mut done = 0;
        while let Some(node) = ready.pop() {
            done += 1;
            let so_far = reached.get(node as usize).map_or(Length::ZERO, |at| at.0);
            for number in outgoing.of(node) {
                let Some(edge) = self.edges.get(*number as usize) else {
                    continue;
                };
                let length = so_far + weight(edge);
                if let Some(at) = reached.get_mut(edge.to as usize)
                    && (length > at.0 || at.1 == NONE)
                {
                    *at = (length, *number);
                }
                if let Some(count) = waits.get_mut(edge.to as usize) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        ready.push(edge.to);
                    }
                }
            }
        }
        let mut last: Vec<Option<(Length, u32)>> = vec![None; count];
        for (node, (length, _)) in (0u32..).zip(&reached) {
            let group = groups.get(node as usize / 2);
            let slot = group.and_then(|group| last.get_mut(*group as usize));
            if let Some(slot) = slot.filter(|_| waits_for_none(&waits, node))
                && slot.is_none_or(|(longest, _)| *length > longest)
            {
                *slot = Some((*length, node));
            }
        }
        let circular = nodes - done;
        let paths = last.into_iter();
        let paths = paths.map(|last| self.trace_back(&reached, last, circular, weight));
        paths.collect()
    }

    /// From the node that is reached last back to where the path begins.
    fn trace_back(
        &self,
        reached: &[(Length, u32)],
        last: Option<(Length, u32)>,
        circular: usize,
        weight: &dyn Fn(&PathEdge) -> Length,
    ) -> LongestPath {
        let mut steps = Vec::new();
        let mut at = last.map(|(_, node)| node);
        while let Some((_, number)) = at.and_then(|node| reached.get(node as usize)) {
            let Some(edge) = self.edges.get(*number as usize) else {
                break;
            };
            steps.push((*number, weight(edge)));
            at = Some(edge.from);
        }
        steps.reverse();
        LongestPath {
            length: last.map_or(Length::ZERO, |(length, _)| length),
            steps,
            circular,
        }
    }
}

/// Whether a node waits for nothing any more.
fn waits_for_none(waits: &[u32], node: u32) -> bool {
    waits.get(node as usize) == Some(&0)
}

/// The edges that leave each node.
struct Outgoing {
    /// Where a node's edges begin in `edges`; one more for the end.
    first: Vec<u32>,
    edges: Vec<u32>,
}

impl Outgoing {
    fn new(nodes: usize, edges: &[PathEdge]) -> Self {
        let mut first = vec![0u32; nodes + 1];
        for edge in edges {
            if let Some(count) = first.get_mut(edge.from as usize + 1) {
                *count += 1;
            }
        }
        let mut sum = 0u32;
        for count in &mut first {
            sum = sum.saturating_add(*count);
            *count = sum;
        }
        let mut next = first.clone();
        let mut sorted = vec![0u32; edges.len()];
        for (number, edge) in (0u32..).zip(edges) {
            let Some(place) = next.get_mut(edge.from as usize) else {
                continue;
            };
            if let Some(slot) = sorted.get_mut(*place as usize) {
                *slot = number;
            }
            *place += 1;
        }
        Self {
            first,
            edges: sorted,
        }
    }

    fn of(&self, node: u32) -> &[u32] {
        let from = self.first.get(node as usize).copied().unwrap_or(0);
        let to = self.first.get(node as usize + 1).copied().unwrap_or(0);
        let range = self.edges.get(from as usize..to as usize);
        range.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(events: u32, edges: &[(u32, u32, i64)]) -> PathGraph {
        let mut graph = PathGraph::default();
        for event in 0..events {
            graph.add_event(PathEvent {
                event,
                rank: 0,
                role: PathRole::Host,
                times: (
                    Time(100 * i64::from(event)),
                    Time(100 * i64::from(event) + 50),
                ),
            });
        }
        for (from, to, weight) in edges {
            graph.add(EdgeKind::Own, *from, *to, from / 2, Length(*weight));
        }
        graph
    }

    fn longest(graph: &PathGraph, weight: &dyn Fn(&PathEdge) -> Length) -> LongestPath {
        let groups = vec![0; graph.events.len()];
        graph.longest(&groups, 1, weight).remove(0)
    }

    #[test]
    fn the_longest_path_is_found_and_changes_with_its_weights() {
        let edges = [
            (0, 1, 5),
            (1, 4, 1),
            (0, 2, 2),
            (2, 3, 7),
            (3, 4, 0),
            (4, 5, 1),
        ];
        let graph = graph(3, &edges);
        let path = longest(&graph, &|edge| edge.weight);
        let steps: Vec<u32> = path.steps.iter().map(|(edge, _)| *edge).collect();
        assert_eq!((path.length, steps), (Length(10), vec![2, 3, 4, 5]));
        // The other way is 7: not 10 - 6.
        let shorter = longest(&graph, &|edge| match edge.from {
            2 => Length(1),
            _ => edge.weight,
        });
        assert_eq!(shorter.length, Length(7));
    }

    #[test]
    fn circles_and_negative_times_do_no_harm() {
        let edges = [(0, 1, -5), (2, 3, 4), (3, 2, 4), (3, 5, 9)];
        let path = longest(&graph(3, &edges), &|edge| edge.weight);
        assert_eq!((path.length, path.circular), (Length::ZERO, 3));
        // It ends 50 before what it waits for begins.
        let back = longest(&graph(3, &[(0, 2, 70), (2, 1, 0), (1, 5, 200)]), &|edge| {
            edge.weight
        });
        assert_eq!(back.length, Length(70 - 50 + 200));
        // At most the time between its nodes.
        let more = longest(&graph(2, &[(0, 3, 1000)]), &|edge| edge.weight);
        assert_eq!(more.length, Length(150));
        let empty = longest(&PathGraph::default(), &|edge| edge.weight);
        assert_eq!(empty, LongestPath::default());
    }
}
