//! The tracker, fed with events made by hand.

mod forks;
mod handles;
mod hostile;
pub(crate) mod kit;
mod lists;
mod nesting;
mod property;
mod speed;
