//! The reader and compiler of probe tables, which users write.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::probes::testing::fuzz_table(data));
