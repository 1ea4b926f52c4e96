//! What a query is about: a time, and conditions.

use aiprof_lake::schema::{LABELS, NUMBERS, TextField};
use aiprof_lake::time::NS_PER_US;
use anyhow::Result;
use clap::Args;
use datafusion::common::ScalarValue;
use datafusion::functions::core::expr_fn::get_field;
use datafusion::prelude::{Expr, col, lit};
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nanoseconds of a day.
const DAY_NS: u64 = aiprof_lake::time::DAY_NS;

/// The command line is wrong.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

fn usage(message: impl Into<String>) -> anyhow::Error {
    UsageError(message.into()).into()
}

/// A time, and conditions.
#[derive(Clone, Debug, Args)]
pub(crate) struct SelectArgs {
    /// Include windows that began at this time or later [default: -1h]
    ///
    /// TIME is now, today, yesterday, a day (2026-11-26), a time ago (-1h), or a time in
    /// RFC 3339 (2026-11-26T10:00:00Z).
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,

    /// Include windows that began before this time, in the format of --from [default: now]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) to: Option<String>,

    /// Include only this service
    #[arg(long)]
    pub(crate) service: Option<String>,

    /// Include only this host, by name or ID
    #[arg(long)]
    pub(crate) host: Option<String>,

    /// Include only rows in which a column or label has this value
    ///
    /// You can give this option several times: all conditions must be met. KEY= selects rows
    /// without the label.
    #[arg(long = "where", value_name = "KEY=VALUE")]
    pub(crate) conditions: Vec<String>,

    /// Type of the samples: cpu, off_cpu, launches, device_time, ...
    #[arg(long = "type", value_name = "TYPE", default_value = "cpu")]
    pub(crate) sample_type: String,
}

/// Now, nanoseconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, nanoseconds)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A point in time, nanoseconds since the Unix epoch.
pub(crate) fn parse_time(text: &str, now: u64) -> Result<u64> {
    let today = now / DAY_NS * DAY_NS;
    match text {
        "now" => return Ok(now),
        "today" => return Ok(today),
        "yesterday" => return Ok(today.saturating_sub(DAY_NS)),
        _ => {}
    }
    let wrong = || {
        usage(format!(
            "{text}: not a time; write for example 2026-11-26T10:00:00Z, 2026-11-26, -1h or today"
        ))
    };
    if let Some(ago) = text.strip_prefix('-') {
        let ago = humantime::parse_duration(ago).map_err(|_| wrong())?;
        return Ok(now.saturating_sub(nanoseconds(ago)));
    }
    if let Some(day) = aiprof_lake::time::parse_date(text) {
        return Ok(u64::from(day) * DAY_NS);
    }
    let (plain, offset) = split_offset(text).ok_or_else(wrong)?;
    let time = humantime::parse_rfc3339_weak(plain).map_err(|_| wrong())?;
    let time = time.duration_since(UNIX_EPOCH).map_err(|_| wrong())?;
    let time = i128::from(nanoseconds(time)) - i128::from(offset) * 1_000_000_000;
    u64::try_from(time).map_err(|_| wrong())
}

/// A time without its offset from UTC, and that in seconds.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    let Some(at) = text.len().checked_sub(6).filter(|at| *at > 10) else {
        return Some((text, 0));
    };
    let Some((plain, offset)) = text.split_at_checked(at) else {
        return Some((text, 0));
    };
    let (sign, rest) = match offset.split_at_checked(1) {
        Some(("+", rest)) => (1, rest),
        Some(("-", rest)) => (-1, rest),
        _ => return Some((text, 0)),
    };
    let (hours, minutes) = rest.split_once(':')?;
    let number = |text: &str| -> Option<i64> { text.parse::<u8>().ok().map(i64::from) };
    Some((
        plain,
        sign * (number(hours)? * 3600 + number(minutes)? * 60),
    ))
}

/// A range: `FROM..TO`, `yesterday`, `today`, or a day; `None`: it is none of these.
pub(crate) fn parse_range(text: &str, now: u64) -> Result<Option<Range<u64>>> {
    if let Some((from, to)) = text.split_once("..") {
        let to = match to {
            "" => "now",
            to => to,
        };
        let range = parse_time(from, now)?..parse_time(to, now)?;
        if range.is_empty() {
            return Err(usage(format!("{text}: must end after it begins")));
        }
        return Ok(Some(range));
    }
    let is_day = aiprof_lake::time::parse_date(text).is_some();
    if is_day || text == "today" || text == "yesterday" {
        let from = parse_time(text, now)?;
        return Ok(Some(from..from + DAY_NS));
    }
    Ok(None)
}

