//! Messages from one device to another: kernels that send or receive, as NCCL has them.
//!
//! The name of such a kernel does not show what it does: NCCL's all-to-all runs as
//! `ncclDevKernel_SendRecv`, too. What torch notes of it does: at the kernel itself, or at the
//! operator `record_param_comms` that has its `External id`. The ranks there (`Src Rank`,
//! `Dst Rank`) are those of the whole job. Messages of one group between two ranks do not
//! overtake each other, so the n-th send belongs to the n-th receive.

use crate::work::{SameCollective, same_collective};
use aiprof_model::kernel_classes::KernelClass;
use aiprof_model::timeline::{Event, Sym, Timeline};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// What a kernel that communicates takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommKind<'t> {
    /// This collective.
    Collective(SameCollective<'t>),
    /// A message.
    Message(MessageEnd<'t>),
    /// Messages of which the trace does not show from where or to where they go.
    UnknownMessage,
}

/// One side of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageEnd<'t> {
    channel: Channel<'t>,
    is_send: bool,
}

/// From whom to whom messages go, in which group: its name and ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Channel<'t> {
    group: (&'t str, &'t str),
    from: u32,
    to: u32,
}

/// Finds what kernels take part in.
pub(crate) struct CommKinds<'t> {
    timeline: &'t Timeline,
    /// Names of kernels that are made for messages.
    messages: FxHashMap<Sym, bool>,
    /// Operators that describe kernels, by file and `External id`; `None`: not looked for yet.
    operators: Option<FxHashMap<(u32, &'t str), &'t Event>>,
}

impl<'t> CommKinds<'t> {
    /// For the events of a timeline.
    pub(crate) fn new(timeline: &'t Timeline) -> Self {
        Self {
            timeline,
            messages: FxHashMap::default(),
            operators: None,
        }
    }

    /// What a kernel that communicates on a rank takes part in.
    pub(crate) fn of(&mut self, event: &'t Event, rank: u32) -> CommKind<'t> {
        let timeline = self.timeline;
        let name = event.original_name();
        let is_message = *self
            .messages
            .entry(name)
            .or_insert_with(|| timeline.classes.of(timeline.name(name)) == KernelClass::Message);
        if !is_message {
            return CommKind::Collective(same_collective(timeline, event));
        }
        let Some(described) = self.described(event) else {
            return CommKind::UnknownMessage;
        };
        let text = |key| {
            timeline
                .arg(described, key)
                .unwrap_or_default()
                .trim_matches('"')
        };
        let peer = |key| text(key).parse::<u32>().ok();
        let group = (text(GROUP), text("Process Group Ranks"));
        let (is_send, ends) = match text(COLLECTIVE) {
            "send" => (true, peer("Dst Rank").map(|to| (rank, to))),
            "recv" => (false, peer("Src Rank").map(|from| (from, rank))),
            // Several messages that began together.
            "" | "coalesced" => return CommKind::UnknownMessage,
            _ => {
                let (_, group, ranks) = same_collective(timeline, described);
                return CommKind::Collective((name, group, ranks));
            }
        };
        match ends {
            None => CommKind::UnknownMessage,
            Some((from, to)) => CommKind::Message(MessageEnd {
                channel: Channel { group, from, to },
                is_send,
            }),
        }
    }

    /// The event whose arguments describe what a kernel does.
    fn described(&mut self, event: &'t Event) -> Option<&'t Event> {
        let timeline = self.timeline;
        if timeline.arg(event, COLLECTIVE).is_some() {
            return Some(event);
        }
        let operators = self.operators.get_or_insert_with(|| operators(timeline));
        let number = timeline.arg(event, EXTERNAL)?;
        operators.get(&(timeline.job(event), number)).copied()
    }
}

const COLLECTIVE: &str = "Collective name";
const GROUP: &str = "Process Group Name";
const EXTERNAL: &str = "External id";

fn operators(timeline: &Timeline) -> FxHashMap<(u32, &str), &Event> {
    let all = timeline.events.iter().filter(|event| {
        event.is_slice() && timeline.name(event.original_name()) == "record_param_comms"
    });
    let keyed = all.filter_map(|event| {
        timeline.arg(event, COLLECTIVE)?;
        let number = timeline.arg(event, EXTERNAL)?;
        Some(((timeline.job(event), number), event))
    });
    keyed.collect()
}

/// Sends and receives in the order in which each rank ran them.
pub(crate) struct MessageEnds<'t, T> {
    /// By cycle of the ranks' profilers and channel.
    channels: BTreeMap<(u16, Channel<'t>), (Vec<T>, Vec<T>)>,
}

impl<T> Default for MessageEnds<'_, T> {
    fn default() -> Self {
        Self {
            channels: BTreeMap::new(),
        }
    }
}

impl<'t, T: Copy> MessageEnds<'t, T> {
    /// Adds one side of a message, which is of a cycle of its rank's profiler.
    pub(crate) fn add(&mut self, cycle: u16, end: MessageEnd<'t>, of: T) {
        let (sends, receives) = self.channels.entry((cycle, end.channel)).or_default();
        match end.is_send {
            true => sends.push(of),
            false => receives.push(of),
        }
    }

    /// The messages, each as its send and its receive, and the number of sides whose other side is
    /// not known. Where not as many were received as sent, nothing shows which are missing.
    pub(crate) fn pairs(self) -> (Vec<(T, T)>, u64) {
        let (mut pairs, mut alone) = (Vec::new(), 0);
        for (sends, receives) in self.channels.into_values() {
            match sends.len() == receives.len() {
                true => pairs.extend(sends.into_iter().zip(receives)),
                false => alone += (sends.len() + receives.len()) as u64,
            }
        }
        (pairs, alone)
    }
}
