//! Collective operations as spans, and the bandwidth they reach (`-R`, stages 35, 36
//! and 42).
//!
//! An operation is made of the messages of one group (`CollGroup`), each at most
//! once; a trace has the same group again in every iteration. On a rank it goes from
//! the end of the kernel whose result is exchanged to the end of the rank's last
//! message. Nothing here depends on the way the messages go (chain, tree, ring).

use super::exchanges::Exchange;
use crate::analyze::utilization::python::json;
use aiprof_model::timeline::{Event, Id, Kinds, NONE, Ph, Sym, Time, Timeline, Track, Transfer};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A kernel whose end is farther from a rank's first message than this has nothing
/// to do with it, microseconds.
const NEAR_US: f64 = 10_000.0;
/// Pid of counters that are of no rank.
const NO_RANK: i64 = -1;

/// Which way the messages of an operation go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// From each rank to the next; the last sends the result to all, or back along
    /// the chain.
    Chain,
    /// Along the edges of a tree, or from rank 0 to all at once.
    Tree,
    /// From each rank to the next, and from the last to the first.
    Ring,
    /// Any other way.
    Other,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chain => "chain",
            Self::Tree => "tree",
            Self::Ring => "ring",
            Self::Other => "other",
        })
    }
}

/// An operation on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The rank.
    pub rank: u32,
    /// Begin, microseconds since the timeline's origin.
    pub start_us: f64,
    /// End.
    pub end_us: f64,
    /// Event of the kernel whose result is exchanged; `None`: none is near, the span
    /// begins with the rank's first message.
    pub kernel: Option<u32>,
}

/// An operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// Its group (`CollGroup`).
    pub group: Sym,
    /// Which way its messages went.
    pub algorithm: Algorithm,
    /// Ranks, sorted.
    pub spans: Vec<Span>,
    /// Bytes of its largest message, -1: not known.
    pub bytes: i64,
    /// Bytes of all its messages.
    pub data_bytes: i64,
    /// Begin on the first rank, microseconds since the timeline's origin.
    pub start_us: f64,
    /// End on the last rank.
    pub end_us: f64,
    /// All bytes by all that time; `None`: the bytes are not known, or it took none.
    pub gigabytes_per_second: Option<f64>,
}

/// A row of `<name>_stats_summary.csv`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ActiveRow {
    /// Rank (`pid`).
    pub rank: u32,
    /// From the begin of the first kernel to the end of the last, microseconds.
    pub elapsed_us: f64,
    /// Sum of its kernels.
    pub compute_us: f64,
    /// Sum of its collectives' spans; `None`: it has none.
    pub communication_us: Option<f64>,
}

impl ActiveRow {
    /// Share of kernels in the time, 0 to 1.
    pub fn compute_share(&self) -> Option<f64> {
        (self.elapsed_us > 0.0).then(|| self.compute_us / self.elapsed_us)
    }

    /// Share of collectives in the time, 0 to 1.
    pub fn communication_share(&self) -> Option<f64> {
        let us = self.communication_us.filter(|_| self.elapsed_us > 0.0)?;
        Some(us / self.elapsed_us)
    }
}

/// What was found and done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CollectiveReport {
    /// All operations in the order of time.
    pub collectives: Vec<Collective>,
    /// Rows of the table of active time, by rank.
    pub active: Vec<ActiveRow>,
    /// Slices (one per rank and operation) and counters that were added at the end of
    /// the events.
    pub added: usize,
    /// Ranks' parts that end before they begin: clocks that are not aligned. They
    /// have no span.
    pub reversed: u64,
    /// Operations that went on at the same time as another: the counter shows their
    /// sum.
    pub concurrent: u64,
}

/// Adds spans and the counter `Coll_Bandwidth`. Needs the messages of
/// [`super::flows`] or [`super::exchanges`] and aligned clocks; no order.
pub fn run(timeline: &mut Timeline, kinds: &Kinds, pairs: &[Exchange]) -> CollectiveReport {
    let mut outcome = CollectiveReport::default();
    let kernels = kernels(timeline, kinds);
    for pairs in operations(timeline, pairs) {
        if let Some(found) = collective(timeline, &kernels, &pairs, &mut outcome.reversed) {
            outcome.collectives.push(found);
        }
    }
    let all = &mut outcome.collectives;
    all.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
    outcome.active = active(timeline, kinds, all);
    let before = timeline.events.len();
    for found in all.iter() {
        add_spans(timeline, found);
    }
    outcome.concurrent = add_counter(timeline, all);
    outcome.added = timeline.events.len() - before;
    outcome
}

