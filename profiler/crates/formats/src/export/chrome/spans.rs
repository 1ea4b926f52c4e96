//! Finished calls and samples to lines of the trace.

use super::{
    Scratch, Survey, Totals, args,
    bounded::Bounded,
    fences::{self, Fences},
    json::Object,
    lanes::{Lanes, Span},
    sort::{Key, Sorter},
    stacks::Stacks,
    tracks::{Floors, SAMPLES},
};
use aiprof_analysis::{
    aggregate::Names,
    correlate::{CallSink, DeviceSpan, FinishedCall, KernelName, Launch, Submission},
};
use aiprof_model::{
    process::ProcessTable,
    profile::LossKind,
    wire::{Call, CallData, Event, Sample},
};
use rustc_hash::FxHashMap;
use std::{borrow::Cow, io};

/// How long a call is drawn whose end was not seen, nanoseconds: about what a short
/// one takes.
const UNSEEN_NS: u64 = 3_000;
/// Most kinds of work that are named with one call.
const MAX_WORK: usize = 8;

/// Writes calls and samples.
pub(super) struct Spans<'a> {
    pub(super) survey: &'a Survey,
    scratch: &'a mut Scratch<'a>,
    sorter: Sorter,
    /// What is on rows that are no threads.
    pub(super) lanes: Lanes,
    bounded: Bounded,
    /// The time of the last event.
    pub(super) now_ns: u64,
    pub(super) stacks: Stacks<'a>,
    period_ns: u64,
    /// Of the threads' calls.
    floors: Floors,
    /// Of their samples.
    sample_floors: Floors,
    /// Of open calls: the latest end of calls in them.
    inside: FxHashMap<u64, u64>,
    /// The last call, whose launches follow it.
    pending: Option<Pending>,
    pub(super) fences: Fences,
    pub(super) totals: Totals,
    error: Option<io::Error>,
}

/// A call whose launches are still to come.
struct Pending {
    id: u64,
    pid: u32,
    tid: u32,
    key: Key,
    /// The event up to its arguments.
    event: Object,
    args: Object,
    stack: String,
    /// What it put on a list, if it launches nothing itself.
    recorded: Option<(String, u32)>,
    /// First and last launch, and how many.
    launches: Option<(u64, u64, u64)>,
    /// Names of the launches.
    work: Vec<(String, u64)>,
    /// Work groups and work items of the only launch.
    sizes: [[u32; 3]; 2],
}

impl<'a> Spans<'a> {
    pub(super) fn new(
        survey: &'a Survey,
        names: &'a dyn Names,
        period_ns: u64,
        scratch: &'a mut Scratch<'a>,
    ) -> Self {
        Self {
            survey,
            scratch,
            sorter: Sorter::new(),
            lanes: Lanes::new(survey.start_ns()),
            bounded: Bounded::default(),
            now_ns: 0,
            stacks: Stacks::new(names),
            period_ns,
            floors: Floors::default(),
            sample_floors: Floors::default(),
            inside: FxHashMap::default(),
            pending: None,
            fences: Fences::default(),
            totals: Totals::default(),
            error: None,
        }
    }

    /// The event with a later time, where it comes before what its thread has done
    /// already.
    pub(super) fn in_order(&mut self, event: &Event) -> Option<Event> {
        match event {
            Event::Call(call) => {
                let time_ns = self.floors.clamp(call.tid, call.time_ns);
                self.floors.raise(call.tid, time_ns);
                (time_ns != call.time_ns).then(|| {
                    Event::Call(Call {
                        time_ns,
                        ..call.clone()
                    })
                })
            }
            Event::CallData(data) => {
                let time_ns = self.floors.clamp(data.tid, data.time_ns);
                (time_ns != data.time_ns).then(|| {
                    Event::CallData(CallData {
                        time_ns,
                        ..data.clone()
                    })
                })
            }
            _ => None,
        }
    }

