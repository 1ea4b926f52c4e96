//! The reader of `jit-PID.dump`, which any program may write.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::symbolize::fuzz_jit_dump(data));
