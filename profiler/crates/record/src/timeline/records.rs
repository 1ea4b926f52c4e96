//! What devices and their runtimes record of themselves: activity records to spans, and
//! arrows from launches to what they executed.

use super::{Builder, TrackKey, TrackWriter};
use crate::{
    aiu::{
        ActivityRecord, EpochNs, Kind, LayoutStatus, events,
        operation::{self, PREPARE, WorkKind},
    },
    correlate::{
        DeviceSpan, EpochClock, RecordClock, RecordedLaunch, RecordedLaunches, TrackedLaunch,
    },
};
use aiprof_model::{
    profile::LossKind,
    timeline::{Args, Event, Ph, TrackId, recorded::EventSink},
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;

/// How far behind the last event a record may reach: clocks of devices are
/// converted, not the same.
const SKEW_NS: u64 = 1_000_000_000;
/// Most records that wait for the next reading of the time of day.
const MAX_WAITING: usize = 1 << 14;
/// Most processes whose devices record what they do.
const MAX_PROCESSES: usize = 1 << 17;
/// Most launches, and most kernels, that wait for their other half.
const MAX_HALVES: usize = 1 << 17;

/// A record that waits for the next reading of the time of day.
#[derive(Debug)]
struct Waiting {
    span: DeviceSpan,
    is_device: bool,
    /// Its times can be true.
    is_timed: bool,
    reported_ns: u64,
    /// It was looked at: the record of its call may be in a buffer that comes later.
    is_late: bool,
}

/// A launch, for what the device did for it: the call that gave the device the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Launched {
    /// [`TrackedLaunch::id`].
    id: u64,
    tid: u32,
    start_ns: u64,
}

/// When records are dated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dating {
    /// With a reading of the time of day.
    Now,
    /// As there is no room for more.
    Full,
    /// Nothing more will come.
    Last,
}

/// Category of work whose record has no times that can be true.
const UNTIMED: &str = "untimed";

/// What devices record of themselves.
#[derive(Debug, Default)]
pub(super) struct DeviceRecords {
    pub(super) clock: EpochClock,
    waiting: Vec<Waiting>,
    pub(super) flows: Flows,
    /// Launches whose calls a helper inside of their program records.
    pub(super) launches: RecordedLaunches<Launched>,
    /// Processes whose devices record what they do.
    pub(super) processes: FxHashSet<u32>,
}

/// One end of an arrow.
type Half = (u64, TrackId);

/// Arrows of which one end is known.
#[derive(Debug, Default)]
pub(super) struct Flows {
    begins: FxHashMap<(u32, u64), Half>,
    ends: FxHashMap<(u32, u64), Half>,
    /// Numbers of processes: those of arrows are unique over all.
    processes: FxHashMap<u32, u64>,
}

impl Flows {
    /// Takes one end in. Gives both, and the arrow's number, when they are known: begin,
    /// then end.
    fn half(&mut self, key: (u32, u64), begins: bool, half: Half) -> Option<(u64, [Half; 2])> {
        let (own, other) = match begins {
            true => (&mut self.begins, &mut self.ends),
            false => (&mut self.ends, &mut self.begins),
        };
        let Some(found) = other.remove(&key) else {
            if own.len() >= MAX_HALVES {
                // The other ends of these have not come for long.
                own.clear();
            }
            own.entry(key).or_insert(half);
            return None;
        };
        let both = if begins { [half, found] } else { [found, half] };
        Some((self.number(key)?, both))
    }

    /// Draws an arrow of which both ends are known.
    pub(super) fn arrow<S: EventSink>(
        &mut self,
        writer: &mut TrackWriter<S>,
        (pid, correlation): (u32, u64),
        halves: [Half; 2],
    ) {
        if let Some(number) = self.number((pid, correlation)) {
            writer.flow(correlation, (number, halves));
        }
    }

    /// The number of a process's arrow.
    fn number(&mut self, (pid, correlation): (u32, u64)) -> Option<u64> {
        let known = self.processes.len() as u64;
        let process = *self.processes.entry(pid).or_insert(known);
        let fits = correlation < 1 << 32 && process < 1 << 20;
        fits.then_some(process << 32 | correlation)
    }
}

