//! The option `--memory-limit` of everything that reads others' files.

use super::{screen, usage_error};
use aiprof_system::memory::{self, LimitError};
use anyhow::{Context as _, Result};
use clap::Args;

/// What the option is called where there is no command line for it.
const VARIABLE: &str = "AIPROF_MEMORY_LIMIT";
/// With less, nothing can be read at all.
const LEAST: u64 = 32 << 20;

/// How much memory may be used.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct MemoryArgs {
    /// Most memory that is used (512M, 8G); 0: no limit. What is compressed may hold
    /// four times as much text [default: half of the machine's memory, at most 16G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory_limit: Option<u64>,
}

impl MemoryArgs {
    /// The limit holds from now on.
    ///
    /// # Errors
    /// The variable `AIPROF_MEMORY_LIMIT` has no size.
    pub(crate) fn apply(self) -> Result<()> {
        let by_variable = || match std::env::var_os(VARIABLE) {
            Some(text) => parse_size(&text.to_string_lossy())
                .map(Some)
                .map_err(|reason| usage_error(format!("{VARIABLE}: {reason}"))),
            None => Ok(None),
        };
        let limit = match self.memory_limit {
            Some(limit) => limit,
            None => by_variable()?.unwrap_or_else(memory::default_limit),
        };
        memory::limit(limit, show).context("cannot watch the memory")
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
