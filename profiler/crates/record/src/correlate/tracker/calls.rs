//! The tracker: events in, calls and launches out.

use super::{
    CallSink, ImagePiece, Tracked,
    fence::Fences,
    handles::Name,
    meaning::ProbeMeaning,
    state::{Settle, TrackerState},
    thread::CallThread,
};
use aiprof_model::{
    probes::Probe,
    profile::{LossKind, Losses},
    wire::{Call, CallData, Event, ProcessEvent, ProcessEventKind},
};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Limits of a [`Tracker`]; what is beyond them is counted as lost.
#[derive(Clone, Copy, Debug)]
pub struct TrackerLimits {
    /// Most probes, and most probed files.
    pub probes: usize,
    /// Most threads with calls.
    pub threads: usize,
    /// Most processes with handles.
    pub processes: usize,
    /// Most open calls of a thread, one inside the other.
    pub depth: usize,
    /// Most handles and allocations, over all processes.
    pub handles: usize,
    /// Most launches on one command list.
    pub per_list: usize,
    /// Most launches on all command lists.
    pub recorded: usize,
    /// Most launches that one call may make.
    pub launches_per_call: usize,
}

impl Default for TrackerLimits {
    /// About 150 MiB when all are reached; usually far below one.
    fn default() -> Self {
        Self {
            probes: 1 << 16,
            threads: 1 << 16,
            processes: 1 << 14,
            depth: 32,
            handles: 1 << 19,
            per_list: 1 << 16,
            recorded: 1 << 17,
            launches_per_call: 1 << 17,
        }
    }
}

/// What a [`Tracker`] has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records taken: entries and exits.
    pub records: u64,
    /// Records of data taken.
    pub data: u64,
    /// Calls entered.
    pub calls: u64,
    /// Launches reported.
    pub launches: u64,
    /// Submissions reported.
    pub submissions: u64,
    /// Ends of submissions whose begin was not seen: it was before the recording, or
    /// in a process that is not recorded.
    pub submissions_unmatched: u64,
}

/// Follows the calls of all threads.
#[derive(Debug)]
pub struct Tracker {
    probes: Vec<Option<Rc<ProbeMeaning>>>,
    threads: FxHashMap<u32, CallThread>,
    /// The threads of each process that are among them.
    processes: FxHashMap<u32, Vec<u32>>,
    state: TrackerState,
    fences: Fences,
}

impl Default for Tracker {
    fn default() -> Self {
        Self::new(TrackerLimits::default())
    }
}

impl Tracker {
    /// One that has seen nothing.
    pub fn new(limits: TrackerLimits) -> Self {
        Self {
            probes: Vec::new(),
            threads: FxHashMap::default(),
            processes: FxHashMap::default(),
            state: TrackerState::new(limits),
            fences: Fences::default(),
        }
    }

    /// Takes one event in; events of one thread must come in time order, and the
    /// data of a call before its thread's next.
    pub fn apply(&mut self, event: &Event, sink: &mut dyn CallSink) {
        let tid = match event {
            Event::CallData(data) => return self.data(data, sink),
            Event::Call(call) => Some(call.tid),
            _ => None,
        };
        self.state.proceed(event.time_ns(), tid, sink);
        self.report_facts(sink);
        match event {
            Event::Call(call) => self.call(call, sink),
            Event::Process(event) => self.process(event, sink),
            Event::Probe(probe) => self.probe(probe),
            Event::KernelNamed(named) => {
                self.name_kernel(named.pid, named.kernel, &named.name, sink);
            }
            Event::KernelPlaced(placed) => {
                self.state.place_kernel(placed);
                self.state.report_kernels(sink);
            }
            Event::TracePoint(point) => self.fences.point(point),
            Event::Trace(trace) => self.fences.trace(trace, &mut self.state.losses, sink),
            _ => {}
        }
        self.state.report_kernel_events(sink);
        self.report_facts(sink);
    }

    /// Passes on what calls revealed of devices, after the launches that it is of.
    fn report_facts(&mut self, sink: &mut dyn CallSink) {
        for fact in std::mem::take(&mut self.state.facts) {
            if let Some(event) = fact.event()
                && let Some(tids) = self.processes.get(&fact.pid)
            {
                for tid in tids {
                    if let Some(thread) = self.threads.get_mut(tid) {
                        thread.signalled(event, fact.left_ns, &mut self.state, sink);
                    }
                }
            }
            sink.found(&Tracked::DeviceFact(&fact));
        }
    }

