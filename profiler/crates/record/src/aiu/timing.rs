//! How a program is made to record the activity of its AIUs.

use std::ffi::OsString;

/// Variables that switch timing and records on, as IBM's public documentation and
/// callers of the runtime set them.
const VARIABLES: [(&str, &str); 4] = [
    // flex: times of device operations, with the device's clock calibrated.
    ("ENABLE_FLEX_TIMING", "1"),
    ("FLEX_SKIP_TIMESTAMP_CALIBRATION", "0"),
    // The runtime's own times on the host.
    ("AIU_TIMING_ENABLED", "1"),
    // torch and vLLM: the profiler activity under which AIU records are asked for.
    ("ProfilerActivity", "PrivateUse1"),
];

/// Advice where aiprof starts the program.
pub const HINT_COMMAND: &str = "use `aiprof --aiu-timing COMMAND` to switch timing on, or enable \
                                records in the program (libaiupti, torch's profiler, vLLM's \
                                --profiler-config)";

/// Advice where the program runs already.
pub const HINT_RUNNING: &str = "a running program must enable records itself (libaiupti, torch's \
                                profiler, vLLM's start_profile); use `aiprof --aiu-timing COMMAND` \
                                to start one with timing";

/// The environment of a program that shall record what its AIUs do.
pub fn environment() -> Vec<(OsString, OsString)> {
    VARIABLES
        .map(|(name, value)| (name.into(), value.into()))
        .to_vec()
}
