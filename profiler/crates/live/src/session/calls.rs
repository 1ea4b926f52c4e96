//! The session's part in calls of probed functions.

use super::{CollectError, Session, labels::MetAs};
use crate::{bpf::probe::Link, closing};
use aiprof_model::wire::{
    Call, CallData, CallStack, Event, KernelNamed, ProcessEvent, ProcessEventKind, Trace,
};
use aiprof_record::recording::RecordingSink;
use std::time::Instant;

impl Session {
    /// Writes an event that belongs to the recording to where events go. What its calls do
    /// to kernels is given to who looks for their names and places. Returns whether the
    /// mappings of the event's process changed.
    pub(super) fn record(&mut self, event: &Event) -> Result<bool, CollectError> {
        self.note_for_places(event);
        let changed = self.events.take(event, &mut self.triggers)?;
        for event in self.events.kernels() {
            let Some((probes, _)) = &mut self.probes else {
                continue;
            };
            if !probes.may_look(event.pid) {
                continue;
            }
            probes.kernel(&event);
            if let Some(places) = &mut self.places {
                places.kernel(&event, || {
                    probes.build_of(&self.events.recording.processes, event.pid)
                });
            }
        }
        Ok(changed)
    }

    /// Gives every event that belongs to the recording to `watcher` too, from here
    /// on: what was recorded before is not repeated.
    pub fn on_events(&mut self, watcher: Box<dyn RecordingSink>) {
        self.events.watcher = Some(watcher);
    }

    /// Ends the waits and the calls. Gives what should be closed when everything else is.
    pub(super) fn stop_probes(&mut self) -> Vec<Link> {
        // What is attached to every switch and system call ends first.
        let mut left = closing::at_once(self.waits.stop());
        left.extend(self.stop_calls());
        left
    }

    /// Detaches from runtimes and drivers. Gives what should be closed later.
    pub(super) fn stop_calls(&mut self) -> Vec<Link> {
        let Some((probes, _)) = &mut self.probes else {
            return Vec::new();
        };
        let links = probes.stop();
        let begun = Instant::now();
        let mut left = closing::at_once(links);
        probes.detached(begun.elapsed());
        // Each of these is one the kernel closes on its own.
        left.extend(self.drivers.stop());
        left
    }

    /// Takes in what was attached. Before the calls just read: a description is
    /// given before its function is attached to, and has no time.
    pub(super) fn tell_of_probes(&mut self) {
        if let Some((probes, _)) = &mut self.probes {
            let pending = &mut self.pending;
            probes.take_events(&self.events.recording.processes, |event| {
                pending.push_back(event)
            });
            pending.extend(self.drivers.take_events());
        }
    }

    pub(super) fn take_call_stack(&mut self, mut stack: CallStack) -> Result<(), CollectError> {
        if !self.meet(&mut stack.sample)? {
            return Ok(());
        }
        self.record(&Event::CallStack(stack)).map(drop)
    }

    pub(super) fn take_call(&mut self, call: Call) -> Result<(), CollectError> {
        let known = self
            .events
            .recording
            .processes
            .get(call.pid)
            .is_some_and(|p| p.complete);
        if !known {
            self.first_sight(call.pid, call.tid, call.time_ns)?;
        }
        let view = self.events.recording.tracker().view(&call);
        // Also of processes outside of the recording: others load the same libraries.
        if let (Some((probes, _)), Some(view)) = (&mut self.probes, &view) {
            probes.called(view, &self.events.recording.processes);
        }
        if !self
            .filter
            .wants_process(call.pid, &self.events.recording.processes)
        {
            return Ok(());
        }
        if let Some(view) = &view {
            if self.conditional.as_mut().is_some_and(|c| !c.call(view)) {
                return Ok(());
            }
            self.triggers.call(view, call.time_ns);
            if view.probe().kind.is_work() && self.pausing.leaves_out(&call) {
                self.events.watch(&Event::Call(call), &mut self.triggers);
                return Ok(());
            }
            self.devices.called(view);
        }
        self.label(call.pid, call.time_ns, MetAs::Call)?;
        self.record(&Event::Call(call))?;
        let Some((probes, _)) = &mut self.probes else {
            return Ok(());
        };
        let named = probes.kernels_foreseen();
        self.record_names(named)
    }

    pub(super) fn take_call_data(&mut self, data: CallData) -> Result<(), CollectError> {
        let view = self.events.recording.tracker().view_data(&data);
        if let (Some((probes, _)), Some(view)) = (&mut self.probes, &view) {
            probes.data(view);
        }
        if !self
            .filter
            .wants_process(data.pid, &self.events.recording.processes)
        {
            return Ok(());
        }
        if let (Some(conditional), Some(view)) = (&mut self.conditional, &view)
            && !conditional.data(view)
        {
            return Ok(());
        }
        let is_work = view.is_some_and(|view| view.probe().kind.is_work());
        if is_work && self.pausing.leaves_out_data(&data) {
            let data = Event::CallData(data);
            self.events.watch(&data, &mut self.triggers);
            return Ok(());
        }
        self.record(&Event::CallData(data)).map(drop)
    }

    /// Takes a tracepoint hit. Submissions by other processes are left out. Ends of work
    /// are all taken, because an interrupt or a kernel thread reports them, not the
    /// process that submitted the work.
    pub(super) fn take_trace(&mut self, trace: Trace) -> Result<(), CollectError> {
        if self.pausing.covers(trace.time_ns, trace.time_ns) {
            return Ok(());
        }
        if self.drivers.begins(trace.point)
            && !self
                .filter
                .wants_process(trace.pid, &self.events.recording.processes)
        {
            return Ok(());
        }
        self.record(&Event::Trace(trace)).map(drop)
    }

    /// Reports kernels older than the recording whose names were found.
    /// All that happened until `taken_ns` has been taken in, or all.
    pub(super) fn name_late_kernels(&mut self, taken_ns: Option<u64>) -> Result<(), CollectError> {
        let Some((probes, _)) = &mut self.probes else {
            return Ok(());
        };
        let named = probes.kernels_named(&self.events.recording.processes, taken_ns);
        self.record_names(named)
    }

    fn record_names(&mut self, named: Vec<KernelNamed>) -> Result<(), CollectError> {
        for named in named {
            if self
                .filter
                .wants_process(named.pid, &self.events.recording.processes)
            {
                self.record(&Event::KernelNamed(named))?;
            }
        }
        Ok(())
    }

    /// Forgets the kernels of processes that ended or became other programs.
    /// To be called before the event is recorded: later their names are of no use.
    pub(super) fn late_processes(&mut self, event: &ProcessEvent) -> Result<(), CollectError> {
        let gone = match event.kind {
            ProcessEventKind::Exec { .. } => true,
            ProcessEventKind::Exit => event.pid == event.tid,
            _ => false,
        };
        let Some((probes, _)) = self.probes.as_mut().filter(|_| gone) else {
            return Ok(());
        };
        let named = probes.process_gone(event.pid, event.time_ns);
        self.record_names(named)
    }
}
