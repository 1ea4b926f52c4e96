//! The events of the last seconds: a flight recorder.
//!
//! All events are kept until they are older than the window. Then they are forgotten, except for
//! what later events refer to. The mappings of processes go into a table. What was created and not
//! destroyed is kept as long as its process lives: modules, kernels, queues, stacks of calls,
//! Python's code objects. A dump is a capture: what was kept, dated at the begin of the window, and
//! behind it the events of the window.
//!
//! Memory is bounded: [`MAX_RECENT`] bytes of events and [`MAX_LASTING`] for what lasts. Where the
//! window's events take more, it is shorter, and a dump reports that.

use crate::procfs::map_event;
use aiprof_model::{
    probes::CallKind,
    process::ProcessTable,
    wire::{Call, Event, ProcessEvent, ProcessEventKind, ProcessLabels, Sample},
};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};

/// Most bytes of events of the window, about.
const MAX_RECENT: usize = 256 << 20;
/// Most bytes of what lasts, about, of each of the two kinds.
const MAX_LASTING: usize = 32 << 20;
/// Most stacks of calls that are remembered; the programs at probes send one again after
/// half as many others.
const MAX_STACKS: usize = 32_768;
/// After how long a process that ended is forgotten.
const LINGER_NS: u64 = 2_000_000_000;

/// Events that last, in the order in which they came, within a bound.
#[derive(Debug, Default)]
struct Lasting {
    events: VecDeque<Event>,
    bytes: usize,
    lost: u64,
}

impl Lasting {
    fn push(&mut self, event: Event) {
        self.bytes += size_of_event(&event);
        self.events.push_back(event);
        while self.bytes > MAX_LASTING
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= size_of_event(&oldest).min(self.bytes);
            self.lost += 1;
        }
    }

    fn forget(&mut self, pid: u32) {
        self.events.retain(|event| process_of(event) != Some(pid));
        self.bytes = self.events.iter().map(size_of_event).sum();
    }
}

/// What a dump has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpExtent {
    /// Begin and end, CLOCK_MONOTONIC nanoseconds.
    pub from_ns: u64,
    /// The end.
    pub to_ns: u64,
    /// Nanoseconds of pauses between.
    pub paused_ns: u64,
    /// Events that were too many for the memory of the window, since the last dump.
    pub shortened: u64,
    /// What these may refer to and was too much for its memory, since the start.
    pub forgotten: u64,
}

/// The events of the last seconds.
pub(super) struct LastSeconds {
    length_ns: u64,
    began_ns: u64,
    recent: VecDeque<Event>,
    recent_bytes: usize,
    /// As it was when the window began.
    processes: ProcessTable,
    /// What is used as long as its process lives.
    made: Lasting,
    /// What is used for a while: memory, events.
    passing: Lasting,
    stacks: FxHashMap<u64, Event>,
    stack_order: VecDeque<u64>,
    /// By probe, from their descriptions.
    kinds: FxHashMap<u32, CallKind>,
    /// How much there is of each process that lasts.
    owned: FxHashMap<u32, usize>,
    /// Since when the recording was paused where the window begins.
    paused_ns: Option<u64>,
    shortened: u64,
    forgotten_ns: u64,
}

impl LastSeconds {
    /// No events yet, for a window of `length_ns` nanoseconds; it is `now_ns` now.
    pub(super) fn new(length_ns: u64, now_ns: u64) -> Self {
        Self {
            length_ns,
            began_ns: now_ns,
            recent: VecDeque::new(),
            recent_bytes: 0,
            processes: ProcessTable::new(true),
            made: Lasting::default(),
            passing: Lasting::default(),
            stacks: FxHashMap::default(),
            stack_order: VecDeque::new(),
            kinds: FxHashMap::default(),
            owned: FxHashMap::default(),
            paused_ns: None,
            shortened: 0,
            forgotten_ns: now_ns,
        }
    }

    /// Takes an event in, in the order of their times; the processes are as they were
    /// before it.
    pub(super) fn take(&mut self, event: &Event, processes: &ProcessTable) {
        if let Event::Probe(probe) = event {
            self.kinds.insert(probe.id, probe.kind);
        }
        self.recent_bytes += size_of_event(event);
        let mut kept = event.clone();
        match &mut kept {
            Event::Sample(sample) => check_space(sample, processes),
            Event::CallStack(stack) => check_space(&mut stack.sample, processes),
            _ => {}
        }
        self.recent.push_back(kept);
        let before_ns = event.time_ns().saturating_sub(self.length_ns);
        while self.recent_bytes > MAX_RECENT
            && let Some(oldest) = self.recent.pop_front()
        {
            self.shortened += 1;
            self.began_ns = self.began_ns.max(oldest.time_ns());
            self.retire(oldest);
        }
        self.retire_before(before_ns);
    }

