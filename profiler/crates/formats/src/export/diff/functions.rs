//! The functions of two profiles: what their samples are worth, and a table of the
//! changes.

use super::{DiffOptions, normalized};
use crate::export::folded::FoldedStacks;
use crate::export::text;
use aiprof_tables::compare::shares::{self, FunctionChange, SampledFunctions, SharesCompared};
use aiprof_tables::compare::{Difference, Verdict};
use aiprof_tables::{Cell, Table};
use rustc_hash::{FxHashMap, FxHashSet};

/// What one profile is for a comparison.
#[derive(Clone, Debug, Default)]
pub struct ComparedProfile {
    /// Its stacks.
    pub stacks: FoldedStacks,
    /// The stacks of equal slices of its time, [`shares::SLICES`] of them; empty: times
    /// are not known.
    pub slices: Vec<FoldedStacks>,
    /// How many samples it is of, and how that is known.
    pub samples: SampleCount,
}

/// How many samples a profile is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SampleCount {
    /// The profile gives the number.
    Known(u64),
    /// All values are multiples of `period_us`, which is taken for the period of one
    /// sample.
    Assumed {
        /// The samples.
        samples: u64,
        /// The period, microseconds.
        period_us: u64,
    },
    /// Not known: for this reason.
    #[default]
    NotKnown,
    /// Its samples are none of a CPU: those of devices come in bursts of many, and waits
    /// are no samples.
    NoDraws,
}

impl SampleCount {
    fn number(&self) -> Option<u64> {
        match self {
            Self::Known(samples) | Self::Assumed { samples, .. } => Some(*samples),
            Self::NotKnown | Self::NoDraws => None,
        }
    }

    /// Counts the samples of values in microseconds, which are multiples of a period to
    /// within half a microsecond each. The largest period that fits is taken. No sampler
    /// has a period shorter than 100 us (10,000 samples a second) or longer than a second.
    pub fn of_times(folded: &FoldedStacks) -> Self {
        const SHORTEST_US: f64 = 100.0;
        const LONGEST_US: f64 = 1e6;
        let values = || {
            folded
                .stacks
                .iter()
                .map(|(_, value)| *value)
                .filter(|v| *v > 0)
        };
        let (Some(least), most) = (values().min(), values().max().unwrap_or(0)) else {
            return Self::NotKnown;
        };
        (1..=8_u32)
            .map(|parts| least as f64 / f64::from(parts))
            .take_while(|period| *period >= SHORTEST_US)
            // The value with the most samples gives the most exact period.
            .map(|period| most as f64 / (most as f64 / period).round())
            .filter(|period| *period <= LONGEST_US)
            .find(|period| values().all(|value| is_multiple(value as f64, *period)))
            .map_or(Self::NotKnown, |period| Self::Assumed {
                samples: (folded.total as f64 / period).round() as u64,
                period_us: period.round() as u64,
            })
    }
}

fn is_multiple(value: f64, period: f64) -> bool {
    let times = (value / period).round();
    // Rounding of this value, and of the one that the period is of.
    times >= 1.0 && (value - times * period).abs() <= 1.01
}

/// Compares the functions of two profiles.
pub fn compare(
    before: &ComparedProfile,
    after: &ComparedProfile,
    options: &DiffOptions,
) -> SharesCompared {
    shares::compare(&sampled(before, options), &sampled(after, options))
}

fn sampled(profile: &ComparedProfile, options: &DiffOptions) -> SampledFunctions {
    let mut found = SampledFunctions::new(
        profile.stacks.total as f64,
        profile.samples.number(),
        profile.slices.iter().map(|one| one.total as f64).collect(),
    );
    for (name, (own, total)) in values(&profile.stacks, options) {
        found.add(&name, own as f64, total as f64);
    }
    for (slice, stacks) in profile.slices.iter().enumerate() {
        for (name, (own, total)) in values(stacks, options) {
            found.add_to_slice(slice, &name, own as f64, total as f64);
        }
    }
    found
}

/// Own and total values by function; the process's name is none.
fn values(folded: &FoldedStacks, options: &DiffOptions) -> FxHashMap<String, (u64, u64)> {
    let mut values: FxHashMap<String, (u64, u64)> = FxHashMap::default();
    for (stack, value) in &folded.stacks {
        let stack = normalized(stack, options);
        let mut seen = FxHashSet::default();
        let mut names = stack.split(';').skip(1).peekable();
        while let Some(name) = names.next() {
            let (own, total) = values.entry(name.to_owned()).or_default();
            if seen.insert(name) {
                *total += value;
            }
            if names.peek().is_none() {
                *own += value;
            }
        }
    }
    values
}

