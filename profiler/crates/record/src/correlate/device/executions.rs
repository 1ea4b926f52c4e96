//! When launches can have been running.
//!
//! Launches of one kernel from one call path are taken together while they are
//! handed over within a millisecond, so that a million launches a second need no
//! million entries. What is known of them stays true of all: they began after the
//! first was handed over and ended before the last was known to have ended. Where
//! room is short, more are taken together: resolution is lost, no launch and no work.

use super::{
    PathId,
    batch::{BatchKey, LaunchBatch},
    clock::Tick,
    clocks::ProcessClocks,
};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Most timed launches that are remembered one by one; 80 bytes each.
const MAX_SPANS: usize = 1 << 18;
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
    /// The call that handed it over, for joining it with a fence.
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

/// A launch that will signal an event.
#[derive(Clone, Copy, Debug)]
struct Signal {
    batch: u64,
    submitted_ns: u64,
    /// [`LaunchBatch::drained`] when it was handed over. If that has changed, another wait has ended
    /// it.
    drained: u32,
    ended: bool,
    timed: bool,
}

/// The launches of all processes.
#[derive(Debug, Default)]
pub struct Executions {
    /// In the order in which their first launch became known.
    batches: VecDeque<LaunchBatch>,
    /// Number of the first.
    first: u64,
    /// The newest batch by process, kernel and path.
    newest: FxHashMap<(u32, u64, PathId), u64>,
    /// Batches with open launches by process and queue.
    open: FxHashMap<(u32, u64), Vec<u64>>,
    signals: FxHashMap<(u32, u64), Signal>,
    /// What a call handed over.
    submits: FxHashMap<u64, Vec<u64>>,
    /// Timed launches that are remembered one by one.
    spans: usize,
    /// The clocks that timestamps are of.
    pub clocks: ProcessClocks,
}

impl Executions {
    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &LaunchBatch> {
        self.batches.iter()
    }

