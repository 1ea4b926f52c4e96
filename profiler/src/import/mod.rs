//! Readers: one file per input format.

pub mod capture;

pub use capture::fuzz_capture;
