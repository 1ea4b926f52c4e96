//! Windows of samples meet the launches that ran in them.

use super::{
    CodeId, Executions, PARTS, PathId, Placement,
    executions::Batch,
    placements::{At, Placements},
    share::{Candidate, Load, Parts, share, split},
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
    /// Samples, in parts: [`PARTS`] to each.
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
        self.counts.iter().map(samples).sum()
    }
}

fn samples(count: &StallCount) -> u64 {
    count.counts.iter().map(|&n| u64::from(n)).sum()
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
            let lost = window.counts.iter().map(samples).sum();
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
                stream,
                placements: &placements,
                windows: &loads,
            };
            scene.share(&cell, &batches, sink);
        }
        unknown
    }
}

/// Batches by process and kernel.
type ByKernel<'a> = FxHashMap<(u32, u64), Vec<&'a Batch>>;

fn by_kernel(executions: &Executions) -> ByKernel<'_> {
    let mut out: ByKernel<'_> = FxHashMap::default();
    for batch in executions.all() {
        out.entry((batch.pid, batch.kernel))
            .or_default()
            .push(batch);
    }
    out
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

/// Samples at addresses that the same kernels lie at.
#[derive(Debug, Default)]
struct Cell {
    /// Which window, in order, and what.
    counts: Vec<(usize, StallCount)>,
}

impl Cell {
    fn add(&mut self, window: usize, count: StallCount) {
        self.counts.push((window, count));
    }
}

/// Samples that are shared in one way.
#[derive(Debug)]
struct Group {
    method: Method,
    claimants: Vec<u32>,
    /// Samples of each claimant.
    weights: Vec<f64>,
    by_address: FxHashMap<u64, Sums>,
}

const REASONS: usize = StallReason::ALL.len();

/// What was counted at an address.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    counts: [u64; REASONS],
    time_ns: [f64; REASONS],
}

impl Sums {
    fn add(&mut self, count: &StallCount, each_ns: f64) {
        let of = self.counts.iter_mut().zip(&mut self.time_ns);
        for ((sum, time), &n) in of.zip(&count.counts) {
            *sum += u64::from(n);
            *time += f64::from(n) * each_ns;
        }
    }
}

/// Who can have caused samples: a path with its kernel at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Claimant {
    path: PathId,
    pid: u32,
    code: CodeId,
    start: u64,
    base: u64,
}

/// What is needed to share the samples of a cell.
struct Scene<'a> {
    stream: &'a Stream,
    placements: &'a [&'a Placement],
    /// From when to when, and the time of a sample.
    windows: &'a [(u64, u64, f64)],
}

