//! Joins windows of samples with the launches that ran in them.

use super::{
    CodeId, Executions, PathId, Placement,
    batch::LaunchBatch,
    placements::Placements,
    round::{Round, Taken},
    unassigned::Unattributed,
    windows::{Stream, WaitingWindow, shorten},
};
use aiprof_model::{
    profile::{LossKind, Losses, Method, StallReason},
    wire::{DeviceStream, StallCount, StallWindow},
};

/// What is kept at most.
#[derive(Clone, Copy, Debug)]
pub struct JoinLimits {
    /// Addresses of windows that wait, of all streams; about 48 bytes each.
    pub counts: usize,
    /// The same for addresses without a kernel.
    pub unknown: usize,
    /// How long windows wait for what ran in them to end, nanoseconds; then the older
    /// half of them is shared.
    pub hold_ns: u64,
    /// How long addresses without a kernel wait for one, nanoseconds.
    pub hold_unknown_ns: u64,
    /// Launches, taken together by the millisecond; about 240 bytes each.
    pub executions: usize,
    /// Kernels at addresses.
    pub placements: usize,
}

impl Default for JoinLimits {
    /// About 200 MiB when all are reached.
    fn default() -> Self {
        Self {
            counts: 1 << 20,
            unknown: 1 << 18,
            hold_ns: 600_000_000_000,
            hold_unknown_ns: 60_000_000_000,
            executions: 1 << 19,
            placements: 1 << 16,
        }
    }
}

/// Launches are known this long after they were made.
const SETTLED_NS: u64 = 1_000_000_000;
/// How long windows wait for a time at which nothing runs, where all that ran in them is
/// known to have ended.
const PATIENCE_NS: u64 = 10_000_000_000;
/// Rounds are at least so far apart.
const ROUND_NS: u64 = 50_000_000;
/// Divisor of the time that windows have waited: after that part of it, they are checked again
/// for whether they can be shared.
const LOOK_AGAIN: u64 = 64;

/// Samples of one instruction and reason that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// [`DeviceStream::id`].
    pub stream: u32,
    /// Whose launches they are of; `None`: unattributed.
    pub path: Option<PathId>,
    /// The process, if it is known.
    pub pid: Option<u32>,
    /// The kernel's code, if it is known.
    pub code: Option<CodeId>,
    /// Bytes from the kernel's first instruction; the address if that is not known.
    pub offset: u64,
    /// What was counted.
    pub reason: StallReason,
    /// Samples, in parts: [`PARTS`](super::PARTS) to each.
    pub parts: u64,
    /// Samples that are certainly of this path.
    pub certain: u64,
    /// Samples that may be of this path.
    pub possible: u64,
    /// Nanoseconds of the device's busy time that they stand for.
    pub time_ns: f64,
    /// How it was found.
    pub method: Method,
}

/// Takes shares. Over all shares of a round, the parts add up to the samples.
pub trait ShareSink {
    /// One share.
    fn share(&mut self, share: Share);
}

impl<F: FnMut(Share)> ShareSink for F {
    fn share(&mut self, share: Share) {
        self(share);
    }
}

/// Joins windows with launches; see the [module](super).
#[derive(Debug)]
pub struct Join {
    limits: JoinLimits,
    streams: Vec<Stream>,
    /// Launches, to be fed.
    pub executions: Executions,
    placements: Placements,
    /// Addresses that wait, with and without a kernel.
    held: usize,
    held_unknown: usize,
    /// A kernel became known since addresses without one were looked at.
    learned: bool,
    /// Not before this time is there anything to be shared.
    look_ns: u64,
    /// What was lost.
    pub losses: Losses,
}

impl Join {
    /// An empty one.
    pub fn new(limits: JoinLimits) -> Self {
        Self {
            limits,
            streams: Vec::new(),
            executions: Executions::default(),
            placements: Placements::default(),
            held: 0,
            held_unknown: 0,
            learned: false,
            look_ns: 0,
            losses: Losses::default(),
        }
    }

    /// Whether any samples wait.
    pub fn is_waiting(&self) -> bool {
        self.held + self.held_unknown > 0
    }

    /// A stream is read from here on.
    pub fn stream(&mut self, stream: &DeviceStream) {
        if self.streams.iter().all(|known| known.id != stream.id) {
            self.streams.push(Stream::new(stream));
        }
    }

    /// A kernel lies at an address.
    pub fn placed(&mut self, placement: Placement) {
        if self.placements.len() >= self.limits.placements {
            self.placements.forget_oldest(self.limits.placements / 8);
        }
        self.placements.add(placement);
        self.learned = true;
    }

