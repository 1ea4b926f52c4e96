//! The path of an event, from the rings to the sinks.
//!
//! 1. `receive` reads the rings into the queue, and `prefetch` requests what the events will need.
//! 2. `collect` sorts the queue, and applies what is older than a moment, in the order of time.
//! 3. `apply` resolves what an event needs, for which it waits a little: its process
//!    (`resolve_process`), the files of its mappings (`resolve_file`), the rest of its stack
//!    (`finish_walk`).
//! 4. `dispatch` gives an event that belongs to the recording to the sinks.
//!
//! While step 3 waits, in `wait_until`, events are received: steps 1 to 3 are one object.

use super::{
    CollectError,
    devices::Devices,
    events::Events,
    known::KnownProcesses,
    labels::LabelReason,
    lookups::ReadProcess,
    naming::Naming,
    pausing::Pausing,
    probes::Probes,
    processes::{LiveProcesses, is_complete},
    queue::{EventQueue, MAX_PENDING},
    sampling::KernelSampling,
};
use crate::{bpf::perf, copied, filter::Filter, procfs};
use aiprof_model::{
    process::Region,
    profile::{LossKind, Losses},
    wire::{
        Call, CallData, Event, MapEvent, ProcessEvent, ProcessEventKind, Sample, StopReason,
        ThreadWait, WaitReason,
    },
};
use aiprof_system::workers::Owner;
use std::time::{Duration, Instant};

/// How long one look at the rings may take, where answers are waited for: then it
/// is looked whether to stop.
const LOOK: Duration = Duration::from_millis(200);
/// How long a record may take from its time stamp to the ring: a sampling
/// program with all its stack pages.
pub(super) const IN_FLIGHT_NS: u64 = 1_000_000;
/// Events after which a look at the rings sees whether they are filling up meanwhile.
const BETWEEN_GLANCES: usize = 64;
/// Most times that one look empties them: where that is not enough, the programs are faster
/// than this reader, and what is lost is counted.
const MAX_RELIEFS: usize = 4;
/// How often the file of a mapping is read that changes meanwhile.
const READINGS: usize = 3;
/// Most processes read before the sampling starts, besides those that were chosen.
const MAX_RUNNING: usize = 16;
/// How long they and their tables are waited for.
const BEFORE: Duration = Duration::from_millis(400);
/// The same on a slow or busy machine, where they are being read and need only a CPU for it.
const BEFORE_AT_MOST: Duration = Duration::from_secs(2);

/// Where events come from, what they need, and where they go. The fields are dropped in this
/// order: first what writes into rings.
pub(super) struct EventCollector {
    pub(super) kernel: KernelSampling,
    pub(super) probes: Probes,
    pub(super) devices: Devices,
    pub(super) events: Events,
    pub(super) processes: LiveProcesses,
    pub(super) naming: Naming,
    pub(super) filter: Filter,
    pub(super) queue: EventQueue,
    pub(super) pausing: Pausing,
    pub(super) known: KnownProcesses,
    /// The recording never ends: most processes are never sampled, and it looks less often.
    pub(super) is_continuous: bool,
}

