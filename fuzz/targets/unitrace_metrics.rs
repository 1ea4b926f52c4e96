//! The reader of unitrace's metrics of kernels.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::import::fuzz_unitrace_metrics(data));
