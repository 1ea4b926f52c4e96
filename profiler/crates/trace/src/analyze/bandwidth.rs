//! Data-transfer bandwidth: how many bytes per microsecond go to and from a device.

use crate::analyze::messages::Messages;
use crate::analyze::utilization::python::{json, round};
use aiprof_model::timeline::number::SAME_US;
use aiprof_model::timeline::{Event, Id, Kinds, Ph, Time, Timeline, Track};
use rustc_hash::FxHashMap;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferReport {
    /// Transfers whose number of bytes is known.
    pub transfers: usize,
    /// How many of these have no length, so that their rate is not known.
    pub without_length: usize,
    /// Counters that were added.
    pub counters: usize,
}

/// Where transfers begin or end.
#[derive(Clone, Copy)]
struct Edge {
    /// Row group and direction, in the order in which they appeared.
    place: u32,
    ts: f64,
    /// Bytes per microsecond.
    rate: f64,
    is_begin: bool,
}

/// Adds the counters `BW DmaI` and `BW DmaO`, in bytes per microsecond, which is
/// megabytes per second. Each is the rate of all transfers of a row group in that
/// direction together, from each time at which it changes. The argument is called
/// `Bytes`, as in acelyzer 1.0.2, the last version in which this worked. That version
/// differs in two points: it had whole microseconds, and left each row group's last
/// transfer out.
///
/// Takes calibrated events in any order: a slice's begin and end are those of the
/// transfer, TS1 to TS2 or TS4 to TS5.
pub fn run(timeline: &mut Timeline, kinds: &Kinds, messages: &mut Messages) -> TransferReport {
    let mut outcome = TransferReport::default();
    let (mut places, mut groups) = (FxHashMap::default(), Vec::new());
    let mut edges = Vec::new();
    for event in &timeline.events {
        let is_slice = event.is_slice() && !event.dropped;
        let Some(bytes) = bytes_of(timeline, event).filter(|_| is_slice) else {
            continue;
        };
        let is_in = kinds.is_data_in(timeline, event);
        if !is_in && !kinds.is_data_out(timeline, event) {
            continue;
        }
        outcome.transfers += 1;
        let rate = bytes as f64 / event.dur();
        if event.dur() <= 0.0 || !rate.is_finite() {
            outcome.without_length += 1;
            continue;
        }
        let place = *places
            .entry((timeline.pid(event), is_in))
            .or_insert_with(|| {
                groups.push((timeline.pid(event), timeline.rank(event), is_in));
                groups.len() as u32 - 1
            });
        let edge = |ts, is_begin| Edge {
            place,
            ts,
            rate,
            is_begin,
        };
        edges.extend([edge(event.ts(), true), edge(event.end_us(), false)]);
    }
    edges.sort_by(|a, b| a.place.cmp(&b.place).then(a.ts.total_cmp(&b.ts)));
    outcome.counters = add_counters(timeline, &edges, &groups);
    report(&outcome, messages);
    outcome
}

fn report(outcome: &TransferReport, messages: &mut Messages) {
    let out = outcome.transfers - outcome.without_length;
    messages.info(
        "DTC",
        format_args!("DTC event stats o/i: {out} / {}", outcome.transfers),
    );
    if outcome.without_length > 0 {
        messages.warn(
            "DTC",
            format_args!(
                "DTC: {} transfers without length have no bandwidth",
                outcome.without_length
            ),
        );
    }
}

fn bytes_of(timeline: &Timeline, event: &Event) -> Option<i64> {
    let bytes = timeline.transfer(event)?.bytes;
    (bytes >= 0).then_some(bytes)
}

