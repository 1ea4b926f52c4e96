//! The samples of equal slices of a recording's time, one slice after the other: their differences
//! show how much of the whole is chance.

use super::{Aggregator, MAX_TIMES, SampleKey, Weigh};
use rustc_hash::FxHashMap;

impl Aggregator {
    /// Keeps the times of all CPU samples, for [`Self::each_slice`].
    #[must_use]
    pub(crate) fn with_times(mut self) -> Self {
        self.keeps_times = true;
        self
    }

    /// Gives the aggregator with nothing but the samples of each of `count` equal slices
    /// of time, in their order, and in the end with none. Work of devices is in no slice.
    ///
    /// Returns `false`, without any slice, where not all times are known: they were not
    /// kept, there are too many, or not only CPU samples are added up.
    pub(crate) fn each_slice(&mut self, count: usize, mut take: impl FnMut(&Self)) -> bool {
        let is_whole = self.keeps_times && self.times_kept < MAX_TIMES;
        if !is_whole || count == 0 || self.waits.is_some() || self.counts_launches() {
            return false;
        }
        let all = || self.times.values().flatten();
        let (Some(first), Some(last)) = (all().min(), all().max()) else {
            return false;
        };
        let (first, length) = (*first, (last - first).max(1));
        self.calls = None;
        let times = std::mem::take(&mut self.times);
        let weights = std::mem::take(&mut self.samples);
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
                if let Some(weight) = weights.get(key).filter(|_| !within.is_empty()) {
                    self.samples
                        .insert(key.clone(), part(*weight, within.len() as u64));
                    self.times.insert(key.clone(), within);
                }
            }
            take(&*self);
            self.samples = FxHashMap::default();
            self.times = FxHashMap::default();
        }
        true
    }

    /// Notes when a sample was taken, where that is wanted.
    pub(super) fn note_time(&mut self, key: &SampleKey, is_wanted: bool, time_ns: u64) {
        if (is_wanted || self.keeps_times) && self.times_kept < MAX_TIMES {
            self.times_kept += 1;
            self.times.entry(key.clone()).or_default().push(time_ns);
        }
    }

    /// A sample is added up under another key: its time goes with it.
    pub(super) fn move_time(&mut self, from: &SampleKey, to: &SampleKey, time_ns: u64) {
        let Some(times) = self.times.get_mut(from).filter(|_| self.keeps_times) else {
            return;
        };
        if let Some(at) = times.iter().rposition(|time| *time == time_ns) {
            times.swap_remove(at);
            self.times.entry(to.clone()).or_default().push(time_ns);
        }
    }
}

/// What `count` of the samples weigh.
fn part(weight: Weigh, count: u64) -> Weigh {
    let count = count.min(weight.count);
    let time = u128::from(weight.time_ns) * u128::from(count) / u128::from(weight.count.max(1));
    Weigh {
        count,
        time_ns: u64::try_from(time).unwrap_or(weight.time_ns),
        bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::super::{Limits, Weighting};
    use super::*;
    use crate::recording::Recording;
    use aiprof_model::wire::{Event, StopReason};

    fn taken(times: &[u64]) -> Aggregator {
        let mut recording = Recording::default();
        let weighting = Weighting { period_ns: 10 };
        let mut aggregate = Aggregator::new(weighting, Limits::default()).with_times();
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
            let weights = slice.samples.values();
            counts.push(weights.fold((0, 0), |sum, one| (sum.0 + one.count, sum.1 + one.time_ns)));
        });
        assert!(is_whole);
        assert_eq!(counts, [(2, 20), (2, 20), (0, 0), (2, 20)]);
    }

    #[test]
    fn a_time_goes_with_its_sample() {
        let mut aggregate = taken(&[3, 6]);
        let key = aggregate.times.keys().next().cloned().unwrap();
        let other = SampleKey {
            stack: 7,
            ..key.clone()
        };
        aggregate.move_time(&key, &other, 6);
        assert_eq!(
            (&*aggregate.times[&key], &*aggregate.times[&other]),
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
