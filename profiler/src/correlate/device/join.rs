//! Windows of samples meet the launches that ran in them.

use super::{
    CodeId, Executions, PathId, Placement,
    executions::Batch,
    placements::{At, Placements},
    scene::{Cell, Scene, Unattributed, by_kernel},
};
use crate::{
    profile::{LossKind, Losses, Method, StallReason},
    wire::{DeviceStream, StallCount, StallWindow},
};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// What is kept at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Addresses of windows that wait, of all streams; about 48 bytes each.
    pub counts: usize,
    /// The same for addresses without a kernel.
    pub unknown: usize,
    /// How long windows wait for what ran in them to end, nanoseconds.
    pub hold_ns: u64,
    /// How long addresses without a kernel wait for one, nanoseconds.
    pub hold_unknown_ns: u64,
    /// Launches, taken together by the millisecond; about 130 bytes each.
    pub executions: usize,
    /// Kernels at addresses.
    pub placements: usize,
}

impl Default for Limits {
    /// About 150 MiB when all are reached.
    fn default() -> Self {
        Self {
            counts: 1 << 20,
            unknown: 1 << 18,
            hold_ns: 10_000_000_000,
            hold_unknown_ns: 60_000_000_000,
            executions: 1 << 19,
            placements: 1 << 16,
        }
    }
}

/// Launches are known this long after they were made.
const SETTLED_NS: u64 = 1_000_000_000;

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

/// A window that waits.
#[derive(Debug)]
struct Held {
    from_ns: u64,
    to_ns: u64,
    busy_ns: Option<u64>,
    /// Nanoseconds of busy time for each sample, once it is known.
    each_ns: Option<f64>,
    counts: Vec<StallCount>,
}

impl Held {
    fn samples(&self) -> u64 {
        self.counts.iter().map(StallCount::samples).sum()
    }
}

#[derive(Debug)]
struct Stream {
    id: u32,
    relative: bool,
    /// In the order of time.
    windows: VecDeque<Held>,
    /// What is left of windows: addresses without a kernel.
    unknown: VecDeque<Held>,
}

/// Joins windows with launches; see the [module](super).
#[derive(Debug)]
pub struct Join {
    limits: Limits,
    streams: Vec<Stream>,
    /// Launches, to be fed.
    pub executions: Executions,
    placements: Placements,
    /// Addresses that wait, with and without a kernel.
    held: usize,
    held_unknown: usize,
    /// A kernel became known since addresses without one were looked at.
    learned: bool,
    /// What was lost.
    pub losses: Losses,
}

