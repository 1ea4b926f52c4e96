//! What the fuzz target `compiler_log` calls.

use super::*;

/// Fuzzing entry: any bytes as a compiler log.
pub fn fuzz_compiler_log(data: &[u8]) {
    use crate::analyze::messages::Level;
    let mut messages = Messages::new(Level::Trace);
    let tables = read(&mut io::BufReader::with_capacity(7, data), &mut messages);
    for table in tables.iter().flat_map(IdealTables::tables) {
        assert!(table.rows() == 0 || !table.categories().is_empty());
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("compiler_log", fuzz_compiler_log);
