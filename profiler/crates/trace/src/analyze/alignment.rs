//! Brings the clocks of ranks together by the messages between them (stage 14).
//!
//! A receive cannot be over before its data were sent. Every pair of a send and its
//! receive bounds by how much two ranks' clocks can differ; [`aiprof_model::calibrate::ranks`]
//! takes all bounds together, whatever way the collective goes (chain, tree, ring).
//!
//! Ranks are compared by their devices' counters, which are exact, not by the host
//! times of events, which are some microseconds late each. So a rank's counter
//! events are put where its device's clock has them: on the line through all of the
//! rank's host times. The rank as a whole is then shifted. Its CPU events are
//! shifted as well (acelyzer leaves them): it is the hosts' clocks that differ, and
//! a launch must stay before its kernel.

use super::exchanges::{Clocks, Exchange, Exchanges, find};
use super::messages::{Level, Messages};
use aiprof_model::calibrate::clock::{Anchor, Clock, Counter};
use aiprof_model::calibrate::ranks::{self, Shift};
use aiprof_model::timeline::{Event, NONE, Timeline};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// More ranks than this are not aligned: the work grows with the cube.
const MAX_RANKS: usize = 1024;
/// Anchors of a clock; more make it no better.
const MAX_ANCHORS: usize = 50_000;
/// Cycles that are reported.
const MAX_CYCLES: usize = 64;
/// What a wrong frequency may make of a trace, end to end, before it is not used, in
/// microseconds: about as much as a host is late.
const TOLERATED_US: f64 = 4.0;
/// Messages that contradict each other by more than this are not of one run, or
/// their clocks drift apart, microseconds.
const WRONG_US: f64 = 1000.0;

/// A rank's new clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankShift {
    /// Which rank.
    pub rank: u32,
    /// What was added to its times; `None`: no message leads to it, it was left as
    /// it was. The bounds allow for errors of the device's clock.
    pub shift: Option<Shift>,
    /// Ticks per microsecond that its events were placed with; `None`: it has no
    /// counters, its events keep their distances.
    pub mhz: Option<f64>,
    /// Events of its device.
    pub device_events: u64,
    /// By how much placing by the device's clock moved an event at most, apart from
    /// the shift, microseconds.
    pub straightened_us: f64,
}

/// Messages once around.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cycle {
    /// Ranks in the order of the messages; the last sends to the first.
    pub ranks: Vec<u32>,
    /// Time the fastest of them took together, which no shift changes, microseconds.
    /// Clocks of two of these ranks are known to within it; below 0 is an error of
    /// the clocks.
    pub closure_us: f64,
}

/// What was found and done.
#[derive(Clone, Debug)]
pub struct AlignmentReport {
    /// Every rank there is; empty: nothing to align.
    pub ranks: Vec<RankShift>,
    /// Shortest ways around for messages, the longest first; 64 at most.
    pub cycles: Vec<Cycle>,
    /// Messages that were used.
    pub messages: usize,
    /// By how much some message arrives before it was sent, whatever is done,
    /// microseconds. 0 as a rule.
    pub contradiction_us: f64,
    /// Messages that were received before their send began: before.
    pub reversed_before: usize,
    /// And now.
    pub reversed_after: usize,
    /// Sends and receives without a counterpart.
    pub lonely: u64,
    /// Messages to show.
    pub said: Messages,
}

/// A rank that takes part.
#[derive(Debug, Default)]
struct Rank {
    anchors: Vec<(i64, f64)>,
    seen: u64,
    clock: Option<Clock>,
}

