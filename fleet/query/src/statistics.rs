//! How sure a change of a share is.
//!
//! A share is a ratio of sums: a function's time by all time. Samples of one host, or of one
//! window, resemble each other, so they are no independent draws; hosts (or windows) are.
//! Each of these clusters contributes what it deviates from the share as a whole,
//! `(v - r V) / sum of V`, and the spread of these contributions is that of the share: the
//! linearised variance of a ratio from cluster samples. Where a host is on both sides its two
//! contributions are subtracted first, so that what the host always does is no noise. The
//! interval is Student's.

use aiprof_analysis::compare::{Difference, Verdict, student_beyond, student_quantile};
use std::collections::{BTreeMap, BTreeSet};

/// Probability that an interval misses the truth.
const MISSED: f64 = 0.05;
/// Fewest clusters of a side of which a spread is computed.
const MIN_CLUSTERS: usize = 3;
/// Fewest clusters that a function must be in, of both sides together: of fewer the interval
/// says more than is known.
const MIN_SEEN: usize = 4;

/// Values by cluster.
pub(crate) type Clusters = BTreeMap<u32, f64>;

/// The change of the share that `values` have of `totals`, from one side to the other.
pub(crate) fn change(before: (&Clusters, &Clusters), after: (&Clusters, &Clusters)) -> Difference {
    let share = |(values, totals): (&Clusters, &Clusters)| {
        let total: f64 = totals.values().sum();
        match total > 0.0 {
            true => values.values().sum::<f64>() / total,
            false => 0.0,
        }
    };
    let (from, to) = (share(before), share(after));
    let mut change = Difference {
        before: from,
        after: to,
        half: None,
        chance: None,
    };
    let seen = before.0.len() + after.0.len();
    let fewest = before.1.len().min(after.1.len());
    if fewest < MIN_CLUSTERS || seen < MIN_SEEN {
        return change;
    }
    let before_parts = contributions(before, from);
    let after_parts = contributions(after, to);
    let side = |parts: &Clusters| {
        let n = parts.len() as f64;
        n / (n - 1.0) * parts.values().map(|part| part * part).sum::<f64>()
    };
    let (of_before, of_after) = (side(&before_parts), side(&after_parts));
    let shared: Vec<f64> = before_parts
        .iter()
        .filter_map(|(cluster, part)| Some(part * after_parts.get(cluster)?))
        .collect();
    let n = shared.len() as f64;
    let common = match shared.len() {
        0 | 1 => 0.0,
        _ => n / (n - 1.0) * shared.iter().sum::<f64>(),
    };
    let variance = (of_before + of_after - 2.0 * common).max(0.0);
    // A side that does not have the function at all has no spread, and what has none is
    // certain only if many clusters say so: the smallest that a sample could be is assumed.
    if variance <= 0.0 {
        return change;
    }
    let freedom = match shared.len() * 2 > fewest {
        true => n - 1.0,
        false => {
            let part = |of: f64, n: usize| of * of / (n as f64 - 1.0);
            let sum = part(of_before, before_parts.len()) + part(of_after, after_parts.len());
            (of_before + of_after).powi(2) / sum
        }
    };
    let error = variance.sqrt();
    change.half = Some(student_quantile(MISSED, freedom) * error);
    change.chance = Some(student_beyond((to - from) / error, freedom));
    change
}

/// What each cluster contributes to the deviation of a share.
fn contributions((values, totals): (&Clusters, &Clusters), share: f64) -> Clusters {
    let total: f64 = totals.values().sum();
    let part = |(cluster, all): (&u32, &f64)| {
        let value = values.get(cluster).copied().unwrap_or(0.0);
        (*cluster, (value - share * all) / total)
    };
    totals.iter().map(part).collect()
}

/// Which of many chances hold where this share of those that do may be false: the procedure
/// of Benjamini and Hochberg (1995). The result is in the order of `chances`.
pub(crate) fn discoveries(chances: &[Option<f64>], level: f64) -> Vec<bool> {
    let mut order: Vec<(usize, f64)> = chances
        .iter()
        .enumerate()
        .filter_map(|(at, chance)| Some((at, (*chance)?)))
        .collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    let all = order.len() as f64;
    let holds =
        |(rank, (_, chance)): (usize, &(usize, f64))| *chance <= level * (rank + 1) as f64 / all;
    let kept = order
        .iter()
        .enumerate()
        .filter(|ranked| holds(*ranked))
        .map(|(rank, _)| rank + 1)
        .max()
        .unwrap_or(0);
    let found: BTreeSet<usize> = order.iter().take(kept).map(|(at, _)| *at).collect();
    (0..chances.len()).map(|at| found.contains(&at)).collect()
}

