//! A device's clock: from its ticks to CLOCK_MONOTONIC.
//!
//! Each calibration reads both clocks some times, and keeps what all readings allow. Work is
//! dated between the calibration before and the one after it: then a drift of the device's
//! clock does no harm, and the error is that of the calibrations. Ticks of kernels are
//! those of the device, cut to their valid bits.

use std::collections::VecDeque;

/// Calibrations that are kept.
const KEPT: usize = 16;
/// How far readings of one calibration may be apart: a clock that drifts by 100 ppm is off by
/// 10 ns then. A busy machine lets seconds pass between two.
const TOGETHER_NS: u64 = 100_000;
/// Beyond it a resolution cannot be nanoseconds of a tick.
const MOST_NS_OF_A_TICK: u64 = 100_000;

/// One reading of both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    /// The host's just before and just after, CLOCK_MONOTONIC nanoseconds.
    pub(super) before_ns: u64,
    pub(super) after_ns: u64,
    /// The host's as the driver read it beside the device's, if it is of a known clock.
    pub(super) host_ns: Option<u64>,
    /// The device's.
    pub(super) ticks: u64,
}

/// A moment on both clocks.
#[derive(Clone, Copy, Debug)]
struct ClockPoint {
    /// Ticks since the first point's wrap, without wraps.
    ticks: f64,
    ns: f64,
}

/// A device's clock.
#[derive(Debug)]
pub(super) struct TickClock {
    /// Nanoseconds of a tick, from the driver.
    period: f64,
    /// Ticks of kernels wrap at this; 2^64 is none.
    wrap: f64,
    mask: u64,
    /// Times are relative to it, so that they are exact in a `f64`.
    base_ns: u64,
    points: VecDeque<ClockPoint>,
}

impl TickClock {
    /// A clock with this resolution (cycles per second, or nanoseconds of a cycle), where
    /// ticks of kernels have `bits` bits. `None`: the values are impossible.
    pub(super) fn new(resolution: u64, bits: u32) -> Option<Self> {
        let period = match resolution {
            0 => return None,
            ns if ns <= MOST_NS_OF_A_TICK => ns as f64,
            hz => 1e9 / hz as f64,
        };
        if !(8..=64).contains(&bits) {
            return None;
        }
        Some(Self {
            period,
            wrap: 2f64.powi(bits.cast_signed()),
            mask: u64::MAX >> (64 - bits),
            base_ns: 0,
            points: VecDeque::new(),
        })
    }

    /// Takes in readings that were made directly one after the other. It uses the shortest
    /// and those close to it in time. `false`: they give no calibration.
    pub(super) fn calibrate(&mut self, readings: &[ClockReading]) -> bool {
        let length = |reading: &&ClockReading| reading.after_ns.saturating_sub(reading.before_ns);
        let Some(anchor) = readings.iter().min_by_key(length) else {
            return false;
        };
        if self.points.is_empty() {
            self.base_ns = anchor.before_ns;
        }
        let distance = |reading: &ClockReading| reading.before_ns.abs_diff(anchor.before_ns);
        // The bounds that the readings set for the moment at which the anchor's tick began.
        let (mut earliest, mut latest) = (f64::MIN, f64::MAX);
        for reading in readings.iter().filter(|r| distance(r) <= TOGETHER_NS) {
            let unused = self.mask.leading_zeros();
            let since = reading.ticks.wrapping_sub(anchor.ticks) << unused;
            let since = (since.cast_signed() >> unused) as f64;
            let relative =
                |ns: u64| ns.wrapping_sub(self.base_ns).cast_signed() as f64 - since * self.period;
            earliest = earliest.max(relative(reading.before_ns) - self.period);
            latest = latest.min(relative(reading.after_ns));
            if let Some(ns) = reading.host_ns {
                earliest = earliest.max(relative(ns) - self.period);
                latest = latest.min(relative(ns));
            }
        }
        let ns = match earliest <= latest {
            true => f64::midpoint(earliest, latest),
            // The driver's reading of the host is of another moment.
            false => {
                let middle = u64::midpoint(anchor.before_ns, anchor.after_ns);
                let read = anchor.host_ns.unwrap_or(middle);
                read.wrapping_sub(self.base_ns).cast_signed() as f64 - self.period / 2.0
            }
        };
        let now = (anchor.ticks & self.mask) as f64;
        let ticks = match self.points.back() {
            Some(last) => {
                let expected = last.ticks + (ns - last.ns) / self.period;
                now + ((expected - now) / self.wrap).round() * self.wrap
            }
            None => now,
        };
        if self
            .points
            .back()
            .is_some_and(|last| ns <= last.ns || ticks <= last.ticks)
        {
            return false;
        }
        if self.points.len() >= KEPT {
            self.points.pop_front();
        }
        self.points.push_back(ClockPoint { ticks, ns });
        true
    }

