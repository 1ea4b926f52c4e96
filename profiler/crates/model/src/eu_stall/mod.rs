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
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use layout::{Layout, UnknownLayout};
pub use split::Splitter;
pub use sums::{Sums, Window};

/// Bytes of a record on all hardware so far. The driver reports it (`record_size`).
pub const RECORD_SIZE: usize = 64;

#[cfg(test)]
mod capture_tests;
#[cfg(test)]
mod tests;