/// An operation's number, and its messages so far: synchronization, sender, receiver.
type OpenOperation = (usize, FxHashSet<(Sym, u32, u32)>);

/// Messages of each operation: a message's second occurrence begins the next one.
fn operations(timeline: &Timeline, pairs: &[Exchange]) -> Vec<Vec<Exchange>> {
    let mut sorted = pairs.to_vec();
    let sent = |pair: &Exchange| {
        let event = timeline.events.get(pair.send as usize);
        event.map_or(0.0, Event::end_us)
    };
    sorted.sort_by(|a, b| sent(a).total_cmp(&sent(b)));
    let mut open: FxHashMap<Sym, OpenOperation> = FxHashMap::default();
    let mut all: Vec<Vec<Exchange>> = Vec::new();
    for pair in sorted {
        let (at, seen) = open.entry(pair.group).or_insert_with(|| {
            all.push(Vec::new());
            (all.len() - 1, FxHashSet::default())
        });
        if !seen.insert((pair.sync, pair.from, pair.to)) {
            seen.clear();
            seen.insert((pair.sync, pair.from, pair.to));
            all.push(Vec::new());
            *at = all.len() - 1;
        }
        if let Some(operation) = all.get_mut(*at) {
            operation.push(pair);
        }
    }
    all
}

