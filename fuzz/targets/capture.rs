//! The reader of capture files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::capture::fuzz_capture(data));
