//! The AIU's five counter values of an event, and the host times they stand for.
//!
//! TS1 to TS5 are read when an operation begins, when its input has arrived, when its computation
//! begins and ends, and when its output is out. The host notes when it learns that a phase has
//! ended. That end is right, and the counter gives the phase's length.

use crate::timeline::Phase;

/// Counter values of an event, wraps counted.
pub type Stamps = [i128; 5];

/// Host times of an event, microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Begin of its phase.
    pub start_us: f64,
    /// Length of its phase, by the counter.
    pub duration_us: f64,
    /// TS1 to TS5.
    pub stamps_us: [f64; 5],
}

/// Counts the wraps within an event: each value is at or behind the one before, so
/// one that is smaller has wrapped in between. Also gives the index of the first
/// that did. `bits` is the counter's width; of values that are wider, nothing wraps.
pub fn count_wraps(raw: [u64; 5], bits: u32) -> (Stamps, Option<usize>) {
    let period = 1i128 << bits.min(64);
    let mut stamps = raw.map(i128::from);
    let (mut wraps, mut first) = (0, None);
    for index in 1..stamps.len() {
        let value = stamps[index] + wraps * period;
        let before = stamps[index - 1];
        stamps[index] = value;
        if value < before {
            let more = (before - value + period - 1) / period;
            wraps += more;
            stamps[index] += more * period;
            first = first.or(Some(index));
        }
    }
    (stamps, first)
}

/// Host times of an event whose phase the host saw end at `end_us`, on a device with `mhz` ticks
/// per microsecond.
pub fn host_times(stamps: &Stamps, phase: Phase, end_us: f64, mhz: f64) -> Times {
    let (begin, end) = phase.ends();
    // Differences first: they are small, and exact.
    let at = |index: usize| end_us + (stamps[index] - stamps[end]) as f64 / mhz;
    Times {
        start_us: at(begin),
        duration_us: (stamps[end] - stamps[begin]) as f64 / mhz,
        stamps_us: [at(0), at(1), at(2), at(3), at(4)],
    }
}
