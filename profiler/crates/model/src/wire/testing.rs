//! What the fuzz target `wire` calls.

use super::*;

/// Fuzzing entry point: decodes arbitrary bytes.
pub fn fuzz_one(data: &[u8]) {
    match decode(data) {
        Ok(Record::Sample(sample)) => {
            assert!(sample.user.len() <= MAX_USER_FRAMES + 1);
            assert!(sample.kernel.len() <= MAX_KERNEL_FRAMES);
            assert!(sample.python.len() <= MAX_PYTHON_WORDS);
        }
        Ok(Record::Python(record)) => {
            if let Some(code) = PythonPieces::default().take(record) {
                let mut table = crate::process::ProcessTable::default();
                table.python_code(&code);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("wire", fuzz_one);
