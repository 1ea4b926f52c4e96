//! Readers: one file per input format.

pub mod capture;
pub mod json;
pub mod open;
pub mod perfetto;

pub use capture::fuzz_capture;
