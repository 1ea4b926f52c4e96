//! From a kernel's handle to its address on the device, learnt from what was
//! sampled there.
//!
//! Every word (or sum of a word and an offset) that is a possible address for all kernels is a
//! hypothesis. A hypothesis is believed if it explains the sampled addresses. They must lie in the
//! code of kernels that were launched, at instructions where the code is known, and different
//! kernels must not overlap. It must explain nearly everything, and no hypothesis that gives other
//! addresses may explain as much.

use super::snapshot::{AddressPath, LOWEST, MAX_OFFSET, ObjectWord, Snapshot};
use rustc_hash::{FxHashMap, FxHashSet};
use std::{cmp::Reverse, sync::Arc};

/// Most hypotheses.
const MAX_HYPOTHESES: usize = 1 << 16;
/// Most sampled addresses looked at: those that were sampled most.
const MAX_ADDRESSES: usize = 512;
/// Share of the samples that must be explained, percent.
const EXPLAINED: u64 = 90;
/// Distinct addresses that must be explained.
const MIN_ADDRESSES: usize = 2;
/// Bytes of code that a kernel of unknown size may have.
const UNKNOWN_SIZE: u64 = 256 << 10;
/// How probable it may be that chance explains as much.
const CHANCE: f64 = 1e-3;
/// What relative addresses do not have.
const LOW: u64 = u32::MAX as u64;

/// A kernel's code.
#[derive(Debug, Default)]
pub(super) struct KernelCode {
    /// Bytes.
    pub(super) size: u64,
    /// Bytes before the first instruction after those that load arguments.
    pub(super) payload_entry: u64,
    /// Where instructions begin, one bit for every 8 bytes; empty: not known.
    pub(super) starts: Vec<u64>,
}

impl KernelCode {
    /// Whether an instruction begins there; true if that is not known.
    fn begins_at(&self, offset: u64) -> bool {
        if self.starts.is_empty() {
            return true;
        }
        let unit = usize::try_from(offset / 8).unwrap_or(usize::MAX);
        let bits = self.starts.get(unit / 64).copied().unwrap_or(0);
        offset.is_multiple_of(8) && bits >> (unit % 64) & 1 == 1
    }
}

/// A kernel, and what its handle leads to.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    pub(super) pid: u32,
    pub(super) snapshot: &'a Snapshot,
    pub(super) name: Option<&'a str>,
    pub(super) code: Option<Arc<KernelCode>>,
    pub(super) launched: bool,
    /// From when to when it was there.
    pub(super) life: (u64, u64),
    /// Where it is, if the runtime reported it.
    pub(super) exact: Option<u64>,
}

/// An address that was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Sampled {
    pub(super) relative: bool,
    pub(super) address: u64,
}

/// What was learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Learned {
    pub(super) path: AddressPath,
    /// Several kernels prove it.
    pub(super) is_proven: bool,
}

/// How well a hypothesis explains the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Score {
    explained: u64,
    /// Kernels that lie at different addresses.
    distinct: usize,
    /// Kernels whose size stands beside their address.
    confirmed: usize,
}

/// Hypotheses that agree on the addresses of all kernels.
struct HypothesisGroup {
    path: AddressPath,
    starts: Vec<u64>,
    score: Score,
}

