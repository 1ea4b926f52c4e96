//! Launches on devices that record nothing: when each can have been at work.
//!
//! A launch ran after it was handed over and before a wait for it ended. Where the program read
//! the timestamps of the launch's event, their difference is how long it ran. When it ran is
//! known by the device's clock, within bounds
//! ([`ProcessClocks`](crate::correlate::device::ProcessClocks)).
//!
//! Launches of one queue that one wait is for are taken together by name and shape. Those
//! that signal an event are kept one by one until the event is used again: their
//! timestamps may still be read.

mod profiled;

use crate::correlate::{
    DeviceFact, DeviceFactKind, TrackedLaunch,
    device::{ProcessClocks, Times, Waited},
};
use aiprof_model::{probes::CallKind, timeline::Sym};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Most queues with work that was not waited for yet.
const MAX_QUEUES: usize = 1 << 14;
/// Most groups of a queue's launches that wait for different fences.
const MAX_GROUPS: usize = 64;
/// Most names of one group: viewers nest them.
const MAX_WORKS: usize = 128;
/// Most launches whose events are remembered.
const MAX_SIGNALS: usize = 1 << 16;
/// Timed launches are dated once there are this many, so that all of them are dated by what is
/// known of the clock at one time.
const MAX_TIMED: usize = 256;
/// Groups that have ended are handed on once there are this many.
const MAX_ENDED: usize = 256;
/// Most devices and queues that have numbers.
const MAX_NUMBERS: usize = 1 << 16;

/// A queue of a process; 0: not known.
type Queue = (u32, u64);

/// Distinguishes launches of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LaunchShape {
    pub(super) kind: CallKind,
    /// The function that the program called.
    pub(super) function: Rc<str>,
    /// `kernel_number` of the launch.
    pub(super) kernel: u64,
    pub(super) groups: [u32; 3],
    pub(super) local: [u32; 3],
    pub(super) bytes: u64,
    /// Thread that made them.
    pub(super) tid: u32,
}

impl LaunchShape {
    fn of(launch: &TrackedLaunch) -> Self {
        Self {
            kind: launch.kind,
            function: launch.by.function.clone(),
            kernel: launch.work.kernel_number,
            groups: launch.work.groups,
            local: launch.work.local,
            bytes: launch.work.bytes,
            tid: launch.by.tid,
        }
    }
}

/// Launches of one name and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LaunchedWork {
    pub(super) name: Sym,
    pub(super) shape: LaunchShape,
    /// When the first was handed over.
    pub(super) from_ns: u64,
    /// From the calls that made them until they were handed over, in all.
    pub(super) append_ns: u64,
    pub(super) launches: u64,
    /// It is not taken together with others.
    is_alone: bool,
}

impl LaunchedWork {
    fn is_like(&self, other: &Self) -> bool {
        self.name == other.name && self.shape == other.shape
    }
}

/// Launches that ended together, by what is known.
#[derive(Clone, Debug)]
struct LaunchGroup {
    api: Rc<str>,
    /// The call that handed all of them over; 0: several did.
    submit: u64,
    device: u64,
    last_ns: u64,
    works: Vec<LaunchedWork>,
}

impl LaunchGroup {
    fn add(&mut self, work: LaunchedWork) {
        let is_alone = work.is_alone && self.works.len() < MAX_WORKS;
        let mut like = self.works.iter_mut().filter(|_| !is_alone);
        match like.find(|known| known.is_like(&work)) {
            Some(known) => {
                known.launches += work.launches;
                known.from_ns = known.from_ns.min(work.from_ns);
                known.append_ns = known.append_ns.saturating_add(work.append_ns);
            }
            None => self.works.push(work),
        }
    }

    fn merge(&mut self, other: Self) {
        if self.submit != other.submit {
            self.submit = 0;
        }
        if self.device != other.device {
            self.device = 0;
        }
        self.last_ns = self.last_ns.max(other.last_ns);
        for work in other.works {
            self.add(work);
        }
    }
}

/// A launch whose event may still show when it ran.
#[derive(Clone, Debug)]
pub(super) struct Signal {
    pub(super) api: Rc<str>,
    pub(super) name: Sym,
    pub(super) shape: LaunchShape,
    pub(super) pid: u32,
    /// Begin of the call that made it.
    pub(super) start_ns: u64,
    /// [`TrackedLaunch::id`].
    pub(super) launch: u64,
    pub(super) queue: u64,
    pub(super) device: u64,
    submit: u64,
    pub(super) submitted_ns: u64,
    /// [`LaunchedWork::is_alone`].
    is_alone: bool,
    handed_over_ns: u64,
    /// It had ended then; `u64::MAX`: that is not known.
    ended_ns: u64,
    /// Its begin and its end by the device's clock; `None`: the program has not read it.
    read: [Option<u64>; 2],
}