    /// When the last calibration was.
    pub(super) fn last_ns(&self) -> Option<u64> {
        self.points.back().map(|last| self.absolute(last.ns))
    }

    /// Begin and end of work, CLOCK_MONOTONIC nanoseconds: its ticks, and when it was
    /// submitted and read. `None`: the counter may have wrapped between, or there is no
    /// calibration.
    pub(super) fn date(
        &self,
        (start, end): (u64, u64),
        submit_ns: u64,
        read_ns: u64,
    ) -> Option<(u64, u64)> {
        let last = self.points.back()?;
        // Nothing was written there, or it was just reset.
        if start == end && (start == 0 || start & self.mask == self.mask) {
            return None;
        }
        let read = read_ns.wrapping_sub(self.base_ns).cast_signed() as f64;
        let slack = self.wrap / 16.0;
        if read_ns.saturating_sub(submit_ns) as f64 > (self.wrap - slack) * self.period {
            return None;
        }
        // The latest end before it was read.
        let horizon = last.ticks + (read - last.ns) / self.period + slack;
        let end_low = (end & self.mask) as f64;
        let end_ticks = end_low + ((horizon - end_low) / self.wrap).floor() * self.wrap;
        let took = (end.wrapping_sub(start) & self.mask) as f64;
        let ends = self.ns_of(end_ticks);
        let starts = self.ns_of(end_ticks - took);
        let (starts, ends) = (self.absolute(starts), self.absolute(ends));
        // A torn or foreign value.
        (starts <= ends && ends <= read_ns.saturating_add(1_000_000)).then_some((starts, ends))
    }

    fn absolute(&self, relative: f64) -> u64 {
        self.base_ns.wrapping_add_signed(relative.round() as i64)
    }

    /// The moment in the middle of a tick.
    fn ns_of(&self, ticks: f64) -> f64 {
        let middle = ticks + 0.5;
        let at = self.points.partition_point(|point| point.ticks <= middle);
        let (from, to) = match at {
            0 => (self.points.front(), None),
            at => (self.points.get(at - 1), self.points.get(at)),
        };
        let Some(from) = from else {
            return 0.0;
        };
        let slope = match to {
            Some(to) => (to.ns - from.ns) / (to.ticks - from.ticks),
            None => self.slope(),
        };
        from.ns + (middle - from.ticks) * slope
    }

