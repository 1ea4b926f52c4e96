//! What recorded events mean: calls joined, samples attributed, timelines made, captures
//! written and read.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod aggregate;
pub mod aiu;
pub mod capture;
pub mod choice;
pub mod correlate;
pub mod kernel_choice;
mod ops;
pub mod recording;
pub mod store;
pub mod timeline;