impl Signal {
    fn queue(&self) -> Queue {
        (self.pid, self.queue)
    }

    /// How long it took from the call that made it until it was handed over.
    pub(super) fn append_ns(&self) -> u64 {
        self.submitted_ns.saturating_sub(self.start_ns)
    }

    /// It alone.
    fn into_group(self) -> LaunchGroup {
        let append_ns = self.append_ns();
        LaunchGroup {
            api: self.api,
            submit: self.submit,
            device: self.device,
            last_ns: self.handed_over_ns,
            works: vec![LaunchedWork {
                name: self.name,
                from_ns: self.submitted_ns,
                append_ns,
                launches: 1,
                is_alone: self.is_alone,
                shape: self.shape,
            }],
        }
    }
}

/// A launch that the device timed.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) signal: Signal,
    /// Number of its device among those of its process, and of its queue.
    pub(super) device: u32,
    pub(super) stream: u32,
    pub(super) start_ns: u64,
    pub(super) ran_ns: u64,
    /// The begin is within this of the true one.
    pub(super) within_ns: u64,
}

/// Launches between two times.
#[derive(Debug)]
pub(super) struct BoundedLaunches {
    pub(super) api: Rc<str>,
    pub(super) pid: u32,
    pub(super) queue: u64,
    /// The device's handle, 0: not known, or several.
    pub(super) device: u64,
    /// In the order in which the first of each was handed over.
    pub(super) works: Vec<LaunchedWork>,
    /// `None`: no wait was seen.
    pub(super) end_ns: Option<u64>,
}

/// Follows launches, waits and timestamps.
#[derive(Debug, Default)]
pub(super) struct DeviceLaunches {
    /// Each launch is kept by itself while there is room.
    pub(super) each: bool,
    clocks: ProcessClocks,
    open: FxHashMap<Queue, Vec<LaunchGroup>>,
    /// By process and event.
    signals: FxHashMap<(u32, u64), Signal>,
    /// Events of launches that have not ended.
    running: FxHashMap<Queue, Vec<u64>>,
    /// By the end of the wait.
    ended: FxHashMap<(Queue, u64), LaunchGroup>,
    timed: Vec<(Signal, Times)>,
    /// What nanoseconds of the devices of a process are counted from.
    bases: FxHashMap<u32, u64>,
    /// Numbers of devices and of queues of each process.
    devices: FxHashMap<(u32, u64), u32>,
    streams: FxHashMap<Queue, u32>,
    /// Launches that found no room.
    pub(super) refused: u64,
    pub(super) bounded: Vec<BoundedLaunches>,
    pub(super) ran: Vec<Ran>,
}

impl DeviceLaunches {
    /// A launch was handed to a device.
    pub(super) fn launched(&mut self, launch: &TrackedLaunch, name: Sym) {
        let signal = Signal {
            api: launch.by.api.clone(),
            name,
            shape: LaunchShape::of(launch),
            pid: launch.by.pid,
            start_ns: launch.by.start_ns,
            launch: launch.id,
            queue: launch.on.queue,
            device: launch.on.device,
            submit: launch.submit.unwrap_or(0),
            submitted_ns: launch.submitted_ns,
            is_alone: self.each,
            handed_over_ns: launch.handed_over_ns,
            ended_ns: u64::MAX,
            read: [None; 2],
        };
        if launch.on.event == 0 {
            return self.group(signal);
        }
        if self.signals.len() >= MAX_SIGNALS {
            self.settle(|_| true);
        }
        let running = self.running.entry(signal.queue()).or_default();
        running.push(launch.on.event);
        let key = (launch.by.pid, launch.on.event);
        if let Some(before) = self.signals.insert(key, signal) {
            self.untimed(before);
        }
    }

    /// An event was reset, or is signalled by something else from here on: nothing more
    /// will be known by it of the launch that signalled it.
    pub(super) fn event_used(&mut self, pid: u32, event: u64) {
        if let Some(signal) = self.signals.remove(&(pid, event)) {
            self.no_longer_runs(signal.queue(), event);
            self.untimed(signal);
        }
    }

    fn no_longer_runs(&mut self, queue: Queue, event: u64) {
        if let Some(running) = self.running.get_mut(&queue) {
            running.retain(|known| *known != event);
        }
    }

    /// Whether any launch's event may still show when it ran.
    pub(super) fn has_signals(&self) -> bool {
        !self.signals.is_empty()
    }

    /// Dates what was timed, and hands on all that has ended.
    pub(super) fn hand_on_known(&mut self) {
        self.date();
        self.hand_on_ended();
    }

