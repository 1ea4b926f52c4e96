//! What the fuzz target `stage_profile` calls.

use super::*;

impl Profile {
    /// Whether the profile lets the occurrence run.
    pub(super) fn allows(&self, stage: Stage) -> bool {
        self.enabled.has(stage)
    }
}

/// Fuzzing entry: any bytes as a profile.
pub fn fuzz_profile(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(profile) = Profile::parse(text)
    {
        assert!(!profile.allows(Stage::VerifySort));
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("stage_profile", fuzz_profile);
