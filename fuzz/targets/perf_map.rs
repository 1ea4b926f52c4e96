//! The reader of `/tmp/perf-PID.map`, which any program may write.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::symbolize::fuzz_perf_map(data));
