//! The tracker, fed with events made by hand.

mod device_facts;
mod forks;
mod handles;
mod hostile;
mod kernel_events;
mod lists;
mod nesting;
mod property;
mod speed;
