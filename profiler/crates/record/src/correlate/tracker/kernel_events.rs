//! What happens to kernels' handles, for listeners that act while a program runs:
//! they need an entry at once, and may not wait for the end of the call.

use super::{
    CallSink, Tracked,
    meaning::{Effect, HandleKind},
    open::OpenCall,
    state::TrackerState,
};
use aiprof_model::probes::CallKind;
use std::rc::Rc;

/// Something happened to a kernel's handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelEvent {
    /// When, CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// The handle.
    pub handle: u64,
    /// What happened.
    pub step: KernelStep,
}

/// A step in the life of a kernel's handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelStep {
    /// A kernel was created.
    Created {
        /// Its name as the program gave it, not demangled; `None`: it was not read.
        name: Option<Rc<str>>,
        /// The end of the call was seen. Otherwise the handle was found where the
        /// call was to put it: there is such a kernel if it is used later.
        is_certain: bool,
    },
    /// A launch of it was entered. Each layer of a runtime that knows the handle
    /// reports its own entry.
    Launched,
    /// It ends: the call that takes its last owner away was entered.
    Destroyed,
    /// The runtime gave the program its address.
    Located {
        /// The address on the device.
        address: u64,
    },
}

impl TrackerState {
    /// Takes note of what the entry of a call means for a kernel.
    pub(super) fn enter_kernel(&mut self, open: &mut OpenCall) {
        let step = match open.meaning.effect {
            Effect::Release(HandleKind::Kernel) => KernelStep::Destroyed,
            _ if open.meaning.probe.kind == CallKind::Launch => KernelStep::Launched,
            _ => return,
        };
        let Some(handle) = open.handle(open.meaning.slots.kernel) else {
            return;
        };
        if step == KernelStep::Destroyed {
            let handles = self.processes.get(&open.call.pid);
            if handles.is_some_and(|handles| handles.kernels.is_shared(handle)) {
                return;
            }
            open.is_end_reported = true;
        }
        self.kernel_event(open, open.call.start_ns, handle, step);
    }

    /// A call has done this to a kernel.
    pub(super) fn kernel_event(
        &mut self,
        open: &OpenCall,
        time_ns: u64,
        handle: u64,
        step: KernelStep,
    ) {
        self.kernels.events.push(KernelEvent {
            time_ns,
            pid: open.call.pid,
            handle,
            step,
        });
    }

    /// Passes on what happened to kernels.
    pub(super) fn report_kernel_events(&mut self, sink: &mut dyn CallSink) {
        for event in self.kernels.events.drain(..) {
            sink.found(&Tracked::Kernel(&event));
        }
    }
}
