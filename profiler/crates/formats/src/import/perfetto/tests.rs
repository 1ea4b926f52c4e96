//! Packets made by hand, by the numbers that Perfetto's perfetto_trace.proto gives its
//! fields.

use super::*;
use crate::import::json::{Problems, Trouble};
use crate::import::protobuf_tests::{bytes, int, message, varint};
use aiprof_model::timeline::{Event, Id, Length, Ph, Time};

fn fixed(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3 | 1), value.to_le_bytes().to_vec()].concat()
}

fn packet(parts: &[Vec<u8>]) -> Vec<u8> {
    message(1, parts)
}

fn reading(packets: &[Vec<u8>]) -> (Timeline, Reading) {
    let mut timeline = Timeline::default();
    let reading = read(&packets.concat()[..], "d/x.pftrace", &mut timeline).unwrap();
    (timeline, reading)
}

/// Process 3 with thread 4 (track 11) and a counter (track 12).
fn tracks() -> Vec<u8> {
    let process = message(3, &[int(1, 3), bytes(6, b"proc")]);
    let thread = message(4, &[int(1, 3), int(2, 4), bytes(5, b"thr")]);
    let counter = message(8, &[bytes(6, b"W"), int(4, 10)]);
    [
        packet(&[message(60, &[int(1, 10), process])]),
        packet(&[message(60, &[int(1, 11), int(5, 10), thread])]),
        packet(&[message(
            60,
            &[int(1, 12), int(5, 10), bytes(2, b"power"), counter],
        )]),
        packet(&[message(60, &[int(1, 13), int(5, 10), bytes(2, b"GC")])]),
    ]
    .concat()
}

/// A packet of sequence 7 with a track event.
fn event(time: u64, track: u64, kind: u64, more: &[Vec<u8>]) -> Vec<u8> {
    let parts = [vec![int(9, kind), int(11, track)], more.to_vec()].concat();
    packet(&[int(8, time), int(10, 7), message(11, &parts)])
}

fn slices(timeline: &Timeline) -> Vec<&Event> {
    timeline
        .events
        .iter()
        .filter(|event| event.is_slice())
        .collect()
}

