//! A recording's timeline on its way to a file: kept in order of time in bounded memory
//! ([`Store`]), and laid out in rows ([`Layout`]).

pub(crate) mod lanes;
mod layout;
mod record;
mod store;

pub use layout::{Layout, Placed};
pub(crate) use layout::{RowName, SAMPLES};
pub use store::{Scratch, Store};
