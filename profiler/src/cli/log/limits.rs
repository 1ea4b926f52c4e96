//! How many lines of a kind are shown: what other users do must not fill a screen or a log.
//!
//! A kind is a place in the code, whatever its texts are: the owners of files choose their names.
//! The rest is counted, and printed in one line in the end, or when a day is over.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::{Level, Metadata};

/// Different warnings of a kind that are shown.
const WARNINGS: u64 = 20;
/// Lines of a kind that only `-v` shows.
const DETAILS: u64 = 100;
/// Lines of processes that work for this one, of all kinds.
const RELAYED: u64 = 200;
/// How long lines are counted before a kind is shown again, in what runs always.
const PERIOD: Duration = Duration::from_secs(86_400);

/// Where in the code a line comes from; `None`: of another process.
type LogPlace = Option<(&'static str, Option<u32>)>;

/// What was shown so far.
#[derive(Debug, Default)]
pub(super) struct LogLimits(Mutex<HashMap<LogPlace, LogKind>>);

/// Lines of a kind.
#[derive(Debug)]
struct LogKind {
    begun: Instant,
    /// The first that was shown.
    first: String,
    shown: u64,
    hidden: u64,
    /// Warnings that were shown.
    warnings: HashSet<String>,
}

impl LogKind {
    fn new(line: &str) -> Self {
        Self {
            begun: Instant::now(),
            first: line.to_owned(),
            shown: 0,
            hidden: 0,
            warnings: HashSet::new(),
        }
    }

    /// A line about what was not shown, if anything.
    fn sum(&self) -> Option<String> {
        let (first, hidden) = (&self.first, self.hidden);
        (hidden > 0).then(|| format!("{first} ({hidden} more messages like this are not shown)"))
    }

    fn admit(&mut self, most: u64, is_warning: bool, line: String) -> Option<String> {
        if is_warning && self.warnings.contains(&line) {
            return None;
        }
        if self.shown >= most {
            self.hidden += 1;
            return None;
        }
        if is_warning {
            self.warnings.insert(line.clone());
        }
        self.shown += 1;
        Some(line)
    }
}

impl LogLimits {
    /// What is shown for a line: it, or a sum of what was not, or nothing.
    pub(super) fn admit(&self, about: &'static Metadata<'static>, line: String) -> Vec<String> {
        let most = match *about.level() {
            // What is no fault of others, and a line for each window.
            Level::ERROR | Level::INFO => return vec![line],
            Level::WARN => WARNINGS,
            _ => DETAILS,
        };
        let place = (about.file().unwrap_or_default(), about.line());
        self.take(Some(place), most, *about.level() == Level::WARN, line)
    }

    /// The same for a line of a process that works for this one.
    pub(super) fn relay(&self, line: &str) -> Vec<String> {
        self.take(None, RELAYED, false, line.to_owned())
    }

    fn take(&self, place: LogPlace, most: u64, is_warning: bool, line: String) -> Vec<String> {
        let mut kinds = self.kinds();
        let kind = kinds.entry(place).or_insert_with(|| LogKind::new(&line));
        let mut shown = Vec::new();
        if kind.begun.elapsed() > PERIOD {
            shown.extend(kind.sum());
            *kind = LogKind::new(&line);
        }
        shown.extend(kind.admit(most, is_warning, line));
        shown
    }

    /// A line for each kind of which some were not shown, once.
    pub(super) fn sum_up(&self) -> Vec<String> {
        let mut sums: Vec<_> = self.kinds().drain().filter_map(|(_, k)| k.sum()).collect();
        sums.sort();
        sums
    }

    fn kinds(&self) -> MutexGuard<'_, HashMap<LogPlace, LogKind>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_shown_is_counted_and_said_once() {
        let limits = LogLimits::default();
        let shown = |n: u64| limits.relay(&format!("line {n}")).len();
        let sum: usize = (0..5000).map(shown).sum();
        assert_eq!(sum, 200);
        let of_warnings = |n: u64| {
            let line = format!("file {}", n % 100);
            limits
                .take(Some(("x.rs", Some(1))), WARNINGS, true, line)
                .len()
        };
        let sum: usize = (0..400).map(of_warnings).sum();
        assert_eq!(sum, 20);
        // Those that were shown are no more when they come again.
        assert_eq!(
            limits.sum_up(),
            [
                "file 0 (320 more messages like this are not shown)",
                "line 0 (4800 more messages like this are not shown)"
            ]
        );
        assert!(limits.sum_up().is_empty());
    }
}
