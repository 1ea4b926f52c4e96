//! A device's clock as its programs show it: host times of its ticks, with bounds.
//!
//! Every tick that a program read lies between two host times. A global timestamp lies between
//! entry and exit of the call that read it. A kernel's end lies between its submission and the
//! return of the call that reported it. The clock's offset is what satisfies them all. Clocks
//! drift, so what is known of the offset gets less certain with time, by [`DRIFT`]; where nothing
//! satisfies all, the clock was set anew.

use aiprof_model::calibrate::bounds::Bounds;

/// How much faster or slower than stated a crystal may be, with room to spare.
const DRIFT: f64 = 1e-4;

/// Frequencies of timestamp crystals, Hz. Drivers state the period in whole nanoseconds, 52 for
/// 19.2 MHz. Linux (intel_gt_clock_utils.c) has 19.2, 24, 25 and 38.4 MHz; older parts have 12
/// and 12.5 MHz.
const CRYSTALS: [f64; 6] = [12e6, 12.5e6, 19.2e6, 24e6, 25e6, 38.4e6];

/// A device clock, seen from the host.
#[derive(Clone, Debug)]
pub struct TickClock {
    ns_per_tick: f64,
    /// Valid bits of the ticks; they wrap there.
    bits: u32,
    /// A tick, wraps counted, and about when it was.
    reference: Option<(i128, f64)>,
    /// Limits of the offset at `known_ns`: host = offset + ticks * `ns_per_tick`.
    offset: Bounds,
    known_ns: f64,
    /// How often it was set.
    sets: u32,
}

/// A tick with its wraps counted, to be dated again when more is known of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick {
    pub(super) at: i128,
    /// Which of the times that the clock was set it counts from.
    pub(super) sets: u32,
}

/// A host time with its bound.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dated {
    /// CLOCK_MONOTONIC nanoseconds.
    pub(super) ns: u64,
    /// The truth is within this of it.
    pub(super) error_ns: u64,
}

impl TickClock {
    /// A clock with `hz` ticks per second. `bits`: valid bits of its ticks.
    pub(crate) fn of_hz(hz: u64, bits: u32) -> Option<Self> {
        let is_sane = (1_000..=100_000_000_000).contains(&hz);
        is_sane.then(|| Self::new(1e9 / hz as f64, bits))
    }

    /// A clock whose period is stated in whole nanoseconds.
    pub(crate) fn of_period(ns: u64, bits: u32) -> Option<Self> {
        if !(1..=1_000_000).contains(&ns) {
            return None;
        }
        let fits = |hz: &&f64| (1e9 / **hz) as u64 == ns || (1e9 / **hz).round() as u64 == ns;
        let period = CRYSTALS.iter().find(fits).map_or(ns as f64, |hz| 1e9 / hz);
        Some(Self::new(period, bits))
    }

    fn new(ns_per_tick: f64, bits: u32) -> Self {
        Self {
            ns_per_tick,
            bits: if (8..=64).contains(&bits) { bits } else { 64 },
            reference: None,
            offset: Bounds::NONE,
            known_ns: 0.0,
            sets: 0,
        }
    }

    /// Nanoseconds between two ticks, the second not before the first.
    pub fn duration_ns(&self, from: u64, to: u64) -> u64 {
        let ticks = to.wrapping_sub(from) & self.mask();
        (ticks as f64 * self.ns_per_tick) as u64
    }

    /// What a time by its stated frequency can be at most.
    pub(super) fn longest_ns(&self, ns: u64) -> u64 {
        let ticks = self.ns_per_tick.ceil() as u64;
        ns.saturating_add((ns as f64 * DRIFT) as u64)
            .saturating_add(2 * ticks)
    }

