//! The bandwidth of all-reduces where no spans are made of them (stage 36 without
//! `-R`): counters `BW allreduce` and `BW all-pcie`.
//!
//! acelyzer 1.3.0 has these counters, but never finds the size of a message.

use crate::analyze::utilization::python::json;
use aiprof_model::timeline::{Event, Id, Kind, Kinds, Ph, Time, Timeline, Track};
use std::collections::BTreeSet;

/// Pid of counters that are of no rank.
const NO_RANK: i64 = -1;

/// An all-reduce, derived from the ends of events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllReduce {
    /// End of the event before its first one, microseconds since the origin.
    pub start_us: f64,
    /// End of its last event.
    pub end_us: f64,
    /// Bytes of a message.
    pub bytes: i64,
    /// A message's bytes by the time, GB/s.
    pub reduced: f64,
    /// The bytes of all messages by the time, GB/s.
    pub moved: f64,
}

/// Adds the counters at the end of the events. Needs final times, transfers and
/// kinds; no order.
pub fn run(timeline: &mut Timeline, kinds: &Kinds) -> Vec<AllReduce> {
    let found = find(timeline, kinds);
    let track = Track::row(Id::Number(NO_RANK), Id::NONE);
    let track = timeline.tracks.intern(track);
    for one in &found {
        let values = [("BW allreduce", one.reduced), ("BW all-pcie", one.moved)];
        for (name, value) in values {
            let name = timeline.names.intern(name);
            for (ts, value) in [(one.start_us, json(value)), (one.end_us, "0".into())] {
                let mut counter = Event::new(Ph::Counter, name, track, Time::from_micros(ts));
                counter.args = timeline.texts.add(&format!("\"Unit GBps\":{value}"));
                timeline.events.push(counter);
            }
        }
    }
    found
}

/// What is known of the one that goes on.
#[derive(Clone, Copy, Default)]
struct OpenReduction {
    start_us: f64,
    bytes: Option<i64>,
    receives: usize,
}

fn find(timeline: &Timeline, kinds: &Kinds) -> Vec<AllReduce> {
    let slices = || {
        timeline
            .events
            .iter()
            .filter(|e| e.is_slice() && !e.dropped)
    };
    let mut ends: Vec<(f64, &Event)> = slices().map(|event| (event.end_us(), event)).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let ranks: BTreeSet<u32> = slices()
        .filter(|event| kinds.is_collective(timeline, event))
        .map(|event| timeline.rank(event))
        .collect();
    let (mut found, mut open) = (Vec::new(), None::<OpenReduction>);
    let mut before = ends.first().map_or(0.0, |(end, _)| *end);
    for (end, event) in ends {
        let transfer = timeline.transfer(event);
        let group = transfer.map_or("", |t| timeline.name(t.group));
        if group.contains("AllReduce_all_reduce_") {
            let open = open.get_or_insert(OpenReduction {
                start_us: before,
                ..OpenReduction::default()
            });
            let name = timeline.name(event.name);
            if name.contains("SenRdmaSend") {
                let bytes = transfer.map(|t| t.bytes).filter(|bytes| *bytes >= 0);
                open.bytes = open.bytes.or(bytes);
            }
            open.receives += usize::from(name.contains("SenRdmaRec"));
        } else if group.is_empty()
            && kinds.of(event.name).is(Kind::HAS_EXEC)
            && let Some(one) = open.filter(|one| one.receives + 1 > ranks.len())
            && let Some(bytes) = one.bytes
        {
            found.extend(all_reduce(&one, bytes, before, ranks.len()));
            open = None;
        }
        before = end;
    }
    // The trace ends with it.
    if let Some(one) = open.filter(|one| one.receives + 1 > ranks.len())
        && let Some(bytes) = one.bytes
    {
        found.extend(all_reduce(&one, bytes, before, ranks.len()));
    }
    found
}

fn all_reduce(one: &OpenReduction, bytes: i64, end_us: f64, ranks: usize) -> Option<AllReduce> {
    let took = end_us - one.start_us;
    // Bytes per microsecond are MB/s; GB/s with three decimals.
    let reduced = (bytes as f64 / took).round() / 1000.0;
    (took > 0.0).then_some(AllReduce {
        start_us: one.start_us,
        end_us,
        bytes,
        reduced,
        moved: 2.0 * (ranks.saturating_sub(1)) as f64 * reduced,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene::{self, Slice};

    #[test]
    fn an_all_reduce_is_as_long_as_its_events() {
        let mut timeline = scene::empty(Dialect::Flex);
        let group = Some(("AllReduce_all_reduce_4", "", "", 1_000_000));
        for (rank, name, ts, transfer) in [
            (0, "add_1 Cmpt Exec", 90.0, None),
            (0, "SenRdmaSend_1 DmaO", 100.0, group),
            (1, "SenRdmaRecv_2 DmaI", 110.0, group),
            (1, "SenRdmaSend_3 DmaO", 120.0, group),
            (0, "SenRdmaRecv_4 DmaI", 190.0, group),
            (0, "mul_1 Cmpt Exec", 300.0, None),
        ] {
            let slice = Slice {
                rank,
                name,
                ts,
                dur: 10.0,
                transfer,
                ..Slice::default()
            };
            scene::add(&mut timeline, &slice);
        }
        let kinds = Kinds::new(&timeline);
        let found = run(&mut timeline, &kinds);
        // 1 MB from 100 to 200 us is 10 GB/s, there and back twice that.
        let expected = AllReduce {
            start_us: 100.0,
            end_us: 200.0,
            bytes: 1_000_000,
            reduced: 10.0,
            moved: 20.0,
        };
        assert_eq!(found, [expected]);
        let counters: Vec<_> = timeline.events[6..]
            .iter()
            .map(|e| (timeline.name(e.name), e.ts(), timeline.texts.get(e.args)))
            .collect();
        let expected = [
            ("BW allreduce", 100.0, "\"Unit GBps\":10.0"),
            ("BW allreduce", 200.0, "\"Unit GBps\":0"),
            ("BW all-pcie", 100.0, "\"Unit GBps\":20.0"),
            ("BW all-pcie", 200.0, "\"Unit GBps\":0"),
        ];
        assert_eq!(counters, expected);
        let mut timeline = scene::empty(Dialect::Flex);
        let kinds = Kinds::new(&timeline);
        assert_eq!(run(&mut timeline, &kinds), []);
    }
}
