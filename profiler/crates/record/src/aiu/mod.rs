//! Reads what the AIU runtime records about itself; pure.
//!
//! * [`Decoder`]: buffers of libaiupti's activity records, read
//!   by a table of [`Layouts`], since most of them are not public;
//! * [`events`]: names of the runtime's events by cbid;
//! * [`operation`]: what the records of an operation show of its phases;
//! * [`metrics`]: the metrics file, power, temperature and memory traffic.
//!
//! All input is that of another process: nothing in it is believed without a
//! check, decoding is total, and what cannot be read is counted.

/// What the table of the AIU's runtime calls its API (`probes/aiu.toml`).
pub const API: &str = "AIU runtime";

mod decode;
pub mod events;
mod layouts;
mod learn;
pub mod metrics;
pub mod operation;
mod record;
#[cfg(test)]
mod tests;
pub mod timing;

#[cfg(test)]
use decode::decode_records;
#[cfg(any(test, feature = "testing"))]
pub use decode::testing::fuzz_records;
pub use decode::{Decoder, RecordError, Unknown};
pub use layouts::{Kind, LayoutStatus, Layouts, LayoutsError, RecordLayout};
pub use record::{ActivityRecord, BufferContext, Endian, EpochNs};
