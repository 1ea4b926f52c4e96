//! Numbers as traces write them.

use super::{Length, Time};
use std::io::{self, Write};

/// Microseconds as a trace has them: whole ones and the rest, so that nanoseconds
/// survive whatever the clock's origin is (a double has none left since 1970).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Micros {
    /// Whole microseconds.
    pub whole: i64,
    /// The rest, in [0, 1).
    pub rest: f64,
}

impl Micros {
    /// Reads a JSON number, or one in quotes. `None`: not a number, or one that no
    /// clock shows (beyond 2^62 µs).
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim_matches('"');
        if let Some(exact) = Self::parse_plain(text) {
            return Some(exact);
        }
        // Exponents and the like.
        let number: f64 = text.trim().parse().ok()?;
        Self::from_f64(number)
    }

    /// The number of a double.
    fn from_f64(number: f64) -> Option<Self> {
        let whole = number.floor();
        (whole.abs() < (1i64 << 62) as f64).then_some(Self {
            whole: whole as i64,
            rest: number - whole,
        })
    }

    /// `-?digits[.digits]`, exactly.
    fn parse_plain(text: &str) -> Option<Self> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, rest) = digits.split_once('.').unwrap_or((digits, ""));
        if whole.is_empty() || whole.len() > 18 {
            return None;
        }
        let number = |text: &str| {
            text.bytes().try_fold(0i64, |n, digit| {
                digit
                    .is_ascii_digit()
                    .then(|| n * 10 + i64::from(digit - b'0'))
            })
        };
        // More decimals than a double holds do not matter, as long as they are digits.
        let (kept, more) = rest.split_at_checked(rest.len().min(15))?;
        if !more.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let whole = number(whole)?;
        let rest = number(kept)? as f64 / POWERS[kept.len()];
        Some(match (negative, rest > 0.0) {
            (false, _) => Self { whole, rest },
            (true, false) => Self {
                whole: -whole,
                rest: 0.0,
            },
            (true, true) => Self {
                whole: -whole - 1,
                rest: 1.0 - rest,
            },
        })
    }

    /// The time since `origin`, which is in microseconds, to the nearest picosecond.
    pub fn since(self, origin: i64) -> Time {
        match Time::from_whole_micros(self.whole.saturating_sub(origin)) {
            Time::FIRST => Time::FIRST,
            whole => whole + Length::from_micros(self.rest),
        }
    }
}

const POWERS: [f64; 16] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
];

/// Times closer than half a nanosecond are one in every output, microseconds.
pub const SAME_US: f64 = 0.0005;

/// Nanoseconds of a time in microseconds, rounded. `None` beyond what fits.
pub fn nanoseconds(us: f64) -> Option<i64> {
    // Whole ones first: times far from the origin have no bits to spare.
    let whole = us.floor();
    let rest = ((us - whole) * 1000.0).round();
    (whole.abs() < (1i64 << 52) as f64).then(|| whole as i64 * 1000 + rest as i64)
}

/// Writes microseconds since `origin` as a JSON number with up to three decimals.
///
/// # Errors
/// As `out`.
pub fn write_micros(out: &mut impl Write, origin: i64, us: f64) -> io::Result<()> {
    let Some(ns) = nanoseconds(us) else {
        let us = if us.is_finite() {
            us + origin as f64
        } else {
            0.0
        };
        return write!(out, "{us}");
    };
    write_nanos(out, i128::from(origin) * 1000 + i128::from(ns))
}

/// Writes a time as microseconds with up to three decimals, which count from what the
/// file's clock counts from; `origin`, in microseconds, is the timeline's. What is too
/// far before it is 0: a file from 1970 on has no other time so early.
///
/// # Errors
/// As `out`.
pub fn write_time(out: &mut impl Write, origin: i64, time: Time) -> io::Result<()> {
    match time {
        Time::FIRST => out.write_all(b"0"),
        time => write_nanos(
            out,
            i128::from(origin) * 1000 + i128::from(time.nearest_nanos()),
        ),
    }
}