    /// Forgets what is older than this.
    fn retire_before(&mut self, before_ns: u64) {
        // Descriptions have no time: they go with what is around them.
        while let Some(oldest) = self.recent.front()
            && oldest.time_ns() < before_ns
            && let Some(oldest) = self.recent.pop_front()
        {
            self.retire(oldest);
        }
        self.began_ns = self.began_ns.max(before_ns);
    }

    fn retire(&mut self, event: Event) {
        self.recent_bytes -= size_of_event(&event).min(self.recent_bytes);
        match event {
            Event::Process(event) => self.retire_process(&event),
            Event::Labels(labels) => self.processes.labelled(&labels),
            Event::CallStack(ref stack) => {
                let id = stack.id;
                if self.stacks.insert(id, event).is_none() {
                    self.stack_order.push_back(id);
                }
                if self.stack_order.len() > MAX_STACKS
                    && let Some(oldest) = self.stack_order.pop_front()
                {
                    self.stacks.remove(&oldest);
                }
            }
            Event::Pause(pause) => self.paused_ns = pause.begins.then_some(pause.time_ns),
            Event::Call(_) | Event::CallData(_) => match self.kind_of(&event) {
                Some(kind) if kind.is_work() => {}
                Some(CallKind::Module | CallKind::Kernel | CallKind::Context | CallKind::Queue) => {
                    self.keep(event, true);
                }
                _ => self.keep(event, false),
            },
            Event::Probe(_)
            | Event::ProbedFile(_)
            | Event::TracePoint(_)
            | Event::KernelNamed(_)
            | Event::KernelPlaced(_)
            | Event::DeviceStream(_)
            | Event::DeviceCode(_)
            | Event::PythonFound(_)
            | Event::PythonCode(_) => self.keep(event, true),
            Event::Sample(_)
            | Event::Trace(_)
            | Event::Clock(_)
            | Event::Counter(_)
            | Event::Stalls(_)
            | Event::PythonStack(_)
            | Event::Wait(_)
            | Event::Ops(_) => {}
        }
    }

    fn kind_of(&self, event: &Event) -> Option<CallKind> {
        let probe = match event {
            Event::Call(call) => call.probe,
            Event::CallData(data) => data.probe,
            _ => return None,
        };
        self.kinds.get(&probe).copied()
    }

    fn keep(&mut self, event: Event, is_made: bool) {
        if let Some(pid) = process_of(&event) {
            *self.owned.entry(pid).or_default() += 1;
        }
        match is_made {
            true => self.made.push(event),
            false => self.passing.push(event),
        }
    }

    fn retire_process(&mut self, event: &ProcessEvent) {
        let is_main = event.pid == event.tid;
        let is_end = match event.kind {
            ProcessEventKind::Exit => is_main,
            ProcessEventKind::Exec { .. } => true,
            _ => false,
        };
        if is_end && self.owned.remove(&event.pid).is_some() {
            self.made.forget(event.pid);
            self.passing.forget(event.pid);
        }
        self.processes.apply(event);
        if event.time_ns > self.forgotten_ns + LINGER_NS {
            self.forgotten_ns = event.time_ns;
            let before_ns = event.time_ns.saturating_sub(LINGER_NS);
            self.processes.remove_exited_before(before_ns, |_| false);
            let maps = self.processes.iter().flat_map(|(_, p)| &p.space.maps);
            let mut used: Vec<_> = maps.map(|map| map.file).collect();
            used.sort_unstable();
            let files = &mut self.processes.files;
            files.retain(|file| used.binary_search(&file).is_ok());
        }
    }

    /// Gives the events of the window that ends now, and before them what they refer to.
    pub(super) fn dump(&mut self, now_ns: u64, mut take: impl FnMut(&Event)) -> DumpExtent {
        self.retire_before(now_ns.saturating_sub(self.length_ns));
        let begin_ns = self.began_ns;
        for event in self.state(begin_ns) {
            take(&event);
        }
        self.recent.iter().for_each(&mut take);
        DumpExtent {
            from_ns: begin_ns,
            to_ns: now_ns,
            paused_ns: self.paused(begin_ns, now_ns),
            shortened: std::mem::take(&mut self.shortened),
            forgotten: self.made.lost + self.passing.lost,
        }
    }

    /// What was so when the window began, as events that happened just before it: who
    /// draws them has nothing to draw.
    fn state(&self, begin_ns: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let (made, passing) = (self.made.events.iter(), self.passing.events.iter());
        let mut lasting: Vec<&Event> = made.chain(passing).collect();
        // Descriptions have no time, and come first.
        lasting.sort_by_key(|event| event.time_ns());
        let mut times: BTreeMap<u64, u64> =
            lasting.iter().map(|event| (event.time_ns(), 0)).collect();
        times.remove(&0);
        let first_ns = begin_ns.saturating_sub(times.len() as u64 + 1);
        for (new, at) in times.values_mut().zip(first_ns + 1..) {
            *new = at;
        }
        self.processes_at(first_ns, &mut events);
        let order = self.stack_order.iter();
        let stacks = order.filter_map(|id| self.stacks.get(id).cloned());
        events.extend(stacks.map(|mut stack| {
            if let Event::CallStack(stack) = &mut stack {
                stack.sample.time_ns = first_ns;
            }
            stack
        }));
        let moved = lasting
            .into_iter()
            .map(|event| moved(event.clone(), &times));
        events.extend(moved);
        if self.paused_ns.is_some() {
            events.push(Event::Pause(aiprof_model::wire::Pause {
                time_ns: begin_ns,
                begins: true,
            }));
        }
        events
    }

