//! What threads did at a time: spans of theirs, and samples.

use crate::device_time::IdlePlace;
use crate::stretches::Stretches;
use crate::work::{STEP, SpanRole, WorkIndex};
use aiprof_model::timeline::{Event, Length, NONE, ProcessKey, Sym, Time, Timeline, TrackId};
use aiprof_model::wire::WaitReason;
use rustc_hash::{FxHashMap, FxHashSet};

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
    /// A wait of the thread for a CPU.
    CpuWait,
    /// Another wait of the thread, as it was recorded.
    Wait,
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

/// A CPU sample of a thread, and the time that it stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostSample {
    /// When it was taken.
    pub(crate) at: Time,
    /// The time between samples.
    pub(crate) period: Length,
    /// Where the thread was.
    pub(crate) place: Sym,
}

/// Work of the profiler itself.
#[derive(Clone, Copy, Debug)]
struct ProfilerSpan {
    start: Time,
    end: Time,
    event: u32,
}

/// Spans and samples of the threads that launch.
#[derive(Default)]
pub(crate) struct HostRows {
    rows: FxHashMap<TrackId, Vec<HostSpan>>,
    samples: FxHashMap<(ProcessKey, i64), Vec<HostSample>>,
    /// Work of profilers by the file that has it and its thread, `None` beside all threads: spans
    /// apart from each other, by begin.
    profilers: FxHashMap<(u32, Option<TrackId>), Vec<ProfilerSpan>>,
}

