//! Memory over time: what was allocated on each device by each process, when it was most, and
//! who held it then.
//!
//! It is made of the allocations that a trace has: `[memory]` events of PyTorch's profiler,
//! calls that allocate in aiprof's recordings, and an AIU's records of its memory.

mod gather;
mod owners;
#[cfg(test)]
mod tests;
mod usage;

use aiprof_model::timeline::{Id, Timeline};
use usage::TracedMemory;
pub use usage::{ByteSum, MemoryLevel, MemoryPeak, MemorySums};

/// Whose memory it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOf {
    /// The file, in [`Timeline::jobs`].
    pub job: u32,
    /// Rank of the process, or [`NONE`](aiprof_model::timeline::NONE).
    pub rank: u32,
    /// The process.
    pub process: Id,
    /// The device, for people: `CPU`, `CUDA 0`, `cuda host`.
    pub device: String,
}

/// What held memory at the peak. Names are empty where they are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The innermost operator, or note of the program, round the allocation.
    pub operator: String,
    /// The innermost `nn.Module` round it.
    pub module: String,
    /// The innermost line of Python outside of PyTorch.
    pub python: String,
    /// Its allocations.
    pub held: ByteSum,
}

/// Memory of one device and process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Whose it is.
    pub of: MemoryOf,
    /// Sums over the trace.
    pub sums: MemorySums,
    /// When most was allocated.
    pub peak: MemoryPeak,
    /// What held the peak, the largest first. Empty where events have no addresses.
    pub holders: Vec<Holder>,
    /// What was allocated after each event, by time; the first is before all events.
    pub levels: Vec<MemoryLevel>,
}

/// Memory of all devices and processes of a timeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// By file, process and device.
    pub all: Vec<MemoryUse>,
    /// Events without a readable size or device.
    pub unreadable: u64,
}

impl MemoryReport {
    /// That of a timeline.
    pub fn new(timeline: &Timeline) -> Self {
        let (mut all, unreadable) = levels(timeline);
        owners::name(timeline, &mut all);
        Self {
            all: finish(all),
            unreadable,
        }
    }

    /// The same, without holders.
    pub(crate) fn without_holders(timeline: &Timeline) -> Vec<MemoryUse> {
        finish(levels(timeline).0)
    }
}

/// What was allocated when, and how many events could not be read.
fn levels(timeline: &Timeline) -> (Vec<TracedMemory>, u64) {
    let gathered = gather::GatheredMemory::new(timeline);
    let all = gathered.all.into_iter().map(TracedMemory::new);
    (all.collect(), gathered.unreadable)
}

fn finish(all: Vec<TracedMemory>) -> Vec<MemoryUse> {
    all.into_iter().map(TracedMemory::finish).collect()
}
