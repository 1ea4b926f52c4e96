//! The reader of device code, which programs hand to their runtime.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::symbolize::device::fuzz_module(data));
