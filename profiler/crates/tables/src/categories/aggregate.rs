//! One value out of those of several ranks, as `summary.py` aggregates them.

/// What a sum over ranks is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aggregator {
    /// The least.
    Min,
    /// The most.
    Max,
    /// The mean.
    #[default]
    Mean,
    /// The median.
    Median,
    /// The sum.
    Sum,
    /// The second least; of two their mean.
    SecondLeast,
    /// The second most; of two their mean.
    SecondMost,
}

impl Aggregator {
    /// All, with their names.
    pub const ALL: [(&'static str, &'static str, Self); 7] = [
        ("min", "smallest value", Self::Min),
        ("max", "largest value", Self::Max),
        ("mean", "mean of the values", Self::Mean),
        ("median", "median of the values", Self::Median),
        ("sum", "sum of the values", Self::Sum),
        ("min+1", "second smallest value", Self::SecondLeast),
        ("max-1", "second largest value", Self::SecondMost),
    ];

    /// Aggregates; of nothing 0.
    pub fn of(self, values: &[u64]) -> f64 {
        let mut values = values.to_vec();
        values.sort_unstable();
        let sum = || values.iter().map(|value| *value as f64).sum::<f64>();
        let at = |index: usize| values.get(index).map_or(0.0, |value| *value as f64);
        let last = values.len().saturating_sub(1);
        match (self, values.len()) {
            (Self::Sum, _) => sum(),
            (_, 0) => 0.0,
            (Self::Min, _) => at(0),
            (Self::Max, _) => at(last),
            (Self::Mean, count) => sum() / count as f64,
            (Self::Median, count) => (at(last / 2) + at(count / 2)) / 2.0,
            (Self::SecondLeast | Self::SecondMost, 1) => at(0),
            // Whole numbers, as the script divides them.
            (Self::SecondLeast | Self::SecondMost, 2) => ((at(0) + at(1)) / 2.0).floor(),
            (Self::SecondLeast, _) => at(1),
            (Self::SecondMost, _) => at(last - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the script's functions in Python.
    #[test]
    fn values_are_aggregated() {
        let all = |values: &[u64]| Aggregator::ALL.map(|(.., one)| one.of(values));
        let expected = [1.0, 9.0, 4.5, 4.0, 18.0, 3.0, 5.0];
        assert_eq!(all(&[5, 1, 9, 3]), expected);
        assert_eq!(all(&[4, 1]), [1.0, 4.0, 2.5, 2.5, 5.0, 2.0, 2.0]);
        assert_eq!(all(&[7]), [7.0; 7]);
        assert_eq!(all(&[]), [0.0; 7]);
    }
}
