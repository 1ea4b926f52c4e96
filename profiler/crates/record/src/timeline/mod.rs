//! A recording becomes a timeline.
//!
//! A [`Builder`] takes what the tracker finds and what else a recording has, and
//! hands on events as they become certain:
//!
//! * Threads have the calls of runtimes and drivers as spans: what inner libraries did of the
//!   same call is in its `inner`. Launches are arguments of the call that made them, and a call
//!   whose end was not seen is short and marked so.
//! * Threads have their waits as spans among their calls: what for, and with which stack.
//! * Threads have their CPU samples, with stacks.
//! * Threads have the operators of PyTorch that their program reported, as spans around
//!   their calls, with the line of Python that called them, see `ops.rs`.
//! * Threads have the ranges that their program names, as spans around their calls, see
//!   `ranges.rs`. Ranges that may end on another thread are on a track of their process.
//! * Devices have what was submitted to each of their queues, by the Linux kernel's fences and
//!   scheduler jobs: not the time that they were busy.
//! * Devices whose runtime records what they do have spans of their own, and arrows (`ac2g`) from
//!   the launch. So have launches whose timestamps the program read. All other launches have
//!   spans for the time in which the device must have been at work, marked as bounds.
//! * Counters are those of metrics files.
//!
//! All is certain only at the end: [`Builder::finish`] gives what the events refer to.

mod args;
mod calls;
mod devices;
mod kernels;
mod late;
mod launches;
mod ops;
mod pauses;
mod people;
mod ranges;
mod records;
mod stacks;
mod waits;

use crate::{
    aggregate::Names as CodeNames,
    correlate::{EpochClock, RecordedLaunches, Recorder},
    ops::OpsInbox,
    recording::Recording,
};
use aiprof_model::{
    process::ProcessTable,
    profile::{LossKind, Losses, Meta},
    timeline::{
        Args, Event, Id, Length, NONE, Ph, Quality, Sym, Time, Track, TrackId, TrackKind,
        recorded::{EventSink, Group, Recorded, Row},
    },
    wire::{self, Sample},
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::{io, rc::Rc};

/// Most processes whose devices record what they do.
const MAX_PROCESSES: usize = 1 << 17;
/// Most tracks.
const MAX_TRACKS: usize = 1 << 18;
/// Most texts, and their bytes: what goes beyond is called [`OTHER`].
const MAX_NAMES: usize = 1 << 20;
const MAX_NAME_BYTES: usize = 64 << 20;
const OTHER: &str = "[too many names]";

/// What a track shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Thread {
        pid: u32,
        tid: u32,
    },
    Samples {
        pid: u32,
        tid: u32,
    },
    Records {
        pid: u32,
        thread: u64,
    },
    /// Ranges of a process that need not nest.
    Ranges {
        pid: u32,
    },
    Stream {
        recorder: Recorder,
        pid: u32,
        device: Option<u32>,
        stream: Option<u64>,
    },
    Queue {
        device: Rc<str>,
        queue: Rc<str>,
    },
    /// Launches that the program timed.
    Engine {
        pid: u32,
        api: Rc<str>,
        device: u32,
        queue: u64,
    },
    Bounds {
        pid: u32,
        api: Rc<str>,
        queue: u64,
    },
    Counter(Rc<str>),
    /// When the recording was paused.
    Pauses,
}

/// What of devices' commands is drawn beside kernels, copies and fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandDetail {
    /// Barriers.
    pub barriers: bool,
    /// Each command by itself while there is room, also where its times are not known; else those
    /// of one name, shape and wait have one span.
    pub each: bool,
}

/// An event, and how many spans of its track are around it.
#[derive(Clone, Copy, Debug)]
struct Span {
    event: Event,
    depth: u32,
}

/// Makes the events of a timeline of what is recorded.
#[derive(Debug)]
pub struct Builder<S> {
    sink: S,
    error: Option<io::Error>,
    out: Recorded,
    /// What the tracks are, by number.
    keys: Vec<Key>,
    tracks: FxHashMap<Key, TrackId>,
    name_bytes: usize,
    people: people::People,
    stacks: stacks::StackTree,
    waits: waits::ThreadWaits,
    /// Stacks, by number, of processes that are to report their operators.
    ops_inbox: OpsInbox<u32>,
    late: late::Late,
    clock: EpochClock,
    waiting: Vec<records::Waiting>,
    flows: records::Flows,
    /// Launches whose calls a helper inside of their program records.
    recorded: RecordedLaunches<records::Launched>,
    launches: launches::Launches,
    kernels: kernels::KernelFacts,
    /// [`CommandDetail::barriers`].
    barriers: bool,
    /// Spans between launch and wait, by process.
    bounded_of: FxHashMap<u32, u64>,
    /// Processes whose devices record what they do.
    with_records: FxHashSet<u32>,
    /// By open call: the latest end of the calls in it.
    inside: FxHashMap<u64, u64>,
    /// The last call, whose launches follow it.
    pending: Option<calls::Pending>,
    /// Since when the recording is paused.
    paused_ns: Option<u64>,
    origin_ns: Option<u64>,
    first_ns: u64,
    last_ns: u64,
}

