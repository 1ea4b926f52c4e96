//! Tests of the alignment of ranks.

use super::*;
use aiprof_model::timeline::Dialect;
use aiprof_testkit::scene;

/// The pairwise solution of the shipped sample closes within 1.6 us (worked out
/// from its counters at 560 MHz: 1.582, 1.209 and 0.896 us).
#[test]
fn the_shipped_sample_closes() {
    let mut timeline = scene::allreduce_tp4();
    let pairs = find(&mut timeline, Clocks::Unaligned).pairs;
    assert_eq!(pairs.len(), 6);
    let found = run(&mut timeline, Level::Debug);
    assert_eq!(
        (found.messages, found.contradiction_us, found.lonely),
        (6, 0.0, 0)
    );
    let closures: Vec<(Vec<u32>, String)> = found
        .cycles
        .iter()
        .map(|c| (c.ranks.clone(), format!("{:.3}", c.closure_us)))
        .collect();
    let expected = [
        (vec![0, 1, 2, 3], "1.582".to_owned()),
        (vec![1, 2, 3], "1.209".to_owned()),
        (vec![2, 3], "0.896".to_owned()),
    ];
    assert_eq!(closures, expected);
    for rank in &found.ranks {
        assert_eq!(rank.mhz, Some(560.0), "{rank:?}");
        assert!(rank.shift.is_some());
    }
    // Nothing arrives before all of it was sent, nor more than the closure later.
    for pair in &pairs {
        let (send, receive) = events_of(&timeline, pair);
        let took = receive.unwrap().end_us() - send.unwrap().end_us();
        assert!((-1e-6..=1.6).contains(&took), "{pair:?} {took}");
    }
    assert_eq!(found.reversed_after, 0);
    // Rank 0's host was 1.3 ms ahead: messages to it took that long.
    assert!(found.reversed_before > 0);
}

/// Truth: what each rank's host clock is ahead of rank 0's, and a device's
/// frequency and start.
const TRUTH: [(f64, f64, i64); 4] = [
    (0.0, 560.0, 1_000),
    (731.25, 560.003, 77_000_000),
    (-98_000.5, 559.998, 5),
    (12.0, 560.001, 4_000_000_000),
];

/// `late(i)`: how late the host notes event i, microseconds.
fn chain(ranks: usize, mhz: f64, late: impl Fn(usize) -> f64, back: f64) -> Timeline {
    let mut timeline = scene::empty(Dialect::Flex);
    timeline.rates.default = mhz;
    let mut events = 0;
    for round in 0..50 {
        let mut now = 1e5 + 20_000.0 * round as f64;
        let ways = (1..ranks)
            .map(|r| (r - 1, r))
            .chain((1..ranks).rev().map(|r| (r, r - 1)));
        for (from, to) in ways {
            let name = format!("[sync=G_s{from}_r{to}_0]");
            let latency = if to > from { 3.0 } else { back };
            let ends = [
                (from, now + 40.0, "Send_1 ", " DmaO"),
                (to, now + 40.0 + latency, "Recv_1 ", " DmaI"),
            ];
            for (rank, end, before, after) in ends {
                let (ahead, f, start) = TRUTH[rank];
                let tick = |us: f64| start + (us * f).round() as i64;
                let stamps = if after == " DmaO" {
                    [end - 60.0, end - 60.0, end - 40.0, end - 40.0, end].map(tick)
                } else {
                    [end - 70.0, end, end, end, end].map(tick)
                };
                let host = end + ahead + late(events);
                let ticks = (if after == " DmaO" {
                    stamps[4] - stamps[3]
                } else {
                    stamps[1] - stamps[0]
                }) as f64;
                let kind = if after == " DmaO" {
                    "SingleCast"
                } else {
                    "WDone Barrier"
                };
                let peer = (if after == " DmaO" { to } else { from }).to_string();
                scene::add(
                    &mut timeline,
                    &scene::Slice {
                        rank: rank as u32,
                        name: &format!("{before}{name}{after}"),
                        ts: host - ticks / mhz,
                        dur: ticks / mhz,
                        transfer: Some(("G", kind, &peer, 1024)),
                        stamps: Some(stamps),
                        ..scene::Slice::default()
                    },
                );
                events += 1;
            }
            now += 40.0 + latency + 10.0;
        }
    }
    timeline
}

fn jitter(i: usize) -> f64 {
    // Looks random, in 0 to 5 us.
    (i as f64 * 0.618_033_988_75).fract() * 5.0
}

#[test]
fn ranks_are_found_to_within_two_microseconds() {
    for ranks in [2, 4] {
        let mut timeline = chain(ranks, 560.0, jitter, 3.0);
        let found = run(&mut timeline, Level::Info);
        for rank in &found.ranks {
            let truth = -TRUTH[rank.rank as usize].0;
            let shift = rank.shift.unwrap();
            assert!((shift.us - truth).abs() < 2.0, "{rank:?} {truth}");
            assert!(shift.bounds.contains(truth), "{rank:?}");
        }
        assert_eq!((found.reversed_after, found.contradiction_us), (0, 0.0));
    }
}

#[test]
fn where_ways_there_and_back_differ_the_truth_is_in_the_interval() {
    let mut timeline = chain(4, 560.0, jitter, 31.0);
    let found = run(&mut timeline, Level::Info);
    for rank in &found.ranks {
        let truth = -TRUTH[rank.rank as usize].0;
        let shift = rank.shift.unwrap();
        assert!(shift.bounds.contains(truth), "{rank:?}");
    }
    assert_eq!(found.reversed_after, 0);
}

#[test]
fn a_wrong_frequency_does_no_harm() {
    let mut timeline = chain(4, 1000.0, jitter, 3.0);
    let found = run(&mut timeline, Level::Info);
    for rank in &found.ranks {
        let (ahead, mhz, _) = TRUTH[rank.rank as usize];
        assert!((rank.mhz.unwrap() - mhz).abs() < 0.01, "{rank:?}");
        assert!((rank.shift.unwrap().us + ahead).abs() < 2.0, "{rank:?}");
    }
}

#[test]
fn what_cannot_be_aligned_is_left_and_told() {
    let mut timeline = chain(2, 560.0, jitter, 3.0);
    scene::add(
        &mut timeline,
        &scene::Slice {
            rank: 7,
            name: "alone",
            ts: 5.0,
            ..scene::Slice::default()
        },
    );
    let found = run(&mut timeline, Level::Info);
    let last = found.ranks.last().unwrap();
    assert_eq!((last.rank, last.shift), (7, None));
    assert_eq!(timeline.events.last().unwrap().ts(), 5.0);
    // One rank, or none at all.
    let mut timeline = scene::empty(Dialect::Flex);
    let found = run(&mut timeline, Level::Info);
    assert!(found.ranks.is_empty() && found.said.iter().count() == 1);
    // A message lost: names that do not pair up are left out.
    let mut timeline = chain(2, 560.0, jitter, 3.0);
    timeline.events.remove(0);
    let found = run(&mut timeline, Level::Info);
    assert_eq!((found.messages, found.lonely), (50, 99));
}

#[test]
fn absurd_values_do_not_panic() {
    let mut timeline = chain(4, 560.0, |i| if i % 2 == 0 { 1e14 } else { -1e14 }, 3.0);
    for device in &mut timeline.devices {
        device.stamps[4] = i64::MAX / 2;
    }
    let found = run(&mut timeline, Level::Info);
    assert!(found.ranks.len() <= 4);
}
