//! A call as a line of text.

use super::{TraceOptions, args, results};
use crate::export::text;
use aiprof_record::correlate::FinishedCall;
use std::fmt::{self, Write};

/// Writes a call, without an end of line.
pub(super) fn line(out: &mut String, call: &FinishedCall, comm: &str, options: &TraceOptions) {
    // Writing to a string cannot fail.
    let _ = write(out, call, comm, options);
}

fn write(out: &mut String, call: &FinishedCall, comm: &str, options: &TraceOptions) -> fmt::Result {
    time(out, call.start_ns, options)?;
    write!(out, " {}[{}", text::one_line(comm), call.pid)?;
    if call.tid != call.pid {
        write!(out, "/{}", call.tid)?;
    }
    out.push_str("] ");
    if options.nested {
        (0..call.nesting.depth).for_each(|_| out.push_str("  "));
    }
    out.push_str(&text::one_line(&call.probe.function));
    match options.no_args {
        true => out.push_str("()"),
        false => args::write(out, call)?,
    }
    out.push_str(" = ");
    match call.result {
        Some(result) => results::write(out, call.probe.result, result)?,
        None => out.push('?'),
    }
    match call.duration_ns() {
        Some(ns) => write!(out, " <{}>", text::duration(ns))?,
        None if call.probe.has_exit => out.push_str(" <end not seen>"),
        None => out.push_str(" <end not probed>"),
    }
    match &call.work.first {
        Some(name) => write!(out, " # {}", text::one_line(&name.to_string())),
        None => Ok(()),
    }
}

/// Seconds since the origin, or the time of day.
fn time(out: &mut String, ns: u64, options: &TraceOptions) -> fmt::Result {
    let since = i128::from(ns) - i128::from(options.origin_ns);
    match options.unix_ns {
        Some(unix) => utc(out, (since + i128::from(unix)).max(0)),
        None => {
            let sign = if since < 0 { "-" } else { "" };
            let us = since.unsigned_abs() / 1000;
            let seconds = format!("{sign}{}.{:06}", us / 1_000_000, us % 1_000_000);
            write!(out, "{seconds:>12}")
        }
    }
}

/// `2026-01-31T23:59:59.123456Z`.
fn utc(out: &mut String, unix_ns: i128) -> fmt::Result {
    let us = unix_ns / 1000;
    let (seconds, us) = (us / 1_000_000, us % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    write!(
        out,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z"
    )
}

/// Year, month and day of a day since 1970-01-01 (proleptic Gregorian calendar),
/// counted in years that begin in March, so that the leap day is the last.
fn civil(days: i128) -> (i128, i128, i128) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i128::from(month <= 2), month, day)
}
