//! Planes made by hand, by the numbers that xplane.proto gives their fields.

use super::*;
use crate::import::protobuf_tests::{bytes, int, message};
use aiprof_model::timeline::{Dialect, Kinds};

/// An entry of a map from numbers to names.
fn named(field: u64, key: u64, name: &str) -> Vec<u8> {
    let value = message(2, &[int(1, key), bytes(2, name.as_bytes())]);
    message(field, &[int(1, key), value])
}

/// A plane with one line and one event of 5 us, at 1 ms and a picosecond.
fn plane(name: &str, line: &str, event: &str, stat: &[Vec<u8>]) -> Vec<u8> {
    let event_of = [int(1, 7), int(2, 1), int(3, 5_000_000), message(4, stat)];
    let line = [
        int(1, 13),
        bytes(2, line.as_bytes()),
        int(3, 1_000_000),
        message(4, &event_of),
    ];
    message(
        1,
        &[
            int(1, 2),
            bytes(2, name.as_bytes()),
            message(3, &line),
            named(4, 7, event),
            named(5, 3, "correlation_id"),
            named(5, 4, "hlo_op"),
            named(5, 5, "dot.1"),
        ],
    )
}

fn reading(planes: &[Vec<u8>]) -> (Timeline, Reading) {
    let mut timeline = Timeline::default();
    let text = planes.concat();
    let reading = read(&text[..], "a.xplane.pb", Stretch::ALL, &mut timeline).unwrap();
    (timeline, reading)
}

#[test]
fn planes_are_processes_and_lines_their_rows() {
    let number = [int(1, 3), int(4, 9)];
    let planes = [
        plane("/host:CPU", "python", "cuLaunchKernel", &number),
        plane("/device:GPU:0", "Stream #13(Compute)", "gemm", &number),
    ];
    let (timeline, reading) = reading(&planes);
    assert_eq!(reading.end, End::Whole);
    assert_eq!(timeline.jobs[0].dialect, Dialect::Torch);
    let kinds = Kinds::new(&timeline);
    let mut slices = timeline.events.iter().filter(|event| event.is_slice());
    let (call, work) = (slices.next().unwrap(), slices.next().unwrap());
    assert!(kinds.is_kernel(&timeline, work) && !kinds.is_kernel(&timeline, call));
    assert_eq!((call.correlation, work.correlation), (9, 9));
    assert_eq!((work.dur(), timeline.file_us(work)), (5.0, 1_000.000_001));
    assert_eq!(timeline.name(work.name), "gemm");
}

#[test]
fn references_are_texts() {
    let stat = [int(1, 4), int(7, 5)];
    let (timeline, _) = reading(&[plane("/device:TPU:0", "XLA Ops", "fusion", &stat)]);
    let mut slices = timeline.events.iter().filter(|event| event.is_slice());
    let work = slices.next().unwrap();
    assert_eq!(timeline.arg(work, "hlo_op"), Some("\"dot.1\""));
    assert!(Kinds::new(&timeline).is_kernel(&timeline, work));
}

#[test]
fn damage_costs_a_plane_only() {
    let good = plane("/device:TPU:0", "XLA Ops", "fusion", &[]);
    let (timeline, reading) = reading(&[message(1, &[vec![0xff; 9]]), good.clone()]);
    assert_eq!(reading.problems.count(Trouble::BadPacket), 1);
    assert_eq!(
        timeline
            .events
            .iter()
            .filter(|event| event.is_slice())
            .count(),
        1
    );
    let mut cut = good.clone();
    cut.extend(&good[..good.len() / 2]);
    let (_, reading) = super::tests::reading(&[cut]);
    assert_eq!(
        reading.end,
        End::CutOff {
            offset: good.len() as u64
        }
    );
}

#[test]
fn profiles_begin_with_a_named_plane() {
    for name in [
        "/host:CPU",
        "/device:TPU:0",
        "/host:metadata",
        "Task Environment",
    ] {
        assert!(is_xspace(&plane(name, "", "", &[])), "{name}");
    }
    // A packet of Perfetto with a clock's snapshot.
    assert!(!is_xspace(&message(
        1,
        &[int(8, 5), message(6, &[int(1, 3)])]
    )));
    assert!(!is_xspace(b"\x0a"));
}
