//! Windows that are shared at one time.

use super::{
    Executions,
    busy::{self, DeviceBusy},
    join::ShareSink,
    placements::{At, Placements},
    unassigned::{SampleCell, Scene, SharedWindow},
    windows::{Stream, WaitingWindow},
};
use rustc_hash::{FxHashMap, FxHashSet};

/// A window, and the place of its stream.
pub(super) struct Taken {
    pub(super) stream: usize,
    pub(super) held: WaitingWindow,
}

/// Windows of all streams, sorted by the kernels that their samples can be of.
pub(super) struct Round<'a> {
    placements: &'a Placements,
    /// In the order in which they end.
    windows: Vec<SharedWindow>,
    /// As they came, without their counts: those at addresses of kernels are in cells,
    /// the others are given back.
    taken: Vec<Taken>,
    samples: Vec<u64>,
    cells: Vec<SampleCell>,
    /// Samples of later windows, by a placement that they can be of; and their end.
    ahead: FxHashMap<At, u64>,
    ahead_until_ns: u64,
}

impl<'a> Round<'a> {
    pub(super) fn new(
        streams: &[Stream],
        placements: &'a Placements,
        mut taken: Vec<Taken>,
    ) -> Self {
        taken.sort_by_key(|taken| taken.held.to_ns);
        let mut round = Self {
            placements,
            windows: begins(streams, &taken),
            samples: taken.iter().map(|taken| taken.held.samples()).collect(),
            taken: Vec::with_capacity(taken.len()),
            cells: Vec::new(),
            ahead: FxHashMap::default(),
            ahead_until_ns: 0,
        };
        let mut index: FxHashMap<Vec<At>, usize> = FxHashMap::default();
        for (window, taken) in taken.into_iter().enumerate() {
            round.sort(window, taken, &mut index);
        }
        round
    }

    /// Puts the counts of a window into cells; those without a kernel stay.
    fn sort(&mut self, window: usize, taken: Taken, index: &mut FxHashMap<Vec<At>, usize>) {
        let Taken { stream, mut held } = taken;
        let relative = self.windows.get(window).is_some_and(|w| w.relative);
        let mut at: Vec<At> = Vec::new();
        let mut rest = Vec::new();
        for count in std::mem::take(&mut held.counts) {
            find(self.placements, relative, &held, count.address, &mut at);
            if at.is_empty() {
                rest.push(count);
                continue;
            }
            let cell = match index.get(&at) {
                Some(&cell) => cell,
                None => {
                    self.cells.push(SampleCell {
                        at: at.clone(),
                        counts: Vec::new(),
                    });
                    index.insert(at.clone(), self.cells.len() - 1);
                    self.cells.len() - 1
                }
            };
            if let Some(cell) = self.cells.get_mut(cell) {
                cell.counts.push((window, count));
            }
        }
        held.counts = rest;
        self.taken.push(Taken { stream, held });
    }

    /// Finds what a sample of each window stands for: by counters, else while what was
    /// sampled can have been running.
    pub(super) fn weigh(&mut self, streams: &mut [Stream], executions: &Executions) {
        for (at, stream) in streams.iter_mut().enumerate() {
            let own = self.taken.iter().enumerate();
            let fresh = own.filter(|(_, taken)| taken.stream == at && taken.held.each_ns.is_none());
            let (counted, open): (Vec<usize>, Vec<usize>) = fresh
                .map(|(window, _)| window)
                .partition(|&window| self.held(window).is_some_and(|h| h.busy_ns.is_some()));
            for window in counted {
                let busy = self.held(window).and_then(|held| held.busy_ns);
                self.set_busy(window, busy.unwrap_or(0) as f64);
            }
            let windows: Vec<busy::BusyWindow> = open
                .iter()
                .filter_map(|&window| self.held(window).zip(self.samples.get(window)))
                .map(|(held, &samples)| busy::BusyWindow {
                    from_ns: held.from_ns.max(stream.weighed_ns),
                    to_ns: held.to_ns.max(stream.weighed_ns),
                    samples,
                })
                .collect();
            if windows.is_empty() {
                continue;
            }
            let busy = DeviceBusy::of(executions, &self.seen(at));
            for (&window, ns) in open
                .iter()
                .zip(busy::share(busy, &windows, &mut stream.usual_ns))
            {
                self.set_busy(window, ns);
            }
            let last = windows.iter().map(|w| w.to_ns).max().unwrap_or(0);
            stream.weighed_ns = stream.weighed_ns.max(last);
        }
        for (window, taken) in self.windows.iter_mut().zip(&self.taken) {
            window.each_ns = taken.held.each_ns.unwrap_or(0.0);
        }
    }

    fn held(&self, window: usize) -> Option<&WaitingWindow> {
        self.taken.get(window).map(|taken| &taken.held)
    }

    fn set_busy(&mut self, window: usize, busy_ns: f64) {
        let samples = self.samples.get(window).map_or(1, |&n| n.max(1));
        if let Some(taken) = self.taken.get_mut(window) {
            taken.held.each_ns = Some(busy_ns / samples as f64);
        }
    }

    /// The kernels that a stream has samples of.
    fn seen(&self, stream: usize) -> FxHashSet<(u32, u64)> {
        let is_own = |window: &usize| {
            self.windows
                .get(*window)
                .is_some_and(|w| w.stream == stream)
        };
        let cells = self.cells.iter();
        let own = cells.filter(|cell| cell.counts.iter().any(|(window, _)| is_own(window)));
        own.flat_map(|cell| &cell.at)
            .filter_map(|&at| self.placements.get(at))
            .map(|placement| (placement.pid, placement.kernel))
            .collect()
    }

