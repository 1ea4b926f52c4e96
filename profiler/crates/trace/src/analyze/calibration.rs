//! From device counters to host times: wraps, the clock of each rank, jobs that are
//! out of place, and the times of events.

use aiprof_model::calibrate::clock::{Anchor, Clock, ClockPiece, Counter, wraps};
use aiprof_model::calibrate::cycles::{count_wraps, host_times};
use aiprof_model::calibrate::jobs::{self, JobPosition, JobTimes};
use aiprof_model::timeline::{Device, Event, Id, Phase, Timeline};
use rustc_hash::FxHashMap;
use serde::Serialize;

/// Width of the AIU's counters, bits.
const BITS: u32 = 32;
/// Anchors that a clock is fitted to: more do not make it better, only slower.
const ANCHORS: usize = 4096;
/// Events of a job by which it is placed.
const JOB_ANCHORS: usize = 256;
/// How far the ratio of counted and noted durations may be off.
const RATIO_ERROR: f64 = 0.05;
/// How far a given frequency may be off where durations show nothing.
const GIVEN_ERROR: f64 = 0.5;
/// A frequency that may be off by more than this share is not known.
const UNSURE: f64 = 0.02;
/// Host times of jobs are taken for right within this, microseconds.
const TOLERANCE_US: f64 = 10.0;
/// An end that the host noted farther than this from the clock's is left, microseconds.
const STRAY_US: f64 = 10_000.0;
/// The host event around a job's device events.
const ROUND_TRIP: &str = "AIU Roundtrip";

/// What is known of a rank's device clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RankClock {
    /// The rank.
    pub rank: u32,
    /// Ticks per microsecond; of the longest piece if the clock stepped.
    pub mhz: f64,
    /// The true frequency is within this of it, MHz.
    pub mhz_error: f64,
    /// Events that it is by.
    pub anchors: usize,
    /// Typical distance of a noted end from the clock's, microseconds.
    pub scatter_us: f64,
    /// Times by the clock are within this of the true ones if the host notes an end
    /// within `scatter_us` of it, never before it, microseconds.
    pub offset_error_us: f64,
    /// How often the clock was set or restarted.
    pub steps: usize,
    /// How often its frequency changed; between these it is straight.
    pub bends: usize,
    /// Least frequency of its pieces, MHz.
    pub least_mhz: f64,
    /// The most.
    pub most_mhz: f64,
    /// Where the number of wraps is a guess: gaps longer than half a period.
    pub guessed: usize,
}

/// Where a job's device events belong.
#[derive(Clone, Debug, PartialEq)]
pub struct JobPlace {
    /// Number of its file.
    pub job: u32,
    /// Its rank.
    pub rank: u32,
    /// What was found.
    pub place: JobPosition,
}

/// All that calibration found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Clocks, by rank.
    pub clocks: Vec<RankClock>,
    /// Jobs that are not where they belong, or were not.
    pub jobs: Vec<JobPlace>,
    /// Ranks with counters but without a clock: too few events, or all at one time, or
    /// too far apart from each other. Fitted, their events keep the host's times.
    pub unknown: Vec<u32>,
    /// Events longer than a counter's period, in which wraps may be missed.
    pub long: u64,
    /// Events of which the counter's zero is earlier than of all before them, by the
    /// frequency that was given: out of order, or the frequency is wrong.
    pub earlier: u64,
    /// Events whose end the host noted more than 10 ms from where their clock has it; they
    /// stay where the host has them.
    pub strays: u64,
}

/// How to calibrate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Frequency to use where the trace gives none, MHz.
    pub mhz: f64,
    /// Use the frequencies that the trace gives; else `mhz`.
    pub is_fitted: bool,
    /// Move jobs to where they belong.
    pub moves_jobs: bool,
    /// Leave events of Torch's profiler, which have their counters as a list, where they
    /// are: `mhz` may not be their frequency.
    pub keeps_listed: bool,
    /// Change begin and length of events to those of the counters.
    pub converts: bool,
}