    /// Ends every open call: nothing more will come. `now_ns` is the end of the
    /// recording, CLOCK_MONOTONIC nanoseconds.
    pub fn finish(&mut self, now_ns: u64, sink: &mut dyn CallSink) {
        let mut tids: Vec<u32> = self.threads.keys().copied().collect();
        tids.sort_unstable();
        for tid in tids {
            self.end_thread(tid, now_ns, sink);
        }
        let state = &mut self.state;
        state.settle(Settle::Until(u64::MAX), sink);
        state.report_kernel_events(sink);
        state.activity.finish(now_ns, &mut state.losses, sink);
        self.report_facts(sink);
        self.fences.finish(now_ns, sink);
    }

    /// Names a kernel that was created before aiprof was attached, unless its creation has been
    /// seen since.
    pub(crate) fn name_kernel(
        &mut self,
        pid: u32,
        kernel: u64,
        name: &str,
        sink: &mut dyn CallSink,
    ) {
        let Some(handles) = self.state.processes.get_mut(&pid) else {
            return;
        };
        if let Some(found) = handles.kernels.get_mut(kernel)
            && found.name == Name::Unseen
        {
            let name: Rc<str> = name.into();
            found.name = Name::Found(name.clone());
            self.state.kernels.unnamed.remove(&(pid, kernel));
            sink.found(&Tracked::KernelNamed {
                pid,
                kernel,
                name: &name,
            });
        }
    }

    /// Whether a process has launched kernels of unknown name through this handle.
    #[cfg(test)]
    pub(super) fn is_unnamed(&self, pid: u32, kernel: u64) -> bool {
        let handles = self.state.processes.get(&pid);
        let kernel = handles.and_then(|handles| handles.kernels.get(kernel));
        kernel.is_some_and(|kernel| kernel.name == Name::Unseen)
    }

    /// Whether a thread is inside a runtime's function that waits for the device, or in an
    /// ioctl of a driver.
    #[must_use]
    pub fn is_waiting(&self, tid: u32) -> bool {
        self.threads.get(&tid).is_some_and(CallThread::is_waiting)
    }

    /// What it has seen.
    pub fn counts(&self) -> Counts {
        Counts {
            submissions: self.fences.reported,
            submissions_unmatched: self.fences.unmatched,
            ..self.state.counts
        }
    }

    /// What was lost since the last call of this.
    pub fn take_losses(&mut self) -> Losses {
        let unnamed = std::mem::take(&mut self.state.kernels.unnamed)
            .into_values()
            .sum();
        self.state.losses.add(LossKind::KernelsUnnamed, unnamed);
        std::mem::take(&mut self.state.losses)
    }

    fn probe(&mut self, probe: &Probe) {
        let id = probe.id as usize;
        if id >= self.state.limits.probes {
            return;
        }
        if self.probes.len() <= id {
            self.probes.resize(id + 1, None);
        }
        self.probes[id] = Some(Rc::new(ProbeMeaning::new(probe.clone())));
    }

    /// The probe of a number.
    pub(super) fn announced(&self, number: u32) -> Option<&Probe> {
        let known = self.probes.get(number as usize)?;
        known.as_ref().map(|known| &*known.probe)
    }

    fn call(&mut self, call: &Call, sink: &mut dyn CallSink) {
        self.state.counts.records += 1;
        let Some(Some(known)) = self.probes.get(call.probe as usize) else {
            self.state.losses.add(LossKind::CallsUnknown, 1);
            return;
        };
        let thread = (call.pid, call.tid);
        if self.state.activity.is_helper_s(thread, &known.probe.api) {
            return;
        }
        let known = known.clone();
        if self
            .threads
            .get(&call.tid)
            .is_some_and(|t| t.pid != call.pid)
        {
            // The number was given to another process's thread.
            self.end_thread(call.tid, call.time_ns, sink);
        }
        if !self.threads.contains_key(&call.tid) && !self.admit(call) {
            self.state.losses.add(LossKind::CallsRefused, 1);
            return;
        }
        let Some(thread) = self.threads.get_mut(&call.tid) else {
            return;
        };
        let state = &mut self.state;
        if call.is_exit() {
            thread.exit(call, &known, state, sink);
        } else {
            state.counts.calls += 1;
            thread.enter(call, &known, state, sink);
        }
    }

