//! Readers: one file per input format.

pub mod capture;
pub mod compiler_info;
pub mod iaprof;
pub mod inductor;
pub mod json;
pub mod open;
pub mod perfetto;
pub mod pprof;
pub mod recording;
pub mod stall_profile;
pub mod unitrace_csv;

pub use capture::fuzz_capture;
pub use iaprof::fuzz_iaprof;
pub use inductor::fuzz_ideal_cycles;
pub use pprof::fuzz_pprof;
pub use unitrace_csv::fuzz_unitrace_csv;
