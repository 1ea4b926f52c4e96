//! What aiprof asks of the machine it runs on: files opened with the caller's rights,
//! helper processes, capabilities, limits of memory.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod errors;
pub mod files;
pub mod memory;
pub mod os;
pub mod remote;
pub mod workers;
