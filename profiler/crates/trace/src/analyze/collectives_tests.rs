//! Tests of collective spans and their bandwidth.

use super::super::exchanges::{Clocks, find};
use super::super::messages::Level;
use super::super::{alignment, alignment_compat};
use super::*;
use aiprof_model::timeline::Dialect;
use aiprof_testkit::scene::{self, Slice};

fn outcome(timeline: &mut Timeline) -> CollectiveReport {
    let pairs = find(timeline, Clocks::Aligned).pairs;
    let kinds = Kinds::new(timeline);
    run(timeline, &kinds, &pairs)
}

/// Specification, 15.3: acelyzer aligns rank 3 wrongly by 75.7 us; the operation then
/// takes 261.8 us, 12.018 GB/s (2 * 3 * 524288 bytes). Moved by that, rank 3's kernel
/// ends at 1621.361 + 491.213 - 75.7 us of 1.3.0's output, as the first of all, and
/// rank 0 receives last, at 2285.448 us: 248.6 us.
#[test]
fn the_shipped_sample_s_operation() {
    let mut timeline = scene::allreduce_tp4();
    alignment_compat::tight_v1(&mut timeline, Level::Warn);
    let found = outcome(&mut timeline);
    let one = &found.collectives[0];
    let took = one.end_us - one.start_us;
    assert!((took - 261.8).abs() < 0.05, "{took}");
    let speed = one.gigabytes_per_second.unwrap();
    assert!((speed - 12.018).abs() < 0.0006, "{speed}");

    let mut timeline = scene::allreduce_tp4();
    alignment::run(&mut timeline, Level::Warn);
    let before = timeline.events.len();
    let found = outcome(&mut timeline);
    assert_eq!(found.collectives.len(), 1);
    let one = &found.collectives[0];
    let took = one.end_us - one.start_us;
    assert!((took - 248.6).abs() < 1.6, "{took}");
    assert_eq!((one.bytes, one.data_bytes), (524_288, 3_145_728));
    assert_eq!((one.algorithm, one.spans.len()), (Algorithm::Chain, 4));
    for span in &one.spans {
        let kernel = timeline.events[span.kernel.unwrap() as usize];
        assert_eq!(timeline.name(kernel.name), "add_11 Cmpt Exec");
        assert_eq!(
            (timeline.rank(&kernel), kernel.end_us()),
            (span.rank, span.start_us)
        );
    }
    let added = &timeline.events[before..];
    assert_eq!((added.len(), found.added), (6, 6));
    let args = timeline.texts.get(added[1].args);
    let expected = "\"bytes\":\"524288B\",\"collective algorithm type\":\"chain\",\
        \"peers\":\"{0, 1, 2, 3}\",\"CollGroup\":\"AllReduce_all_reduce_4\",\
        \"rank group compute event\":\"add_11 Cmpt Exec\",\"Coll_data_size\":3145728";
    assert_eq!(args, expected);
    assert_eq!(timeline.name(added[1].name), "AllReduce_all_reduce_4");
    let Id::Token(row) = timeline.tid(&added[1]) else {
        panic!()
    };
    assert_eq!(timeline.name(row), "\"coll1\"");
    let counters: Vec<_> = added[4..]
        .iter()
        .map(|e| (e.ph, timeline.pid(e), e.ts()))
        .collect();
    let pid = Id::Number(-1);
    assert_eq!(
        counters,
        [
            (Ph::Counter, pid, one.start_us),
            (Ph::Counter, pid, one.end_us)
        ]
    );
    assert_eq!(timeline.texts.get(added[5].args), "\"GBps\":0.0");
    let row = found.active[1];
    let span = one.spans[1];
    assert_eq!(row.communication_us, Some(span.end_us - span.start_us));
    // add_11 and the sum: 492.882 and 16.543 us by acelyzer 1.3.0.
    assert!((row.compute_us - 509.425).abs() < 0.002, "{row:?}");
}

