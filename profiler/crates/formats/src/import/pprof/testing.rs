//! What the fuzz target `pprof` calls.

use super::*;

/// Fuzzing entry: any bytes as a profile; what was read is folded and read again.
pub fn fuzz_pprof(data: &[u8]) {
    for wanted in [Weight::Time, Weight::Samples] {
        let Ok(read) = read(&mut &*data, wanted) else {
            return;
        };
        let mut text = Vec::new();
        let options = crate::export::ExportOptions::default();
        let written = crate::export::folded::write_stacks(&read.stacks, &options, &mut text);
        assert!(written.is_ok());
        let again = crate::export::folded::read(&mut text.as_slice());
        assert_eq!(again.map(|again| again.total).ok(), Some(read.stacks.total));
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("pprof", fuzz_pprof);
