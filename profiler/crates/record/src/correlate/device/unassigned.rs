//! Samples that have candidates in common, and who gets them.

use super::{
    CodeId, Executions, PARTS, PathId, Placement,
    batch::{BatchRun, LaunchBatch},
    join::{Share, ShareSink},
    placements::{At, Placements},
    share::{Load, Parts, ShareCandidate, ShareSweep, split},
};
use aiprof_model::{
    profile::{Method, StallReason},
    wire::StallCount,
};
use rustc_hash::FxHashMap;

/// Batches by process and kernel, with their places among all.
type ByKernel<'a> = FxHashMap<(u32, u64), Vec<(usize, &'a LaunchBatch)>>;

/// A window of a stream, without its samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedWindow {
    /// Place of its stream among all, and [`DeviceStream::id`](aiprof_model::wire::DeviceStream::id).
    pub(super) stream: usize,
    pub(super) id: u32,
    /// Its addresses count from the instruction base address.
    pub(super) relative: bool,
    /// No window of the stream that comes later begins before that.
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    /// Nanoseconds of busy time for each sample.
    pub(super) each_ns: f64,
}

/// Samples at addresses that the same kernels lie at.
#[derive(Debug, Default)]
pub(super) struct SampleCell {
    /// These kernels.
    pub(super) at: Vec<At>,
    /// Which window, in order, and what.
    pub(super) counts: Vec<(usize, StallCount)>,
}

/// What samples are shared by.
pub(super) struct Scene<'a> {
    placements: &'a Placements,
    batches: ByKernel<'a>,
    /// All windows, in the order in which they end.
    windows: &'a [SharedWindow],
}

/// Samples that are shared in one way.
#[derive(Debug)]
struct ShareGroup {
    /// Index of a window of its stream.
    window: usize,
    cell: usize,
    method: Method,
    claimants: Vec<u32>,
    /// Samples of each claimant.
    weights: Vec<f64>,
    by_address: FxHashMap<u64, AddressSums>,
}

const REASONS: usize = StallReason::ALL.len();

/// What was counted at an address.
#[derive(Clone, Copy, Debug, Default)]
struct AddressSums {
    counts: [u64; REASONS],
    time_ns: [f64; REASONS],
}

impl AddressSums {
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

/// Samples of a window and a cell: of which window, whose, and which of the counts.
struct Slice {
    window: usize,
    cell: usize,
    counts: std::ops::Range<usize>,
    samples: u64,
}

/// Cells whose samples can be of the same launches: they are shared together.
struct UnassignedSamples<'a> {
    scene: &'a Scene<'a>,
    cells: &'a [SampleCell],
    /// Which of the cells.
    own: Vec<usize>,
    /// All placements, and of each cell its own, by their places among these.
    places: Vec<At>,
    of_cell: FxHashMap<usize, Vec<usize>>,
    claimants: Vec<Claimant>,
    candidates: Vec<ShareCandidate>,
    /// Batches as a whole, for windows in which by their timestamps none of their
    /// launches was running.
    wholes: Vec<ShareCandidate>,
    /// The batches that are candidates, and the work of each that is left.
    jobs: Vec<(usize, f64)>,
    method: Method,
}

impl<'a> Scene<'a> {
    pub(super) fn new(
        executions: &'a Executions,
        placements: &'a Placements,
        windows: &'a [SharedWindow],
    ) -> Self {
        let mut batches: ByKernel<'_> = FxHashMap::default();
        for (at, batch) in executions.all().enumerate() {
            let of = batches.entry((batch.of.pid, batch.of.kernel)).or_default();
            of.push((at, batch));
        }
        Self {
            placements,
            batches,
            windows,
        }
    }

    /// Shares the samples of cells that have candidates in common. `ahead`: samples of
    /// later windows that are not shared yet, which end by `until_ns`. Gives back which
    /// part of the work of each batch is left, of what was left before.
    pub(super) fn share(
        &'a self,
        cells: &'a [SampleCell],
        own: Vec<usize>,
        (ahead, until_ns): (u64, u64),
        sink: &mut impl ShareSink,
    ) -> Vec<(usize, f64)> {
        let mut pool = UnassignedSamples::new(self, cells, own);
        let slices = pool.slices();
        pool.find_candidates(&slices, until_ns);
        let samples: u64 = slices.iter().map(|slice| slice.samples).sum();
        pool.share(&slices, samples.saturating_add(ahead), sink)
    }
}