/// Messages `from -> to` one after the other, each 10 us, all in one group.
fn played(rounds: &[&[(u32, u32)]]) -> Timeline {
    let mut timeline = scene::empty(Dialect::Flex);
    let mut now = 1000.0;
    for round in rounds {
        for (from, to) in *round {
            for (rank, kind, peer, end) in [
                (from, "SingleCast", to, 0.0),
                (to, "WDone Barrier", from, 1.0),
            ] {
                let slice = Slice {
                    rank: *rank,
                    name: &format!("x [sync=G_s{from}_r{to}] {kind}"),
                    ts: now,
                    dur: 10.0 + end,
                    transfer: Some(("AllReduce_all_reduce", kind, &peer.to_string(), 500)),
                    ..Slice::default()
                };
                scene::add(&mut timeline, &slice);
            }
            now += 10.0;
        }
    }
    timeline
}

#[test]
fn messages_tell_the_algorithm() {
    let cases: [(&[(u32, u32)], Algorithm); 6] = [
        (&[(0, 1), (1, 0)], Algorithm::Chain),
        (
            &[(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)],
            Algorithm::Chain,
        ),
        (&[(0, 1), (1, 2), (2, 3), (3, 0)], Algorithm::Ring),
        (
            &[(3, 1), (2, 0), (1, 0), (0, 1), (0, 2), (1, 3)],
            Algorithm::Tree,
        ),
        (&[(0, 2), (2, 1)], Algorithm::Tree),
        (&[(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], Algorithm::Other),
    ];
    for (messages, algorithm) in cases {
        let mut timeline = played(&[messages]);
        let found = outcome(&mut timeline);
        assert_eq!(found.collectives.len(), 1, "{messages:?}");
        let one = &found.collectives[0];
        assert_eq!(one.algorithm, algorithm, "{messages:?}");
        let count = messages.len() as i64;
        assert_eq!(one.data_bytes, 500 * count);
        // No kernels: from the first message's begin to the last one's end.
        assert_eq!(one.end_us - one.start_us, 10.0 * count as f64 + 1.0);
        assert!(one.spans.iter().all(|span| span.kernel.is_none()));
    }
}

#[test]
fn iterations_are_operations_of_their_own() {
    let round: &[(u32, u32)] = &[(0, 1), (1, 0)];
    let mut timeline = played(&[round, round, round]);
    let before = timeline.events.len();
    let found = outcome(&mut timeline);
    assert_eq!((found.collectives.len(), found.concurrent), (3, 2));
    let starts: Vec<f64> = found.collectives.iter().map(|c| c.start_us).collect();
    assert_eq!(starts, [1000.0, 1020.0, 1040.0]);
    assert_eq!(
        timeline.name(timeline.events[before].name),
        "AllReduce_all_reduce_0"
    );
    // 1000 bytes in 21 us, two at once for 1 us.
    let values: Vec<_> = timeline.events[before + 6..]
        .iter()
        .map(|e| (e.ts(), timeline.texts.get(e.args)))
        .collect();
    let (one, two) = ("\"GBps\":0.048", "\"GBps\":0.095");
    let expected = [
        (1000.0, one),
        (1020.0, two),
        (1021.0, one),
        (1040.0, two),
        (1041.0, one),
        (1061.0, "\"GBps\":0.0"),
    ];
    assert_eq!(values, expected);
}

#[test]
fn nothing_comes_of_nothing() {
    let mut timeline = scene::empty(Dialect::Torch);
    assert_eq!(outcome(&mut timeline), CollectiveReport::default());
    let mut timeline = played(&[&[(0, 1)]]);
    for event in &mut timeline.events {
        event.set_ts(f64::MAX);
        event.set_dur(0.0);
    }
    for transfer in &mut timeline.transfers {
        transfer.bytes = i64::MAX;
    }
    assert_eq!(
        outcome(&mut timeline).collectives[0].gigabytes_per_second,
        None
    );
}
