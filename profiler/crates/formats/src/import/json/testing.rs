//! What the fuzz target `trace_json` calls.

use super::*;

/// Reads any bytes, for the fuzzer: what was read must be written as JSON.
pub fn fuzz_trace_json(data: &[u8]) {
    let mut timeline = Timeline::default();
    let _ = read(data, "fuzz.json", &mut timeline);
    for event in &timeline.events {
        let members = format!("{{{}}}", timeline.texts.get(event.args));
        let value = serde_json::from_str::<serde::de::IgnoredAny>(&members);
        assert!(value.is_ok(), "{members}");
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("trace_json", fuzz_trace_json);
