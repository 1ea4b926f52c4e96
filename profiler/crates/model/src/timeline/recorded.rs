//! A recording as a timeline: its events one by one, and what they refer to.
//!
//! Events of a recording become known in no order of time: a call when it ends, what a
//! device did long after. And what they refer to is known only at the end: a kernel's
//! name may be found out late. So events go to an [`EventSink`] with numbers for names,
//! tracks and stacks, and [`Recorded`] holds what the numbers mean when all is over.

use super::{Event, Length, Members, Names, Sym, TrackId, Tracks, Value};
use crate::json::cut;
use crate::profile::{FrameKind, Losses, Meta};
use rustc_hash::{FxHashMap, FxHashSet};
use std::io;

/// Takes the events of a recording as they become known.
pub trait EventSink {
    /// Takes an event. Its times count from [`Recorded::origin_ns`]; `depth` is how many
    /// spans of its track are known to be around it; `args` are its arguments
    /// ([`Event::args`] is not used).
    ///
    /// # Errors
    /// It could not be kept.
    fn event(&mut self, event: &Event, depth: u32, args: Members<'_>) -> io::Result<()>;
}

/// What a track belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// A process.
    Process(u32),
    /// Something else, by its name: a device, a source of counters.
    Named(String),
}

/// How a track is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it belongs to.
    pub group: Group,
    /// Its name.
    pub name: String,
}

/// A process that has tracks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessRow {
    /// Its name.
    pub name: Box<str>,
    /// It called an accelerator's runtime or driver.
    pub has_calls: bool,
    /// Its labels, in the order of their keys.
    pub labels: Vec<(String, String)>,
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StackFrame {
    /// Its name.
    pub name: Box<str>,
    /// What kind of code it is.
    pub kind: FrameKind,
}

/// Stacks as a tree: a stack is a node, with all nodes up to the root.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    /// Every frame once.
    pub frames: Vec<StackFrame>,
    /// For each node, the one towards the root ([`NONE`](super::NONE): it is the
    /// outermost), and its frames in `lists`, outermost first. There are several frames
    /// where functions are inlined into each other.
    pub nodes: Vec<StackNode>,
    /// Numbers of frames, referred to by `nodes`.
    pub lists: Vec<u32>,
}

/// A node of [`Stacks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackNode {
    /// The node towards the root.
    pub parent: u32,
    /// Where its frames begin in [`Stacks::lists`].
    pub first: u32,
    /// How many they are.
    pub len: u32,
}

impl Stacks {
    /// The nodes of a stack, leaf first.
    pub fn nodes_of(&self, stack: u32) -> impl Iterator<Item = (u32, &StackNode)> {
        let mut next = stack;
        // A node's parent came before it: so this ends.
        std::iter::from_fn(move || {
            let id = next;
            let node = self.nodes.get(id as usize)?;
            next = if node.parent < id {
                node.parent
            } else {
                super::NONE
            };
            Some((id, node))
        })
    }

    /// The frames of a node, outermost first.
    pub fn frames_of(&self, node: &StackNode) -> impl DoubleEndedIterator<Item = u32> {
        let list = self.lists.get(node.first as usize..);
        let list = list.and_then(|list| list.get(..node.len as usize));
        list.unwrap_or_default().iter().copied()
    }

    /// The frame that a stack ends in.
    pub fn leaf(&self, stack: u32) -> Option<&StackFrame> {
        let node = self.nodes.get(stack as usize)?;
        let frame = self.frames_of(node).next_back()?;
        self.frames.get(frame as usize)
    }
}

/// How much a recording holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Spans of calls.
    pub calls: u64,
    /// Launches among their arguments.
    pub launches: u64,
    /// CPU samples.
    pub samples: u64,
    /// Waits of threads.
    pub waits: u64,
    /// Operators of PyTorch, and what programs marked.
    pub ops: u64,
    /// Submissions to devices.
    pub submissions: u64,
    /// Spans of devices, by their own records.
    pub device_spans: u64,
    /// Spans of devices that are only known to lie between two calls.
    pub estimated_spans: u64,
    /// Arrows from launches to kernels.
    pub flows: u64,
    /// Values of counters.
    pub counters: u64,
    /// Readings of samples of devices: their stalls.
    pub stalls: u64,
}

/// What the events of a recording refer to.
#[derive(Debug, Default)]
pub struct Recorded {
    /// About the recording.
    pub meta: Meta,
    /// What times count from, CLOCK_MONOTONIC nanoseconds.
    pub origin_ns: u64,
    /// The first event, CLOCK_MONOTONIC nanoseconds.
    pub start_ns: u64,
    /// The last event, CLOCK_MONOTONIC nanoseconds.
    pub end_ns: u64,
    /// How long a CPU sample stands for.
    pub period: Length,
    /// How often the time of day was set.
    pub clock_steps: u64,
    /// Texts.
    pub names: Names,
    /// Texts that stand for others, which became known later.
    pub renamed: FxHashMap<Sym, Sym>,
    /// Tracks.
    pub tracks: Tracks,
    /// How they are shown, by number.
    pub rows: Vec<Row>,
    /// Tracks that have turned out to show what others show better.
    pub surplus: FxHashSet<TrackId>,
    /// Processes with tracks.
    pub processes: std::collections::BTreeMap<u32, ProcessRow>,
    /// Stacks.
    pub stacks: Stacks,
    /// How much there is.
    pub totals: Totals,
    /// What was lost.
    pub losses: Losses,
}

impl Recorded {
    /// From the first event to the last, nanoseconds.
    pub fn length_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }

    /// Gives an event's arguments to `take`, with what the event has of them in numbers:
    /// its correlation and its work.
    pub fn arguments(
        &self,
        event: &Event,
        args: Members<'_>,
        mut take: impl FnMut(&str, Value<'_>),
    ) {
        args.for_each(|(key, value)| take(key, value));
        if event.correlation != 0 {
            take("correlation", Value::Number(event.correlation));
        }
        if !event.work.is_empty() {
            take("work", Value::Text(&cut(self.name(event.work))));
        }
    }

    /// A text, as it is known in the end.
    pub fn name(&self, sym: Sym) -> &str {
        self.names
            .get(self.renamed.get(&sym).copied().unwrap_or(sym))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::NONE;

    #[test]
    fn stacks_are_walked_to_the_root_and_end() {
        let frame = |name: &str| StackFrame {
            name: name.into(),
            kind: FrameKind::Native,
        };
        let stacks = Stacks {
            frames: vec![frame("main"), frame("f"), frame("inlined")],
            nodes: vec![
                StackNode {
                    parent: NONE,
                    first: 0,
                    len: 1,
                },
                StackNode {
                    parent: 0,
                    first: 1,
                    len: 2,
                },
                // Damaged: it would never end.
                StackNode {
                    parent: 2,
                    first: 0,
                    len: 9,
                },
            ],
            lists: vec![0, 1, 2],
        };
        let of = |stack| stacks.nodes_of(stack).map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!((of(1), of(2), of(7)), (vec![1, 0], vec![2], vec![]));
        assert_eq!(stacks.leaf(1).map(|f| &*f.name), Some("inlined"));
        assert_eq!(stacks.leaf(2), None);
    }
}