    /// Counts the samples of windows that are not shared yet: the launches of this round
    /// may have to give samples to those, too.
    pub(super) fn look_ahead(&mut self, streams: &[Stream]) {
        let mut at: Vec<At> = Vec::new();
        for stream in streams {
            for held in &stream.windows {
                self.ahead_until_ns = self.ahead_until_ns.max(held.to_ns);
                for count in &held.counts {
                    find(
                        self.placements,
                        stream.relative,
                        held,
                        count.address,
                        &mut at,
                    );
                    if let Some(&first) = at.first() {
                        *self.ahead.entry(first).or_default() += count.samples();
                    }
                }
            }
        }
    }

    /// Shares the samples of all cells. Gives back which part of the work of batches is
    /// left, of what was left before.
    pub(super) fn share(
        &self,
        executions: &Executions,
        sink: &mut impl ShareSink,
    ) -> Vec<(usize, f64)> {
        let scene = Scene::new(executions, self.placements, &self.windows);
        let mut together = Together::default();
        for cell in &self.cells {
            let kernels = cell.at.iter().filter_map(|&at| self.placements.get(at));
            let kernels = kernels.map(|placement| (placement.pid, placement.kernel));
            together.join(&cell.at, kernels);
        }
        let mut ahead: FxHashMap<At, u64> = FxHashMap::default();
        for (&at, samples) in &self.ahead {
            *ahead.entry(together.first(at)).or_default() += samples;
        }
        let mut pools: FxHashMap<At, Vec<usize>> = FxHashMap::default();
        for (i, cell) in self.cells.iter().enumerate() {
            if let Some(&at) = cell.at.first() {
                pools.entry(together.first(at)).or_default().push(i);
            }
        }
        let mut pools: Vec<(At, Vec<usize>)> = pools.into_iter().collect();
        pools.sort_unstable();
        let mut left = Vec::new();
        for (first, own) in pools {
            let ahead = ahead.get(&first).copied().unwrap_or(0);
            let ahead = (ahead, self.ahead_until_ns);
            left.extend(scene.share(&self.cells, own, ahead, sink));
        }
        left
    }

    /// What has no kernel, by the place of the stream.
    pub(super) fn into_unknown(self) -> Vec<Vec<WaitingWindow>> {
        let streams = self.taken.iter().map(|taken| taken.stream + 1).max();
        let mut out: Vec<Vec<WaitingWindow>> = Vec::new();
        out.resize_with(streams.unwrap_or(0), Vec::new);
        for taken in self.taken {
            if let Some(of) = out
                .get_mut(taken.stream)
                .filter(|_| !taken.held.counts.is_empty())
            {
                of.push(taken.held);
            }
        }
        out
    }
}

/// The windows with the earliest begin of all that come later in their streams.
fn begins(streams: &[Stream], taken: &[Taken]) -> Vec<SharedWindow> {
    let mut earliest = vec![u64::MAX; streams.len()];
    let mut out: Vec<SharedWindow> = taken
        .iter()
        .rev()
        .map(|taken| {
            let stream = streams.get(taken.stream);
            let from_ns = taken.held.from_ns;
            let begin = earliest.get_mut(taken.stream).map_or(from_ns, |earliest| {
                *earliest = from_ns.min(*earliest);
                *earliest
            });
            SharedWindow {
                stream: taken.stream,
                id: stream.map_or(0, |stream| stream.id),
                relative: stream.is_some_and(|stream| stream.relative),
                from_ns: begin,
                to_ns: taken.held.to_ns,
                each_ns: 0.0,
            }
        })
        .collect();
    out.reverse();
    out
}

/// The placements that hold an address in a window.
fn find(all: &Placements, relative: bool, held: &WaitingWindow, address: u64, out: &mut Vec<At>) {
    out.clear();
    out.extend(all.find(relative, address, held.from_ns, held.to_ns));
    out.sort_unstable();
}

/// Which placements must be looked at together: those of one address, and those of one
/// kernel.
#[derive(Default)]
struct Together {
    /// Another one of the same; itself if it is the first.
    next: FxHashMap<At, At>,
    kernels: FxHashMap<(u32, u64), At>,
}

impl Together {
    fn join(&mut self, at: &[At], kernels: impl Iterator<Item = (u32, u64)>) {
        let Some(&first) = at.first() else { return };
        for (&at, kernel) in at.iter().zip(kernels) {
            self.one(first, at);
            let known = *self.kernels.entry(kernel).or_insert(at);
            self.one(first, known);
        }
    }

    fn one(&mut self, a: At, b: At) {
        let (a, b) = (self.first(a), self.first(b));
        self.next.insert(a.max(b), a.min(b));
        self.next.entry(a.min(b)).or_insert(a.min(b));
    }

    fn first(&mut self, at: At) -> At {
        let mut first = at;
        while let Some(&next) = self.next.get(&first).filter(|&&next| next != first) {
            first = next;
        }
        // Shortens the way for the next one.
        let mut way = at;
        while let Some(next) = self.next.get_mut(&way).filter(|next| **next != first) {
            way = std::mem::replace(next, first);
        }
        first
    }
}