impl<'a> UnassignedSamples<'a> {
    fn new(scene: &'a Scene<'a>, cells: &'a [SampleCell], own: Vec<usize>) -> Self {
        let of = |&cell: &usize| cells.get(cell).map_or(&[][..], |cell| &cell.at);
        let mut places: Vec<At> = own.iter().flat_map(of).copied().collect();
        places.sort_unstable();
        places.dedup();
        let place = |at: &At| places.binary_search(at).ok();
        let of_cell = own.iter();
        let of_cell = of_cell.map(|cell| (*cell, of(cell).iter().filter_map(place).collect()));
        Self {
            scene,
            cells,
            of_cell: of_cell.collect(),
            own,
            places,
            claimants: Vec::new(),
            candidates: Vec::new(),
            wholes: Vec::new(),
            jobs: Vec::new(),
            method: Method::Work,
        }
    }

    /// The samples by window and cell, in the order in which they are shared: of a
    /// window, those first that fewer kernels can have caused.
    fn slices(&self) -> Vec<Slice> {
        let mut out: Vec<Slice> = Vec::new();
        for &cell in &self.own {
            let counts = self.cells.get(cell).map_or(&[][..], |cell| &cell.counts);
            for (i, (window, count)) in counts.iter().enumerate() {
                match out.last_mut() {
                    Some(last) if last.window == *window && last.cell == cell => {
                        last.counts.end = i + 1;
                        last.samples += count.samples();
                    }
                    _ => out.push(Slice {
                        window: *window,
                        cell,
                        counts: i..i + 1,
                        samples: count.samples(),
                    }),
                }
            }
        }
        let kernels = |cell: usize| self.of_cell.get(&cell).map_or(0, Vec::len);
        out.sort_by_key(|slice| (slice.window, kernels(slice.cell), slice.cell));
        out
    }

