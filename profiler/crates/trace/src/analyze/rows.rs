//! Rows of FLEX events: the runtime's thread ids are 64-bit hashes, which are unreadable.

use aiprof_model::timeline::{Dialect, Id, Kind, Kinds, Timeline, Track};
use rustc_hash::FxHashMap;

/// Row of the first thread; the others follow at this distance.
const FIRST: i64 = 1000;
/// Distance of rows, which leaves room for spare ones.
const STEP: i64 = 100;

/// Numbers threads 1000, 1100, 1200, ... in the order they come.
pub(crate) fn number_threads(timeline: &mut Timeline) {
    let mut known: FxHashMap<Id, i64> = FxHashMap::default();
    let jobs = timeline.jobs.iter();
    let jobs: Vec<bool> = jobs
        .map(|job| job.dialect == Dialect::Flex && !job.is_processed)
        .collect();
    let Timeline { events, tracks, .. } = timeline;
    for event in events {
        let Track { job, tid, .. } = tracks.get(event.track);
        let is_flex = jobs.get(job as usize) == Some(&true);
        if !event.is_slice() || !is_flex || !tid.is_given() {
            continue;
        }
        let next = FIRST + STEP * known.len() as i64;
        let row = *known.entry(tid).or_insert(next);
        tracks.set_tid(event, Id::Number(row));
    }
}

/// Puts host events on one row, but the round trips around jobs.
pub(crate) fn join_host_rows(timeline: &mut Timeline, kinds: &Kinds) {
    for index in 0..timeline.events.len() {
        let Some(event) = timeline.events.get(index).copied() else {
            break;
        };
        let is_host = event.is_slice()
            && timeline.dialect(&event) == Dialect::Flex
            && !event.is_counted()
            && !timeline.is_processed(&event)
            && !kinds.of(event.name).is(Kind::ROUND_TRIP);
        if is_host && let Some(event) = timeline.events.get_mut(index) {
            timeline.tracks.set_tid(event, Id::Number(FIRST));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_formats::import::json;

    #[test]
    fn threads_get_numbers_and_host_events_one_row() {
        let mut text = String::from("[");
        for i in 0..40 {
            let name = if i == 0 {
                "AIU Roundtrip"
            } else {
                "x Cmpt Exec"
            };
            let args = r#"{"TS1":1,"TS2":2,"TS3":3,"TS4":4,"TS5":5}"#;
            let args = if i < 38 { args } else { "{}" };
            text += &format!(
                "{{\"ph\":\"X\",\"name\":\"{name}\",\"pid\":0,\"tid\":{},\"ts\":1,\"dur\":1,\"args\":{args}}},",
                u64::MAX - i
            );
        }
        text.pop();
        text.push(']');
        let mut timeline = Timeline::default();
        json::read(text.as_bytes(), "x", &mut timeline).unwrap();
        number_threads(&mut timeline);
        let kinds = Kinds::new(&timeline);
        join_host_rows(&mut timeline, &kinds);
        let tids: Vec<i64> = timeline
            .events
            .iter()
            .filter_map(|e| timeline.tid(e).number())
            .collect();
        let mut expected: Vec<i64> = (0..40).map(|i| 1000 + 100 * i).collect();
        (expected[38], expected[39]) = (1000, 1000);
        assert_eq!(tids, expected);
    }
}
