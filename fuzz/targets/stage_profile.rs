//! The reader of profiles that choose stages.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::analyze::stages::testing::fuzz_profile(data));
