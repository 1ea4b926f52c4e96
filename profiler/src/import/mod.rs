//! Readers: one file per input format.

pub mod capture;
pub mod compiler_info;
pub mod compiler_log;
pub mod inductor;
pub mod json;
pub mod open;
pub mod perfetto;

pub use capture::fuzz_capture;
pub use compiler_log::fuzz_compiler_log;
pub use inductor::fuzz_ideal_cycles;
