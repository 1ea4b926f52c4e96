//! What all threads of a recording share: handles, room, losses, identities.

use super::{
    CallSink, DeviceFact, KernelEvent, KernelName, PlacedKernel, Tracked, TrackedLaunch,
    activity::Activity,
    calls::{Counts, TrackerLimits},
    effects,
    forked::Forked,
    gone::{Gone, GoneKernel},
    handles::{Handles, Name, Room},
    meaning::{Effect, ProbeMeaning},
    open::OpenCall,
    pending::OperationNames,
};
use aiprof_model::{
    probes::CallKind,
    profile::{LossKind, Losses},
    wire::{Call, CallData, KernelPlaced},
};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Ended calls kept for their memory.
const SPARE: usize = 64;

/// Kernels without a name whose launches are counted one by one, so that they are
/// no loss once the name is found.
const MAX_UNNAMED: usize = 1 << 16;

/// How long after a call's end its data may arrive, if its thread does nothing else: the
/// program that sends them can be preempted between the two.
const DATA_WITHIN_NS: u64 = 100_000_000;

/// Most calls that wait for their data.
const MOST_SETTLING: usize = 256;

/// Whose calls wait for data no longer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Settle {
    /// A thread's, by its id.
    Thread(u32),
    /// A process's, by its id.
    Process(u32),
    /// Those that ended at this time or before, CLOCK_MONOTONIC nanoseconds.
    Until(u64),
}

/// Something happened to a kernel.
#[derive(Debug)]
pub(super) enum KernelChange {
    Placed(PlacedKernel),
    /// Process, number, and when.
    Gone(u32, u64, u64),
    /// A forked process has all of its parent's: both, and when it was forked.
    Inherited(u32, u32, u64),
}

/// What is known of kernels beside what their handles mean.
#[derive(Debug, Default)]
pub(super) struct KernelNews {
    /// Launches by kernels without a name, by process and handle.
    pub(super) unnamed: FxHashMap<(u32, u64), u64>,
    /// What happened to kernels' handles, to be passed on with this event.
    pub(super) events: Vec<KernelEvent>,
    /// Changes of kernels that were not reported yet.
    pub(super) changes: Vec<KernelChange>,
    /// Kernels that are gone, but may be placed yet.
    pub(super) gone: Gone,
}

/// What all threads share.
#[derive(Debug, Default)]
pub(super) struct TrackerState {
    pub(super) limits: TrackerLimits,
    pub(super) room: Room,
    pub(super) processes: FxHashMap<u32, Handles>,
    pub(super) losses: Losses,
    pub(super) operation_names: Rc<OperationNames>,
    pub(super) counts: Counts,
    pub(super) activity: Activity,
    /// The calls that handed work over whose end a fence shows, by process and fence.
    pub(super) submits: FxHashMap<(u32, u64), u64>,
    /// What calls revealed of devices, to be passed on with this event.
    pub(super) facts: Vec<DeviceFact>,
    pub(super) kernels: KernelNews,
    pub(super) forked: Forked,
    /// The number of the last call.
    last_call: u64,
    #[expect(
        clippy::vec_box,
        reason = "they are large, and move from here to there"
    )]
    spare: Vec<Box<OpenCall>>,
    /// Ended calls of which data may follow, and those that their threads ended after
    /// them, in the order of their ends.
    #[expect(
        clippy::vec_box,
        reason = "they are large, and move from here to there"
    )]
    settling: Vec<Box<OpenCall>>,
}

impl TrackerState {
    pub(super) fn new(limits: TrackerLimits) -> Self {
        Self {
            limits,
            room: Room {
                objects: limits.handles,
                recorded: limits.recorded,
                per_list: limits.per_list,
                last_kernel: 0,
            },
            ..Self::default()
        }
    }

    /// A call that begins.
    pub(super) fn open(&mut self, call: &Call, known: &Rc<ProbeMeaning>) -> Box<OpenCall> {
        self.inherit(call.pid);
        self.last_call += 1;
        let id = self.last_call;
        match self.spare.pop() {
            Some(mut old) => {
                old.renew(call, known, id);
                old
            }
            None => Box::new(OpenCall::new(call, known, id)),
        }
    }

    /// Keeps the memory of a call that was reported.
    pub(super) fn recycle(&mut self, open: Box<OpenCall>) {
        if self.spare.len() < SPARE {
            self.spare.push(open);
        }
    }

