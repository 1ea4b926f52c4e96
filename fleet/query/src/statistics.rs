//! How sure a change of a share is.
//!
//! A share is a ratio of sums: a function's time by all time. Samples of one host, or of one
//! window, resemble each other, so they are no independent draws; hosts (or pieces of their time)
//! are. Each of these clusters contributes its deviation from the share as a whole, `(v - r V) /
//! sum of V`. The spread of these contributions is that of the share: the linearised variance of a
//! ratio from cluster samples. Where a host is on both sides its two contributions are subtracted
//! first, so that what the host always does is no noise.
//!
//! A cluster that has much of the time pulls the share to itself and deviates little from it. So
//! the sum of squares is too small, and rests on few numbers. [`Design`] corrects both as if the
//! clusters' own shares scattered alike. It uses the expectation of the sum of squares, and the
//! degrees of freedom of Satterthwaite (Bell and McCaffrey 2002). Pieces of time that follow each
//! other resemble each other, too: their correlation widens the interval, as that of an
//! autoregressive series of first order does.
//!
//! And a host's pieces are held against its own share, for hosts are as they are: these ones
//! are compared.
//!
//! The interval is Student's.

use aiprof_tables::compare::{Difference, Verdict, student_beyond, student_quantile};
use std::collections::{BTreeMap, BTreeSet};

/// Probability that an interval misses the truth.
const MISSED: f64 = 0.05;
/// Fewest clusters of a side of which a spread is computed.
const MIN_CLUSTERS: usize = 3;
/// Fewest clusters that a function must be in, of both sides together: with fewer the interval
/// claims more than is known.
const MIN_SEEN: usize = 4;
/// How much alike the two shares of a cluster that is on both sides are taken to be, where it
/// matters: where only some are on both.
const ALIKE: f64 = 0.5;
/// Strongest correlation of neighbours that is corrected; a stronger one looks like a trend.
const MAX_CORRELATION: f64 = 0.8;

/// Values by cluster: a host (and 0), or a host and the number of a piece of its time.
pub(crate) type Clusters = BTreeMap<(u32, i64), f64>;

/// A cluster, and its part of all of a side.
#[derive(Clone, Copy, Debug)]
struct Cluster {
    key: (u32, i64),
    before: f64,
    after: f64,
}

/// What two sides that are compared have in common for all functions.
#[derive(Debug)]
pub(crate) struct Design {
    clusters: Vec<Cluster>,
    /// All of a side.
    before: f64,
    after: f64,
    /// Clusters that follow each other, by place: pieces of the time of a host.
    neighbours: Vec<(usize, usize)>,
    /// The pieces of each host, those of each side for themselves.
    series: Vec<Vec<usize>>,
    /// By what a sum of squares becomes the variance, and its degrees of freedom; `None`: too
    /// few clusters.
    spread: Option<(f64, f64)>,
}

impl Design {
    /// The design for the totals of both sides.
    pub(crate) fn new(before: &Clusters, after: &Clusters) -> Self {
        let sum = |totals: &Clusters| totals.values().sum::<f64>();
        let all = (sum(before), sum(after));
        let keys: BTreeSet<&(u32, i64)> = before.keys().chain(after.keys()).collect();
        let clusters: Vec<Cluster> = keys
            .into_iter()
            .map(|key| Cluster {
                key: *key,
                before: part_of(before, key, all.0),
                after: part_of(after, key, all.1),
            })
            .collect();
        let mut neighbours = Vec::new();
        for (at, pair) in clusters.windows(2).enumerate() {
            let [one, next] = pair else { continue };
            let follows = next.key == (one.key.0, one.key.1.saturating_add(1));
            // The last piece before and the first after show nothing about either side.
            let share_a_side = one.before * next.before > 0.0 || one.after * next.after > 0.0;
            if follows && share_a_side {
                neighbours.push((at, at + 1));
            }
        }
        let mut series: BTreeMap<(u32, bool, bool), Vec<usize>> = BTreeMap::new();
        for (at, cluster) in clusters.iter().enumerate() {
            let sides = (cluster.before > 0.0, cluster.after > 0.0);
            let key = (cluster.key.0, sides.0, sides.1);
            series.entry(key).or_default().push(at);
        }
        let series = match neighbours.is_empty() {
            true => Vec::new(),
            false => series.into_values().collect(),
        };
        let spread = match before.len().min(after.len()) >= MIN_CLUSTERS {
            true => spread(&clusters),
            false => None,
        };
        Self {
            clusters,
            before: all.0,
            after: all.1,
            neighbours,
            series,
            spread,
        }
    }

