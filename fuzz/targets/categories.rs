//! The readers of categories of kernels, and their writer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::import::fuzz_categories(data));
