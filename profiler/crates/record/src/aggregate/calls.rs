//! Launches and calls by the stacks that made them.

use super::{
    Aggregator, Code, SampleKey, SampleTable, SampleValue,
    devices::{Devices, LaunchPath},
    driver::{self, DriverFrames},
    stacks::{KnownStacks, MAX_STACKS},
};
use crate::correlate::{
    DriverCalls, FinishedCall, KernelName, Tracked, TrackedLaunch, device::PathId,
};
use aiprof_common::{CALL_STACK_BUSY, CALL_STACK_LIMITED};
use aiprof_model::{
    process::ProcessTable,
    profile::{LossKind, Losses},
    wire::{Event, ProcessEventKind, ThreadWait},
};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeSet, rc::Rc};

/// Why a call has no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NoStack {
    /// The limiter left it out.
    Limited,
    /// No scratch memory was free for it.
    Busy,
    /// Its record was lost.
    Lost,
    /// The table does not ask for stacks of this function.
    NotAsked,
}

impl NoStack {
    /// From the fields of a call's record: the stack's id, and `CALL_STACK_*`.
    pub(crate) fn of(stack: u64, flags: u16) -> Self {
        match stack {
            0 if flags & CALL_STACK_LIMITED != 0 => Self::Limited,
            0 if flags & CALL_STACK_BUSY != 0 => Self::Busy,
            0 => Self::NotAsked,
            _ => Self::Lost,
        }
    }

    /// Why a wait has no stack: each is asked for.
    pub(crate) fn of_wait(wait: &ThreadWait) -> Self {
        match Self::of(wait.stack, wait.flags as u16) {
            Self::NotAsked => Self::Lost,
            known => known,
        }
    }

    /// The name of the frame that stands for the stack.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limited => "[stack not recorded: limit]",
            Self::Busy => "[stack not recorded: no memory free]",
            Self::Lost => "[stack lost]",
            Self::NotAsked => "[stack not recorded]",
        }
    }
}

/// What leads to a row of the profile.
#[derive(PartialEq, Eq, Hash)]
struct StackPath {
    stack: u64,
    function: u32,
    driver: Option<Rc<DriverCalls>>,
    /// The function that executed its graph.
    executed: Option<Rc<str>>,
    work: Option<u32>,
}

/// The calls' part of an [`Aggregator`].
#[derive(Default)]
pub(super) struct CallSums {
    /// Launches are joined with samples of devices, instead of counted.
    pub(super) devices: Option<Box<Devices>>,
    /// The time in calls is wanted: those of unknown length are missing.
    timed: bool,
    /// Names of threads by id.
    threads: FxHashMap<u32, Rc<str>>,
    /// Handles of names in this window.
    texts: FxHashMap<Rc<str>, u32>,
    /// Names of kernels created before attach, by process and handle.
    unnamed: FxHashMap<(u32, u64), u32>,
    /// Interned stacks in this window.
    paths: FxHashMap<StackPath, u32>,
    /// Submissions in this window.
    pub(super) submissions: u64,
}

impl CallSums {
    /// For the join with samples of devices, of at most `limit` instructions.
    fn for_devices(limit: usize) -> Self {
        Self {
            devices: Some(Box::new(Devices::new(limit))),
            ..Self::default()
        }
    }

    /// Forgets what belongs to the window; open calls and stacks stay.
    pub(super) fn reset(&mut self) {
        self.texts.clear();
        self.unnamed.clear();
        self.paths.clear();
        self.submissions = 0;
        if let Some(devices) = &mut self.devices {
            devices.reset();
        }
    }

    fn note_thread(&mut self, tid: u32, name: &str) {
        let known = self.threads.get(&tid);
        if known.is_some_and(|known| **known == *name) {
            return;
        }
        if known.is_some() || self.threads.len() < MAX_STACKS {
            self.threads.insert(tid, name.into());
        }
    }
}

impl Aggregator {
    /// One that counts launches and the time in calls instead of CPU samples.
    /// `timed`: calls of unknown length count as losses.
    pub fn of_calls(timed: bool, limits: super::Limits) -> Self {
        let calls = CallSums {
            timed,
            ..CallSums::default()
        };
        Self {
            calls: Some(Box::new(calls)),
            ..Self::new(0, limits)
        }
    }