    /// A CPU sample: the period that ends with it.
    pub(super) fn sample(&mut self, processes: &ProcessTable, sample: &Sample) {
        let tid = sample.thread.tid;
        let (stack, leaf) = self.stacks.of_sample(processes, sample);
        let begin = sample.time_ns.saturating_sub(self.period_ns);
        let begin = begin.max(self.survey.start_ns());
        let start = self.sample_floors.clamp(tid, begin);
        let end = sample.time_ns.max(start);
        // A nanosecond apart: see `Lanes`.
        self.sample_floors.raise(tid, end.saturating_add(1));
        self.totals.samples += 1;
        let mut args = Object::new();
        args.number("cpu", sample.cpu.into());
        args.long_text("stack", &stack);
        let mut event = Object::new();
        let track = (sample.thread.pid, tid + SAMPLES);
        self.begin(&mut event, &leaf, "sample", track, start, end);
        event.raw("args", &args.end());
        self.push(Key::span(start, end - start, 0), &event.end());
    }

    /// What all spans begin with.
    fn begin(
        &self,
        event: &mut Object,
        name: &str,
        category: &str,
        (pid, tid): (u32, u32),
        start: u64,
        end: u64,
    ) {
        event.text("ph", "X");
        event.text("name", name);
        event.text("cat", category);
        event.number("pid", pid.into());
        event.number("tid", tid.into());
        event.micros("ts", start.saturating_sub(self.survey.start_ns()));
        event.micros("dur", end - start);
    }

    /// Puts a span on a row that is no thread.
    pub(super) fn place(&mut self, span: Span<'_>) {
        if self.error.is_none() {
            self.error = self.lanes.push(span, self.scratch).err();
        }
    }

    pub(super) fn push(&mut self, key: Key, line: &str) {
        if self.error.is_none() {
            let pushed = self.sorter.push(key, line, self.scratch);
            self.error = pushed.err();
        }
    }

    /// The first thing that went wrong.
    pub(super) fn check(&mut self) -> io::Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// Gives all lines, and how many they are of what.
    pub(super) fn end(
        mut self,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<Totals> {
        self.flush();
        for span in self.bounded.finish(self.survey) {
            self.estimate(span);
        }
        self.check()?;
        self.totals.losses.merge(&self.stacks.losses);
        let sorter = &mut self.sorter;
        let mut push = |key, line: &str, scratch: &mut Scratch<'_>| sorter.push(key, line, scratch);
        let written = self.lanes.finish(self.scratch, &mut push)?;
        self.sorter.finish(take)?;
        self.totals.flows = written.flows;
        self.totals
            .losses
            .add(LossKind::SpansRefused, written.refused);
        Ok(self.totals)
    }

    fn estimate(&mut self, span: Span<'_>) {
        self.totals.estimated_spans += 1;
        self.place(span);
    }

    /// When a call ended, or is said to have ended: a nanosecond after what is in it,
    /// and before what comes next.
    fn end_of(&mut self, call: &FinishedCall) -> u64 {
        let shown = call.end_ns.unwrap_or_else(|| {
            let short = call.start_ns.saturating_add(UNSEEN_NS);
            // What came next ended the calls around it too: each is drawn a
            // nanosecond longer than the one inside, and none beyond.
            let room = u64::from(call.depth) + 1;
            short.min(call.end_before_ns.saturating_sub(room))
        });
        let inside = self.inside.remove(&call.id).unwrap_or(0);
        let latest = match call.end_ns {
            Some(_) => u64::MAX,
            None => call.end_before_ns,
        };
        let end = shown.max(inside).min(latest).max(call.start_ns);
        if call.parent != 0 {
            let around = self.inside.entry(call.parent).or_default();
            *around = end.saturating_add(1).max(*around);
        }
        self.floors.raise(call.tid, end.saturating_add(1));
        end
    }

    /// Writes the last call.
    fn flush(&mut self) {
        let Some(mut pending) = self.pending.take() else {
            return;
        };
        pending.write_work();
        pending.args.long_text("stack", &pending.stack);
        pending.event.raw("args", &pending.args.end());
        self.push(pending.key, &pending.event.end());
    }

    /// The name of work, also of kernels that got theirs later.
    fn name<'n>(&'n self, pid: u32, name: &'n KernelName) -> Cow<'n, str> {
        match name {
            KernelName::Known(name) => Cow::Borrowed(name),
            KernelName::BeforeAttach(kernel) => match self.survey.kernels.get(pid, *kernel) {
                Some(found) => Cow::Borrowed(found),
                None => name.to_string().into(),
            },
            KernelName::Unknown | KernelName::Submitted => name.to_string().into(),
        }
    }
}

impl CallSink for Spans<'_> {
    fn call(&mut self, call: &FinishedCall) {
        let end = self.end_of(call);
        if call.is_part {
            return;
        }
        self.flush();
        for span in self.bounded.call(self.survey, call) {
            self.estimate(span);
        }
        self.totals.calls += 1;
        let (probe, start) = (&*call.probe, call.start_ns);
        let mut args = Object::new();
        args.text("api", &probe.api);
        args::write(&mut args, call);
        args::write_result(&mut args, call);
        args::write_inner(&mut args, &call.inner);
        if call.end_ns.is_none() {
            args.text("end", "not seen");
        }
        let recorded = call.work.as_ref().map(|work| {
            let name = self.name(call.pid, work);
            (name.into_owned(), call.works)
        });
        let category = if probe.is_ioctl {
            "ioctl"
        } else {
            probe.kind.name()
        };
        let mut event = Object::new();
        let track = (call.pid, call.tid);
        self.begin(&mut event, &probe.function, category, track, start, end);
        self.pending = Some(Pending {
            id: call.id,
            pid: call.pid,
            tid: call.tid,
            key: Key::span(start, end - start, call.depth),
            event,
            args,
            stack: self.stacks.of_call(call),
            recorded,
            launches: None,
            work: Vec::new(),
            sizes: [[0; 3]; 2],
        });
    }