impl<S: EventSink> Builder<S> {
    /// Begins a timeline. `period_ns`: what a CPU sample stands for.
    pub fn new(period_ns: u64, sink: S) -> Self {
        Self {
            sink,
            error: None,
            out: Recorded {
                period: Length::from_nanos(i64::try_from(period_ns).unwrap_or(0)),
                ..Recorded::default()
            },
            keys: Vec::new(),
            tracks: FxHashMap::default(),
            name_bytes: 0,
            people: people::People::default(),
            stacks: stacks::StackTree::default(),
            waits: waits::ThreadWaits::default(),
            ops_inbox: OpsInbox::default(),
            late: late::Late::default(),
            clock: EpochClock::default(),
            waiting: Vec::new(),
            flows: records::Flows::default(),
            recorded: RecordedLaunches::default(),
            launches: launches::Launches::default(),
            kernels: kernels::KernelFacts::default(),
            barriers: false,
            bounded_of: FxHashMap::default(),
            with_records: FxHashSet::default(),
            inside: FxHashMap::default(),
            pending: None,
            paused_ns: None,
            origin_ns: None,
            first_ns: 0,
            last_ns: 0,
        }
    }

    /// A builder that shows for each wait which thread ended it.
    #[must_use]
    pub fn with_wakers(mut self, wakers: bool) -> Self {
        self.waits.wakers = wakers;
        self
    }

    /// One that draws more of devices' commands.
    #[must_use]
    pub fn with_commands(mut self, detail: CommandDetail) -> Self {
        self.barriers = detail.barriers;
        self.launches.each = detail.each;
        self
    }

    /// Takes an event in, before the tracker does; the processes are as they were before it.
    fn take(&mut self, processes: &ProcessTable, event: &wire::Event) -> io::Result<()> {
        let time_ns = event.time_ns();
        if time_ns != 0 {
            if self.origin_ns.is_none() {
                (self.origin_ns, self.first_ns) = (Some(time_ns), time_ns);
            }
            self.first_ns = self.first_ns.min(time_ns);
            self.last_ns = self.last_ns.max(time_ns);
        }
        self.people.event(processes, event);
        match event {
            wire::Event::Process(event) => {
                if let Some((kind, count)) = event.kind.loss() {
                    self.out.losses.add(kind, count);
                }
                self.waits.process(event);
            }
            wire::Event::Sample(sample) => self.sample(processes, sample),
            wire::Event::CallStack(stack) => self.stacks.note(processes, stack),
            wire::Event::Wait(wait) => self.wait(processes, wait),
            wire::Event::Ops(ops) => self.ops(processes, ops),
            wire::Event::Pause(pause) => self.pause(*pause),
            wire::Event::Counter(counter) => self.counter(counter),
            wire::Event::Stalls(_) => self.out.totals.stalls += 1,
            wire::Event::Clock(pair) => {
                self.clock.note(pair);
                self.date_records(records::Dating::Now);
            }
            _ => {}
        }
        self.error.take().map_or(Ok(()), Err)
    }