impl EventCollector {
    /// Reads the rings and applies, in time order, everything that happened before the look
    /// began: a later event may still be on its way. `all`: nothing more will come. Returns
    /// whether there is more to read at once.
    pub(super) fn collect(&mut self, all: bool) -> Result<bool, CollectError> {
        let begun = Instant::now();
        let horizon = perf::monotonic_ns().saturating_sub(IN_FLIGHT_NS);
        let mut more = self.receive();
        let queue = &mut self.queue;
        queue.pending.extend(queue.arrived.drain(..));
        if let Some(samplers) = &self.devices.samplers {
            queue.pending.extend(samplers.events());
        }
        let table = &self.events.recording.processes;
        self.probes.add_events(table, queue);
        queue.sort();
        let apply_all = all || queue.pending.len() > MAX_PENDING;
        let (mut applied, mut reliefs) = (0_usize, 0);
        while let Some(event) = self.queue.pending.front() {
            if !apply_all && event.time_ns() > horizon {
                break;
            }
            applied += 1;
            let may_glance = applied.is_multiple_of(BETWEEN_GLANCES) && reliefs < MAX_RELIEFS;
            let calls = self.probes.ring.as_ref();
            if may_glance && self.kernel.is_filling(calls) && self.queue.has_room() {
                // What it finds happened later and is applied at the next look.
                self.receive();
                reliefs += 1;
            }
            if let Some(event) = self.queue.pending.pop_front() {
                self.apply(event)?;
            }
            if !all && begun.elapsed() > LOOK {
                more = true;
                break;
            }
        }
        self.apply_answers();
        self.apply_late_processes()?;
        self.apply_copied()?;
        if !all {
            self.publish();
            self.await_tables();
            self.processes.tables.maintain();
            self.place_kernels(Some(horizon))?;
        }
        Ok(more || !self.queue.arrived.is_empty())
    }

    /// Reads the rings, and requests what the events need. Returns whether there is more to
    /// read at once.
    fn receive(&mut self) -> bool {
        self.receive_processes();
        let first = self.queue.arrived.len();
        let calls = self.probes.ring.as_mut();
        let finisher = &mut self.processes.finisher;
        let more = self.kernel.receive(calls, &mut self.queue, finisher);
        self.prefetch(first);
        more
    }

    /// Reads the rings of process events, and requests what the events need.
    fn receive_processes(&mut self) {
        let first = self.queue.arrived.len();
        self.kernel.receive_processes(&mut self.queue);
        self.prefetch(first);
    }

    /// Requests what the events will need that were just received, from the event `first` on.
    fn prefetch(&mut self, first: usize) {
        let table = &self.events.recording.processes;
        for event in self.queue.arrived.iter().skip(first) {
            match event {
                Event::Process(event) => {
                    self.processes.prefetch(event, &mut self.kernel.bpf, table);
                    // Probes do not wait for what happened before.
                    if let (Some(probes), ProcessEventKind::Map(map)) =
                        (&mut self.probes.runtime, &event.kind)
                    {
                        probes.mapped(event.pid, map);
                    }
                }
                Event::Sample(sample) => self.processes.prefetch_sample(sample, table),
                Event::CallStack(stack) => self.processes.prefetch_sample(&stack.sample, table),
                Event::Call(call) => self.processes.request(call.pid, call.tid, table),
                _ => {}
            }
        }
        self.processes.read_tables(table);
    }