/// Numbers of the events with counters, by rank.
type Ranks = Vec<(u32, Vec<u32>)>;

/// Counts wraps, finds clocks, moves jobs and converts times.
pub fn run(timeline: &mut Timeline, options: Options) -> Calibration {
    let mut found = Calibration {
        long: count_local_wraps(timeline, options.mhz),
        ..Calibration::default()
    };
    found.earlier = count_earlier(timeline, options.mhz);
    timeline.rates.default = options.mhz;
    let ranks = by_rank(timeline);
    for (rank, events) in &ranks {
        let counter = counter(timeline, events, options.mhz);
        let is_kept = options.keeps_listed && are_listed(timeline, events);
        let goes_by_trace = options.is_fitted || is_kept;
        if options.moves_jobs {
            place_jobs(timeline, *rank, events, counter, &mut found);
        }
        let anchors: Vec<Anchor> = spread(events, ANCHORS)
            .filter_map(|index| anchor(timeline, index))
            .collect();
        let clock = Clock::fit(&anchors, counter).ok();
        let found_clock = clock.as_ref().map(|clock| summary(*rank, clock));
        let sure = found_clock.filter(|clock| clock.mhz_error <= UNSURE * clock.mhz);
        if goes_by_trace {
            let mhz = sure.map_or(counter.mhz, |clock| clock.mhz);
            timeline.rates.ranks.insert(*rank, mhz);
        }
        match &clock {
            _ if sure.is_none() => found.unknown.push(*rank),
            Some(clock) if options.is_fitted && options.converts => {
                found.strays += place(timeline, events, clock);
            }
            _ => {}
        }
        found.clocks.extend(found_clock);
        count_epochs(timeline, events, clock.as_ref());
    }
    if options.converts {
        // Lengths by an unknown frequency are no better than the host's.
        let left: &[u32] = match options.is_fitted {
            true => &found.unknown,
            false => &[],
        };
        convert(timeline, left, options.keeps_listed);
    }
    found
}

/// Whether a rank's counters came as lists, all of them.
fn are_listed(timeline: &Timeline, events: &[u32]) -> bool {
    let mut devices = events.iter().filter_map(|index| parts(timeline, *index));
    devices.all(|(_, device)| device.is_listed)
}

fn by_rank(timeline: &Timeline) -> Ranks {
    let mut places: FxHashMap<u32, usize> = FxHashMap::default();
    let mut ranks: Ranks = Vec::new();
    for (index, event) in (0u32..).zip(&timeline.events) {
        if !event.is_counted() || !event.is_slice() {
            continue;
        }
        let place = *places.entry(timeline.rank(event)).or_insert_with(|| {
            ranks.push((timeline.rank(event), Vec::new()));
            ranks.len() - 1
        });
        if let Some((_, events)) = ranks.get_mut(place) {
            events.push(index);
        }
    }
    ranks
}

/// Wraps within events. Returns how many events are longer than a period.
fn count_local_wraps(timeline: &mut Timeline, mhz: f64) -> u64 {
    let period_us = 2f64.powi(BITS as i32) / mhz;
    let mut long = 0;
    for event in &timeline.events {
        let Some(device) = timeline.devices.get_mut(event.device as usize) else {
            continue;
        };
        long += u64::from(event.dur() > period_us);
        // Values beyond the counter's width are unwrapped already.
        let raw = device.stamps.map(|stamp| stamp.max(0) as u64);
        let (stamps, first) = count_wraps(raw, BITS);
        device.stamps = stamps.map(|stamp| i64::try_from(stamp).unwrap_or(i64::MAX));
        device.wrapped_at = first.map_or(0, |index| index as u8 + 1);
        device.is_counted = true;
    }
    long
}