    /// Hands on all that devices are known to have done by now. Gives what there is of the
    /// recording, names that became known late aside, and the sink.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn so_far(&mut self) -> io::Result<(&Recorded, &mut S)> {
        self.hand_on_known();
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        Ok((&self.out, &mut self.sink))
    }

    /// What times count from, CLOCK_MONOTONIC nanoseconds.
    pub fn origin_ns(&self) -> u64 {
        self.origin_ns.unwrap_or(0)
    }

    /// Ends the timeline, after the recording has ended. `losses`: what was lost on the
    /// way here.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(
        mut self,
        about: Meta,
        losses: &Losses,
        names: &dyn CodeNames,
        processes: &ProcessTable,
    ) -> io::Result<(Recorded, S)> {
        self.flush();
        self.date_records(records::Dating::Last);
        self.launches.finish();
        self.take_known();
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut out = self.out;
        out.meta = about;
        out.origin_ns = self.origin_ns.unwrap_or(0);
        (out.start_ns, out.end_ns) = (self.first_ns, self.last_ns);
        out.clock_steps = self.clock.steps() as u64;
        let (stacks, lost) = self.stacks.finish(names, &processes.files);
        out.stacks = stacks;
        out.losses.merge(&lost);
        out.losses.merge(losses);
        let late: Vec<Sym> = out
            .names
            .iter()
            .filter(|(_, text)| late::is_late(text))
            .map(|(sym, _)| sym)
            .collect();
        for sym in late {
            let text = self.late.resolve(out.names.get(sym), &self.people);
            let known = out.names.intern(&text);
            out.renamed.insert(sym, known);
        }
        let keys = self.keys.iter();
        out.rows = keys.map(|key| row_of(key, &self.people)).collect();
        for (key, track) in &self.tracks {
            if let Key::Bounds { pid, .. } | Key::Engine { pid, .. } = key
                && self.with_records.contains(pid)
            {
                out.surplus.insert(*track);
            }
        }
        let bounded = self.bounded_of.iter();
        let bounded = bounded.filter(|(pid, _)| !self.with_records.contains(pid));
        out.totals.estimated_spans = bounded.map(|(_, count)| count).sum();
        self.people.label(names, processes);
        out.processes = self.people.processes;
        Ok((out, self.sink))
    }

    /// A CPU sample: the period that ends with it.
    fn sample(&mut self, processes: &ProcessTable, sample: &Sample) {
        let (pid, tid) = (sample.thread.pid, sample.thread.tid);
        let Some(track) = self.track(Key::Samples { pid, tid }) else {
            return self.out.losses.add(LossKind::SpansRefused, 1);
        };
        let stack = self.stacks.of_sample(processes, sample);
        self.ops_inbox.stack((pid, tid), sample.time_ns, || stack);
        self.out.totals.samples += 1;
        let end = self.time(sample.time_ns);
        let start = (end - self.out.period)
            .max(self.time(self.first_ns))
            .min(end);
        let mut event = Event::new(Ph::Complete, Sym::EMPTY, track, start);
        event.length = end - start;
        event.cat = self.name("sample");
        event.stack = stack;
        let mut args = Args::new();
        args.number("cpu", sample.cpu.into());
        self.push(&Span { event, depth: 0 }, &args);
    }

    fn time(&self, time_ns: u64) -> Time {
        let origin = self.origin_ns.unwrap_or(time_ns);
        Time::from_nanos(time_ns.wrapping_sub(origin).cast_signed())
    }

    fn span(&mut self, name: Sym, category: &str, track: TrackId, times: (u64, u64)) -> Event {
        let start = self.time(times.0);
        let mut event = Event::new(Ph::Complete, name, track, start);
        event.length = self.time(times.1.max(times.0)) - start;
        event.cat = self.name(category);
        event.quality = Quality::Exact;
        event
    }

    fn push(&mut self, span: &Span, args: &Args) {
        if self.error.is_none() {
            self.error = self
                .sink
                .event(&span.event, span.depth, args.members())
                .err();
        }
    }

    /// A text's number.
    fn name(&mut self, text: &str) -> Sym {
        let names = &mut self.out.names;
        if names.len() >= MAX_NAMES || self.name_bytes + text.len() > MAX_NAME_BYTES {
            let known = names.find(text);
            return known.unwrap_or_else(|| {
                self.out.losses.add(LossKind::TableFull, 1);
                names.intern(OTHER)
            });
        }
        let before = names.len();
        let sym = names.intern(text);
        if names.len() > before {
            self.name_bytes += text.len();
        }
        sym
    }

    /// A track's number; `None`: there are too many.
    fn track(&mut self, key: Key) -> Option<TrackId> {
        if let Some(&known) = self.tracks.get(&key) {
            return Some(known);
        }
        if self.keys.len() >= MAX_TRACKS {
            return None;
        }
        let number = Id::Number(self.keys.len() as i64);
        let of = |pid: u32, kind| (Id::Number(pid.into()), kind);
        let (pid, kind) = match &key {
            Key::Thread { pid, .. } => of(*pid, TrackKind::Thread),
            Key::Samples { pid, .. } => of(*pid, TrackKind::Samples),
            Key::Records { pid, .. } | Key::Ranges { pid } => of(*pid, TrackKind::Records),
            Key::Stream { pid, .. } | Key::Engine { pid, .. } => of(*pid, TrackKind::Stream),
            Key::Bounds { pid, .. } => of(*pid, TrackKind::Bounds),
            Key::Queue { .. } => (Id::NONE, TrackKind::Queue),
            Key::Counter(_) => (Id::NONE, TrackKind::Counter),
            Key::Pauses => (Id::NONE, TrackKind::Row),
        };
        let tid = match &key {
            Key::Thread { tid, .. } | Key::Samples { tid, .. } => Id::Number((*tid).into()),
            _ => number,
        };
        let track = self.out.tracks.intern(Track {
            job: 0,
            rank: NONE,
            pid,
            tid,
            kind,
        });
        self.keys.push(key.clone());
        self.tracks.insert(key, track);
        Some(track)
    }
}

