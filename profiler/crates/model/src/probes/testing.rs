//! What the fuzz target `probe_table` calls.

use super::*;

/// Reads a table, of functions or of ioctls, and compiles all of it, whatever
/// `data` is; for fuzzing.
pub fn fuzz_table(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let table = match parse_file("fuzz", text) {
        Ok(TableFile::Runtime(table)) => table,
        Ok(TableFile::Driver(table)) => {
            for ioctl in &table.ioctls {
                table.compile(ioctl);
            }
            return;
        }
        Err(_) => return,
    };
    for symbol in table.names().chain(table.patterns()) {
        let Some(function) = table.function(symbol) else {
            continue;
        };
        for exits in [table::Exits::Needed, table::Exits::All] {
            let compiled = table.compile(function, symbol, exits);
            let spec = &compiled.spec;
            let ops = usize::from(spec.n_entry) + usize::from(spec.n_exit);
            assert!(ops <= aiprof_common::MAX_OPS, "{symbol}");
            assert!(compiled.probe.values.len() <= aiprof_common::MAX_VALUES);
        }
        for field in function.args.iter().chain(&function.out) {
            assert!(!field.expr.to_string().is_empty());
        }
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("probe_table", fuzz_table);
