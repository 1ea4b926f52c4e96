//! Readers: one file per input format.

pub mod categories;
pub mod compiler_info;
pub mod iaprof;
pub mod inductor;
pub mod json;
pub mod kineto_ops;
pub mod open;
pub mod perfetto;
pub mod pprof;
pub mod recording;
pub mod stall_profile;
pub mod torch_log;
pub mod unitrace_csv;
pub mod unitrace_metrics;

#[cfg(any(test, fuzzing))]
pub use categories::fuzz_categories;
#[cfg(any(test, fuzzing))]
pub use iaprof::fuzz_iaprof;
#[cfg(any(test, fuzzing))]
pub use inductor::fuzz_ideal_cycles;
#[cfg(any(test, fuzzing))]
pub use pprof::fuzz_pprof;
#[cfg(any(test, fuzzing))]
pub use unitrace_csv::fuzz_unitrace_csv;
#[cfg(any(test, fuzzing))]
pub use unitrace_metrics::fuzz_unitrace_metrics;
