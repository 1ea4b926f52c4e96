//! The Chrome trace: what happened when, for Perfetto, speedscope and Chrome's own
//! viewer; the JSON object form of the Trace Event Format.
//!
//! A trace is made from the events of a recording, not from a profile, in two
//! passes: a [`Survey`] learns what must be known before (names, the start), and a
//! [`Trace`] writes. Memory depends on how much is alive at a time and on how many
//! different stacks there are, not on how many events; lines wait in temporary
//! files until they are in order.
//!
//! * Threads have the calls of runtimes and drivers as spans (`X`), properly
//!   nested: what inner libraries did of the same call is in its `inner`.
//! * The samples of a thread are a track below it, of spans that end at the sample
//!   and last one period: they show where time went from afar, and what a viewer
//!   adds up over a selection is CPU time. Instants would be drawn as a comb, and
//!   speedscope ignores them.
//! * Devices have a track for each of their queues with what was submitted to it, as
//!   the kernel's fences and scheduler jobs tell: not the time that they were busy.
//! * Devices whose runtime records what they do have rows of their own, and arrows
//!   (`ac2g`) from the launch; what such records say of the host lies below the
//!   thread. Of AIUs without records there are rows that say in which time they must
//!   have been at work, and that this is an estimate.
//! * Counters are those of metrics files.
//! * Nothing else is drawn whose time is not known: launches are arguments of the call
//!   that made them, and a call whose end was not seen is short and says so.
//!
//! What of it readers see is described in `docs/output-formats.md`.

mod args;
mod bounded;
mod devices;
mod fences;
mod json;
mod lanes;
mod sort;
mod spans;
mod stacks;
mod survey;
mod tracks;

pub use sort::Scratch;
pub use survey::Survey;

use aiprof_analysis::{aggregate::Names, correlate::Tracker};
use aiprof_model::{
    process::ProcessTable,
    profile::{LossKind, Losses, Meta},
    wire::Event,
};
use json::Object;
use spans::Spans;
use std::io::{self, BufWriter, Write};
use tracks::{FIRST_FREE_ID, SAMPLES};

/// How much a trace holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Spans of calls.
    pub calls: u64,
    /// Launches among their arguments.
    pub launches: u64,
    /// CPU samples.
    pub samples: u64,
    /// Submissions to devices.
    pub submissions: u64,
    /// Spans of devices, by their own records.
    pub device_spans: u64,
    /// Spans of devices that are only known to lie between two calls.
    pub estimated_spans: u64,
    /// Arrows from launches to kernels.
    pub flows: u64,
    /// Values of counters.
    pub counters: u64,
    /// What was lost, while recording and here.
    pub losses: Losses,
}

/// The second look at a recording: writes the trace.
pub struct Trace<'a> {
    survey: &'a Survey,
    processes: ProcessTable,
    tracker: Tracker,
    spans: Spans<'a>,
    losses: Losses,
}

impl std::fmt::Debug for Trace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").finish_non_exhaustive()
    }
}

impl<'a> Trace<'a> {
    /// Begins a trace of the recording that `survey` has seen. `period_ns` is the
    /// time that a CPU sample stands for; temporary files come from `scratch`.
    pub fn new(
        survey: &'a Survey,
        names: &'a dyn Names,
        period_ns: u64,
        scratch: &'a mut Scratch<'a>,
    ) -> Self {
        Self {
            survey,
            processes: ProcessTable::default(),
            tracker: Tracker::default(),
            spans: Spans::new(survey, names, period_ns, scratch),
            losses: Losses::default(),
        }
    }

    /// Takes an event in: the same ones in the same order as the survey.
    ///
    /// # Errors
    /// Those of the temporary files.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let ids = match event {
            Event::Call(call) => call.pid.max(call.tid),
            Event::CallData(data) => data.pid.max(data.tid),
            Event::Sample(sample) => sample.thread.pid.max(sample.thread.tid),
            _ => 0,
        };
        if ids >= FIRST_FREE_ID {
            // No kernel gives out such a number.
            self.losses.add(LossKind::Undecodable, 1);
            return Ok(());
        }
        match event {
            Event::Process(event) => {
                if let Some((kind, count)) = event.kind.loss() {
                    self.losses.add(kind, count);
                }
                self.processes.apply(event);
            }
            Event::Sample(sample) => self.spans.sample(&self.processes, sample),
            Event::CallStack(stack) => self.spans.stacks.note(&self.processes, stack),
            Event::Counter(counter) => self.spans.counter(counter),
            _ => {}
        }
        self.spans.now_ns = self.spans.now_ns.max(event.time_ns());
        match self.spans.in_order(event) {
            Some(moved) => self.tracker.apply(&moved, &mut self.spans),
            None => self.tracker.apply(event, &mut self.spans),
        }
        self.spans.check()
    }

    /// Ends the trace and writes it. `about` is the recording, `losses` what was
    /// lost on the way here.
    ///
    /// # Errors
    /// Those of the temporary files and of `out`.
    pub fn finish(
        mut self,
        about: &Meta,
        losses: &Losses,
        out: &mut dyn Write,
    ) -> io::Result<Totals> {
        self.tracker.finish(self.survey.end_ns(), &mut self.spans);
        let devices = self.spans.fences.metadata();
        let mut out = BufWriter::with_capacity(1 << 16, out);
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\n\"traceEvents\":[")?;
        let mut first = true;
        let mut line = |line: &[u8]| {
            let between: &[u8] = if std::mem::take(&mut first) {
                b"\n"
            } else {
                b",\n"
            };
            out.write_all(between)?;
            out.write_all(line)
        };
        for text in metadata(self.survey).chain(devices) {
            line(text.as_bytes())?;
        }
        let mut totals = self.spans.end(&mut line)?;
        totals.losses.merge(losses);
        totals.losses.merge(&self.losses);
        totals.losses.merge(&self.tracker.take_losses());
        let length = self.survey.end_ns().saturating_sub(self.survey.start_ns());
        for text in loss_marks(&totals.losses, length) {
            line(text.as_bytes())?;
        }
        let other = other_data(about, self.survey, &totals);
        writeln!(out, "\n],\n\"otherData\":{other}}}")?;
        out.flush()?;
        Ok(totals)
    }
}