    /// Adds a launch to what its queue has to do.
    fn group(&mut self, signal: Signal) {
        if self.open.len() >= MAX_QUEUES && !self.open.contains_key(&signal.queue()) {
            self.refused += 1;
            return;
        }
        let groups = self.open.entry(signal.queue()).or_default();
        let fits = |group: &&mut LaunchGroup| {
            let is_its =
                |known: &LaunchedWork| known.name == signal.name && known.shape == signal.shape;
            let is_known = !signal.is_alone && group.works.iter().any(is_its);
            let has_room = is_known || group.works.len() < MAX_WORKS;
            (group.submit, group.device) == (signal.submit, signal.device) && has_room
        };
        if let Some(group) = groups.last_mut().filter(fits) {
            return group.merge(signal.into_group());
        }
        if groups.len() >= MAX_GROUPS {
            let first = groups.remove(0);
            if let Some(next) = groups.first_mut() {
                next.merge(first);
            }
        }
        groups.push(signal.into_group());
    }

    /// A launch with an event was not timed, and will not be.
    fn untimed(&mut self, signal: Signal) {
        if signal.ended_ns == u64::MAX {
            return self.group(signal);
        }
        let key = (signal.queue(), signal.ended_ns);
        self.end(key, signal.into_group());
    }

    fn end(&mut self, key: (Queue, u64), group: LaunchGroup) {
        match self.ended.get_mut(&key) {
            Some(known) if known.works.len() + group.works.len() <= MAX_WORKS => {
                known.merge(group);
            }
            Some(known) => {
                let full = std::mem::replace(known, group);
                self.hand_on(key.0, full, Some(key.1));
            }
            None => {
                if self.ended.len() >= MAX_ENDED {
                    self.hand_on_ended();
                }
                self.ended.insert(key, group);
            }
        }
    }

    fn hand_on_ended(&mut self) {
        let mut ended: Vec<_> = self.ended.drain().collect();
        ended.sort_unstable_by_key(|(key, _)| *key);
        for ((queue, end_ns), group) in ended {
            self.hand_on(queue, group, Some(end_ns));
        }
    }

    fn hand_on(&mut self, (pid, queue): Queue, group: LaunchGroup, end_ns: Option<u64>) {
        let mut works = group.works;
        works.sort_by_key(|work| work.from_ns);
        self.bounded.push(BoundedLaunches {
            api: group.api,
            pid,
            queue,
            device: group.device,
            works,
            end_ns,
        });
    }

    /// A call revealed something of a device.
    pub(super) fn fact(&mut self, fact: &DeviceFact) {
        let (pid, times) = (fact.pid, (fact.entered_ns, fact.left_ns));
        match fact.kind {
            DeviceFactKind::Ended(Waited::Event(event)) => self.signalled(pid, event, times),
            DeviceFactKind::Ended(waited) => self.waited(pid, waited, times),
            DeviceFactKind::Timestamps { event, ticks } => {
                self.timestamps(pid, event, ticks, times)
            }
            DeviceFactKind::Profiled {
                event,
                time,
                is_end,
            } => self.profiled(pid, event, (time, is_end), times),
            DeviceFactKind::Clock { device, ref clock } => {
                self.clocks.add(pid, device, clock.clone());
            }
            DeviceFactKind::ClockRead { device, ticks } => {
                self.clocks.observe(pid, device, ticks, times);
            }
        }
    }

    fn signalled(&mut self, pid: u32, event: u64, (entered_ns, left_ns): (u64, u64)) {
        let Some(signal) = self.signals.get_mut(&(pid, event)) else {
            return;
        };
        // Given to another launch since the wait was entered: which was waited for?
        if signal.submitted_ns > entered_ns {
            return;
        }
        signal.ended_ns = signal.ended_ns.min(left_ns);
        let queue = signal.queue();
        self.no_longer_runs(queue, event);
    }

    /// What was handed over before a wait was entered, and waited for, has ended.
    fn waited(&mut self, pid: u32, waited: Waited, (entered_ns, left_ns): (u64, u64)) {
        let is_its = |queue: Queue, device: u64, submit: u64, last_ns: u64| {
            let is_waited_for = match waited {
                Waited::Queue(of) => queue.1 == of,
                Waited::Device(of) => device == of,
                Waited::Submit(of) => submit == of,
                Waited::All => true,
                Waited::Event(_) => false,
            };
            is_waited_for && last_ns <= entered_ns
        };
        let mut ended = Vec::new();
        self.open.retain(|queue, groups| {
            if queue.0 == pid {
                let its = groups.extract_if(.., |group| {
                    is_its(*queue, group.device, group.submit, group.last_ns)
                });
                ended.extend(its.map(|group| (*queue, group)));
            }
            !groups.is_empty()
        });
        for (queue, group) in ended {
            self.end((queue, left_ns), group);
        }
        let signals = &mut self.signals;
        self.running.retain(|queue, events| {
            if queue.0 != pid {
                return true;
            }
            events.retain(|event| {
                let Some(signal) = signals.get_mut(&(pid, *event)) else {
                    return false;
                };
                let (device, submit) = (signal.device, signal.submit);
                let is_over = is_its(signal.queue(), device, submit, signal.handed_over_ns);
                if is_over {
                    signal.ended_ns = signal.ended_ns.min(left_ns);
                }
                !is_over
            });
            !events.is_empty()
        });
    }

