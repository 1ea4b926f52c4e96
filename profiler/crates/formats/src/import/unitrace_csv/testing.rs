//! What the fuzz target `unitrace_csv` calls.

use super::*;

/// Fuzzing entry: any bytes as a file; what was read is written and read again.
pub fn fuzz_unitrace_csv(data: &[u8]) {
    let Ok(stalls) = read(&mut &*data) else {
        return;
    };
    let lines = data.iter().filter(|b| **b == b'\n').count() as u64;
    assert!(stalls.skipped <= lines.saturating_add(1));
    let mut text = Vec::new();
    let written = crate::export::unitrace_csv::write_table(&stalls.table, &mut text);
    assert!(written.is_ok());
    if stalls.table.devices.is_empty() {
        return;
    }
    let again = read(&mut text.as_slice());
    assert!(again.is_ok_and(|again| again.table.total() == stalls.table.total()));
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("unitrace_csv", fuzz_unitrace_csv);
