//! Recordings of this machine.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod collect;