impl Join {
    /// An empty one.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            streams: Vec::new(),
            executions: Executions::default(),
            placements: Placements::default(),
            held: 0,
            held_unknown: 0,
            learned: false,
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
            self.streams.push(Stream {
                id: stream.id,
                relative: stream.relative,
                windows: VecDeque::new(),
                unknown: VecDeque::new(),
            });
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
        if window.counts.is_empty() {
            return;
        }
        self.held += window.counts.len();
        let held = Held {
            from_ns: window.from_ns.min(window.to_ns),
            to_ns: window.to_ns,
            busy_ns: window.busy_ns,
            each_ns: None,
            counts: window.counts.clone(),
        };
        let at = stream.windows.partition_point(|w| w.to_ns <= held.to_ns);
        stream.windows.insert(at, held);
        if self.held > self.limits.counts {
            let newest = self.streams.iter().filter_map(|s| s.windows.back());
            let newest = newest.map(|w| w.to_ns).max().unwrap_or(0);
            let oldest = self.oldest().unwrap_or(0);
            // Half of what there is.
            self.resolve_until(oldest + (newest - oldest.min(newest)) / 2, false, sink);
        }
    }

    fn oldest(&self) -> Option<u64> {
        let first = self.streams.iter().filter_map(|s| s.windows.front());
        first.map(|w| w.from_ns).min()
    }

    /// Shares what has waited long enough, if all that happened until `now_ns` is
    /// known.
    pub fn advance(&mut self, now_ns: u64, sink: &mut impl ShareSink) {
        if self.executions.len() > self.limits.executions {
            self.executions.forget_oldest(self.limits.executions / 8);
        }
        let Some(oldest) = self.oldest() else {
            return self.forget(now_ns.saturating_sub(self.limits.hold_ns));
        };
        let settled = now_ns.saturating_sub(SETTLED_NS);
        if oldest >= settled {
            return;
        }
        let until = match self.quiet(oldest, settled) {
            Some(quiet) => quiet,
            None if now_ns.saturating_sub(oldest) > self.limits.hold_ns => {
                oldest + (settled - oldest) / 2
            }
            None => return,
        };
        self.resolve_until(until, false, sink);
    }

    /// The last time between two at which nothing can have been running.
    fn quiet(&self, from_ns: u64, to_ns: u64) -> Option<u64> {
        let mut bounds: Vec<(u64, u64)> = self.executions.all().map(Batch::bounds).collect();
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
        self.resolve_until(u64::MAX, true, sink);
    }

    /// Shares the windows until a time.
    fn resolve_until(&mut self, until_ns: u64, last: bool, sink: &mut impl ShareSink) {
        self.placements.settle();
        let mut streams = std::mem::take(&mut self.streams);
        let bounds = running(&self.executions);
        for stream in &mut streams {
            let ready = stream.windows.partition_point(|w| w.to_ns <= until_ns);
            let mut windows: Vec<Held> = stream.windows.drain(..ready).collect();
            self.held -= windows.iter().map(|w| w.counts.len()).sum::<usize>();
            weigh(&mut windows, &bounds);
            if self.learned || last {
                let waiting = stream.unknown.drain(..).collect::<Vec<_>>();
                self.held_unknown -= waiting.iter().map(|w| w.counts.len()).sum::<usize>();
                windows.splice(0..0, waiting);
                windows.sort_by_key(|w| w.to_ns);
            }
            let unknown = self.resolve(stream, windows, sink);
            self.wait(stream, unknown, until_ns, last, sink);
        }
        self.streams = streams;
        self.learned = false;
        let waiting = self.streams.iter().flat_map(|s| s.unknown.front());
        let oldest = waiting.map(|w| w.from_ns).chain(self.oldest()).min();
        self.forget(oldest.unwrap_or(until_ns).min(until_ns));
    }

    /// Forgets what ended before a time; all windows before are shared.
    fn forget(&mut self, before_ns: u64) {
        self.executions.forget(before_ns);
        self.placements.forget(before_ns);
    }

    /// Has addresses without a kernel wait, and gives up those that waited too long.
    fn wait(
        &mut self,
        stream: &mut Stream,
        unknown: Vec<Held>,
        until_ns: u64,
        last: bool,
        sink: &mut impl ShareSink,
    ) {
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

    /// Shares windows of a stream; gives back what has no kernel.
    fn resolve(
        &mut self,
        stream: &Stream,
        windows: Vec<Held>,
        sink: &mut impl ShareSink,
    ) -> Vec<Held> {
        let mut cells: FxHashMap<Vec<At>, Cell> = FxHashMap::default();
        let mut unknown = Vec::new();
        let mut at: Vec<At> = Vec::new();
        let mut loads = Vec::with_capacity(windows.len());
        for held in windows {
            loads.push((held.from_ns, held.to_ns, held.each_ns.unwrap_or(0.0)));
            let window = loads.len() - 1;
            let mut rest = Vec::new();
            for count in held.counts {
                at.clear();
                let found =
                    self.placements
                        .find(stream.relative, count.address, held.from_ns, held.to_ns);
                at.extend(found);
                if at.is_empty() {
                    rest.push(count);
                    continue;
                }
                at.sort_unstable();
                match cells.get_mut(&at) {
                    Some(cell) => cell.add(window, count),
                    None => cells.entry(at.clone()).or_default().add(window, count),
                }
            }
            if !rest.is_empty() {
                unknown.push(Held {
                    counts: rest,
                    ..held
                });
            }
        }
        let batches = by_kernel(&self.executions);
        let mut cells: Vec<_> = cells.into_iter().collect();
        cells.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (at, cell) in cells {
            let placements: Vec<&Placement> = at
                .iter()
                .filter_map(|&at| self.placements.get(at))
                .collect();
            let scene = Scene {
                stream: stream.id,
                relative: stream.relative,
                placements: &placements,
                windows: &loads,
            };
            scene.share(&cell, &batches, sink);
        }
        unknown
    }
}

/// When anything can have been running: apart from each other, in order.
fn running(executions: &Executions) -> Vec<(u64, u64)> {
    let mut bounds: Vec<(u64, u64)> = executions.all().map(Batch::bounds).collect();
    bounds.sort_unstable();
    bounds.dedup_by(|next, kept| {
        let touches = next.0 <= kept.1;
        if touches {
            kept.1 = kept.1.max(next.1);
        }
        touches
    });
    bounds
}

/// Finds how long the device was busy in each window, and with it what a sample
/// stands for: by counters, else while something can have been running, else all
/// the time.
fn weigh(windows: &mut [Held], running: &[(u64, u64)]) {
    for held in windows {
        let (from, to) = (held.from_ns, held.to_ns);
        let first = running.partition_point(|r| r.1 < from);
        let inside = running.iter().skip(first).take_while(|r| r.0 < to);
        let ran: u64 = inside
            .map(|r| r.1.min(to).saturating_sub(r.0.max(from)))
            .sum();
        let estimate = if ran == 0 { to - from } else { ran };
        let busy = held.busy_ns.unwrap_or(estimate);
        held.each_ns = Some(busy as f64 / held.samples().max(1) as f64);
    }
}