impl SelectArgs {
    /// The time.
    pub(crate) fn range(&self, now: u64) -> Result<Range<u64>> {
        let from = parse_time(self.from.as_deref().unwrap_or("-1h"), now)?;
        let to = parse_time(self.to.as_deref().unwrap_or("now"), now)?;
        if from >= to {
            return Err(usage("--from must be before --to"));
        }
        Ok(from..to)
    }

    /// The message where there is nothing.
    pub(crate) fn has_none(&self) -> String {
        let mut text = format!("no samples of type {}", self.sample_type);
        let options = [("service", &self.service), ("host", &self.host)];
        for (name, value) in options {
            if let Some(value) = value {
                text.push_str(&format!(", {name} {value}"));
            }
        }
        for condition in &self.conditions {
            text.push_str(&format!(", {condition}"));
        }
        text.push_str(" in this time range (--from, --to)");
        text
    }

    /// The conditions, with those of time and type.
    pub(crate) fn filter(&self, range: &Range<u64>) -> Result<Expr> {
        let mut filter = in_range(range);
        filter = filter.and(col("sample_type").eq(lit(self.sample_type.as_str())));
        if let Some(service) = &self.service {
            filter = filter.and(col("service").eq(lit(service.as_str())));
        }
        if let Some(host) = &self.host {
            let host = lit(host.as_str());
            filter = filter.and(col("host").eq(host.clone()).or(col("host_id").eq(host)));
        }
        for condition in &self.conditions {
            filter = filter.and(equals(condition)?);
        }
        Ok(filter)
    }
}

/// Windows that began in a time.
pub(crate) fn in_range(range: &Range<u64>) -> Expr {
    let time = |unix_ns: u64| {
        let ns = i64::try_from(unix_ns).unwrap_or(i64::MAX);
        lit(ScalarValue::TimestampMicrosecond(
            Some(ns / NS_PER_US),
            Some("UTC".into()),
        ))
    };
    let from = col("time").gt_eq(time(range.start));
    from.and(col("time").lt(time(range.end)))
}

/// `KEY=VALUE`, of a column or label.
pub(crate) fn equals(condition: &str) -> Result<Expr> {
    let (key, value) = condition
        .split_once('=')
        .ok_or_else(|| usage(format!("{condition}: must be KEY=VALUE")))?;
    let column = column(key)?;
    Ok(match value {
        // Who has no such label.
        "" => column.clone().is_null().or(column.eq(lit(value))),
        value => column.eq(lit(value)),
    })
}

/// Whether it is a column of text; else it may be a label.
pub(crate) fn is_column(key: &str) -> bool {
    TextField::ALL.iter().any(|text| text.name() == key)
}

/// A column of text, else a label.
pub(crate) fn column(key: &str) -> Result<Expr> {
    if is_column(key) {
        return Ok(col(key));
    }
    if NUMBERS.contains(&key) || key == LABELS {
        let texts: Vec<&str> = TextField::ALL.iter().map(|text| text.name()).collect();
        return Err(usage(format!(
            "{key} is neither a label nor a text column; the text columns are {}",
            texts.join(", ")
        )));
    }
    Ok(get_field(col(LABELS), key))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-26, 10:30.
    const NOW: u64 = 1_795_689_000_000_000_000;

    #[test]
    fn times_are_read() {
        let hour = DAY_NS / 24;
        let ten = NOW - hour / 2;
        for (text, expected) in [
            ("now", NOW),
            ("-1h", NOW - hour),
            ("-2days", NOW - 2 * DAY_NS),
            ("today", ten - 10 * hour),
            ("yesterday", ten - 34 * hour),
            ("2026-11-26", ten - 10 * hour),
            ("2026-11-26T10:00:00Z", ten),
            ("2026-11-26 10:00:00", ten),
            ("2026-11-26T11:00:00+01:00", ten),
            ("2026-11-26T04:30:00.5-05:30", ten + 500_000_000),
        ] {
            assert_eq!(parse_time(text, NOW).unwrap(), expected, "{text}");
        }
        for wrong in [
            "",
            "-",
            "soon",
            "2026-13-01",
            "2026-11-26T10:00:00+é1:00",
            "1969-01-01",
        ] {
            let error = parse_time(wrong, NOW).unwrap_err();
            assert!(error.is::<UsageError>(), "{wrong}: {error}");
        }
        let yesterday = parse_range("yesterday", NOW).unwrap().unwrap();
        assert_eq!(yesterday, ten - 34 * hour..ten - 10 * hour);
        assert_eq!(parse_range("-1h..", NOW).unwrap(), Some(NOW - hour..NOW));
        assert_eq!(parse_range("version=1", NOW).unwrap(), None);
        assert!(parse_range("now..-1h", NOW).is_err());
    }
}
