//! Readers: one file per input format.

pub mod categories;
pub mod compiler_info;
mod dialects;
pub mod iaprof;
pub mod inductor;
pub mod json;
pub mod kineto_ops;
pub mod open;
pub mod perfetto;
pub mod pprof;
#[cfg(test)]
mod protobuf_tests;
pub mod recording;
pub mod rocprof;
pub mod stall_profile;
pub mod torch_log;
pub mod unitrace_csv;
pub mod unitrace_metrics;
pub mod xplane;

#[cfg(any(test, feature = "testing"))]
pub use categories::testing::fuzz_categories;
#[cfg(any(test, feature = "testing"))]
pub use iaprof::testing::fuzz_iaprof;
#[cfg(any(test, feature = "testing"))]
pub use inductor::testing::fuzz_ideal_cycles;
#[cfg(any(test, feature = "testing"))]
pub use pprof::testing::fuzz_pprof;
#[cfg(any(test, feature = "testing"))]
pub use unitrace_csv::testing::fuzz_unitrace_csv;
#[cfg(any(test, feature = "testing"))]
pub use unitrace_metrics::testing::fuzz_unitrace_metrics;
#[cfg(any(test, feature = "testing"))]
pub use xplane::testing::fuzz_xplane;
