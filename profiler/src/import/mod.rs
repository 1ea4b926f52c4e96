//! Readers: one file per input format.

pub mod capture;
