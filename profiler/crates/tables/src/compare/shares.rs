//! How shares of samples changed between two recordings.
//!
//! Two estimates of the uncertainty, and the larger counts:
//! - *By samples*: each sample is taken as one independent draw, so a share is a proportion. The
//!   difference has the interval of Agresti and Caffo (The American Statistician 54, 2000), with
//!   Yates's correction for its steps.
//! - *By slices*: samples that follow each other are alike, so there is less in them than their
//!   number suggests. Both recordings are cut into equal slices of time, and the n-th of one is
//!   paired with the n-th of the other. So phases that both have do not count as noise; what else
//!   differs from slice to slice does.
//!
//! Neither knows how much two runs of a program differ that are each alike within.

use super::chance::MANY;
use super::{Difference, MISSED, Verdict, hold, student_beyond, student_quantile};
use rustc_hash::{FxHashMap, FxHashSet};

/// Slices of time that a recording is cut into.
pub const SLICES: usize = 20;

/// Samples that each slice should have, as a mean; with fewer there are no slices.
const PER_SLICE: f64 = 5.0;

/// The functions of a recording.
#[derive(Clone, Debug, Default)]
pub struct SampledFunctions {
    /// Value of all samples together.
    pub whole: f64,
    /// Number of samples; `None`: not known.
    pub samples: Option<u64>,
    /// Value of all samples of each slice; empty where times are not known.
    pub slices: Vec<f64>,
    functions: FxHashMap<String, OfFunction>,
}

/// What a function has of it.
#[derive(Clone, Debug, Default)]
struct OfFunction {
    own: Measured,
    total: Measured,
}

/// A value, and how it is spread over slices; none at the end are left out.
#[derive(Clone, Debug, Default)]
struct Measured {
    sum: f64,
    slices: Vec<f64>,
}

impl Measured {
    fn add(&mut self, slice: usize, value: f64) {
        if self.slices.len() <= slice {
            self.slices.resize(slice + 1, 0.0);
        }
        if let Some(sum) = self.slices.get_mut(slice) {
            *sum += value;
        }
    }
}

impl SampledFunctions {
    /// Without functions yet; the fields describe the numbers.
    pub fn new(whole: f64, samples: Option<u64>, slices: Vec<f64>) -> Self {
        Self {
            whole,
            samples,
            slices,
            functions: FxHashMap::default(),
        }
    }

    /// Adds values of a function to the whole recording's.
    pub fn add(&mut self, name: &str, own: f64, total: f64) {
        let of = self.of(name);
        of.own.sum += own;
        of.total.sum += total;
    }

    /// Adds values of a function to those of a slice, of which there are [`SLICES`].
    pub fn add_to_slice(&mut self, slice: usize, name: &str, own: f64, total: f64) {
        if slice < SLICES {
            let of = self.of(name);
            of.own.add(slice, own);
            of.total.add(slice, total);
        }
    }

    fn of(&mut self, name: &str) -> &mut OfFunction {
        if !self.functions.contains_key(name) {
            self.functions
                .insert(name.to_owned(), OfFunction::default());
        }
        self.functions.entry(name.to_owned()).or_default()
    }

    fn has_slices(&self) -> bool {
        let samples = self.samples.unwrap_or(0) as f64;
        self.slices.len() == SLICES && samples >= PER_SLICE * SLICES as f64
    }
}

/// How a function's shares of a recording changed; shares are from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionChange {
    /// The function.
    pub name: String,
    /// Its share without what it calls.
    pub own: Difference,
    /// Its share with what it calls.
    pub total: Difference,
    /// The verdict on `own`.
    pub own_verdict: Verdict,
    /// The verdict on `total`.
    pub total_verdict: Verdict,
}

impl FunctionChange {
    /// The verdict on both: changed if one of them is.
    pub fn verdict(&self) -> Verdict {
        self.own_verdict.min(self.total_verdict)
    }
}

/// How all functions changed.
#[derive(Clone, Debug, Default)]
pub struct SharesCompared {
    /// Those that changed first, the largest change of their own share first.
    pub functions: Vec<FunctionChange>,
    /// How many of them changed.
    pub changed: usize,
    /// Shares that were compared, which Holm's correction is for.
    pub comparisons: usize,
    /// Whether the numbers of samples of both are known; without them there are no
    /// intervals.
    pub has_intervals: bool,
    /// Whether slices of time were compared too.
    pub has_slices: bool,
}

/// Compares the functions of two recordings.
pub fn compare(before: &SampledFunctions, after: &SampledFunctions) -> SharesCompared {
    let names: FxHashSet<&String> = before
        .functions
        .keys()
        .chain(after.functions.keys())
        .collect();
    let mut names: Vec<&String> = names.into_iter().collect();
    names.sort_unstable();
    let none = OfFunction::default();
    let pair = Pair::of(before, after);
    let mut functions: Vec<FunctionChange> = names
        .into_iter()
        .map(|name| {
            let old = before.functions.get(name).unwrap_or(&none);
            let new = after.functions.get(name).unwrap_or(&none);
            FunctionChange {
                name: name.clone(),
                own: pair.difference(&old.own, &new.own),
                total: pair.difference(&old.total, &new.total),
                own_verdict: Verdict::NotKnown,
                total_verdict: Verdict::NotKnown,
            }
        })
        .collect();
    let comparisons = judge(&mut functions);
    functions.sort_by(|a, b| {
        let size = |one: &FunctionChange| (one.own.change().abs(), one.total.change().abs());
        let (own, total) = (
            size(b).0.total_cmp(&size(a).0),
            size(b).1.total_cmp(&size(a).1),
        );
        a.verdict().cmp(&b.verdict()).then(own).then(total)
    });
    let is_changed = |one: &&FunctionChange| one.verdict() == Verdict::Changed;
    SharesCompared {
        changed: functions.iter().filter(is_changed).count(),
        functions,
        comparisons,
        has_intervals: pair.samples.is_some(),
        has_slices: pair.has_slices,
    }
}

