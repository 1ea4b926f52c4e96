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
//! # What is shared, and over what
//!
//! The *candidates* of a sample are the launches of the kernels at its address that
//! can have been running in its window. If all are of one call path, the sample is
//! that path's ([`Sole`](aiprof_model::profile::Method::Sole)). Else:
//!
//! * by the time that each was running in the window, where exact times of all are
//!   known;
//! * else by work: groups times group size;
//! * else by the number of launches.
//!
//! Work is spent once. Samples that have kernels in common, at whatever address, of whatever
//! stream and window, are shared together: all of them are divided by all the work of
//! their launches. This gives the number of samples due to each launch. A launch that has got them
//! gets no more while others are still to get some. One sweep goes over the windows of all
//! streams in the order in which they end. It serves those launches first that must have ended
//! first, then those that began first (earliest deadline first: if the proportions can be met at
//! all, they are). Within a window, those samples come first that fewer kernels can have caused.
//!
//! # When
//!
//! Windows wait until nothing that ran in them can run in later ones. Where processes take turns,
//! this may not happen. Then the older half of the windows is shared after ten seconds if all
//! that ran in it is known to have ended, and after [`JoinLimits::hold_ns`] at the latest. What is
//! due to a launch is found with the samples of the newer half, too, and what it did not get yet
//! stays due to it. Where launches are never waited for, those that the device has not begun yet
//! make this inexact, by about their part of the work of that time. Where room is short,
//! neighbouring windows of a stream, and neighbouring launches of one kernel, path and queue, are
//! taken together: resolution is lost, but no sample and no work.
//!
//! # Bounds
//!
//! The truth lies between what only one path can have caused and what a path can have
//! caused at all; both are kept beside the estimate. They hold whatever the estimate is,
//! for they rest on the candidates alone, and
//!
//! * a launch is a candidate from when it was handed over until it is known to have ended. Its
//!   end is known by a wait that was entered after it was handed over and has returned, or by its
//!   own timestamps. These keep the error bound of the clock that dated them;
//! * a window that is widened or taken together with others, and launches that are,
//!   only get more candidates;
//! * a launch stays a candidate when its work is spent.
//!
//! They do not hold for launches of which nothing was seen, and for kernels of which it
//! is not known where they lie.
//!
//! # Device time
//!
//! A stream's device was busy while a launch of a kernel that it has samples of can have been
//! running. That is the time between the bounds of a launch, or the time that a timed launch ran.
//! Every such nanosecond that a window covers is given once to the samples of the windows that
//! cover it, however many they are.
//!
//! Samples at addresses without a kernel wait longer, for kernels become known late.
//! Nothing is dropped: what is not attributed is handed on as unattributed.

mod batch;
mod busy;
mod clock;
mod clocks;
mod executions;
mod join;
mod placements;
mod round;
#[cfg(test)]
mod schedule_tests;
mod share;
#[cfg(test)]
mod tests;
mod unassigned;
mod windows;

pub use clock::TickClock;
pub use clocks::ProcessClocks;
pub(crate) use clocks::Times;
pub use executions::{Begun, Executions, Waited};
pub use join::{Join, JoinLimits, Share, ShareSink};
pub use placements::Placement;

/// A call path, by the number that the caller gave it.
pub type PathId = u32;

/// A kernel's code, by the number that the caller gave it: equal code in several
/// processes, or created several times, may have one number.
pub type CodeId = u32;

/// Parts of a sample that shares are counted in: a sample may be shared.
pub const PARTS: u64 = 1 << 16;