    fn processes_at(&self, time_ns: u64, events: &mut Vec<Event>) {
        let labels = |pid, labels: Vec<(String, String)>| {
            (!labels.is_empty()).then_some(Event::Labels(ProcessLabels {
                time_ns,
                pid,
                labels,
            }))
        };
        events.extend(labels(0, self.processes.recording_labels.to_vec()));
        let mut all: Vec<_> = self.processes.iter().collect();
        all.sort_unstable_by_key(|(pid, _)| *pid);
        for (pid, process) in all {
            let maps = &process.space.maps;
            let files = &self.processes.files;
            let maps = maps.iter();
            let maps = maps.filter_map(|map| Some(map_event(map, files.key(map.file)?)));
            let kind = ProcessEventKind::Snapshot {
                comm: process.comm.clone(),
                maps: maps.collect(),
            };
            events.push(Event::Process(ProcessEvent {
                time_ns,
                pid,
                tid: pid,
                kind,
            }));
            events.extend(labels(pid, process.labels.to_vec()));
        }
    }

    /// How long the recording was paused in the window.
    fn paused(&self, begin_ns: u64, now_ns: u64) -> u64 {
        let mut since_ns = self.paused_ns.map(|since| since.max(begin_ns));
        let mut sum_ns = 0;
        for event in &self.recent {
            let Event::Pause(pause) = event else { continue };
            match (pause.begins, since_ns) {
                (true, None) => since_ns = Some(pause.time_ns),
                (false, Some(since)) => {
                    sum_ns += pause.time_ns.saturating_sub(since);
                    since_ns = None;
                }
                _ => {}
            }
        }
        sum_ns + since_ns.map_or(0, |since| now_ns.saturating_sub(since))
    }
}

/// Replaces the number of a stack's mappings: it would be another where a dump is read. The new one
/// is 0 if they are the mappings of its process, else one that no process has.
fn check_space(sample: &mut Sample, processes: &ProcessTable) {
    let process = processes.get(sample.thread.pid);
    let is_of = |id| process.is_some_and(|process| process.space.id == id);
    if sample.space != 0 {
        sample.space = if is_of(sample.space) { 0 } else { u32::MAX };
    }
}

/// An event at another time: what was at one time still is.
fn moved(mut event: Event, times: &BTreeMap<u64, u64>) -> Event {
    let new = |old: u64| times.get(&old).copied().unwrap_or(0);
    match &mut event {
        Event::Call(Call {
            time_ns, around_ns, ..
        }) => (*time_ns, *around_ns) = (new(*time_ns), new(*around_ns)),
        Event::CallData(data) => data.time_ns = new(data.time_ns),
        Event::KernelNamed(named) => named.time_ns = new(named.time_ns),
        Event::KernelPlaced(placed) => placed.time_ns = new(placed.time_ns),
        Event::DeviceCode(code) => code.time_ns = new(code.time_ns),
        Event::PythonFound(found) => found.time_ns = new(found.time_ns),
        Event::PythonCode(code) => code.time_ns = new(code.time_ns),
        _ => {}
    }
    event
}

/// The process that an event is of, if it lasts no longer than that.
fn process_of(event: &Event) -> Option<u32> {
    match event {
        Event::Call(call) => Some(call.pid),
        Event::CallData(data) => Some(data.pid),
        Event::KernelNamed(named) => Some(named.pid),
        Event::PythonFound(found) => Some(found.pid),
        Event::PythonCode(code) => Some(code.pid),
        _ => None,
    }
}

/// About how many bytes an event takes.
fn size_of_event(event: &Event) -> usize {
    let of_sample =
        |sample: &Sample| 8 * (sample.user.len() + sample.kernel.len() + sample.python.len());
    let more = match event {
        Event::Sample(sample) => of_sample(sample),
        Event::CallStack(stack) => of_sample(&stack.sample),
        Event::CallData(data) => data.bytes.len(),
        Event::DeviceCode(code) => code.bytes.len(),
        Event::Stalls(window) => 32 * window.counts.len(),
        Event::Process(event) => match &event.kind {
            ProcessEventKind::Snapshot { maps, .. } => 128 * maps.len(),
            _ => 64,
        },
        _ => 64,
    };
    size_of::<Event>() + more
}

#[cfg(test)]
#[path = "last_seconds_tests.rs"]
mod tests;
