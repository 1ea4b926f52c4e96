//! Samples by stall reason.

use aiprof_model::profile::StallReason;

/// Samples by stall reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// In the order of [`StallReason::ALL`].
    pub counts: [u64; StallReason::ALL.len()],
}

impl Tally {
    /// Samples of one reason.
    pub fn of(&self, reason: StallReason) -> u64 {
        self.counts.get(reason as usize).copied().unwrap_or(0)
    }

    /// All samples; `u64::MAX` where their number does not fit.
    pub fn total(&self) -> u64 {
        self.counts.iter().copied().fold(0, u64::saturating_add)
    }

    /// All but those at which an instruction was issued.
    pub fn stalled(&self) -> u64 {
        self.total().saturating_sub(self.of(StallReason::Active))
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum = sum.saturating_add(count);
        }
    }

    /// Reasons with samples, the most frequent first.
    pub fn reasons(&self) -> Vec<(StallReason, u64)> {
        let all = StallReason::ALL.into_iter().zip(self.counts);
        let mut some: Vec<_> = all.filter(|(_, count)| *count > 0).collect();
        // Reasons with equal counts stay in their order.
        some.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        some
    }

    /// The most frequent stall, if there are any.
    pub fn main_stall(&self) -> Option<(StallReason, u64)> {
        let mut stalls = self.reasons().into_iter();
        stalls.find(|(reason, _)| *reason != StallReason::Active)
    }
}

impl std::iter::Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, one| {
            sum.add(&one);
            sum
        })
    }
}
