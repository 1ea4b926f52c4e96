//! The reader of a kernel's ideal cycles in the inductor cache.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::import::fuzz_ideal_cycles(data));