/// Counts events whose counter was zero earlier than that of any before them on their
/// row group.
fn count_earlier(timeline: &Timeline, mhz: f64) -> u64 {
    let mut earliest: FxHashMap<Id, f64> = FxHashMap::default();
    let mut count = 0;
    for event in &timeline.events {
        let Some(device) = timeline.device(event).filter(|_| event.is_slice()) else {
            continue;
        };
        let (begin, _) = device.phase.ends();
        let ticks = device.stamps.get(begin).copied().unwrap_or(0);
        let zero = event.ts() - ticks as f64 / mhz;
        let known = earliest.entry(timeline.pid(event)).or_insert(zero);
        if zero < *known {
            *known = zero;
            count += 1;
        }
    }
    count
}

/// At most `most` of the events, evenly spread, the last among them.
fn spread(events: &[u32], most: usize) -> impl Iterator<Item = u32> {
    let step = events.len().div_ceil(most).max(1);
    let last = events.last().copied();
    let even = events.iter().copied().step_by(step);
    let ends_there = events.len().saturating_sub(1).is_multiple_of(step);
    even.chain(last.filter(|_| !ends_there))
}

fn parts(timeline: &Timeline, index: u32) -> Option<(&Event, &Device)> {
    let event = timeline.events.get(index as usize)?;
    Some((event, timeline.device(event)?))
}

/// The counter where the event's phase ends, and the host's note of that.
fn anchor(timeline: &Timeline, index: u32) -> Option<Anchor> {
    let (event, device) = parts(timeline, index)?;
    let (_, end) = device.phase.ends();
    let ticks = *device.stamps.get(end)?;
    Some(Anchor {
        host_us: event.end_us(),
        ticks: (ticks & ((1 << BITS) - 1)) as u64,
    })
}

/// Estimates the counter's frequency from the events' own lengths: the median of the
/// ratios, each with the weight of its time.
fn counter(timeline: &Timeline, events: &[u32], given: f64) -> Counter {
    let mut ratios: Vec<(f64, f64)> = spread(events, ANCHORS)
        .filter_map(|index| parts(timeline, index))
        .filter(|(event, device)| event.dur() > 0.0 && device.phase != Phase::Whole)
        .filter_map(|(event, device)| {
            let (begin, end) = device.phase.ends();
            let ticks = device.stamps.get(end)? - device.stamps.get(begin)?;
            Some((ticks as f64 / event.dur(), event.dur()))
        })
        .collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = ratios.iter().map(|(_, weight)| weight).sum();
    let mut before = 0.0;
    let median = ratios.iter().find(|(_, weight)| {
        before += weight;
        before >= all / 2.0
    });
    // Durations are evidence only where they are long beside the host's jitter.
    let is_sound = |mhz: &f64| all > 1000.0 && (1.0..100_000.0).contains(mhz);
    match median.map(|(ratio, _)| *ratio).filter(is_sound) {
        Some(mhz) => Counter {
            bits: BITS,
            mhz,
            uncertainty: RATIO_ERROR,
        },
        None => Counter {
            bits: BITS,
            mhz: given,
            uncertainty: GIVEN_ERROR,
        },
    }
}

fn summary(rank: u32, clock: &Clock) -> RankClock {
    let pieces = clock.pieces.iter();
    let longest = pieces.max_by_key(|piece| piece.line.used);
    let longest = longest.unwrap_or(&clock.pieces[0]);
    let mhz = || clock.pieces.iter().map(|piece| piece.mhz.value);
    RankClock {
        rank,
        mhz: longest.mhz.value,
        mhz_error: longest.mhz.error,
        anchors: clock.pieces.iter().map(|piece| piece.line.used).sum(),
        scatter_us: longest.line.scatter,
        offset_error_us: offset_error_us(clock),
        steps: clock.steps(),
        bends: clock.bends(),
        least_mhz: mhz().fold(f64::MAX, f64::min),
        most_mhz: mhz().fold(f64::MIN, f64::max),
        guessed: clock.guessed.len(),
    }
}

/// How far a time by the clock may be off: by the fit, and by the lateness that all notes
/// have in common, which nothing in the trace shows.
fn offset_error_us(clock: &Clock) -> f64 {
    let pieces = clock.pieces.iter();
    let errors = pieces.map(|piece| {
        let ends = [piece.from, piece.to].map(|ticks| piece.host_time(ticks).error);
        piece.late_us + ends.into_iter().fold(0.0, f64::max)
    });
    errors.fold(0.0, f64::max)
}