/// Aligns all ranks. Needs what a stage finds after stage 12 (calibrated times), in
/// any order; afterwards the order of time is another.
pub fn run(timeline: &mut Timeline, level: Level) -> AlignmentReport {
    let mut outcome = AlignmentReport::new(level);
    let exchanges = find(timeline, Clocks::Unaligned);
    outcome.lonely = exchanges.lonely_sends + exchanges.lonely_receives;
    let Some(numbers) = outcome.participants(&exchanges) else {
        return outcome;
    };
    let clocks = clocks(timeline, &numbers);
    let pairs: Vec<Exchange> = exchanges.pairs;
    outcome.messages = pairs.len();
    outcome.reversed_before = reversed(timeline, &pairs);
    let messages = bounds(timeline, &numbers, &clocks, &pairs);
    let alignment = ranks::align(numbers.len(), &messages);
    outcome.contradiction_us = alignment.contradiction_us;
    outcome.cycles = cycles(&numbers, &messages);
    if alignment.contradiction_us > WRONG_US {
        outcome.refuse();
        return outcome;
    }
    outcome.shifts(&numbers, &clocks, &alignment.shifts);
    outcome.apply(timeline, &clocks);
    outcome.unreached(timeline);
    outcome.reversed_after = reversed(timeline, &pairs);
    outcome.add_messages();
    outcome
}

/// Numbers of the ranks that take part, in their order.
type Numbers = BTreeMap<u32, usize>;
/// Clocks by rank.
type RankClocks = BTreeMap<u32, Rank>;

/// Clocks of all devices.
fn clocks(timeline: &Timeline, numbers: &Numbers) -> RankClocks {
    let mut ranks: RankClocks = numbers.keys().map(|r| (*r, Rank::default())).collect();
    for event in timeline
        .events
        .iter()
        .filter(|e| e.is_slice() && !e.dropped)
    {
        if event.is_counted()
            && let Some(rank) = ranks.get_mut(&timeline.rank(event))
        {
            rank.seen += 1;
        }
    }
    let mut nth: BTreeMap<u32, u64> = BTreeMap::new();
    for event in timeline
        .events
        .iter()
        .filter(|e| e.is_slice() && !e.dropped)
    {
        let (Some(ticks), Some(rank)) = (
            end_ticks(timeline, event),
            ranks.get_mut(&timeline.rank(event)),
        ) else {
            continue;
        };
        let nth = nth.entry(timeline.rank(event)).or_default();
        let stride = rank.seen.div_ceil(MAX_ANCHORS as u64).max(1);
        if nth.is_multiple_of(stride) {
            // The time that the host noted: only that shows how sure the clock is.
            let placed = timeline.device(event).map_or(0.0, |device| device.placed);
            rank.anchors.push((ticks, event.end_us() - placed));
        }
        *nth += 1;
    }
    for (number, rank) in &mut ranks {
        let known = timeline.rates.ranks.get(number).copied();
        let mhz = known.unwrap_or(timeline.rates.default);
        let anchors = std::mem::take(&mut rank.anchors);
        rank.clock = clock(&anchors, if mhz > 0.0 { mhz } else { 1000.0 });
    }
    ranks
}

/// The counter at an event's end.
fn end_ticks(timeline: &Timeline, event: &Event) -> Option<i64> {
    let device = timeline.device(event)?;
    let (_, end) = device.phase.ends();
    device.stamps.get(end).copied()
}

/// How a rank's counter values become times on its host. The given frequency holds until the
/// events contradict it: whoever gave it knew more than a few events show.
fn clock(anchors: &[(i64, f64)], mhz: f64) -> Option<Clock> {
    let given = Clock::with_frequency(mhz, anchors)?;
    let points: Vec<Anchor> = anchors
        .iter()
        .filter_map(|(ticks, host_us)| {
            let ticks = u64::try_from(*ticks).ok()?;
            Some(Anchor {
                host_us: *host_us,
                ticks,
            })
        })
        .collect();
    let counter = Counter {
        bits: 64,
        mhz,
        uncertainty: 1.0,
    };
    Some(match Clock::fit(&points, counter) {
        Ok(clock) if contradicts(&clock, mhz) => clock,
        _ => given,
    })
}

