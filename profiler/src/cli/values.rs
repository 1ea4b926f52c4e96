//! Parsing and printing of the values that options take and reports show.

#[cfg(feature = "live")]
use aiprof_live::torch::{
    MAX_WINDOW as TORCH_MAX_WINDOW, MIN_WINDOW as TORCH_MIN_WINDOW, TorchOptions,
};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest duration that an option takes: ten years.
const MAX_SECONDS: f64 = 10.0 * 365.0 * 86_400.0;

/// Parses a name that stands for a value. `known`: the names, their lines of help, the values.
pub(crate) fn named<T: Copy + Send + Sync + 'static>(
    known: &'static [(&'static str, &'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let listed = known.iter();
    let listed = listed.map(|(name, help, _)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(listed).try_map(move |given| {
        let found = known.iter().find(|(name, ..)| *name == given);
        found.map(|(.., value)| *value).ok_or("unknown name")
    })
}

/// Parses `30`, `30s`, `1.5m`, `500ms`, `2h` or `1d`.
///
/// # Errors
/// What a duration must look like.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(format!("unknown unit '{unit}': use ms, s, m, h or d")),
    };
    let seconds = number
        .parse::<f64>()
        .map_err(|_| "expected a number with an optional unit, such as 30, 30s or 2m".to_owned())?
        * scale;
    // Also refuses NaN; below a millisecond there is nothing to record.
    if !(0.001..=MAX_SECONDS).contains(&seconds) {
        return Err("must be at least 1ms and at most 3650d".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Parses `LENGTH` or `LENGTH/EVERY`.
///
/// # Errors
/// What it must look like.
#[cfg(feature = "live")]
pub(crate) fn parse_torch_window(text: &str) -> Result<TorchOptions, String> {
    let (window, every) = match text.split_once('/') {
        Some((window, every)) => (window, Some(every)),
        None => (text, None),
    };
    let window = parse_duration(window)?;
    if !(TORCH_MIN_WINDOW..=TORCH_MAX_WINDOW).contains(&window) {
        return Err("a window must be at least 10ms and at most 60s".to_owned());
    }
    let every = every.map(parse_duration).transpose()?;
    if every.is_some_and(|every| every < window) {
        return Err("in LENGTH/EVERY, EVERY must be at least LENGTH".to_owned());
    }
    Ok(TorchOptions { window, every })
}

/// Parses a process id.
///
/// # Errors
/// How to find one.
pub(crate) fn parse_pid(text: &str) -> Result<u32, String> {
    let pid = text.parse::<u32>().ok();
    pid.filter(|pid| (1..=0x7fff_ffff).contains(pid)).ok_or_else(|| {
        "expected a PID: `pgrep -x NAME` prints it, and `aiprof -p $(pgrep -d, -x NAME)` selects \
         all processes with that name"
            .to_owned()
    })
}

/// Parses `TABLE=DEVICE`.
///
/// # Errors
/// What it must look like.
pub(crate) fn parse_stand_in(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((table, device)) if !table.is_empty() && !device.is_empty() => {
            Ok((table.to_owned(), device.into()))
        }
        _ => Err("expected TABLE=DEVICE, such as xe=/dev/xe_test".to_owned()),
    }
}

/// Parses a length of time in nanoseconds: `500ns`, `10us`, `1.5ms`, `2s`.
///
/// # Errors
/// What it must look like.
pub(crate) fn parse_span(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = text.split_at(split.unwrap_or(text.len()));
    let scale = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err("expected a time with its unit, such as 500ns, 10us, 1ms or 2s".into()),
    };
    let ns = number.parse::<f64>().map_err(|e| e.to_string())? * scale;
    if !(0.0..=MAX_SECONDS * 1e9).contains(&ns) {
        return Err("must be at least 0ns and at most 3650d".to_owned());
    }
    Ok(ns as u64)
}

/// What a noun ends in behind a number.
pub(crate) fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A duration for people: `820 ms`, `12.3 s`, `5 min 02 s`, `3 h 07 min`.
pub(crate) fn human_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let s = duration.as_secs();
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", s, ms % 1000 / 100),
        60_000..3_600_000 => format!("{} min {:02} s", s / 60, s % 60),
        _ => format!("{} h {:02} min", s / 3600, s / 60 % 60),
    }
}

/// Bytes in binary units, one decimal: `37.5 MiB`.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut tenths = u128::from(bytes) * 10 / 1024;
    let mut unit = "KiB";
    for next in UNITS.into_iter().skip(1) {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1024;
        unit = next;
    }
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// A point in time as `20260131T235959Z` (UTC), which sorts by time.
pub(crate) fn timestamp(time: SystemTime) -> String {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (year, month, day) = civil_date(seconds / 86_400);
    let second = seconds % 86_400;
    let mut out = String::with_capacity(16);
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    );
    out
}

/// Gregorian date of a day counted from 1970-01-01. Years are counted from March,
/// so that the leap day is the last day of its year.
fn civil_date(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468; // days from 0000-03-01 to 1970-01-01
    let era = day / 146_097; // 400 years
    let of_era = day % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, ms) in [
            ("30", 30_000),
            ("30s", 30_000),
            ("2m", 120_000),
            ("1.5m", 90_000),
            ("500ms", 500),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("0.25", 250),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        }
    }

    #[test]
    fn other_durations_are_refused() {
        for text in [
            "", "s", "-1", "0", "0s", "5x", "1 2", "nan", "inf", "1e99", "99999d", "٣",
        ] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn spans_have_units() {
        for (text, ns) in [
            ("500ns", 500),
            ("10us", 10_000),
            ("1.5ms", 1_500_000),
            ("0s", 0),
        ] {
            assert_eq!(parse_span(text), Ok(ns), "{text}");
        }
        for text in ["", "10", "us", "-1us", "1min", "nanms", "1e99s", "1 us"] {
            assert!(parse_span(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn numbers_are_grouped() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(n), text);
        }
    }

    #[test]
    fn durations_are_shown_as_people_say_them() {
        for (ms, text) in [
            (820, "820 ms"),
            (12_399, "12.3 s"),
            (302_000, "5 min 02 s"),
            (11_220_000, "3 h 07 min"),
        ] {
            assert_eq!(human_duration(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn bytes_are_shown_in_binary_units() {
        for (n, text) in [
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (39_321_600, "37.5 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(human_bytes(n), text);
        }
    }

    #[test]
    fn timestamps_are_utc() {
        // Expected values from date(1): date -u -d @SECONDS +%Y%m%dT%H%M%SZ
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (1_709_251_199, "20240229T235959Z"),
            (1_735_689_600, "20250101T000000Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(timestamp(time), text);
        }
    }
}