    /// One beside another one of the same recording, which counts what was lost of processes and
    /// operators.
    pub fn beside(mut self) -> Self {
        self.is_beside = true;
        self
    }

    /// Whether the driver's frames stand between launches and devices. The default is yes.
    pub fn with_driver_frames(mut self, is_wanted: bool) -> Self {
        self.no_driver_frames = !is_wanted;
        self
    }

    /// Whether it adds calls up, or joins launches with samples of devices.
    pub fn adds_calls_up(&self) -> bool {
        self.calls.is_some()
    }

    /// Takes an event in that calls refer to; nothing without calls.
    pub(super) fn note_for_calls(&mut self, event: &Event) {
        let Some(calls) = &mut self.calls else {
            return;
        };
        match event {
            Event::Process(event) => match &event.kind {
                ProcessEventKind::Comm { comm } | ProcessEventKind::Exec { comm } => {
                    calls.note_thread(event.tid, comm);
                }
                ProcessEventKind::Exit => drop(calls.threads.remove(&event.tid)),
                _ => {}
            },
            Event::CallStack(stack) => {
                let thread = &stack.sample.thread;
                calls.note_thread(thread.tid, &thread.comm);
                return;
            }
            _ => {}
        }
        if let Some(devices) = &mut calls.devices {
            devices.event(event);
        }
    }

    /// Adds up what the tracker found; nothing without calls.
    pub(super) fn add_found(&mut self, processes: &ProcessTable, found: &Tracked<'_>) {
        if let Some(calls) = &mut self.calls {
            let mut adder = CallAdder {
                table: &mut self.table,
                losses: &mut self.losses,
                taken: &mut self.taken,
                stacks: &self.known_stacks,
                calls,
                processes,
                with_driver: !self.no_driver_frames,
            };
            adder.found(found);
        }
    }

    /// Has samples of devices joined with launches; nothing while launches are
    /// counted instead.
    pub fn with_devices(mut self) -> Self {
        if self.calls.is_none() {
            let limit = self.table.limits.samples;
            self.calls = Some(Box::new(CallSums::for_devices(limit)));
        }
        self
    }

    /// Shares what waits; `last`: nothing more will come. Makes the codes of the
    /// stacks known, so that they can be named.
    pub fn settle_devices(&mut self, last: bool) {
        let devices = self.calls.as_mut().and_then(|calls| calls.devices.as_mut());
        let Some(devices) = devices else {
            return;
        };
        if last {
            devices.finish();
        }
        devices.describe();
        devices.aiu.settle(last);
        self.losses.merge(&devices.take_losses());
        let rows = devices.rows.keys().filter_map(|row| row.path);
        let paths: BTreeSet<PathId> = rows.chain(devices.aiu.paths()).collect();
        for path in paths.into_iter().filter_map(|path| devices.path(path)) {
            for &code in path.all_codes().flat_map(|codes| codes.iter()) {
                self.table.codes.intern(code);
            }
        }
    }
}

/// Puts what the tracker finds into the aggregate.
struct CallAdder<'a> {
    table: &'a mut SampleTable,
    losses: &'a mut Losses,
    taken: &'a mut u64,
    stacks: &'a KnownStacks,
    calls: &'a mut CallSums,
    processes: &'a ProcessTable,
    with_driver: bool,
}

/// What a launch and a call have in common.
struct CallOrigin<'a> {
    pid: u32,
    tid: u32,
    stack: u64,
    flags: u16,
    is_ioctl: bool,
    function: &'a str,
    /// A launch whose driver's frames are wanted.
    launch: Option<&'a TrackedLaunch>,
}

