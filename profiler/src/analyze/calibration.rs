//! From device counters to host times: wraps, the clock of each rank, jobs that are
//! out of place, and the times of events.

use crate::calibrate::clock::{Anchor, Clock, Counter};
use crate::calibrate::cycles::{Phase, count_wraps, host_times};
use crate::calibrate::jobs::{self, Job, Place};
use crate::timeline::{Device, Event, Id, Timeline};
use rustc_hash::FxHashMap;

/// Width of the AIU's counters, bits.
const BITS: u32 = 32;
/// Anchors that a clock is fitted to: more do not make it better, only slower.
const ANCHORS: usize = 4096;
/// Events of a job that its place is told by.
const JOB_ANCHORS: usize = 256;
/// How far the ratio of counted and noted durations may be off.
const RATIO_ERROR: f64 = 0.05;
/// How far a given frequency may be off where durations tell nothing.
const GIVEN_ERROR: f64 = 0.5;
/// A frequency that may be off by more than this share is not known.
const UNSURE: f64 = 0.02;
/// Host times of jobs are taken for right within this, microseconds.
const TOLERANCE_US: f64 = 10.0;
/// The host event around a job's device events.
const ROUND_TRIP: &str = "AIU Roundtrip";

/// What is known of a rank's device clock.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// How often the clock was set or restarted.
    pub steps: usize,
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
    pub place: Place,
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
}

/// How to calibrate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Frequency to go by where the trace does not tell, MHz.
    pub mhz: f64,
    /// Go by the frequencies that the trace tells; else by `mhz`.
    pub is_fitted: bool,
    /// Move jobs to where they belong.
    pub moves_jobs: bool,
    /// Change begin and length of events to what the counters say.
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
    timeline.default_mhz = options.mhz;
    let ranks = by_rank(timeline);
    for (rank, events) in &ranks {
        let counter = counter(timeline, events, options.mhz);
        if options.moves_jobs {
            place_jobs(timeline, *rank, events, counter, &mut found);
        }
        let anchors: Vec<Anchor> = spread(events, ANCHORS)
            .filter_map(|index| anchor(timeline, index))
            .collect();
        match Clock::fit(&anchors, counter) {
            Ok(clock) => {
                let summary = summary(*rank, &clock);
                let is_sure = summary.mhz_error <= UNSURE * summary.mhz;
                if options.is_fitted {
                    let mhz = if is_sure { summary.mhz } else { counter.mhz };
                    timeline.mhz.insert(*rank, mhz);
                }
                if !is_sure {
                    found.unknown.push(*rank);
                }
                found.clocks.push(summary);
                count_epochs(timeline, events, |_, event, device| {
                    epoch(&clock, event, device)
                });
            }
            Err(_) => {
                found.unknown.push(*rank);
                if options.is_fitted {
                    timeline.mhz.insert(*rank, counter.mhz);
                }
                // All in one epoch, as far as anybody can tell.
                count_epochs(timeline, events, |_, _, _| 0);
            }
        }
    }
    if options.converts {
        // Lengths by a frequency that nobody knows are no better than the host's.
        let left: &[u32] = match options.is_fitted {
            true => &found.unknown,
            false => &[],
        };
        convert(timeline, left);
    }
    found
}