/// Kernels that are not part of a collective, by rank: end and event, by end.
fn kernels(timeline: &Timeline, kinds: &Kinds) -> FxHashMap<u32, Vec<(f64, u32)>> {
    let mut kernels: FxHashMap<u32, Vec<(f64, u32)>> = FxHashMap::default();
    for (index, event) in (0u32..).zip(&timeline.events) {
        let is_one = event.is_slice()
            && !event.dropped
            && kinds.is_kernel(timeline, event)
            && !kinds.is_collective(timeline, event)
            && !timeline.name(event.name).starts_with("AllReduce");
        if is_one {
            kernels
                .entry(timeline.rank(event))
                .or_default()
                .push((event.end_us(), index));
        }
    }
    for list in kernels.values_mut() {
        list.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    kernels
}

/// What a rank does in an operation: ends of its first send and its last receive,
/// begin of the first message and end of the last.
#[derive(Clone, Copy)]
struct RankMessages {
    sent_us: f64,
    received_us: f64,
    start_us: f64,
    end_us: f64,
}

fn collective(
    timeline: &Timeline,
    kernels: &FxHashMap<u32, Vec<(f64, u32)>>,
    pairs: &[Exchange],
    reversed: &mut u64,
) -> Option<Collective> {
    let mut parts: BTreeMap<u32, RankMessages> = BTreeMap::new();
    let (mut bytes, mut data_bytes) = (-1, 0i64);
    for pair in pairs {
        let event = |index: u32| timeline.events.get(index as usize);
        let (send, receive) = (event(pair.send)?, event(pair.receive)?);
        for (rank, event, is_send) in [(pair.from, send, true), (pair.to, receive, false)] {
            let part = parts.entry(rank).or_insert(RankMessages {
                sent_us: f64::INFINITY,
                received_us: f64::NEG_INFINITY,
                start_us: f64::INFINITY,
                end_us: f64::NEG_INFINITY,
            });
            match is_send {
                true => part.sent_us = part.sent_us.min(event.end_us()),
                false => part.received_us = part.received_us.max(event.end_us()),
            }
            part.start_us = part.start_us.min(event.ts());
            part.end_us = part.end_us.max(event.end_us());
        }
        let known = [receive, send]
            .into_iter()
            .filter_map(|e| timeline.transfer(e));
        let size = known
            .map(|t| t.bytes)
            .find(|bytes| *bytes >= 0)
            .unwrap_or(-1);
        bytes = bytes.max(size);
        data_bytes = data_bytes.saturating_add(size.max(0));
    }
    let ranks: Vec<u32> = parts.keys().copied().collect();
    let mut spans = Vec::new();
    for (rank, part) in &parts {
        let span = span(*rank, part, kernels.get(rank).map_or(&[], Vec::as_slice));
        if span.end_us < span.start_us {
            *reversed += 1;
        } else {
            spans.push(span);
        }
    }
    let start_us = spans.iter().map(|s| s.start_us).reduce(f64::min)?;
    let end_us = spans.iter().map(|s| s.end_us).reduce(f64::max)?;
    let took = end_us - start_us;
    let speed = data_bytes as f64 / took / 1000.0;
    Some(Collective {
        group: pairs.first()?.group,
        algorithm: algorithm(&ranks, pairs),
        gigabytes_per_second: (took > 0.0 && bytes >= 0).then_some(speed),
        spans,
        bytes,
        data_bytes,
        start_us,
        end_us,
    })
}

/// The rank's span. Its kernel is the last one that was over when the rank's first
/// message was out (the message holds what the kernel made). If a rank only receives, it
/// is the last one that was over when the rank's last message had come.
fn span(rank: u32, part: &RankMessages, kernels: &[(f64, u32)]) -> Span {
    let by = if part.sent_us.is_finite() {
        part.sent_us
    } else {
        part.received_us
    };
    let over = kernels.partition_point(|(end, _)| *end <= by);
    let kernel = over.checked_sub(1).and_then(|at| kernels.get(at));
    let kernel = kernel.filter(|(end, _)| by - end <= NEAR_US);
    Span {
        rank,
        start_us: kernel.map_or(part.start_us, |(end, _)| *end),
        end_us: part.end_us,
        kernel: kernel.map(|(_, index)| *index),
    }
}

fn algorithm(ranks: &[u32], pairs: &[Exchange]) -> Algorithm {
    let place = |rank: u32| ranks.binary_search(&rank).unwrap_or(0);
    let last = ranks.len().saturating_sub(1);
    let many: BTreeSet<usize> = pairs
        .iter()
        .filter(|pair| pair.is_multicast)
        .map(|pair| place(pair.from))
        .collect();
    if !many.is_empty() {
        return match (many.contains(&last), many.contains(&0)) {
            (true, _) => Algorithm::Chain,
            (false, true) => Algorithm::Tree,
            _ => Algorithm::Other,
        };
    }
    let edges: BTreeSet<(usize, usize)> = pairs
        .iter()
        .map(|pair| (place(pair.from), place(pair.to)))
        .collect();
    let ways: BTreeSet<(usize, usize)> =
        edges.iter().map(|(a, b)| (*a.min(b), *a.max(b))).collect();
    let steps = (1..ranks.len()).all(|i| ways.contains(&(i - 1, i)));
    let around = last > 1 && ways.contains(&(0, last));
    match (steps, around, ways.len()) {
        (true, true, n) if n == ranks.len() => Algorithm::Ring,
        (true, false, n) if n == last => Algorithm::Chain,
        // As many edges as a tree of these ranks has, all in one piece.
        (_, _, n) if n == last && is_connected(ranks.len(), &ways) => Algorithm::Tree,
        _ => Algorithm::Other,
    }
}

fn is_connected(count: usize, ways: &BTreeSet<(usize, usize)>) -> bool {
    let mut group: Vec<usize> = (0..count).collect();
    fn root(group: &mut [usize], mut at: usize) -> usize {
        while let Some(next) = group.get(at).copied().filter(|next| *next != at) {
            let over = group.get(next).copied().unwrap_or(next);
            if let Some(slot) = group.get_mut(at) {
                *slot = over;
            }
            at = over;
        }
        at
    }
    for (a, b) in ways {
        let (a, b) = (root(&mut group, *a), root(&mut group, *b));
        if let Some(slot) = group.get_mut(a) {
            *slot = b;
        }
    }
    let first = root(&mut group, 0);
    (1..count).all(|i| root(&mut group, i) == first)
}

/// A slice for each rank, in the row `coll<rank>` of its pid.
fn add_spans(timeline: &mut Timeline, found: &Collective) {
    let group = timeline.name(found.group).to_owned();
    let numbered = group
        .rsplit_once('_')
        .is_some_and(|(_, n)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    let name = match numbered {
        true => group.clone(),
        false => format!("{group}_0"),
    };
    let name = timeline.names.intern(&name);
    let cat = timeline.names.intern("user_annotation");
    let ranks: Vec<String> = found.spans.iter().map(|s| s.rank.to_string()).collect();
    let peers = timeline.names.intern(&ranks.join(","));
    for span in &found.spans {
        let kernel = span
            .kernel
            .and_then(|k| timeline.events.get(k as usize))
            .copied();
        let row = timeline.names.intern(&format!("\"coll{}\"", span.rank));
        let kernel_name = kernel
            .map(|kernel| timeline.name(kernel.name))
            .unwrap_or_default();
        let text = |text: &str| serde_json::Value::from(text).to_string();
        let args = format!(
            "\"bytes\":\"{}B\",\"collective algorithm type\":\"{}\",\"peers\":\"{{{}}}\",\
             \"CollGroup\":{},\"rank group compute event\":{},\"Coll_data_size\":{}",
            found.bytes,
            found.algorithm,
            ranks.join(", "),
            text(&group),
            text(kernel_name),
            found.data_bytes,
        );
        let pid = Id::Number(i64::from(span.rank));
        let track = timeline.tracks.intern(Track {
            job: kernel.map_or(NONE, |kernel| timeline.job(&kernel)),
            rank: span.rank,
            ..Track::row(pid, Id::Token(row))
        });
        let start = Time::from_micros(span.start_us);
        let mut event = Event::new(Ph::Complete, name, track, start);
        event.set_dur(span.end_us - span.start_us);
        event.cat = cat;
        event.args = timeline.texts.add(&args);
        event.transfer = timeline.transfers.len() as u32;
        timeline.transfers.push(Transfer {
            group: found.group,
            peers,
            kind: Sym::EMPTY,
            bytes: found.bytes,
            gigabytes_per_second: f64::NAN,
            is_plural: true,
        });
        timeline.events.push(event);
    }
}

/// Adds `Coll_Bandwidth` for all-reduces: the sum of what goes on. Gives how many
/// began while another went on.
fn add_counter(timeline: &mut Timeline, all: &[Collective]) -> u64 {
    let mut changes: Vec<(f64, f64)> = Vec::new();
    let mut concurrent = 0;
    let mut until = f64::NEG_INFINITY;
    for found in all {
        let Some(speed) = found.gigabytes_per_second else {
            continue;
        };
        if !timeline.name(found.group).contains("AllReduce_all_reduce") {
            continue;
        }
        concurrent += u64::from(found.start_us < until);
        until = until.max(found.end_us);
        changes.extend([(found.start_us, speed), (found.end_us, -speed)]);
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let name = timeline.names.intern("Coll_Bandwidth");
    let track = Track::row(Id::Number(NO_RANK), Id::NONE);
    let track = timeline.tracks.intern(track);
    let (mut open, mut sum) = (0i64, 0.0);
    let mut changes = changes.into_iter().peekable();
    while let Some((ts, change)) = changes.next() {
        sum += change;
        open += if change > 0.0 { 1 } else { -1 };
        if changes.peek().is_some_and(|next| next.0 == ts) {
            continue;
        }
        // What rounding leaves of a sum must not stay.
        let value = if open > 0 {
            (sum * 1000.0).round() / 1000.0
        } else {
            0.0
        };
        if open <= 0 {
            sum = 0.0;
        }
        let mut counter = Event::new(Ph::Counter, name, track, Time::from_micros(ts));
        counter.args = timeline.texts.add(&format!("\"GBps\":{}", json(value)));
        timeline.events.push(counter);
    }
    concurrent
}

/// Active time by rank. acelyzer 1.3.0 never counts collectives here: it renames
/// their spans first.
fn active(timeline: &Timeline, kinds: &Kinds, all: &[Collective]) -> Vec<ActiveRow> {
    let mut rows: BTreeMap<u32, (ActiveRow, f64, f64)> = BTreeMap::new();
    for event in timeline
        .events
        .iter()
        .filter(|e| e.is_slice() && !e.dropped)
    {
        if !kinds
            .of(event.name)
            .is(aiprof_model::timeline::Kind::HAS_EXEC)
        {
            continue;
        }
        let empty = (ActiveRow::default(), f64::INFINITY, f64::NEG_INFINITY);
        let (row, first, last) = rows.entry(timeline.rank(event)).or_insert(empty);
        row.rank = timeline.rank(event);
        row.compute_us += event.dur();
        *first = first.min(event.ts());
        *last = last.max(event.end_us());
    }
    for span in all.iter().flat_map(|found| &found.spans) {
        let (row, ..) = rows.entry(span.rank).or_default();
        row.rank = span.rank;
        *row.communication_us.get_or_insert(0.0) += span.end_us - span.start_us;
    }
    rows.into_values()
        .map(|(row, first, last)| ActiveRow {
            elapsed_us: (last - first).max(0.0),
            ..row
        })
        .collect()
}

#[cfg(test)]
#[path = "collectives_tests.rs"]
mod tests;
