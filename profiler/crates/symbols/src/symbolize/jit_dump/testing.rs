//! What the fuzz target `jit_dump` calls.

use super::*;

/// Entry point for fuzzing: reads arbitrary bytes as a jitdump file, half of it first, and
/// looks up the edges of all code.
///
/// # Panics
/// When an invariant of what was read does not hold.
pub fn fuzz_jit_dump(data: &[u8]) {
    let limits = JitDumpLimits {
        codes: 256,
        name_bytes: 4096,
        lines: 512,
    };
    let deadline = Instant::now() + std::time::Duration::from_secs(60);
    let mut dump = JitDump::new(limits);
    for part in [&data[..data.len() / 2], data] {
        // An error is allowed for what cannot be read; the position must stay within bounds.
        let _ = dump.read(&mut std::io::Cursor::new(part), deadline);
        assert!(dump.at <= u64::from(u32::MAX) || dump.at <= data.len() as u64);
    }
    assert!(dump.codes.len() <= limits.codes && dump.placements.len() <= limits.codes);
    assert!(dump.texts.len() <= limits.name_bytes && dump.lines.len() <= limits.lines);
    let edges = dump
        .placements
        .iter()
        .flat_map(|placement| [placement.start, placement.end - 1, placement.end]);
    let edges: Vec<u64> = edges.collect();
    for changes in dump.changes(&edges, 1 << 16) {
        assert!(changes.is_sorted_by_key(|change| change.since));
        for change in changes {
            if let Some(name) = dump.name(change) {
                assert!(!name.name.is_empty());
                dump.line(name, 0x40);
            }
        }
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("jit_dump", fuzz_jit_dump);
