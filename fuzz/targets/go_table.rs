//! The reader of the table of Go's linker, on arbitrary bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aiprof::symbolize::fuzz_go_table(data));
