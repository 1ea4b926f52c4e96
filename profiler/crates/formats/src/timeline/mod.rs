//! A recording's timeline on its way to a file, laid out in rows (`TimelineLayout`).

pub(crate) mod lanes;
mod layout;

pub use layout::Placed;
pub(crate) use layout::{RowName, SAMPLES, TimelineLayout};
