//! When launches can have been running.
//!
//! Launches of one kernel from one call path are taken together while they are
//! handed over within a millisecond, so that a million launches a second need no
//! million entries. What is known of them stays true of all: they began after the
//! first was handed over and ended before the last was known to have ended.

use super::PathId;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Launches handed over within this time are taken together.
const TOGETHER_NS: u64 = 1_000_000;
/// Most events that are remembered.
const MAX_EVENTS: usize = 1 << 18;

/// A launch that was handed to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Process.
    pub pid: u32,
    /// Number of the kernel ([`Placement::kernel`](super::Placement::kernel)).
    pub kernel: u64,
    /// Call path that launched it.
    pub path: PathId,
    /// When it was handed over: it cannot have been running before.
    pub submitted_ns: u64,
    /// Work items; 0: not known.
    pub work: u64,
    /// Queue, stream or immediate list, 0 if not known.
    pub queue: u64,
    /// Device handle, 0 if not known.
    pub device: u64,
    /// Event that it signals, 0 if none.
    pub event: u64,
    /// The call that handed it over: a fence tells of that.
    pub submit: u64,
}

/// What a program waited for, or found done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// All that was handed to a queue or an immediate list.
    Queue(u64),
    /// All that a device was given.
    Device(u64),
    /// The launch that signals an event.
    Event(u64),
    /// What a call handed over, by a fence.
    Submit(u64),
    /// Everything: the process is gone.
    All,
}

/// Launches of a kernel from a path, all handed over within a millisecond.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) pid: u32,
    pub(super) kernel: u64,
    pub(super) path: PathId,
    queue: u64,
    device: u64,
    /// The first was handed over.
    pub(super) from_ns: u64,
    /// The last was handed over.
    last_ns: u64,
    /// All had ended; `u64::MAX`: not known to.
    pub(super) to_ns: u64,
    pub(super) launches: u64,
    /// Work of all; 0: that of one is not known.
    pub(super) work: u64,
    /// Launches that are not known to have ended.
    open: u64,
    ended_ns: u64,
    /// How many are timed: how long they ran together, and between which times.
    timed: u64,
    timed_from_ns: u64,
    timed_to_ns: u64,
    ran_ns: u64,
}

impl Batch {
    fn new(begun: &Begun) -> Self {
        Self {
            pid: begun.pid,
            kernel: begun.kernel,
            path: begun.path,
            queue: begun.queue,
            device: begun.device,
            from_ns: begun.submitted_ns,
            last_ns: begun.submitted_ns,
            to_ns: u64::MAX,
            launches: 0,
            work: 0,
            open: 0,
            ended_ns: 0,
            timed: 0,
            timed_from_ns: u64::MAX,
            timed_to_ns: 0,
            ran_ns: 0,
        }
    }

    fn takes(&self, begun: &Begun) -> bool {
        let near = begun.submitted_ns.abs_diff(self.from_ns) < TOGETHER_NS;
        near && begun.queue == self.queue && begun.device == self.device
    }

    fn add(&mut self, begun: &Begun) {
        let is_known = begun.work > 0 && (self.launches == 0 || self.work > 0);
        self.work = match is_known {
            true => self.work.saturating_add(begun.work),
            false => 0,
        };
        self.launches += 1;
        self.open += 1;
        self.to_ns = u64::MAX;
        self.from_ns = self.from_ns.min(begun.submitted_ns);
        self.last_ns = self.last_ns.max(begun.submitted_ns);
    }

    /// `count` of its launches have ended by then.
    fn end(&mut self, count: u64, ended_ns: u64) {
        self.open = self.open.saturating_sub(count);
        self.ended_ns = self.ended_ns.max(ended_ns);
        if self.open == 0 {
            self.to_ns = self.to_ns.min(self.ended_ns.max(self.from_ns));
        }
    }

    /// Nanoseconds that all ran together, and between which times, if all are timed.
    pub(super) fn timed(&self) -> Option<(u64, u64, u64)> {
        let is_known = self.launches > 0 && self.timed >= self.launches;
        is_known.then_some((self.ran_ns, self.timed_from_ns, self.timed_to_ns))
    }

    /// Between which times it can have been running.
    pub(super) fn bounds(&self) -> (u64, u64) {
        match self.timed() {
            Some((_, from, to)) => (from.max(self.from_ns), to.min(self.to_ns).max(from)),
            None => (self.from_ns, self.to_ns),
        }
    }
}

/// A launch that will signal an event.
#[derive(Clone, Copy, Debug)]
struct Signal {
    batch: u64,
    submitted_ns: u64,
    ended: bool,
    timed: bool,
}

/// The launches of all processes.
#[derive(Debug, Default)]
pub struct Executions {
    /// In the order in which their first launch became known.
    batches: VecDeque<Batch>,
    /// Number of the first.
    first: u64,
    /// The newest batch by process, kernel and path.
    newest: FxHashMap<(u32, u64, PathId), u64>,
    /// Batches with open launches by process and queue.
    open: FxHashMap<(u32, u64), Vec<u64>>,
    signals: FxHashMap<(u32, u64), Signal>,
    /// What a call handed over.
    submits: FxHashMap<u64, Vec<u64>>,
}

impl Executions {
    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Batch> {
        self.batches.iter()
    }

