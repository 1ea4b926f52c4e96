//! Brings the clocks of several files together by the messages and collectives of MPI.
//!
//! All of a file has one clock: that of its host. A receive cannot end before its send
//! began, a synchronous send not before its receive; no rank leaves a collective before
//! all it depends on have come. [`aiprof_model::calibrate::drift`] takes all of them together.

use super::{MpiTraffic, PairedMessage};
use crate::messages::{Level, Messages};
use aiprof_model::calibrate::drift::{self, ClockLine, Crossing};
use aiprof_model::timeline::{Event, NONE, Ph, Time, Timeline};
use std::collections::{BTreeMap, BTreeSet};

/// More files than this are not aligned: the work grows with the cube.
const MAX_CLOCKS: usize = 1024;
/// What contradicts itself by more than this is not of one run, microseconds.
const WRONG_US: f64 = 1000.0;
/// Times are written in nanoseconds.
const SAME_US: f64 = 0.001;

/// A file's new clock.
#[derive(Clone, Debug, PartialEq)]
pub struct JobClock {
    /// The file.
    pub job: u32,
    /// Its ranks.
    pub ranks: BTreeSet<u32>,
    /// What was added to its times; `None`: no message leads to it.
    pub line: Option<ClockLine>,
    /// Messages and collectives' parts that bound it.
    pub bounds: u64,
}

/// What was found and done.
#[derive(Clone, Debug)]
pub struct ClockReport {
    /// Files with ranks, in their order; the first is right by definition.
    pub clocks: Vec<JobClock>,
    /// By how much something arrives before it was sent, whatever is done, microseconds.
    pub contradiction_us: f64,
    /// Messages that were received before their send began: before.
    pub reversed_before: usize,
    /// And now.
    pub reversed_after: usize,
    /// The clocks were changed.
    pub is_done: bool,
    /// Messages for the user.
    pub said: Messages,
}

/// Aligns all files between which messages or collectives go; `None`: there are not
/// several.
pub(crate) fn run(
    timeline: &mut Timeline,
    traffic: &MpiTraffic,
    level: Level,
) -> Option<ClockReport> {
    let mut clocks = files(traffic);
    if clocks.len() < 2 {
        return None;
    }
    let mut report = ClockReport {
        clocks: Vec::new(),
        contradiction_us: 0.0,
        reversed_before: reversed(traffic, &|_, time| time.micros()),
        reversed_after: 0,
        is_done: false,
        said: Messages::new(level),
    };
    if clocks.len() > MAX_CLOCKS {
        let count = clocks.len();
        let text = format_args!("cannot align {count} recordings by messages (limit {MAX_CLOCKS})");
        report.said.warn("CLOCKS", text);
        return Some(report);
    }
    let numbers: BTreeMap<u32, usize> = clocks.keys().copied().zip(0..).collect();
    let crossings = crossings(traffic, &numbers, &mut clocks);
    let spans = spans(timeline, &numbers);
    let found = drift::align(numbers.len(), &crossings, &spans);
    report.contradiction_us = found.contradiction_us;
    report.clocks = clocks.into_values().collect();
    if found.contradiction_us > WRONG_US {
        report.refuse();
        return Some(report);
    }
    for (clock, line) in report.clocks.iter_mut().zip(&found.lines) {
        clock.line = *line;
    }
    let lines: BTreeMap<u32, ClockLine> = report
        .clocks
        .iter()
        .filter_map(|clock| Some((clock.job, clock.line?)))
        .collect();
    apply(timeline, &lines);
    report.is_done = true;
    report.reversed_after = reversed(traffic, &|job, time| {
        let us = time.micros();
        us + lines.get(&job).map_or(0.0, |line| line.shift(us))
    });
    report.add_messages(timeline);
    Some(report)
}

/// Files with ranks that do something together.
fn files(traffic: &MpiTraffic) -> BTreeMap<u32, JobClock> {
    let mut files: BTreeMap<u32, JobClock> = BTreeMap::new();
    let mut add = |job: u32, rank: u32| {
        let clock = files.entry(job).or_insert_with(|| JobClock {
            job,
            ranks: BTreeSet::new(),
            line: None,
            bounds: 0,
        });
        clock.ranks.insert(rank);
    };
    for message in &traffic.messages {
        add(message.from_job, message.from);
        add(message.to_job, message.to);
    }
    for part in traffic.collectives.iter().flat_map(|one| &one.parts) {
        add(part.job, part.rank);
    }
    files.remove(&NONE);
    files
}

