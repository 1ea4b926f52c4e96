//! What the fuzz target `stage_profile` calls.

use super::*;

/// Fuzzing entry: any bytes as a profile.
pub fn fuzz_profile(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(profile) = parse(text)
    {
        assert!(!profile.contains(&AcelyzerStage::VerifySort));
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("stage_profile", fuzz_profile);
