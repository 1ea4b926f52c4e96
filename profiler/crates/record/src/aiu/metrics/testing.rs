//! What the fuzz target `aiu_metrics` calls.

use super::*;

/// Entry point for fuzzing: reads arbitrary bytes, also as if they were whole.
///
/// # Panics
/// When the result holds more than the input.
pub fn fuzz_metrics(data: &[u8]) {
    let Ok(metrics) = parse(data) else { return };
    let values = metrics.sections.iter().flat_map(|s| &s.values);
    let words: usize = values.map(|value| value.samples.len()).sum();
    assert!(words * 8 <= data.len(), "more values than bytes");
    for value in metrics.sections.iter().flat_map(|s| &s.values) {
        assert!(
            value
                .summary()
                .is_none_or(|number| number.is_finite() && number >= 0.0)
        );
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("aiu_metrics", fuzz_metrics);
