//! Kernels of a device that overlap by its own counters, which they cannot: a
//! counter of another epoch or rank.

use super::messages::Messages;
use aiprof_model::timeline::{Id, Kind, Kinds, Timeline};
use rustc_hash::FxHashMap;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceReport {
    /// Kernels that were looked at.
    pub kernels: u64,
    /// How many of these began, by the counter, before the one before ended.
    pub overlaps: u64,
    /// By how many ticks at most.
    pub most_ticks: i64,
}

/// Compares each kernel with the one before on its device. The events are in the order
/// of time.
pub fn run(timeline: &Timeline, kinds: &Kinds, messages: &mut Messages) -> SequenceReport {
    let mut outcome = SequenceReport::default();
    let mut last: FxHashMap<Id, (f64, i64)> = FxHashMap::default();
    for event in &timeline.events {
        if !event.is_slice() || !kinds.of(event.name).is(Kind::HAS_EXEC) {
            continue;
        }
        let Some(device) = timeline.device(event) else {
            continue;
        };
        outcome.kernels += 1;
        let [_, _, begin, end, _] = device.stamps;
        if let Some((ts, before)) = last.insert(timeline.pid(event), (event.ts(), end))
            && ts < event.ts()
            && begin < before
        {
            outcome.overlaps += 1;
            outcome.most_ticks = outcome.most_ticks.max(before - begin);
        }
    }
    if outcome.overlaps > 0 {
        messages.warn(
            "TS_SEQUENCE",
            format_args!(
                "TS_SEQUENCE: detected cycles overlapping (TS3[n] < TS4[n-1]) between cmpt_exec \
                 events within the same PID  {} / {} max overlap cycles:  {}",
                outcome.overlaps, outcome.kernels, outcome.most_ticks
            ),
        );
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::messages::Level;
    use aiprof_formats::import::json;

    #[test]
    fn kernels_that_overlap_by_their_counters_are_counted() {
        let mut text = String::from("[");
        for (ts, begin, end) in [(0, 100, 200), (10, 200, 300), (20, 250, 400), (20, 0, 1)] {
            text += &format!(
                r#"{{"ph":"X","name":"k Cmpt Exec","pid":0,"tid":1,"ts":{ts},"dur":1,"args":
                {{"TS1":0,"TS2":0,"TS3":{begin},"TS4":{end},"TS5":{end}}}}},"#
            );
        }
        text.pop();
        text.push(']');
        let mut timeline = Timeline::default();
        json::read(text.as_bytes(), "x", &mut timeline).unwrap();
        let kinds = Kinds::new(&timeline);
        let mut messages = Messages::new(Level::Warn);
        let outcome = run(&timeline, &kinds, &mut messages);
        // The last begins with the one before: the order of these two means nothing.
        let expected = SequenceReport {
            kernels: 4,
            overlaps: 1,
            most_ticks: 50,
        };
        assert_eq!(outcome, expected);
        let text = &messages.iter().next().unwrap().text;
        assert!(text.ends_with("1 / 4 max overlap cycles:  50"), "{text}");
    }
}
