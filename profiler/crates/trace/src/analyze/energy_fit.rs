//! The power of each class of kernels and of idle time, by least squares.
//!
//! A device counts charge, and two readings of it seldom enclose one kernel alone: the
//! time between them is shared by kernels and gaps. The energy of each such period is
//! the sum over classes of `watts * time in the period`, with one more class for idle
//! time. Many periods with different shares give the watts of each class. Classes whose
//! times keep one ratio in all periods cannot be separated: these have no watts.

use aiprof_model::calibrate::bounds::Uncertain;
use aiprof_model::calibrate::line_fit::median;
use aiprof_model::timeline::Id;

/// More than a card of 75 W takes. acelyzer's limit.
pub(crate) const MOST_WATTS: f64 = 100.0;
/// Classes of one device that are kept apart; the others count as one.
pub(crate) const CLASSES: usize = 128;
/// A class whose times are so close to a mix of others' (share of its square sum that is
/// left) cannot be separated.
const DEPENDENT: f64 = 1e-7;
/// A class that is expressed by an unseparated one to this share is not separated.
const MIXED: f64 = 1e-5;
/// Fewest periods beyond the number of classes.
const SPARE_PERIODS: usize = 8;
/// Standard errors in a bound.
const SIGMAS: f64 = 4.0;
/// Power is known if its bound is below this share of it, or below [`SURE_WATTS`].
const SURE_SHARE: f64 = 0.1;
/// See [`SURE_SHARE`].
const SURE_WATTS: f64 = 1.0;
/// Periods farther from the fit than this many typical distances do not count: a lost
/// event, a wrap that was missed.
const WILD: f64 = 8.0;
/// Rounds in which wild periods are taken out.
const ROUNDS: usize = 4;

/// Mean power between two readings of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Period {
    /// Row group.
    pub pid: Id,
    /// Rank.
    pub rank: u32,
    /// First reading, microseconds since the timeline's origin.
    pub start_us: f64,
    /// Second reading.
    pub end_us: f64,
    /// Mean power; more than possible where it is bad.
    pub watts: f64,
    /// Whether it is more than 100 W: wrong scale, or a counter that jumped.
    pub is_bad: bool,
    /// The power that one more wrap of the charge counter would add, watts.
    pub wrap_watts: f64,
    /// The counter may have wrapped more often than is counted, and nothing shows how
    /// often: the power is at least `watts`.
    pub are_wraps_unknown: bool,
}

impl Period {
    /// Whether its power is known.
    pub(crate) fn is_measured(&self) -> bool {
        !self.is_bad && !self.are_wraps_unknown
    }
}

/// A kernel that ran: microseconds since the timeline's origin, and its class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelSpan {
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) column: u32,
}

/// One period: its length and energy, and how long each class ran in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observation {
    /// Watts times microseconds.
    energy: f64,
    us: f64,
    /// Column and microseconds; kernels that run at the same time share the time.
    times: Vec<(u32, f64)>,
}

/// Splits each period's time among classes. `spans` and `periods` are of one device; the
/// periods are by time and do not overlap. The last column is idle time.
pub(crate) fn observe(
    spans: &[KernelSpan],
    periods: &[Period],
    columns: usize,
) -> Vec<Observation> {
    let idle = columns.saturating_sub(1);
    let begins = spans.iter().map(|span| (span.start, span.column, 1i64));
    let ends = spans.iter().map(|span| (span.end, span.column, -1i64));
    let mut changes: Vec<(f64, u32, i64)> = begins.chain(ends).collect();
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut changes = changes.into_iter().peekable();
    let mut running = vec![0i64; columns];
    let mut times = vec![0.0; columns];
    let mut observations = Vec::with_capacity(periods.len());
    for period in periods {
        let mut from = period.start_us;
        loop {
            let next = changes.next_if(|change| change.0 < period.end_us);
            let to = next.map_or(period.end_us, |change| change.0);
            if to > from {
                add_time(&running, &mut times, idle, to - from);
                from = to;
            }
            let Some((_, column, change)) = next else {
                break;
            };
            if let Some(count) = running.get_mut(column as usize) {
                *count += change;
            }
        }
        let times = (0u32..).zip(times.iter_mut());
        let times = times.map(|(column, us)| (column, std::mem::take(us)));
        observations.push(Observation {
            energy: period.watts * (period.end_us - period.start_us),
            us: period.end_us - period.start_us,
            times: times.filter(|(_, us)| *us > 0.0).collect(),
        });
    }
    observations
}

