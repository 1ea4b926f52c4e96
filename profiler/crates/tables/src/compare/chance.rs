//! Student's distribution, and Holm's correction.

/// Steps of the continued fraction at most: enough for millions of degrees of freedom.
const STEPS: u32 = 5000;

/// Degrees of freedom from which on Student's distribution is the normal one.
pub(super) const MANY: f64 = 1e6;

/// The probability that Student's variable is further from 0 than `t`.
pub fn student_beyond(t: f64, freedom: f64) -> f64 {
    if t.is_nan() || freedom <= 0.0 {
        return 1.0;
    }
    if t.is_infinite() {
        return 0.0;
    }
    beta(freedom / 2.0, 0.5, freedom / (freedom + t * t)).clamp(0.0, 1.0)
}

/// What Student's variable is further from 0 than with probability `p`.
pub fn student_quantile(p: f64, freedom: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while student_beyond(high, freedom) > p && high < 1e9 {
        high *= 2.0;
    }
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        match student_beyond(middle, freedom) > p {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

/// Which of many chances hold against all of them at a level: Holm's step-down procedure, with
/// weights (Scandinavian Journal of Statistics 6, 1979). Each chance has its part of the level, so
/// that an important one is not lost among many that are not. Weights must not know the change: take the mean of
/// before and after. What has no chance or no weight is no comparison. The result is in the order of
/// `chances`.
pub fn hold(chances: &[(Option<f64>, f64)], level: f64) -> Vec<bool> {
    let known = |(at, (chance, weight)): (usize, &(Option<f64>, f64))| {
        let is_one = |p: &f64| !p.is_nan() && *weight > 0.0;
        Some((chance.filter(is_one)?, *weight, at))
    };
    let mut order: Vec<(f64, f64, usize)> = chances.iter().enumerate().filter_map(known).collect();
    order.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let mut holds = vec![false; chances.len()];
    let mut left: f64 = order.iter().map(|one| one.1).sum();
    for (chance, weight, at) in order {
        if chance * left > level * weight {
            break;
        }
        left -= weight;
        if let Some(held) = holds.get_mut(at) {
            *held = true;
        }
    }
    holds
}

/// The regularized incomplete beta function (DLMF 8.17), by its continued fraction
/// (8.17.22).
fn beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let front = ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p();
    // It converges fast on this side only.
    match x < (a + 1.0) / (a + b + 2.0) {
        true => front.exp() * fraction(a, b, x) / a,
        false => 1.0 - front.exp() * fraction(b, a, 1.0 - x) / b,
    }
}

/// The continued fraction, by Lentz's method.
fn fraction(a: f64, b: f64, x: f64) -> f64 {
    let guarded = |value: f64| match value.abs() < 1e-300 {
        true => 1e-300,
        false => value,
    };
    let (mut c, mut d) = (1.0, 1.0 / guarded(1.0 - (a + b) * x / (a + 1.0)));
    let mut result = d;
    for step in 1..=STEPS {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / guarded(1.0 + even * d);
        c = guarded(1.0 + even / c);
        result *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / guarded(1.0 + odd * d);
        c = guarded(1.0 + odd / c);
        result *= d * c;
        if (d * c - 1.0).abs() < 1e-14 {
            break;
        }
    }
    result
}

/// The logarithm of the gamma function for positive numbers: Stirling's series (DLMF
/// 5.11.1) after the recurrence has made them large.
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut less) = (x, 0.0);
    while x < 12.0 {
        less += x.ln();
        x += 1.0;
    }
    let (r, s) = (1.0 / x, 1.0 / (x * x));
    let series = r * (1.0 / 12.0 - s * (1.0 / 360.0 - s * (1.0 / 1260.0 - s / 1680.0)));
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series - less
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the tables of NIST's handbook of statistics (1.3.6.7.2) and the normal one.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (p, freedom, expected) in [
            (0.05, 1.0, 12.706),
            (0.05, 2.0, 4.303),
            (0.05, 19.0, 2.093),
            (0.05, 100.0, 1.984),
            (0.002, 10.0, 4.144),
            (0.05, MANY, 1.960),
            (0.002, MANY, 3.090),
        ] {
            let found = student_quantile(p, freedom);
            assert!((found - expected).abs() < 6e-4, "{p} {freedom}: {found}");
            assert!((student_beyond(found, freedom) - p).abs() < 1e-9);
        }
    }

    /// `erfc(z / sqrt(2))` for z = 1, 4 and 6, from tables of the error function.
    #[test]
    fn tails_are_right_far_out() {
        for (z, expected) in [(1.0, 0.317_310_5), (4.0, 6.334_248e-5), (6.0, 1.973_175e-9)] {
            let found = student_beyond(z, 1e9);
            assert!((found / expected - 1.0).abs() < 1e-4, "{z}: {found:e}");
        }
        assert_eq!(student_beyond(f64::INFINITY, 3.0), 0.0);
        assert_eq!(student_beyond(f64::NAN, 3.0), 1.0);
    }

    /// By hand: 0.01 * 4 and 0.013 * 3 are below 0.05, 0.03 * 2 is not, and nothing after
    /// that holds.
    #[test]
    fn holm_stops_at_the_first_that_does_not_hold() {
        let all = |chances: &[Option<f64>], weights: &[f64]| {
            let all = chances.iter().copied().zip(weights.iter().copied());
            hold(&all.collect::<Vec<_>>(), 0.05)
        };
        let chances = [Some(0.03), Some(0.01), None, Some(0.013), Some(0.04)];
        let expected = [false, true, false, true, false];
        assert_eq!(all(&chances, &[2.0; 5]), expected);
        assert_eq!(all(&[None], &[1.0]), [false]);
        // 0.03 has eight of ten parts, 0.012 has two: 0.0375 and, left alone, 0.012.
        assert_eq!(all(&[Some(0.03), Some(0.012)], &[8.0, 2.0]), [true, true]);
        assert_eq!(all(&[Some(0.03), Some(0.012)], &[2.0, 8.0]), [true, true]);
        assert_eq!(all(&[Some(0.03), Some(0.06)], &[8.0, 2.0]), [true, false]);
        assert_eq!(all(&[Some(0.03), Some(0.06)], &[2.0, 8.0]), [false, false]);
    }
}
