//! Keeps a backlog from costing more CPU time than the agent may.

use aiprof_fleet::config::Config;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Part of the agent's budget that this program takes.
const SHARE: f64 = 0.25;
/// CPU time that may be saved up, seconds: a few hundred bodies.
const BURST: f64 = 0.1;
/// Longest pause after a body: what is recorded must be delivered, whatever it costs.
const LONGEST: Duration = Duration::from_secs(5);

/// CPU time that is left, as a bucket that fills with time.
pub(crate) struct Thrift {
    bucket: Mutex<Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Seconds of CPU time per second.
    rate: f64,
    /// What is left, seconds; less than 0: what was used too much.
    level: f64,
    at: Instant,
    /// CPU time of the program at that time.
    used: f64,
}

impl Thrift {
    /// With a full bucket.
    pub(crate) fn new(config: &Config) -> Self {
        let bucket = Bucket {
            rate: rate(config),
            level: BURST,
            at: Instant::now(),
            used: used(),
        };
        Self {
            bucket: Mutex::new(bucket),
        }
    }

    /// Takes another configuration.
    pub(crate) fn set_config(&self, config: &Config) {
        let bucket = self.bucket.lock();
        bucket.unwrap_or_else(PoisonError::into_inner).rate = rate(config);
    }

    /// How long to wait before the next body of a backlog.
    pub(crate) fn pause(&self) -> Duration {
        let bucket = self.bucket.lock();
        let mut bucket = bucket.unwrap_or_else(PoisonError::into_inner);
        bucket.pause(Instant::now(), used())
    }
}

impl Bucket {
    fn pause(&mut self, now: Instant, used: f64) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        let filled = (self.level + self.rate * passed).min(BURST);
        // What is owed is forgotten where it would take too long.
        let least = -self.rate * LONGEST.as_secs_f64();
        self.level = (filled - (used - self.used)).max(least);
        (self.at, self.used) = (now, used);
        Duration::try_from_secs_f64(-self.level / self.rate)
            .unwrap_or_default()
            .min(LONGEST)
    }
}

fn rate(config: &Config) -> f64 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cpus = u32::try_from(cpus).map_or(1.0, f64::from);
    // Never nothing: it is divided by.
    (config.budget.cpu * cpus * SHARE).max(1e-6)
}

/// CPU time of this program so far, seconds.
fn used() -> f64 {
    cpu_time().as_secs_f64()
}

/// CPU time of this program so far.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_is_paced_after_a_burst() {
        let mut now = Instant::now();
        let mut bucket = Bucket {
            rate: 0.0005,
            level: BURST,
            at: now,
            used: 0.0,
        };
        let (mut used, mut passed, mut sent) = (0.0, 0.0, 0);
        while passed < 600.0 {
            // A body of 0.4 ms.
            used += 0.0004;
            sent += 1;
            let pause = bucket.pause(now, used);
            now += pause;
            passed += pause.as_secs_f64();
            assert!(pause <= LONGEST);
        }
        // 600 s of 0.5 ms, and 100 ms.
        assert!((used - 0.4f64).abs() < 0.002, "{used}");
        assert!((sent - 1000_i32).abs() < 5, "{sent}");
        // However much one body took, the next is not held up for long.
        assert_eq!(bucket.pause(now, used + 10.0), LONGEST);
        now += LONGEST;
        assert!(bucket.pause(now, used + 10.0) < Duration::from_millis(1));
    }
}
