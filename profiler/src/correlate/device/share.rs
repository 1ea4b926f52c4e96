//! Shares of windows among the launches that can have been running in them.

use rustc_hash::FxHashMap;
use std::{cmp::Reverse, collections::BinaryHeap};

use crate::profile::Method;

/// How many samples a window has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) samples: u64,
}

/// Launches that may have been running between two times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Who gets its samples.
    pub(super) claimant: u32,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) launches: u64,
    /// 0: not known.
    pub(super) work: u64,
    /// For how long exactly they were running between these times, if that is known.
    pub(super) ran_ns: Option<u64>,
}

impl Candidate {
    fn units(&self, method: Method) -> f64 {
        let units = match method {
            Method::Work => self.work,
            _ => self.launches,
        };
        units.max(1) as f64
    }

    /// Nanoseconds that they were running between two times, spread evenly over
    /// those between which they ran.
    fn ran(&self, from_ns: u64, to_ns: u64) -> f64 {
        let length = self.to_ns.saturating_sub(self.from_ns);
        let inside = self
            .to_ns
            .min(to_ns)
            .saturating_sub(self.from_ns.max(from_ns));
        let all = self.ran_ns.unwrap_or(0) as f64;
        match length {
            0 => all,
            _ => all * inside as f64 / length as f64,
        }
    }
}

/// What a window's samples are shared by: each claimant's part of the whole, in the
/// order of claimants. Those with no part can have caused some all the same.
pub(super) type Parts = Vec<(u32, f64)>;

/// The candidates of a moment, as time goes on.
struct Sweep<'a> {
    all: &'a [Candidate],
    method: Method,
    /// What each is still to get.
    due: Vec<f64>,
    /// Those that have not begun yet, the first last.
    later: Vec<usize>,
    /// By when they have ended.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    /// Those that are still to get something, the first to end first.
    hungry: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// By claimant: how many candidates, and their units.
    active: FxHashMap<u32, (u64, f64)>,
    /// Active ones that are timed, and how many are not.
    timed: Vec<usize>,
    untimed: usize,
}

impl<'a> Sweep<'a> {
    fn new(all: &'a [Candidate], loads: &[Load]) -> Self {
        let by_work = all.iter().all(|c| c.work > 0);
        let method = if by_work {
            Method::Work
        } else {
            Method::Launches
        };
        let samples: u64 = loads.iter().map(|load| load.samples).sum();
        let units: f64 = all.iter().map(|c| c.units(method)).sum();
        let rate = samples as f64 / units.max(1.0);
        let mut later: Vec<usize> = (0..all.len()).collect();
        later.sort_by_key(|&i| Reverse(all.get(i).map_or(0, |c| c.from_ns)));
        Self {
            all,
            method,
            due: all.iter().map(|c| rate * c.units(method)).collect(),
            later,
            ends: BinaryHeap::new(),
            hungry: BinaryHeap::new(),
            active: FxHashMap::default(),
            timed: Vec::new(),
            untimed: 0,
        }
    }

