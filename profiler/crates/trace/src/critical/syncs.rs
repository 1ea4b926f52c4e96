//! Which calls, and which work, wait for which work.
//!
//! Kineto writes it down since torch 2.1 if asked to (`cuda_sync`): a wait for a context, a stream
//! or an event, and a stream that waits for an event. Without these rows there is only an estimate.
//! A call that waits is taken to wait for what ended last before it returned and was launched
//! before it was called.

use super::build::Builder;
use crate::analyze::identity::file_of;
use crate::work::{LaunchLink, RankWork, SpanRole, name_of, stream_of};
use aiprof_model::timeline::{Event, Id, StreamKey, Time, Timeline};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// A call that waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    /// For all streams.
    Device {
        /// Its event.
        call: u32,
    },
    /// For a stream.
    Stream {
        /// Its event.
        call: u32,
        /// The stream.
        stream: u32,
    },
    /// For one work.
    Work {
        /// Its event.
        call: u32,
        /// The work.
        work: u32,
    },
}

/// Waits of a rank.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Calls that wait, with the time when they are done.
    pub(super) rows: Vec<(Time, Wait)>,
    /// Work that an event of another stream held back, and the work that held it.
    pub(super) held: FxHashMap<u32, u32>,
}

/// How far to look for the next launch of a thread among those of its stream.
const MOST_LAUNCHES: usize = 1024;

/// Finds the waits of a rank. Blocking copies have no rows: theirs are always estimated.
pub(super) fn find(builder: &mut Builder<'_>, rank: &RankWork) -> Waits {
    if rank.syncs.is_empty() {
        return estimated(builder, rank, |_| true);
    }
    let timeline = builder.timeline;
    let launches = Launches::new(timeline, rank);
    let mut waits = estimated(builder, rank, |name| name.contains("emcpy"));
    for at in &rank.syncs {
        let Some(row) = timeline.events.get(*at as usize) else {
            continue;
        };
        let Some(call) = call_of(timeline, rank, row, row.correlation) else {
            continue;
        };
        let name = name_of(timeline, row);
        let wait = match name {
            "Context Sync" => Some(Wait::Device { call }),
            "Stream Sync" => {
                let stream = launches.streams.get(&stream_of(timeline, row)).copied();
                stream.map(|stream| Wait::Stream { call, stream })
            }
            "Event Sync" => {
                let work = launches.recorded(timeline, rank, row);
                work.map(|work| Wait::Work { call, work })
            }
            "Stream Wait Event" => {
                let source = launches.recorded(timeline, rank, row);
                let next = launches.next(timeline, rank, row, call);
                if let Some((source, next)) = source.zip(next) {
                    waits.held.insert(next, source);
                }
                None
            }
            _ => None,
        };
        waits.rows.extend(wait.map(|wait| (row.end(), wait)));
    }
    waits
}

/// The call with a correlation of Kineto's, in the file of a row.
fn call_of(timeline: &Timeline, rank: &RankWork, row: &Event, number: u64) -> Option<u32> {
    let link = LaunchLink {
        file: file_of(timeline, row),
        process: None,
        number,
        is_of_runtime: false,
    };
    rank.calls.get(&link).copied()
}

/// Work by stream, in the order of its calls.
struct Launches {
    streams: FxHashMap<StreamKey, u32>,
    /// When each was called, and its number in the rank.
    by_stream: Vec<Vec<(Time, u32)>>,
}

impl Launches {
    fn new(timeline: &Timeline, rank: &RankWork) -> Self {
        let mut by_stream = vec![Vec::new(); rank.streams.len()];
        for (at, work) in (0u32..).zip(&rank.work) {
            if let Some(call) = timeline.events.get(work.call as usize)
                && let Some(stream) = by_stream.get_mut(work.stream as usize)
            {
                stream.push((call.start, at));
            }
        }
        for stream in &mut by_stream {
            stream.sort_unstable();
        }
        Self {
            streams: rank.streams.iter().copied().zip(0..).collect(),
            by_stream,
        }
    }

    /// The work that an event stands for: what was launched last before it was recorded.
    fn recorded(&self, timeline: &Timeline, rank: &RankWork, row: &Event) -> Option<u32> {
        let given = |key| timeline.arg(row, key)?.parse::<i64>().ok();
        let correlation = u64::try_from(given("wait_on_cuda_event_record_corr_id")?).ok()?;
        let stream = StreamKey {
            number: Id::Number(given("wait_on_stream")?),
            ..stream_of(timeline, row)
        };
        let record = call_of(timeline, rank, row, correlation)?;
        let recorded = timeline.events.get(record as usize)?.start;
        let stream = self.by_stream.get(*self.streams.get(&stream)? as usize)?;
        let behind = stream.partition_point(|(called, _)| *called <= recorded);
        let last = stream.get(behind.checked_sub(1)?)?;
        Some(last.1)
    }