/// Whether the events show another frequency, and the difference matters.
fn contradicts(clock: &Clock, mhz: f64) -> bool {
    match &clock.pieces[..] {
        [piece] => {
            let ticks = (piece.to - piece.from) as f64;
            let difference_us = (ticks / piece.mhz.value - ticks / mhz).abs();
            (piece.mhz.value - mhz).abs() > piece.mhz.error && difference_us > TOLERATED_US
        }
        _ => true,
    }
}

/// How far off times by a clock are at most, between its first and last anchor, microseconds.
fn largest_error(clock: &Clock) -> f64 {
    let ends = clock.pieces.iter().flat_map(|p| [p.from, p.to]);
    ends.map(|ticks| clock.host_time(ticks).error)
        .fold(0.0, f64::max)
}

/// When an event ended: by its rank's device if that is known, else by the event.
fn end_by_device(timeline: &Timeline, clocks: &RankClocks, event: &Event) -> f64 {
    let clock = clocks
        .get(&timeline.rank(event))
        .and_then(|rank| rank.clock.as_ref());
    match (clock, end_ticks(timeline, event)) {
        (Some(clock), Some(ticks)) => clock.host_time(ticks.into()).value,
        _ => event.end_us(),
    }
}

/// The least time of messages by their ranks' clocks, for each pair of ranks.
fn bounds(
    timeline: &Timeline,
    numbers: &Numbers,
    clocks: &RankClocks,
    pairs: &[Exchange],
) -> Vec<ranks::Messages> {
    let mut least: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for pair in pairs {
        let (Some(send), Some(receive)) = events_of(timeline, pair) else {
            continue;
        };
        let (Some(from), Some(to)) = (numbers.get(&pair.from), numbers.get(&pair.to)) else {
            continue;
        };
        let took = end_by_device(timeline, clocks, receive) - end_by_device(timeline, clocks, send);
        let at = least.entry((*from, *to)).or_insert(f64::INFINITY);
        *at = at.min(took);
    }
    let message = |((from, to), least_us)| ranks::Messages { from, to, least_us };
    least.into_iter().map(message).collect()
}

fn events_of<'t>(
    timeline: &'t Timeline,
    pair: &Exchange,
) -> (Option<&'t Event>, Option<&'t Event>) {
    let event = |index: u32| timeline.events.get(index as usize);
    (event(pair.send), event(pair.receive))
}

/// How many messages are over before their send began.
fn reversed(timeline: &Timeline, pairs: &[Exchange]) -> usize {
    let is_reversed = |pair: &&Exchange| match events_of(timeline, pair) {
        // A nanosecond is what times are written with.
        (Some(send), Some(receive)) => receive.end_us() < send.ts() - 0.001,
        _ => false,
    };
    pairs.iter().filter(is_reversed).count()
}

