//! Times of a file's clocks, as times of one.

use super::proto::ClockSnapshot;
use rustc_hash::FxHashMap;

/// `BuiltinClock`: the time that traces use by default.
pub(super) const BOOTTIME: u32 = 6;
/// `BuiltinClock`: of events from before packets had times.
pub(super) const MONOTONIC: u32 = 3;
/// Clocks of one sequence have these numbers.
const OF_SEQUENCE: std::ops::RangeInclusive<u32> = 64..=127;

/// A clock: its number, and its sequence or 0.
type ClockKey = (u32, u32);

#[derive(Debug, Default)]
struct KnownClock {
    /// Nanoseconds per unit.
    unit: i64,
    is_incremental: bool,
    /// The last time, nanoseconds.
    last: i64,
    /// The same moments on this clock and on the trace's, nanoseconds, in order.
    moments: Vec<(i64, i64)>,
}

/// All clocks of a file.
#[derive(Debug)]
pub(super) struct Clocks {
    known: FxHashMap<ClockKey, KnownClock>,
    /// The clock whose times are the trace's.
    trace: u32,
    has_snapshots: bool,
}

impl Clocks {
    pub(super) fn new() -> Self {
        Self {
            known: FxHashMap::default(),
            trace: BOOTTIME,
            has_snapshots: false,
        }
    }

    fn key(sequence: u32, clock: u32) -> ClockKey {
        match OF_SEQUENCE.contains(&clock) {
            true => (clock, sequence),
            false => (clock, 0),
        }
    }

    /// The same moment on several clocks. False: nothing relates them to the trace's.
    pub(super) fn snapshot(&mut self, sequence: u32, snapshot: &ClockSnapshot) -> bool {
        if !self.has_snapshots && snapshot.primary_trace_clock > 0 {
            self.trace = snapshot.primary_trace_clock.unsigned_abs();
        }
        self.has_snapshots = true;
        let mut moments = Vec::with_capacity(snapshot.clocks.len());
        for clock in &snapshot.clocks {
            let unit = i64::try_from(clock.unit_multiplier_ns).unwrap_or(1).max(1);
            let ns = (clock.timestamp as i64).wrapping_mul(unit);
            let key = Self::key(sequence, clock.clock_id);
            let known = self.known.entry(key).or_default();
            known.unit = unit;
            known.is_incremental = clock.is_incremental;
            known.last = ns;
            moments.push((key, ns));
        }
        let at = moments
            .iter()
            .find_map(|(key, ns)| (*key == (self.trace, 0)).then_some(*ns))
            .or_else(|| moments.iter().find_map(|(key, ns)| self.convert(*key, *ns)));
        let Some(at) = at else { return false };
        for (key, ns) in moments {
            let Some(known) = self.known.get_mut(&key) else {
                continue;
            };
            let place = known.moments.partition_point(|(clock, _)| *clock <= ns);
            // Most come in order; of the same moment, the last counts.
            match place.checked_sub(1).and_then(|i| known.moments.get_mut(i)) {
                Some(same) if same.0 == ns => same.1 = at,
                _ => known.moments.insert(place, (ns, at)),
            }
        }
        true
    }

    /// A packet's time on the trace's clock, nanoseconds.
    pub(super) fn time(&mut self, sequence: u32, clock: u32, time: u64) -> Option<i64> {
        let key = Self::key(sequence, clock);
        let mut ns = time as i64;
        if let Some(known) = self.known.get_mut(&key) {
            ns = ns.wrapping_mul(known.unit.max(1));
            if known.is_incremental {
                ns = known.last.wrapping_add(ns);
                known.last = ns;
            }
        }
        self.convert(key, ns)
    }

    fn convert(&self, key: ClockKey, ns: i64) -> Option<i64> {
        if key == (self.trace, 0) {
            return Some(ns);
        }
        let moments = self.known.get(&key).map(|known| known.moments.as_slice());
        let moments = moments.unwrap_or_default();
        let at = moments.partition_point(|(clock, _)| *clock <= ns);
        match moments.get(at.saturating_sub(1)) {
            Some((clock, trace)) => Some(trace.wrapping_add(ns.wrapping_sub(*clock))),
            // A file that relates no clocks has one.
            None if !self.has_snapshots && !OF_SEQUENCE.contains(&key.0) => Some(ns),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::SnapshotClock;
    use super::*;

    fn clock(clock_id: u32, timestamp: u64, is_incremental: bool, unit: u64) -> SnapshotClock {
        SnapshotClock {
            clock_id,
            timestamp,
            is_incremental,
            unit_multiplier_ns: unit,
        }
    }

    #[test]
    fn clocks_are_related_by_snapshots_over_several_steps() {
        let mut clocks = Clocks::new();
        // The only clock of a file is the trace's.
        assert_eq!(clocks.time(1, MONOTONIC, 5), Some(5));
        let snapshot = |clocks: &[SnapshotClock]| ClockSnapshot {
            clocks: clocks.to_vec(),
            primary_trace_clock: 0,
        };
        let first = snapshot(&[clock(BOOTTIME, 1000, false, 0), clock(3, 400, false, 0)]);
        assert!(clocks.snapshot(9, &first));
        let second = snapshot(&[clock(3, 500, false, 0), clock(64, 7, true, 1000)]);
        assert!(clocks.snapshot(1, &second));
        assert_eq!(clocks.time(1, 3, 450), Some(1050));
        // 500 on the monotonic clock is 1100; then 2 and 3 units of 1000 ns.
        assert_eq!(clocks.time(1, 64, 2), Some(1100 + 2000));
        assert_eq!(clocks.time(1, 64, 3), Some(1100 + 5000));
        // Another sequence's clock 64 is another clock.
        assert_eq!(clocks.time(2, 64, 2), None);
        assert_eq!(clocks.time(2, 1, 2), None);
        // After a leap of the clock the newer moment counts.
        let third = snapshot(&[clock(BOOTTIME, 5000, false, 0), clock(3, 600, false, 0)]);
        assert!(clocks.snapshot(9, &third));
        assert_eq!(clocks.time(1, 3, 610), Some(5010));
        assert!(!clocks.snapshot(9, &snapshot(&[clock(99, 1, false, 0)])));
    }
}
