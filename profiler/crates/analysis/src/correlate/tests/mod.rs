//! The tracker, fed with events made by hand.

mod forks;
mod handles;
mod hostile;
mod lists;
mod nesting;
mod property;
mod speed;
