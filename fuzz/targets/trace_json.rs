//! The reader of JSON traces, which any program may have written.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::import::json::testing::fuzz_trace_json(data));