impl<S: EventSink> Builder<S> {
    /// A launch that a helper inside of its program may record, too.
    pub(super) fn may_be_recorded(&mut self, launch: &TrackedLaunch) {
        let executed = launch.executed.as_ref();
        let known = Launched {
            id: launch.id,
            tid: executed.map_or(launch.by.tid, |call| call.tid),
            start_ns: executed.map_or(launch.by.start_ns, |call| call.start_ns),
        };
        self.records.launches.launch(launch, known, false);
    }

    /// Keeps a record: its time is known for certain with the next reading of the time of day.
    /// `is_timed`: its times can be true.
    pub(super) fn keep_record(&mut self, span: &DeviceSpan, is_device: bool, is_timed: bool) {
        if self.records.waiting.len() >= MAX_WAITING {
            self.date_records(Dating::Full);
        }
        if is_device && span.recorder.repeats_calls() {
            // What the program has read of its launches will come from the helper, too.
            self.has_records(span.pid);
        }
        self.records.waiting.push(Waiting {
            span: span.clone(),
            is_device,
            is_timed,
            reported_ns: self.writer.last_ns,
            is_late: false,
        });
    }

    /// What else is known of a process's launches is not shown from here on.
    fn has_records(&mut self, pid: u32) {
        if self.records.processes.len() < MAX_PROCESSES && self.records.processes.insert(pid) {
            self.launches.recorded(pid);
        }
    }

    /// Dates the records that wait, except those whose launch may not have been reported yet.
    pub(super) fn date_records(&mut self, dating: Dating) {
        let waiting = std::mem::take(&mut self.records.waiting);
        // CUPTI may report what the device did before it reports the calls.
        let (of_device, of_runtime): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|one| one.is_device);
        for one in of_runtime {
            match self.records.times(&one, &self.writer) {
                Some(times) => self.records.of_runtime(&mut self.writer, &one.span, times),
                None => self.writer.out.losses.add(LossKind::ActivityUntimed, 1),
            }
        }
        for one in of_device {
            let times = one
                .is_timed
                .then(|| self.records.times(&one, &self.writer))
                .flatten();
            if one.is_timed && times.is_none() {
                self.writer.out.losses.add(LossKind::ActivityUntimed, 1);
                continue;
            }
            let repeats = one.span.recorder.repeats_calls();
            let correlation = one.span.record.correlation.filter(|_| repeats);
            let pid = one.span.pid;
            let known = correlation.map(|id| self.records.launches.known(pid, id));
            let waits = match (known, dating) {
                (None | Some(RecordedLaunch::Known), _) | (_, Dating::Last) => false,
                (Some(RecordedLaunch::Assumed), Dating::Now) => true,
                (Some(_), _) => !one.is_late,
            };
            if waits {
                self.records.waiting.push(Waiting {
                    is_late: true,
                    ..one
                });
                continue;
            }
            let work = WorkKind::of(&one.span.record);
            let launch = correlation.and_then(|id| self.records.launches.take(pid, id, &work));
            match times {
                Some(times) => self.record_of_device(&one.span, times, launch),
                None => mark_untimed(&mut self.writer, &one, launch),
            }
        }
    }

    /// What a device did, on a row of its stream.
    fn record_of_device(&mut self, span: &DeviceSpan, times: (u64, u64), launch: Option<Launched>) {
        let record = &span.record;
        self.has_records(span.pid);
        let key = stream_of(span);
        self.writer.out.totals.device_spans += 1;
        let name = operation::work_name(record);
        if span.recorder.repeats_calls() {
            let of = (name, category_of(record));
            return self
                .records
                .work_of_launch(&mut self.writer, span, key, of, times, launch);
        }
        // As in torch's traces: from a launch to what it executes.
        let executes = record.kind == Kind::Compute && record.code != Some(PREPARE);
        let flow = executes.then_some(false);
        let of = (name, category_of(record));
        self.records
            .place(&mut self.writer, span, key, of, times, flow);
    }
}

impl DeviceRecords {
    /// When a record began and ended, if that was within the recording.
    fn times<S>(&self, waiting: &Waiting, writer: &TrackWriter<S>) -> Option<(u64, u64)> {
        let record = &waiting.span.record;
        let clock = waiting.span.recorder.clock();
        let at = |time: EpochNs| match clock {
            RecordClock::Day => self.clock.monotonic(time, waiting.reported_ns),
            RecordClock::Monotonic => Some(time.0),
        };
        let latest = writer.last_ns.saturating_add(SKEW_NS);
        let times = at(record.start).zip(at(record.end));
        times.filter(|(start, end)| {
            (writer.first_ns..=latest).contains(start) && (*start..=latest).contains(end)
        })
    }

