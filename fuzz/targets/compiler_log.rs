//! The reader of compiler logs of the AIU.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    aiprof::analyze::utilization::compiler_log::testing::fuzz_compiler_log(data)
});
