//! The decoder of device stall records, and the reader of device captures.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    aiprof::eu_stall::testing::fuzz_records(data);
    aiprof::eu_stall::capture::testing::fuzz_capture(data);
});
