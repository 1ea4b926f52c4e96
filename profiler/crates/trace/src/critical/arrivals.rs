//! Collectives and messages, in which ranks wait for each other.
//!
//! A collective's kernel runs from when its own rank is ready. What it takes once all are
//! is its time; before, it waits for the last. So a collective has a moment when all have
//! arrived: each begin leads to it, it leads to each end, and the kernel has no time of its
//! own besides. The sender and the receiver of a message are such ranks. Where the sender ended
//! before the receiver began, its message was kept, and neither waited. HTA looks at one rank.

use super::build::{Builder, Numbered};
use super::graph::{EdgeKind, PathEvent, PathRole, begin, end};
use crate::point_to_point::{CommKind, CommKinds, MessageEnds};
use crate::work::{RankedWork, SameCollective, WorkClass};
use aiprof_model::timeline::{Dialect, Length, NONE, Sym, Time};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// Collectives that join ranks.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Work whose time is from the arrival of the last rank on.
    pub(super) members: FxHashSet<u32>,
    /// Collectives that join ranks.
    pub(super) joined: usize,
    /// Messages that join ranks.
    pub(super) messages: usize,
    /// Ranks, in the index, that are joined: pairs.
    pub(super) pairs: FxHashSet<(usize, usize)>,
    /// Collectives and messages of several ranks whose times do not fit: their clocks differ, or they
    /// are not the same.
    pub(super) apart: usize,
}

/// A part of a collective: its rank, number and work.
type CollectivePart<'w> = (usize, u32, &'w RankedWork);

/// Parts by rank.
type PartsOfRanks<'w> = BTreeMap<usize, Vec<CollectivePart<'w>>>;

/// Joins the collectives of all ranks.
pub(super) fn add(builder: &mut Builder<'_>, works: &[Numbered<'_>]) -> Arrivals {
    let mut arrivals = Arrivals::default();
    if works.len() < 2 {
        return arrivals;
    }
    let timeline = builder.timeline;
    let mut numbered: FxHashMap<(u16, SameCollective<'_>), PartsOfRanks<'_>> = FxHashMap::default();
    let mut groups: FxHashMap<Sym, Vec<CollectivePart<'_>>> = FxHashMap::default();
    let (mut kinds, mut ends) = (CommKinds::new(timeline), MessageEnds::default());
    let index = builder.index;
    for (rank, works) in works.iter().enumerate() {
        for (number, work) in works {
            let event = timeline.events.get(work.event as usize);
            let Some(event) = event.filter(|_| work.class == WorkClass::Communication) else {
                continue;
            };
            let part = (rank, *number, *work);
            if timeline.dialect(event) == Dialect::Flex {
                let group = timeline.transfer(event).map_or(Sym::EMPTY, |t| t.group);
                groups.entry(group).or_default().push(part);
                continue;
            }
            let of_job = index.ranks.get(rank).map_or(0, |rank| rank.rank);
            let cycle = index.cycle(work);
            match kinds.of(event, of_job) {
                CommKind::Message(end) => ends.add(cycle, end, part),
                CommKind::UnknownMessage => {}
                CommKind::Collective(key) => {
                    let ranks = numbered.entry((cycle, key)).or_default();
                    ranks.entry(rank).or_default().push(part);
                }
            }
        }
    }
    for (send, receive) in ends.pairs().0 {
        let is_kept = send.2.end <= receive.2.start;
        if !is_kept && send.0 != receive.0 && join(builder, &mut arrivals, &[send, receive]) {
            arrivals.messages += 1;
        }
    }
    for ranks in numbered.into_values() {
        by_number(builder, &mut arrivals, &ranks);
    }
    for parts in groups.into_values() {
        by_time(builder, &mut arrivals, parts);
    }
    arrivals
}

/// The n-th kernel of each rank in a cycle belongs to the n-th collective, where all have as many.
fn by_number(builder: &mut Builder<'_>, arrivals: &mut Arrivals, ranks: &PartsOfRanks<'_>) {
    let ranks: Vec<_> = ranks.values().collect();
    let Some(count) = ranks.first().map(|parts| parts.len()) else {
        return;
    };
    if ranks.len() < 2 {
        return;
    }
    if ranks.iter().any(|parts| parts.len() != count) {
        arrivals.apart += count;
        return;
    }
    for at in 0..count {
        let parts = ranks.iter().filter_map(|parts| parts.get(at));
        let parts: Vec<CollectivePart<'_>> = parts.copied().collect();
        arrivals.joined += usize::from(join(builder, arrivals, &parts));
    }
}

/// Parts that follow each other without a gap are of one collective: those of the AIU's
/// runtime have many parts on each rank.
fn by_time(builder: &mut Builder<'_>, arrivals: &mut Arrivals, mut parts: Vec<CollectivePart<'_>>) {
    parts.sort_unstable_by_key(|(_, number, work)| (work.start, *number));
    let mut from = 0;
    let mut ended: Option<Time> = None;
    for at in 0..=parts.len() {
        let next = parts.get(at).map(|(.., work)| *work);
        let is_new = next.is_none_or(|next| ended.is_some_and(|ended| next.start > ended));
        if is_new {
            let one = parts.get(from..at).unwrap_or_default();
            let first = one.first().map(|(rank, ..)| *rank);
            if one.iter().any(|(rank, ..)| Some(*rank) != first) {
                arrivals.joined += usize::from(join(builder, arrivals, one));
            }
            (from, ended) = (at, None);
        }
        ended = ended.max(next.map(|next| next.end));
    }
}

/// Lets the parts of a collective or message wait for the rank that begins last. Returns whether
/// their times fit.
fn join(builder: &mut Builder<'_>, arrivals: &mut Arrivals, parts: &[CollectivePart<'_>]) -> bool {
    let mut begins: FxHashMap<usize, Time> = FxHashMap::default();
    for (rank, _, work) in parts {
        let first = begins.entry(*rank).or_insert(work.start);
        *first = (*first).min(work.start);
    }
    let Some(moment) = begins.values().max().copied() else {
        return false;
    };
    // Every rank still takes part when the last one begins.
    let takes_part = |(_, _, work): &&CollectivePart<'_>| work.start <= moment && work.end > moment;
    let members: Vec<&CollectivePart<'_>> = parts.iter().filter(takes_part).collect();
    let ranks: FxHashSet<usize> = members.iter().map(|(rank, ..)| *rank).collect();
    if ranks.len() < begins.len() {
        arrivals.apart += 1;
        return false;
    }
    if let Some(first) = ranks.iter().min() {
        arrivals
            .pairs
            .extend(ranks.iter().map(|rank| (*first, *rank)));
    }
    let arrival = builder.graph.add_event(PathEvent {
        event: NONE,
        rank: NONE,
        role: PathRole::Arrival,
        times: (moment, moment),
    });
    for (_, number, work) in members {
        arrivals.members.insert(*number);
        let graph = &mut builder.graph;
        graph.add(
            EdgeKind::Arrival,
            begin(*number),
            begin(arrival),
            *number,
            Length::ZERO,
        );
        let took = work.end - moment;
        graph.add(EdgeKind::Own, begin(arrival), end(*number), *number, took);
    }
    true
}
