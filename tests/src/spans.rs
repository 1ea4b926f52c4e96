//! Spans of time, for what is computed from the truth.

use std::ops::{Add, Sub};

/// How long at least one of these runs: pairs of begin and end.
pub fn covered<T>(mut spans: Vec<(T, T)>) -> T
where
    T: Copy + Default + PartialOrd + Add<Output = T> + Sub<Output = T>,
{
    spans.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    let mut sum = T::default();
    let mut reach: Option<T> = None;
    for (begin, end) in spans {
        let from = reach.filter(|reach| *reach > begin).unwrap_or(begin);
        if end > from {
            sum = sum + (end - from);
            reach = Some(end);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::covered;

    #[test]
    fn time_counts_once() {
        assert_eq!(covered::<u64>(Vec::new()), 0);
        assert_eq!(covered(vec![(5, 9), (1, 3), (2, 3), (9, 9)]), 6);
        assert_eq!(covered(vec![(0.0, 10.0), (2.0, 4.0), (8.0, 12.0)]), 12.0);
    }
}