    /// Applies an event: resolves what it needs, and records it if it belongs to the recording.
    fn apply(&mut self, mut event: Event) -> Result<(), CollectError> {
        if !self.resolve(&mut event)? {
            return Ok(());
        }
        let changed = self.dispatch(&event)?;
        let table = &self.events.recording.processes;
        match &event {
            Event::Process(event) => {
                self.filter.note(event);
                self.known.recorded(event);
                self.processes
                    .recorded(event, changed, self.is_continuous, table);
                self.probes.recorded(event, &self.kernel.bpf);
            }
            Event::Call(_) => {
                let named = self.probes.kernels_foreseen();
                self.dispatch_wanted(named)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Resolves what an event needs. `false`: it does not belong to the recording.
    fn resolve(&mut self, event: &mut Event) -> Result<bool, CollectError> {
        Ok(match event {
            Event::Call(call) => self.resolve_call(call)?,
            Event::CallData(data) => self.resolve_call_data(data),
            Event::Process(event) => self.resolve_files(event)?,
            Event::Sample(sample) => self.resolve_sample(sample)?,
            Event::CallStack(stack) => self.resolve_sample(&mut stack.sample)?,
            // Submissions by other processes are left out. Ends of work are all recorded, because
            // an interrupt or a kernel thread reports them, not the process that submitted it.
            Event::Trace(trace) => {
                !self.pausing.covers(trace.time_ns, trace.time_ns)
                    && (!self.probes.begins(trace.point) || self.wants(trace.pid))
            }
            Event::Wait(wait) => self.resolve_wait(wait)?,
            // The device is sampled in pauses too.
            Event::Stalls(window) => !self.pausing.covers(window.from_ns, window.to_ns),
            Event::PythonCode(code) => self.wants(code.pid),
            Event::Probe(_)
            | Event::ProbedFile(_)
            | Event::KernelNamed(_)
            | Event::TracePoint(_)
            | Event::Clock(_)
            | Event::Counter(_)
            | Event::DeviceStream(_)
            | Event::Pause(_)
            | Event::KernelPlaced(_)
            | Event::DeviceCode(_)
            | Event::PythonFound(_)
            | Event::PythonStack(_)
            | Event::Labels(_)
            | Event::Ops(_) => true,
        })
    }

    /// Gives an event that belongs to the recording to where events go. What its calls do
    /// to kernels is given to who looks for their names and places. Returns whether the
    /// mappings of the event's process changed.
    pub(super) fn dispatch(&mut self, event: &Event) -> Result<bool, CollectError> {
        self.devices.recorded(event);
        let changed = self.events.record(event)?;
        for event in self.events.kernels() {
            let Some(probes) = &mut self.probes.runtime else {
                continue;
            };
            if !probes.memory.may_look(event.pid) {
                continue;
            }
            probes.late.kernel(&event);
            if let Some(places) = &mut self.devices.places {
                let table = &self.events.recording.processes;
                places.kernel(&event, || probes.wanted.build_of(table, event.pid));
            }
        }
        Ok(changed)
    }

    /// [`EventCollector::dispatch`], of many.
    pub(super) fn dispatch_all(
        &mut self,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<(), CollectError> {
        events
            .into_iter()
            .try_for_each(|event| self.dispatch(&event).map(drop))
    }

    /// The same, of those whose process belongs to the recording.
    pub(super) fn dispatch_wanted(
        &mut self,
        events: Vec<(u32, Event)>,
    ) -> Result<(), CollectError> {
        for (pid, event) in events {
            if self.wants(pid) {
                self.dispatch(&event)?;
            }
        }
        Ok(())
    }

    /// Whether calls, waits and code of a process belong to the recording.
    fn wants(&mut self, pid: u32) -> bool {
        let table = &self.events.recording.processes;
        self.filter.wants_process(pid, table)
    }

    /// Before a process event is recorded: gives its mappings the keys of their files, and
    /// records the last names of kernels of a process that is gone.
    fn resolve_files(&mut self, event: &mut ProcessEvent) -> Result<bool, CollectError> {
        let pid = event.pid;
        match &mut event.kind {
            ProcessEventKind::Map(map) => {
                self.resolve_file(pid, map, true);
                if Region::of(&map.file) == Region::Anonymous {
                    let table = &self.events.recording.processes;
                    self.processes.copied.mapped(pid, map, table);
                }
            }
            ProcessEventKind::Snapshot { maps, .. } => {
                // Their files were read with the process: waits only where one has changed since.
                for map in maps {
                    let has_changed = self.processes.binaries.has_changed(pid, map);
                    self.resolve_file(pid, map, has_changed);
                }
            }
            _ => {}
        }
        let named = self.probes.process_gone(event);
        self.dispatch_wanted(named)?;
        Ok(true)
    }

    /// Gives a mapping the key of its file, or one of its own if it is not known. If it `waits`,
    /// a little, until it is known.
    fn resolve_file(&mut self, pid: u32, map: &mut MapEvent, waits: bool) {
        // What changes while it is read (a program that deletes itself) is read again.
        for _ in 0..READINGS {
            let processes = &mut self.processes;
            if !waits || processes.binaries.is_identified(pid, map) {
                break;
            }
            processes.binaries.prefetch(pid, map, &mut processes.reader);
            let owner = processes.reader.owner(pid);
            if !self.wait_until(owner, |processes| {
                !processes.binaries.requests.is_asked(pid, map)
            }) {
                break;
            }
        }
        let files = &mut self.events.recording.processes.files;
        let owner = || self.processes.reader.owner(pid);
        self.processes.binaries.identify(pid, owner, map, files);
    }

    /// Resolves the process of a sample, finishes its stack, and requests what of it cannot be
    /// read yet. `false`: it does not belong to the recording.
    fn resolve_sample(&mut self, sample: &mut Sample) -> Result<bool, CollectError> {
        let pid = sample.thread.pid;
        if !sample.user.is_empty() {
            self.resolve_process(pid, sample.thread.tid, sample.time_ns)?;
        }
        let table = &mut self.events.recording.processes;
        self.processes.sampled(sample, table);
        if !self.filter.wants(sample, table) {
            return Ok(false);
        }
        let reason = match sample.stop {
            StopReason::KernelThread => LabelReason::KernelThread,
            _ => LabelReason::Ran,
        };
        self.label(pid, sample.time_ns, reason)?;
        self.finish_walk(sample);
        let table = &mut self.events.recording.processes;
        self.processes.request_java(sample, table);
        self.processes.read_generated(sample, table);
        Ok(true)
    }

    /// Finishes the stack of a sample, waiting a little for tables that it lacks.
    fn finish_walk(&mut self, sample: &mut Sample) {
        let mut last = false;
        let owner = self.processes.reader.owner(sample.thread.pid);
        loop {
            let table = &self.events.recording.processes;
            let processes = &mut self.processes;
            let found = (&processes.binaries, &processes.javas);
            let (finisher, tables) = (&mut processes.finisher, &mut processes.tables);
            let missing = finisher.finish(sample, owner, table, found, tables, last);
            let Some(missing) = missing else {
                break;
            };
            processes.read_tables(table);
            self.processes.lacking = Some(missing);
            self.wait_until(owner, |processes| processes.lacking.is_none());
            last = self.processes.lacking.take().is_some();
        }
    }

    /// Resolves the process of a call. Shows the call to who wants calls of all processes, and
    /// then to who wants those of the recording, also in pauses. `false`: it is not recorded.
    fn resolve_call(&mut self, call: &Call) -> Result<bool, CollectError> {
        self.resolve_process(call.pid, call.tid, call.time_ns)?;
        let table = &self.events.recording.processes;
        let view = self.events.recording.tracker().view(call);
        // Also of processes outside of the recording: others load the same libraries.
        if let (Some(probes), Some(view)) = (&mut self.probes.runtime, &view) {
            probes.called(view, table);
        }
        if !self.filter.wants_process(call.pid, table) {
            return Ok(false);
        }
        if let Some(view) = &view {
            let conditional = self.probes.conditional.as_mut();
            if conditional.is_some_and(|conditional| !conditional.call(view)) {
                return Ok(false);
            }
            self.events.triggers.call(view, call.time_ns);
            if view.probe().kind.is_work() && self.pausing.leaves_out(call) {
                self.events.watch(&Event::Call(call.clone()));
                return Ok(false);
            }
            self.devices.called(view);
        }
        self.label(call.pid, call.time_ns, LabelReason::Call)?;
        Ok(true)
    }

    /// The same for data of a call.
    fn resolve_call_data(&mut self, data: &CallData) -> bool {
        let table = &self.events.recording.processes;
        let view = self.events.recording.tracker().view_data(data);
        if let (Some(probes), Some(view)) = (&mut self.probes.runtime, &view) {
            probes.data(view);
        }
        if !self.filter.wants_process(data.pid, table) {
            return false;
        }
        if let (Some(conditional), Some(view)) = (&mut self.probes.conditional, &view)
            && !conditional.data(view)
        {
            return false;
        }
        let is_work = view.is_some_and(|view| view.probe().kind.is_work());
        let is_left_out = is_work && self.pausing.leaves_out_data(data);
        if is_left_out {
            self.events.watch(&Event::CallData(data.clone()));
        }
        !is_left_out
    }

    /// Resolves the process of a wait, and what the wait was for. `false`: it does not belong to
    /// the recording.
    fn resolve_wait(&mut self, wait: &mut ThreadWait) -> Result<bool, CollectError> {
        if self.pausing.covers(wait.time_ns, wait.time_ns) {
            return Ok(false);
        }
        self.resolve_process(wait.pid, wait.tid, wait.time_ns)?;
        if !self.wants(wait.pid) {
            return Ok(false);
        }
        self.label(wait.pid, wait.time_ns, LabelReason::Ran)?;
        wait.reason = match wait.reason {
            WaitReason::Stopped => WaitReason::Stopped,
            _ if self.events.recording.tracker().is_waiting(wait.tid) => WaitReason::Accelerator,
            _ => self.probes.waits.reason(wait),
        };
        Ok(true)
    }

    /// Applies a process that ran before the recording did, or whose events were lost. What is
    /// not read in time is applied when it comes.
    fn resolve_process(&mut self, pid: u32, tid: u32, time_ns: u64) -> Result<(), CollectError> {
        let table = &self.events.recording.processes;
        if is_complete(table, pid) || self.processes.lookups.is_absent(pid) {
            return Ok(());
        }
        self.processes.request(pid, tid, table);
        let owner = self.processes.reader.owner(pid);
        self.wait_until(owner, |processes| !processes.lookups.is_requested(pid));
        match self.processes.lookups.take(pid) {
            Some(read) if !read.1.is_empty() => self.apply_snapshot(pid, time_ns, read),
            _ => {
                self.processes.lookups.missed(pid);
                Ok(())
            }
        }
    }

    fn apply_snapshot(
        &mut self,
        pid: u32,
        time_ns: u64,
        (comm, maps): ReadProcess,
    ) -> Result<(), CollectError> {
        if maps.is_empty() {
            return Ok(());
        }
        self.apply(Event::Process(ProcessEvent {
            time_ns,
            pid,
            tid: pid,
            kind: ProcessEventKind::Snapshot { comm, maps },
        }))
    }

    /// Applies the processes that came after they were needed.
    fn apply_late_processes(&mut self) -> Result<(), CollectError> {
        for pid in self.processes.lookups.late() {
            let read = self.processes.lookups.take(pid);
            if let Some(read) = read
                && !is_complete(&self.events.recording.processes, pid)
            {
                self.processes.lookups.is_here(pid);
                self.apply_snapshot(pid, perf::monotonic_ns(), read)?;
                self.processes.publisher.changed(pid);
            }
        }
        Ok(())
    }

    /// Records text that was copied as that of its files.
    fn apply_copied(&mut self) -> Result<(), CollectError> {
        for (pid, maps) in std::mem::take(&mut self.processes.copied.found) {
            for map in maps {
                let table = &self.events.recording.processes;
                for pid in copied::sharers(pid, &map, table) {
                    self.apply(Event::Process(ProcessEvent {
                        time_ns: perf::monotonic_ns(),
                        pid,
                        tid: pid,
                        kind: ProcessEventKind::Map(map.clone()),
                    }))?;
                }
            }
        }
        Ok(())
    }

    /// Records the labels of a process that belongs to the recording, unless they are known.
    fn label(&mut self, pid: u32, time_ns: u64, why: LabelReason) -> Result<(), CollectError> {
        let table = &self.events.recording.processes;
        let labels = self.processes.label(pid, time_ns, why, table);
        self.dispatch_all(labels.map(Event::Labels))
    }

    /// Waits a little on somebody's account until something is so; `false`: it is
    /// not in time. What comes meanwhile is received, and what it needs requested.
    fn wait_until(&mut self, owner: Owner, done: impl Fn(&LiveProcesses) -> bool) -> bool {
        self.apply_answers();
        if done(&self.processes) {
            return true;
        }
        let mut wait = self.processes.reader.begin_wait(owner);
        if self.processes.reader.is_over(&wait) {
            return false;
        }
        // What is sampled meanwhile is unwound with what is known.
        self.publish();
        while self.queue.arrived.len() < MAX_PENDING && self.processes.reader.wait(&mut wait) {
            self.apply_answers();
            if done(&self.processes) {
                return true;
            }
            self.receive();
        }
        false
    }

    /// Applies what was read, and records labels that were found.
    fn apply_answers(&mut self) {
        let table = &mut self.events.recording.processes;
        for labels in self.processes.apply_answers(table) {
            let pid = labels.pid;
            if let Err(error) = self.dispatch(&Event::Labels(labels)) {
                tracing::warn!("cannot record labels of process {pid}: {error}");
            }
        }
    }

    /// Brings the kernel side up to date, and has the tables read that it wants.
    fn publish(&mut self) {
        let table = &self.events.recording.processes;
        let published = self.processes.publish(&mut self.kernel.bpf, table);
        for mut found in self.processes.publisher.take_pythons() {
            found.time_ns = perf::monotonic_ns();
            if let Err(error) = self.dispatch(&Event::PythonFound(found)) {
                tracing::warn!("cannot record a Python interpreter: {error}");
            }
        }
        if published {
            // What exec'd before it was published is withdrawn: that exec is in a ring.
            self.receive_processes();
        }
        let table = &self.events.recording.processes;
        self.processes.read_tables(table);
    }

    /// Waits a moment for the tables of programs that have just started: they may not
    /// run for long, and what they call soon is to have whole stacks.
    fn await_tables(&mut self) {
        let Some(owner) = self.processes.wanted_for.take() else {
            return;
        };
        let mut wait = self.processes.reader.begin_short_wait(owner);
        while self.processes.tables.requests.is_read_for(owner)
            && self.processes.reader.wait(&mut wait)
        {
            self.apply_answers();
        }
    }

    /// Reads the processes that run right now, before they are sampled: else their first stacks
    /// would be cut. Others are requested when they are sampled first.
    pub(super) fn resolve_running(&mut self) -> Result<(), CollectError> {
        let own = std::process::id();
        let mut pids = self.filter.chosen();
        pids.extend(procfs::running(MAX_RUNNING));
        pids.retain(|pid| *pid != own);
        let table = &self.events.recording.processes;
        self.processes.request_all(&pids, table);
        let begun = Instant::now();
        self.settle_reads(begun);
        self.apply_late_processes()?;
        self.publish();
        self.settle_reads(begun);
        Ok(())
    }

    /// Waits for what was requested, where nothing is sampled yet.
    fn settle_reads(&mut self, begun: Instant) {
        loop {
            let most = match self.processes.reader.is_working() {
                true => BEFORE_AT_MOST,
                false => BEFORE,
            };
            if !self.processes.reader.wait_until(begun + most) {
                break;
            }
            self.apply_answers();
        }
        self.apply_answers();
    }

    /// Records the names of kernels older than the recording, where kernels were found to lie,
    /// and what code was found. All that happened until `applied_ns` has been applied. If it is
    /// `None`, everything has been, and this waits for what is still being found out.
    pub(super) fn place_kernels(&mut self, applied_ns: Option<u64>) -> Result<(), CollectError> {
        let table = &self.events.recording.processes;
        let named = self.probes.kernels_named(table, applied_ns);
        self.dispatch_wanted(named)?;
        let placed = self.devices.kernels_placed(applied_ns);
        self.dispatch_all(placed)
    }

    /// Too much is known: what still runs is read again at its next sample.
    pub(super) fn begin_afresh(&mut self) {
        self.processes.begin_afresh(&mut self.kernel.bpf);
        self.events.begin_afresh();
        if let Some(probes) = &mut self.probes.runtime {
            probes.files_forgotten();
        }
        self.naming.forget();
    }

    /// Losses counted elsewhere than in the aggregator, since the start.
    pub(super) fn losses(&self) -> Losses {
        let mut losses = self.kernel.losses();
        losses.merge(&self.processes.losses());
        losses.add(LossKind::Undecodable, self.queue.undecodable);
        losses.merge(&self.probes.losses(&self.kernel.bpf));
        losses.merge(&self.devices.losses());
        losses
    }
}
