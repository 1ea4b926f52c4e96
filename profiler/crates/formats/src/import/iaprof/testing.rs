//! What the fuzz target `iaprof` calls.

use super::*;

/// Fuzzing entry: any bytes as a file; what was read is written and read again.
pub fn fuzz_iaprof(data: &[u8]) {
    let Ok(profile) = read(&mut &*data) else {
        return;
    };
    let mut text = Vec::new();
    assert!(crate::export::iaprof::write(&profile, &mut text).is_ok());
    let again = read(&mut text.as_slice());
    assert!(again.is_ok_and(|again| again.total_count() == profile.total_count()));
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("iaprof", fuzz_iaprof);
