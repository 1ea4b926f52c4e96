//! What the fuzz target `ideal_cycles` calls.

use super::*;

/// Fuzzing entry: any bytes as the file of one kernel.
pub fn fuzz_ideal_cycles(data: &[u8]) {
    let mut table = IdealTable::new(Phase::Unknown);
    let is_whole = add_kernel(&mut table, "k", data).is_ok();
    assert!(is_whole || table.rows() <= data.len());
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("ideal_cycles", fuzz_ideal_cycles);
