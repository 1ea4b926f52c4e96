//! What the fuzz target `go_table` calls.

use super::super::table::{GoTable, MAX_HEADER};
use super::*;
use crate::elf::FileSpan;

/// Takes bytes as a table, and reads its first functions: for fuzzing. Whatever the
/// bytes are, it must return, soon.
pub fn fuzz_go_table(data: &[u8]) {
    let span = FileSpan {
        offset: 0,
        vaddr: 0x50_0000,
        size: data.len() as u64,
    };
    let header = data.get(..MAX_HEADER).unwrap_or(data);
    let Some(mut table) = GoTable::parse(header, span) else {
        return;
    };
    table.trees = Some(span);
    let mut reader = GoReader::new(&data, &table);
    let _ = reader.trees_are_sound();
    for index in 0..table.len().min(64) {
        let Ok(Some(function)) = reader.function(index) else {
            continue;
        };
        let values = reader.values(&function, function.pcsp);
        let inside = |range: &std::ops::Range<u64>| {
            range.start >= function.start && range.end <= function.end && !range.is_empty()
        };
        assert!(
            values.is_ok_and(|v| v.unwrap_or_default().iter().all(|(range, _)| inside(range))),
            "values are those of a function's code"
        );
        for at in [function.start, function.end - 1] {
            let frames = reader.frames(at, true);
            assert!(frames.is_ok_and(|frames| frames.len() <= MAX_DEPTH + 1));
        }
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("go_table", fuzz_go_table);
