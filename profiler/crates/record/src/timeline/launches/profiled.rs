//! Times of commands that a program reads one by one, as OpenCL gives them: nanoseconds of a
//! clock that is known only by the calls around it.

use super::{DeviceLaunches, MAX_NUMBERS};
use crate::correlate::device::TickClock;

/// How long before the first time that a program reads others may be: an hour.
const BEFORE_NS: u64 = 3_600_000_000_000;

impl DeviceLaunches {
    /// A program read when a command began, or when it ended; it is timed when both are known.
    pub(super) fn profiled(
        &mut self,
        pid: u32,
        event: u64,
        (time, is_end): (u64, bool),
        (entered_ns, left_ns): (u64, u64),
    ) {
        let Some(signal) = self.signals.get_mut(&(pid, event)) else {
            return;
        };
        if signal.submitted_ns > entered_ns || time == 0 {
            return;
        }
        let device = signal.device;
        let [start, end] = &mut signal.read;
        match is_end {
            true => *end = Some(time),
            false => *start = Some(time),
        }
        let (Some(start), Some(end)) = (*start, *end) else {
            return self.signalled(pid, event, (entered_ns, left_ns));
        };
        if let Some(clock) = TickClock::of_hz(1_000_000_000, 64) {
            self.clocks.add(pid, device, clock);
        }
        if self.bases.len() >= MAX_NUMBERS {
            self.bases.clear();
        }
        // Times of day are too large for the clock to keep each nanosecond: they count from a
        // base.
        let base = *self
            .bases
            .entry(pid)
            .or_insert(start.saturating_sub(BEFORE_NS));
        let ticks = (start.wrapping_sub(base), end.wrapping_sub(base));
        self.timestamps(pid, event, ticks, (entered_ns, left_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlate::{DeviceFact, DeviceFactKind};
    use crate::timeline::launches::tests::{PID, fact, launch, sym};

    fn read(event: u64, times: (u64, u64), at: u64) -> [DeviceFact; 2] {
        [(times.0, false), (times.1, true)].map(|(time, is_end)| {
            let kind = DeviceFactKind::Profiled {
                event,
                time,
                is_end,
            };
            fact(at, at + 10, kind)
        })
    }

    /// OpenCL may return the time of day, and no call states which clock it is.
    #[test]
    fn a_command_is_timed_when_its_begin_and_its_end_were_read() {
        const DAY: u64 = 1_780_000_000_000_000_123;
        let mut all = DeviceLaunches::default();
        for (event, at) in [(0x41, 5_000), (0x42, 6_000)] {
            let mut launch = launch(event, at);
            (launch.on.device, launch.by.api) = (0, "OpenCL".into());
            all.launched(&launch, sym(1));
        }
        let [begin, end] = read(0x41, (DAY + 5_010, DAY + 5_300), 6_500);
        all.fact(&begin);
        assert!(all.timed.is_empty(), "half of it");
        all.fact(&end);
        for fact in read(0x42, (DAY + 6_200, DAY + 6_480), 6_500) {
            all.fact(&fact);
        }
        all.finish();
        assert!(all.bounded.is_empty());
        let ran = all
            .ran
            .iter()
            .map(|ran| (ran.ran_ns, ran.start_ns, ran.within_ns));
        for ((took, start, within), truth) in ran.zip([(290, 5_010), (280, 6_200)]) {
            assert_eq!(took, truth.0);
            assert!(
                start.abs_diff(truth.1) <= within && within <= 30,
                "{start} {within}"
            );
        }
    }

    /// A handle that is given to another command shows nothing of the one before.
    #[test]
    fn halves_of_two_commands_are_none() {
        let mut all = DeviceLaunches::default();
        all.launched(&launch(0x41, 10), sym(1));
        let [begin, _] = read(0x41, (1_010, 1_020), 30);
        all.fact(&begin);
        all.launched(&launch(0x41, 50), sym(2));
        let [_, end] = read(0x41, (1_055, 1_060), 70);
        all.fact(&end);
        // Not its own: it was given work while the call was on its way.
        let [begin, _] = read(0x41, (1_056, 1_060), 45);
        all.fact(&begin);
        all.process_gone(PID, 90);
        all.finish();
        assert!(all.ran.is_empty());
        assert_eq!(
            all.bounded.iter().map(|one| one.works.len()).sum::<usize>(),
            2
        );
    }
}
