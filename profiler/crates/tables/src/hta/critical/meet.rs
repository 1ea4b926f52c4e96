//! Collectives, in which ranks wait for each other.
//!
//! A collective's kernel runs from when its own rank is ready. What it takes once all are
//! is its time; before, it waits for the last. So the kernels of a collective meet in one
//! moment: each begin leads to it, it leads to each end, and the kernel has no time of its
//! own besides. HTA looks at one rank.

use super::build::{Builder, Numbered};
use super::graph::{EdgeKind, PathEvent, PathRole, begin, end};
use aiprof_model::timeline::{Dialect, Length, NONE, Sym, Time};
use aiprof_trace::work::{RankedWork, WorkClass, sym_of};
use rustc_hash::{FxHashMap, FxHashSet};

/// Collectives that ranks meet in.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    /// Work whose time is from the meeting on.
    pub(super) members: FxHashSet<u32>,
    /// Collectives in which ranks meet.
    pub(super) joined: usize,
    /// Ranks, in the index, that meet: pairs.
    pub(super) pairs: FxHashSet<(usize, usize)>,
    /// Collectives of several ranks whose times do not fit: their clocks differ, or they
    /// are not the same.
    pub(super) apart: usize,
}

/// A part of a collective: its rank, number and work.
type CollectivePart<'w> = (usize, u32, &'w RankedWork);

/// What distinguishes collectives: name, process group, its ranks.
type CollectiveKey<'t> = (Sym, &'t str, &'t str);

/// Joins the collectives of all ranks.
pub(super) fn add(builder: &mut Builder<'_>, works: &[Numbered<'_>]) -> Meetings {
    let mut meetings = Meetings::default();
    if works.len() < 2 {
        return meetings;
    }
    let timeline = builder.timeline;
    let mut numbered: FxHashMap<CollectiveKey<'_>, Vec<Vec<CollectivePart<'_>>>> =
        FxHashMap::default();
    let mut groups: FxHashMap<Sym, Vec<CollectivePart<'_>>> = FxHashMap::default();
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
            let given = |key| timeline.arg(event, key).unwrap_or_default();
            let key = (
                sym_of(event),
                given("Process Group Name"),
                given("Process Group Ranks"),
            );
            let ranks = numbered.entry(key).or_default();
            ranks.resize(works_len(ranks.len(), rank), Vec::new());
            if let Some(own) = ranks.get_mut(rank) {
                own.push(part);
            }
        }
    }
    for ranks in numbered.into_values() {
        by_number(builder, &mut meetings, &ranks);
    }
    for parts in groups.into_values() {
        by_time(builder, &mut meetings, parts);
    }
    meetings
}

fn works_len(len: usize, rank: usize) -> usize {
    len.max(rank + 1)
}

/// The n-th kernel of each rank belongs to the n-th collective, where all have as many.
fn by_number(
    builder: &mut Builder<'_>,
    meetings: &mut Meetings,
    ranks: &[Vec<CollectivePart<'_>>],
) {
    let ranks: Vec<_> = ranks.iter().filter(|parts| !parts.is_empty()).collect();
    let Some(count) = ranks.first().map(|parts| parts.len()) else {
        return;
    };
    if ranks.len() < 2 {
        return;
    }
    if ranks.iter().any(|parts| parts.len() != count) {
        meetings.apart += count;
        return;
    }
    for at in 0..count {
        let parts = ranks.iter().filter_map(|parts| parts.get(at));
        let parts: Vec<CollectivePart<'_>> = parts.copied().collect();
        meet(builder, meetings, &parts);
    }
}

/// Parts that follow each other without a gap are of one collective: those of the AIU's
/// runtime have many parts on each rank.
fn by_time(builder: &mut Builder<'_>, meetings: &mut Meetings, mut parts: Vec<CollectivePart<'_>>) {
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
                meet(builder, meetings, one);
            }
            (from, ended) = (at, None);
        }
        ended = ended.max(next.map(|next| next.end));
    }
}

/// Lets the parts of a collective wait for the rank that begins last.
fn meet(builder: &mut Builder<'_>, meetings: &mut Meetings, parts: &[CollectivePart<'_>]) {
    let mut begins: FxHashMap<usize, Time> = FxHashMap::default();
    for (rank, _, work) in parts {
        let first = begins.entry(*rank).or_insert(work.start);
        *first = (*first).min(work.start);
    }
    let Some(moment) = begins.values().max().copied() else {
        return;
    };
    // Every rank still takes part when the last one begins.
    let takes_part = |(_, _, work): &&CollectivePart<'_>| work.start <= moment && work.end > moment;
    let members: Vec<&CollectivePart<'_>> = parts.iter().filter(takes_part).collect();
    let ranks: FxHashSet<usize> = members.iter().map(|(rank, ..)| *rank).collect();
    if ranks.len() < begins.len() {
        meetings.apart += 1;
        return;
    }
    meetings.joined += 1;
    if let Some(first) = ranks.iter().min() {
        meetings
            .pairs
            .extend(ranks.iter().map(|rank| (*first, *rank)));
    }
    let meeting = builder.graph.add_event(PathEvent {
        event: NONE,
        rank: NONE,
        role: PathRole::Meeting,
    });
    for (_, number, work) in members {
        meetings.members.insert(*number);
        let graph = &mut builder.graph;
        graph.add(
            EdgeKind::Arrival,
            begin(*number),
            begin(meeting),
            *number,
            Length::ZERO,
        );
        let took = work.end - moment;
        graph.add(EdgeKind::Own, begin(meeting), end(*number), *number, took);
    }
}
