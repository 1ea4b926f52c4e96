//! Windows that wait to be shared.

use aiprof_model::wire::{DeviceStream, StallCount};
use std::collections::VecDeque;

/// A window that waits.
#[derive(Clone, Debug)]
pub(super) struct WaitingWindow {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) busy_ns: Option<u64>,
    /// Nanoseconds of busy time for each sample, once it is known.
    pub(super) each_ns: Option<f64>,
    /// In the order of addresses.
    pub(super) counts: Vec<StallCount>,
}

impl WaitingWindow {
    pub(super) fn samples(&self) -> u64 {
        self.counts.iter().map(StallCount::samples).sum()
    }

    /// Takes another window in.
    fn merge(&mut self, other: Self) {
        self.from_ns = self.from_ns.min(other.from_ns);
        self.to_ns = self.to_ns.max(other.to_ns);
        self.busy_ns = self
            .busy_ns
            .zip(other.busy_ns)
            .map(|(a, b)| a.saturating_add(b));
        let mut counts = std::mem::take(&mut self.counts);
        counts.extend(other.counts);
        counts.sort_by_key(|count| count.address);
        counts.dedup_by(|next, kept| next.address == kept.address && add(kept, next));
        self.counts = counts;
    }
}

/// Adds counts of an address to others of it; false if a counter would overflow.
fn add(to: &mut StallCount, from: &StallCount) -> bool {
    let mut sums = to.counts;
    for (sum, &n) in sums.iter_mut().zip(&from.counts) {
        match sum.checked_add(n) {
            Some(added) => *sum = added,
            None => return false,
        }
    }
    to.counts = sums;
    true
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: u32,
    pub(super) relative: bool,
    /// In the order in which they end.
    pub(super) windows: VecDeque<WaitingWindow>,
    /// What is left of windows: addresses without a kernel.
    pub(super) unknown: VecDeque<WaitingWindow>,
    /// The busy time until then was given to windows.
    pub(super) weighed_ns: u64,
    /// Busy time of a sample, nanoseconds, where it was last known.
    pub(super) usual_ns: Option<f64>,
}

impl Stream {
    pub(super) fn new(stream: &DeviceStream) -> Self {
        Self {
            id: stream.id,
            relative: stream.relative,
            windows: VecDeque::new(),
            unknown: VecDeque::new(),
            weighed_ns: 0,
            usual_ns: None,
        }
    }

    /// Takes the windows that end by a time.
    pub(super) fn take_until(&mut self, until_ns: u64) -> Vec<WaitingWindow> {
        let ready = self.windows.partition_point(|w| w.to_ns <= until_ns);
        self.windows.drain(..ready).collect()
    }

    /// Takes neighbours together that are not longer than that then.
    fn shorten(&mut self, longest_ns: u64) {
        let mut out: VecDeque<WaitingWindow> = VecDeque::with_capacity(self.windows.len());
        // A window that was just made takes no more in: all get longer alike.
        let mut is_made = false;
        for held in self.windows.drain(..) {
            match out.back_mut() {
                Some(last)
                    if !is_made
                        && held.to_ns.saturating_sub(last.from_ns.min(held.from_ns))
                            <= longest_ns =>
                {
                    last.merge(held);
                    is_made = true;
                }
                _ => {
                    out.push_back(held);
                    is_made = false;
                }
            }
        }
        self.windows = out;
    }
}

/// Takes neighbouring windows together, the shortest first, until they have at most
/// `limit` addresses together or there is one window of each stream. How many addresses
/// there are then.
pub(super) fn shorten(streams: &mut [Stream], limit: usize) -> usize {
    let held = |streams: &[Stream]| {
        let windows = streams.iter().flat_map(|s| &s.windows);
        windows.map(|w| w.counts.len()).sum::<usize>()
    };
    let mut longest_ns: u64 = 1 << 20;
    while held(streams) > limit && longest_ns < 1 << 62 {
        longest_ns <<= 1;
        for stream in streams.iter_mut() {
            stream.shorten(longest_ns);
        }
    }
    held(streams)
}
