//! Sums and spread of numbers.

/// Count, sum, extremes, mean and deviation, of numbers given one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// The smallest; 0: there is none.
    pub min: f64,
    /// The largest; 0: there is none.
    pub max: f64,
    mean: f64,
    /// Sum of squares of distances from the mean (Welford).
    squares: f64,
}

impl Spread {
    /// Adds a number.
    pub(crate) fn add(&mut self, number: f64) {
        self.min = match self.count {
            0 => number,
            _ => self.min.min(number),
        };
        self.max = match self.count {
            0 => number,
            _ => self.max.max(number),
        };
        self.count += 1;
        self.sum += number;
        let away = number - self.mean;
        self.mean += away / self.count as f64;
        self.squares += away * (number - self.mean);
    }

    /// Their mean; 0: there is none.
    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    /// Deviation of a sample (n - 1); 0 of fewer than two.
    pub(crate) fn deviation(&self) -> f64 {
        match self.count {
            0 | 1 => 0.0,
            count => (self.squares / (count - 1) as f64).sqrt(),
        }
    }
}

/// The number below which a part of sorted numbers lies, between two of them in
/// proportion, as pandas and NumPy have it.
pub(crate) fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = part.clamp(0.0, 1.0) * last as f64;
    let below = sorted.get(place.floor() as usize)?;
    let above = sorted.get(place.ceil() as usize)?;
    Some(below + (above - below) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `pandas.Series([1, 2, 4, 9]).describe()`.
    #[test]
    fn spread_and_quantiles_are_those_of_pandas() {
        let numbers = [1.0, 2.0, 4.0, 9.0];
        let mut spread = Spread::default();
        numbers.iter().for_each(|number| spread.add(*number));
        assert_eq!((spread.count, spread.sum), (4, 16.0));
        assert_eq!((spread.min, spread.max, spread.mean()), (1.0, 9.0, 4.0));
        assert!((spread.deviation() - 3.559_026_084_010_437).abs() < 1e-12);
        let quantiles = [0.25, 0.5, 0.75].map(|part| quantile(&numbers, part));
        assert_eq!(quantiles, [Some(1.75), Some(3.0), Some(5.25)]);
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(Spread::default().deviation(), 0.0);
    }
}
