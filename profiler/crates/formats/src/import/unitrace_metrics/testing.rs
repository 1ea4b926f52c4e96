//! What the fuzz target `unitrace_metrics` calls.

use super::*;

/// Fuzzing entry point: any text is metrics or refused.
pub fn fuzz_unitrace_metrics(data: &[u8]) {
    let mut metrics = KernelMetrics::default();
    if metrics.read(&mut { data }).is_ok() {
        metrics.kernels();
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("unitrace_metrics", fuzz_unitrace_metrics);
