//! The reader of unitrace's table of stalls, and its writer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::import::fuzz_unitrace_csv(data));
