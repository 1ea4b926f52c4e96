//! What devices and their runtimes tell of themselves: activity records to spans.

use super::{
    Survey,
    json::{Object, array},
    lanes::{Flow, Group, Row, Span},
    spans::Spans,
};
use aiprof_analysis::{
    aiu::{
        ActivityRecord, Kind, Status, events,
        operation::{self, PREPARE},
    },
    correlate::DeviceSpan,
};
use aiprof_model::{profile::LossKind, wire::Counter};
use std::borrow::Cow;

use super::sort::Key;

/// How far behind the last event a record may reach: clocks of devices are
/// converted, not the same.
const SKEW_NS: u64 = 1_000_000_000;

impl Spans<'_> {
    /// A record of what a device did, on a row of its stream.
    pub(super) fn record_of_device(&mut self, span: &DeviceSpan) {
        let record = &span.record;
        let Some(times) = self.times(record) else {
            return;
        };
        let name = operation::work_name(record);
        let mut args = Object::new();
        write_args(&mut args, record, times);
        // As in torch's traces: from a launch to what it executes.
        let executes = record.kind == Kind::Compute && record.code != Some(PREPARE);
        let flow = executes.then(|| flow(span, false)).flatten();
        let row = Row {
            group: Group::Named(device_name(self.survey, span)),
            name: record
                .stream
                .map_or_else(|| "Device".to_owned(), |stream| format!("Stream {stream}")),
        };
        self.totals.device_spans += 1;
        self.place(Span {
            row,
            name: &name,
            category: category_of(record),
            times,
            args,
            flow,
        });
    }

    /// A record of what a runtime did on the host, on a row below its thread.
    pub(super) fn record_of_runtime(&mut self, span: &DeviceSpan) {
        let record = &span.record;
        let Some(times) = self.times(record) else {
            return;
        };
        let code = record.code.unwrap_or(0);
        let name = match record.kind {
            Kind::Runtime => events::name(code).map(Cow::Borrowed),
            _ => None,
        };
        let name = name.unwrap_or_else(|| format!("{:?} record {code}", record.kind).into());
        let mut args = Object::new();
        write_args(&mut args, record, times);
        let launches = record.kind == Kind::Runtime && code == events::LAUNCH_CB_CMPT;
        let thread = record.tid.unwrap_or(0);
        let known = u32::try_from(thread).ok().and_then(|tid| {
            let known = self.survey.threads.get(&(span.pid, tid))?;
            Some(known.name.to_string())
        });
        let of = known.unwrap_or_else(|| format!("thread {thread}"));
        self.place(Span {
            row: Row {
                group: Group::Process(span.pid),
                name: format!("{of} runtime records"),
            },
            name: &name,
            category: "privateuse1_runtime",
            times,
            args,
            flow: launches.then(|| flow(span, true)).flatten(),
        });
    }

    /// A value that a device measured.
    pub(super) fn counter(&mut self, counter: &Counter) {
        let group = Group::Named(counter.source.clone());
        let Some(pid) = self.lanes.group(&group) else {
            return self.totals.losses.add(LossKind::CountersLost, 1);
        };
        let mut value = Object::new();
        value.float(&counter.unit, counter.milli as f64 / 1000.0);
        let mut event = Object::new();
        event.text("ph", "C");
        event.text("name", &counter.name);
        event.text("cat", "counter");
        event.number("pid", pid.into());
        let at = counter.time_ns.saturating_sub(self.survey.start_ns());
        event.micros("ts", at);
        event.raw("args", &value.end());
        self.totals.counters += 1;
        self.push(Key::span(counter.time_ns, 0, 0), &event.end());
    }

    /// When a record began and ended, if that was within the recording.
    fn times(&mut self, record: &ActivityRecord) -> Option<(u64, u64)> {
        let clock = &self.survey.clock;
        let at = |time| clock.monotonic(time, self.now_ns);
        let latest = self.survey.end_ns().saturating_add(SKEW_NS);
        let times = at(record.start).zip(at(record.end));
        let times = times.filter(|(start, end)| {
            (self.survey.start_ns()..=latest).contains(start) && (*start..=latest).contains(end)
        });
        if times.is_none() {
            self.totals.losses.add(LossKind::ActivityUntimed, 1);
        }
        times
    }
}

fn flow(span: &DeviceSpan, begins: bool) -> Option<Flow> {
    Some(Flow {
        pid: span.pid,
        correlation: span.record.correlation?,
        begins,
    })
}

/// A device of a process: what is number 0 of one may be another one's number 1.
fn device_name(survey: &Survey, span: &DeviceSpan) -> String {
    let process = survey.processes.get(&span.pid);
    let process = process.map_or("process", |name| name);
    match span.record.device {
        Some(device) => format!("AIU {device} of {process} {}", span.pid),
        None => format!("AIU of {process} {}", span.pid),
    }
}

/// The category, as in torch's traces.
fn category_of(record: &ActivityRecord) -> &'static str {
    match record.kind {
        Kind::Compute => "kernel",
        Kind::Memset => "gpu_memset",
        Kind::Memory => "privateuse1_driver",
        _ => "gpu_memcpy",
    }
}

fn write_args(args: &mut Object, record: &ActivityRecord, times: (u64, u64)) {
    if record.kind == Kind::Compute {
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
        ("correlation", record.correlation),
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
        args.text("address", &format!("{address:#x}"));
    }
    if let Some(cycles) = record.cycles {
        args.raw("cycles_ts", &array(cycles.map(|n| n.to_string())));
    }
    if record.status == Status::Assumed {
        args.text("layout", "assumed");
    }
}

fn write_amount(args: &mut Object, record: &ActivityRecord, (start, end): (u64, u64)) {
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