    /// Nanoseconds of a tick outside of the calibrations: a measurement over more than a
    /// second is better than the driver's value.
    fn slope(&self) -> f64 {
        let ends = self.points.front().zip(self.points.back());
        let measured = ends
            .filter(|(first, last)| last.ns - first.ns > 1e9)
            .map(|(first, last)| (last.ns - first.ns) / (last.ticks - first.ticks));
        measured.unwrap_or(self.period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device's clock by its definition: 19.2 MHz and `ppm` faster, of 32 bits.
    fn ticks(ns: u64, ppm: f64) -> u64 {
        let ticks = (7e9 + ns as f64) * 0.0192 * (1.0 + ppm / 1e6);
        (ticks.floor() as u64) & 0xffff_ffff
    }

    fn readings(ns: u64, ppm: f64) -> Vec<ClockReading> {
        let one = |at: u64| ClockReading {
            before_ns: at - 400,
            after_ns: at + 600,
            host_ns: None,
            ticks: ticks(at, ppm),
        };
        (0..8).map(|i| one(ns + i * 1013)).collect()
    }

    #[test]
    fn work_is_dated_between_calibrations_over_drift_and_wraps() {
        // 32 bits wrap after 223 s.
        for ppm in [0.0, 80.0, -80.0] {
            let mut clock = TickClock::new(19_200_000, 32).unwrap();
            let begin = 5_000_000_000_000;
            for second in 0..600 {
                let at = begin + second * 1_000_000_000;
                assert!(clock.calibrate(&readings(at, ppm)));
                if second == 0 {
                    continue;
                }
                let start = at - 700_000_000;
                let end = start + 123_456;
                let dated = clock
                    .date(
                        (ticks(start, ppm), ticks(end, ppm)),
                        start - 5000,
                        end + 9000,
                    )
                    .unwrap();
                let error = dated.0.abs_diff(start).max(dated.1.abs_diff(end));
                // Half the width of the readings, and a tick.
                assert!(error <= 552, "{ppm} {second}: {error}");
            }
        }
    }

    #[test]
    fn the_driver_s_own_reading_of_the_host_makes_it_exact() {
        let mut clock = TickClock::new(19_200_000, 32).unwrap();
        for at in [1_000_000_000, 2_000_000_000] {
            let mut all = readings(at, 0.0);
            for (i, reading) in all.iter_mut().enumerate() {
                reading.host_ns = Some(at + i as u64 * 1013);
            }
            clock.calibrate(&all);
        }
        let (start, end) = (1_400_000_000, 1_400_070_000);
        let dated = clock.date((ticks(start, 0.0), ticks(end, 0.0)), start, end + 100);
        let dated = dated.unwrap();
        assert!(dated.0.abs_diff(start) <= 53, "{dated:?}");
        assert!(dated.1.abs_diff(end) <= 53, "{dated:?}");
    }

    /// A busy machine takes the CPU away between two readings.
    #[test]
    fn readings_that_were_interrupted_are_as_good() {
        for ppm in [60.0, -60.0] {
            let mut clock = TickClock::new(19_200_000, 32).unwrap();
            for second in 1..=2_u64 {
                let at = second * 1_000_000_000;
                let late = at + 30_000_000;
                let one = |i: u64| {
                    let at = if i < 3 { at } else { late } + i * 1013;
                    ClockReading {
                        before_ns: at - [500, 500, 500, 400, 9_000_000, 400, 400, 400][i as usize],
                        after_ns: at + 600,
                        host_ns: Some(at),
                        ticks: ticks(at, ppm),
                    }
                };
                assert!(clock.calibrate(&(0..8).map(one).collect::<Vec<_>>()));
            }
            let (start, end) = (1_400_000_000, 1_400_070_000);
            let truth = (ticks(start, ppm), ticks(end, ppm));
            let dated = clock.date(truth, start, end + 100).unwrap();
            let error = dated.0.abs_diff(start).max(dated.1.abs_diff(end));
            assert!(error <= 54, "{ppm}: {error}");
        }
    }

    #[test]
    fn what_may_have_wrapped_is_not_dated() {
        let mut clock = TickClock::new(19_200_000, 32).unwrap();
        clock.calibrate(&readings(1_000_000_000, 0.0));
        let read = 1_000_000_000 + 300_000_000_000;
        assert_eq!(clock.date((5, 6), 1_000_000_000, read), None);
        // Nor are timestamps that the device never wrote.
        let (submit, read) = (1_000_000_000, 1_000_900_000);
        for untouched in [0, 0xffff_ffff, u64::MAX] {
            assert_eq!(clock.date((untouched, untouched), submit, read), None);
        }
        assert!(TickClock::new(0, 32).is_none() && TickClock::new(52, 0).is_none());
    }
}
