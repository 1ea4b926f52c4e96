//! What threads did at a time: spans of theirs, and samples.

use crate::work::{SpanRole, WorkIndex};
use aiprof_model::timeline::{Event, NONE, ProcessKey, Sym, Time, Timeline, TrackId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;

/// What a span of a thread is for waste.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostPart {
    /// A wait for a device.
    Sync,
    /// A wait for data.
    Loader,
    /// Compilation.
    Compile,
    /// A Python function.
    Python,
    /// A step of training: it does not show what is done in it.
    Step,
    /// Anything else.
    Other,
}

/// A span of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostSpan {
    /// Its event.
    pub(crate) event: u32,
    /// Begin.
    pub(crate) start: Time,
    /// End.
    pub(crate) end: Time,
    /// The span round it, or [`NONE`].
    parent: u32,
    /// Its part.
    pub(crate) part: HostPart,
}

/// Spans and samples of the threads that launch.
#[derive(Default)]
pub(crate) struct HostRows {
    rows: FxHashMap<TrackId, Vec<HostSpan>>,
    samples: FxHashMap<(ProcessKey, i64), Vec<(Time, Sym)>>,
}

/// Spans of a thread that are looked at for a gap, round it and in it.
const MOST_SPANS: usize = 4096;
/// Added by aiprof to a thread's number for the row of its samples.
const SAMPLES: i64 = 2_000_000_000;

impl HostRows {
    /// The rows of all threads with calls.
    pub(crate) fn new(timeline: &Timeline, index: &WorkIndex) -> Self {
        let mut tracks: FxHashSet<TrackId> = FxHashSet::default();
        for rank in &index.ranks {
            let calls = rank
                .work
                .iter()
                .filter_map(|work| event(timeline, work.call));
            tracks.extend(calls.map(|call| timeline.home(call)));
        }
        let steps = compile_steps(timeline);
        let parts = timeline
            .names
            .iter()
            .map(|(_, text)| match steps.contains(text) {
                true => HostPart::Compile,
                false => part_of(text),
            });
        let parts: Vec<HostPart> = parts.collect();
        let mut rows = Self::default();
        for (at, event) in (0u32..).zip(&timeline.events) {
            if !event.is_slice() || event.dropped || event.start.is_edge() {
                continue;
            }
            if timeline.name(event.cat) == "sample" {
                let row = timeline.track(event);
                let Some(tid) = row.tid.number() else {
                    continue;
                };
                let place = match event.work.is_empty() {
                    true => event.name,
                    false => event.work,
                };
                let of = rows
                    .samples
                    .entry((timeline.process(event), tid))
                    .or_default();
                of.push((event.start, place));
                continue;
            }
            let track = timeline.home(event);
            if !tracks.contains(&track) {
                continue;
            }
            let role = index.role(event);
            let known = parts.get(event.name.index()).copied();
            let part = match known.unwrap_or(HostPart::Other) {
                HostPart::Sync if role != SpanRole::Call => HostPart::Other,
                HostPart::Other if timeline.name(event.cat) == "python_function" => {
                    HostPart::Python
                }
                HostPart::Other if timeline.name(event.cat) == "synchronize" => HostPart::Sync,
                part => part,
            };
            rows.rows.entry(track).or_default().push(HostSpan {
                event: at,
                start: event.start,
                end: event.end(),
                parent: NONE,
                part,
            });
        }
        rows.rows.values_mut().for_each(|row| nest(row));
        rows.samples
            .values_mut()
            .for_each(|row| row.sort_unstable_by_key(|one| one.0));
        rows
    }

    /// Spans of a thread that have a part of a stretch: those that begin before it from the
    /// outermost in, then the others in turn.
    pub(crate) fn within(&self, track: TrackId, from: Time, to: Time) -> Vec<HostSpan> {
        let Some(row) = self.rows.get(&track) else {
            return Vec::new();
        };
        let begun = row.partition_point(|span| span.start <= from);
        let mut found = Vec::new();
        let mut at = begun.checked_sub(1);
        for _ in 0..MOST_SPANS {
            let Some(span) = at.and_then(|at| row.get(at)) else {
                break;
            };
            if span.end > from {
                found.push(*span);
            }
            // A parent stands before its children: so this ends.
            at = (span.parent != NONE).then_some(span.parent as usize);
        }
        found.reverse();
        let behind = row.get(begun..).unwrap_or_default().iter();
        let behind = behind.take_while(|span| span.start < to);
        found.extend(behind.take(MOST_SPANS));
        found
    }