/// All that bounds clocks against each other.
fn crossings(
    traffic: &MpiTraffic,
    numbers: &BTreeMap<u32, usize>,
    clocks: &mut BTreeMap<u32, JobClock>,
) -> Vec<Crossing> {
    let mut crossings = Vec::new();
    let mut add = |from: (u32, Time), to: (u32, Time)| {
        let ends = numbers.get(&from.0).zip(numbers.get(&to.0));
        let Some((a, b)) = ends.filter(|_| from.0 != to.0) else {
            return;
        };
        for job in [from.0, to.0] {
            if let Some(clock) = clocks.get_mut(&job) {
                clock.bounds += 1;
            }
        }
        crossings.push(Crossing {
            from: *a,
            to: *b,
            left_us: from.1.micros(),
            arrived_us: to.1.micros(),
        });
    };
    for message in &traffic.messages {
        if let Some(over) = message.arrived {
            add(
                (message.from_job, message.send.begin),
                (message.to_job, over.end),
            );
        }
        if let Some(over) = message.sent.filter(|_| message.is_synchronous) {
            add(
                (message.to_job, message.receive.begin),
                (message.from_job, over.end),
            );
        }
    }
    for one in &traffic.collectives {
        // In each file only the last that comes and the first that leaves bound it.
        let (mut came, mut left) = (BTreeMap::new(), BTreeMap::new());
        for part in one.sources() {
            let at = came.entry(part.job).or_insert(part.call.begin);
            *at = part.call.begin.max(*at);
        }
        for part in one.ends() {
            let at = left.entry(part.job).or_insert(part.call.end);
            *at = part.call.end.min(*at);
        }
        for from in &came {
            for to in &left {
                add((*from.0, *from.1), (*to.0, *to.1));
            }
        }
    }
    crossings
}

/// First and last times of the files' events.
fn spans(timeline: &Timeline, numbers: &BTreeMap<u32, usize>) -> Vec<(f64, f64)> {
    let mut spans = vec![(f64::MAX, f64::MIN); numbers.len()];
    for event in timeline.events.iter().filter(|event| is_moved(event)) {
        let number = numbers.get(&timeline.job(event));
        if let Some((first, last)) = number.and_then(|at| spans.get_mut(*at)) {
            *first = first.min(event.ts());
            *last = last.max(event.end_us());
        }
    }
    spans
}

/// Names of rows have no time, nor has what is at the edge of all times.
fn is_moved(event: &Event) -> bool {
    event.ph != Ph::Metadata && event.start != Time::FIRST
}

/// Moves all events of the files.
fn apply(timeline: &mut Timeline, lines: &BTreeMap<u32, ClockLine>) {
    let Timeline { events, tracks, .. } = timeline;
    for event in events {
        if !is_moved(event) {
            continue;
        }
        let Some(line) = lines.get(&tracks.job(event)) else {
            continue;
        };
        let (start, end) = (event.ts(), event.end_us());
        let by = line.shift(start);
        event.shift(by);
        // Lengths change far less than they are exact to, but add up where they nest.
        if event.is_slice() && line.rate != 0.0 {
            event.set_dur(event.dur() + line.shift(end) - by);
        }
    }
}

/// How many messages are over before their send began.
fn reversed(traffic: &MpiTraffic, us: &dyn Fn(u32, Time) -> f64) -> usize {
    let is_reversed = |message: &&PairedMessage| {
        let over = message.arrived.map(|over| us(message.to_job, over.end));
        over.is_some_and(|over| over < us(message.from_job, message.send.begin) - SAME_US)
    };
    traffic.messages.iter().filter(is_reversed).count()
}

impl ClockReport {
    fn refuse(&mut self) {
        let us = self.contradiction_us;
        self.said.warn(
            "CLOCKS",
            format_args!(
                "messages contradict each other by {us:.3} us, so the clocks of the recordings are \
                 not aligned. Check that all recordings are from one run"
            ),
        );
    }

    fn add_messages(&mut self, timeline: &Timeline) {
        for clock in &self.clocks {
            let job = timeline.jobs.get(clock.job as usize);
            let name = job.map_or("", |job| &job.path);
            match &clock.line {
                Some(line) => self.said.info(
                    "CLOCKS",
                    format_args!(
                        "{name} was moved by {:.3} us, drift {:.3} ppm, error at most {:.3} us ({} \
                         messages and collectives)",
                        line.us,
                        line.rate * 1e6,
                        line.error_us,
                        clock.bounds
                    ),
                ),
                None => self.said.warn(
                    "CLOCKS",
                    format_args!(
                        "no messages connect {name} to the other recordings; its clock is not \
                         aligned"
                    ),
                ),
            }
        }
        if self.contradiction_us > 0.0 {
            let us = self.contradiction_us;
            let text = format_args!(
                "some messages arrive up to {us:.3} us before they were sent, regardless of \
                 the clocks"
            );
            self.said.warn("CLOCKS", text);
        }
    }
}
