//! The time of day to the clock of all events.

use crate::aiu::EpochNs;
use aiprof_model::wire::ClockPair;

/// Difference between two readings of the same offset: they are not taken at
/// exactly the same time.
const SAME_NS: u64 = 50_000;
/// Most changes of the time of day that are followed.
const MAX_STEPS: usize = 1024;
/// Time between two readings, and some: how late a change may be noticed.
const NOTICED_NS: u64 = 1_500_000_000;

/// Converts times of day, as runtimes write them into their records, to
/// CLOCK_MONOTONIC.
///
/// Both clocks run at the same rate, whatever NTP does: the difference changes only when somebody
/// sets the time. A time is converted with the difference of the period that it lies in. If the
/// clock was set back and has shown a time twice, the later one is taken, unless it was still to
/// come.
#[derive(Clone, Debug, Default)]
pub(crate) struct EpochClock {
    /// Begin of each period, and how far the time of day is ahead in it.
    periods: Vec<(u64, u64)>,
}

impl EpochClock {
    /// Takes a reading in; readings must come in order.
    pub(crate) fn note(&mut self, pair: &ClockPair) {
        let Some(offset) = pair.unix_ns.checked_sub(pair.time_ns) else {
            // Before 1970: no clock of any use.
            return;
        };
        let same = |&(_, last): &(u64, u64)| offset.abs_diff(last) <= SAME_NS;
        if !self.periods.last().is_some_and(same) && self.periods.len() < MAX_STEPS {
            self.periods.push((pair.time_ns, offset));
        }
    }

    /// How often the time is known to have been set.
    pub(crate) fn steps(&self) -> usize {
        self.periods.len().saturating_sub(1)
    }

    /// CLOCK_MONOTONIC nanoseconds of a time that was reported at `now_ns`; `None` without a
    /// reading, and for what was before the machine started.
    pub(crate) fn monotonic(&self, time: EpochNs, now_ns: u64) -> Option<u64> {
        let mut until = now_ns.saturating_add(NOTICED_NS);
        for (i, &(begin, offset)) in self.periods.iter().enumerate().rev() {
            let from = match i {
                0 => 0,
                _ => begin.saturating_sub(NOTICED_NS),
            };
            if let Some(found) = time.0.checked_sub(offset)
                && (from..until).contains(&found)
            {
                return Some(found);
            }
            until = until.min(begin);
        }
        // In a gap that setting the clock has made.
        let &(_, offset) = self.periods.last()?;
        time.0.checked_sub(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR_2026: u64 = 1_767_225_600_000_000_000;
    const SECOND: u64 = 1_000_000_000;

    fn pair(second: u64, ahead: u64) -> ClockPair {
        ClockPair {
            time_ns: second * SECOND,
            unix_ns: second * SECOND + ahead,
        }
    }

    #[test]
    fn readings_that_differ_by_a_hair_are_one_offset() {
        let mut clock = EpochClock::default();
        assert_eq!(clock.monotonic(EpochNs(YEAR_2026), 0), None);
        for second in 10..20 {
            clock.note(&pair(second, YEAR_2026 + second % 3 * 100));
        }
        assert_eq!(clock.steps(), 0);
        let of_12 = EpochNs(YEAR_2026 + 12 * SECOND);
        // The first reading's, also for what was before it.
        assert_eq!(clock.monotonic(of_12, 20 * SECOND), Some(12 * SECOND - 100));
        assert_eq!(clock.monotonic(EpochNs(YEAR_2026 + 105), SECOND), Some(5));
        assert_eq!(clock.monotonic(EpochNs(5), SECOND), None);
    }

    #[test]
    fn setting_the_clock_begins_a_period() {
        for (ahead, back) in [
            (YEAR_2026 + 3600 * SECOND, false),
            (YEAR_2026 - 60 * SECOND, true),
        ] {
            let mut clock = EpochClock::default();
            clock.note(&pair(100, YEAR_2026));
            clock.note(&pair(101, YEAR_2026));
            clock.note(&pair(102, ahead));
            clock.note(&pair(103, ahead));
            assert_eq!(clock.steps(), 1);
            for (second, offset) in [
                (50, YEAR_2026),
                (100, YEAR_2026),
                (103, ahead),
                (500, ahead),
            ] {
                let time = EpochNs(second * SECOND + offset);
                let now = (second + 1) * SECOND;
                // The old time at 100 s is the new one at 160 s, which is to come.
                assert_eq!(
                    clock.monotonic(time, now),
                    Some(second * SECOND),
                    "{second} {back}"
                );
            }
        }
    }

    #[test]
    fn any_readings_and_times_are_survived() {
        let mut clock = EpochClock::default();
        for i in 0..5000_u64 {
            let time_ns = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let unix_ns = time_ns.rotate_left(29);
            clock.note(&ClockPair { time_ns, unix_ns });
            clock.monotonic(EpochNs(unix_ns ^ time_ns), unix_ns);
        }
        assert!(clock.periods.len() <= MAX_STEPS);
    }
}
