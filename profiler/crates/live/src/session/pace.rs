//! How often a recording does what it does again and again.

use super::collector::IN_FLIGHT_NS;
use std::{
    thread,
    time::{Duration, Instant},
};

/// How often the rings are looked at while somebody waits for the start.
pub(super) const START_TICK: Duration = Duration::from_millis(5);
/// How often it is looked whether a Java that was just started has code.
pub(super) const JAVA_STARTS: Duration = Duration::from_millis(5);

/// Pause after a wake-up, so that a storm of events becomes batches.
const BATCH: Duration = Duration::from_millis(4);
/// The same of a recording that never ends.
const CONTINUOUS_BATCH: Duration = Duration::from_millis(100);
/// Shorter pause, where there is no storm: what woke us is just old enough to be
/// applied. What a program that has just started calls must find its tables.
pub(super) const SETTLE: Duration = Duration::from_nanos(IN_FLIGHT_NS + 100_000);
/// Most short pauses that are saved up; there is one more for every [`BATCH`].
const MAX_SHORT: f64 = 8.0;

/// The pauses after wake-ups.
pub(super) struct Batches {
    last: Instant,
    /// How many pauses may be short.
    short: f64,
}

impl Batches {
    /// Nothing has come yet.
    pub(super) fn new() -> Self {
        Self {
            last: Instant::now(),
            short: MAX_SHORT,
        }
    }

    /// Something has come: pauses, unless it `is_needed` at once.
    pub(super) fn pause(&mut self, is_continuous: bool, is_needed: bool) {
        let gained = self.last.elapsed().as_secs_f64() / BATCH.as_secs_f64();
        self.short = (self.short + gained).min(MAX_SHORT);
        self.last = Instant::now();
        if is_continuous {
            // Nothing may wake it, as tokio's sleep would let the rings do.
            thread::sleep(CONTINUOUS_BATCH);
        } else if !is_needed {
            // Not tokio's sleep, which counts in milliseconds.
            thread::sleep(if self.short >= 1.0 { SETTLE } else { BATCH });
            self.short = (self.short - 1.0).max(0.0);
        }
    }
}

/// Something that is done again and again.
pub(super) struct Timer {
    last: Instant,
    every: Duration,
}

impl Timer {
    /// How long it has not been done, if it is time to do it again, which is done then.
    pub(super) fn due(&mut self) -> Option<Duration> {
        let since = self.last.elapsed();
        let is_due = since >= self.every;
        if is_due {
            self.restart();
        }
        is_due.then_some(since)
    }

    /// Whether it is time to do it again, which is done then.
    pub(super) fn is_due(&mut self) -> bool {
        self.due().is_some()
    }

    /// It was done just now.
    pub(super) fn restart(&mut self) {
        self.last = Instant::now();
    }
}

/// The pace of a recording.
pub(super) struct Pace {
    /// How often the rings are looked at without being asked to.
    pub(super) tick: Duration,
    /// The same where libraries are probed: one that was just mapped should be probed soon.
    pub(super) probing_tick: Duration,
    /// Reporting progress, and looking at memory.
    pub(super) progress: Timer,
    /// Giving new addresses to the naming threads.
    pub(super) naming: Timer,
    /// The same of Java and JavaScript, whose names can be read only while the program runs.
    pub(super) naming_java: Timer,
    /// Dropping dead processes: of short ones there may be thousands in a second.
    pub(super) forgetting: Timer,
    /// Dropping unused tables and the like.
    pub(super) cleanup: Timer,
    /// Looking whether CPUs came or went.
    pub(super) cpus: Timer,
}

impl Pace {
    /// For a recording that ends, for which somebody waits, or one that is continuous. There each
    /// wake-up costs more than a sample. And each time that names are requested, all symbols of a
    /// file are gone through, even for a few names.
    pub(super) fn new(is_continuous: bool, now: Instant) -> Self {
        let every = |ms, continuous_ms| {
            Duration::from_millis(if is_continuous { continuous_ms } else { ms })
        };
        let timer = |ms, continuous_ms| Timer {
            last: now,
            every: every(ms, continuous_ms),
        };
        Self {
            tick: every(100, 500),
            probing_tick: every(25, 500),
            progress: timer(250, 10_000),
            naming: timer(500, 20_000),
            naming_java: timer(100, 100),
            forgetting: timer(250, 250),
            cleanup: timer(2_000, 10_000),
            cpus: timer(250, 250),
        }
    }
}
