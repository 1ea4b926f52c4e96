//! What the fuzz target `xplane` calls.

use super::*;

/// Reads any bytes, for the fuzzer.
pub fn fuzz_xplane(data: &[u8]) {
    let _ = is_xspace(data);
    let mut timeline = Timeline::default();
    let _ = read(data, "fuzz.xplane.pb", Stretch::ALL, &mut timeline);
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("xplane", fuzz_xplane);
