//! Shares of windows among the launches that can have been running in them.

use rustc_hash::FxHashMap;
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
};

use aiprof_model::profile::Method;

/// Samples of a window at addresses where the same kernels lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load<'a> {
    /// Which stream. The windows of a stream are in order: none begins before the one
    /// before it.
    pub(super) stream: usize,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) samples: u64,
    /// The places that they can be of.
    pub(super) places: &'a [usize],
}

/// Launches that may have been running between two times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ShareCandidate {
    /// Who gets its samples.
    pub(super) claimant: u32,
    /// Where its kernel lies; it is a candidate of its own at each place.
    pub(super) place: usize,
    /// Whose work it is, which is the same at all places.
    pub(super) job: usize,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    /// Work, or the number of launches.
    pub(super) units: f64,
    /// For how long exactly they were running between these times, if that is known.
    pub(super) ran_ns: Option<u64>,
}

impl ShareCandidate {
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

/// The candidates of a place that can have been running in a stream's window.
#[derive(Debug, Default)]
struct RunningLaunches {
    /// How many have begun.
    begun: usize,
    /// By when those have ended whose end is known.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    /// By claimant: how many candidates, and their units.
    active: FxHashMap<u32, (u64, f64)>,
    /// Those that are timed, and how many are not.
    timed: Vec<usize>,
    untimed: usize,
}

impl RunningLaunches {
    /// Goes on to a window. `order`: the place's candidates as they begin.
    fn enter(&mut self, load: &Load<'_>, order: &[usize], all: &[ShareCandidate]) {
        while let Some((i, candidate)) = nth(order, all, self.begun) {
            if candidate.from_ns > load.to_ns {
                break;
            }
            self.begun += 1;
            let entry = self.active.entry(candidate.claimant).or_default();
            *entry = (entry.0 + 1, entry.1 + candidate.units);
            if candidate.to_ns != u64::MAX {
                self.ends.push(Reverse((candidate.to_ns, i)));
            }
            match candidate.ran_ns {
                Some(_) => self.timed.push(i),
                None => self.untimed += 1,
            }
        }
        let mut left = false;
        while let Some(&Reverse((to_ns, i))) = self.ends.peek() {
            if to_ns >= load.from_ns {
                break;
            }
            self.ends.pop();
            if let Some(candidate) = all.get(i) {
                self.leave(candidate);
                left = true;
            }
        }
        if left {
            let is_here = |&i: &usize| all.get(i).is_some_and(|c| c.to_ns >= load.from_ns);
            self.timed.retain(is_here);
        }
    }

    fn leave(&mut self, candidate: &ShareCandidate) {
        if candidate.ran_ns.is_none() {
            self.untimed = self.untimed.saturating_sub(1);
        }
        if let Some(entry) = self.active.get_mut(&candidate.claimant) {
            *entry = (entry.0 - 1, entry.1 - candidate.units);
            if entry.0 == 0 {
                self.active.remove(&candidate.claimant);
            }
        }
    }
}

fn nth<'a>(
    order: &[usize],
    all: &'a [ShareCandidate],
    n: usize,
) -> Option<(usize, &'a ShareCandidate)> {
    let &i = order.get(n)?;
    Some((i, all.get(i)?))
}

/// The candidates of a place that are still to get samples.
#[derive(Debug, Default)]
struct Hungry {
    begun: usize,
    /// The first to end first, then the first to begin.
    waiting: BTreeSet<(u64, u64, usize)>,
}

/// Gives the samples of windows to candidates, as time goes on.
pub(super) struct ShareSweep<'a> {
    all: &'a [ShareCandidate],
    method: Method,
    /// The candidates of each place as they begin.
    order: Vec<Vec<usize>>,
    /// Samples that each job is still to get.
    due: Vec<f64>,
    hungry: Vec<Hungry>,
    /// By stream and place.
    running: FxHashMap<(usize, usize), RunningLaunches>,
}

impl<'a> ShareSweep<'a> {
    /// `due`: how many samples each job is to get.
    pub(super) fn new(
        all: &'a [ShareCandidate],
        places: usize,
        due: Vec<f64>,
        method: Method,
    ) -> Self {
        let mut order: Vec<Vec<usize>> = vec![Vec::new(); places];
        for (i, candidate) in all.iter().enumerate() {
            if let Some(of) = order.get_mut(candidate.place) {
                of.push(i);
            }
        }
        for of in &mut order {
            of.sort_by_key(|&i| all.get(i).map_or(0, |c| c.from_ns));
        }
        Self {
            all,
            method,
            order,
            due,
            hungry: std::iter::repeat_with(Hungry::default)
                .take(places)
                .collect(),
            running: FxHashMap::default(),
        }
    }

