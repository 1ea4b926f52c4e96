//! A recording's timeline on its way to a file, laid out in rows ([`Layout`]).

pub(crate) mod lanes;
mod layout;

pub use layout::{Layout, Placed};
pub(crate) use layout::{RowName, SAMPLES};