    /// What a runtime did on the host, on a row below its thread.
    fn of_runtime<S: EventSink>(
        &mut self,
        writer: &mut TrackWriter<S>,
        span: &DeviceSpan,
        times: (u64, u64),
    ) {
        if span.recorder.repeats_calls() {
            return self.launches.record(span, times);
        }
        let record = &span.record;
        let code = record.code.unwrap_or(0);
        let name = match record.kind {
            Kind::Runtime => events::name(code).map(Cow::Borrowed),
            _ => None,
        };
        let name = name.unwrap_or_else(|| format!("{:?} record {code}", record.kind).into());
        let launches = record.kind == Kind::Runtime && code == events::LAUNCH_CB_CMPT;
        let key = TrackKey::Records {
            pid: span.pid,
            thread: record.tid.unwrap_or(0),
        };
        let category = "privateuse1_runtime";
        self.place(
            writer,
            span,
            key,
            (&name, category),
            times,
            launches.then_some(true),
        );
    }

    /// What a device did for a launch that was seen itself.
    fn work_of_launch<S: EventSink>(
        &mut self,
        writer: &mut TrackWriter<S>,
        span: &DeviceSpan,
        key: TrackKey,
        (name, category): (&str, &'static str),
        times: (u64, u64),
        launch: Option<Launched>,
    ) {
        let Some(track) = writer.track(key) else {
            return writer.out.losses.add(LossKind::SpansRefused, 1);
        };
        let mut args = Args::new();
        args.number("pid", span.pid.into());
        write_args(&mut args, &span.record, times);
        if let Some(clock) = span.clock {
            args.text("clock", clock);
        }
        let name = writer.name(name);
        let mut event = writer.span(name, category, track, times);
        event.correlation = launch.map_or(0, |launch| launch.id);
        writer.push(&event, 0, &args);
        let Some(launch) = launch else {
            return;
        };
        let thread = TrackKey::Thread {
            pid: span.pid,
            tid: launch.tid,
        };
        if let Some(&from) = writer.tracks.get(&thread) {
            let halves = [(launch.start_ns, from), (times.0, track)];
            self.flows.arrow(writer, (span.pid, launch.id), halves);
        }
    }

    /// `flow`: whether an arrow begins, or ends, here.
    fn place<S: EventSink>(
        &mut self,
        writer: &mut TrackWriter<S>,
        span: &DeviceSpan,
        key: TrackKey,
        (name, category): (&str, &'static str),
        times: (u64, u64),
        flow: Option<bool>,
    ) {
        let is_device = matches!(key, TrackKey::Stream { .. });
        let Some(track) = writer.track(key) else {
            return writer.out.losses.add(LossKind::SpansRefused, 1);
        };
        let mut args = Args::new();
        if is_device {
            // The number is one of this process.
            args.number("pid", span.pid.into());
        }
        write_args(&mut args, &span.record, times);
        let name = writer.name(name);
        let mut event = writer.span(name, category, track, times);
        event.correlation = span.record.correlation.unwrap_or(0);
        writer.push(&event, 0, &args);
        // 0 is no number of an arrow.
        let correlation = span.record.correlation.filter(|number| *number != 0);
        if let Some((begins, correlation)) = flow.zip(correlation) {
            let key = (span.pid, correlation);
            if let Some(flow) = self.flows.half(key, begins, (times.0, track)) {
                writer.flow(correlation, flow);
            }
        }
    }
}

/// Marks work whose times are not known at the moment of its launch; it was done before
/// its record was reported.
fn mark_untimed<S: EventSink>(
    writer: &mut TrackWriter<S>,
    one: &Waiting,
    launch: Option<Launched>,
) {
    let Some(track) = writer.track(stream_of(&one.span)) else {
        return writer.out.losses.add(LossKind::SpansRefused, 1);
    };
    let begun = launch.map_or(one.reported_ns, |launch| launch.start_ns);
    let mut args = Args::new();
    args.number("pid", one.span.pid.into());
    args.number("launches", 1);
    args.micros("within_us", one.reported_ns.saturating_sub(begun));
    let name = operation::work_name(&one.span.record);
    let name = writer.name(name);
    let mut event = Event::new(Ph::Instant, name, track, writer.time(begun));
    event.cat = writer.name(UNTIMED);
    event.correlation = launch.map_or(0, |launch| launch.id);
    writer.push(&event, 0, &args);
}

/// The row of what a device did.
fn stream_of(span: &DeviceSpan) -> TrackKey {
    TrackKey::Stream {
        recorder: span.recorder,
        pid: span.pid,
        device: span.record.device,
        stream: span.record.stream,
    }
}

/// The category, as in torch's traces. What is prepared is not executed yet: as a kernel
/// it would count twice.
fn category_of(record: &ActivityRecord) -> &'static str {
    match record.kind {
        Kind::Compute if record.code == Some(PREPARE) => "prepare",
        Kind::Compute => "kernel",
        Kind::Memset => "gpu_memset",
        Kind::Memory => "privateuse1_driver",
        _ => "gpu_memcpy",
    }
}

/// Writes a record's content, except for its correlation.
fn write_args(args: &mut Args, record: &ActivityRecord, times: (u64, u64)) {
    if record.kind == Kind::Compute && record.code.is_some() {
        let phase = record.code.map(|code| match code {
            PREPARE => "prepare",
            _ => "execute",
        });
        args.text("phase", phase.unwrap_or("not known"));
    }
    let numbers = [
        ("device", record.device.map(u64::from)),
        ("stream", record.stream),
        ("context", record.context.map(u64::from)),
        // Nanoseconds of the time of day, as the record has them.
        ("queued", record.queued.map(|time| time.0)),
        ("submitted", record.submitted.map(|time| time.0)),
    ];
    for (key, value) in numbers {
        if let Some(value) = value {
            args.number(key, value);
        }
    }
    write_amount(args, record, times);
    if let Some(address) = record.address {
        args.hex("address", address);
    }
    if let Some(cycles) = record.cycles {
        args.numbers("cycles_ts", &cycles);
    }
    if record.status == LayoutStatus::Assumed {
        args.text("layout", "assumed");
    }
}

fn write_amount(args: &mut Args, record: &ActivityRecord, (start, end): (u64, u64)) {
    let Some(amount) = record.amount else {
        return;
    };
    match (record.kind, record.code.map(events::Data::of)) {
        (Kind::Compute, _) => args.number("local_memory", amount),
        (Kind::Runtime, Some(events::Data::ControlBlocks)) => args.number("num_cbs", amount),
        (Kind::Runtime, Some(events::Data::Bytes)) | (Kind::Memset | Kind::Memory, _) => {
            args.number("bytes", amount);
        }
        (Kind::Memcpy | Kind::Memcpy2, _) => {
            args.number("bytes", amount);
            if end > start {
                let rate = amount as f64 / (end - start) as f64;
                args.float("memory bandwidth (GB/s)", rate);
            }
        }
        (Kind::Runtime, _) => {}
        _ => args.number("value", amount),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_have_both_ends_and_numbers_of_their_own() {
        let mut flows = Flows::default();
        let at = |time, track| (time, TrackId(track));
        assert_eq!(flows.half((1, 7), true, at(2, 0)), None);
        // The same number in another process, and the kernel's record first.
        assert_eq!(flows.half((2, 7), false, at(4, 3)), None);
        let first = flows.half((1, 7), false, at(5, 1));
        assert_eq!(first, Some((7, [at(2, 0), at(5, 1)])));
        let other = flows.half((2, 7), true, at(2, 2));
        assert_eq!(other, Some((1 << 32 | 7, [at(2, 2), at(4, 3)])));
        // A second kernel of a launch, and a launch without one.
        assert_eq!(flows.half((1, 7), false, at(9, 1)), None);
        assert_eq!(flows.half((1, 8), true, at(9, 0)), None);
        assert_eq!(flows.half((1, u64::MAX), true, at(1, 0)), None);
        assert_eq!(flows.half((1, u64::MAX), false, at(1, 0)), None);
        for n in 0..2 * MAX_HALVES as u64 {
            flows.half((3, n), true, at(n, 0));
        }
        assert!(flows.begins.len() <= MAX_HALVES);
    }
}
