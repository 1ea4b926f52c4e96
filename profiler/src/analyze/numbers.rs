//! Numbers as acelyzer's messages and counters write them.

/// A double as Python prints it: the shortest digits that read back the same.
pub fn shortest(value: f64) -> String {
    if !value.is_finite() {
        return match value {
            value if value.is_nan() => "nan".into(),
            value if value > 0.0 => "inf".into(),
            _ => "-inf".into(),
        };
    }
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        return match text.split_once('e') {
            Some((digits, exponent)) => format!("{digits}e{}", exponent_of(exponent)),
            None => text,
        };
    }
    format!("{value:?}")
}

/// A double with so many decimals in scientific notation, as C's `%.6e`.
pub fn scientific(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    match text.split_once('e') {
        Some((digits, exponent)) => format!("{digits}e{}", exponent_of(exponent)),
        None => text,
    }
}

/// An exponent with its sign and at least two digits.
fn exponent_of(digits: &str) -> String {
    match digits.strip_prefix('-') {
        Some(digits) => format!("-{digits:0>2}"),
        None => format!("+{digits:0>2}"),
    }
}

/// Rounds to so many decimals: the nearest of the exact value, ties to even.
pub fn rounded(value: f64, decimals: usize) -> f64 {
    if !value.is_finite() || value.abs() >= 1e15 {
        return value;
    }
    format!("{value:.decimals$}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected: what Python 3.11 prints.
    #[test]
    fn numbers_are_written_as_by_python() {
        for (value, text) in [
            (0.0, "0.0"),
            (557.05, "557.05"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-12.0, "-12.0"),
            (1e15, "1000000000000000.0"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(shortest(value), text);
        }
        assert_eq!(scientific(2_097_962_448_902.677_2, 6), "2.097962e+12");
        assert_eq!(scientific(1e-7, 6), "1.000000e-07");
        assert_eq!(scientific(0.0, 6), "0.000000e+00");
    }

    /// Expected: what Python 3.11's `round` returns.
    #[test]
    fn numbers_are_rounded_as_by_python() {
        for (value, decimals, result) in [
            (2.675, 2, 2.67),
            (0.125, 2, 0.12),
            (0.375, 2, 0.38),
            (1e22, 3, 1e22),
            (-1.0005, 3, -1.0),
        ] {
            assert_eq!(rounded(value, decimals), result, "{value}");
        }
    }
}