    /// Reports an ended call as soon as its data must have arrived.
    pub(super) fn report(&mut self, open: Box<OpenCall>, sink: &mut dyn CallSink) {
        let may_wait = open.call.end_ns.is_some() && open.awaits_data();
        let tid = open.call.tid;
        if may_wait || self.settling.iter().any(|other| other.call.tid == tid) {
            if self.settling.len() >= MOST_SETTLING {
                self.settle(Settle::Until(u64::MAX), sink);
            }
            self.settling.push(open);
        } else {
            self.hand_on(&open, sink);
            self.recycle(open);
        }
    }

    /// Reports an ended call now.
    pub(super) fn report_now(&mut self, open: &OpenCall, sink: &mut dyn CallSink) {
        self.settle(Settle::Thread(open.call.tid), sink);
        self.hand_on(open, sink);
    }

    /// Gives an ended call to who wants to know, and reads what it handed out.
    fn hand_on(&mut self, open: &OpenCall, sink: &mut dyn CallSink) {
        if open.call.probe.kind == CallKind::Range {
            if !open.call.nesting.is_part {
                self.activity.range(&open.call, &mut self.losses, sink);
            }
            return;
        }
        sink.found(&Tracked::Call(&open.call));
        self.note_device_fact(open);
        self.report_kernels(sink);
        if open.call.probe.kind == CallKind::Activity && !open.call.nesting.is_part {
            self.activity.take(&open.call, &mut self.losses, sink);
        }
    }

    /// It is known where a kernel lies, or lay.
    pub(super) fn place_kernel(&mut self, placed: &KernelPlaced) {
        self.place_own(placed);
        // A child's kernel of that handle is the same, if it was not made since.
        let heirs: Vec<u32> = self.forked.heirs(placed.pid).collect();
        for pid in heirs {
            let same = |pid: u32| {
                let kernel = self.processes.get(&pid)?.kernels.get(placed.kernel)?;
                Some(kernel.number)
            };
            if same(pid).is_some() && same(pid) == same(placed.pid) {
                let placed = placed.clone();
                self.place_own(&KernelPlaced { pid, ..placed });
            }
        }
    }

    fn place_own(&mut self, placed: &KernelPlaced) {
        // What was read before the handle got this kernel is another kernel's.
        let handles = self.processes.get(&placed.pid);
        let kernel = handles.and_then(|h| GoneKernel::of(&h.kernels, placed.kernel));
        let kernel = kernel.filter(|kernel| placed.time_ns >= kernel.since_ns);
        let KernelNews { gone, changes, .. } = &mut self.kernels;
        let found = kernel.or_else(|| gone.find(placed.pid, placed.kernel, placed.time_ns));
        let Some(kernel) = found else {
            return;
        };
        changes.push(KernelChange::Placed(PlacedKernel {
            until_ns: gone.code_until(placed.pid, &kernel),
            number: kernel.number,
            name: kernel.name,
            module: kernel.module,
            since_ns: kernel.code_since_ns.unwrap_or(kernel.since_ns),
            placed: placed.clone(),
        }));
    }

    /// Reports what happened to kernels.
    pub(super) fn report_kernels(&mut self, sink: &mut dyn CallSink) {
        for change in self.kernels.changes.drain(..) {
            match change {
                KernelChange::Placed(placed) => sink.found(&Tracked::KernelPlaced(&placed)),
                KernelChange::Gone(pid, number, at_ns) => {
                    sink.found(&Tracked::KernelGone { pid, number, at_ns })
                }
                KernelChange::Inherited(parent, pid, at_ns) => {
                    sink.found(&Tracked::KernelsInherited { parent, pid, at_ns });
                }
            }
        }
    }

    /// Something happened at a time, on a thread if that is known. Calls that wait for data are
    /// reported where no more data can follow.
    pub(super) fn proceed(&mut self, time_ns: u64, tid: Option<u32>, sink: &mut dyn CallSink) {
        if self.settling.is_empty() {
            return;
        }
        if let Some(tid) = tid {
            self.settle(Settle::Thread(tid), sink);
        }
        self.settle(Settle::Until(time_ns.saturating_sub(DATA_WITHIN_NS)), sink);
    }

