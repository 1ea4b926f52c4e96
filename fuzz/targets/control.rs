//! The messages of the control socket, of both sides.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    aiprof::collect::control::protocol::testing::fuzz_control(data)
});
