//! The reader of compiler logs of the AIU.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::import::fuzz_compiler_log(data));
