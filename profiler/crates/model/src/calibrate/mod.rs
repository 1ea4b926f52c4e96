//! Clocks: which host time a device's counter value is, and how far apart the clocks
//! of ranks are. Pure: no files, no eBPF; the live path and the readers of traces
//! use the same.
//!
//! * [`bounds`]: error bounds, of all results;
//! * [`line_fit`]: a line through points;
//! * [`drift`]: clocks of hosts by the messages between them, and how fast they run;
//! * [`common`]: two recordings of one run by the events both have;
//! * [`cycles`]: the AIU's five counter values of an event;
//! * [`clock`]: a counter's frequency and offset by all that is known of it;
//! * [`live`]: the same while records still come, bounded;
//! * [`jobs`]: jobs that were placed outside of their round trip;
//! * [`ranks`]: clocks of ranks by the messages between them.
//!
//! Every result includes its error bound. What the data cannot decide is left as it is, with
//! the reason.

mod block_fit;
pub mod bounds;
pub mod clock;
pub mod common;
pub mod cycles;
pub mod drift;
pub mod jobs;
pub mod line_fit;
pub mod live;
mod piecewise_fit;
pub mod ranks;
#[cfg(test)]
mod tests;
