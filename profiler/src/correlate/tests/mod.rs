//! The tracker, fed with events made by hand.

mod handles;
mod hostile;
mod kit;
mod lists;
mod nesting;
mod property;
mod speed;
