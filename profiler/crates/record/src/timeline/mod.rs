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
mod late_names;
mod launches;
mod ops;
mod pauses;
mod process_tracks;
mod ranges;
mod records;
mod stacks;
mod tracks;
mod waits;

use crate::{aggregate::NameSource, ops::OpsInbox, recording::Recording};
use aiprof_model::{
    process::ProcessTable,
    profile::{LossKind, Losses, Meta},
    timeline::{
        Args, Event, Ph, Sym,
        recorded::{EventSink, Recorded},
    },
    wire::{self, Sample},
};
use rustc_hash::FxHashMap;
use std::io;
use tracks::{TrackKey, TrackWriter};

/// What of devices' commands is drawn beside kernels, copies and fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandDetail {
    /// Barriers.
    pub barriers: bool,
    /// Each command by itself while there is room, also where its times are not known; else those
    /// of one name, shape and wait have one span.
    pub each: bool,
}

/// Makes the events of a timeline of what is recorded.
#[derive(Debug)]
pub struct Builder<S> {
    writer: TrackWriter<S>,
    process_tracks: process_tracks::ProcessTracks,
    stacks: stacks::StackTree,
    waits: waits::ThreadWaits,
    /// Stacks, by number, of processes that are to report their operators.
    ops_inbox: OpsInbox<u32>,
    late: late_names::LateNames,
    records: records::DeviceRecords,
    launches: launches::DeviceLaunches,
    kernels: kernels::KernelFacts,
    /// [`CommandDetail::barriers`].
    barriers: bool,
    /// Spans between launch and wait, by process.
    bounded_of: FxHashMap<u32, u64>,
    /// By open call: the latest end of the calls in it.
    inside: FxHashMap<u64, u64>,
    /// The last call, whose launches follow it.
    pending: Option<calls::Pending>,
    /// Since when the recording is paused.
    paused_ns: Option<u64>,
}

impl<S: EventSink> Builder<S> {
    /// Begins a timeline. `period_ns`: what a CPU sample stands for.
    pub fn new(period_ns: u64, sink: S) -> Self {
        Self {
            writer: TrackWriter::new(period_ns, sink),
            process_tracks: process_tracks::ProcessTracks::default(),
            stacks: stacks::StackTree::default(),
            waits: waits::ThreadWaits::default(),
            ops_inbox: OpsInbox::default(),
            late: late_names::LateNames::default(),
            records: records::DeviceRecords::default(),
            launches: launches::DeviceLaunches::default(),
            kernels: kernels::KernelFacts::default(),
            barriers: false,
            bounded_of: FxHashMap::default(),
            inside: FxHashMap::default(),
            pending: None,
            paused_ns: None,
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
        self.writer.note_time(event.time_ns());
        self.process_tracks.event(processes, event);
        match event {
            wire::Event::Process(event) => {
                if let Some((kind, count)) = event.kind.loss() {
                    self.writer.out.losses.add(kind, count);
                }
                self.waits.process(event);
            }
            wire::Event::Sample(sample) => self.sample(processes, sample),
            wire::Event::CallStack(stack) => self.stacks.note(processes, stack),
            wire::Event::Wait(wait) => self.wait(processes, wait),
            wire::Event::Ops(ops) => self.ops(processes, ops),
            wire::Event::Pause(pause) => self.pause(*pause),
            wire::Event::Counter(counter) => self.writer.counter(counter),
            wire::Event::Stalls(_) => self.writer.out.totals.stalls += 1,
            wire::Event::Clock(pair) => {
                self.records.clock.note(pair);
                self.date_records(records::Dating::Now);
            }
            _ => {}
        }
        self.writer.error.take().map_or(Ok(()), Err)
    }

    /// Hands on all that devices are known to have done by now. Gives what there is of the
    /// recording, names that became known late aside, and the sink.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn so_far(&mut self) -> io::Result<(&Recorded, &mut S)> {
        self.hand_on_known();
        let writer = &mut self.writer;
        writer.error.take().map_or(Ok(()), Err)?;
        Ok((&writer.out, &mut writer.sink))
    }

    /// What times count from, CLOCK_MONOTONIC nanoseconds.
    pub fn origin_ns(&self) -> u64 {
        self.writer.origin_ns.unwrap_or(0)
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
        names: &dyn NameSource,
        processes: &ProcessTable,
    ) -> io::Result<(Recorded, S)> {
        self.flush();
        self.date_records(records::Dating::Last);
        self.launches.finish();
        self.take_known();
        let writer = self.writer;
        writer.error.map_or(Ok(()), Err)?;
        let mut out = writer.out;
        out.meta = about;
        out.origin_ns = writer.origin_ns.unwrap_or(0);
        (out.start_ns, out.end_ns) = (writer.first_ns, writer.last_ns);
        out.clock_steps = self.records.clock.steps() as u64;
        let (stacks, lost) = self.stacks.finish(names, &processes.files);
        out.stacks = stacks;
        out.losses.merge(&lost);
        out.losses.merge(losses);
        let late: Vec<Sym> = out
            .names
            .iter()
            .filter(|(_, text)| late_names::is_late(text))
            .map(|(sym, _)| sym)
            .collect();
        for sym in late {
            let text = self.late.resolve(out.names.get(sym), &self.process_tracks);
            let known = out.names.intern(&text);
            out.renamed.insert(sym, known);
        }
        let keys = writer.keys.iter();
        out.rows = keys
            .map(|key| tracks::row_of(key, &self.process_tracks))
            .collect();
        for (key, track) in &writer.tracks {
            if let TrackKey::Bounds { pid, .. } | TrackKey::Engine { pid, .. } = key
                && self.records.processes.contains(pid)
            {
                out.surplus.insert(*track);
            }
        }
        let bounded = self.bounded_of.iter();
        let bounded = bounded.filter(|(pid, _)| !self.records.processes.contains(pid));
        out.totals.estimated_spans = bounded.map(|(_, count)| count).sum();
        self.process_tracks.label(names, processes);
        out.processes = self.process_tracks.processes;
        Ok((out, writer.sink))
    }

    /// A CPU sample: the period that ends with it.
    fn sample(&mut self, processes: &ProcessTable, sample: &Sample) {
        let (pid, tid) = (sample.thread.pid, sample.thread.tid);
        let Some(track) = self.writer.track(TrackKey::Samples { pid, tid }) else {
            return self.writer.out.losses.add(LossKind::SpansRefused, 1);
        };
        let stack = self.stacks.of_sample(processes, sample);
        self.ops_inbox.stack((pid, tid), sample.time_ns, || stack);
        let writer = &mut self.writer;
        writer.out.totals.samples += 1;
        let end = writer.time(sample.time_ns);
        let first = writer.time(writer.first_ns);
        let start = (end - writer.out.period).max(first).min(end);
        let mut event = Event::new(Ph::Complete, Sym::EMPTY, track, start);
        event.length = end - start;
        event.cat = writer.name("sample");
        event.stack = stack;
        let mut args = Args::new();
        args.number("cpu", sample.cpu.into());
        writer.push(&event, 0, &args);
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

    /// Ends it; see [`Builder::finish`].
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(
        mut self,
        about: Meta,
        losses: &Losses,
        names: &dyn NameSource,
    ) -> io::Result<(Recorded, S)> {
        self.recording
            .finish(self.builder.writer.last_ns, &mut [&mut self.builder]);
        let mut losses = losses.clone();
        losses.merge(&self.recording.take_losses());
        self.builder
            .finish(about, &losses, names, &self.recording.processes)
    }
}