/// Whether anything changed, in a line.
pub fn verdict(found: &SharesCompared) -> String {
    let functions = found.functions.len() as u64;
    let of = format!("{} function{}", text::grouped(functions), plural(functions));
    match found.changed as u64 {
        0 if functions == 0 => "nothing to compare, because there are no functions".to_owned(),
        0 if !found.has_intervals => {
            let moved = found
                .functions
                .iter()
                .any(|one| one.own.change() != 0.0 || one.total.change() != 0.0);
            match moved {
                true => {
                    format!("unknown whether anything changed: no confidence intervals for {of}")
                }
                false => format!("nothing changed: the shares of {of} are the same"),
            }
        }
        0 => format!("nothing changed: {of} within noise"),
        changed => format!(
            "{} of {of} changed; the rest is within noise",
            text::grouped(changed)
        ),
    }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The table, `rows` of them at most: what changed first.
pub fn table(
    before: &ComparedProfile,
    after: &ComparedProfile,
    options: &DiffOptions,
    found: &SharesCompared,
    rows: usize,
) -> Table {
    let weight = options.export.weight;
    let of = |profile: &ComparedProfile| {
        let value = text::weighed(profile.stacks.total, weight);
        match profile.samples.number() {
            Some(samples) => format!("{value} in {} samples", text::grouped(samples)),
            None => value,
        }
    };
    let mut notes = vec![format!(
        "before: {}; after: {}; shares are in percent of each profile, changes in percentage \
         points +- half of the 95 % confidence interval",
        of(before),
        of(after)
    )];
    notes.extend(basis(before, after, found));
    let moved: Vec<&FunctionChange> = found
        .functions
        .iter()
        .filter(|one| one.own.change() != 0.0 || one.total.change() != 0.0)
        .collect();
    if let Some(more) = moved.len().checked_sub(rows).filter(|more| *more > 0) {
        notes.push(format!(
            "{} more rows are not shown",
            text::grouped(more as u64)
        ));
    }
    let rows = moved.into_iter().take(rows).map(row);
    Table {
        notes,
        ..Table::of("functions", verdict(found), COLUMNS, rows)
    }
}

const COLUMNS: &str = "before:percent after:percent self:points self_error:points total:points \
                       total_error:points self_verdict total_verdict function";

fn row(one: &FunctionChange) -> Vec<Cell> {
    let half = |of: &Difference| of.half.map(|half| 100.0 * half);
    vec![
        (100.0 * one.own.before).into(),
        (100.0 * one.own.after).into(),
        (100.0 * one.own.change()).into(),
        half(&one.own).into(),
        (100.0 * one.total.change()).into(),
        half(&one.total).into(),
        one.own_verdict.word().into(),
        one.total_verdict.word().into(),
        one.name.as_str().into(),
    ]
}

/// What the intervals are by, and what they do not know.
fn basis(before: &ComparedProfile, after: &ComparedProfile, found: &SharesCompared) -> Vec<String> {
    let both = [("before", before), ("after", after)];
    let mut notes: Vec<String> = both
        .iter()
        .filter_map(|(which, profile)| match profile.samples {
            SampleCount::Known(_) => None,
            SampleCount::Assumed { period_us, .. } => Some(format!(
                "{which}: a sample is assumed to stand for {period_us} us, because all values are \
                 multiples of it"
            )),
            SampleCount::NotKnown => Some(format!(
                "{which}: the number of samples is unknown, so there are no confidence intervals. \
                 Add --period TIME, the time of a sample, or --weight samples if the values are \
                 samples"
            )),
            SampleCount::NoDraws => Some(format!(
                "{which}: not all values are CPU samples, so there are no confidence intervals \
                 (device samples come in bursts, and waits are not sampled)"
            )),
        })
        .collect();
    if !found.has_intervals {
        return notes;
    }
    notes.push(match found.has_slices {
        true => format!(
            "intervals are estimated from {} time slices of each recording and from the number of \
             samples; the wider one is used",
            shares::SLICES
        ),
        false => "intervals are estimated from the number of samples only, as if samples were \
                  independent; if samples come in bursts, the true intervals are wider"
            .to_owned(),
    });
    notes.push(format!(
        "changed: the chance of even one false change in all {} comparisons is below 5 % (Holm, \
         weighted by shares); the variation between runs of the same program is not included",
        text::grouped(found.comparisons as u64)
    ));
    if found.changed > 0 {
        notes.push(
            "shares add up to 100 %: if one function takes more, the others take less".to_owned(),
        );
    }
    notes
}

/// The verdict on each function's own share, and whether it grew.
pub(super) fn verdicts(found: &SharesCompared) -> FxHashMap<&str, (Verdict, bool)> {
    let of = |one: &'_ FunctionChange| (one.own_verdict, one.own.change() > 0.0);
    let all = found.functions.iter();
    all.map(|one| (one.name.as_str(), of(one))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(values: &[u64]) -> FoldedStacks {
        let stacks = values.iter().enumerate();
        FoldedStacks {
            stacks: stacks.map(|(at, v)| (format!("p;f{at}"), *v)).collect(),
            total: values.iter().sum(),
        }
    }

    /// 99 samples a second are 10,101.01 us each; aiprof rounds each value.
    #[test]
    fn the_period_is_found_in_rounded_values() {
        let of = |counts: &[u64]| {
            let values: Vec<u64> = counts
                .iter()
                .map(|n| (*n as f64 * 1e6 / 99.0).round() as u64)
                .collect();
            SampleCount::of_times(&folded(&values))
        };
        let found = |samples| SampleCount::Assumed {
            samples,
            period_us: 10_101,
        };
        assert_eq!(of(&[1, 7, 100, 54_321]), found(54_429));
        // No stack has a single sample.
        assert_eq!(of(&[4, 6, 99]), found(109));
        assert_eq!(of(&[2, 3, 5]), found(10));
        // Times of a hardware counter, or of waits, are no multiples.
        let odd = folded(&[10_101, 13_377, 27_000]);
        assert_eq!(SampleCount::of_times(&odd), SampleCount::NotKnown);
        assert_eq!(
            SampleCount::of_times(&folded(&[3, 4])),
            SampleCount::NotKnown
        );
    }
}
