//! Device code to names.

pub mod isa;
