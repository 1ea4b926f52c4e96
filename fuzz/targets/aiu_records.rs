//! The decoder of AIU activity records, which another program wrote.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::aiu::fuzz_records(data));
