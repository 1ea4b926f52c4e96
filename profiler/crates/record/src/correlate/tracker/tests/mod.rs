//! The tracker, fed with events made by hand.

mod device_facts;
mod driver_calls;
mod forks;
mod handles;
mod hostile;
mod kernel_events;
mod lists;
mod nesting;
mod property;
mod speed;