/// Writes nanoseconds as a JSON number of microseconds, with up to three decimals.
///
/// # Errors
/// As `out`.
pub fn write_nanos(out: &mut impl Write, all: i128) -> io::Result<()> {
    let (sign, all) = if all < 0 { ("-", -all) } else { ("", all) };
    out.write_all(sign.as_bytes())?;
    let (whole, rest) = ((all / 1000) as u64, (all % 1000) as u32);
    write_u64(out, whole)?;
    if rest == 0 {
        return Ok(());
    }
    let digits = [
        b'.',
        b'0' + (rest / 100) as u8,
        b'0' + (rest / 10 % 10) as u8,
        b'0' + (rest % 10) as u8,
    ];
    let len = match rest {
        _ if rest % 100 == 0 => 2,
        _ if rest % 10 == 0 => 3,
        _ => 4,
    };
    out.write_all(digits.get(..len).unwrap_or(&digits))
}

/// Writes a number in digits, without the machinery of formatting.
///
/// # Errors
/// As `out`.
pub fn write_u64(out: &mut impl Write, mut number: u64) -> io::Result<()> {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.write_all(digits.get(at..).unwrap_or_default())
}

/// Writes a signed number in digits.
///
/// # Errors
/// As `out`.
pub fn write_i64(out: &mut impl Write, number: i64) -> io::Result<()> {
    if number < 0 {
        out.write_all(b"-")?;
    }
    write_u64(out, number.unsigned_abs())
}

/// A counter value: a JSON number or a text, decimal or `0x` and hexadecimal.
pub fn parse_counter(text: &str) -> Option<i64> {
    let text = text.trim_matches('"').trim();
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let value = match hex {
        Some(digits) => i64::from_str_radix(digits, 16).ok()?,
        None => match text.parse() {
            Ok(value) => value,
            Err(_) => {
                let float: f64 = text.parse().ok()?;
                (float.fract() == 0.0 && float.abs() < (1i64 << 53) as f64)
                    .then_some(float as i64)?
            }
        },
    };
    // Larger ones leave no room for wraps.
    (0..1 << 60).contains(&value).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_keep_their_nanoseconds() {
        let cases = [
            ("1751234567890123.456", 1_751_234_567_890_123, 0.456),
            ("\"12.5\"", 12, 0.5),
            ("-1.25", -2, 0.75),
            ("-3", -3, 0.0),
            ("0", 0, 0.0),
            ("1e3", 1000, 0.0),
            ("1.5E-1", 0, 0.15),
            ("2.0000000000000000001", 2, 0.0),
        ];
        for (text, whole, rest) in cases {
            let micros = Micros::parse(text).unwrap();
            assert_eq!(micros.whole, whole, "{text}");
            assert!((micros.rest - rest).abs() < 1e-12, "{text}");
        }
        for bad in [
            "", "\"\"", "null", "NaN", "Infinity", "1.2.3", "1e300", "0x10", "[1]", "-",
        ] {
            assert_eq!(Micros::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn microseconds_are_written_as_they_were_read() {
        for text in [
            "1751234567890123.456",
            "0",
            "-1.25",
            "12.5",
            "3.07",
            "-0.001",
            "7",
        ] {
            let micros = Micros::parse(text).unwrap();
            for origin in [0, 1_751_234_567_890_000, -5] {
                let mut out = Vec::new();
                // So far do times reach.
                if (micros.whole - origin).abs() < 1 << 43 {
                    write_time(&mut out, origin, micros.since(origin)).unwrap();
                    assert_eq!(String::from_utf8(out).unwrap(), text);
                }
            }
        }
        let mut out = Vec::new();
        let early = Micros::parse("0").unwrap().since(1_751_234_567_890_000);
        write_time(&mut out, 1_751_234_567_890_000, early).unwrap();
        assert_eq!(out, b"0");
        let mut out = Vec::new();
        write_micros(&mut out, 5, f64::NAN).unwrap();
        write_micros(&mut out, 0, 1e300).unwrap();
        assert!(!out.is_empty());
    }

    #[test]
    fn counters_are_read_in_every_form() {
        for (text, value) in [
            ("\"0x438d671c\"", Some(0x438d_671c)),
            ("2552537956", Some(2_552_537_956)),
            ("\"17\"", Some(17)),
            ("17.0", Some(17)),
            ("-1", None),
            ("1.5", None),
            ("\"\"", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(parse_counter(text), value, "{text}");
        }
    }
}
