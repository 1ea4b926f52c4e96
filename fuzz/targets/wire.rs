//! The decoder of ring-buffer records.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::wire::testing::fuzz_one(data));
