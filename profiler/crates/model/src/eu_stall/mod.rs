//! EU stall records: what Intel GPUs since Ponte Vecchio sample of their execution
//! units, as the drivers xe and i915 hand it out.
//!
//! A record is the address of an instruction and, by reason, how often a sampled
//! execution unit stood there. It has no time, process or context of its own.
//!
//! * [`Layout`]: how records are laid out, and on which devices;
//! * [`Splitter`]: whole records out of pieces of a stream;
//! * [`Sums`]: the records of a read window, added up by address;
//! * [`capture`]: streams in files, with the times at which they were read.
//!
//! Source: Linux, drivers/gpu/drm/xe/xe_eu_stall.c; for the driver's flags in a
//! record, i915's prelim interface.

pub mod capture;
mod devices;
mod layout;
mod split;
mod sums;

pub use layout::{Layout, UnknownLayout};
pub use split::Splitter;
pub use sums::{Sums, Window};

/// Bytes of a record on all hardware so far. The driver reports it (`record_size`).
pub const RECORD_SIZE: usize = 64;

#[cfg(test)]
mod capture_tests;
#[cfg(test)]
mod tests;

/// For fuzzing: decodes bytes in every layout, in pieces.
#[doc(hidden)]
#[cfg(any(test, fuzzing))]
pub fn fuzz_records(data: &[u8]) {
    let [head, size, data @ ..] = data else {
        return;
    };
    let layout = match head % 3 {
        0 => Layout::Pvc,
        1 => Layout::Xe2,
        _ => Layout::Xe3p,
    };
    let Some(mut splitter) = Splitter::new(layout, usize::from(*size)) else {
        return;
    };
    let mut sums = Sums::new(layout, splitter.record_size(), 8);
    for piece in data.chunks(usize::from(head / 3) + 1) {
        splitter.split(piece, |records| sums.add(records));
    }
    let window = sums.take(0);
    let kept: u64 = window
        .counts
        .iter()
        .flat_map(|c| c.counts)
        .map(u64::from)
        .sum();
    let all = window.records.saturating_mul(10 * 255);
    assert!(kept + window.refused_samples <= all);
    assert!(window.counts.len() <= 8 && window.refused <= window.records);
    assert!(window.counts.is_sorted_by(|a, b| a.address < b.address));
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("eu_stall", fuzz_records);
