//! A device's frequency while its records still come: a clock through the last of them.

use super::bounds::Uncertain;
use super::clock::{Anchor, Clock, Counter};
use super::line_fit::median;
use std::collections::VecDeque;

/// Most anchors that are kept; the newest replace the oldest.
const MOST: usize = 512;
/// Durations by which the frequency is known beforehand, about.
const FIRST: usize = 63;
/// Shorter durations show little of a frequency: ends are noted to a microsecond.
const LONG_US: f64 = 5.0;
/// How far the frequency by durations may be off, as a share.
const UNCERTAINTY: f64 = 0.2;
/// A fit that is less certain is none: a record's own times are better.
const MAX_ERROR: f64 = 0.01;

/// The clock of a device while its records still arrive. Bounded: it knows the last
/// 512 anchors.
#[derive(Clone, Debug, Default)]
pub struct LiveClock {
    anchors: VecDeque<Anchor>,
    /// Frequencies by the durations of single records, until there are enough.
    rough: Vec<f64>,
    /// The counter has more than 32 bits.
    is_wide: bool,
    /// Host time of the first anchor: times are relative to it.
    origin_ns: Option<u64>,
    clock: Option<Clock>,
}

impl LiveClock {
    /// The counter's width in bits.
    pub fn bits(&self) -> u32 {
        if self.is_wide { 64 } else { 32 }
    }

    /// Takes in that the counter was `ticks` when the host's clock was `host_ns`,
    /// some microseconds off.
    pub fn anchor(&mut self, ticks: u64, host_ns: u64) {
        self.is_wide |= ticks > u32::MAX.into();
        let host_us = self.relative(host_ns);
        if self.anchors.len() >= MOST {
            self.anchors.pop_front();
        }
        self.anchors.push_back(Anchor { host_us, ticks });
    }

    /// Takes in that `ticks` ticks were about `ns` nanoseconds.
    pub fn duration(&mut self, ticks: u64, ns: u64) {
        let us = ns as f64 / 1e3;
        if us >= LONG_US && ticks > 0 && self.rough.len() < FIRST {
            self.rough.push(ticks as f64 / us);
        }
    }

    /// Ticks per microsecond by the first durations alone; `None` before there are any.
    pub fn rough_mhz(&self) -> Option<f64> {
        let mut known = self.rough.clone();
        (!known.is_empty()).then(|| median(&mut known))
    }

    /// Fits the clock to the anchors that there are by now.
    pub fn fit(&mut self) {
        let Some(mhz) = self.rough_mhz() else {
            return;
        };
        let counter = Counter {
            bits: self.bits(),
            mhz,
            uncertainty: UNCERTAINTY,
        };
        // A fit that failed does not refute the last one.
        if let Ok(clock) = Clock::fit(self.anchors.make_contiguous(), counter) {
            self.clock = Some(clock);
        }
    }

    /// The frequency at a host time by the last fit, ticks per microsecond; `None` while it
    /// is less certain than 1 %.
    pub fn frequency(&self, host_ns: u64) -> Option<Uncertain> {
        let at = host_ns as f64 / 1e3 - self.origin_ns? as f64 / 1e3;
        let pieces = &self.clock.as_ref()?.pieces;
        let before = pieces.iter().rev().find(|piece| piece.host_us <= at);
        let mhz = before.or(pieces.first())?.mhz;
        (mhz.value > 0.0 && mhz.error <= mhz.value * MAX_ERROR).then_some(mhz)
    }

    /// Microseconds since the first anchor.
    fn relative(&mut self, host_ns: u64) -> f64 {
        let origin = *self.origin_ns.get_or_insert(host_ns);
        (i128::from(host_ns) - i128::from(origin)) as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anchors of a counter of 32 bits: every `step_us`, off by up to a microsecond.
    fn counting(mhz: f64, start: u64, step_us: u64, count: u64) -> LiveClock {
        let mut clock = LiveClock::default();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for i in 0..count {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let us = i * step_us;
            let ticks = start + (us as f64 * mhz) as u64;
            let host_ns = 5_000_000_000 + us * 1000 + random % 1000;
            clock.anchor(ticks & 0xffff_ffff, host_ns);
            clock.duration((40.0 * mhz) as u64, 40_000 + random % 500);
        }
        clock
    }

    #[test]
    fn the_frequency_is_found_through_wraps_and_within_its_bound() {
        for mhz in [557.05, 1000.1, 1300.0] {
            let mut clock = counting(mhz, 0xffff_0000, 100_000, 200);
            assert_eq!(clock.frequency(6_000_000_000), None, "before the first fit");
            clock.fit();
            let found = clock.frequency(6_000_000_000).unwrap();
            assert!((found.value - mhz).abs() <= found.error, "{mhz}: {found:?}");
            assert!(found.error < mhz * 1e-5, "{found:?}");
            assert_eq!(clock.bits(), 32);
        }
    }

    #[test]
    fn without_enough_to_go_by_there_is_no_frequency() {
        let mut clock = LiveClock::default();
        clock.fit();
        assert_eq!(clock.frequency(0), None);
        clock.anchor(1000, 1_000_000);
        clock.duration(1000, 1_000_000);
        clock.duration(1, 4_000);
        clock.fit();
        assert_eq!(clock.frequency(1_000_000), None);
        assert_eq!(clock.rough_mhz(), Some(1.0));
    }

    #[test]
    fn any_anchors_are_survived_and_few_are_kept() {
        let mut clock = LiveClock::default();
        for i in 0..20_000_u64 {
            let wild = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            clock.anchor(wild, wild.rotate_left(31));
            clock.duration(wild, wild.rotate_left(17));
            if i % 5000 == 0 {
                clock.fit();
                clock.frequency(wild);
            }
        }
        assert_eq!(clock.anchors.len(), MOST);
        assert_eq!(clock.bits(), 64);
        assert!(clock.rough.len() <= FIRST);
    }
}