/// What is said of a change that held or not.
pub(crate) fn verdict(change: &Difference, holds: bool) -> Verdict {
    match (change.chance, holds) {
        (None, _) => Verdict::NotKnown,
        (Some(_), true) => Verdict::Changed,
        (Some(_), false) => Verdict::WithinNoise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_lake::synthetic::Random;

    /// Clusters of samples, of which a share that differs by cluster is of a function.
    fn side(
        random: &mut Random,
        clusters: std::ops::Range<u32>,
        share: f64,
        spread: f64,
    ) -> (Clusters, Clusters) {
        let (mut values, mut totals) = (Clusters::new(), Clusters::new());
        for cluster in clusters {
            let samples = 300 + random.below(300);
            let own = (share + spread * (random.unit() - 0.5)).clamp(0.0, 1.0);
            let hits = (0..samples).filter(|_| random.unit() < own).count();
            totals.insert(cluster, samples as f64);
            if hits > 0 {
                values.insert(cluster, hits as f64);
            }
        }
        (values, totals)
    }

    #[test]
    fn intervals_have_the_truth_as_often_as_they_say() {
        let mut random = Random(11);
        // What is true, hosts before, hosts after, whether they are the same.
        for (truth, n, paired) in [
            (0.0, 8, false),
            (0.02, 8, false),
            (0.02, 30, false),
            (0.02, 12, true),
        ] {
            let (mut inside, mut chances) = (0, 0);
            let runs = 1000;
            for _ in 0..runs {
                let before = side(&mut random, 0..n, 0.10, 0.06);
                let after = match paired {
                    true => side(&mut random, 0..n, 0.10 + truth, 0.06),
                    false => side(&mut random, 1000..1000 + n, 0.10 + truth, 0.06),
                };
                let change = change((&before.0, &before.1), (&after.0, &after.1));
                let half = change.half.unwrap();
                inside += usize::from((change.change() - truth).abs() <= half);
                chances += usize::from(change.chance.unwrap() < 0.05);
            }
            assert!(
                (930..=975).contains(&inside),
                "{truth} {n} {paired}: {inside} of {runs}"
            );
            if truth == 0.0 {
                assert!((20..=75).contains(&chances), "{chances} of {runs} false");
            }
        }
    }

    #[test]
    fn what_a_host_always_does_is_no_noise() {
        let mut random = Random(5);
        let (mut totals, mut before, mut after) =
            (Clusters::new(), Clusters::new(), Clusters::new());
        for host in 0..10 {
            // Hosts differ by tens of points, each grew by one.
            let own = 0.1 + 0.06 * f64::from(host);
            let noise = |random: &mut Random| (random.unit() - 0.5) * 2.0;
            totals.insert(host, 1000.0);
            before.insert(host, 1000.0 * own + noise(&mut random));
            after.insert(host, 1000.0 * (own + 0.01) + noise(&mut random));
        }
        let same = change((&before, &totals), (&after, &totals));
        assert!((same.change() - 0.01).abs() < 0.001);
        assert!(same.half.unwrap() < 0.001, "{same:?}");
        let move_away = |clusters: &Clusters| -> Clusters {
            clusters
                .iter()
                .map(|(host, value)| (host + 100, *value))
                .collect()
        };
        let others = (move_away(&after), move_away(&totals));
        let apart = change((&before, &totals), (&others.0, &others.1));
        assert!(apart.half.unwrap() > 0.1, "{apart:?}");
    }

    #[test]
    fn of_few_clusters_nothing_is_said() {
        let one: Clusters = [(0, 1.0)].into();
        let none = Clusters::new();
        let change = change((&none, &one), (&one, &one));
        assert_eq!((change.before, change.after), (0.0, 1.0));
        assert_eq!((change.half, change.chance), (None, None));
        let empty = super::change((&none, &none), (&none, &none));
        assert_eq!((empty.before, empty.after), (0.0, 0.0));
    }

    #[test]
    fn false_discoveries_are_bounded() {
        // The example of Benjamini and Hochberg's article: 15 chances, of which 4 hold at 5 %.
        let chances = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
            0.5719, 0.6528, 0.7590, 1.0,
        ];
        let given: Vec<Option<f64>> = chances
            .iter()
            .rev()
            .map(|chance| Some(*chance))
            .chain([None])
            .collect();
        let found = discoveries(&given, 0.05);
        assert_eq!(found.iter().filter(|found| **found).count(), 4);
        assert!(found[14] && found[11] && !found[10] && !found[15]);
        assert!(discoveries(&[], 0.05).is_empty());
    }
}