    /// Reports calls that waited for data.
    pub(super) fn settle(&mut self, which: Settle, sink: &mut dyn CallSink) {
        let is_settled = |open: &OpenCall| match which {
            Settle::Thread(tid) => open.call.tid == tid,
            Settle::Process(pid) => open.call.pid == pid,
            Settle::Until(ns) => open.call.end_ns.is_none_or(|end| end <= ns),
        };
        let mut at = 0;
        while let Some(open) = self.settling.get(at) {
            if is_settled(open) {
                let open = self.settling.remove(at);
                self.hand_on(&open, sink);
                self.recycle(open);
            } else {
                at += 1;
            }
        }
    }

    /// Takes data of an exit in; false if no ended call has sent them.
    pub(super) fn late_data(&mut self, data: &CallData) -> bool {
        let Some(at) = self.settling.iter().rposition(|open| {
            let call = &open.call;
            let same = call.end_ns == Some(data.time_ns) || call.start_ns == data.time_ns;
            same && call.tid == data.tid && open.meaning.probe.id == data.probe
        }) else {
            return false;
        };
        let mut open = self.settling.remove(at);
        open.take_data(data);
        if open.meaning.effect == Effect::NameKernel {
            effects::apply(&mut open, data.time_ns, self);
        }
        self.settling.insert(at, open);
        true
    }

    /// The handles of a call's process, and the room for more.
    pub(super) fn handles(&mut self, open: &OpenCall) -> (&mut Handles, &mut Room) {
        let pid = open.call.pid;
        if self.processes.len() >= self.limits.processes && !self.processes.contains_key(&pid) {
            // More than can be alive with probed calls: their ends were lost.
            self.losses.add(LossKind::HandlesRefused, 1);
            for handles in self.processes.values() {
                handles.vacate(&mut self.room);
            }
            self.processes.clear();
        }
        (self.processes.entry(pid).or_default(), &mut self.room)
    }

    /// The same, if anything is known of them.
    pub(super) fn known_handles(&mut self, open: &OpenCall) -> Option<(&mut Handles, &mut Room)> {
        let handles = self.processes.get_mut(&open.call.pid)?;
        Some((handles, &mut self.room))
    }

    pub(super) fn forget(&mut self, pid: u32, now_ns: u64, sink: &mut dyn CallSink) {
        self.settle(Settle::Process(pid), sink);
        self.disinherit(pid);
        self.report_kernels(sink);
        self.activity.forget(pid, now_ns, &mut self.losses, sink);
        self.submits.retain(|key, _| key.0 != pid);
        if let Some(handles) = self.processes.remove(&pid) {
            for (handle, kernel, since_ns) in handles.kernels.iter() {
                let kernel = GoneKernel::new(kernel, handle, since_ns);
                self.kernels.gone.add(pid, kernel.until(now_ns));
            }
            for number in handles.numbers_of_modules() {
                self.kernels.gone.code_gone(pid, number, now_ns);
            }
            handles.vacate(&mut self.room);
        }
    }

    /// Gives the work that an ended call put on a list its end.
    pub(super) fn date_recorded(&mut self, open: &OpenCall) {
        let Some(recorded) = open.recorded else {
            return;
        };
        if let Some((handles, _)) = self.known_handles(open)
            && let Some(list) = handles.lists.get_mut(recorded.list)
        {
            let last = list.entries.iter_mut().rev();
            for entry in last.take_while(|entry| entry.launch.by.call == open.call.id) {
                entry.launch.by.end_ns = open.call.end_ns;
            }
        }
    }

    /// Reports a launch.
    pub(super) fn emit(&mut self, mut launch: TrackedLaunch, sink: &mut dyn CallSink) {
        self.counts.launches += 1;
        launch.id = self.counts.launches;
        if let KernelName::BeforeAttach(kernel) = launch.work.name {
            // The name may have been found since the call was entered. A name given
            // at a creation is another kernel's.
            let handles = self.processes.get(&launch.by.pid);
            let found = handles.and_then(|handles| handles.kernels.get(kernel));
            if let Some(Name::Found(name)) = found.map(|kernel| &kernel.name) {
                launch.work.name = KernelName::Known(name.clone());
            } else if self.kernels.unnamed.len() < MAX_UNNAMED {
                let key = (launch.by.pid, kernel);
                *self.kernels.unnamed.entry(key).or_default() += 1;
            } else {
                self.losses.add(LossKind::KernelsUnnamed, 1);
            }
        }
        sink.found(&Tracked::Launch(&launch));
    }
}
