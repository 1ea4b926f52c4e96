//! Samples of devices and the launches that caused them; pure.
//!
//! A device's samples carry an address and the time between two reads, nothing else:
//! no process, no context, no launch. [`Join`] finds out which launches can have been
//! running there and then, and shares the samples among them:
//!
//! * [`placements`](Placement): which kernel lies where, in which process, from when
//!   to when. Several may lie at one address: of other processes, or one after the
//!   other;
//! * executions: when each launch can have been running. It began after it was handed
//!   to the device, and ended before whatever waited for it returned; exactly known
//!   where the program asked for timestamps;
//! * windows: what was sampled between two reads of a stream.
//!
//! # Sharing
//!
//! The *candidates* of a sample are the launches of the kernels at its address that
//! can have been running in its window. If all are of one call path, the sample is
//! that path's ([`Sole`](crate::profile::Method::Sole)). Else the samples of the window are shared:
//!
//! * by the time that each was running in it, where exact times of all are known;
//! * else by work: every launch gets samples in proportion to its groups times group
//!   size, from the windows that it can have been running in, those that must have
//!   ended first served first (earliest deadline first: if the proportions can be met
//!   at all, they are);
//! * else by the number of launches, likewise.
//!
//! Whatever the estimate, the truth lies between what only one path can have caused
//! and what it can have caused at all: both are kept beside it.
//!
//! Windows wait until what ran in them is known, at most [`Limits::hold_ns`]; samples at
//! addresses without a kernel wait longer, for kernels become known late.
//!
//! Nothing is dropped: what is not attributed is handed on as unattributed.

mod clock;
mod executions;
mod join;
mod placements;
mod scene;
mod share;
#[cfg(test)]
mod tests;

pub use clock::{Dated, TickClock};
pub use executions::{Begun, Executions, Waited};
pub use join::{Join, Limits, Share, ShareSink};
pub use placements::Placement;

/// A call path, by the number that the caller gave it.
pub type PathId = u32;

/// A kernel's code, by the number that the caller gave it: equal code in several
/// processes, or created several times, may have one number.
pub type CodeId = u32;

/// Parts of a sample that shares are counted in: a sample may be shared.
pub const PARTS: u64 = 1 << 16;