/// The shortest way back for each pair of ranks that exchange messages.
fn cycles(numbers: &Numbers, messages: &[ranks::Messages]) -> Vec<Cycle> {
    let n = numbers.len();
    let names: Vec<u32> = numbers.keys().copied().collect();
    let mut time = vec![f64::INFINITY; n * n];
    let mut next = vec![usize::MAX; n * n];
    for m in messages.iter().filter(|m| m.from != m.to) {
        time[m.from * n + m.to] = m.least_us;
        next[m.from * n + m.to] = m.to;
    }
    let direct = time.clone();
    for via in 0..n {
        for from in (0..n).filter(|from| *from != via) {
            let first = time[from * n + via];
            for to in (0..n).filter(|to| *to != via && *to != from && first.is_finite()) {
                let way = first + time[via * n + to];
                // Ways that are shorter the more often they go around are none.
                if way < time[from * n + to] - 1e-9 {
                    time[from * n + to] = way;
                    next[from * n + to] = next[from * n + via];
                }
            }
        }
    }
    let mut found: BTreeMap<Vec<u32>, f64> = BTreeMap::new();
    let around = |way: &[usize]| -> f64 {
        let steps = (0..way.len()).map(|i| way[i] * n + way[(i + 1) % way.len()]);
        steps.map(|step| direct[step]).sum()
    };
    for m in messages.iter().filter(|m| m.from != m.to) {
        let Some(mut way) = walk(&next, n, m.to, m.from) else {
            continue;
        };
        let lowest = (0..way.len()).min_by_key(|i| way[*i]).unwrap_or(0);
        way.rotate_left(lowest);
        found.insert(way.iter().map(|i| names[*i]).collect(), around(&way));
        // With very many ranks, the ways alone would fill the memory.
        if found.len() >= 64 * MAX_CYCLES {
            let mut longest: Vec<f64> = found.values().copied().collect();
            longest.sort_by(|a, b| b.total_cmp(a));
            let least = longest.get(MAX_CYCLES).copied().unwrap_or(f64::MIN);
            found.retain(|_, closure_us| *closure_us > least);
        }
    }
    let cycle = |(ranks, closure_us)| Cycle { ranks, closure_us };
    let mut all: Vec<Cycle> = found.into_iter().map(cycle).collect();
    all.sort_by(|a, b| b.closure_us.total_cmp(&a.closure_us));
    all.truncate(MAX_CYCLES);
    all
}

/// Ranks from one to another by the shortest way.
fn walk(next: &[usize], n: usize, from: usize, to: usize) -> Option<Vec<usize>> {
    let mut way = vec![from];
    let mut at = from;
    while at != to {
        at = *next.get(at * n + to).filter(|next| **next < n)?;
        way.push(at);
        if way.len() > n {
            return None;
        }
    }
    Some(way)
}

impl AlignmentReport {
    fn new(level: Level) -> Self {
        Self {
            ranks: Vec::new(),
            cycles: Vec::new(),
            messages: 0,
            contradiction_us: 0.0,
            reversed_before: 0,
            reversed_after: 0,
            lonely: 0,
            said: Messages::new(level),
        }
    }

    /// The ranks that exchange messages; `None`: there is nothing to do.
    fn participants(&mut self, exchanges: &Exchanges) -> Option<Numbers> {
        let mut numbers = Numbers::new();
        for pair in exchanges.pairs.iter().filter(|p| p.from != p.to) {
            numbers.insert(pair.from, 0);
            numbers.insert(pair.to, 0);
        }
        if numbers.len() < 2 {
            let text = "MP SYNC: no collective group detected or single process, no action";
            self.said.info("MP SYNC", format_args!("{text}"));
            return None;
        }
        if numbers.len() > MAX_RANKS {
            let count = numbers.len();
            let text = format_args!("MP_SYNC: cannot align {count} ranks (limit {MAX_RANKS})");
            self.said.warn("MP_SYNC", text);
            return None;
        }
        (0..).zip(numbers.values_mut()).for_each(|(i, n)| *n = i);
        Some(numbers)
    }

    fn shifts(&mut self, numbers: &Numbers, clocks: &RankClocks, shifts: &[Option<Shift>]) {
        let error = |rank: &u32| {
            let clock = clocks.get(rank).and_then(|rank| rank.clock.as_ref());
            clock.map_or(0.0, largest_error)
        };
        let first = numbers.keys().next().map_or(0.0, error);
        for ((rank, _), shift) in numbers.iter().zip(shifts) {
            let is_first = self.ranks.is_empty();
            // What a host's clock is off by is not known better than where its
            // device's clock lies on it.
            let slack = if is_first { 0.0 } else { first + error(rank) };
            let shift = shift.map(|shift| Shift {
                us: shift.us,
                bounds: shift.bounds.widened(slack),
            });
            let known = clocks.get(rank);
            self.ranks.push(RankShift {
                rank: *rank,
                shift,
                mhz: known.and_then(|rank| Some(rank.clock.as_ref()?.pieces.first()?.mhz.value)),
                device_events: known.map_or(0, |rank| rank.seen),
                straightened_us: 0.0,
            });
        }
    }