    fn get(&self, i: usize) -> Option<&'a Candidate> {
        self.all.get(i)
    }

    /// Goes on to a window.
    fn enter(&mut self, load: &Load) {
        while let Some(candidate) = self.later.last().and_then(|&i| self.get(i)) {
            if candidate.from_ns > load.to_ns {
                break;
            }
            let Some(i) = self.later.pop() else { break };
            let entry = self.active.entry(candidate.claimant).or_default();
            *entry = (entry.0 + 1, entry.1 + candidate.units(self.method));
            self.ends.push(Reverse((candidate.to_ns, i)));
            self.hungry
                .push(Reverse((candidate.to_ns, candidate.from_ns, i)));
            match candidate.ran_ns {
                Some(_) => self.timed.push(i),
                None => self.untimed += 1,
            }
        }
        while let Some(&Reverse((to_ns, i))) = self.ends.peek() {
            if to_ns >= load.from_ns {
                break;
            }
            self.ends.pop();
            self.leave(i);
        }
        let all = self.all;
        let is_here = |&i: &usize| all.get(i).is_some_and(|c| c.to_ns >= load.from_ns);
        self.timed.retain(is_here);
    }

    fn leave(&mut self, i: usize) {
        let Some(candidate) = self.get(i) else { return };
        if candidate.ran_ns.is_none() {
            self.untimed = self.untimed.saturating_sub(1);
        }
        if let Some(entry) = self.active.get_mut(&candidate.claimant) {
            *entry = (entry.0 - 1, entry.1 - candidate.units(self.method));
            if entry.0 == 0 {
                self.active.remove(&candidate.claimant);
            }
        }
    }

    /// Gives samples to those that are to get some, the first to end first; what is
    /// left over is given back.
    fn feed(&mut self, load: &Load, mut give: impl FnMut(u32, f64)) -> f64 {
        let mut left = load.samples as f64;
        while let Some(&Reverse((to_ns, _, i))) = self.hungry.peek() {
            let due = self.due.get(i).copied().unwrap_or(0.0);
            if to_ns < load.from_ns || due <= 0.0 {
                self.hungry.pop();
                continue;
            }
            let part = due.min(left);
            if let Some(due) = self.due.get_mut(i) {
                *due -= part;
            }
            if let Some(candidate) = self.get(i) {
                give(candidate.claimant, part);
            }
            left -= part;
            if left <= 0.0 {
                return 0.0;
            }
            self.hungry.pop();
        }
        left
    }

    /// Shares of a window; empty: nobody can have been running.
    fn shares(&mut self, load: &Load) -> (Method, Parts) {
        let mut parts: Parts = self
            .active
            .keys()
            .map(|&claimant| (claimant, 0.0))
            .collect();
        parts.sort_unstable_by_key(|part| part.0);
        if let [only] = parts.as_mut_slice() {
            only.1 = 1.0;
            self.feed(load, |_, _| {});
            return (Method::Sole, parts);
        }
        let at = |parts: &Parts, claimant: u32| parts.binary_search_by_key(&claimant, |p| p.0);
        if self.untimed == 0 && !parts.is_empty() {
            for candidate in self.timed.iter().filter_map(|&i| self.get(i)) {
                let ran = candidate.ran(load.from_ns, load.to_ns);
                if let Ok(at) = at(&parts, candidate.claimant) {
                    parts[at].1 += ran;
                }
            }
            self.feed(load, |_, _| {});
            normalize(&mut parts);
            return (Method::Durations, parts);
        }
        let mut fed = parts;
        let left = self.feed(load, |claimant, part| {
            if let Ok(at) = at(&fed, claimant) {
                fed[at].1 += part;
            }
        });
        if left > 0.0 {
            let units: f64 = self.active.values().map(|a| a.1.max(0.0)).sum();
            for (claimant, part) in &mut fed {
                let own = self.active.get(claimant).map_or(0.0, |a| a.1.max(0.0));
                *part += left * own / units.max(f64::MIN_POSITIVE);
            }
        }
        normalize(&mut fed);
        (self.method, fed)
    }
}

/// Makes the parts add up to one.
fn normalize(parts: &mut Parts) {
    let sum: f64 = parts.iter().map(|part| part.1).sum();
    let each = 1.0 / parts.len().max(1) as f64;
    for (_, part) in parts {
        *part = if sum > 0.0 { *part / sum } else { each };
    }
}

/// Shares windows, which are in the order of time, among candidates. `take` gets the
/// index of each window, how it was shared and the parts; those of a window in which
/// no candidate can have been running are empty.
pub(super) fn share(
    loads: &[Load],
    candidates: &[Candidate],
    mut take: impl FnMut(usize, Method, Parts),
) {
    let mut sweep = Sweep::new(candidates, loads);
    for (i, load) in loads.iter().enumerate() {
        sweep.enter(load);
        let (method, parts) = sweep.shares(load);
        take(i, method, parts);
    }
}

/// Splits a number into parts of it that add up to it.
pub(super) fn split(whole: u64, parts: &Parts) -> impl Iterator<Item = (u32, u64)> {
    let mut left = whole;
    let mut shares: Vec<(u32, u64)> = parts
        .iter()
        .map(|&(claimant, part)| {
            let share = ((whole as f64 * part) as u64).min(left);
            left -= share;
            (claimant, share)
        })
        .collect();
    let largest = (0..parts.len()).max_by(|&a, &b| parts[a].1.total_cmp(&parts[b].1));
    if let Some(share) = largest.and_then(|at| shares.get_mut(at)) {
        share.1 += left;
    }
    shares.into_iter()
}