    /// The change of the share that values have of the totals.
    pub(crate) fn change(&self, before: &Clusters, after: &Clusters) -> Difference {
        let share = |values: &Clusters, all| ratio(values.values().sum(), all);
        let (from, to) = (share(before, self.before), share(after, self.after));
        let mut change = Difference {
            before: from,
            after: to,
            half: None,
            chance: None,
        };
        let seen = before.len() + after.len();
        let Some((scale, freedom)) = self.spread.filter(|_| seen >= MIN_SEEN) else {
            return change;
        };
        let deviation = |cluster: &Cluster| {
            let now = part_of(after, &cluster.key, self.after) - to * cluster.after;
            now - (part_of(before, &cluster.key, self.before) - from * cluster.before)
        };
        let mut parts: Vec<f64> = self.clusters.iter().map(deviation).collect();
        let (scale, freedom) = self.by_host(&mut parts, scale, freedom);
        let squares: f64 = parts.iter().map(|part| part * part).sum();
        let (widened, freedom) = self.widened(&parts, squares, freedom);
        let mut variance = scale * squares * widened;
        if variance <= f64::EPSILON * f64::EPSILON {
            // No cluster deviates: a function that is new everywhere by the same share. The more
            // clusters show that, each with one sample at least, the more certain it is.
            variance = (to - from).powi(2) / seen as f64;
        }
        let error = variance.sqrt();
        change.half = Some(student_quantile(MISSED, freedom) * error);
        change.chance = Some(match error > 0.0 {
            true => student_beyond((to - from) / error, freedom),
            false => 1.0,
        });
        change
    }

    /// Subtracts from each piece the mean of its host, and returns the scale and the freedom that
    /// are left. Each mean takes one degree of freedom, where a side has more than one.
    fn by_host(&self, parts: &mut [f64], scale: f64, freedom: f64) -> (f64, f64) {
        const SIDES: f64 = 2.0;
        let (all, means) = (self.clusters.len() as f64, self.series.len() as f64);
        if means <= SIDES || all <= means {
            return (scale, freedom);
        }
        for series in &self.series {
            let own = series.iter().filter_map(|at| parts.get(*at));
            let mean = own.sum::<f64>() / series.len() as f64;
            for at in series {
                if let Some(part) = parts.get_mut(*at) {
                    *part -= mean;
                }
            }
        }
        let left = (all - means) / (all - SIDES);
        (scale / left, freedom * left)
    }

    /// By what neighbours that resemble each other widen a variance, and what freedom is left.
    fn widened(&self, parts: &[f64], squares: f64, freedom: f64) -> (f64, f64) {
        let pairs = self.neighbours.len() as f64;
        if pairs == 0.0 || squares <= 0.0 {
            return (1.0, freedom);
        }
        let product = |(one, next): &(usize, usize)| Some(parts.get(*one)? * parts.get(*next)?);
        let products: f64 = self.neighbours.iter().filter_map(product).sum();
        let all = self.clusters.len() as f64;
        // For a short series the estimate is too small by one divided by its length. Its error is
        // one divided by the root of the number of pairs. Half of that is added, because widening
        // too little costs more.
        let correlation = products / squares + (all - pairs) / all + 0.5 / pairs.sqrt();
        let correlation = correlation.clamp(0.0, MAX_CORRELATION);
        let widened = (1.0 + correlation) / (1.0 - correlation);
        (widened, (freedom / widened).max(freedom.min(2.0)))
    }
}

/// A part of all; 0 of nothing.
fn ratio(part: f64, all: f64) -> f64 {
    match all > 0.0 {
        true => part / all,
        false => 0.0,
    }
}

/// A cluster's part of all.
fn part_of(values: &Clusters, key: &(u32, i64), all: f64) -> f64 {
    ratio(values.get(key).copied().unwrap_or(0.0), all)
}

