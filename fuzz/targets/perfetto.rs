//! The reader of Perfetto traces, which any program may have written.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::import::perfetto::testing::fuzz_perfetto(data));