fn add_time(running: &[i64], times: &mut [f64], idle: usize, us: f64) {
    let all: i64 = running.iter().filter(|count| **count > 0).sum();
    if all <= 0 {
        if let Some(time) = times.get_mut(idle) {
            *time += us;
        }
        return;
    }
    for (count, time) in running.iter().zip(times) {
        if *count > 0 {
            *time += us * *count as f64 / all as f64;
        }
    }
}

/// Power by column, watts: of each class, and of idle time in the last one. The true power
/// is within its bound if every run of the class takes the same. `None`: it cannot be
/// separated from others', or the periods are too few.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Model {
    pub(crate) columns: Vec<Option<Uncertain>>,
}

impl Model {
    /// Fits to those observations that `is_used` allows.
    pub(crate) fn fit(
        observations: &[Observation],
        columns: usize,
        is_used: impl Fn(usize) -> bool,
    ) -> Self {
        let mut used: Vec<&Observation> = (0..)
            .zip(observations)
            .filter(|(index, seen)| seen.us > 0.0 && is_used(*index))
            .map(|(_, seen)| seen)
            .collect();
        let mut model = Solution::of(&used, columns);
        for _ in 0..ROUNDS {
            let mut away: Vec<f64> = used.iter().map(|seen| model.distance(seen)).collect();
            let limit = WILD * median(&mut away).max(1e-9);
            let before = used.len();
            used.retain(|seen| model.distance(seen) <= limit);
            if used.len() == before {
                break;
            }
            model = Solution::of(&used, columns);
        }
        Self {
            columns: model.known(used.len()),
        }
    }

    /// The energy of an observation and its bound, watts times microseconds; `None`: a
    /// class in it has no known power.
    fn predict(&self, seen: &Observation) -> Option<(f64, f64)> {
        let mut sum = (0.0, 0.0);
        for (column, us) in &seen.times {
            let watts = self.columns.get(*column as usize).copied().flatten()?;
            sum = (sum.0 + watts.value * us, sum.1 + watts.error * us);
        }
        Some(sum)
    }
}

/// A solution of the normal equations.
struct Solution {
    columns: usize,
    /// Swept matrix: inverse, solution and rest, in scaled units.
    matrix: Vec<f64>,
    scale: Vec<f64>,
    is_swept: Vec<bool>,
}

impl Solution {
    /// Each observation counts by one over its length: what is off grows with it.
    fn of(used: &[&Observation], columns: usize) -> Self {
        let size = columns + 1;
        let mut matrix = vec![0.0; size * size];
        for seen in used {
            let last = [(columns as u32, seen.energy)];
            for (i, a) in seen.times.iter().chain(&last) {
                for (j, b) in seen.times.iter().chain(&last) {
                    if let Some(sum) = matrix.get_mut(*i as usize * size + *j as usize) {
                        *sum += a * b / seen.us;
                    }
                }
            }
        }
        let at = |i: usize, j: usize| matrix.get(i * size + j).copied().unwrap_or(0.0);
        let scale: Vec<f64> = (0..size).map(|i| at(i, i).sqrt().max(1e-300)).collect();
        let pairs = (0..size).flat_map(|i| (0..size).map(move |j| (i, j)));
        let scaled = pairs.map(|(i, j)| at(i, j) / scale[i] / scale[j]).collect();
        let mut solution = Self {
            columns,
            matrix: scaled,
            scale,
            is_swept: vec![false; columns],
        };
        solution.solve();
        solution
    }

    fn at(&self, i: usize, j: usize) -> f64 {
        let index = i * (self.columns + 1) + j;
        self.matrix.get(index).copied().unwrap_or(0.0)
    }

    /// Sweeps columns, the most independent one first, until the rest depend on these.
    fn solve(&mut self) {
        loop {
            let left = (0..self.columns).filter(|i| !self.is_swept[*i]);
            let best = left.max_by(|a, b| self.at(*a, *a).total_cmp(&self.at(*b, *b)));
            match best {
                Some(pivot) if self.at(pivot, pivot) > DEPENDENT => self.sweep(pivot),
                _ => return,
            }
        }
    }