    /// How long it takes to wrap.
    pub(super) fn period_ns(&self) -> u64 {
        ((self.mask() as f64 + 1.0) * self.ns_per_tick) as u64
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.bits.min(64))
    }

    /// The tick with its wraps, the one nearest to a host time.
    fn unwrap(&self, ticks: u64, near_ns: f64) -> i128 {
        let ticks = ticks & self.mask();
        let Some((known, known_ns)) = self.reference else {
            return ticks.into();
        };
        let period = i128::from(self.mask()) + 1;
        let expected = known + ((near_ns - known_ns) / self.ns_per_tick) as i128;
        let behind = (expected - i128::from(ticks) + period / 2).div_euclid(period);
        i128::from(ticks) + behind * period
    }

    /// A tick was read not before and not after these times.
    pub(crate) fn observe(&mut self, ticks: u64, earliest_ns: u64, latest_ns: u64) {
        if earliest_ns > latest_ns {
            return;
        }
        let (earliest, latest) = (earliest_ns as f64, latest_ns as f64);
        let middle = f64::midpoint(earliest, latest);
        let at = self.unwrap(ticks, middle);
        let since = at as f64 * self.ns_per_tick;
        let aged = (middle - self.known_ns).abs() * DRIFT;
        let seen = Bounds {
            least: earliest - since,
            most: latest - since,
        };
        self.offset = self.offset.widened(aged).and(seen);
        if !self.offset.is_possible() {
            // It was set since.
            self.sets = self.sets.wrapping_add(1);
            self.offset = seen;
        }
        self.known_ns = middle;
        self.reference = Some((at, middle));
    }

    /// The tick that happened about then; `None`: nothing was seen of the clock yet.
    pub(super) fn tick(&self, ticks: u64, near_ns: u64) -> Option<Tick> {
        self.reference?;
        Some(Tick {
            at: self.unwrap(ticks, near_ns as f64),
            sets: self.sets,
        })
    }

    /// The host times that a tick lies between, by what is known now; `None`: the clock was set
    /// since.
    pub(super) fn between(&self, tick: Tick, near_ns: u64) -> Option<(u64, u64)> {
        if tick.sets != self.sets {
            return None;
        }
        let since = tick.at as f64 * self.ns_per_tick;
        let aged = (near_ns as f64 - self.known_ns).abs() * DRIFT;
        let Bounds { least, most } = self.offset.widened(aged).plus(since);
        Some((least.floor().max(0.0) as u64, most.ceil().max(0.0) as u64))
    }

    /// When a tick was that happened about then.
    #[cfg(test)]
    pub(super) fn date(&self, ticks: u64, near_ns: u64) -> Option<Dated> {
        let (low, high) = self.between(self.tick(ticks, near_ns)?, near_ns)?;
        Some(Dated {
            ns: u64::midpoint(low, high),
            error_ns: (high - low).div_ceil(2),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock of 19.2 MHz, 30 ppm fast, whose 32 bits wrap soon.
    fn ticks(ns: u64) -> u64 {
        let all = u128::from(ns) * 19_200_576 / 1_000_000_000;
        (all as u64).wrapping_add(0xffff_0000) & 0xffff_ffff
    }

    #[test]
    fn ticks_are_dated_within_their_bounds_across_wraps() {
        let mut clock = TickClock::of_period(52, 32).unwrap();
        let mut last = u64::MAX;
        // Past the wrap at 3.4 ms, and the one 223 s later.
        for i in 0..100_000_u64 {
            let now = 1_000_000_000 + i * 3_000_000;
            // Read within 40 us of a call.
            let before = 5_000 + i * 7919 % 20_000;
            clock.observe(ticks(now), now - before, now + 20_000);
            let later = now + 1_000_000;
            let dated = clock.date(ticks(later), later + 400_000).unwrap();
            assert!(
                dated.ns.abs_diff(later) <= dated.error_ns + 60,
                "{i}: {dated:?}"
            );
            last = dated.error_ns;
        }
        assert!(last < 20_000, "{last}");
    }

    #[test]
    fn a_clock_that_is_set_is_followed() {
        let mut clock = TickClock::of_hz(1_000_000_000, 64).unwrap();
        clock.observe(500, 1_000, 1_100);
        clock.observe(9_000_000, 2_000, 2_100);
        let dated = clock.date(9_000_100, 2_150).unwrap();
        assert!(dated.ns.abs_diff(2_150) <= 51, "{dated:?}");
    }

    #[test]
    fn durations_wrap_and_nonsense_is_refused() {
        let clock = TickClock::of_hz(1_000_000_000, 32).unwrap();
        assert_eq!(clock.duration_ns(0xffff_fff0, 0x10), 0x20);
        assert!(TickClock::of_hz(0, 32).is_none());
        assert!(TickClock::of_period(0, 32).is_none());
        assert!(clock.date(5, 5).is_none());
    }
}