    /// Makes room for a thread and takes it in; false if there is none.
    fn admit(&mut self, call: &Call) -> bool {
        if self.threads.len() >= self.state.limits.threads {
            // Their ends were lost: a thread between two calls loses nothing.
            self.threads.retain(|_, thread| !thread.open.is_empty());
            let threads = &self.threads;
            self.processes.retain(|_, tids| {
                tids.retain(|tid| threads.contains_key(tid));
                !tids.is_empty()
            });
            if self.threads.len() >= self.state.limits.threads {
                return false;
            }
        }
        self.threads.insert(call.tid, CallThread::new(call.pid));
        self.processes.entry(call.pid).or_default().push(call.tid);
        true
    }

    fn data(&mut self, data: &CallData, sink: &mut dyn CallSink) {
        self.state.counts.data += 1;
        let known = self
            .probes
            .get(data.probe as usize)
            .and_then(Option::as_ref);
        if known.is_some_and(|known| known.tags.is_image(data.tag)) {
            sink.found(&Tracked::ImagePiece(&ImagePiece::of(data)));
        }
        let state = &mut self.state;
        let is_helper_s = |known: &Rc<ProbeMeaning>| {
            let thread = (data.pid, data.tid);
            state.activity.is_helper_s(thread, &known.probe.api)
        };
        if known.is_some_and(is_helper_s) {
            return;
        }
        let thread = self.threads.get_mut(&data.tid);
        let taken = thread.is_some_and(|thread| thread.data(data, state));
        if !taken && !state.late_data(data) {
            state.losses.add(LossKind::CallDataIncomplete, 1);
        }
    }

    fn process(&mut self, event: &ProcessEvent, sink: &mut dyn CallSink) {
        match event.kind {
            ProcessEventKind::Exec { .. } => {
                self.end_process(event.pid, event.time_ns, sink);
                self.state.forget(event.pid, event.time_ns, sink);
                sink.found(&Tracked::ProcessGone {
                    pid: event.pid,
                    at_ns: event.time_ns,
                });
            }
            ProcessEventKind::Exit => {
                self.end_thread(event.tid, event.time_ns, sink);
                if event.pid == event.tid && !self.processes.contains_key(&event.pid) {
                    self.state.forget(event.pid, event.time_ns, sink);
                    sink.found(&Tracked::ProcessGone {
                        pid: event.pid,
                        at_ns: event.time_ns,
                    });
                }
            }
            ProcessEventKind::Fork { parent } if parent != event.pid => {
                // The number may have been another process's.
                self.end_process(event.pid, event.time_ns, sink);
                self.state.forget(event.pid, event.time_ns, sink);
                self.state.fork(parent, event.pid, event.time_ns);
            }
            _ => {}
        }
    }

    fn end_process(&mut self, pid: u32, now_ns: u64, sink: &mut dyn CallSink) {
        let mut tids = self.processes.remove(&pid).unwrap_or_default();
        tids.sort_unstable();
        for tid in tids {
            self.end_thread(tid, now_ns, sink);
        }
    }

    fn end_thread(&mut self, tid: u32, now_ns: u64, sink: &mut dyn CallSink) {
        let Some(mut thread) = self.threads.remove(&tid) else {
            return;
        };
        thread.end_all(now_ns, &mut self.state, sink);
        if let Some(tids) = self.processes.get_mut(&thread.pid) {
            tids.retain(|&other| other != tid);
            if tids.is_empty() {
                self.processes.remove(&thread.pid);
            }
        }
    }
}

#[cfg(test)]
impl Tracker {
    /// Whether nothing is held any more: all room has come back.
    pub(super) fn is_idle(&self) -> bool {
        let limits = self.state.limits;
        let room = &self.state.room;
        self.threads.is_empty()
            && self.processes.is_empty()
            && self.state.processes.is_empty()
            && self.state.forked.is_idle()
            && room.objects == limits.handles
            && room.recorded == limits.recorded
    }
}
