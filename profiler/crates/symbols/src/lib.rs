//! Names for addresses, and tables that walk stacks, from the contents of files.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod elf;
mod frame;
mod go;
pub mod java;
mod memory;
pub mod python;
pub mod symbolize;
pub mod unwind;
pub mod v8;