    /// What the thread launches next on the stream of a row.
    fn next(&self, timeline: &Timeline, rank: &RankWork, row: &Event, call: u32) -> Option<u32> {
        let stream = self.streams.get(&stream_of(timeline, row))?;
        let stream = self.by_stream.get(*stream as usize)?;
        let call = timeline.events.get(call as usize)?;
        let behind = stream.partition_point(|(called, _)| *called < call.start);
        let later = stream.get(behind..)?.iter().take(MOST_LAUNCHES);
        let is_its = |(_, work): &&(Time, u32)| {
            let launch = rank.work.get(*work as usize).map(|work| work.call);
            let launch = launch.and_then(|call| timeline.events.get(call as usize));
            launch.is_some_and(|launch| timeline.home(launch) == timeline.home(call))
        };
        later.clone().find(is_its).map(|(_, work)| *work)
    }
}

/// Streams that one call waits for: the last that were done. Each of many calls would look at each
/// of many streams; real devices have far fewer.
const MOST_STREAMS: usize = 1024;

/// What ended last on each stream.
pub(super) struct LastEnds {
    of_streams: Vec<Option<(Time, u32)>>,
    /// The same by end, with the stream.
    by_end: BTreeSet<(Time, u32, u32)>,
}

impl LastEnds {
    pub(super) fn new(streams: usize) -> Self {
        Self {
            of_streams: vec![None; streams],
            by_end: BTreeSet::new(),
        }
    }

    /// Notes that a work is now what ended last on its stream.
    pub(super) fn set(&mut self, stream: u32, end: Time, work: u32) {
        if let Some(slot) = self.of_streams.get_mut(stream as usize) {
            if let Some((end, work)) = slot.replace((end, work)) {
                self.by_end.remove(&(end, stream, work));
            }
            self.by_end.insert((end, stream, work));
        }
    }

    /// The streams that were done last, by stream: its number, when it was done, and its work.
    pub(super) fn latest(&self) -> Vec<(u32, Time, u32)> {
        let latest = self.by_end.iter().rev().take(MOST_STREAMS);
        let mut latest: Vec<_> = latest
            .map(|(end, stream, work)| (*stream, *end, *work))
            .collect();
        latest.sort_unstable();
        latest
    }
}

/// Waits by the times alone, of calls with wanted names.
fn estimated(
    builder: &mut Builder<'_>,
    rank: &RankWork,
    is_wanted: impl Fn(&str) -> bool,
) -> Waits {
    let timeline = builder.timeline;
    let mut waits = Waits::default();
    let mut calls: Vec<(Time, u32)> = Vec::new();
    for at in &rank.host {
        let Some(event) = timeline.events.get(*at as usize) else {
            continue;
        };
        if builder.index.role(event) == SpanRole::Call
            && is_wanted(name_of(timeline, event))
            && builder.waits(event)
        {
            calls.push((event.end(), *at));
        }
    }
    calls.sort_unstable();
    let mut ended: Vec<(Time, u32)> = (0u32..)
        .zip(&rank.work)
        .map(|(at, work)| (work.end, at))
        .collect();
    ended.sort_unstable();
    let mut ended = ended.into_iter().peekable();
    let mut last = LastEnds::new(rank.streams.len());
    for (returned, at) in calls {
        while let Some((time, work)) = ended.next_if(|(time, _)| *time <= returned) {
            let stream = rank.work.get(work as usize).map(|work| work.stream);
            if let Some(stream) = stream {
                last.set(stream, time, work);
            }
        }
        let Some(call) = timeline.events.get(at as usize) else {
            continue;
        };
        let found = waited_for(timeline, rank, (at, call), &last);
        let found = found.into_iter().map(|work| Wait::Work { call: at, work });
        waits.rows.extend(found.map(|wait| (returned, wait)));
    }
    waits
}

/// What a call waited for, of what ended last on each stream.
fn waited_for(
    timeline: &Timeline,
    rank: &RankWork,
    (at, call): (u32, &Event),
    last: &LastEnds,
) -> Vec<u32> {
    let name = name_of(timeline, call);
    let launch = |work: u32| rank.work.get(work as usize).map(|work| work.call);
    // A copy waits for itself, a runtime's wait for what has its number.
    let is_own = |work: u32| {
        let event = rank.work.get(work as usize).map(|work| work.event);
        let event = event.and_then(|event| timeline.events.get(event as usize));
        let correlation = event.map_or(0, |event| event.correlation);
        correlation != 0 && correlation == call.correlation
    };
    let was_launched = |work: u32| {
        let launch = launch(work).and_then(|call| timeline.events.get(call as usize));
        launch.is_none_or(|launch| launch.start < call.start)
    };
    let file = rank.file_at(timeline, call);
    let is_of_file = |work: u32| {
        let work = rank.work.get(work as usize);
        work.is_some_and(|work| usize::from(work.file) == file)
    };
    let found = last.latest().into_iter().map(|(_, end, work)| (end, work));
    let mut found: Vec<(Time, u32)> = found.filter(|(_, work)| is_of_file(*work)).collect();
    if name.contains("emcpy") {
        found.retain(|(_, work)| launch(*work) == Some(at));
    } else if found.iter().any(|(_, work)| is_own(*work)) {
        found.retain(|(_, work)| is_own(*work));
    } else {
        found.retain(|(time, work)| was_launched(*work) && *time > call.start);
        if !["Device", "Ctx", "Context"]
            .iter()
            .any(|word| name.contains(word))
        {
            let latest = found.iter().max().copied();
            found = latest.into_iter().collect();
        }
    }
    found.into_iter().map(|(_, work)| work).collect()
}
