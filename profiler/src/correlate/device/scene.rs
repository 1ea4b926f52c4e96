//! The samples of kernels that lie at one place, and who gets them.

use super::{
    CodeId, Executions, PARTS, PathId, Placement,
    executions::Batch,
    join::{Share, ShareSink},
    share::{Candidate, Load, Parts, share, split},
};
use crate::{
    profile::{Method, StallReason},
    wire::StallCount,
};
use rustc_hash::FxHashMap;

/// Batches by process and kernel.
pub(super) type ByKernel<'a> = FxHashMap<(u32, u64), Vec<&'a Batch>>;

pub(super) fn by_kernel(executions: &Executions) -> ByKernel<'_> {
    let mut out: ByKernel<'_> = FxHashMap::default();
    for batch in executions.all() {
        out.entry((batch.pid, batch.kernel))
            .or_default()
            .push(batch);
    }
    out
}

/// Samples at addresses that the same kernels lie at.
#[derive(Debug, Default)]
pub(super) struct Cell {
    /// Which window, in order, and what.
    counts: Vec<(usize, StallCount)>,
}

impl Cell {
    pub(super) fn add(&mut self, window: usize, count: StallCount) {
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
pub(super) struct Scene<'a> {
    pub(super) stream: u32,
    /// Its addresses count from the instruction base address.
    pub(super) relative: bool,
    pub(super) placements: &'a [&'a Placement],
    /// From when to when, and the time of a sample.
    pub(super) windows: &'a [(u64, u64, f64)],
}

impl Scene<'_> {
    pub(super) fn share(&self, cell: &Cell, batches: &ByKernel<'_>, sink: &mut impl ShareSink) {
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
                load.samples += count.samples();
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
                    ran_ns: batch.timed().map(|timed| timed.0),
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
                        stream: self.stream,
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
        let base = if self.relative { base } else { 0 };
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
            stream: self.stream,
            pid: same(|p| p.pid),
            code,
            offset: offset.map_or(address, |p| self.offset(address, p.start, p.base)),
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