/// By what the sum of squares of clusters' contributions becomes the variance of a change, and
/// its degrees of freedom.
///
/// With `x` and `y` the own shares of cluster `i` before and after, `b` and `a` its parts of the
/// time, its contribution is `a (y - mean y) - b (x - mean x)`. The covariance of two of them is
/// a bilinear form of what each has by itself, so that its trace and that of its square take
/// one pass.
fn spread(clusters: &[Cluster]) -> Option<(f64, f64)> {
    const FORMS: usize = 5;
    let forms = |cluster: &Cluster| {
        let (a, b) = (cluster.after, cluster.before);
        [a, a * a, a * b, b, b * b]
    };
    let sum = |of: fn(&Cluster) -> f64| clusters.iter().map(of).sum::<f64>();
    let after = sum(|c| c.after * c.after);
    let before = sum(|c| c.before * c.before);
    let both = sum(|c| c.after * c.before);
    let form: [[f64; FORMS]; FORMS] = [
        [after, -1.0, ALIKE, -ALIKE * both, 0.0],
        [-1.0, 0.0, 0.0, 0.0, 0.0],
        [ALIKE, 0.0, 0.0, ALIKE, 0.0],
        [-ALIKE * both, 0.0, ALIKE, before, -1.0],
        [0.0, 0.0, 0.0, -1.0, 0.0],
    ];
    let mut products = [[0.0; FORMS]; FORMS];
    let (mut trace, mut of_square) = (0.0, 0.0);
    for cluster in clusters {
        let own = forms(cluster);
        let mut shared = 0.0;
        for (i, row) in form.iter().enumerate() {
            for (j, factor) in row.iter().enumerate() {
                shared += own[i] * factor * own[j];
                products[i][j] += own[i] * own[j];
            }
        }
        let (a, b) = (cluster.after, cluster.before);
        let own = shared + a * a + b * b - 2.0 * ALIKE * a * b;
        trace += own;
        of_square += own * own - shared * shared;
    }
    // The trace of (form products)^2: the sum of the squares of all covariances.
    let multiplied = |i: usize, j: usize| -> f64 {
        let terms = (0..FORMS).map(|k| form[i][k] * products[k][j]);
        terms.sum()
    };
    for i in 0..FORMS {
        for j in 0..FORMS {
            of_square += multiplied(i, j) * multiplied(j, i);
        }
    }
    let wanted = after + before - 2.0 * ALIKE * both;
    let is_known = trace > 0.0 && of_square > 0.0 && wanted > 0.0;
    is_known.then(|| (wanted / trace, trace * trace / of_square))
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

/// The verdict on a change that held or not.
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
    use aiprof_fleet_testkit::Random;

    /// Clusters of samples, of which a share that differs by cluster is of a function.
    fn side(
        random: &mut Random,
        clusters: std::ops::Range<u32>,
        (share, spread): (f64, f64),
        load: impl Fn(u32) -> usize,
    ) -> (Clusters, Clusters) {
        let (mut values, mut totals) = (Clusters::new(), Clusters::new());
        for cluster in clusters {
            let samples = (300 + random.below(300)) * load(cluster);
            let cluster = (cluster, 0);
            let own = (share + spread * (random.unit() - 0.5)).clamp(0.0, 1.0);
            let hits = (0..samples).filter(|_| random.unit() < own).count();
            totals.insert(cluster, samples as f64);
            if hits > 0 {
                values.insert(cluster, hits as f64);
            }
        }
        (values, totals)
    }

    fn change(before: (&Clusters, &Clusters), after: (&Clusters, &Clusters)) -> Difference {
        Design::new(before.1, after.1).change(before.0, after.0)
    }

    #[test]
    fn intervals_have_the_truth_as_often_as_they_say() {
        let mut random = Random(11);
        // What is true, hosts before, hosts after, how many of them are the same, and how much
        // more the first one has to do than the others.
        for (truth, n, same, load) in [
            (0.0, 8, 0, 1),
            (0.02, 8, 0, 1),
            (0.02, 30, 0, 1),
            (0.02, 12, 12, 1),
            (0.0, 12, 12, 3),
            (0.0, 12, 12, 10),
            (0.0, 6, 6, 20),
            (0.0, 12, 0, 20),
            (0.0, 6, 5, 1),
            (0.0, 6, 3, 1),
            (0.0, 12, 11, 1),
        ] {
            let (mut inside, mut chances) = (0, 0);
            let runs = 1000;
            let load = |host: u32| match host % 1000 {
                0 => load,
                _ => 1,
            };
            for _ in 0..runs {
                let before = side(&mut random, 0..n, (0.10, 0.06), load);
                let after = match same {
                    0 => side(&mut random, 1000..1000 + n, (0.10 + truth, 0.06), load),
                    same => side(
                        &mut random,
                        n - same..2 * n - same,
                        (0.10 + truth, 0.06),
                        load,
                    ),
                };
                let change = change((&before.0, &before.1), (&after.0, &after.1));
                let half = change.half.unwrap();
                inside += usize::from((change.change() - truth).abs() <= half);
                chances += usize::from(change.chance.unwrap() < 0.05);
            }
            println!("{truth} {n} {same} {}: {inside} of {runs}", load(0));
            // Where one host has most of it the interval is wider than it had to be.
            let (expected, falsely) = match load(0) {
                1 => (930..=975, 20..=75),
                _ => (930..=runs, 0..=75),
            };
            assert!(
                expected.contains(&inside),
                "{truth} {n} {same}: {inside} of {runs}"
            );
            if truth == 0.0 {
                assert!(falsely.contains(&chances), "{chances} of {runs} false");
            }
        }
    }

    /// By matrices, as the article has it.
    #[test]
    fn the_spread_is_that_of_the_matrices() {
        let mut random = Random(23);
        for n in 3..9_usize {
            let mut clusters: Vec<Cluster> = (0..n)
                .map(|at| Cluster {
                    key: (at as u32, 0),
                    before: if at == 0 { 0.0 } else { random.unit() },
                    after: if at == 1 { 0.0 } else { random.unit() },
                })
                .collect();
            let all: (f64, f64) = clusters
                .iter()
                .fold((0.0, 0.0), |all, c| (all.0 + c.before, all.1 + c.after));
            for cluster in &mut clusters {
                cluster.before /= all.0;
                cluster.after /= all.1;
            }
            // Rows: contributions; columns: the shares after, then those before.
            let same = |i: usize, j: usize| if i == j { 1.0 } else { 0.0 };
            let entry = |i: usize, j: usize| match j < n {
                true => clusters[i].after * (same(i, j) - clusters[j].after),
                false => -clusters[i].before * (same(i, j - n) - clusters[j - n].before),
            };
            let covariance = |j: usize, k: usize| match (j < n, k < n) {
                _ if j == k => 1.0,
                (true, false) => ALIKE * same(j, k - n),
                (false, true) => ALIKE * same(j - n, k),
                _ => 0.0,
            };
            let product = |i: usize, l: usize| -> f64 {
                let all = (0..2 * n).flat_map(|j| (0..2 * n).map(move |k| (j, k)));
                all.map(|(j, k)| entry(i, j) * covariance(j, k) * entry(l, k))
                    .sum()
            };
            let trace: f64 = (0..n).map(|i| product(i, i)).sum();
            let all = (0..n).flat_map(|i| (0..n).map(move |j| (i, j)));
            let of_square: f64 = all.map(|(i, j)| product(i, j).powi(2)).sum();
            let weight = |j: usize| match j < n {
                true => clusters[j].after,
                false => -clusters[j - n].before,
            };
            let all = (0..2 * n).flat_map(|j| (0..2 * n).map(move |k| (j, k)));
            let wanted: f64 = all
                .map(|(j, k)| weight(j) * covariance(j, k) * weight(k))
                .sum();
            let (scale, freedom) = spread(&clusters).unwrap();
            assert!((scale / (wanted / trace) - 1.0).abs() < 1e-9, "{n}");
            assert!(
                (freedom / (trace * trace / of_square) - 1.0).abs() < 1e-9,
                "{n}"
            );
        }
    }

    #[test]
    fn what_is_new_everywhere_by_the_same_share_is_a_change() {
        let hosts: Clusters = (0..16).map(|host| ((host, 0), 100.0)).collect();
        let half: Clusters = (0..16).map(|host| ((host, 0), 50.0)).collect();
        let none = Clusters::new();
        let new = change((&none, &hosts), (&half, &hosts));
        assert!(new.chance.unwrap() < 0.005, "{new:?}");
        let same = change((&half, &hosts), (&half, &hosts));
        assert_eq!((same.half, same.chance), (Some(0.0), Some(1.0)));
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
            let cluster = (host, 0);
            totals.insert(cluster, 1000.0);
            before.insert(cluster, 1000.0 * own + noise(&mut random));
            after.insert(cluster, 1000.0 * (own + 0.01) + noise(&mut random));
        }
        let same = change((&before, &totals), (&after, &totals));
        assert!((same.change() - 0.01).abs() < 0.001);
        assert!(same.half.unwrap() < 0.001, "{same:?}");
        let move_away = |clusters: &Clusters| -> Clusters {
            clusters
                .iter()
                .map(|((host, piece), value)| ((host + 100, *piece), *value))
                .collect()
        };
        let others = (move_away(&after), move_away(&totals));
        let apart = change((&before, &totals), (&others.0, &others.1));
        assert!(apart.half.unwrap() > 0.1, "{apart:?}");
    }

    #[test]
    fn of_few_clusters_nothing_is_said() {
        let one: Clusters = [((0, 0), 1.0)].into();
        let none = Clusters::new();
        let few = change((&none, &one), (&one, &one));
        assert_eq!((few.before, few.after), (0.0, 1.0));
        assert_eq!((few.half, few.chance), (None, None));
        let empty = change((&none, &none), (&none, &none));
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
