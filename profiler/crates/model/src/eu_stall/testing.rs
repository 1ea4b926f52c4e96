//! What the fuzz target `eu_stall` calls.

use super::*;

/// For fuzzing: decodes bytes in every layout, in pieces.
pub fn fuzz_records(data: &[u8]) {
    let [head, size, data @ ..] = data else {
        return;
    };
    let layout = match head % 3 {
        0 => Layout::Pvc,
        1 => Layout::Xe2,
        _ => Layout::Xe3p,
    };
    let Some(mut splitter) = Splitter::new(layout, usize::from(*size)) else {
        return;
    };
    let mut sums = Sums::new(layout, splitter.record_size(), 8);
    for piece in data.chunks(usize::from(head / 3) + 1) {
        splitter.split(piece, |records| sums.add(records));
    }
    let window = sums.take(0);
    let kept: u64 = window
        .counts
        .iter()
        .flat_map(|c| c.counts)
        .map(u64::from)
        .sum();
    let all = window.records.saturating_mul(10 * 255);
    assert!(kept + window.refused_samples <= all);
    assert!(window.counts.len() <= 8 && window.refused <= window.records);
    assert!(window.counts.is_sorted_by(|a, b| a.address < b.address));
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("eu_stall", fuzz_records);
