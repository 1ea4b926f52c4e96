//! What the fuzz target `perfetto` calls.

use super::*;

/// Reads any bytes, for the fuzzer: arguments must be JSON, and what was read must be
/// written and read again.
pub fn fuzz_perfetto(data: &[u8]) {
    let mut timeline = Timeline::default();
    let _ = read(data, "fuzz.pftrace", &mut timeline);
    for event in &timeline.events {
        let members = format!("{{{}}}", timeline.texts.get(event.args));
        let value = serde_json::from_str::<serde::de::IgnoredAny>(&members);
        assert!(value.is_ok(), "{members}");
    }
    let order: Vec<u32> = (0u32..).take(timeline.events.len()).collect();
    let (words, mut out) = (crate::export::trace_events::Words::default(), Vec::new());
    let written = crate::export::perfetto::write(&timeline, words, &order, &mut out);
    let mut again = Timeline::default();
    let reading = read(&out[..], "fuzz.pftrace", &mut again);
    let is_whole = reading.is_ok_and(|reading| reading.end == End::Whole);
    assert!(
        written.is_ok() && is_whole,
        "what was written cannot be read"
    );
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("perfetto", fuzz_perfetto);