fn by_rank(timeline: &Timeline) -> Ranks {
    let mut places: FxHashMap<u32, usize> = FxHashMap::default();
    let mut ranks: Ranks = Vec::new();
    for (index, event) in (0u32..).zip(&timeline.events) {
        if !event.is_counted() || !event.is_slice() {
            continue;
        }
        let place = *places.entry(event.rank).or_insert_with(|| {
            ranks.push((event.rank, Vec::new()));
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
        long += u64::from(event.dur > period_us);
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
        let zero = event.ts - ticks as f64 / mhz;
        let known = earliest.entry(event.pid).or_insert(zero);
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
        host_us: event.end(),
        ticks: (ticks & ((1 << BITS) - 1)) as u64,
    })
}

/// The counter's frequency by what events say of their own length: the median of
/// the ratios, each with the weight of its time.
fn counter(timeline: &Timeline, events: &[u32], given: f64) -> Counter {
    let mut ratios: Vec<(f64, f64)> = spread(events, ANCHORS)
        .filter_map(|index| parts(timeline, index))
        .filter(|(event, device)| event.dur > 0.0 && device.phase != Phase::Whole)
        .filter_map(|(event, device)| {
            let (begin, end) = device.phase.ends();
            let ticks = device.stamps.get(end)? - device.stamps.get(begin)?;
            Some((ticks as f64 / event.dur, event.dur))
        })
        .collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = ratios.iter().map(|(_, weight)| weight).sum();
    let mut before = 0.0;
    let median = ratios.iter().find(|(_, weight)| {
        before += weight;
        before >= all / 2.0
    });
    // Durations say something only where they are long beside the host's jitter.
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
    let longest = pieces.max_by_key(|piece| piece.anchors);
    let longest = longest.unwrap_or(&clock.pieces[0]);
    RankClock {
        rank,
        mhz: longest.mhz,
        mhz_error: longest.mhz_error,
        anchors: clock.pieces.iter().map(|piece| piece.anchors).sum(),
        scatter_us: longest.scatter_us,
        steps: clock.pieces.len() - 1,
        guessed: clock.guessed.len(),
    }
}

/// Periods before an event, by the clock.
fn epoch(clock: &Clock, event: &Event, device: &Device) -> i64 {
    let (_, end) = device.phase.ends();
    let Some(ticks) = device.stamps.get(end) else {
        return 0;
    };
    let nearest = |piece: &&crate::calibrate::clock::Piece| {
        let last = piece.host_time(piece.to).us;
        (piece.host_us - event.end())
            .max(event.end() - last)
            .max(0.0)
    };
    let pieces = clock.pieces.iter();
    let piece = pieces.min_by(|a, b| nearest(a).total_cmp(&nearest(b)));
    let Some(piece) = piece else { return 0 };
    let expected = piece.from as f64 + (event.end() - piece.host_us) * piece.mhz;
    ((expected - *ticks as f64) / 2f64.powi(BITS as i32)).round() as i64
}

/// Adds whole periods to the counters of a rank's events; the earliest are in the
/// first.
fn count_epochs(
    timeline: &mut Timeline,
    events: &[u32],
    epoch: impl Fn(u32, &Event, &Device) -> i64,
) {
    let mut first = i64::MAX;
    for index in events {
        if let Some((event, device)) = parts(timeline, *index) {
            let epoch = epoch(*index, event, device);
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
            // So many periods would be years.
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
        let at = *known.entry(event.job).or_insert_with(|| {
            by_job.push((event.job, Vec::new()));
            by_job.len() - 1
        });
        if let Some((_, list)) = by_job.get_mut(at) {
            list.push(*index);
        }
    }
    let jobs: Vec<Job> = by_job
        .iter()
        .map(|(job, list)| whole_job(timeline, list, trips.get(job).copied()))
        .collect();
    for ((job, list), place) in by_job.iter().zip(jobs::place(&jobs, counter, TOLERANCE_US)) {
        if place == Place::Right {
            continue;
        }
        if let Place::Moved { by_us, .. } = place {
            shift(timeline, list, by_us);
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
    let its = its.filter(|event| event.name == name && event.is_slice() && event.rank == rank);
    for event in its {
        let trip = trips.entry(event.job).or_insert((event.ts, event.end()));
        trip.0 = trip.0.min(event.ts);
        trip.1 = trip.1.max(event.end());
    }
    trips
}

fn whole_job(timeline: &Timeline, list: &[u32], round_trip_us: Option<(f64, f64)>) -> Job {
    let events = || list.iter().filter_map(|i| timeline.events.get(*i as usize));
    let last = list.iter().copied().max_by(|a, b| {
        let end = |i: &u32| {
            timeline
                .events
                .get(*i as usize)
                .map_or(f64::MIN, Event::end)
        };
        end(a).total_cmp(&end(b))
    });
    let some = spread(list, JOB_ANCHORS).chain(last);
    Job {
        round_trip_us,
        first_us: events().map(|event| event.ts).fold(f64::MAX, f64::min),
        events: some.filter_map(|index| anchor(timeline, index)).collect(),
    }
}

fn shift(timeline: &mut Timeline, list: &[u32], by_us: f64) {
    for index in list {
        let Some(event) = timeline.events.get_mut(*index as usize) else {
            continue;
        };
        event.ts += by_us;
        if let Some(device) = timeline.devices.get_mut(event.device as usize) {
            device.moved += by_us;
        }
    }
}

/// Gives events the begin and length that their counters tell, but those of some
/// ranks; their end stays.
fn convert(timeline: &mut Timeline, left: &[u32]) {
    for index in 0..timeline.events.len() {
        let Some(event) = timeline.events.get(index).copied() else {
            break;
        };
        if !event.is_slice() || timeline.is_processed(&event) || left.contains(&event.rank) {
            continue;
        }
        let mhz = timeline.mhz(&event);
        let Some(device) = timeline.devices.get_mut(event.device as usize) else {
            continue;
        };
        let stamps = device.stamps.map(i128::from);
        let times = host_times(&stamps, device.phase, event.end(), mhz);
        // At first all up to the end of the phase, as acelyzer says it in time_adjust.
        let all = event.end() - times.stamps_us[0];
        let begin = event.end() - all;
        device.adjusted = (begin - event.ts, all - event.dur);
        if let Some(event) = timeline.events.get_mut(index) {
            event.ts = times.start_us;
            event.dur = times.duration_us;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::json;

    /// The device's clock in the traces below.
    const MHZ: f64 = 557.05;

    /// A trace of kernels, 10 ms apart, on a clock that starts at `first` ticks.
    fn trace(kernels: u32, first: i64, jitter: bool) -> String {
        let mut text = String::from("[");
        for i in 0..kernels {
            let begin = 1e9 + f64::from(i) * 10_000.0;
            let tick = |us: f64| (first + (us * MHZ).round() as i64) & 0xffff_ffff;
            let late = if jitter {
                f64::from(i * 7919 % 11) * 0.1
            } else {
                0.0
            };
            let at = |us: f64| tick(begin - 1e9 + us);
            text += &format!(
                r#"{{"ph":"X","name":"k Cmpt Exec","pid":0,"tid":1,"ts":{:.3},"dur":200,"args":
                {{"TS1":{},"TS2":{},"TS3":{},"TS4":{},"TS5":{}}}}},"#,
                begin + late,
                at(-50.0),
                at(-20.0),
                at(0.0),
                at(200.0),
                at(210.0)
            );
        }
        text.pop();
        text + "]"
    }

    fn calibrated(text: &str, options: Options) -> (Timeline, Calibration) {
        let mut timeline = Timeline::default();
        let reading = json::read(text.as_bytes(), "x", &mut timeline).unwrap();
        super::super::normalize::assign_ranks(&mut timeline, reading.job, reading.events, false);
        let found = run(&mut timeline, options);
        (timeline, found)
    }

    const FITTED: Options = Options {
        mhz: 1000.0,
        is_fitted: true,
        moves_jobs: true,
        converts: true,
    };

    #[test]
    fn clocks_and_wraps_are_found_whatever_frequency_is_given() {
        // 40 s: five periods; the first wrap falls into an event.
        let first = (1 << 32) - (100.0 * MHZ) as i64;
        let (t, found) = calibrated(&trace(4000, first, true), FITTED);
        let [clock] = found.clocks[..] else {
            panic!("{found:?}")
        };
        assert!(
            (clock.mhz - MHZ).abs() <= clock.mhz_error && clock.mhz_error < 0.01,
            "{clock:?}"
        );
        assert!((clock.steps, clock.guessed) == (0, 0), "{clock:?}");
        assert_eq!(t.devices[0].wrapped_at, 4);
        for (i, (event, device)) in t.events.iter().zip(&t.devices).enumerate() {
            let begin = first + (i as f64 * 10_000.0 * MHZ).round() as i64;
            assert_eq!(device.stamps[2], begin, "{i}");
            assert!((event.dur - 200.0).abs() < 0.01, "{i} {event:?}");
        }
        assert!(found.unknown.is_empty() && found.jobs.is_empty());
    }

    #[test]
    fn a_given_frequency_is_kept_to() {
        let options = Options {
            is_fitted: false,
            ..FITTED
        };
        let (t, _) = calibrated(&trace(100, 5000, false), options);
        // 200 µs at 557.05 MHz are 111.41 µs at 1000 MHz; the end stays.
        let event = t.events[0];
        assert!((event.dur - 111.41).abs() < 1e-9);
        assert!((event.end() - 200.0).abs() < 1e-9);
        // Up to TS4 from TS1: 250 µs at 557.05 MHz.
        let (ts, dur) = t.devices[0].adjusted;
        assert!((dur - (139.262 - 200.0)).abs() < 1e-3, "{dur}");
        assert!((ts + dur).abs() < 1e-9, "{ts} {dur}");
        assert!((t.stamp_time(&event, 2).unwrap() - event.ts).abs() < 1e-9);
    }

    #[test]
    fn few_events_keep_their_times_or_go_by_the_given_frequency() {
        let (t, found) = calibrated(&trace(1, 5000, false), FITTED);
        assert_eq!(found.unknown, [0]);
        // The host's times stay.
        assert_eq!((t.events[0].ts, t.events[0].dur), (0.0, 200.0));
        let given = Options {
            is_fitted: false,
            ..FITTED
        };
        let (t, _) = calibrated(&trace(1, 5000, false), given);
        assert!((t.events[0].dur - 111.41).abs() < 1e-9);
        let (_, found) = calibrated("[]", FITTED);
        assert_eq!(found, Calibration::default());
    }
}