    fn batch(&mut self, number: u64) -> Option<&mut Batch> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.batches.get_mut(at)
    }

    /// A launch was handed to a device.
    pub fn begun(&mut self, begun: &Begun) {
        let key = (begun.pid, begun.kernel, begun.path);
        let newest = self.newest.get(&key).copied();
        let known = newest.filter(|&n| self.batch(n).is_some_and(|b| b.takes(begun)));
        let number = known.unwrap_or_else(|| {
            self.batches.push_back(Batch::new(begun));
            self.first + self.batches.len() as u64 - 1
        });
        self.newest.insert(key, number);
        let was_open = self.batch(number).is_some_and(|b| b.open > 0);
        if let Some(batch) = self.batch(number) {
            batch.add(begun);
        }
        if !was_open {
            let open = self.open.entry((begun.pid, begun.queue)).or_default();
            open.push(number);
        }
        if begun.event != 0 && self.signals.len() < MAX_EVENTS {
            let signal = Signal {
                batch: number,
                submitted_ns: begun.submitted_ns,
                ended: false,
                timed: false,
            };
            self.signals.insert((begun.pid, begun.event), signal);
        }
        if begun.submit != 0 && self.submits.len() < MAX_EVENTS {
            let of = self.submits.entry(begun.submit).or_default();
            if of.last() != Some(&number) {
                of.push(number);
            }
        }
    }

    /// A wait that was entered and left at these times is over: what was handed over
    /// before it was entered, and waited for, has ended.
    pub fn ended(&mut self, pid: u32, waited: Waited, entered_ns: u64, left_ns: u64) {
        match waited {
            Waited::Event(event) => self.signalled(pid, event, entered_ns, left_ns),
            Waited::Submit(call) => {
                for number in self.submits.remove(&call).unwrap_or_default() {
                    self.end_all(number, entered_ns, left_ns);
                }
            }
            Waited::Queue(_) | Waited::Device(_) | Waited::All => {
                self.end_open(pid, waited, entered_ns, left_ns);
            }
        }
    }

    fn signalled(&mut self, pid: u32, event: u64, entered_ns: u64, left_ns: u64) {
        let Some(signal) = self.signals.get_mut(&(pid, event)) else {
            return;
        };
        // Given to another launch since the wait was entered: which was waited for?
        if signal.submitted_ns > entered_ns || std::mem::replace(&mut signal.ended, true) {
            return;
        }
        let number = signal.batch;
        if let Some(batch) = self.batch(number) {
            batch.end(1, left_ns);
        }
    }

    /// Ends all launches of a batch, if all were handed over before the wait.
    fn end_all(&mut self, number: u64, entered_ns: u64, left_ns: u64) -> bool {
        let Some(batch) = self.batch(number) else {
            return true;
        };
        if batch.last_ns > entered_ns {
            return false;
        }
        let open = batch.open;
        batch.end(open, left_ns);
        true
    }

    fn end_open(&mut self, pid: u32, waited: Waited, entered_ns: u64, left_ns: u64) {
        let queues: Vec<(u32, u64)> = match waited {
            Waited::Queue(queue) => vec![(pid, queue)],
            _ => {
                let of = self.open.keys().filter(|key| key.0 == pid);
                of.copied().collect()
            }
        };
        for key in queues {
            let Some(mut numbers) = self.open.remove(&key) else {
                continue;
            };
            numbers.retain(|&number| {
                let of_device = |b: &mut Batch| match waited {
                    Waited::Device(device) => b.device == device,
                    _ => true,
                };
                let Some(batch) = self.batch(number).filter(|b| b.open > 0) else {
                    return false;
                };
                !of_device(batch) || !self.end_all(number, entered_ns, left_ns)
            });
            if !numbers.is_empty() {
                self.open.insert(key, numbers);
            }
        }
    }

    /// The device handle of the launch that signals an event, and between which times
    /// it was running as far as is known.
    pub fn of_event(&mut self, pid: u32, event: u64) -> Option<(u64, (u64, u64))> {
        let number = self.signals.get(&(pid, event))?.batch;
        self.batch(number)
            .map(|batch| (batch.device, (batch.from_ns, batch.to_ns)))
    }

    /// How long exactly the launch ran that signals an event, and between which times.
    pub fn timed(&mut self, pid: u32, event: u64, (from_ns, to_ns): (u64, u64), ran_ns: u64) {
        let Some(signal) = self.signals.get_mut(&(pid, event)) else {
            return;
        };
        if std::mem::replace(&mut signal.timed, true) {
            return;
        }
        let number = signal.batch;
        if let Some(batch) = self.batch(number) {
            batch.timed += 1;
            batch.ran_ns = batch.ran_ns.saturating_add(ran_ns);
            batch.timed_from_ns = batch.timed_from_ns.min(from_ns);
            batch.timed_to_ns = batch.timed_to_ns.max(to_ns);
        }
    }

    /// Forgets launches that had ended before a time.
    pub(super) fn forget(&mut self, before_ns: u64) {
        let is_over = |b: &Batch| b.bounds().1 < before_ns;
        while self.batches.front().is_some_and(is_over) {
            self.drop_first();
        }
        self.tidy();
    }

    /// Forgets the oldest `count`, whatever is known of them.
    pub(super) fn forget_oldest(&mut self, count: usize) {
        for _ in 0..count.min(self.batches.len()) {
            self.drop_first();
        }
        self.tidy();
    }

    fn drop_first(&mut self) {
        self.batches.pop_front();
        self.first += 1;
    }

    /// Drops what refers to forgotten batches.
    fn tidy(&mut self) {
        let first = self.first;
        self.newest.retain(|_, &mut number| number >= first);
        self.signals.retain(|_, signal| signal.batch >= first);
        self.submits.retain(|_, numbers| {
            numbers.retain(|&number| number >= first);
            !numbers.is_empty()
        });
        self.open.retain(|_, numbers| {
            numbers.retain(|&number| number >= first);
            !numbers.is_empty()
        });
    }
}
