//! How often a recording does what it does again and again.

use std::time::Duration;

/// How often the rings are looked at while somebody waits for the start.
pub(super) const START_TICK: Duration = Duration::from_millis(5);

/// The pace of a recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// How often the rings are looked at without being asked to.
    pub(super) tick: Duration,
    /// The same where libraries are probed: one that was just mapped should be probed soon.
    pub(super) probing_tick: Duration,
    /// How often progress is reported, and memory looked at.
    pub(super) progress: Duration,
    /// How often new addresses are given to the naming thread.
    pub(super) naming: Duration,
    /// How often unused tables and the like are dropped.
    pub(super) cleanup: Duration,
}

impl Pace {
    /// For a recording that ends, for which somebody waits.
    pub(super) const QUICK: Self = Self {
        tick: Duration::from_millis(100),
        probing_tick: Duration::from_millis(25),
        progress: Duration::from_millis(250),
        naming: Duration::from_millis(500),
        cleanup: Duration::from_secs(2),
    };
    /// For a recording that never ends. Each wake-up costs more than a sample. And each time that
    /// names are asked for, all symbols of a file are gone through, even for a few names.
    pub(super) const CALM: Self = Self {
        tick: Duration::from_millis(500),
        probing_tick: Duration::from_millis(500),
        progress: Duration::from_secs(10),
        naming: Duration::from_secs(20),
        cleanup: Duration::from_secs(10),
    };
}
