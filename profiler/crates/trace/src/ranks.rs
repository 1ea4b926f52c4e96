//! Collectives and messages as their ranks had them: which parts belong together, and how long
//! each rank waited for the last one.

use crate::analyze::pipeline::Outcome;
use crate::point_to_point::{CommKind, CommKinds, MessageEnds};
use crate::work::{RankedWork, SameCollective, WorkClass, WorkIndex};
use aiprof_model::timeline::{Time, Timeline};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// A rank's part in a collective or message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartIn {
    /// The rank.
    pub rank: u32,
    /// What it waited for the last one, microseconds.
    pub waited_us: f64,
    /// Its begin.
    pub start: Time,
    /// Its end.
    pub end: Time,
}

/// A collective or message with all of its parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Matched {
    /// The event of its first rank's part; `None`: found by messages.
    pub event: Option<u32>,
    /// One for each rank, in their order; of a message its sender's, then its receiver's.
    pub parts: Vec<PartIn>,
}

impl Matched {
    /// The rank that the others waited for, and what each of them waited, if there are
    /// others.
    pub fn last(&self) -> Option<&PartIn> {
        let parts = self.parts.iter();
        let last = parts.min_by(|a, b| a.waited_us.total_cmp(&b.waited_us));
        last.filter(|_| self.parts.len() > 1)
    }
}

/// Collectives and messages whose parts are known, and those that could not be matched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collectives {
    /// Collectives of several ranks.
    pub matched: Vec<Matched>,
    /// Messages from one device to another, by kernels that send and receive.
    pub messages: Vec<Matched>,
    /// Kernels that send or receive, and whose other side is not known.
    pub unpaired: u64,
    /// By rank: kernels of collectives, and kernels that send or receive.
    pub kernels: BTreeMap<u32, (u64, u64)>,
    /// Kernels of collectives that other ranks have another number of: nothing shows which belong
    /// together.
    pub unmatched: u64,
}

impl Collectives {
    /// Finds the collectives of all ranks: by kernels of libraries of communication, else by
    /// messages.
    pub fn of(timeline: &Timeline, index: &WorkIndex, outcome: &Outcome) -> Self {
        let found = by_device(timeline, index);
        match found.matched.is_empty() {
            true => Self {
                matched: by_messages(outcome),
                ..found
            },
            false => found,
        }
    }
}

/// Kernels that communicate: the n-th of a name in a cycle of the profilers is the same collective
/// on all ranks, if all have as many. The one that comes last is in it for the shortest time:
/// so clocks of ranks need not agree.
fn by_device(timeline: &Timeline, index: &WorkIndex) -> Collectives {
    let mut all: FxHashMap<(u16, SameCollective<'_>), BTreeMap<u32, Vec<&RankedWork>>> =
        FxHashMap::default();
    let mut found = Collectives::default();
    let (mut kinds, mut ends) = (CommKinds::new(timeline), MessageEnds::default());
    for rank in &index.ranks {
        for work in &rank.work {
            let event = timeline.events.get(work.event as usize);
            let Some(event) = event.filter(|_| work.class == WorkClass::Communication) else {
                continue;
            };
            let kind = kinds.of(event, rank.rank);
            let cycle = index.cycle(work);
            let (collectives, messages) = found.kernels.entry(rank.rank).or_default();
            match kind {
                CommKind::Collective(_) => *collectives += 1,
                _ => *messages += 1,
            }
            match kind {
                CommKind::Message(end) => ends.add(cycle, end, (rank.rank, work)),
                CommKind::UnknownMessage => found.unpaired += 1,
                CommKind::Collective(_) if event.is_counted() => {}
                CommKind::Collective(same) => {
                    let of = all.entry((cycle, same)).or_default();
                    of.entry(rank.rank).or_default().push(work);
                }
            }
        }
    }
    for ranks in all.into_values().filter(|ranks| ranks.len() > 1) {
        let count = ranks.values().next().map_or(0, Vec::len);
        if ranks.values().any(|work| work.len() != count) {
            let kernels = ranks.values().map(|work| work.len() as u64);
            found.unmatched += kernels.sum::<u64>();
            continue;
        }
        let one = |at: usize| {
            let parts = ranks
                .iter()
                .filter_map(|(rank, work)| Some((*rank, *work.get(at)?)));
            matched(&parts.collect::<Vec<_>>())
        };
        found.matched.extend((0..count).map(one));
    }
    let (pairs, alone) = ends.pairs();
    found.unpaired += alone;
    let pairs = pairs
        .into_iter()
        .filter(|(send, receive)| send.0 != receive.0);
    found.messages.extend(pairs.map(|(send, receive)| {
        let mut message = matched(&[send, receive]);
        // The receiver began after the sender had ended: neither waited.
        if send.1.end <= receive.1.start {
            message
                .parts
                .iter_mut()
                .for_each(|part| part.waited_us = 0.0);
        }
        message
    }));
    let start = |one: &Matched| one.parts.iter().map(|part| part.start).min();
    for list in [&mut found.matched, &mut found.messages] {
        list.sort_by_key(|one| (start(one), one.event));
    }
    found
}

fn matched(parts: &[(u32, &RankedWork)]) -> Matched {
    let lengths = parts.iter().map(|(_, work)| work.us());
    let least = lengths.fold(f64::MAX, f64::min);
    let part = |(rank, work): &(u32, &RankedWork)| PartIn {
        rank: *rank,
        waited_us: work.us() - least,
        start: work.start,
        end: work.end,
    };
    Matched {
        event: parts.first().map(|(_, work)| work.event),
        parts: parts.iter().map(part).collect(),
    }
}

/// Collectives found by messages between AIUs, on clocks that were brought together.
fn by_messages(outcome: &Outcome) -> Vec<Matched> {
    let found = outcome.collectives.collectives.iter();
    let parts = found.map(|one| {
        let starts = one.spans.iter().map(|span| span.start_us);
        let last = starts.fold(f64::MIN, f64::max);
        let part = one.spans.iter().map(|span| PartIn {
            rank: span.rank,
            waited_us: last - span.start_us,
            start: Time::from_micros(span.start_us),
            end: Time::from_micros(span.end_us),
        });
        Matched {
            event: None,
            parts: part.collect(),
        }
    });
    parts.collect()
}
