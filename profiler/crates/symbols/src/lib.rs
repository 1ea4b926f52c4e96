//! Names for addresses, and tables that walk stacks, from what files say.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

mod go;
pub mod python;
pub mod symbolize;
pub mod unwind;
