//! The time of day beside the clock of all events.

use super::bpf::perf::monotonic_ns;
use aiprof_model::wire::ClockPair;
use std::time::SystemTime;

/// Readings of which the best is taken: a thread may lose the processor within one.
const READINGS: usize = 5;

/// The time of day, nanoseconds since the Unix epoch.
pub fn unix_ns() -> u64 {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(unix.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// Both clocks, read as closely together as is possible.
pub fn pair() -> ClockPair {
    let mut best = None;
    for _ in 0..READINGS {
        let before = monotonic_ns();
        let unix_ns = unix_ns();
        let width = monotonic_ns().saturating_sub(before);
        if best.is_none_or(|(narrowest, _)| width < narrowest) {
            let time_ns = before + width / 2;
            best = Some((width, ClockPair { time_ns, unix_ns }));
        }
    }
    let nothing = ClockPair {
        time_ns: 0,
        unix_ns: 0,
    };
    best.map_or(nothing, |(_, pair)| pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_differ_by_the_same_all_the_time() {
        let (first, second) = (pair(), pair());
        let ahead = |pair: ClockPair| pair.unix_ns - pair.time_ns;
        assert!(second.time_ns > first.time_ns);
        assert!(ahead(first).abs_diff(ahead(second)) < 5_000_000);
    }
}