    fn batch(&mut self, number: u64) -> Option<&mut LaunchBatch> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.batches.get_mut(at)
    }

    /// A launch was handed to a device.
    pub fn begun(&mut self, begun: &Begun) {
        let key = (begun.pid, begun.kernel, begun.path);
        let newest = self.newest.get(&key).copied();
        let known = newest.filter(|&n| self.batch(n).is_some_and(|b| b.takes(begun)));
        let number = known.unwrap_or_else(|| {
            self.batches.push_back(LaunchBatch::new(begun));
            self.first + self.batches.len() as u64 - 1
        });
        self.newest.insert(key, number);
        let was_open = self.batch(number).is_some_and(|b| b.open > 0);
        let mut drained = 0;
        if let Some(batch) = self.batch(number) {
            batch.add(begun);
            drained = batch.drained;
        }
        if !was_open {
            let open = self.open.entry((begun.pid, begun.queue)).or_default();
            open.push(number);
        }
        if begun.event != 0 && self.signals.len() < MAX_EVENTS {
            let signal = Signal {
                batch: number,
                submitted_ns: begun.submitted_ns,
                drained,
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
                    // A batch with launches of several submissions cannot be ended by one of
                    // them.
                    if self.batch(number).is_some_and(|b| b.submit == call) {
                        self.end_all(number, entered_ns, left_ns);
                    }
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
        let (number, drained) = (signal.batch, signal.drained);
        let batch = self.batch(number);
        if let Some(batch) = batch.filter(|batch| batch.drained == drained) {
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
        batch.end_all(left_ns);
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
                let of_device = |b: &mut LaunchBatch| match waited {
                    Waited::Device(device) => b.of.device == device,
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

    /// A program read the timestamps of the launch that signals an event, in ticks, with
    /// a call that returned at `left_ns`: it had ended by then, if not earlier.
    pub fn timestamps(&mut self, pid: u32, event: u64, ticks: (u64, u64), left_ns: u64) {
        self.ended(pid, Waited::Event(event), left_ns, left_ns);
        let Some(number) = self.untimed(pid, event) else {
            return;
        };
        let Some(batch) = self.batch(number) else {
            return;
        };
        // A wait may have shown earlier that it is over.
        let known = (batch.from_ns, left_ns.min(batch.to_ns));
        let device = (pid, batch.of.device);
        let Some(times) = self.clocks.times(device, ticks, known) else {
            return;
        };
        self.time(number, times.between, times.ran_ns, Some(times.ticks));
        self.mark_timed(pid, event);
    }

    fn time(&mut self, number: u64, between: (u64, u64), ran_ns: u64, ticks: Option<(Tick, Tick)>) {
        let keeps = self.spans < MAX_SPANS;
        if let Some(batch) = self.batch(number) {
            batch.time(between, ran_ns, ticks, keeps);
            self.spans += usize::from(keeps);
        }
    }

    /// The batch of the launch that signals an event and is not timed yet.
    fn untimed(&self, pid: u32, event: u64) -> Option<u64> {
        let signal = self.signals.get(&(pid, event))?;
        (!signal.timed).then_some(signal.batch)
    }

    fn mark_timed(&mut self, pid: u32, event: u64) {
        if let Some(signal) = self.signals.get_mut(&(pid, event)) {
            signal.timed = true;
        }
    }

    /// How long exactly the launch ran that signals an event, and between which times.
    #[cfg(test)]
    pub(super) fn timed(&mut self, pid: u32, event: u64, between: (u64, u64), ran_ns: u64) {
        if let Some(number) = self.untimed(pid, event) {
            self.time(number, between, ran_ns, None);
            self.mark_timed(pid, event);
        }
    }

    /// Dates all timestamps with what is known of the clocks by now.
    pub(super) fn date(&mut self) {
        self.date_of(|_| true);
    }

    fn date_of(&mut self, is_of: impl Fn(u32) -> bool) {
        let of = |batch: &&mut LaunchBatch| is_of(batch.of.pid) && batch.has_ticks();
        for batch in self.batches.iter_mut().filter(of) {
            if let Some(clock) = self.clocks.get(batch.of.pid, batch.of.device) {
                batch.date(clock);
            }
        }
    }

    /// Reduces the work that is left of a batch to this part of it. `at`: its place among
    /// [`all`](Self::all).
    pub(super) fn spend(&mut self, at: usize, part: f64) {
        if let Some(batch) = self.batches.get_mut(at) {
            batch.left *= part.clamp(0.0, 1.0);
        }
    }

    /// A process is gone: all it launched has ended.
    pub fn process_gone(&mut self, pid: u32, at_ns: u64) {
        self.ended(pid, Waited::All, at_ns, at_ns);
        // Nothing more will be known of its clocks.
        if self.clocks.has(pid) {
            self.date_of(|of| of == pid);
            self.clocks.forget(pid);
        }
    }

    /// Forgets launches that had ended before a time.
    pub(super) fn forget(&mut self, before_ns: u64) {
        let is_over = |b: &LaunchBatch| b.bounds().1 < before_ns;
        while self.batches.front().is_some_and(is_over) {
            self.drop_first();
        }
        self.tidy();
    }

    /// Makes room for new launches. It first forgets those that had ended before a time. Then it
    /// merges pairs of neighbours of one kernel, path and queue. If there are still more than
    /// `limit`, it forgets the oldest, and returns how many launches these were.
    pub(super) fn make_room(&mut self, limit: usize, before_ns: u64) -> u64 {
        let old_first = self.first;
        // Where each batch is now.
        let mut moved: Vec<Option<u64>> = Vec::with_capacity(self.batches.len());
        let mut single: FxHashMap<BatchKey, usize> = FxHashMap::default();
        let mut kept: VecDeque<LaunchBatch> = VecDeque::new();
        for batch in std::mem::take(&mut self.batches) {
            if batch.bounds().1 < before_ns {
                self.spans -= batch.spans().len();
                moved.push(None);
                continue;
            }
            let partner = single.remove(&batch.of);
            let at = match partner.and_then(|at| Some((at, kept.get_mut(at)?))) {
                Some((at, first)) => {
                    first.merge(&batch);
                    at
                }
                None => {
                    single.insert(batch.of, kept.len());
                    kept.push_back(batch);
                    kept.len() - 1
                }
            };
            moved.push(Some(at as u64));
        }
        self.batches = kept;
        self.first = 0;
        self.renumber(|number| {
            let at = usize::try_from(number.checked_sub(old_first)?).ok()?;
            moved.get(at).copied().flatten()
        });
        let mut forgotten: u64 = 0;
        while self.batches.len() > limit {
            forgotten += self.batches.front().map_or(0, |batch| batch.launches);
            self.drop_first();
        }
        self.tidy();
        forgotten
    }

    /// Gives batches other numbers, wherever they are referred to.
    fn renumber(&mut self, new: impl Fn(u64) -> Option<u64>) {
        let change = |number: &mut u64| {
            new(*number).is_some_and(|n| {
                *number = n;
                true
            })
        };
        self.newest.retain(|_, number| change(number));
        self.signals.retain(|_, signal| change(&mut signal.batch));
        for numbers in self.submits.values_mut().chain(self.open.values_mut()) {
            numbers.retain_mut(change);
            numbers.sort_unstable();
            numbers.dedup();
        }
    }

    fn drop_first(&mut self) {
        let first = self.batches.pop_front();
        self.spans -= first.map_or(0, |batch| batch.spans().len());
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
