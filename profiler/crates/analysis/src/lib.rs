//! What events and timelines mean: calls joined, clocks fitted, sums, findings.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod aggregate;
pub mod aiu;
pub mod analyze;
pub mod calibrate;
pub mod categories;
pub mod choice;
pub mod compare;
pub mod correlate;
pub mod kernel_choice;
pub mod mpi;
mod ops;
mod ranks;
pub mod roofline;
pub mod tables;
pub mod timeline;
pub mod torch;
mod waste;
