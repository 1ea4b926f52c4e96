//! How the lengths of calls changed.

use super::chance::MANY;
use super::{Difference, MISSED, student_beyond, student_quantile};

/// Lengths of calls, as what a comparison needs of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CallLengths {
    /// Calls.
    pub calls: usize,
    /// Sum, microseconds.
    pub total_us: f64,
    /// Variance of the mean.
    variance: f64,
    /// Degrees of freedom of that.
    freedom: f64,
}

/// Calls from which on calls that follow each other are also compared in batches.
const BATCHED: usize = 40;
/// Batches.
const BATCHES: usize = 20;

impl CallLengths {
    /// `lengths` are in the order of time, microseconds.
    ///
    /// Calls that follow each other may be alike (a clock that goes up, a cache that gets warm). So
    /// where there are enough, the variance is also taken from means of batches, and the larger
    /// counts.
    pub(crate) fn of(lengths: &[f64]) -> Self {
        let calls = lengths.len();
        // A sum of nothing is -0.0.
        let total_us = lengths.iter().sum::<f64>() + 0.0;
        let mut found = Self {
            calls,
            total_us,
            ..Self::default()
        };
        if calls < 2 {
            return found;
        }
        (found.variance, found.freedom) = (variance(lengths) / calls as f64, calls as f64 - 1.0);
        if calls >= BATCHED {
            let size = calls / BATCHES;
            let means: Vec<f64> = lengths
                .chunks_exact(size)
                .take(BATCHES)
                .map(|batch| batch.iter().sum::<f64>() / size as f64)
                .collect();
            let batched = variance(&means) / means.len() as f64;
            if batched > found.variance {
                (found.variance, found.freedom) = (batched, means.len() as f64 - 1.0);
            }
        }
        found
    }

    /// Mean, microseconds.
    pub(crate) fn mean_us(&self) -> f64 {
        match self.calls {
            0 => 0.0,
            calls => self.total_us / calls as f64,
        }
    }
}

/// The difference of two means with Welch's interval. There is none with fewer than two calls on a
/// side. There is none where no call differs from another either, because then the spread is that
/// of the clock and not known.
pub(crate) fn means(before: &CallLengths, after: &CallLengths) -> Difference {
    let mut found = Difference {
        before: before.mean_us(),
        after: after.mean_us(),
        ..Difference::default()
    };
    if before.calls < 2 || after.calls < 2 {
        return found;
    }
    let variance = before.variance + after.variance;
    if variance <= 0.0 {
        return found;
    }
    // Welch and Satterthwaite.
    let part = |of: &CallLengths| of.variance * of.variance / of.freedom;
    let freedom = variance * variance / (part(before) + part(after));
    let error = variance.sqrt();
    found.half = Some(error * student_quantile(MISSED, freedom));
    found.chance = Some(student_beyond(found.change() / error, freedom));
    found
}

/// Calls on either side from which on ranks are compared.
const RANKED: usize = 8;

/// The chance that calls of one distribution are ranked so differently: Mann and Whitney's
/// test, by the normal approximation, with its corrections for steps and ties. Lengths
/// of calls are skewed, which means take for a change more often than they should. `None`:
/// too few calls, or all are equal.
pub(crate) fn rank_chance(before: &[f64], after: &[f64]) -> Option<f64> {
    let (n, m) = (before.len() as f64, after.len() as f64);
    if before.len().min(after.len()) < RANKED {
        return None;
    }
    let of = |values: &[f64], is_old| values.iter().map(|v| (*v, is_old)).collect::<Vec<_>>();
    let mut all = of(before, true);
    all.append(&mut of(after, false));
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut below, mut ranks, mut ties) = (0.0, 0.0, 0.0);
    for equal in all.chunk_by(|a, b| a.0 == b.0) {
        let count = equal.len() as f64;
        let old = equal.iter().filter(|one| one.1).count() as f64;
        ranks += old * (below + (count + 1.0) / 2.0);
        ties += count * count * count - count;
        below += count;
    }
    let whole = n + m;
    let variance = n * m / 12.0 * (whole + 1.0 - ties / (whole * (whole - 1.0)));
    if variance <= 0.0 {
        return None;
    }
    let apart = ((ranks - n * (whole + 1.0) / 2.0).abs() - 0.5).max(0.0);
    Some(student_beyond(apart / variance.sqrt(), MANY))
}

fn variance(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = values.iter().map(|value| (value - mean) * (value - mean));
    squares.sum::<f64>() / (n - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Welch's example as R's `t.test` gives it for `sleep`: groups of `extra`, t =
    /// -1.8608, df = 17.776, p = 0.07939, interval -3.3654832 to 0.2054832.
    #[test]
    fn intervals_are_those_of_r() {
        let one = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
        let two = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
        let found = means(&CallLengths::of(&two), &CallLengths::of(&one));
        let (half, chance) = (found.half.unwrap(), found.chance.unwrap());
        assert!((found.change() - half + 3.365_483_2).abs() < 1e-6);
        assert!((found.change() + half - 0.205_483_2).abs() < 1e-6);
        assert!((chance - 0.079_39).abs() < 1e-5);
    }

    /// By hand: ranks 1 to 8 against 9 to 16 have U 0, mean 32, variance 8 * 8 * 17 / 12.
    #[test]
    fn ranks_tell_how_far_apart_calls_are() {
        let (low, high): (Vec<f64>, Vec<f64>) =
            (0..8).map(|n| (f64::from(n), f64::from(n + 8))).unzip();
        let z: f64 = 31.5 / (64.0 * 17.0 / 12.0_f64).sqrt();
        let found = rank_chance(&low, &high).unwrap();
        assert!((found - student_beyond(z, MANY)).abs() < 1e-12);
        assert_eq!(rank_chance(&low, &low), Some(1.0));
        assert_eq!(rank_chance(&[1.0; 9], &[1.0; 9]), None);
    }

    #[test]
    fn what_is_not_spread_has_no_interval() {
        let found = means(&CallLengths::of(&[1.0, 1.0]), &CallLengths::of(&[2.0, 2.0]));
        assert_eq!((found.change(), found.half), (1.0, None));
        assert_eq!(
            means(&CallLengths::of(&[]), &CallLengths::of(&[2.0])).half,
            None
        );
    }
}
