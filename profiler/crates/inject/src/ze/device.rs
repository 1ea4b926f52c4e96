//! Devices: their clocks, and the work that waits to be dated.

use super::abi::{DeviceProperties, Handle, SUCCESS};
use super::clock::{ClockReading, TickClock};
use super::real;
use super::state::Done;
use crate::ffi;
use std::collections::VecDeque;

/// Most commands that wait for the next calibration.
const MOST_DONE: usize = 1 << 18;
/// How often a clock is calibrated.
const PERIOD_NS: u64 = 1_000_000_000;
/// Readings of a calibration.
const READINGS: usize = 16;

/// A device.
#[derive(Debug)]
pub(super) struct TimedDevice {
    pub(super) handle: usize,
    /// Its number, in the order in which the program learnt of them.
    pub(super) number: u32,
    clock: Option<TickClock>,
    done: VecDeque<Done>,
}

impl TimedDevice {
    /// With a number, not calibrated yet.
    pub(super) fn new(handle: usize, number: u32) -> Self {
        let mut properties = DeviceProperties::empty();
        // SAFETY: a device that the program uses; the structure is long enough.
        let result = unsafe {
            real::device_properties(handle as Handle, (&raw mut properties.0).cast::<u64>())
        };
        let clock = (result == SUCCESS)
            .then(|| TickClock::new(properties.resolution(), properties.bits().1));
        Self {
            handle,
            number,
            clock: clock.flatten(),
            done: VecDeque::new(),
        }
    }

    /// Takes a command whose times were read. `false`: there is no room, or no clock.
    pub(super) fn add(&mut self, done: Done) -> bool {
        let fits = self.clock.is_some() && self.done.len() < MOST_DONE;
        if fits {
            self.done.push_back(done);
        }
        fits
    }

    /// Calibrates, if that is due. `always`: whether or not.
    pub(super) fn calibrate_if_due(&mut self, always: bool) {
        let last = self.clock.as_ref().and_then(TickClock::last_ns);
        let is_due = last.is_none_or(|last| ffi::now() >= last.saturating_add(PERIOD_NS));
        if always || (is_due && (last.is_none() || !self.done.is_empty())) {
            self.calibrate();
        }
    }

    /// Calibrates.
    pub(super) fn calibrate(&mut self) {
        let Some(clock) = &mut self.clock else {
            return;
        };
        let readings: Vec<ClockReading> =
            (0..READINGS).filter_map(|_| reading(self.handle)).collect();
        clock.calibrate(&readings);
    }

    /// The work that can be dated, with its times; a time that is not known is none.
    pub(super) fn dated(&mut self, last: bool) -> Vec<(Done, Option<(u64, u64)>)> {
        let Some(clock) = &self.clock else {
            return Vec::new();
        };
        let known = clock.last_ns().unwrap_or(0);
        let mut dated = Vec::new();
        while let Some(done) = self.done.front() {
            if !last && done.read_ns > known {
                break;
            }
            let times = clock.date(done.ticks, done.submit_ns, done.read_ns);
            dated.push((*done, times));
            self.done.pop_front();
        }
        dated
    }

    /// Forgets the work.
    pub(super) fn forget(&mut self) {
        self.done.clear();
    }
}

/// Reads both clocks once.
fn reading(device: usize) -> Option<ClockReading> {
    let (mut host, mut ticks) = (0, 0);
    let (before_ns, raw_before) = (ffi::now(), ffi::time_of(ffi::CLOCK_MONOTONIC_RAW));
    // SAFETY: a device that the program knows.
    let result = unsafe { real::device_clock(device as Handle, &raw mut host, &raw mut ticks) };
    let (raw_after, after_ns) = (ffi::time_of(ffi::CLOCK_MONOTONIC_RAW), ffi::now());
    // Intel's driver reads CLOCK_MONOTONIC_RAW, others CLOCK_MONOTONIC.
    let host_ns = match host {
        host if (before_ns..=after_ns).contains(&host) => Some(host),
        host if (raw_before..=raw_after).contains(&host) => {
            Some(before_ns + host.saturating_sub(raw_before))
        }
        _ => None,
    };
    (result == SUCCESS).then_some(ClockReading {
        before_ns,
        after_ns,
        host_ns,
        ticks,
    })
}
