//! What is measured beside the calls: clocks and counters.

use serde::{Deserialize, Serialize};

/// Two clocks at the same time. The kernel slews both alike, so their difference
/// changes only when the time of day is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockPair {
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// CLOCK_REALTIME nanoseconds since 1970, read within about a microsecond of it.
    pub unix_ns: u64,
}

/// A quantity that a device measures, at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// CLOCK_MONOTONIC nanoseconds; of an interval its end.
    pub time_ns: u64,
    /// What it was measured at, such as `AIU 0000:3a:00.0`.
    pub source: String,
    /// What was measured, such as `power`.
    pub name: String,
    /// Its unit: `W`, `C`, `B`.
    pub unit: String,
    /// Thousandths of the unit.
    pub milli: i64,
}
