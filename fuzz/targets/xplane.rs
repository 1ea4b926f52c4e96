//! The reader of profiles of JAX and TensorFlow, which any program may have written.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::import::fuzz_xplane(data));
