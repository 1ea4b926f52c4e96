//! Sums of floating-point numbers in torch's way.

/// A sum as Python's `sum()` makes it since 3.12: Neumaier's, which keeps what each
/// addition loses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Compensated {
    sum: f64,
    lost: f64,
}

impl Compensated {
    /// Adds a number.
    pub(super) fn add(&mut self, number: f64) {
        let sum = self.sum + number;
        self.lost += match self.sum.abs() >= number.abs() {
            true => (self.sum - sum) + number,
            false => (number - sum) + self.sum,
        };
        self.sum = sum;
    }

    /// The sum.
    pub(super) fn value(self) -> f64 {
        match self.lost.is_finite() {
            true => self.sum + self.lost,
            false => self.sum,
        }
    }
}

impl FromIterator<f64> for Compensated {
    fn from_iter<I: IntoIterator<Item = f64>>(numbers: I) -> Self {
        let mut sum = Self::default();
        numbers.into_iter().for_each(|number| sum.add(number));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Python 3.12 prints for `sum([...])`; the plain sums are 0.9999999999999999
    /// and 0.0.
    #[test]
    fn what_is_lost_comes_back() {
        let tenths: Compensated = [0.1; 10].into_iter().collect();
        assert_eq!(tenths.value(), 1.0);
        let large: Compensated = [1e100, 1.0, -1e100].into_iter().collect();
        assert_eq!(large.value(), 1.0);
        let infinite: Compensated = [f64::INFINITY, 1.0].into_iter().collect();
        assert_eq!(infinite.value(), f64::INFINITY);
    }
}
