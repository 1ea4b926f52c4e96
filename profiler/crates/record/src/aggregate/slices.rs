//! The samples of equal slices of a recording's time, one slice after the other: their differences
//! show how much of the whole is chance.

use super::{Aggregator, SampleKey, SampleValue};
use rustc_hash::FxHashMap;

/// Most times of samples kept: 8 MiB.
const MAX_TIMES: usize = 1 << 20;

/// When samples were taken, of processes that report when their code changed. Samples beyond
/// [`MAX_TIMES`] are named by what was there last.
#[derive(Debug, Default)]
pub(super) struct SampleTimes {
    by_key: FxHashMap<SampleKey, Vec<u64>>,
    kept: usize,
    /// Keep the times of all samples, for slices.
    are_all_kept: bool,
}

impl SampleTimes {
    /// The times of a key's samples, where they were kept.
    pub(super) fn of(&self, key: &SampleKey) -> Option<&Vec<u64>> {
        self.by_key.get(key)
    }

    /// Begins a new window.
    pub(super) fn forget(&mut self) {
        self.by_key = FxHashMap::default();
        self.kept = 0;
    }

    /// Notes when a sample was taken, where that is wanted.
    pub(super) fn note(&mut self, key: &SampleKey, is_wanted: bool, time_ns: u64) {
        if (is_wanted || self.are_all_kept) && self.kept < MAX_TIMES {
            self.kept += 1;
            self.by_key.entry(key.clone()).or_default().push(time_ns);
        }
    }

    /// A sample is added up under another key: its time goes with it.
    pub(super) fn rekey(&mut self, from: &SampleKey, to: &SampleKey, time_ns: u64) {
        let Some(times) = self.by_key.get_mut(from).filter(|_| self.are_all_kept) else {
            return;
        };
        if let Some(at) = times.iter().rposition(|time| *time == time_ns) {
            times.swap_remove(at);
            self.by_key.entry(to.clone()).or_default().push(time_ns);
        }
    }
}

impl Aggregator {
    /// Keeps the times of all CPU samples, for [`Self::each_slice`].
    #[must_use]
    pub(crate) fn with_times(mut self) -> Self {
        self.times.are_all_kept = true;
        self
    }

    /// Gives the aggregator with nothing but the samples of each of `count` equal slices
    /// of time, in their order, and in the end with none. Work of devices is in no slice.
    ///
    /// Returns `false`, without any slice, where not all times are known: they were not
    /// kept, there are too many, or not only CPU samples are added up.
    pub(crate) fn each_slice(&mut self, count: usize, mut take: impl FnMut(&Self)) -> bool {
        let is_whole = self.times.are_all_kept && self.times.kept < MAX_TIMES;
        if !is_whole || count == 0 || self.waits.is_some() || self.counts_launches() {
            return false;
        }
        let all = || self.times.by_key.values().flatten();
        let (Some(first), Some(last)) = (all().min(), all().max()) else {
            return false;
        };
        let (first, length) = (*first, (last - first).max(1));
        self.calls = None;
        let times = std::mem::take(&mut self.times.by_key);
        let values = std::mem::take(&mut self.table.samples);
        let slice_of = |time: u64| {
            let at = u128::from(time - first) * count as u128 / u128::from(length);
            usize::try_from(at).unwrap_or(count).min(count - 1)
        };
        for slice in 0..count {
            for (key, known) in &times {
                let within = known
                    .iter()
                    .copied()
                    .filter(|time| slice_of(*time) == slice);
                let within: Vec<u64> = within.collect();
                if let Some(value) = values.get(key).filter(|_| !within.is_empty()) {
                    let part = part(*value, within.len() as u64);
                    self.table.samples.insert(key.clone(), part);
                    self.times.by_key.insert(key.clone(), within);
                }
            }
            take(&*self);
            self.table.samples = FxHashMap::default();
            self.times.by_key = FxHashMap::default();
        }
        true
    }
}

/// The value of `count` of the samples.
pub(super) fn part(all: SampleValue, count: u64) -> SampleValue {
    let count = count.min(all.count);
    let time = u128::from(all.time_ns) * u128::from(count) / u128::from(all.count.max(1));
    SampleValue {
        count,
        time_ns: u64::try_from(time).unwrap_or(all.time_ns),
        bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::super::tests::sample;
    use super::*;
    use crate::recording::Recording;
    use aiprof_model::wire::{Event, StopReason};

    fn taken(times: &[u64]) -> Aggregator {
        let mut recording = Recording::default();
        let mut aggregate = Aggregator::new(10, Limits::default()).with_times();
        for &time in times {
            let mut event = sample(1, &[0x1000 + time % 3], StopReason::End);
            if let Event::Sample(sample) = &mut event {
                sample.time_ns = time;
            }
            recording.apply(&event, &mut [&mut aggregate]).unwrap();
        }
        aggregate
    }

    /// By hand: slices of 25 from 100 on; what is at the very end is in the last.
    #[test]
    fn each_slice_has_the_samples_of_its_time() {
        let mut aggregate = taken(&[100, 124, 125, 149, 190, 200]);
        let mut counts = Vec::new();
        let is_whole = aggregate.each_slice(4, |slice| {
            let weights = slice.table.samples.values();
            counts.push(weights.fold((0, 0), |sum, one| (sum.0 + one.count, sum.1 + one.time_ns)));
        });
        assert!(is_whole);
        assert_eq!(counts, [(2, 20), (2, 20), (0, 0), (2, 20)]);
    }

    #[test]
    fn a_time_goes_with_its_sample() {
        let mut aggregate = taken(&[3, 6]);
        let key = aggregate.times.by_key.keys().next().cloned().unwrap();
        let other = SampleKey {
            stack: 7,
            ..key.clone()
        };
        aggregate.times.rekey(&key, &other, 6);
        assert_eq!(
            (
                &*aggregate.times.by_key[&key],
                &*aggregate.times.by_key[&other]
            ),
            (&[3][..], &[6][..])
        );
    }

    #[test]
    fn there_are_no_slices_without_times() {
        let mut aggregate = Aggregator::default();
        assert!(!aggregate.each_slice(4, |_| panic!()));
        assert!(!taken(&[]).each_slice(4, |_| panic!()));
    }
}