    /// Moves all events of the ranks that messages reach.
    fn apply(&mut self, timeline: &mut Timeline, clocks: &RankClocks) {
        let mut by_rank: BTreeMap<u32, (f64, &mut RankShift)> = self
            .ranks
            .iter_mut()
            .filter_map(|rank| Some((rank.rank, (rank.shift?.us, rank))))
            .collect();
        let mut events = std::mem::take(&mut timeline.events);
        for event in &mut events {
            let Some((shift, rank)) = by_rank.get_mut(&timeline.rank(event)) else {
                continue;
            };
            let end = if event.is_slice() {
                end_by_device(timeline, clocks, event)
            } else {
                event.end_us()
            };
            let straightened = (end - event.end_us()).abs();
            if straightened > 0.0 {
                rank.straightened_us = rank.straightened_us.max(straightened);
                event.set_ts(end - event.dur() + *shift);
            } else {
                event.shift(*shift);
            }
        }
        timeline.events = events;
    }

    /// Adds the ranks that exchange no messages at all.
    fn unreached(&mut self, timeline: &Timeline) {
        let known: BTreeSet<u32> = self.ranks.iter().map(|rank| rank.rank).collect();
        let mut others: BTreeMap<u32, u64> = BTreeMap::new();
        for event in timeline
            .events
            .iter()
            .filter(|e| e.is_slice() && !e.dropped)
        {
            if timeline.rank(event) != NONE && !known.contains(&timeline.rank(event)) {
                *others.entry(timeline.rank(event)).or_default() += u64::from(event.is_counted());
            }
        }
        self.ranks
            .extend(others.into_iter().map(|(rank, seen)| RankShift {
                rank,
                shift: None,
                mhz: None,
                device_events: seen,
                straightened_us: 0.0,
            }));
    }

    fn refuse(&mut self) {
        let us = self.contradiction_us;
        self.said.warn(
            "MP_SYNC",
            format_args!(
                "MP_SYNC: messages contradict each other by {us:.3} us, so the ranks are not \
                 aligned. Check that all files are from one run and that --freq is correct"
            ),
        );
    }

    fn add_messages(&mut self) {
        for rank in &self.ranks {
            let number = rank.rank;
            match rank.shift {
                Some(shift) => self.said.info(
                    "MP_SYNC",
                    format_args!(
                        "MP_SYNC: rank {number} shifted by {:.3} us (between {:.3} and {:.3})",
                        shift.us, shift.bounds.least, shift.bounds.most
                    ),
                ),
                None => self.said.warn(
                    "MP_SYNC",
                    format_args!(
                        "MP_SYNC: no messages connect rank {number} to the others; its clock is \
                         not aligned"
                    ),
                ),
            }
        }
        for cycle in &self.cycles {
            let ranks: Vec<String> = cycle.ranks.iter().map(u32::to_string).collect();
            self.said.debug(
                "MP_SYNC",
                format_args!(
                    "MP_SYNC: shifts along the ranks {} add up to {:.3} us",
                    ranks.join(" -> "),
                    cycle.closure_us
                ),
            );
        }
        if self.contradiction_us > 0.0 {
            self.said.warn(
                "MP_SYNC",
                format_args!(
                    "MP_SYNC: some messages arrive up to {:.3} us before they were sent, \
                     regardless of clock shifts",
                    self.contradiction_us
                ),
            );
        }
        if self.lonely > 0 {
            self.said.warn(
                "MP_SYNC",
                format_args!(
                    "MP_SYNC: {} sends and receives of collectives have no counterpart",
                    self.lonely
                ),
            );
        }
    }
}

#[cfg(test)]
#[path = "alignment_tests.rs"]
mod tests;