    /// What each job did not get.
    pub(super) fn left(self) -> Vec<f64> {
        self.due
    }

    fn enter(&mut self, load: &Load<'_>) {
        for &place in load.places {
            let order = self.order.get(place).map_or(&[][..], Vec::as_slice);
            let running = self.running.entry((load.stream, place)).or_default();
            running.enter(load, order, self.all);
            let Some(hungry) = self.hungry.get_mut(place) else {
                continue;
            };
            while let Some((i, candidate)) = nth(order, self.all, hungry.begun) {
                if candidate.from_ns > load.to_ns {
                    break;
                }
                hungry.begun += 1;
                let key = (candidate.to_ns, candidate.from_ns, i);
                hungry.waiting.insert(key);
            }
        }
    }

    /// The candidate that is served next, of those that can have been running.
    fn next(&self, load: &Load<'_>) -> Option<(u64, u64, usize)> {
        let of = |&place: &usize| {
            let waiting = &self.hungry.get(place)?.waiting;
            waiting.range((load.from_ns, 0, 0)..).next().copied()
        };
        load.places.iter().filter_map(of).min()
    }

    /// Gives samples to those that are to get some; what is left over is given back.
    fn feed(&mut self, load: &Load<'_>, mut give: impl FnMut(u32, f64)) -> f64 {
        let mut left = load.samples as f64;
        while left > 0.0
            && let Some(key) = self.next(load)
            && let Some(candidate) = self.all.get(key.2)
        {
            let due = self.due.get(candidate.job).copied().unwrap_or(0.0);
            let part = due.min(left);
            if let Some(due) = self.due.get_mut(candidate.job) {
                *due -= part;
            }
            give(candidate.claimant, part);
            left -= part;
            if part >= due
                && let Some(hungry) = self.hungry.get_mut(candidate.place)
            {
                hungry.waiting.remove(&key);
            }
        }
        left
    }

    /// Who can have been running, with their units; and whether all are timed.
    fn present(&self, load: &Load<'_>) -> (Vec<(u32, f64)>, bool) {
        let mut present: Vec<(u32, f64)> = Vec::new();
        let mut all_timed = true;
        for place in load.places {
            if let Some(running) = self.running.get(&(load.stream, *place)) {
                present.extend(running.active.iter().map(|(&id, a)| (id, a.1.max(0.0))));
                all_timed &= running.untimed == 0;
            }
        }
        present.sort_unstable_by_key(|one| one.0);
        present.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 += next.1;
            }
            same
        });
        (present, all_timed)
    }

    /// Shares of a window; empty: no launch can have been running. Windows go by the order in
    /// which they end.
    pub(super) fn shares(&mut self, load: &Load<'_>) -> (Method, Parts) {
        self.enter(load);
        let (present, all_timed) = self.present(load);
        let mut parts: Parts = present.iter().map(|&(id, _)| (id, 0.0)).collect();
        let add = |parts: &mut Parts, claimant: u32, part: f64| {
            if let Ok(at) = parts.binary_search_by_key(&claimant, |p| p.0) {
                parts[at].1 += part;
            }
        };
        if let [only] = parts.as_mut_slice() {
            only.1 = 1.0;
            self.feed(load, |_, _| {});
            return (Method::Sole, parts);
        }
        if all_timed && !parts.is_empty() {
            let places = load.places.iter();
            let running = places.filter_map(|&p| self.running.get(&(load.stream, p)));
            for &i in running.flat_map(|running| &running.timed) {
                if let Some(candidate) = self.all.get(i) {
                    let ran = candidate.ran(load.from_ns, load.to_ns);
                    add(&mut parts, candidate.claimant, ran);
                }
            }
            self.feed(load, |_, _| {});
            normalize(&mut parts);
            return (Method::Durations, parts);
        }
        let left = self.feed(load, |claimant, part| add(&mut parts, claimant, part));
        let units: f64 = present.iter().map(|one| one.1).sum();
        for ((_, part), (_, own)) in parts.iter_mut().zip(&present) {
            *part += left * own / units.max(f64::MIN_POSITIVE);
        }
        normalize(&mut parts);
        (self.method, parts)
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