    fn sweep(&mut self, pivot: usize) {
        let size = self.columns + 1;
        let by = self.at(pivot, pivot);
        let row: Vec<f64> = (0..size).map(|j| self.at(pivot, j)).collect();
        let column: Vec<f64> = (0..size).map(|i| self.at(i, pivot)).collect();
        for (i, cells) in self.matrix.chunks_exact_mut(size).enumerate() {
            for (j, cell) in cells.iter_mut().enumerate() {
                *cell = match (i == pivot, j == pivot) {
                    (true, true) => 1.0 / by,
                    (true, false) => *cell / by,
                    (false, true) => -*cell / by,
                    (false, false) => *cell - column[i] * row[j] / by,
                };
            }
        }
        self.is_swept[pivot] = true;
    }

    /// Watts of a column; 0 of those that are not separated.
    fn watts(&self, column: usize) -> f64 {
        match self.is_swept.get(column) {
            Some(true) => {
                self.at(column, self.columns) * self.scale[self.columns] / self.scale[column]
            }
            _ => 0.0,
        }
    }

    /// How far an observation is from the fit, in units of its weight.
    fn distance(&self, seen: &Observation) -> f64 {
        let times = seen.times.iter();
        let sum: f64 = times
            .map(|(column, us)| self.watts(*column as usize) * us)
            .sum();
        (seen.energy - sum).abs() / seen.us.sqrt()
    }

    /// The columns that are separated and sure.
    fn known(&self, periods: usize) -> Vec<Option<Uncertain>> {
        let swept = self.is_swept.iter().filter(|is_swept| **is_swept).count();
        let spare = periods.saturating_sub(swept);
        // Nothing depends on columns without time.
        let is_left = |i: usize| !self.is_swept[i] && self.scale[i] > 1e-200;
        let left: Vec<usize> = (0..self.columns).filter(|i| is_left(*i)).collect();
        let rest = self.at(self.columns, self.columns).max(0.0).sqrt() * self.scale[self.columns];
        let sigma = rest / (spare.max(1) as f64).sqrt();
        let of = |column: usize| {
            let is_separate = left.iter().all(|f| self.at(column, *f).abs() < MIXED);
            let deviation = self.at(column, column).max(0.0).sqrt() / self.scale[column];
            let watts = self.watts(column);
            let error = SIGMAS * sigma * deviation;
            let is_sure = error <= (SURE_SHARE * watts).max(SURE_WATTS);
            let is_possible = watts >= -error && watts <= MOST_WATTS;
            let is_known = self.is_swept[column] && is_separate && spare >= SPARE_PERIODS;
            (is_known && is_sure && is_possible).then_some(Uncertain {
                value: watts.max(0.0),
                error,
            })
        };
        (0..self.columns).map(of).collect()
    }
}

/// How often charge counters wrapped between readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wraps {
    /// Periods to which wraps were added.
    pub(crate) counted: usize,
    /// Periods of which the number of wraps is not known.
    pub(crate) unknown: usize,
}

/// Whether the counter may have wrapped once more in a period than its charge shows.
pub(crate) fn is_open(period: &Period) -> bool {
    !period.is_bad && period.watts + period.wrap_watts <= MOST_WATTS
}

/// Finds how often the counter wrapped in periods that are long enough for it: as often
/// as the power of what ran there requires. The other periods give that power.
pub(crate) fn count_wraps(spans: &[KernelSpan], periods: &mut [Period], columns: usize) -> Wraps {
    let mut wraps = Wraps::default();
    if !periods.iter().any(is_open) {
        return wraps;
    }
    let observations = observe(spans, periods, columns);
    let is_sure: Vec<bool> = periods.iter().map(|p| !p.is_bad && !is_open(p)).collect();
    let model = Model::fit(&observations, columns, |index| {
        is_sure.get(index) == Some(&true)
    });
    for (period, seen) in periods.iter_mut().zip(&observations) {
        if !is_open(period) {
            continue;
        }
        let us = period.end_us - period.start_us;
        let wrap = period.wrap_watts * us;
        let expected = model.predict(seen).map(|(energy, error)| {
            let count = ((energy - seen.energy) / wrap).round().max(0.0);
            let away = (energy - seen.energy - count * wrap).abs();
            (count, away + error < wrap / 4.0)
        });
        match expected {
            Some((count, true)) => {
                period.watts += count * period.wrap_watts;
                wraps.counted += usize::from(count > 0.0);
            }
            _ => {
                period.are_wraps_unknown = true;
                wraps.unknown += 1;
            }
        }
    }
    wraps
}

#[cfg(test)]
#[path = "energy_fit_tests.rs"]
mod tests;
