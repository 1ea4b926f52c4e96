//! What events and timelines mean: calls joined, clocks fitted, sums, findings.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod aggregate;
pub mod aiu;
pub mod analyze;
pub mod calibrate;
pub mod choice;
pub mod correlate;
pub mod kernel_choice;
pub mod timeline;
