//! A device's clock: what its counter shows at a time.

use serde::Serialize;

/// How far a 32-bit counter counts.
pub const WRAP: u64 = 1 << 32;

/// A jump of a counter.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Step {
    /// When, in microseconds.
    pub at_us: f64,
    /// By how many cycles.
    pub cycles: i64,
}

/// A device's clock. Times are microseconds of the reference clock, which is the
/// host's clock of rank 0.
#[derive(Clone, Debug, Serialize)]
pub struct Clock {
    /// Frequency at `start_us`, in MHz.
    pub mhz: f64,
    /// By how much the frequency grows, in parts per million each second.
    pub drift_ppm_per_s: f64,
    /// When the counter stood at `start_cycles`.
    pub start_us: f64,
    /// The counter at `start_us`, unwrapped.
    pub start_cycles: u64,
    /// Jumps of the counter.
    pub steps: Vec<Step>,
}

impl Clock {
    /// The counter at a time, unwrapped: its lower 32 bits are what the device
    /// shows.
    #[must_use]
    pub fn cycles(&self, at_us: f64) -> u64 {
        let passed = at_us - self.start_us;
        let drift = self.drift_ppm_per_s * 1e-12;
        let counted = self.mhz * passed * (1.0 + drift * passed / 2.0);
        let stepped = self.steps.iter().filter(|step| step.at_us <= at_us);
        let stepped: i64 = stepped.map(|step| step.cycles).sum();
        let cycles = self.start_cycles as i64 + counted.floor() as i64 + stepped;
        cycles.max(0) as u64
    }

    /// The frequency at a time, in MHz.
    #[must_use]
    pub fn mhz_at(&self, at_us: f64) -> f64 {
        self.mhz * (1.0 + self.drift_ppm_per_s * 1e-12 * (at_us - self.start_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_drifts_and_steps() {
        let mut clock = Clock {
            mhz: 500.0,
            drift_ppm_per_s: 0.0,
            start_us: 1e9,
            start_cycles: WRAP - 100,
            steps: Vec::new(),
        };
        assert_eq!(clock.cycles(1e9), WRAP - 100);
        assert_eq!(clock.cycles(1e9 + 1.0), WRAP + 400);
        clock.drift_ppm_per_s = 10.0;
        // One second at 500 MHz and on average 5 ppm more.
        assert_eq!(clock.cycles(1e9 + 1e6), WRAP - 100 + 500_002_500);
        assert!((clock.mhz_at(1e9 + 1e6) - 500.005).abs() < 1e-9);
        clock.steps.push(Step {
            at_us: 1e9 + 1.0,
            cycles: -50,
        });
        assert_eq!(clock.cycles(1e9 + 2.0), WRAP + 850);
    }
}