/// Notes how far the ends of a rank's events must move to where the clock has them.
/// Returns how many are too far from it: either their counters or the host's notes are
/// wrong, and the host's stay.
fn place(timeline: &mut Timeline, events: &[u32], clock: &Clock) -> u64 {
    let mut strays = 0;
    for index in events {
        let found = parts(timeline, *index);
        let Some((event, device)) = found.filter(|found| !timeline.is_processed(found.0)) else {
            continue;
        };
        let (_, end) = device.phase.ends();
        let Some(ticks) = device.stamps.get(end) else {
            continue;
        };
        let epoch = i128::from(epoch(clock, event, device));
        let ticks = i128::from(*ticks) + (epoch << BITS);
        let piece = clock.piece_near(ticks, event.end_us());
        let by_us = piece.host_time(ticks).value - event.end_us();
        let place = event.device as usize;
        let number = piece_number(timeline, clock, piece);
        if by_us.is_nan() || by_us.abs() > STRAY_US {
            strays += 1;
        } else if let Some(device) = timeline.devices.get_mut(place) {
            device.placed = by_us;
            device.piece = number;
        }
    }
    strays
}

/// The place of a piece's frequency among those of the timeline, plus one; 0 if the clock
/// has one frequency, or there are more than can be counted.
fn piece_number(timeline: &mut Timeline, clock: &Clock, piece: &ClockPiece) -> u16 {
    if clock.pieces.len() < 2 {
        return 0;
    }
    let known = timeline
        .rates
        .pieces
        .iter()
        .rposition(|mhz| *mhz == piece.mhz.value);
    let index = known.unwrap_or_else(|| {
        timeline.rates.pieces.push(piece.mhz.value);
        timeline.rates.pieces.len() - 1
    });
    u16::try_from(index + 1).unwrap_or(0)
}

/// Periods before an event, by the clock.
fn epoch(clock: &Clock, event: &Event, device: &Device) -> i64 {
    let (_, end) = device.phase.ends();
    let Some(ticks) = device.stamps.get(end) else {
        return 0;
    };
    wraps(*ticks as f64, clock.ticks_at(event.end_us()), BITS) as i64
}

/// Adds whole periods to the counters of a rank's events; the earliest are in the
/// first. Without a clock all are in one.
fn count_epochs(timeline: &mut Timeline, events: &[u32], clock: Option<&Clock>) {
    let mut first = i64::MAX;
    for index in events {
        if let Some((event, device)) = parts(timeline, *index) {
            let epoch = clock.map_or(0, |clock| epoch(clock, event, device));
            first = first.min(epoch);
            let place = event.device as usize;
            if let Some(device) = timeline.devices.get_mut(place) {
                device.epoch = epoch;
            }
        }
    }
    for index in events {
        let Some(event) = timeline.events.get(*index as usize) else {
            continue;
        };
        if let Some(device) = timeline.devices.get_mut(event.device as usize) {
            device.epoch = device.epoch.saturating_sub(first);
            // The limit, 2^24 periods, is years.
            let ticks = device.epoch.clamp(0, 1 << 24) << BITS;
            device.stamps = device.stamps.map(|stamp| stamp.saturating_add(ticks));
        }
    }
}

