//! The decoder of device instructions, whose code any process may hand over.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::symbolize::device::isa::testing::fuzz_isa(data));