#[test]
fn slices_have_names_arguments_and_counters_by_number() {
    let interned = message(
        12,
        &[
            message(1, &[int(1, 5), bytes(2, b"kernel")]),
            message(2, &[int(1, 6), bytes(2, b"add Cmpt Exec")]),
            message(3, &[int(1, 8), bytes(2, b"TS1")]),
            message(29, &[int(1, 9), bytes(2, b"0x10")]),
        ],
    );
    let ts = |name: &str, value: u64| message(4, &[bytes(10, name.as_bytes()), int(3, value)]);
    let deep = message(
        4,
        &[
            bytes(10, b"deep"),
            message(
                11,
                &[
                    bytes(10, b"k"),
                    message(12, &[int(4, u64::MAX)]),
                    message(12, &[int(2, 1)]),
                ],
            ),
            message(11, &[bytes(10, b"d"), fixed(5, 2.0f64.to_bits())]),
            message(11, &[bytes(10, b"s"), bytes(6, b"a\"\n")]),
        ],
    );
    let old = message(
        4,
        &[
            bytes(10, b"old"),
            message(8, &[int(1, 1), bytes(2, b"n"), message(3, &[int(5, 4)])]),
        ],
    );
    let more = [
        int(3, 5),
        int(10, 6),
        message(4, &[int(1, 8), int(17, 9)]),
        ts("TS2", 17),
        ts("TS3", 18),
        ts("TS4", 19),
        ts("TS5", 20),
        ts("correlation", 33),
        ts("bytes", 512),
        deep,
        old,
        message(4, &[bytes(10, b"json"), bytes(9, b"[1, {}]")]),
        message(4, &[bytes(10, b"p"), int(7, 255)]),
    ];
    let (t, reading) = reading(&[
        tracks(),
        packet(&[int(10, 7), int(13, 1), interned]),
        event(5_000_000_001_500, 11, 1, &more),
        event(
            5_000_000_003_750,
            11,
            2,
            &[message(4, &[bytes(10, b"end"), int(3, 1)])],
        ),
    ]);
    assert_eq!(reading.problems, Problems::default());
    assert_eq!(reading.end, End::Whole);
    let [slice] = slices(&t)[..] else { panic!() };
    assert_eq!(
        (t.name(slice.name), t.name(slice.cat)),
        ("add Cmpt Exec", "kernel")
    );
    assert_eq!((t.pid(slice), t.tid(slice)), (Id::Number(3), Id::Number(4)));
    // Nanoseconds become microseconds.
    assert_eq!(t.origin(), 5_000_000_001);
    assert!((slice.ts() - 0.5).abs() < 1e-9 && (slice.dur() - 2.25).abs() < 1e-9);
    assert_eq!(t.device(slice).unwrap().stamps, [16, 17, 18, 19, 20]);
    assert_eq!(
        (slice.correlation, t.transfer(slice).unwrap().bytes),
        (33, 512)
    );
    assert_eq!(
        t.arg(slice, "deep"),
        Some(r#"{"k":[-1,true],"d":2.0,"s":"a\"\n"}"#)
    );
    assert_eq!(t.arg(slice, "old"), Some(r#"{"n":4}"#));
    assert_eq!(t.arg(slice, "json"), Some("[1, {}]"));
    assert_eq!(
        (t.arg(slice, "p"), t.arg(slice, "end")),
        (Some("\"0xff\""), Some("1"))
    );
    let named: Vec<_> = t.events.iter().filter(|e| e.ph == Ph::Metadata).collect();
    let named: Vec<_> = named
        .iter()
        .map(|e| (t.name(e.name), t.tid(e), t.texts.get(e.args)))
        .collect();
    assert_eq!(
        named,
        [
            ("process_name", Id::NONE, "\"name\":\"proc\""),
            ("thread_name", Id::Number(4), "\"name\":\"thr\""),
        ]
    );
}

#[test]
fn pairs_are_found_by_time_whatever_the_order_of_packets() {
    let name = |name: &[u8]| [bytes(23, name)];
    let (t, reading) = reading(&[
        event(50, 13, 2, &[]),
        event(10, 13, 1, &name(b"a")),
        event(20, 13, 1, &name(b"b")),
        event(30, 13, 2, &[]),
        // Never ended, never begun, on tracks of their own.
        event(40, 11, 1, &name(b"open")),
        event(41, 99, 2, &[]),
        tracks(),
    ]);
    let told: Vec<_> = slices(&t)
        .iter()
        .map(|e| (t.name(e.name), (e.dur() * 1000.0).round() as i64))
        .collect();
    assert_eq!(told, [("a", 40), ("b", 10)]);
    let slice = slices(&t)[0];
    let Id::Token(tid) = t.tid(slice) else {
        panic!()
    };
    assert_eq!((t.pid(slice), t.name(tid)), (Id::Number(3), "\"GC\""));
    let seen: Vec<_> = reading.problems.iter().map(|(t, s)| (t, s.count)).collect();
    assert_eq!(seen, [(Trouble::NeverEnded, 1), (Trouble::NeverBegun, 1)]);
}

#[test]
fn times_and_tracks_come_from_clocks_and_defaults() {
    let clock = |id: u64, time: u64, more: &[Vec<u8>]| {
        message(1, &[vec![int(1, id), int(2, time)], more.to_vec()].concat())
    };
    // 64 counts microseconds, each time from the one before.
    let incremental = [int(3, 1), int(4, 1000)];
    let snapshot = message(6, &[clock(6, 9_000_000, &[]), clock(64, 1, &incremental)]);
    let defaults = message(59, &[int(58, 64), message(11, &[int(11, 11)])]);
    let short = |time: u64, kind: u64| {
        packet(&[
            int(8, time),
            int(10, 7),
            int(13, 2),
            message(11, &[int(9, kind)]),
        ])
    };
    let (t, reading) = reading(&[
        // It is useless before the state is there.
        short(1, 1),
        packet(&[int(10, 7), int(13, 1), snapshot, defaults]),
        tracks(),
        short(5, 1),
        short(7, 2),
        // A packet of another sequence, which has no clock 64.
        packet(&[
            int(8, 1),
            int(58, 64),
            int(10, 8),
            message(11, &[int(9, 3)]),
        ]),
    ]);
    let [slice] = slices(&t)[..] else { panic!() };
    assert_eq!((t.origin(), slice.ts(), slice.dur()), (9005, 0.0, 7.0));
    assert_eq!(t.tid(slice), Id::Number(4));
    let seen: Vec<_> = reading.problems.iter().map(|(t, s)| (t, s.count)).collect();
    assert_eq!(seen, [(Trouble::Unresolved, 1), (Trouble::UnknownClock, 1)]);
}

#[test]
fn counters_and_flows() {
    let (t, _) = reading(&[
        tracks(),
        event(1000, 12, 4, &[int(30, 7)]),
        event(2000, 12, 4, &[fixed(44, 0.5f64.to_bits())]),
        // A value that stands with a slice.
        event(3000, 11, 1, &[int(31, 12), int(12, 9), fixed(47, 77)]),
        event(4000, 11, 2, &[]),
        event(5000, 11, 1, &[fixed(47, 77)]),
        event(5500, 11, 2, &[]),
        event(6000, 11, 3, &[fixed(48, 77)]),
    ]);
    let counters: Vec<_> = t.events.iter().filter(|e| e.ph == Ph::Counter).collect();
    let told: Vec<_> = counters
        .iter()
        .map(|e| (t.pid(e), t.name(e.name), t.texts.get(e.args)))
        .collect();
    let n = Id::Number(3);
    assert_eq!(
        told,
        [
            (n, "power", "\"W\":70"),
            (n, "power", "\"W\":5.0"),
            (n, "power", "\"W\":90"),
        ]
    );
    let flows: Vec<_> = t.events.iter().filter(|e| e.id == Id::Number(77)).collect();
    let flows: Vec<_> = flows.iter().map(|e| (e.ph, e.ts())).collect();
    assert_eq!(
        flows,
        [
            (Ph::FlowStart, 2.0),
            (Ph::FlowStep, 4.0),
            (Ph::FlowEnd, 5.0)
        ]
    );
}

#[test]
fn compressed_packets_are_read_once() {
    use flate2::{Compression, write::ZlibEncoder};
    use std::io::Write as _;
    let deflated = |data: &[u8]| {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(data).unwrap();
        packet(&[bytes(50, &encoder.finish().unwrap())])
    };
    let inner = [tracks(), event(1, 11, 3, &[bytes(23, b"i")])].concat();
    let (t, reading) = reading(&[
        deflated(&inner),
        // Neither within each other nor broken ones.
        deflated(&deflated(&inner)),
        packet(&[bytes(50, b"no zlib")]),
    ]);
    assert_eq!(t.events.iter().filter(|e| e.ph == Ph::Instant).count(), 1);
    assert_eq!(reading.problems.count(Trouble::BadPacket), 2);
}

#[test]
fn what_is_no_trace_is_told() {
    let error = |data: &[u8]| {
        let mut timeline = Timeline::default();
        read(data, "x", &mut timeline).unwrap_err().to_string()
    };
    assert_eq!(error(b""), "the file is empty");
    assert!(error(b"hello").contains("not a Perfetto trace"));
    // Lengths beyond the file, beyond all bounds, and numbers without end.
    for bad in [&b"\x0a\x05ab"[..], b"\x0a\xff\xff\xff\xff\x7f", &[0xff; 40]] {
        assert!(error(bad).contains("not a Perfetto trace"), "{bad:?}");
    }
}

#[test]
fn whatever_is_cut_or_changed_is_counted_or_told() {
    let whole = [
        tracks(),
        event(
            1000,
            11,
            1,
            &[bytes(23, b"a"), message(4, &[bytes(10, b"k"), int(3, 1)])],
        ),
        event(2000, 11, 2, &[]),
    ]
    .concat();
    for cut in 1..whole.len() {
        let mut timeline = Timeline::default();
        match read(&whole[..cut], "x", &mut timeline) {
            Ok(reading) => assert!(slices(&timeline).is_empty(), "{cut} {reading:?}"),
            Err(PerfettoError::NotATrace { .. }) => {}
            Err(error) => panic!("{cut} {error}"),
        }
    }
    for at in 0..whole.len() {
        for value in [0, 0x7f, 0x80, 0xff] {
            let mut bad = whole.clone();
            bad[at] = value;
            testing::fuzz_perfetto(&bad);
        }
    }
}

#[test]
fn deep_arguments_and_rings_of_tracks_end() {
    let mut deep = int(3, 1);
    for _ in 0..5000 {
        deep = bytes(12, &deep);
    }
    let deep = event(1, 11, 3, &[bytes(4, &deep)]);
    let ring = |a: u64, b: u64| packet(&[message(60, &[int(1, a), int(5, b)])]);
    let (t, reading) = reading(&[
        tracks(),
        deep,
        ring(50, 51),
        ring(51, 50),
        event(2, 50, 3, &[bytes(23, b"\xffname")]),
    ]);
    assert_eq!(reading.problems.count(Trouble::BadPacket), 1);
    assert_eq!(reading.problems.count(Trouble::BadText), 1);
    let mark = t.events.iter().find(|e| e.ph == Ph::Instant).unwrap();
    assert_eq!(t.name(mark.name), "\u{fffd}name");
}

#[test]
fn files_of_another_clock_count_from_their_own_first_time() {
    let file = |ns: u64| {
        let parts = [
            tracks(),
            event(ns, 11, 1, &[]),
            event(ns + 1001, 11, 2, &[]),
        ];
        parts.concat()
    };
    let mut t = Timeline::default();
    let since_1970 = 1_751_234_567_890_123_456;
    let origins = [5_000_000_500, since_1970, 6_000_000_000].map(|ns| {
        let reading = read(&file(ns)[..], "x", &mut t).unwrap();
        assert_eq!(reading.problems, Problems::default());
        reading.origin
    });
    assert_eq!(origins, [5_000_000, 1_751_234_567_890_123, 5_000_000]);
    assert_eq!(t.origin(), 5_000_000);
    let starts: Vec<_> = slices(&t).iter().map(|e| (e.start, e.length)).collect();
    let length = Length::from_nanos(1001);
    let [a, b, c] = [500, 456, 1_000_000_000].map(Time::from_nanos);
    assert_eq!(starts, [(a, length), (b, length), (c, length)]);
}