    fn window(&self, slice: &Slice) -> Option<&'a SharedWindow> {
        self.scene.windows.get(slice.window)
    }

    /// The launches that can have been running in any of the windows.
    fn find_candidates(&mut self, slices: &[Slice], until_ns: u64) {
        let windows = || slices.iter().filter_map(|slice| self.window(slice));
        let from = windows().map(|w| w.from_ns).min().unwrap_or(0);
        let to = windows().map(|w| w.to_ns).max().unwrap_or(0).max(until_ns);
        let mut known: FxHashMap<Claimant, u32> = FxHashMap::default();
        let mut jobs: FxHashMap<usize, usize> = FxHashMap::default();
        let mut batches: Vec<&LaunchBatch> = Vec::new();
        let all = self.scene.placements;
        let places = self.places.iter().enumerate();
        for (place, placement) in places.filter_map(|(i, &at)| Some((i, all.get(at)?))) {
            let of = self.scene.batches.get(&(placement.pid, placement.kernel));
            for (at, batch) in of.into_iter().flatten() {
                let runs = batch.runs();
                let mut runs = runs.filter(|run| run.to_ns >= from && run.from_ns <= to);
                let Some(first) = runs.next() else { continue };
                let claimant = Claimant {
                    path: batch.of.path,
                    pid: placement.pid,
                    code: placement.code,
                    start: placement.start,
                    base: placement.base,
                };
                let claimant = *known.entry(claimant).or_insert_with(|| {
                    self.claimants.push(claimant);
                    u32::try_from(self.claimants.len() - 1).unwrap_or(u32::MAX)
                });
                let job = *jobs.entry(*at).or_insert_with(|| {
                    self.jobs.push((*at, batch.left));
                    batches.push(batch);
                    self.jobs.len() - 1
                });
                let candidate = |run: BatchRun| ShareCandidate {
                    claimant,
                    place,
                    job,
                    from_ns: run.from_ns,
                    to_ns: run.to_ns,
                    units: 1.0,
                    ran_ns: run.ran_ns,
                };
                let runs = std::iter::once(first).chain(runs);
                self.candidates.extend(runs.map(candidate));
                if batch.is_spanned() {
                    self.wholes.push(candidate(batch.whole()));
                }
            }
        }
        self.weigh(&batches);
    }

    /// Finds the work of jobs and candidates; `batches`: those of the jobs.
    fn weigh(&mut self, batches: &[&LaunchBatch]) {
        if batches.iter().any(|batch| batch.work == 0) {
            self.method = Method::Launches;
        }
        let by_work = self.method == Method::Work;
        let units =
            |batch: &LaunchBatch| if by_work { batch.work } else { batch.launches }.max(1) as f64;
        for candidate in &mut self.candidates {
            if let Some(batch) = batches.get(candidate.job) {
                let parts = if batch.is_spanned() {
                    batch.launches
                } else {
                    1
                };
                candidate.units = units(batch) / parts as f64;
            }
        }
        for ((_, left), batch) in self.jobs.iter_mut().zip(batches) {
            *left *= units(batch);
        }
    }

    /// How many samples each batch is to get of all these.
    fn due(&self, samples: u64) -> Vec<f64> {
        let all: f64 = self.jobs.iter().map(|job| job.1).sum();
        let each = if all > 0.0 { samples as f64 / all } else { 0.0 };
        self.jobs.iter().map(|job| job.1 * each).collect()
    }

    fn share(
        &self,
        slices: &[Slice],
        samples: u64,
        sink: &mut impl ShareSink,
    ) -> Vec<(usize, f64)> {
        let due = self.due(samples);
        let mut sweep = ShareSweep::new(
            &self.candidates,
            self.places.len(),
            due.clone(),
            self.method,
        );
        let nothing = vec![0.0; due.len()];
        let mut wholes = ShareSweep::new(&self.wholes, self.places.len(), nothing, self.method);
        let mut index: FxHashMap<(usize, usize, Method, Vec<u32>), usize> = FxHashMap::default();
        let mut groups: Vec<ShareGroup> = Vec::new();
        for slice in slices {
            let (Some(window), Some(places)) = (self.window(slice), self.of_cell.get(&slice.cell))
            else {
                continue;
            };
            let load = Load {
                stream: window.stream,
                from_ns: window.from_ns,
                to_ns: window.to_ns,
                samples: slice.samples,
                places,
            };
            let (mut method, mut parts) = sweep.shares(&load);
            if parts.is_empty() {
                (method, parts) = wholes.shares(&load);
            }
            let ids: Vec<u32> = parts.iter().map(|part| part.0).collect();
            let key = (window.stream, slice.cell, method, ids);
            let at = match index.get(&key) {
                Some(&at) => at,
                None => {
                    groups.push(ShareGroup::new(slice, method, key.3.clone()));
                    index.insert(key, groups.len() - 1);
                    groups.len() - 1
                }
            };
            let counts = self.cells.get(slice.cell);
            let counts = counts.and_then(|cell| cell.counts.get(slice.counts.clone()));
            if let Some(group) = groups.get_mut(at) {
                group.add(
                    &parts,
                    slice.samples,
                    counts.unwrap_or_default(),
                    window.each_ns,
                );
            }
        }
        for group in &groups {
            self.give(group, sink);
        }
        let left = sweep.left().into_iter().zip(due).zip(&self.jobs);
        left.filter(|((_, due), _)| *due > 0.0)
            .map(|((left, due), (at, _))| (*at, left / due))
            .collect()
    }

    fn give(&self, group: &ShareGroup, sink: &mut impl ShareSink) {
        let Some(window) = self.scene.windows.get(group.window) else {
            return;
        };
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
                self.unattributed(group, window, address)
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
                    let Some(claimant) = self.claimants.get(id as usize) else {
                        continue;
                    };
                    sink.share(Share {
                        stream: window.id,
                        path: Some(claimant.path),
                        pid: Some(claimant.pid),
                        code: Some(claimant.code),
                        offset: window.offset(address, claimant.start, claimant.base),
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

    /// Samples of kernels of which no launch can have been running.
    fn unattributed(
        &self,
        group: &ShareGroup,
        window: &SharedWindow,
        address: u64,
    ) -> Unattributed {
        let at = self.cells.get(group.cell).map_or(&[][..], |cell| &cell.at);
        let all = self.scene.placements;
        let placements: Vec<&Placement> = at.iter().filter_map(|&at| all.get(at)).collect();
        let first = placements.first();
        let same = |of: fn(&Placement) -> u32| {
            let value = first.map(|p| of(p))?;
            placements.iter().all(|p| of(p) == value).then_some(value)
        };
        let code = same(|p| p.code);
        let offset = first.filter(|_| code.is_some());
        Unattributed {
            stream: window.id,
            pid: same(|p| p.pid),
            code,
            offset: offset.map_or(address, |p| window.offset(address, p.start, p.base)),
        }
    }
}

impl SharedWindow {
    fn offset(&self, address: u64, start: u64, base: u64) -> u64 {
        let base = if self.relative { base } else { 0 };
        address.wrapping_sub(start.wrapping_sub(base))
    }
}

impl ShareGroup {
    fn new(slice: &Slice, method: Method, claimants: Vec<u32>) -> Self {
        Self {
            window: slice.window,
            cell: slice.cell,
            method,
            weights: vec![0.0; claimants.len()],
            claimants,
            by_address: FxHashMap::default(),
        }
    }

    fn add(&mut self, parts: &Parts, samples: u64, counts: &[(usize, StallCount)], each_ns: f64) {
        for (weight, (_, part)) in self.weights.iter_mut().zip(parts) {
            *weight += part * samples as f64;
        }
        for (_, count) in counts {
            let sums = self.by_address.entry(count.address).or_default();
            sums.add(count, each_ns);
        }
    }
}

/// Samples without a launch.
pub(super) struct Unattributed {
    pub(super) stream: u32,
    pub(super) pid: Option<u32>,
    pub(super) code: Option<CodeId>,
    pub(super) offset: u64,
}

impl Unattributed {
    pub(super) fn give(
        &self,
        counts: &[u64; REASONS],
        time_ns: &[f64; REASONS],
        sink: &mut impl ShareSink,
    ) {
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
