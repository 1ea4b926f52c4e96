//! The options `--memory-limit` and `--timeout` of everything that reads others' files.

use super::{screen, usage_error, values};
use aiprof_system::memory::{self, LimitError, ReadingLimits};
use anyhow::{Context as _, Result};
use clap::Args;
use std::time::Duration;

/// What the options are called where there is no command line for them.
const VARIABLE: &str = "AIPROF_MEMORY_LIMIT";
const TIME_VARIABLE: &str = "AIPROF_TIMEOUT";
/// What reading and analysing may take: traces of a hundred million events take less.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// With less, nothing can be read at all.
const LEAST: u64 = 32 << 20;

/// How much memory and time may be used.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct MemoryArgs {
    /// Maximum memory to use (512M, 8G); 0: no limit. aiprof stops reading a
    /// compressed input at four times this much text [default: half of the machine's memory, at most 16G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory_limit: Option<u64>,

    /// Maximum time to use (90s, 2h); 0: no limit [default: 30m]
    #[arg(long, value_name = "TIME", value_parser = parse_timeout)]
    timeout: Option<Duration>,
}

impl MemoryArgs {
    /// The limits hold from now on.
    ///
    /// # Errors
    /// A variable, `AIPROF_MEMORY_LIMIT` or `AIPROF_TIMEOUT`, has no such value.
    pub(crate) fn apply(self) -> Result<()> {
        let given = match self.memory_limit {
            None => by_variable(VARIABLE, parse_size)?,
            given => given,
        };
        let timeout = match self.timeout {
            None => by_variable(TIME_VARIABLE, parse_timeout)?.unwrap_or(TIMEOUT),
            Some(timeout) => timeout,
        };
        let limits = ReadingLimits {
            bytes: given.unwrap_or_else(memory::default_limit),
            is_given: given.is_some(),
            time: (!timeout.is_zero()).then_some(timeout),
        };
        memory::limit(limits, show)
            .context("cannot start the thread that enforces --memory-limit and --timeout")
    }
}

/// The value of a variable, if it is set.
fn by_variable<T>(name: &str, parse: fn(&str) -> Result<T, String>) -> Result<Option<T>> {
    let text = std::env::var_os(name);
    let value = text.map(|text| parse(&text.to_string_lossy())).transpose();
    value.map_err(|reason| usage_error(format!("{name}: {reason}")))
}

/// Parses a duration; 0: no limit.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    match text.trim() {
        "0" => Ok(Duration::ZERO),
        text => values::parse_duration(text),
    }
}

fn show(error: LimitError) {
    screen::clear_progress();
    screen::say(&format!("aiprof: {error}"));
}

/// Parses `512M`, `8G`, `1.5G`, `0`: powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = text.split_at(split.unwrap_or(text.len()));
    let scale = match unit.trim_end_matches("iB") {
        "" | "B" => 1u64,
        "K" | "k" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return Err(format!("unknown unit '{unit}': use K, M, G or T")),
    };
    let bytes = number.trim().parse::<f64>();
    let bytes = bytes.map_err(|_| "expected a size, such as 512M or 8G".to_owned())? * scale as f64;
    match bytes {
        0.0 => Ok(0),
        bytes if bytes >= LEAST as f64 && bytes < 1e18 => Ok(bytes as u64),
        _ => Err("must be 0 (no limit) or at least 32M".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_size("0"), Ok(0));
        for wrong in ["", "x", "12", "1Q", "-1G", "nan", "1e300G"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