/// Finds the jobs of a rank that are not where they belong, and moves them.
fn place_jobs(
    timeline: &mut Timeline,
    rank: u32,
    events: &[u32],
    counter: Counter,
    found: &mut Calibration,
) {
    let trips = round_trips(timeline, rank);
    if trips.is_empty() {
        return;
    }
    let mut by_job: Vec<(u32, Vec<u32>)> = Vec::new();
    let mut known: FxHashMap<u32, usize> = FxHashMap::default();
    for index in events {
        let Some(event) = timeline.events.get(*index as usize) else {
            continue;
        };
        let at = *known.entry(timeline.job(event)).or_insert_with(|| {
            by_job.push((timeline.job(event), Vec::new()));
            by_job.len() - 1
        });
        if let Some((_, list)) = by_job.get_mut(at) {
            list.push(*index);
        }
    }
    let jobs: Vec<JobTimes> = by_job
        .iter()
        .map(|(job, list)| whole_job(timeline, list, trips.get(job).copied()))
        .collect();
    for ((job, list), place) in by_job.iter().zip(jobs::place(&jobs, counter, TOLERANCE_US)) {
        match place {
            JobPosition::Right => continue,
            JobPosition::Moved(by) => shift(timeline, list, by.value),
            JobPosition::Bounded(by) => shift(timeline, list, by.middle()),
            JobPosition::Refused(_) => {}
        }
        found.jobs.push(JobPlace {
            job: *job,
            rank,
            place,
        });
    }
}

/// Begin and end of each job's round trip on a rank.
fn round_trips(timeline: &Timeline, rank: u32) -> FxHashMap<u32, (f64, f64)> {
    let mut trips: FxHashMap<u32, (f64, f64)> = FxHashMap::default();
    let Some(name) = timeline.names.find(ROUND_TRIP) else {
        return trips;
    };
    let its = timeline.events.iter();
    let its =
        its.filter(|event| event.name == name && event.is_slice() && timeline.rank(event) == rank);
    for event in its {
        let trip = trips
            .entry(timeline.job(event))
            .or_insert((event.ts(), event.end_us()));
        trip.0 = trip.0.min(event.ts());
        trip.1 = trip.1.max(event.end_us());
    }
    trips
}

fn whole_job(timeline: &Timeline, list: &[u32], round_trip_us: Option<(f64, f64)>) -> JobTimes {
    let events = || list.iter().filter_map(|i| timeline.events.get(*i as usize));
    let last = list.iter().copied().max_by(|a, b| {
        let end = |i: &u32| timeline.events.get(*i as usize).map(Event::end);
        end(a).cmp(&end(b))
    });
    let some = spread(list, JOB_ANCHORS).chain(last);
    JobTimes {
        round_trip_us,
        first_us: events().map(|event| event.ts()).fold(f64::MAX, f64::min),
        events: some.filter_map(|index| anchor(timeline, index)).collect(),
    }
}

fn shift(timeline: &mut Timeline, list: &[u32], by_us: f64) {
    for index in list {
        let Some(event) = timeline.events.get_mut(*index as usize) else {
            continue;
        };
        event.shift(by_us);
        if let Some(device) = timeline.devices.get_mut(event.device as usize) {
            device.moved += by_us;
        }
    }
}

/// Gives events the begin and length of their counters, except events of the ranks in
/// `left` and, with `keeps_listed`, those with lists. Their end is where their clock has
/// it, if that is fitted, else the host's.
fn convert(timeline: &mut Timeline, left: &[u32], keeps_listed: bool) {
    for index in 0..timeline.events.len() {
        let Some(event) = timeline.events.get(index).copied() else {
            break;
        };
        if !event.is_slice()
            || timeline.is_processed(&event)
            || left.contains(&timeline.rank(&event))
        {
            continue;
        }
        let mhz = timeline.mhz(&event);
        let Some(device) = timeline.devices.get_mut(event.device as usize) else {
            continue;
        };
        if keeps_listed && device.is_listed {
            continue;
        }
        let stamps = device.stamps.map(i128::from);
        let end = event.end_us() + device.placed;
        let times = host_times(&stamps, device.phase, end, mhz);
        // At first all up to the end of the phase, as acelyzer shows it in time_adjust.
        let all = end - times.stamps_us[0];
        let begin = end - all;
        device.adjusted = (begin - event.ts(), all - event.dur());
        if let Some(event) = timeline.events.get_mut(index) {
            event.set_ts(times.start_us);
            event.set_dur(times.duration_us);
        }
    }
}

#[cfg(test)]
#[path = "calibration_tests.rs"]
mod tests;