    /// A process that was forked then has its parent's kernels and clocks.
    pub fn inherited(&mut self, parent: u32, pid: u32, forked_ns: u64) {
        for placement in self.placements.of(parent, forked_ns) {
            self.placed(Placement {
                pid,
                since_ns: forked_ns.max(placement.since_ns),
                ..placement
            });
        }
        self.executions.clocks.inherit(parent, pid);
    }

    /// Kernels are gone since then.
    pub fn unplaced(&mut self, ended_ns: u64, is_it: impl Fn(&Placement) -> bool) {
        self.placements.end(ended_ns, is_it);
    }

    /// A stream was read. A window of a stream that was not announced is lost.
    pub fn window(&mut self, window: &StallWindow, sink: &mut impl ShareSink) {
        self.losses.add(LossKind::DeviceDrops, window.drops.into());
        self.losses.add(LossKind::DeviceUndecodable, window.refused);
        let Some(stream) = self.streams.iter_mut().find(|s| s.id == window.stream) else {
            let lost = window.counts.iter().map(StallCount::samples).sum();
            return self.losses.add(LossKind::DeviceSamplesRefused, lost);
        };
        if window.counts.iter().all(|count| count.samples() == 0) {
            return;
        }
        self.held += window.counts.len();
        let held = WaitingWindow {
            from_ns: window.from_ns.min(window.to_ns),
            to_ns: window.to_ns,
            busy_ns: window.busy_ns,
            each_ns: None,
            counts: window.counts.clone(),
        };
        let at = stream.windows.partition_point(|w| w.to_ns <= held.to_ns);
        stream.windows.insert(at, held);
        if self.held > self.limits.counts {
            self.make_room(sink);
        }
    }

    /// Takes neighbouring windows together until a quarter of the room is free. Where
    /// that does not help, for all addresses differ, the older half is shared early.
    fn make_room(&mut self, sink: &mut impl ShareSink) {
        let limit = self.limits.counts / 4 * 3;
        self.held = shorten(&mut self.streams, limit);
        if self.held > self.limits.counts / 8 * 7 {
            let newest = self.streams.iter().filter_map(|s| s.windows.back());
            let newest = newest.map(|w| w.to_ns).max().unwrap_or(0);
            let oldest = self.oldest().unwrap_or(0);
            let until = oldest + newest.saturating_sub(oldest) / 2;
            // One window at least: all may have been taken together.
            let until = until.max(self.first_end().unwrap_or(0));
            self.resolve_until(until, Look::Ahead, sink);
        }
    }

    fn oldest(&self) -> Option<u64> {
        let first = self.streams.iter().filter_map(|s| s.windows.front());
        first.map(|w| w.from_ns).min()
    }

    /// End of the first window that ends.
    fn first_end(&self) -> Option<u64> {
        let first = self.streams.iter().filter_map(|s| s.windows.front());
        first.map(|w| w.to_ns).min()
    }

    /// Shares what has waited long enough, if all that happened until `now_ns` is
    /// known.
    pub fn advance(&mut self, now_ns: u64, sink: &mut impl ShareSink) {
        if self.executions.len() > self.limits.executions {
            let needed = self.oldest_waiting().unwrap_or(now_ns).min(now_ns);
            let limit = self.limits.executions / 8 * 7;
            let lost = self.executions.make_room(limit, needed);
            self.losses.add(LossKind::LaunchesRefused, lost);
        }
        let Some(oldest) = self.oldest() else {
            return self.forget(now_ns.saturating_sub(self.limits.hold_ns));
        };
        let settled = now_ns.saturating_sub(SETTLED_NS);
        if oldest >= settled || now_ns < self.look_ns {
            return;
        }
        // The first window may begin before anything ran, and go on since.
        let first = self.first_end().unwrap_or(0);
        if let Some(quiet) = self.quiet(oldest, settled).filter(|&q| q >= first) {
            self.resolve_until(quiet, Look::Quiet, sink);
            self.look_ns = now_ns.saturating_add(ROUND_NS);
            return;
        }
        let waited = now_ns.saturating_sub(oldest);
        self.look_ns = now_ns.saturating_add(waited / LOOK_AGAIN);
        let until = oldest + (settled - oldest) / 2;
        let is_known = waited > PATIENCE_NS && self.has_ended(until, settled);
        if is_known || waited > self.limits.hold_ns {
            self.resolve_until(until, Look::Ahead, sink);
        }
    }