impl CallAdder<'_> {
    fn found(&mut self, found: &Tracked<'_>) {
        match *found {
            Tracked::Call(call) => return self.call(call),
            Tracked::Launch(launch) => return self.launch(launch),
            Tracked::Submission(_) => self.calls.submissions += 1,
            Tracked::KernelNamed { pid, kernel, name } => self.kernel_named(pid, kernel, name),
            _ => {}
        }
        let Some(devices) = &mut self.calls.devices else {
            return;
        };
        match *found {
            Tracked::DeviceFact(fact) => devices.fact(fact),
            Tracked::ImagePiece(piece) => devices.image_piece(piece),
            Tracked::KernelPlaced(placed) => devices.placed(placed),
            Tracked::KernelGone { pid, number, at_ns } => devices.gone(pid, number, at_ns),
            Tracked::KernelsInherited { parent, pid, at_ns } => {
                devices.inherited(parent, pid, at_ns)
            }
            Tracked::ProcessGone { pid, at_ns } => devices.process_gone(pid, at_ns),
            Tracked::DeviceSpan(span) => devices.aiu.device_span(span),
            Tracked::DeviceUntimed(span) => devices.aiu.device_untimed(span),
            Tracked::RuntimeRecord(span) => devices.aiu.runtime_record(span),
            _ => {}
        }
    }

    fn call(&mut self, call: &FinishedCall) {
        if self.calls.devices.is_some() || call.nesting.is_part {
            return;
        }
        let Some(took) = call.duration_ns() else {
            let missing = u64::from(self.calls.timed);
            self.losses.add(LossKind::CallsUntimed, missing);
            return;
        };
        // Several launches of one call share its time in no known way.
        let work = call.work.first.as_ref().filter(|_| call.work.launches == 1);
        let origin = CallOrigin {
            pid: call.pid,
            tid: call.tid,
            stack: call.stack,
            flags: call.flags,
            is_ioctl: call.probe.is_ioctl,
            function: &call.probe.function,
            launch: None,
        };
        let value = SampleValue {
            time_ns: took.saturating_sub(call.nesting.nested_ns),
            ..SampleValue::default()
        };
        self.add(&origin, work, value);
    }

    fn launch(&mut self, launch: &TrackedLaunch) {
        if self.calls.devices.is_some() {
            return self.join(launch);
        }
        *self.taken += 1;
        let origin = CallOrigin {
            pid: launch.by.pid,
            tid: launch.by.tid,
            stack: launch.by.stack,
            flags: launch.by.flags,
            is_ioctl: false,
            function: &launch.by.function,
            launch: self.with_driver.then_some(launch),
        };
        let value = SampleValue {
            count: 1,
            bytes: launch.work.bytes,
            time_ns: 0,
        };
        self.add(&origin, Some(&launch.work.name), value);
    }

    fn kernel_named(&mut self, pid: u32, kernel: u64, name: &Rc<str>) {
        let known = self.calls.unnamed.get(&(pid, kernel));
        if let Some(text) = known.and_then(|&id| self.table.names.values.get_mut(id as usize)) {
            text.clear();
            text.push_str(name);
        }
    }

    /// Has a launch's samples go to its stack.
    fn join(&mut self, launch: &TrackedLaunch) {
        let CallSums {
            devices: Some(devices),
            threads,
            ..
        } = &mut *self.calls
        else {
            return;
        };
        let with_driver = self.with_driver;
        let unknown = devices.launch(launch, with_driver, || {
            let driver = match with_driver {
                true => driver::frames(self.stacks, launch),
                false => Ok(None),
            };
            let process = self.processes.get(launch.by.pid);
            let labels = self.table.labels_of(process);
            let comm = process.map_or("", |process| process.comm.as_str());
            let thread = threads.get(&launch.by.tid).map(|name| &**name);
            let stack = self.stacks.get(&launch.by.stack);
            let path = LaunchPath {
                pid: launch.by.pid,
                comm: Some(comm)
                    .filter(|comm| !comm.is_empty())
                    .or(thread)
                    .unwrap_or_default()
                    .into(),
                cgroup: stack.map_or(0, |stack| stack.cgroup),
                labels,
                codes: match stack {
                    Some(stack) => above(&stack.codes, false).collect(),
                    None => {
                        Rc::from([Code::NoStack(NoStack::of(launch.by.stack, launch.by.flags))])
                    }
                },
                function: launch.by.function.clone(),
                driver: driver.clone().ok().flatten(),
            };
            (path, driver.is_ok())
        });
        self.no_driver(unknown);
    }

    /// Counts a launch whose driver's frames are not known.
    fn no_driver(&mut self, is_unknown: bool) {
        let count = u64::from(is_unknown);
        self.losses.add(LossKind::DriverFramesUnknown, count);
    }

    fn add(&mut self, origin: &CallOrigin<'_>, work: Option<&KernelName>, value: SampleValue) {
        if self.table.names.values.len() > self.table.limits.samples {
            self.losses.add(LossKind::TableFull, 1);
            return;
        }
        let function = self.text(origin.function);
        let work = work.map(|name| self.work(origin.pid, name));
        let Some(stack) = self.stack(origin, function, work) else {
            self.losses.add(LossKind::TableFull, 1);
            return;
        };
        let process = self.processes.get(origin.pid);
        let process = process.map_or("", |process| process.comm.as_str());
        let thread = self.calls.threads.get(&origin.tid).cloned();
        let thread = thread.as_deref().unwrap_or(process);
        let comm = if process.is_empty() { thread } else { process };
        let (comm, thread) = (self.text(comm), self.text(thread));
        let labels = self.table.labels_of(self.processes.get(origin.pid));
        let known = self.stacks.get(&origin.stack);
        let key = SampleKey {
            pid: origin.pid,
            tid: origin.tid,
            comm,
            thread,
            cgroup: known.map_or(0, |stack| stack.cgroup),
            labels,
            stack,
            cpu: 0,
        };
        self.table.add(key, value, self.losses);
    }

    /// The handle of a name.
    fn text(&mut self, name: &str) -> u32 {
        if let Some(&known) = self.calls.texts.get(name) {
            return known;
        }
        let id = self.table.names.intern(name.to_owned());
        self.calls.texts.insert(name.into(), id);
        id
    }

    /// The handle of the name of work.
    fn work(&mut self, pid: u32, name: &KernelName) -> u32 {
        let text: Cow<'_, str> = match name {
            KernelName::Known(name) => Cow::Borrowed(&**name),
            KernelName::Unknown | KernelName::Submitted => name.to_string().into(),
            KernelName::BeforeAttach(handle) => {
                if let Some(&known) = self.calls.unnamed.get(&(pid, *handle)) {
                    return known;
                }
                // A name of its own: it may be found out later, for this process.
                let id = self.table.names.push(name.to_string());
                self.calls.unnamed.insert((pid, *handle), id);
                return id;
            }
        };
        self.text(&text)
    }

    /// The stack of a call, with the function and the work at its leaf.
    fn stack(&mut self, origin: &CallOrigin<'_>, function: u32, work: Option<u32>) -> Option<u32> {
        let launch = origin.launch;
        let executed = launch.and_then(|launch| launch.executed.as_ref());
        let path = StackPath {
            stack: origin.stack,
            function,
            driver: launch.and_then(|launch| launch.driver.clone()),
            executed: executed.map(|call| call.function.clone()),
            work,
        };
        // Without a stack, the reason is the call's.
        if origin.stack != 0
            && let Some(&known) = self.calls.paths.get(&path)
        {
            return Some(known);
        }
        let driver = launch.map_or(Ok(None), |launch| driver::frames(self.stacks, launch));
        self.no_driver(driver.is_err());
        let is_known = origin.stack != 0 && driver.is_ok();
        let mut codes = Vec::new();
        codes.extend(work.map(|name| Code::Work { name }));
        codes.extend(work.map(|_| Code::Device));
        if let Ok(Some(DriverFrames {
            function,
            codes: below,
        })) = driver
        {
            codes.extend(below.iter().copied());
            let function = function.map(|function| self.text(&function));
            codes.extend(function.map(|name| Code::Function { name }));
        }
        codes.push(Code::Function { name: function });
        match self.stacks.get(&origin.stack) {
            Some(stack) => codes.extend(above(&stack.codes, origin.is_ioctl)),
            None => codes.push(Code::NoStack(NoStack::of(origin.stack, origin.flags))),
        }
        let ids: Vec<u32> = codes
            .into_iter()
            .map(|code| self.table.codes.intern(code))
            .collect();
        let stack = self.table.intern_stack(&ids)?;
        if is_known {
            self.calls.paths.insert(path, stack);
        }
        Some(stack)
    }
}

/// The frames that called the probed function.
fn above(codes: &[Code], is_ioctl: bool) -> impl Iterator<Item = Code> {
    let is_function = !is_ioctl && codes.first().is_some_and(|code| code.cut().is_none());
    codes.iter().skip(usize::from(is_function)).copied()
}
