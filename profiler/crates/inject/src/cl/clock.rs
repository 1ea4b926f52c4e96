//! Which clock a device's times are of, and what CLOCK_MONOTONIC was then.
//!
//! OpenCL does not specify the clock. If a device has a timer (`clGetDeviceAndHostTimer`),
//! the helper reads it between two readings of CLOCK_MONOTONIC. If not, the device may use
//! a clock of the host. The helper checks for some commands whether the queuing time lies
//! within the call that queued the command. It rules out the clocks for which it does not.
//! If no clock is left, the device's times are of no use.

use crate::ffi;
use crate::timing::{CLOCK_BOOT, CLOCK_DAY, CLOCK_DEVICE, CLOCK_HOST, CLOCK_RAW};
use std::collections::VecDeque;

/// Most readings of a clock, ten a second.
const MOST_READINGS: usize = 4096;
/// Readings that are nearer take the place of the last one.
const APART_NS: u64 = 100_000_000;
/// How exact a host's clock is, seen through another one.
const TOLERANCE_NS: u64 = 2_000;
/// All of a device's first commands are checked, then every [`EACH`]th one.
const FIRST_CHECKS: u64 = 64;
const EACH: u64 = 256;

/// Clocks that runtimes may take times of: `CLOCK_MONOTONIC`, `CLOCK_MONOTONIC_RAW` (PoCL),
/// `CLOCK_REALTIME`, `CLOCK_BOOTTIME`.
const HOST_CLOCKS: [i32; 4] = [1, 4, 0, 7];
/// What records call them.
const SOURCES: [u32; 4] = [CLOCK_HOST, CLOCK_RAW, CLOCK_DAY, CLOCK_BOOT];

/// A clock, read at a time of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
struct HostReading {
    clock: u64,
    host: u64,
    within: u64,
}

/// How a clock goes by CLOCK_MONOTONIC.
#[derive(Debug, Default)]
pub(super) struct Relation(VecDeque<HostReading>);

impl Relation {
    /// It was read between these times.
    pub(super) fn note(&mut self, clock: u64, (before, after): (u64, u64)) {
        let within = after.saturating_sub(before) / 2;
        let new = HostReading {
            clock,
            host: before + within,
            within,
        };
        let at = self.0.len();
        let is_near = at > 1
            && self
                .0
                .get(at - 2)
                .is_some_and(|last| new.host.saturating_sub(last.host) < APART_NS);
        if is_near {
            self.0.pop_back();
        }
        if self.0.len() >= MOST_READINGS {
            self.0.pop_front();
        }
        self.0.push_back(new);
    }

    /// CLOCK_MONOTONIC at a time of the clock, and within what of the truth that is.
    pub(super) fn host(&self, clock: u64) -> Option<(u64, u64)> {
        let at = self.0.partition_point(|reading| reading.clock <= clock);
        let before = at.checked_sub(1).and_then(|at| self.0.get(at));
        let after = self.0.get(at);
        let near = before.or(after)?;
        let offset = |reading: &HostReading| i128::from(reading.host) - i128::from(reading.clock);
        let mut found = offset(near);
        let mut within = near.within;
        if let Some((before, after)) = before.zip(after) {
            let apart = i128::from(after.clock - before.clock).max(1);
            let since = i128::from(clock - before.clock);
            found += (offset(after) - offset(before)) * since / apart;
            within = within.max(after.within);
        }
        let host = u64::try_from(i128::from(clock) + found).ok()?;
        Some((host, within))
    }
}

/// The clock of one device.
#[derive(Debug)]
pub(super) struct DeviceClock {
    /// Readings of the device's timer, if it has one.
    timer: Option<Relation>,
    /// Which host clocks it can be.
    left: [bool; HOST_CLOCKS.len()],
    checks: u64,
    seen: u64,
    /// The clock that was reported last; 0: none.
    told: u32,
}

/// The clocks of a process's devices.
#[derive(Debug, Default)]
pub(super) struct DeviceClocks {
    host: [Relation; HOST_CLOCKS.len()],
}

impl DeviceClock {
    /// The clock of a device with or without a timer.
    pub(super) fn new(has_timer: bool) -> Self {
        Self {
            timer: has_timer.then(Relation::default),
            left: [true; HOST_CLOCKS.len()],
            checks: 0,
            seen: 0,
            told: 0,
        }
    }

    /// Where readings of its timer go.
    pub(super) fn timer(&mut self) -> Option<&mut Relation> {
        self.timer.as_mut()
    }

    /// Whether the next command's queuing shall be looked at.
    pub(super) fn wants_check(&mut self) -> bool {
        self.seen += 1;
        let is_due = self.seen <= FIRST_CHECKS || self.seen.is_multiple_of(EACH);
        self.timer.is_none() && is_due && !self.is_refuted()
    }

