//! The reader of acelyzer's command line: arguments between zeros.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::cli::fuzz_acelyzer(data));