/// Decides for each share whether it changed: half of the level is for own shares, half for totals.
/// Returns how many were compared: a share that is nothing or all in both cannot change, and a
/// total that is the own share is compared with that.
fn judge(functions: &mut [FunctionChange]) -> usize {
    let own: Vec<_> = functions.iter().map(|one| weighted(&one.own)).collect();
    let total = |one: &FunctionChange| match one.total == one.own {
        true => (None, 0.0),
        false => weighted(&one.total),
    };
    let total: Vec<_> = functions.iter().map(total).collect();
    let own_held = hold(&own, MISSED / 2.0);
    let total_held = hold(&total, MISSED / 2.0);
    let verdict = |of: &Difference, held: bool| match (of.chance, held) {
        (None, _) => Verdict::NotKnown,
        (Some(_), true) => Verdict::Changed,
        (Some(_), false) => Verdict::WithinNoise,
    };
    let held = own_held.into_iter().zip(total_held);
    for (one, (own, total)) in functions.iter_mut().zip(held) {
        let is_same = one.total == one.own;
        one.own_verdict = verdict(&one.own, own);
        one.total_verdict = verdict(&one.total, total || is_same && own);
    }
    let compared = own.iter().chain(&total);
    compared
        .filter(|one| one.0.is_some() && one.1 > 0.0)
        .count()
}

/// The chance of a difference with its weight: the variance of a share.
fn weighted(of: &Difference) -> (Option<f64>, f64) {
    let share = f64::midpoint(of.before, of.after).clamp(0.0, 1.0);
    (of.chance, share * (1.0 - share))
}

/// Two recordings that are compared.
struct Pair<'a> {
    before: &'a SampledFunctions,
    after: &'a SampledFunctions,
    samples: Option<(f64, f64)>,
    has_slices: bool,
    /// Student's quantiles for slices, and for samples.
    quantiles: [f64; 2],
}

impl<'a> Pair<'a> {
    fn of(before: &'a SampledFunctions, after: &'a SampledFunctions) -> Self {
        let count = |of: &SampledFunctions| of.samples.filter(|n| *n > 0).map(|n| n as f64);
        Self {
            before,
            after,
            samples: count(before).zip(count(after)),
            has_slices: before.has_slices() && after.has_slices(),
            quantiles: [
                student_quantile(MISSED, SLICES as f64 - 1.0),
                student_quantile(MISSED, MANY),
            ],
        }
    }

    fn difference(&self, before: &Measured, after: &Measured) -> Difference {
        let share = |part: &Measured, of: &SampledFunctions| match of.whole > 0.0 {
            true => part.sum / of.whole,
            false => 0.0,
        };
        let (old, new) = (share(before, self.before), share(after, self.after));
        let mut found = Difference {
            before: old,
            after: new,
            ..Difference::default()
        };
        let Some(samples) = self.samples else {
            return found;
        };
        let [of_slices, of_samples] = self.quantiles;
        let error = by_samples((old, new), samples);
        // Proportions go in steps: half a sample of each (Yates).
        let step = 0.5 / samples.0 + 0.5 / samples.1;
        let mut half = of_samples * error + step;
        let apart = ((new - old).abs() - step).max(0.0);
        let mut chance = student_beyond(apart / error, MANY);
        if self.has_slices {
            let error = self.by_slices((before, old), (after, new));
            half = half.max(of_slices * error);
            let freedom = SLICES as f64 - 1.0;
            if error > 0.0 {
                chance = chance.max(student_beyond((new - old) / error, freedom));
            }
        }
        (found.half, found.chance) = (Some(half), Some(chance));
        found
    }

    /// Standard error of the difference, by what differs from slice to slice.
    fn by_slices(&self, before: (&Measured, f64), after: (&Measured, f64)) -> f64 {
        let rest = |of: &SampledFunctions, (part, share): (&Measured, f64), at: usize| {
            let value = part.slices.get(at).copied().unwrap_or(0.0);
            let whole = of.slices.get(at).copied().unwrap_or(0.0);
            (value - share * whole) / of.whole
        };
        let squares = (0..SLICES).map(|at| {
            let rest = rest(self.after, after, at) - rest(self.before, before, at);
            rest * rest
        });
        let slices = SLICES as f64;
        (squares.sum::<f64>() * slices / (slices - 1.0)).sqrt()
    }
}

/// Standard error of a difference of two proportions, as Agresti and Caffo have it: one
/// sample of either kind is added to each.
fn by_samples(shares: (f64, f64), samples: (f64, f64)) -> f64 {
    let variance = |share: f64, n: f64| {
        let share = (share.clamp(0.0, 1.0) * n + 1.0) / (n + 2.0);
        share * (1.0 - share) / (n + 2.0)
    };
    (variance(shares.0, samples.0) + variance(shares.1, samples.1)).sqrt()
}

#[cfg(test)]
mod tests;