    /// A command was queued at a time of the device, within a call.
    pub(super) fn check(&mut self, clocks: &DeviceClocks, queued: u64, (from, to): (u64, u64)) {
        self.checks += 1;
        for (left, relation) in self.left.iter_mut().zip(&clocks.host) {
            let is_within = relation.host(queued).is_some_and(|(host, within)| {
                let off = TOLERANCE_NS + within;
                host + off >= from && host <= to + off
            });
            *left &= is_within;
        }
    }

    /// Which clock it is (`CLOCK_DEVICE` and its like), if that was not reported yet.
    pub(super) fn news(&mut self) -> Option<u32> {
        let host = self.left.iter().zip(SOURCES).find(|(left, _)| **left);
        let source = match self.timer {
            Some(_) => CLOCK_DEVICE,
            None => host?.1,
        };
        let before = std::mem::replace(&mut self.told, source);
        (before != source).then_some(source)
    }

    /// None of the clocks can be its.
    pub(super) fn is_refuted(&self) -> bool {
        self.timer.is_none() && !self.left.contains(&true)
    }

    /// When a command ran by CLOCK_MONOTONIC, if it was given by a call and was over by
    /// `now`. Its length is the device's own. `None`: that cannot be.
    pub(super) fn times(
        &self,
        clocks: &DeviceClocks,
        (start, end): (u64, u64),
        (called, now): (u64, u64),
    ) -> Option<(u64, u64)> {
        let relation = match &self.timer {
            Some(timer) => timer,
            None if self.checks == 0 => return None,
            None => {
                let at = self.left.iter().position(|left| *left)?;
                clocks.host.get(at)?
            }
        };
        let took = end.checked_sub(start).filter(|_| start > 0)?;
        let (host, within) = relation.host(start)?;
        let off = TOLERANCE_NS + within;
        let is_possible = host + off >= called && host + took <= now + off;
        is_possible.then_some((host, host + took))
    }
}

impl DeviceClocks {
    /// Reads the host's clocks.
    pub(super) fn read(&mut self) {
        for (clock, relation) in HOST_CLOCKS.into_iter().zip(&mut self.host) {
            let before = ffi::now();
            let time = ffi::time_of(clock);
            let after = ffi::now();
            match clock {
                // CLOCK_MONOTONIC itself: exact.
                1 => relation.note(time, (time, time)),
                _ => relation.note(time, (before, after)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that is 5 s ahead and 50 ppm fast.
    fn fast(host: u64) -> u64 {
        host + host / 20_000 + 5_000_000_000
    }

    fn read() -> Relation {
        let mut relation = Relation::default();
        for at in (1..=100).map(|n| 1_000_000_000_000 + n * 150_000_000) {
            relation.note(fast(at), (at - 200, at + 200));
        }
        relation
    }

    #[test]
    fn a_clock_that_drifts_is_followed() {
        let relation = read();
        for at in (1..14).map(|n| 1_000_200_000_000 + n * 1_000_000_001) {
            let (host, within) = relation.host(fast(at)).unwrap();
            assert!(host.abs_diff(at) <= 300 && within == 200, "{host} {at}");
        }
        assert!(Relation::default().host(7).is_none());
    }

    #[test]
    fn the_clock_is_the_one_that_all_commands_were_queued_by() {
        let mut clocks = DeviceClocks::default();
        clocks.read();
        let raw = || ffi::time_of(HOST_CLOCKS[1]);
        let mut device = DeviceClock::new(false);
        let now = ffi::now();
        assert!(device.times(&clocks, (raw(), raw()), (now, now)).is_none());
        for _ in 0..5 {
            let from = ffi::now();
            let queued = raw();
            let to = ffi::now();
            assert!(device.wants_check());
            device.check(&clocks, queued, (from, to));
            assert!(!device.is_refuted() && device.left[1]);
            let (start, end) = (raw(), raw() + 5);
            let times = device.times(&clocks, (start, end), (from, ffi::now() + 5));
            let (at, until) = times.unwrap();
            assert!(at + TOLERANCE_NS >= to && until - at == end - start);
            // It cannot have begun before its call, nor end later than it was read.
            assert!(
                device
                    .times(&clocks, (start - 1_000_000, end), (from, end))
                    .is_none()
            );
            assert!(
                device
                    .times(&clocks, (start, end + 1_000_000_000), (from, at))
                    .is_none()
            );
        }
        // A device of a clock of its own.
        let now = ffi::now();
        device.check(&clocks, 77, (now, now + 9));
        assert!(device.is_refuted());
        assert!(
            device
                .times(&clocks, (raw(), raw()), (now, ffi::now()))
                .is_none()
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut relation = Relation::default();
        for at in (1..20_000).map(|n| n * 150_000_000) {
            relation.note(at, (at, at));
            relation.note(at + 1, (at + 1, at + 1));
        }
        assert!(relation.0.len() <= MOST_READINGS);
    }
}
