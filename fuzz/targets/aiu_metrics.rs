//! The reader of the AIU's metrics file, which any program may write.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::aiu::metrics::testing::fuzz_metrics(data));