/// Spans of a thread that are looked at for a gap, in it.
const MOST_SPANS: usize = 4096;
/// The same, round it: no program nests as deep.
const MOST_AROUND: usize = 512;
/// What profilers do for themselves, of the kinds of CUPTI's overhead; others, as loading a
/// module, happen without a profiler, too.
const PROFILER: [&str; 4] = [
    "activity buffer",
    "buffer flush",
    "instrumentation",
    "uvm activity",
];
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
                rows.add_sample(timeline, event);
                continue;
            }
            if is_profiler(timeline, event) {
                rows.add_profiler(timeline, at, event);
                continue;
            }
            let track = timeline.home(event);
            if !tracks.contains(&track) {
                continue;
            }
            let known = parts.get(event.name.index()).copied();
            let part = known.unwrap_or(HostPart::Other);
            let part = part_by_category(timeline, index, event, part);
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
            .for_each(|row| row.sort_unstable_by_key(|one| one.at));
        for spans in rows.profilers.values_mut() {
            // Where spans overlap, the first is what is named.
            spans.sort_unstable_by_key(|span| (span.start, span.event));
            spans.dedup_by(|span, before| {
                let is_joined = span.start <= before.end;
                if is_joined {
                    before.end = before.end.max(span.end);
                }
                is_joined
            });
        }
        rows
    }

    fn add_sample(&mut self, timeline: &Timeline, event: &Event) {
        let row = timeline.track(event);
        let Some(tid) = row.tid.number() else {
            return;
        };
        let place = match event.work.is_empty() {
            true => event.name,
            false => event.work,
        };
        let of_thread = self
            .samples
            .entry((timeline.process(event), tid))
            .or_default();
        of_thread.push(HostSample {
            at: event.end(),
            period: event.length,
            place,
        });
    }

    fn add_profiler(&mut self, timeline: &Timeline, at: u32, event: &Event) {
        let track = timeline.home(event);
        let is_thread = timeline.pid(event).number().is_some_and(|pid| pid > 0)
            && timeline.tid(event).number().is_some_and(|tid| tid > 0);
        let key = (timeline.job(event), is_thread.then_some(track));
        self.profilers.entry(key).or_default().push(ProfilerSpan {
            start: event.start,
            end: event.end(),
            event: at,
        });
    }

    /// When the profiler itself worked on a thread in a stretch of time, and at what first.
    pub(crate) fn profiler(
        &self,
        timeline: &Timeline,
        track: TrackId,
        from: Time,
        to: Time,
    ) -> Option<(Stretches, Sym)> {
        let job = timeline.tracks.get(track).job;
        let rows = [None, Some(track)].map(|of| self.profilers.get(&(job, of)));
        let its = rows.into_iter().flatten().flat_map(|spans| {
            let first = spans.partition_point(|span| span.end <= from);
            let near = spans.get(first..).unwrap_or_default().iter();
            near.take_while(|span| span.start < to).take(MOST_SPANS)
        });
        let name = its
            .clone()
            .min_by_key(|span| (span.start, span.event))?
            .event;
        let all = Stretches::of(its.map(|span| (span.start, span.end)));
        Some((
            all,
            event(timeline, name).map_or(Sym::EMPTY, Event::original_name),
        ))
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
        for _ in 0..MOST_AROUND {
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
        for _ in 0..MOST_AROUND {
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

    /// The thread's samples that were taken in a stretch; `None`: it was never sampled.
    pub(crate) fn samples(
        &self,
        timeline: &Timeline,
        track: TrackId,
        from: Time,
        to: Time,
    ) -> Option<&[HostSample]> {
        let track = timeline.tracks.get(track);
        let process = timeline.identity.process(track.pid);
        let tid = track.tid.number()?.checked_add(SAMPLES)?;
        let row = self.samples.get(&(process, tid))?;
        let first = row.partition_point(|sample| sample.at < from);
        let behind = row.partition_point(|sample| sample.at < to);
        row.get(first..behind)
    }

    /// When the thread's next span begins behind a moment.
    pub(crate) fn next(&self, track: TrackId, behind: Time) -> Option<Time> {
        let row = self.rows.get(&track)?;
        let at = row.partition_point(|span| span.start <= behind);
        row.get(at).map(|span| span.start)
    }

    /// What a span is called; all steps alike.
    pub(crate) fn place(&self, timeline: &Timeline, span: &HostSpan) -> IdlePlace {
        match (span.part, event(timeline, span.event)) {
            (HostPart::Step, _) => IdlePlace::Step,
            (_, Some(event)) => IdlePlace::Name(event.original_name()),
            (_, None) => IdlePlace::Unknown,
        }
    }
}

/// The part of an event whose name has a part: some names mean it in some categories only.
fn part_by_category(
    timeline: &Timeline,
    index: &WorkIndex,
    event: &Event,
    part: HostPart,
) -> HostPart {
    let cat = timeline.name(event.cat);
    match part {
        HostPart::Sync if index.role(event) != SpanRole::Call => HostPart::Other,
        HostPart::Other if cat == "python_function" => HostPart::Python,
        HostPart::Other if cat == "synchronize" => HostPart::Sync,
        HostPart::Wait | HostPart::CpuWait if cat != "wait" => HostPart::Other,
        part => part,
    }
}

/// Whether an event is work of the profiler that wrote the trace, which the program does not do
/// without it.
fn is_profiler(timeline: &Timeline, event: &Event) -> bool {
    if !timeline.name(event.cat).eq_ignore_ascii_case("overhead") {
        return false;
    }
    let name = timeline.name(event.name).to_ascii_lowercase();
    name == "resource" || PROFILER.iter().any(|part| name.contains(part))
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

/// Whether a name is of a wait for data: of a DataLoader or DataPipe of PyTorch.
pub(crate) fn is_loader(name: &str) -> bool {
    let small = name.to_ascii_lowercase();
    (small.contains("dataloader") || small.contains("datapipe")) && !small.contains("__init__")
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
    } else if name.starts_with(STEP) {
        HostPart::Step
    } else if name == WaitReason::Cpu.name() {
        HostPart::CpuWait
    } else if name.starts_with("[waits")
        || [WaitReason::Sleep.name(), WaitReason::Stopped.name()].contains(&name)
    {
        HostPart::Wait
    } else {
        HostPart::Other
    }
}