/// How a track is shown.
fn row_of(key: &Key, people: &people::People) -> Row {
    let thread = |pid: u32, tid: u32| {
        let name = people.thread_name(pid, tid).filter(|name| !name.is_empty());
        name.unwrap_or("thread").to_owned()
    };
    let (group, name) = match key {
        Key::Thread { pid, tid } => (Group::Process(*pid), thread(*pid, *tid)),
        Key::Samples { pid, tid } => {
            let name = format!("{} samples", thread(*pid, *tid));
            (Group::Process(*pid), name)
        }
        Key::Records { pid, thread } => {
            let known = u32::try_from(*thread)
                .ok()
                .and_then(|tid| people.thread_name(*pid, tid));
            let of = known.map_or_else(|| format!("thread {thread}"), str::to_owned);
            (Group::Process(*pid), format!("{of} runtime records"))
        }
        Key::Ranges { pid } => (Group::Process(*pid), "ranges".to_owned()),
        Key::Stream {
            recorder,
            pid,
            device,
            stream,
        } => {
            // What is number 0 of one process may be another one's number 1.
            let number = device.map_or(String::new(), |device| format!(" {device}"));
            let what = recorder.device();
            let group = format!("{what}{number} of {} {pid}", people.process_name(*pid));
            let name = stream.map_or("Device".to_owned(), |stream| format!("Stream {stream}"));
            (Group::Named(group), name)
        }
        Key::Queue { device, queue } => {
            let device = if device.is_empty() {
                "GPU scheduler"
            } else {
                device
            };
            let queue = if queue.is_empty() { "queue" } else { queue };
            let group = format!("{device}: submissions, not busy time");
            (Group::Named(group), queue.to_owned())
        }
        Key::Engine {
            pid,
            api,
            device,
            queue,
        } => {
            let process = people.process_name(*pid);
            let group = format!("{api} device {device} of {process} {pid}");
            (Group::Named(group), queue_name(*queue))
        }
        Key::Bounds { pid, api, queue } => {
            let process = people.process_name(*pid);
            let group = format!("{api} work of {process} {pid}, estimated from calls");
            (Group::Named(group), queue_name(*queue))
        }
        Key::Counter(source) => (Group::Named(source.to_string()), String::new()),
        Key::Pauses => (Group::Named("Recording".to_owned()), "pauses".to_owned()),
    };
    Row { group, name }
}

fn queue_name(queue: u64) -> String {
    match queue {
        0 => "queue not known".to_owned(),
        queue => format!("queue {queue:#x}"),
    }
}

/// A recorded timeline, event by event: for captures.
pub struct Replay<S> {
    recording: Recording,
    builder: Builder<S>,
}

impl<S> std::fmt::Debug for Replay<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").finish_non_exhaustive()
    }
}

impl<S: EventSink> Replay<S> {
    /// Begins; see [`Builder::new`] and [`Builder::with_wakers`].
    pub fn new(period_ns: u64, wakers: bool, sink: S) -> Self {
        Self {
            recording: Recording::default(),
            builder: Builder::new(period_ns, sink).with_wakers(wakers),
        }
    }

    /// One that draws more of devices' commands.
    #[must_use]
    pub fn with_commands(mut self, detail: CommandDetail) -> Self {
        self.builder = self.builder.with_commands(detail);
        self
    }

    /// Takes an event in.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn event(&mut self, event: &wire::Event) -> io::Result<()> {
        self.recording
            .apply(event, &mut [&mut self.builder])
            .map(drop)
    }

    /// See [`Builder::so_far`].
    ///
    /// # Errors
    /// Those of the sink.
    pub fn so_far(&mut self) -> io::Result<(&Recorded, &mut S)> {
        self.builder.so_far()
    }

    /// See [`Builder::origin_ns`].
    pub fn origin_ns(&self) -> u64 {
        self.builder.origin_ns()
    }

    /// Ends it; see [`Builder::finish`].
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(
        mut self,
        about: Meta,
        losses: &Losses,
        names: &dyn CodeNames,
    ) -> io::Result<(Recorded, S)> {
        self.recording
            .finish(self.builder.last_ns, &mut [&mut self.builder]);
        let mut losses = losses.clone();
        losses.merge(&self.recording.take_losses());
        self.builder
            .finish(about, &losses, names, &self.recording.processes)
    }
}