    fn launch(&mut self, launch: &Launch) {
        self.totals.launches += 1;
        let name = self.name(launch.pid, &launch.name).into_owned();
        if !self.bounded.launch(self.survey, launch, &name) {
            self.totals.losses.add(LossKind::SpansRefused, 1);
        }
        if let Some(pending) = self.pending.as_mut().filter(|p| p.made(launch)) {
            pending.take(launch, name);
        }
    }

    fn submission(&mut self, submission: &Submission) {
        let Some(place) = self.fences.place(submission) else {
            return self.totals.losses.add(LossKind::SubmissionsRefused, 1);
        };
        self.totals.submissions += 1;
        let (from, to) = (place.from, place.to);
        let name = fences::name(self.survey, submission);
        let mut event = Object::new();
        self.begin(&mut event, name, "submission", place.track, from, to);
        event.raw("args", &fences::args(submission));
        self.push(Key::span(from, to - from, 0), &event.end());
    }

    fn device_span(&mut self, span: &DeviceSpan) {
        self.record_of_device(span);
    }

    fn runtime_record(&mut self, span: &DeviceSpan) {
        self.record_of_runtime(span);
    }
}

impl Pending {
    /// Whether a launch is of this call: launches follow the call that made or
    /// submitted them.
    fn made(&self, launch: &Launch) -> bool {
        let by_id = launch.call == self.id || launch.submit == Some(self.id);
        by_id || (self.pid, self.tid) == (launch.pid, launch.tid)
    }

    fn take(&mut self, launch: &Launch, name: String) {
        let (first, _, count) = self.launches.unwrap_or((launch.id, launch.id, 0));
        self.launches = Some((first, launch.id, count + 1));
        self.sizes = match count {
            0 => [launch.groups, launch.local],
            _ => [[0; 3]; 2],
        };
        if let Some((_, n)) = self.work.iter_mut().find(|(known, _)| *known == name) {
            *n += 1;
        } else if self.work.len() < MAX_WORK {
            self.work.push((name, 1));
        }
    }

    /// What the call gave the device, or put on a list.
    fn write_work(&mut self) {
        let args = &mut self.args;
        let Some((first, last, count)) = self.launches else {
            if let Some((name, works)) = &self.recorded {
                args.text("work", name);
                if *works > 1 {
                    args.number("works", (*works).into());
                }
            }
            return;
        };
        args::write_range(args, "launch", first, last);
        if count > 1 {
            args.number("launches", count);
        }
        let mut text = String::new();
        for (name, n) in &self.work {
            let comma = if text.is_empty() { "" } else { ", " };
            text.push_str(comma);
            text.push_str(name);
            if *n > 1 {
                text.push_str(&format!(" x{n}"));
            }
        }
        let named: u64 = self.work.iter().map(|(_, n)| n).sum();
        if named < count {
            text.push_str(&format!(", {} others", count - named));
        }
        args.text("work", &text);
        let [groups, local] = self.sizes;
        args::write_sizes(args, "groups", groups);
        args::write_sizes(args, "local", local);
    }
}
