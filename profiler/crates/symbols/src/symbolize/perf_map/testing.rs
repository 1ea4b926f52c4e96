//! What the fuzz target `perf_map` calls.

use super::*;

/// Entry point for fuzzing: reads arbitrary bytes as a perf map and looks up the
/// edges of every range.
///
/// # Panics
/// When an invariant of the map does not hold.
pub fn fuzz_perf_map(data: &[u8]) {
    let limits = PerfMapLimits {
        pieces: 512,
        name_bytes: 4096,
        line_bytes: 256,
    };
    let mut map = PerfMap::default();
    let stats = map.read(data, limits);
    assert!(stats.bytes <= data.len() as u64);
    assert!(map.ranges.len() <= limits.pieces);
    assert!(map.names.len() <= limits.name_bytes);
    for pair in map.ranges.windows(2) {
        assert!(pair[0].end <= pair[1].start, "ranges overlap");
    }
    for range in &map.ranges {
        assert!(range.start < range.end, "empty range");
        assert!(map.lookup(range.start).is_some());
        assert!(map.lookup(range.end - 1).is_some());
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("perf_map", fuzz_perf_map);