/// Names and order of processes and threads.
fn metadata(survey: &Survey) -> impl Iterator<Item = String> {
    let processes = survey.processes.iter().flat_map(|(&pid, name)| {
        let calls = survey.threads.range((pid, 0)..=(pid, u32::MAX));
        let calls = calls.into_iter().any(|(_, thread)| thread.calls);
        let name = if name.is_empty() { "process" } else { name };
        // Those that use an accelerator first.
        label("process", (pid, pid), name, if calls { 1 } else { 2 })
    });
    let threads = survey.threads.iter().zip(0_u64..);
    let threads = threads.flat_map(|((&(pid, tid), thread), index)| {
        let name = if thread.name.is_empty() {
            "thread"
        } else {
            &thread.name
        };
        let own = thread.calls.then(|| (tid, name.to_owned(), 2 * index));
        let samples = thread.samples.then(|| {
            let name = format!("{name} samples");
            (tid + SAMPLES, name, 2 * index + 1)
        });
        own.into_iter()
            .chain(samples)
            .flat_map(move |(track, name, index)| label("thread", (pid, track), &name, index))
    });
    processes.chain(threads)
}

/// Name and place of a `process` or `thread`.
fn label(what: &str, (pid, tid): (u32, u32), name: &str, index: u64) -> [String; 2] {
    [
        describe(&format!("{what}_name"), pid, tid, |args| {
            args.text("name", name);
        }),
        describe(&format!("{what}_sort_index"), pid, tid, |args| {
            args.number("sort_index", index);
        }),
    ]
}

/// The name of one of a row's tracks, counted from 1.
fn track_name(row: &str, track: usize) -> String {
    match track {
        1 => row.to_owned(),
        more => format!("{row} ({more})"),
    }
}

/// A metadata event.
fn describe(what: &str, pid: u32, tid: u32, write: impl FnOnce(&mut Object)) -> String {
    let mut args = Object::new();
    write(&mut args);
    let mut event = Object::new();
    event.text("ph", "M");
    event.text("name", what);
    event.number("pid", pid.into());
    event.number("tid", tid.into());
    event.number("ts", 0);
    event.raw("args", &args.end());
    event.end()
}

/// A mark across the whole trace for each kind of loss, at its end.
fn loss_marks(losses: &Losses, time_ns: u64) -> impl Iterator<Item = String> {
    losses.iter().map(move |(kind, count)| {
        let mut args = Object::new();
        args.number("count", count);
        let mut event = Object::new();
        event.text("ph", "i");
        event.text("s", "g");
        event.text("name", &format!("lost: {}", kind.label()));
        event.text("cat", "losses");
        event.number("pid", 0);
        event.number("tid", 0);
        event.micros("ts", time_ns);
        event.raw("args", &args.end());
        event.end()
    })
}

/// About the recording.
fn other_data(about: &Meta, survey: &Survey, totals: &Totals) -> String {
    let (start_ns, clock_steps) = (survey.start_ns(), survey.clock.steps());
    let mut losses = Object::new();
    for (kind, count) in totals.losses.iter() {
        losses.number(kind.label(), count);
    }
    let mut data = Object::new();
    data.text("version", concat!("aiprof ", env!("CARGO_PKG_VERSION")));
    for (key, text) in [
        ("title", &about.title),
        ("host", &about.host),
        ("kernel", &about.kernel),
        ("command", &about.command),
    ] {
        if !text.is_empty() {
            data.text(key, text);
        }
    }
    data.number("start_unix_ns", about.start_unix_ns);
    data.number("start_monotonic_ns", start_ns);
    data.micros("duration_us", about.duration_ns);
    data.number("cpus", about.cpus.into());
    data.number("frequency_hz", about.frequency_hz.into());
    data.number("calls", totals.calls);
    data.number("launches", totals.launches);
    data.number("samples", totals.samples);
    data.number("submissions", totals.submissions);
    data.number("device_spans", totals.device_spans);
    data.number("estimated_device_spans", totals.estimated_spans);
    data.number("flows", totals.flows);
    data.number("counter_values", totals.counters);
    if clock_steps > 0 {
        // Times of devices near these are less certain.
        data.number("time_of_day_set", clock_steps as u64);
    }
    data.raw("losses", &losses.end());
    data.end()
}