    /// The last wait for a device that begins before a moment and ends at it or behind it.
    pub(crate) fn wait_at(&self, track: TrackId, moment: Time, slack_us: f64) -> Option<HostSpan> {
        let row = self.rows.get(&track)?;
        let begun = row.partition_point(|span| span.start < moment);
        let early = Time::from_micros(moment.micros() - slack_us);
        let mut at = begun.checked_sub(1);
        for _ in 0..MOST_SPANS {
            let span = at.and_then(|at| row.get(at))?;
            if span.part == HostPart::Sync && span.end >= early {
                return Some(*span);
            }
            at = match span.parent {
                NONE => None,
                parent => Some(parent as usize),
            };
        }
        None
    }

    /// Places of the thread's samples in a stretch, each as often as it was seen; `None`: it was
    /// not sampled.
    pub(crate) fn samples(
        &self,
        timeline: &Timeline,
        track: TrackId,
        from: Time,
        to: Time,
    ) -> Option<Vec<(Sym, usize)>> {
        let track = timeline.tracks.get(track);
        let row = self.samples.get(&(
            timeline.identity.process(track.pid),
            track.tid.number()?.checked_add(SAMPLES)?,
        ))?;
        let first = row.partition_point(|(at, _)| *at < from);
        let mut seen: FxHashMap<Sym, usize> = FxHashMap::default();
        let behind = row.get(first..).unwrap_or_default().iter();
        for (_, place) in behind.take_while(|(at, _)| *at < to) {
            *seen.entry(*place).or_default() += 1;
        }
        Some(seen.into_iter().collect())
    }

    /// When the thread's next span begins behind a moment.
    pub(crate) fn next(&self, track: TrackId, behind: Time) -> Option<Time> {
        let row = self.rows.get(&track)?;
        let at = row.partition_point(|span| span.start <= behind);
        row.get(at).map(|span| span.start)
    }

    /// What a span is called; all steps alike.
    pub(crate) fn name<'t>(&self, timeline: &'t Timeline, span: &HostSpan) -> Cow<'t, str> {
        let Some(event) = event(timeline, span.event) else {
            return Cow::Borrowed("");
        };
        let name = crate::work::name_of(timeline, event);
        match span.part {
            HostPart::Step => Cow::Borrowed("ProfilerStep"),
            _ => Cow::Borrowed(name),
        }
    }
}

/// An event by its number.
pub(crate) fn event(timeline: &Timeline, at: u32) -> Option<&Event> {
    timeline.events.get(at as usize)
}

fn nest(row: &mut [HostSpan]) {
    row.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end), span.event));
    let mut open: Vec<(u32, Time)> = Vec::new();
    for (at, span) in (0u32..).zip(row.iter_mut()) {
        while open.pop_if(|(_, end)| *end <= span.start).is_some() {}
        span.parent = open.last().map_or(NONE, |(parent, _)| *parent);
        open.push((at, span.end));
    }
}

/// Calls that return when a device is done.
fn is_sync(name: &str) -> bool {
    name.contains("ynchronize")
        || name.starts_with("clFinish")
        || name.starts_with("clWaitForEvents")
}

/// Whether a name is of a wait for data: of a DataLoader of PyTorch.
pub(crate) fn is_loader(name: &str) -> bool {
    let small = name.to_ascii_lowercase();
    small.contains("dataloader") && !small.contains("__init__")
}

/// Steps of the compiler that have notes: `dynamo_data: compile_id=0/0` is of `dynamo`.
fn compile_steps(timeline: &Timeline) -> FxHashSet<&str> {
    let names = timeline.names.iter();
    let steps = names.filter_map(|(_, text)| {
        let (step, about) = text.split_once("_data: ")?;
        about.contains("compile_id=").then_some(step)
    });
    steps.collect()
}

fn part_of(name: &str) -> HostPart {
    if is_sync(name) {
        HostPart::Sync
    } else if is_loader(name) {
        HostPart::Loader
    } else if name.ends_with("(dynamo_timed)") {
        HostPart::Compile
    } else if name.starts_with("ProfilerStep#") {
        HostPart::Step
    } else {
        HostPart::Other
    }
}
