//! When it is a host's turn to record, where not all hosts do at once.
//!
//! Each host draws by itself, anew for each turn: so at any time the share that was asked for
//! records, whatever hosts there are, and each host does some time. What is recorded counts as
//! often as turns go by for one of its own; sums over hosts or time are those of all of it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

/// Windows of a turn: to meet what runs on a host costs as much as some of them.
pub(super) const WINDOWS: u32 = 10;

/// The turns of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turns {
    one_in: u32,
    length_ns: u64,
    host: String,
}

impl Turns {
    /// One turn in `one_in`, drawn for this host.
    pub(super) fn new(one_in: u32, window: Duration, host: &str) -> Self {
        let length = u64::try_from((window * WINDOWS).as_nanos()).unwrap_or(u64::MAX);
        Self {
            one_in: one_in.max(1),
            length_ns: length.max(1),
            host: host.to_owned(),
        }
    }

    /// Whether it is its turn at this time, nanoseconds since the Unix epoch.
    pub(super) fn has(&self, unix_ns: u64) -> bool {
        let mut drawn = DefaultHasher::new();
        (&self.host, unix_ns / self.length_ns).hash(&mut drawn);
        drawn.finish().is_multiple_of(u64::from(self.one_in))
    }

    /// How often what is recorded counts.
    pub(super) fn weight(&self) -> u64 {
        u64::from(self.one_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN_NS: u64 = 600_000_000_000;

    fn of(one_in: u32, host: &str) -> Turns {
        Turns::new(one_in, Duration::from_secs(60), host)
    }

    #[test]
    fn a_turn_is_ten_windows_and_all_are_everyones_by_default() {
        let turns = of(10, "a");
        for turn in 0..100 {
            let first = turns.has(turn * TURN_NS);
            assert!((1..10).all(|part| turns.has(turn * TURN_NS + part * TURN_NS / 10) == first));
        }
        assert!((0..100).all(|turn| of(1, "a").has(turn * TURN_NS)));
        assert_eq!((of(0, "").weight(), of(10, "").weight()), (1, 10));
    }

    /// What 500 hosts use, by some law, is estimated from a tenth of them.
    #[test]
    fn sums_are_unbiased_over_hosts_and_over_time() {
        let hosts: Vec<(Turns, f64)> = (0..500)
            .map(|host| (of(10, &format!("host-{host}")), f64::from(host % 7) + 1.0))
            .collect();
        let truth: f64 = hosts.iter().map(|(_, use_)| use_).sum();
        let (mut all, mut least, mut most) = (0.0, usize::MAX, 0);
        let turns = 1000;
        for turn in 0..turns {
            let on = hosts.iter().filter(|(turns, _)| turns.has(turn * TURN_NS));
            let on: Vec<_> = on
                .map(|(turns, use_)| use_ * turns.weight() as f64)
                .collect();
            (least, most) = (least.min(on.len()), most.max(on.len()));
            all += on.iter().sum::<f64>();
        }
        // Half a million draws: the standard error is 0.5 %.
        let ratio = all / turns as f64 / truth;
        assert!((0.985..1.015).contains(&ratio), "{ratio}");
        // 50 of 500 with a standard deviation of 6.7: all times are alike.
        assert!(least >= 20 && most <= 85, "{least} to {most}");
        for (turns, _) in &hosts {
            let on = (0..1000).filter(|turn| turns.has(turn * TURN_NS)).count();
            assert!((50..160).contains(&on), "{on} of 1000 turns");
        }
    }
}
