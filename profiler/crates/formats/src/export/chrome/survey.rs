//! What must be known of a whole recording before the first line is written.

use super::tracks::FIRST_FREE_ID;
use aiprof_analysis::correlate::{CallSink, DeviceSpan, EpochClock, FinishedCall, Launch, Tracker};
use aiprof_model::wire::{Event, ProcessEvent, ProcessEventKind};
use rustc_hash::{FxHashMap, FxHashSet};
use std::{collections::BTreeMap, rc::Rc};

/// Most threads that are named.
const MAX_THREADS: usize = 1 << 17;
/// Most names of kernels kept.
const MAX_KERNELS: usize = 1 << 17;
/// Most threads alive whose names are remembered: all that the kernel can have.
const MAX_ALIVE: usize = 1 << 22;

/// A thread with a track.
#[derive(Clone, Debug, Default)]
pub(super) struct Thread {
    /// Its name when it was last seen.
    pub(super) name: Box<str>,
    /// It made calls.
    pub(super) calls: bool,
    /// It was sampled.
    pub(super) samples: bool,
}

/// The first look at a recording: when it began, who is in it, and the names of
/// kernels that were found out late.
#[derive(Debug, Default)]
pub struct Survey {
    first_ns: Option<u64>,
    last_ns: u64,
    /// Names of the threads alive, by id.
    alive: FxHashMap<u32, Box<str>>,
    /// Threads with something to show, by process and thread.
    pub(super) threads: BTreeMap<(u32, u32), Thread>,
    /// Names of their processes.
    pub(super) processes: BTreeMap<u32, Box<str>>,
    /// Names of processes at their first submission, also of those without a track.
    submitters: FxHashMap<u32, Box<str>>,
    pub(super) kernels: Kernels,
    /// Processes whose devices tell of themselves.
    pub(super) recorded: Recorded,
    /// The time of day.
    pub(super) clock: EpochClock,
    tracker: Tracker,
}

/// Names of kernels older than the recording, by process and handle.
#[derive(Debug, Default)]
pub(super) struct Kernels(FxHashMap<(u32, u64), Rc<str>>);

impl Kernels {
    pub(super) fn get(&self, pid: u32, kernel: u64) -> Option<&str> {
        self.0.get(&(pid, kernel)).map(|name| &**name)
    }
}

/// Processes of which activity records of devices were seen.
#[derive(Debug, Default)]
pub(super) struct Recorded(FxHashSet<u32>);

impl Recorded {
    pub(super) fn contains(&self, pid: &u32) -> bool {
        self.0.contains(pid)
    }
}

/// What a survey takes of the calls.
struct Found<'a> {
    kernels: &'a mut Kernels,
    recorded: &'a mut Recorded,
}

impl CallSink for Found<'_> {
    fn call(&mut self, _: &FinishedCall) {}

    fn launch(&mut self, _: &Launch) {}

    fn kernel_named(&mut self, pid: u32, kernel: u64, name: &Rc<str>) {
        let Kernels(kernels) = &mut *self.kernels;
        if kernels.len() < MAX_KERNELS {
            kernels.insert((pid, kernel), name.clone());
        }
    }

    fn device_span(&mut self, span: &DeviceSpan) {
        let Recorded(processes) = &mut *self.recorded;
        if processes.len() < MAX_THREADS {
            processes.insert(span.pid);
        }
    }
}

impl Survey {
    /// Takes an event in; all of them must come, in order.
    pub fn event(&mut self, event: &Event) {
        let time = event.time_ns();
        if time != 0 {
            self.first_ns = Some(self.first_ns.map_or(time, |first| first.min(time)));
            self.last_ns = self.last_ns.max(time);
        }
        match event {
            Event::Process(event) => self.process(event),
            Event::Sample(sample) => {
                let thread = &sample.thread;
                let seen = self.seen(thread.pid, thread.tid, Some(&thread.comm));
                if let Some(thread) = seen {
                    thread.samples = true;
                }
            }
            Event::CallStack(stack) => {
                let thread = &stack.sample.thread;
                self.rename(thread.tid, &thread.comm);
            }
            Event::Call(call) => {
                let seen = self.seen(call.pid, call.tid, None);
                if let Some(thread) = seen {
                    thread.calls = true;
                }
            }
            Event::Trace(trace) if !self.submitters.contains_key(&trace.pid) => {
                let name = self.alive.get(&trace.pid);
                if let Some(name) = name.filter(|_| self.submitters.len() < MAX_THREADS) {
                    self.submitters.insert(trace.pid, name.clone());
                }
            }
            Event::Clock(pair) => self.clock.note(pair),
            _ => {}
        }
        let mut found = Found {
            kernels: &mut self.kernels,
            recorded: &mut self.recorded,
        };
        self.tracker.apply(event, &mut found);
    }

    /// When the recording began: its first event.
    pub(super) fn start_ns(&self) -> u64 {
        self.first_ns.unwrap_or(0)
    }

    /// When it ended: its last event.
    pub(super) fn end_ns(&self) -> u64 {
        self.last_ns
    }

    /// The name of a process that submitted work, or ended it.
    pub(super) fn submitter(&self, pid: u32) -> Option<&str> {
        self.submitters.get(&pid).map(|name| &**name)
    }

    fn process(&mut self, event: &ProcessEvent) {
        match &event.kind {
            ProcessEventKind::Exec { comm } | ProcessEventKind::Snapshot { comm, .. } => {
                self.rename(event.pid, comm);
            }
            ProcessEventKind::Comm { comm } => self.rename(event.tid, comm),
            ProcessEventKind::Fork { parent } => {
                if let Some(name) = self.alive.get(parent).cloned() {
                    self.rename(event.tid, &name);
                }
            }
            ProcessEventKind::Exit => drop(self.alive.remove(&event.tid)),
            _ => {}
        }
    }

    fn rename(&mut self, tid: u32, name: &str) {
        if self.alive.get(&tid).is_some_and(|known| **known == *name) {
            return;
        }
        if self.alive.len() < MAX_ALIVE || self.alive.contains_key(&tid) {
            self.alive.insert(tid, name.into());
        }
    }

    /// A thread that has something to show, with its name and its process's as they
    /// are now; `None` if it cannot have a track or there are too many.
    fn seen(&mut self, pid: u32, tid: u32, name: Option<&str>) -> Option<&mut Thread> {
        let is_new = !self.threads.contains_key(&(pid, tid));
        if pid.max(tid) >= FIRST_FREE_ID || is_new && self.threads.len() >= MAX_THREADS {
            return None;
        }
        let own = name.or_else(|| self.alive.get(&tid).map(|name| &**name));
        let process = self.alive.get(&pid).map(|name| &**name);
        // Of a process whose main thread is unknown, any name is better than none.
        set(self.processes.entry(pid).or_default(), process, own);
        let thread = self.threads.entry((pid, tid)).or_default();
        set(&mut thread.name, own, process);
        Some(thread)
    }
}

/// Sets a name to `best`, or to `other` if it has none and there is no better.
fn set(name: &mut Box<str>, best: Option<&str>, other: Option<&str>) {
    let other = other.filter(|_| name.is_empty());
    if let Some(new) = best.or(other).filter(|new| **new != **name) {
        *name = new.into();
    }
}
