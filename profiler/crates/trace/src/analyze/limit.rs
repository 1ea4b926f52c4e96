//! Limits by count and time window (acelyzer's `--event_limit`).

/// Which events are looked at, by their number and their time.
#[derive(Clone, Debug, PartialEq)]
pub struct EventLimit {
    /// Events of the window that are skipped, counted from its first.
    pub skip: i64,
    /// Events of the window that are kept after those.
    pub count: i64,
    /// Start of the window, µs: events that end before it are left out.
    pub ts_start: f64,
    /// End of the window, µs: events that start after it are left out.
    pub ts_end: f64,
    /// Phases (`ph` letters) that are always kept; they count all the same.
    pub no_count_types: String,
}

impl Default for EventLimit {
    fn default() -> Self {
        Self {
            skip: 0,
            count: 1 << 60,
            ts_start: 0.0,
            ts_end: f64::MAX,
            no_count_types: "M".to_owned(),
        }
    }
}

/// Applies an [`EventLimit`] to events in their order.
#[derive(Clone, Debug)]
pub(crate) struct EventLimiter {
    limit: EventLimit,
    last: i64,
    seen: i64,
}

impl EventLimiter {
    /// Starts counting.
    pub(crate) fn new(limit: EventLimit) -> Self {
        let last = limit.skip.saturating_add(limit.count);
        let seen = 0;
        Self { limit, last, seen }
    }

    /// Whether the next event is kept: its phase, its start and its duration in µs
    /// (0 for one without).
    pub(crate) fn keeps(&mut self, phase: &str, ts: f64, dur: f64) -> bool {
        // Both comparisons are false for a time that is not a number.
        let in_window = ts + dur >= self.limit.ts_start && ts <= self.limit.ts_end;
        self.seen = self.seen.saturating_add(i64::from(in_window));
        let counted = self.seen > self.limit.skip && self.seen <= self.last;
        self.limit.no_count_types.contains(phase) || (in_window && counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(limit: EventLimit, events: &[(&str, f64, f64)]) -> Vec<f64> {
        let mut limiter = EventLimiter::new(limit);
        let kept = events
            .iter()
            .filter(|(ph, ts, dur)| limiter.keeps(ph, *ts, *dur));
        kept.map(|(_, ts, _)| *ts).collect()
    }

    #[test]
    fn only_events_of_the_window_count() {
        let limit = EventLimit {
            skip: 1,
            count: 2,
            ts_start: 10.0,
            ts_end: 50.0,
            ..EventLimit::default()
        };
        let events = [
            ("X", 0.0, 5.0),
            ("X", 8.0, 2.0), // touches the window: the one that is skipped
            ("X", 20.0, 1.0),
            ("M", 30.0, 0.0), // kept whatever its number, and counted
            ("X", 40.0, 1.0), // the fourth of the window
            ("M", 60.0, 0.0),
        ];
        assert_eq!(kept(limit, &events), [20.0, 30.0, 60.0]);
    }

    #[test]
    fn by_default_all_is_kept_but_times_before_zero() {
        let events = [("X", 1e18, 1.0), ("C", 0.0, 0.0), ("X", -5.0, 1.0)];
        let events = events.iter().chain(&[("X", f64::NAN, 1.0)]);
        let events: Vec<_> = events.copied().collect();
        assert_eq!(kept(EventLimit::default(), &events), [1e18, 0.0]);
    }
}
