//! What a timeline means: clocks aligned, work and waits, findings. Pure: no files, no
//! command line.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod analyze;
pub mod critical;
pub mod device_time;
pub mod finding;
pub mod findings;
pub mod memory;
pub mod messages;
pub mod mpi;
mod point_to_point;
pub mod ranks;
pub mod steps;
mod stretches;
#[cfg(test)]
mod test_data;
pub mod torch;
pub mod work;
