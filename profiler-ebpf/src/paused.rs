//! Whether the recording is paused.

use crate::maps::RECORDING;

/// The time since which the recording runs, CLOCK_MONOTONIC nanoseconds. [`u64::MAX`]: it is
/// paused.
#[inline(always)]
pub fn recording_since() -> u64 {
    let Some(since) = RECORDING.get_ptr(0) else {
        return 0;
    };
    // SAFETY: a word of a checked map value, which user space writes whole.
    unsafe { since.read_volatile() }
}

/// Whether the recording is paused.
#[inline(always)]
pub fn is_paused() -> bool {
    recording_since() == u64::MAX
}
