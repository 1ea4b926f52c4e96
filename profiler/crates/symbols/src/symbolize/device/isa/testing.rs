//! What the fuzz target `device_isa` calls.

use super::*;

/// Decodes hostile code, for the fuzz target: the first byte picks the platform.
pub fn fuzz_isa(data: &[u8]) {
    let Some((first, code)) = data.split_first() else {
        return;
    };
    let platform = Platform::ALL[usize::from(*first) % Platform::ALL.len()];
    let decoded = decode(code, platform);
    assert!(decoded.instructions.len() <= code.len() / 8);
    for pair in decoded.instructions.windows(2) {
        assert!(pair[0].offset + u32::from(pair[0].length) <= pair[1].offset);
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("device_isa", fuzz_isa);