    /// Whether all that began before a time has ended before another one.
    fn has_ended(&self, begun_ns: u64, ended_ns: u64) -> bool {
        let bounds = self.executions.all().map(LaunchBatch::bounds);
        bounds.filter(|b| b.0 <= begun_ns).all(|b| b.1 <= ended_ns)
    }

    /// The last time between two at which nothing can have been running.
    fn quiet(&self, from_ns: u64, to_ns: u64) -> Option<u64> {
        let mut bounds: Vec<(u64, u64)> = self.executions.all().map(LaunchBatch::bounds).collect();
        bounds.sort_unstable();
        let (mut last, mut reach) = (None, from_ns);
        for (from, to) in bounds {
            if to < from_ns {
                continue;
            }
            if from > to_ns {
                break;
            }
            if from > reach {
                last = Some(from - 1);
            }
            reach = reach.max(to);
        }
        if reach < to_ns { Some(to_ns) } else { last }
    }

    /// Shares everything: nothing more will come.
    pub fn finish(&mut self, sink: &mut impl ShareSink) {
        self.resolve_until(u64::MAX, Look::Last, sink);
    }

    /// Shares the windows until a time.
    fn resolve_until(&mut self, until_ns: u64, look: Look, sink: &mut impl ShareSink) {
        self.look_ns = 0;
        self.placements.settle();
        self.executions.date();
        let mut taken = Vec::new();
        for (at, stream) in self.streams.iter_mut().enumerate() {
            let ready = stream.take_until(until_ns);
            self.held -= ready.iter().map(|w| w.counts.len()).sum::<usize>();
            taken.extend(ready.into_iter().map(|held| Taken { stream: at, held }));
            if self.learned || look == Look::Last {
                let waiting = std::mem::take(&mut stream.unknown);
                self.held_unknown -= waiting.iter().map(|w| w.counts.len()).sum::<usize>();
                taken.extend(waiting.into_iter().map(|held| Taken { stream: at, held }));
            }
        }
        let mut round = Round::new(&self.streams, &self.placements, taken);
        round.weigh(&mut self.streams, &self.executions);
        if look == Look::Ahead {
            round.look_ahead(&self.streams);
        }
        for (batch, left) in round.share(&self.executions, sink) {
            self.executions.spend(batch, left);
        }
        for (at, unknown) in round.into_unknown().into_iter().enumerate() {
            self.wait(at, unknown, until_ns, look == Look::Last, sink);
        }
        self.learned = false;
        let oldest = self.oldest_waiting();
        self.forget(oldest.unwrap_or(until_ns).min(until_ns));
    }

    /// Begin of the first window that waits, for whatever.
    fn oldest_waiting(&self) -> Option<u64> {
        let waiting = self.streams.iter().flat_map(|s| s.unknown.front());
        waiting.map(|w| w.from_ns).chain(self.oldest()).min()
    }

    /// Forgets what ended before a time; all windows before are shared.
    fn forget(&mut self, before_ns: u64) {
        self.executions.forget(before_ns);
        self.placements.forget(before_ns);
    }

    /// Has addresses without a kernel wait, and gives up those that waited too long.
    fn wait(
        &mut self,
        stream: usize,
        unknown: Vec<WaitingWindow>,
        until_ns: u64,
        last: bool,
        sink: &mut impl ShareSink,
    ) {
        let Some(stream) = self.streams.get_mut(stream) else {
            return;
        };
        for held in unknown {
            self.held_unknown += held.counts.len();
            stream.unknown.push_back(held);
        }
        let oldest = until_ns.saturating_sub(self.limits.hold_unknown_ns);
        while let Some(first) = stream.unknown.front() {
            let keep = first.to_ns >= oldest && self.held_unknown <= self.limits.unknown;
            if keep && !last {
                break;
            }
            let Some(held) = stream.unknown.pop_front() else {
                break;
            };
            self.held_unknown -= held.counts.len();
            for count in &held.counts {
                let each_ns = held.each_ns.unwrap_or(0.0);
                let unknown = Unattributed {
                    stream: stream.id,
                    pid: None,
                    code: None,
                    offset: count.address,
                };
                let counts = count.counts.map(u64::from);
                unknown.give(&counts, &counts.map(|n| n as f64 * each_ns), sink);
            }
        }
    }
}

/// Why windows are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// Nothing that ran in them can run in later ones.
    Quiet,
    /// Room or patience are at an end: what runs may run in later ones, too.
    Ahead,
    /// There are no later ones.
    Last,
}
