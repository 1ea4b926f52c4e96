//! The builder of the unwind tables, on arbitrary ELF files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::unwind::fuzz_one(data));