    fn timestamps(
        &mut self,
        pid: u32,
        event: u64,
        ticks: (u64, u64),
        (entered_ns, left_ns): (u64, u64),
    ) {
        let is_its = |signal: &&Signal| signal.submitted_ns <= entered_ns;
        if self.signals.get(&(pid, event)).filter(is_its).is_none() {
            return;
        }
        self.signalled(pid, event, (entered_ns, left_ns));
        let Some(signal) = self.signals.remove(&(pid, event)) else {
            return;
        };
        let known = (signal.submitted_ns, signal.ended_ns);
        match self.clocks.times((pid, signal.device), ticks, known) {
            Some(times) => self.timed.push((signal, times)),
            None => self.untimed(signal),
        }
        if self.timed.len() >= MAX_TIMED {
            self.date();
        }
    }

    /// Dates what was timed, by what is known of the clocks now.
    fn date(&mut self) {
        for (signal, times) in std::mem::take(&mut self.timed) {
            let known = (signal.submitted_ns, signal.ended_ns);
            let key = (signal.pid, signal.device);
            let (start_ns, within_ns) = self.clocks.begin(key, &times, known);
            self.ran.push(Ran {
                device: number(&mut self.devices, key),
                stream: number(&mut self.streams, signal.queue()),
                signal,
                start_ns,
                ran_ns: times.ran_ns,
                within_ns,
            });
        }
    }

    /// Gives up the timestamps of launches, in the order of their calls.
    fn settle(&mut self, is_it: impl Fn(u32) -> bool) {
        let signals = self.signals.extract_if(|key, _| is_it(key.0));
        let mut signals: Vec<_> = signals.map(|(_, signal)| signal).collect();
        signals.sort_by_key(|signal| signal.launch);
        for signal in signals {
            self.untimed(signal);
        }
        let known = &self.signals;
        self.running.retain(|queue, events| {
            events.retain(|event| known.contains_key(&(queue.0, *event)));
            !events.is_empty()
        });
    }

    /// What a process launched is known from elsewhere.
    pub(super) fn recorded(&mut self, pid: u32) {
        self.open.retain(|queue, _| queue.0 != pid);
        self.signals.retain(|key, _| key.0 != pid);
        self.running.retain(|queue, _| queue.0 != pid);
        self.ended.retain(|key, _| key.0.0 != pid);
        self.timed.retain(|(signal, _)| signal.pid != pid);
    }

    /// A process is gone: all it launched has ended.
    pub(super) fn process_gone(&mut self, pid: u32, at_ns: u64) {
        self.date();
        self.settle(|of| of == pid);
        self.waited(pid, Waited::All, (at_ns, at_ns));
        self.clocks.forget(pid);
        self.bases.remove(&pid);
        self.devices.retain(|key, _| key.0 != pid);
        self.streams.retain(|key, _| key.0 != pid);
    }

    /// A forked process has its parent's clocks.
    pub(super) fn inherited(&mut self, parent: u32, pid: u32) {
        self.clocks.inherit(parent, pid);
    }

    /// Nothing more comes.
    pub(super) fn finish(&mut self) {
        self.date();
        self.settle(|_| true);
        self.hand_on_ended();
        let mut open: Vec<_> = self.open.drain().collect();
        open.sort_unstable_by_key(|(queue, _)| *queue);
        for (queue, groups) in open {
            for group in groups {
                self.hand_on(queue, group, None);
            }
        }
    }
}

/// The number of one of a process's handles, by its first appearance.
fn number(known: &mut FxHashMap<(u32, u64), u32>, key: (u32, u64)) -> u32 {
    if let Some(number) = known.get(&key) {
        return *number;
    }
    let own = known.keys().filter(|of| of.0 == key.0).count();
    let number = u32::try_from(own).unwrap_or(u32::MAX);
    if known.len() < MAX_NUMBERS {
        known.insert(key, number);
    }
    number
}

#[cfg(test)]
mod tests;