impl Scene<'_> {
    fn share(&self, cell: &Cell, batches: &ByKernel<'_>, sink: &mut impl ShareSink) {
        let mut loads: Vec<Load> = Vec::new();
        let mut first: Vec<usize> = Vec::new();
        let mut current = usize::MAX;
        for (i, (window, count)) in cell.counts.iter().enumerate() {
            if *window != current {
                current = *window;
                let (from_ns, to_ns, _) = self.windows.get(current).copied().unwrap_or_default();
                loads.push(Load {
                    from_ns,
                    to_ns,
                    samples: 0,
                });
                first.push(i);
            }
            if let Some(load) = loads.last_mut() {
                load.samples += samples(count);
            }
        }
        first.push(cell.counts.len());
        let (claimants, candidates) = self.candidates(&loads, batches);
        let mut groups: FxHashMap<(Method, Vec<u32>), usize> = FxHashMap::default();
        let mut all: Vec<Group> = Vec::new();
        share(&loads, &candidates, |i, method, parts| {
            let ids: Vec<u32> = parts.iter().map(|part| part.0).collect();
            let at = *groups.entry((method, ids.clone())).or_insert_with(|| {
                all.push(Group {
                    method,
                    weights: vec![0.0; ids.len()],
                    claimants: ids,
                    by_address: FxHashMap::default(),
                });
                all.len() - 1
            });
            let (Some(group), Some(load)) = (all.get_mut(at), loads.get(i)) else {
                return;
            };
            for (weight, (_, part)) in group.weights.iter_mut().zip(&parts) {
                *weight += part * load.samples as f64;
            }
            let counts = first.get(i).zip(first.get(i + 1));
            let counts = counts.and_then(|(&from, &to)| cell.counts.get(from..to));
            for (window, count) in counts.unwrap_or_default() {
                let each_ns = self.windows.get(*window).map_or(0.0, |w| w.2);
                let sums = group.by_address.entry(count.address).or_default();
                sums.add(count, each_ns);
            }
        });
        for group in &all {
            self.give(group, &claimants, sink);
        }
    }

    /// The launches that can have been running in any of the windows.
    fn candidates(
        &self,
        loads: &[Load],
        batches: &ByKernel<'_>,
    ) -> (Vec<Claimant>, Vec<Candidate>) {
        let from = loads.first().map_or(0, |load| load.from_ns);
        let to = loads.last().map_or(0, |load| load.to_ns);
        let mut known: FxHashMap<Claimant, u32> = FxHashMap::default();
        let mut claimants = Vec::new();
        let mut out = Vec::new();
        for placement in self.placements {
            let of = batches.get(&(placement.pid, placement.kernel));
            for batch in of.into_iter().flatten() {
                let (from_ns, to_ns) = batch.bounds();
                if to_ns < from || from_ns > to {
                    continue;
                }
                let claimant = Claimant {
                    path: batch.path,
                    pid: placement.pid,
                    code: placement.code,
                    start: placement.start,
                    base: placement.base,
                };
                let claimant = *known.entry(claimant).or_insert_with(|| {
                    claimants.push(claimant);
                    u32::try_from(claimants.len() - 1).unwrap_or(u32::MAX)
                });
                out.push(Candidate {
                    claimant,
                    from_ns,
                    to_ns,
                    launches: batch.launches,
                    work: batch.work,
                    exact_ns: batch.exact().map(|exact| exact.0),
                });
            }
        }
        (claimants, out)
    }

    fn give(&self, group: &Group, claimants: &[Claimant], sink: &mut impl ShareSink) {
        let whole: f64 = group.weights.iter().sum();
        let parts: Parts = group
            .claimants
            .iter()
            .zip(&group.weights)
            .map(|(&claimant, weight)| (claimant, weight / whole.max(f64::MIN_POSITIVE)))
            .collect();
        let mut addresses: Vec<_> = group.by_address.iter().collect();
        addresses.sort_unstable_by_key(|(address, _)| **address);
        for (&address, sums) in addresses {
            if parts.is_empty() {
                self.unattributed(address)
                    .give(&sums.counts, &sums.time_ns, sink);
                continue;
            }
            for (i, reason) in StallReason::ALL.into_iter().enumerate() {
                let (count, time_ns) = (sums.counts[i], sums.time_ns[i]);
                if count == 0 {
                    continue;
                }
                let sole = group.method == Method::Sole;
                for ((id, share), (_, part)) in
                    split(count.saturating_mul(PARTS), &parts).zip(&parts)
                {
                    let Some(claimant) = claimants.get(id as usize) else {
                        continue;
                    };
                    sink.share(Share {
                        stream: self.stream.id,
                        path: Some(claimant.path),
                        pid: Some(claimant.pid),
                        code: Some(claimant.code),
                        offset: self.offset(address, claimant.start, claimant.base),
                        reason,
                        parts: share,
                        certain: if sole { count } else { 0 },
                        possible: count,
                        time_ns: time_ns * part,
                        method: group.method,
                    });
                }
            }
        }
    }

    fn offset(&self, address: u64, start: u64, base: u64) -> u64 {
        let base = if self.stream.relative { base } else { 0 };
        address.wrapping_sub(start.wrapping_sub(base))
    }

    /// Samples of kernels of which no launch can have been running.
    fn unattributed(&self, address: u64) -> Unattributed {
        let first = self.placements.first();
        let same = |of: fn(&Placement) -> u32| {
            let value = first.map(|p| of(p))?;
            self.placements
                .iter()
                .all(|p| of(p) == value)
                .then_some(value)
        };
        let code = same(|p| p.code);
        let offset = first.filter(|_| code.is_some());
        Unattributed {
            stream: self.stream.id,
            pid: same(|p| p.pid),
            code,
            offset: offset.map_or(address, |p| self.offset(address, p.start, p.base)),
        }
    }
}

/// Samples without a launch.
struct Unattributed {
    stream: u32,
    pid: Option<u32>,
    code: Option<CodeId>,
    offset: u64,
}

impl Unattributed {
    fn give(&self, counts: &[u64; REASONS], time_ns: &[f64; REASONS], sink: &mut impl ShareSink) {
        let of = counts.iter().zip(time_ns).zip(StallReason::ALL);
        for ((&count, &time_ns), reason) in of.filter(|((count, _), _)| **count > 0) {
            sink.share(Share {
                stream: self.stream,
                path: None,
                pid: self.pid,
                code: self.code,
                offset: self.offset,
                reason,
                parts: count.saturating_mul(PARTS),
                certain: count,
                possible: count,
                time_ns,
                method: Method::Unattributed,
            });
        }
    }
}
