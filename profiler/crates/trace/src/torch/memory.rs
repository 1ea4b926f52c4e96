//! Allocations that the profiler noted: `[memory]` events.

/// An allocation; a negative size: a release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Allocation {
    /// When, nanoseconds.
    pub(super) at: i64,
    /// Bytes of the host's memory.
    pub(super) host: i64,
    /// Bytes of a device's memory.
    pub(super) device: i64,
    /// Its event, an index.
    pub(super) event: usize,
}

impl Allocation {
    /// One of `bytes` bytes on a device of this type: a number of `c10::DeviceType`
    /// (`c10/core/DeviceType.h`).
    pub(super) fn new(event: usize, at: i64, bytes: i64, device_type: i64) -> Self {
        let is_host = matches!(device_type, 0 | 2 | 5);
        let is_device = matches!(device_type, 1 | 6 | 12 | 20);
        let of = |is_there| if is_there { bytes } else { 0 };
        Self {
            at,
            host: of(is_host),
            device: of(is_device),
            event,
        }
    }
}

/// All of a trace, in the order of time.
#[derive(Debug, Default)]
pub(super) struct MemoryLedger {
    all: Vec<Allocation>,
    /// Bytes before each, and after the last: host, device.
    before: Vec<(i64, i64)>,
    /// Calls that begin at each allocation less those that end before it: where the sum
    /// up to one is 0, no call has it.
    found: Vec<i64>,
}

impl MemoryLedger {
    pub(super) fn new(mut all: Vec<Allocation>) -> Self {
        all.sort_by_key(|one| one.at);
        let mut sum = (0i64, 0i64);
        let mut before = vec![sum];
        before.extend(all.iter().map(|one| {
            sum = (
                sum.0.saturating_add(one.host),
                sum.1.saturating_add(one.device),
            );
            sum
        }));
        Self {
            before,
            found: vec![0; all.len() + 1],
            all,
        }
    }

    /// Bytes that were allocated, less those released, from one time to another, on any
    /// thread: host, device.
    pub(super) fn within(&mut self, from: i64, to: i64) -> (i64, i64) {
        let first = self.all.partition_point(|one| one.at < from);
        let last = self.all.partition_point(|one| one.at <= to).max(first);
        for (at, change) in [(first, 1), (last, -1)] {
            if let Some(found) = self.found.get_mut(at) {
                *found += change;
            }
        }
        let at = |index| self.before.get(index).copied().unwrap_or_default();
        let ((host, device), (end_host, end_device)) = (at(first), at(last));
        (
            end_host.saturating_sub(host),
            end_device.saturating_sub(device),
        )
    }

    /// Those that [`Self::within`] found in no call.
    pub(super) fn outside(&self) -> impl Iterator<Item = Allocation> {
        let mut calls = 0;
        let all = self.all.iter().zip(&self.found);
        all.filter_map(move |(one, change)| {
            calls += change;
            (calls == 0).then_some(*one)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_of_the_time_with_both_ends() {
        let of = |at, bytes, kind| Allocation::new(0, at, bytes, kind);
        let mut memory = MemoryLedger::new(vec![
            of(30, -8, 1),
            of(10, 8, 1),
            of(20, 5, 0),
            of(25, 99, 13),
            of(40, 3, 20),
        ]);
        assert_eq!(memory.within(10, 20), (5, 8));
        assert_eq!(memory.within(20, 30), (5, -8));
        assert_eq!(memory.within(21, 24), (0, 0));
        assert_eq!(memory.within(9, 2), (0, 0));
        let outside: Vec<i64> = memory.outside().map(|one| one.at).collect();
        assert_eq!(outside, [40]);
    }
}