fn add_counters(timeline: &mut Timeline, edges: &[Edge], groups: &[(Id, u32, bool)]) -> usize {
    let names = [("BW DmaO", false), ("BW DmaI", true)]
        .map(|(name, is_in)| (timeline.names.intern(name), is_in));
    let mut added = 0;
    let (mut rate, mut running) = (0.0, 0usize);
    let same = |a: &Edge, b: &Edge| a.place == b.place && b.ts - a.ts < SAME_US;
    for edges in edges.chunk_by(same) {
        let Some(first) = edges.first() else { continue };
        for edge in edges {
            if edge.is_begin {
                (rate, running) = (rate + edge.rate, running + 1);
            } else {
                (rate, running) = (rate - edge.rate, running.saturating_sub(1));
            }
        }
        if running == 0 {
            // No rest of a sum of doubles.
            rate = 0.0;
        }
        let Some((pid, rank, is_in)) = groups.get(first.place as usize) else {
            continue;
        };
        let Some((name, _)) = names.iter().find(|name| name.1 == *is_in) else {
            continue;
        };
        let track = timeline.tracks.intern(Track {
            rank: *rank,
            ..Track::row(*pid, Id::NONE)
        });
        let mut counter = Event::new(Ph::Counter, *name, track, Time::from_micros(first.ts));
        let value = json(round(rate, 3));
        counter.args = timeline.texts.join(&["\"Bytes\":", &value]);
        timeline.events.push(counter);
        added += 1;
    }
    added
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::messages::Level;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::timelines as testing;

    fn carried(
        dialect: Dialect,
        transfers: &[(&str, f64, f64, i64)],
    ) -> (Timeline, TransferReport) {
        let mut timeline = testing::timeline(dialect);
        for (name, ts, dur, bytes) in transfers {
            let index = testing::slice(&mut timeline, name, 0, *ts, *dur);
            if *bytes != i64::MIN {
                testing::transfer(&mut timeline, index, *bytes);
            }
        }
        let kinds = Kinds::new(&timeline);
        let mut messages = Messages::new(Level::Info);
        let outcome = run(&mut timeline, &kinds, &mut messages);
        (timeline, outcome)
    }

    fn steps(timeline: &Timeline, name: &str) -> Vec<(f64, String)> {
        testing::counters(timeline, name)
    }

    /// Rank 0's receive and rank 1's second one in the shipped four-rank sample. acelyzer
    /// 1.0.2 gives 1369.693 and 5966.359. Its times are doubles counted from 1970, hence
    /// good to half a nanosecond.
    #[test]
    fn rates_are_those_of_acelyzer() {
        for (dur, rate) in [(382.778, 1369.693), (87.874, 5966.359)] {
            let (timeline, outcome) = carried(Dialect::Flex, &[("x DmaI", 10.0, dur, 524_288)]);
            let found = steps(&timeline, "BW DmaI");
            let first: f64 = found[0].1["\"Bytes\":".len()..].parse().unwrap();
            assert!(
                (first - rate).abs() < rate * SAME_US / dur + 0.001,
                "{first}"
            );
            assert_eq!(found[0].0, 10.0);
            assert_eq!(found[1], (10.0 + dur, "\"Bytes\":0.0".into()));
            assert_eq!((outcome.transfers, outcome.counters), (1, 2));
        }
    }

    #[test]
    fn transfers_at_the_same_time_add_up() {
        let transfers = [
            ("a DmaO", 0.0, 10.0, 1000),
            ("b DmaO", 5.0, 10.0, 2000),
            ("c DmaO", 15.0, 1.0, 7),
            ("d DmaI", 5.0, 1.0, 3),
        ];
        let (timeline, _) = carried(Dialect::Flex, &transfers);
        let bytes = |n: &str| format!("\"Bytes\":{n}");
        let expected = [
            (0.0, bytes("100.0")),
            (5.0, bytes("300.0")),
            (10.0, bytes("200.0")),
            (15.0, bytes("7.0")),
            (16.0, bytes("0.0")),
        ];
        assert_eq!(steps(&timeline, "BW DmaO"), expected);
        assert_eq!(steps(&timeline, "BW DmaI").len(), 2);
    }

    #[test]
    fn what_has_no_rate_is_told() {
        let transfers = [
            ("a DmaI", 0.0, 0.0, 10),
            ("b DmaI", 0.0, 1.0, -1),
            ("c DmaI", 0.0, 1.0, i64::MIN),
            ("d Cmpt Exec", 0.0, 1.0, 10),
            ("e DmaI", 1.0, f64::MIN_POSITIVE, i64::MAX),
        ];
        let (timeline, outcome) = carried(Dialect::Flex, &transfers);
        assert_eq!((outcome.transfers, outcome.without_length), (2, 2));
        assert!(steps(&timeline, "BW DmaI").is_empty());
        let (timeline, outcome) = carried(Dialect::Torch, &[("Memcpy (DtoH)", 0.0, 2.0, 10)]);
        assert_eq!(outcome.counters, 2);
        assert_eq!(steps(&timeline, "BW DmaO")[0].1, "\"Bytes\":5.0");
    }
}