/// Finds the path that explains what was `sampled`, by address and count.
pub(super) fn learn(subjects: &[Subject<'_>], sampled: &[(Sampled, u64)]) -> Option<Learned> {
    let mut most: Vec<(Sampled, u64)> = sampled.to_vec();
    most.sort_by_key(|(sampled, count)| (Reverse(*count), *sampled));
    most.truncate(MAX_ADDRESSES);
    let is_told = subjects.iter().any(|s| s.exact.is_some());
    let is_seen = !most.is_empty() && subjects.iter().any(|s| s.launched);
    if !is_told && !is_seen {
        return None;
    }
    let (paths, bases) = hypotheses(subjects);
    let only_relative = !is_told && most.iter().all(|(s, _)| s.relative);
    let mut groups: FxHashMap<Vec<u64>, HypothesisGroup> = FxHashMap::default();
    for path in paths {
        let starts: Option<Vec<u64>> = subjects.iter().map(|s| path.of(s.snapshot)).collect();
        let Some(starts) = starts else { continue };
        let told = subjects.iter().zip(&starts);
        let agrees = told
            .clone()
            .all(|(s, start)| s.exact.is_none_or(|exact| exact == *start));
        if !agrees || !are_apart(subjects, &starts) {
            continue;
        }
        let Some(mut score) = explain(subjects, &starts, &most, bases, is_told) else {
            continue;
        };
        let confirms = |(s, start): &(&Subject<'_>, &u64)| {
            let size = s.code.as_ref().map_or(0, |code| code.size);
            let at = path.offset.unwrap_or(path.base);
            **start != 0 && size > 0 && s.snapshot.beside(at, size)
        };
        score.confirmed = told.filter(confirms).count();
        let mask = if only_relative { LOW } else { u64::MAX };
        let key = starts.iter().map(|start| start & mask).collect();
        let group = HypothesisGroup {
            path,
            starts,
            score,
        };
        match groups.get_mut(&key) {
            Some(known) if rank(subjects, known) <= rank(subjects, &group) => {
                known.score.confirmed = known.score.confirmed.max(group.score.confirmed);
            }
            Some(known) => *known = group,
            None => drop(groups.insert(key, group)),
        }
    }
    let best = decide(subjects, groups.into_values().collect())?;
    let is_proven = best.score.distinct > 1;
    // A single pair proves nothing where the samples do not.
    (is_proven || is_seen).then_some(Learned {
        path: best.path,
        is_proven,
    })
}

/// The group that no other equals.
fn decide(subjects: &[Subject<'_>], mut groups: Vec<HypothesisGroup>) -> Option<HypothesisGroup> {
    let quality = |group: &HypothesisGroup| {
        let Score {
            explained,
            distinct,
            confirmed,
        } = group.score;
        (explained, distinct, confirmed)
    };
    // What is another one's entry behind the loading of arguments is no beginning.
    let entries: Vec<usize> = (0..groups.len())
        .filter(|&at| {
            let group = groups.get(at);
            group.is_some_and(|g| groups.iter().any(|other| is_entry(subjects, other, g)))
        })
        .collect();
    for at in entries.into_iter().rev() {
        groups.swap_remove(at);
    }
    let best = groups.iter().map(quality).max()?;
    let mut left = groups.into_iter().filter(|group| quality(group) == best);
    left.next().filter(|_| left.next().is_none())
}

/// Whether `entry` gives the address behind the code that loads arguments, where `whole` gives the
/// kernel's begin. This must hold for every kernel whose code is known.
fn is_entry(subjects: &[Subject<'_>], whole: &HypothesisGroup, entry: &HypothesisGroup) -> bool {
    if whole.score.explained < entry.score.explained {
        return false;
    }
    let mut any = false;
    let starts = whole.starts.iter().zip(&entry.starts);
    let all = subjects
        .iter()
        .zip(starts)
        .all(|(subject, (start, other))| {
            let Some(code) = &subject.code else {
                return true;
            };
            any |= code.payload_entry > 0;
            start.wrapping_add(code.payload_entry) == *other
        });
    any && all
}

/// Ranks paths that give the same addresses: the lowest is the most likely to go on doing so.
fn rank(subjects: &[Subject<'_>], group: &HypothesisGroup) -> impl Ord + use<> {
    let path = &group.path;
    let is_whole = group.starts.iter().all(|&start| start > LOW);
    let sized = |slot: ObjectWord| subjects.iter().all(|s| s.snapshot.is_sized(slot.way));
    let unsized_ends = [Some(path.base), path.offset].into_iter().flatten();
    // What is read beyond an object's end is a neighbour's.
    let unsized_ends = unsized_ends.filter(|&slot| !sized(slot)).count();
    let hops = path.base.way.len();
    (!is_whole, unsized_ends, path.offset.is_some(), hops, *path)
}

/// All paths that give every kernel a possible address, and how many different
/// words there are among their bases.
fn hypotheses(subjects: &[Subject<'_>]) -> (Vec<AddressPath>, usize) {
    let Some(first) = subjects.first() else {
        return (Vec::new(), 0);
    };
    let fits = |path: &AddressPath| subjects.iter().all(|s| path.of(s.snapshot).is_some());
    let values = first
        .snapshot
        .values()
        .filter(|(_, value)| *value >= LOWEST);
    let bases: Vec<(AddressPath, u64)> = values
        .map(|(base, value)| (AddressPath { base, offset: None }, value))
        .filter(|(path, _)| fits(path))
        .collect();
    let different: FxHashSet<u64> = bases.iter().map(|(_, value)| *value).collect();
    let mut paths: Vec<AddressPath> = bases.iter().map(|(path, _)| *path).collect();
    let mut offsets: FxHashMap<_, Vec<ObjectWord>> = FxHashMap::default();
    for (path, _) in &bases {
        for way in path.base.way.prefixes() {
            let slots = offsets
                .entry(way)
                .or_insert_with(|| offsets_of(subjects, first, way));
            let of_slot = |&offset: &ObjectWord| AddressPath {
                base: path.base,
                offset: Some(offset),
            };
            let sums = slots.iter().filter(|slot| **slot != path.base).map(of_slot);
            let room = MAX_HYPOTHESES.saturating_sub(paths.len());
            paths.extend(sums.take(room));
        }
    }
    (paths, different.len())
}

/// Words of an object that may be offsets in a shared allocation: of different
/// kernels at least two different ones.
fn offsets_of(
    subjects: &[Subject<'_>],
    first: &Subject<'_>,
    way: super::snapshot::PointerWay,
) -> Vec<ObjectWord> {
    let slots = first.snapshot.slots_of(way).filter(|&slot| {
        let of = |s: &Subject<'_>| s.snapshot.get(slot).filter(|&offset| offset < MAX_OFFSET);
        let first = of(first);
        let all = subjects.iter().all(|s| of(s).is_some());
        let same = subjects.iter().all(|s| of(s) == first);
        // A single kernel cannot be compared with another.
        all && (!same || subjects.len() == 1 && first != Some(0))
    });
    slots.collect()
}

/// Whether different kernels that were there at a time lie apart.
fn are_apart(subjects: &[Subject<'_>], starts: &[u64]) -> bool {
    let mut order: Vec<(u32, u64, &Subject<'_>)> = subjects
        .iter()
        .zip(starts)
        .map(|(subject, start)| (subject.pid, *start, subject))
        .collect();
    order.sort_by_key(|(pid, start, _)| (*pid, *start));
    order.windows(2).all(|pair| {
        let [(pid, start, one), (other_pid, next, other)] = pair else {
            return true;
        };
        let together = one.life.0 <= other.life.1 && other.life.0 <= one.life.1;
        if pid != other_pid || !together {
            return true;
        }
        if start == next {
            return one.name == other.name;
        }
        let size = one.code.as_ref().map_or(0, |code| code.size);
        start.saturating_add(size) <= *next
    })
}

/// A kernel's place under a hypothesis.
struct CodeRange<'a> {
    start: u64,
    end: u64,
    code: Option<&'a KernelCode>,
}

/// The places of all launched kernels, by address; relative ones below 4 GiB.
fn ranges<'a>(subjects: &'a [Subject<'a>], starts: &[u64], relative: bool) -> Vec<CodeRange<'a>> {
    let launched = subjects.iter().zip(starts).filter(|(s, _)| s.launched);
    let mut out: Vec<CodeRange<'_>> = launched
        .map(|(subject, start)| {
            let start = if relative { start & LOW } else { *start };
            let size = subject.code.as_ref().map_or(0, |code| code.size);
            CodeRange {
                start,
                end: start.saturating_add(size),
                code: subject.code.as_deref(),
            }
        })
        .collect();
    out.sort_by_key(|range| (range.start, range.end));
    out.dedup_by_key(|range| (range.start, range.end));
    // Code of unknown size ends where the next begins.
    let mut next = u64::MAX;
    for range in out.iter_mut().rev() {
        if range.end == range.start {
            range.end = range
                .start
                .saturating_add(UNKNOWN_SIZE)
                .min(next.max(range.start));
        }
        if next != range.start {
            next = range.start;
        }
    }
    out
}

/// How well kernels at these addresses explain the samples; `None`: not well enough.
fn explain(
    subjects: &[Subject<'_>],
    starts: &[u64],
    sampled: &[(Sampled, u64)],
    hypotheses: usize,
    is_told: bool,
) -> Option<Score> {
    let by_kind = [false, true].map(|relative| ranges(subjects, starts, relative));
    let all: u64 = sampled.iter().map(|(_, count)| count).sum();
    let (mut explained, mut missed, mut addresses) = (0_u64, 0_u64, 0_usize);
    let mut hit: FxHashSet<u64> = FxHashSet::default();
    for (sample, count) in sampled {
        let [absolute, relative] = &by_kind;
        let ranges = if sample.relative { relative } else { absolute };
        match holder(ranges, sample.address) {
            Some(start) => {
                hit.insert(start);
                addresses += 1;
                explained = explained.saturating_add(*count);
            }
            None => missed = missed.saturating_add(*count),
        }
        if !is_told && missed.saturating_mul(100) > all.saturating_mul(100 - EXPLAINED) {
            return None;
        }
    }
    let distinct: FxHashSet<u64> = starts.iter().copied().collect();
    let score = Score {
        explained,
        distinct: distinct.len(),
        confirmed: 0,
    };
    if is_told {
        return Some(score);
    }
    let [_, relative] = &by_kind;
    let covered: u64 = relative.iter().map(|r| r.end.saturating_sub(r.start)).sum();
    let each = (covered as f64 / LOW as f64).min(1.0);
    let hits = i32::try_from(hit.len().min(8)).unwrap_or(8);
    let chance = each.powi(hits) * hypotheses.max(1) as f64;
    (addresses >= MIN_ADDRESSES && chance < CHANCE).then_some(score)
}

/// Where the kernel begins that has an instruction at an address.
fn holder(ranges: &[CodeRange<'_>], address: u64) -> Option<u64> {
    let end = ranges.partition_point(|range| range.start <= address);
    // Kernels of several processes, or of several times, may overlap.
    let near = ranges.get(end.saturating_sub(8)..end)?;
    let holds = |range: &&CodeRange<'_>| {
        let at = address.saturating_sub(range.start);
        address < range.end && range.code.is_none_or(|code| code.begins_at(at))
    };
    near.iter().rev().find(holds).map(|range| range.start)
}
