//! AIU traces with a known truth.
//!
//! A [`Scenario`] describes what happened on the devices: clocks, jobs, kernels, collectives,
//! power. [`Scenario::make`] plays it and returns a [`Story`]: every event with its true time and
//! its counters. Beside it stands what the host wrote down, with all requested faults. The writers
//! ([`flex`], [`torch`]) turn a story into files. Everything follows from the seed.
//!
//! * [`rng`]: random numbers;
//! * [`clock`]: a device's clock and counter;
//! * [`scenario`]: what to make;
//! * [`story`]: what was made, which is the truth;
//! * [`make`], [`collective`], [`power`]: how it is made;
//! * [`json`], [`flex`], [`torch`]: how it is written;
//! * [`compiler`]: what the compiler's log contains about the kernels;
//! * [`judge`]: how far an output is from a story;
//! * [`bulk`]: large files for measurements, without a truth.

pub mod bulk;
pub mod clock;
pub mod collective;
pub mod compiler;
pub mod flex;
pub mod json;
pub mod judge;
pub mod make;
pub mod power;
pub mod rng;
pub mod scenario;
pub mod story;
pub mod torch;

pub use clock::Clock;
pub use flex::Flex;
pub use rng::Rng;
pub use scenario::{Latency, Scenario, Shape};
pub use story::{Event, Kind, Story};
pub use torch::Torch;
