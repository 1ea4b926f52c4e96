//! The reader of pprof's profiles, decompressed.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::import::fuzz_pprof(data));
