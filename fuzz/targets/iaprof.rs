//! The reader of iaprof's recordings, and their writer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::import::fuzz_iaprof(data));
