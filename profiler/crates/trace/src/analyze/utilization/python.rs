//! Numbers as Python and pandas write them, for tables that are compared with theirs.

/// A float as Python's `repr`: the shortest text that reads back as the same.
pub fn repr(value: f64) -> String {
    if !value.is_finite() {
        return match value {
            v if v.is_nan() => "nan".to_owned(),
            v if v > 0.0 => "inf".to_owned(),
            _ => "-inf".to_owned(),
        };
    }
    // Both write the same where neither needs an exponent.
    if value == 0.0 || (1e-4..1e16).contains(&value.abs()) {
        return format!("{value:?}");
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    with_exponent(digits, exponent)
}

/// The same as JSON: what is no number there is null.
pub fn json(value: f64) -> String {
    match value.is_finite() {
        true => repr(value),
        false => "null".to_owned(),
    }
}

/// Python's `'%.6e'`.
pub fn scientific(value: f64) -> String {
    let text = format!("{value:.6e}");
    match text.split_once('e') {
        Some((digits, exponent)) => with_exponent(digits, exponent.parse().unwrap_or(0)),
        None => repr(value),
    }
}

fn with_exponent(digits: &str, exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// Python's `round(value, digits)`: to the nearest decimal, ties of the exact value to
/// even.
pub fn round(value: f64, digits: usize) -> f64 {
    format!("{value:.digits$}").parse().unwrap_or(value)
}

/// A column of floats as pandas' `to_string` shows it, without padding. It has six
/// decimals, less the zeros at the end of all, or exponents where that hides small values
/// or takes too much room.
pub(crate) fn pandas_floats(values: &[f64]) -> Vec<String> {
    const DIGITS: usize = 6;
    let fixed = trim_zeros(
        values
            .iter()
            .map(|v| shown(*v, |v| format!("{v:.DIGITS$}"))),
    );
    let is_long = fixed.iter().any(|text| text.len() > DIGITS + 6);
    let has_large = values.iter().any(|v| v.abs() > 1e6);
    let has_small = values.iter().any(|v| v.abs() > 0.0 && v.abs() < 1e-6);
    if has_small || (is_long && has_large) {
        return values.iter().map(|v| shown(*v, scientific)).collect();
    }
    fixed
}

fn shown(value: f64, text: impl Fn(f64) -> String) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        repr(value)
    } else {
        text(value)
    }
}

fn trim_zeros(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut texts: Vec<_> = texts.collect();
    let zeros_of = |text: &String| text.len() - text.trim_end_matches('0').len();
    let numbers = texts.iter().filter(|text| text.contains('.'));
    let cut = numbers.map(zeros_of).min().unwrap_or(0);
    for text in texts.iter_mut().filter(|text| text.contains('.')) {
        text.truncate(text.len() - cut);
        if text.ends_with('.') {
            text.push('0');
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_in_json_is_null() {
        for value in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            assert_eq!(json(value), "null");
        }
        assert_eq!(json(1e-5), "1e-05");
    }

    /// Each: repr() of CPython 3.11.
    #[test]
    fn floats_are_python_s() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (0.47037702053785324, "0.47037702053785324"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(repr(value), text);
        }
    }

    /// Each: round() of CPython 3.11.
    #[test]
    fn rounding_is_python_s() {
        for (value, digits, rounded) in [
            (0.125, 2, 0.12),
            (0.375, 2, 0.38),
            (2.675, 2, 2.67),
            (0.00005, 4, 0.0001),
            (2.5, 0, 2.0),
            (-1.00005, 4, -1.0001),
            (1e22, 4, 1e22),
        ] {
            assert_eq!(round(value, digits), rounded, "{value}");
        }
    }

    /// Each: the column of a DataFrame's to_string() of pandas 2.
    #[test]
    fn columns_are_pandas_s() {
        let check = |values: &[f64], texts: &[&str]| assert_eq!(pandas_floats(values), texts);
        check(&[1e-7, 5.0], &["1.000000e-07", "5.000000e+00"]);
        check(&[1234567.5, 2.0], &["1234567.5", "2.0"]);
        check(&[2e6, 1.123456789], &["2.000000e+06", "1.123457e+00"]);
        check(&[1e-5], &["0.00001"]);
        check(&[123456789012.5, 100.0], &["1.234568e+11", "1.000000e+02"]);
        check(&[0.0, 0.1308], &["0.0000", "0.1308"]);
        check(&[], &[]);
    }
}
