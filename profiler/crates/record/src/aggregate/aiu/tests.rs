//! What AIUs did, added up.

use super::{Aiu, AiuRowKey, MOST_WAITING};
use crate::{
    aiu::{
        ActivityRecord, EpochNs, Kind, LayoutStatus, events,
        operation::{PHASES, WorkKind},
    },
    correlate::{DeviceRecorder, DeviceSpan},
};
use aiprof_model::{
    profile::LossKind,
    wire::{ClockPair, Counter, Event},
};
use std::collections::BTreeMap;

/// CLOCK_REALTIME minus CLOCK_MONOTONIC.
const AHEAD: u64 = 1_767_225_600_000_000_000;
const PID: u32 = 7;
const TID: u32 = 8;
/// Cycles per microsecond of the devices here.
const MHZ: u64 = 800;

/// Device, path, work and phase of a row.
type Named = (Option<u32>, Option<u32>, String, String);

/// An aggregate, fed with the records of devices whose counter is known.
struct Fed {
    aiu: Aiu,
}

fn record(kind: Kind, code: u32, correlation: u64, times: (u64, u64)) -> ActivityRecord {
    ActivityRecord {
        kind,
        status: LayoutStatus::Published,
        code: Some(code),
        device: Some(0),
        context: Some(1),
        stream: Some(1),
        correlation: Some(correlation),
        start: EpochNs(AHEAD + times.0),
        end: EpochNs(AHEAD + times.1),
        queued: None,
        submitted: None,
        amount: None,
        address: None,
        pid: Some(PID),
        tid: None,
        name: None,
        cycles: None,
    }
}

fn of(record: ActivityRecord) -> DeviceSpan {
    DeviceSpan {
        pid: PID,
        call: 0,
        recorder: DeviceRecorder::Aiu,
        clock: None,
        record,
    }
}

/// The counter of 32 bits at a time; it wraps in the second second.
fn counter(ns: u64) -> u64 {
    (u64::from(u32::MAX) - 1_000_000_000 + ns / 1000 * MHZ) & 0xffff_ffff
}

impl Fed {
    fn new() -> Self {
        let mut fed = Self {
            aiu: Aiu::new(1000),
        };
        fed.now(1000);
        fed
    }

    fn now(&mut self, time_ns: u64) {
        let unix_ns = time_ns + AHEAD;
        let pair = ClockPair { time_ns, unix_ns };
        self.aiu.event(&Event::Clock(pair));
        self.aiu.event(&Event::Counter(Counter {
            time_ns,
            source: "AIU".into(),
            name: "power".into(),
            unit: "W".into(),
            milli: 0,
        }));
    }

    fn span(&mut self, record: ActivityRecord) {
        let span = of(record);
        match span.record.kind {
            Kind::Runtime => self.aiu.runtime_record(&span),
            _ => self.aiu.device_span(&span),
        }
    }

    /// A record of a kernel; without a length its times cannot be true.
    fn executed(&mut self, name: &str, correlation: u64, length: Option<(u64, u64)>) {
        let span = of(ActivityRecord {
            name: Some(name.to_owned()),
            ..record(Kind::Compute, 2, correlation, length.unwrap_or_default())
        });
        match length {
            Some(_) => self.aiu.device_span(&span),
            None => self.aiu.device_untimed(&span),
        }
    }

    /// A call that launched something by a path.
    fn called(&mut self, times: (u64, u64), path: u32) {
        self.aiu.launches.called((PID, TID), times, path);
    }

    /// A launch by a path and the runtime's record of it.
    fn launch(&mut self, correlation: u64, at_ns: u64, path: u32) {
        self.called((at_ns, at_ns + 2000), path);
        let times = (at_ns + 200, at_ns + 1800);
        self.span(ActivityRecord {
            tid: Some(TID.into()),
            ..record(Kind::Runtime, events::LAUNCH_CB_CMPT, correlation, times)
        });
    }

    /// A control block that begins then: all its records. Its phases last 10, 2,
    /// `exec_us` and 5 us.
    fn kernel(&mut self, device: u32, name: &str, correlation: u64, begin: u64, exec_us: u64) {
        let ends = [0, 10, 12, 12 + exec_us, 17 + exec_us].map(|us| begin + us * 1000);
        let kinds = [
            (Kind::Memcpy, 1),
            (Kind::Compute, 1),
            (Kind::Compute, 2),
            (Kind::Memcpy, 2),
        ];
        for ((kind, code), ends_of) in kinds.into_iter().zip(ends.windows(2)) {
            let times = (ends_of[0], ends_of[1]);
            self.now(times.1);
            self.span(ActivityRecord {
                device: Some(device),
                name: (kind == Kind::Compute).then(|| name.to_owned()),
                cycles: Some(ends.map(counter)),
                ..record(kind, code, correlation, times)
            });
        }
    }

    /// Ticks and whole nanoseconds by device, path, work and phase.
    fn rows(&mut self) -> BTreeMap<Named, (u64, u64)> {
        self.aiu.settle(true);
        let text = |key: &AiuRowKey| {
            let phase = key.phase.map(|at| PHASES[usize::from(at)]);
            phase
                .map_or("", crate::aiu::operation::phase_name)
                .to_owned()
        };
        let rows = self.aiu.rows.iter().map(|(key, row)| {
            let work = self.aiu.works.get(key.work).unwrap().to_string();
            let key = (key.device, key.path, work, text(key));
            (key, (row.ticks, row.time_ns.round() as u64))
        });
        rows.collect()
    }

    fn lost(&mut self, kind: LossKind) -> u64 {
        self.aiu.losses.get(kind)
    }
}

fn key(device: u32, path: Option<u32>, work: &str, phase: &str) -> Named {
    (Some(device), path, work.to_owned(), phase.to_owned())
}

#[test]
fn the_phases_of_a_kernel_are_charged_to_its_launch_and_add_up_once() {
    let mut fed = Fed::new();
    for i in 0..100 {
        // Across a wrap of the counter, at 1.25 s.
        let at = 20_000_000 * (i + 1);
        fed.launch(i, at, (i % 2) as u32);
        fed.kernel(0, "mm", i, at + 50_000, 100);
    }
    let rows = fed.rows();
    for path in [Some(0), Some(1)] {
        for (phase, us) in [
            ("dma in", 10),
            ("prepare", 2),
            ("execute", 100),
            ("dma out", 5),
        ] {
            let (ticks, time_ns) = rows[&key(0, path, "mm", phase)];
            assert_eq!(ticks, 50 * us * MHZ, "{path:?} {phase}");
            assert!(time_ns.abs_diff(50 * us * 1000) < 50, "{phase}: {time_ns}");
        }
    }
    assert_eq!(rows.len(), 8, "{rows:?}");
    assert_eq!(fed.lost(LossKind::DeviceUnattributed), 0);
    assert_eq!(fed.lost(LossKind::DeviceSpansOverlap), 0);
}

#[test]
fn work_whose_launch_is_not_known_is_unattributed_and_counted() {
    let mut fed = Fed::new();
    fed.launch(1, 1_000_000, 5);
    fed.kernel(0, "mm", 1, 2_000_000, 100);
    // No record of a call has this id.
    fed.kernel(0, "mm", 2, 3_000_000, 100);
    // The record is there, the launch is not.
    fed.span(ActivityRecord {
        tid: Some(TID.into()),
        ..record(Kind::Runtime, 2, 3, (3_500_000, 3_600_000))
    });
    fed.kernel(0, "mm", 3, 4_000_000, 100);
    let rows = fed.rows();
    let [none, five] = [None, Some(5)].map(|path| rows[&key(0, path, "mm", "execute")].0);
    assert_eq!((none, five), (200 * MHZ, 100 * MHZ));
    assert_eq!(fed.lost(LossKind::DeviceUnattributed), 2 * 117 * MHZ);
}

#[test]
fn devices_are_told_apart_and_have_clocks_of_their_own() {
    let mut fed = Fed::new();
    fed.launch(1, 1_000_000, 0);
    fed.launch(2, 1_100_000, 0);
    fed.kernel(0, "mm", 1, 2_000_000, 100);
    fed.kernel(1, "mm", 2, 2_010_000, 300);
    let rows = fed.rows();
    assert_eq!(rows[&key(0, Some(0), "mm", "execute")].0, 100 * MHZ);
    assert_eq!(rows[&key(1, Some(0), "mm", "execute")].0, 300 * MHZ);
    assert_eq!(fed.lost(LossKind::DeviceSpansOverlap), 0, "another device");
    assert_eq!(fed.aiu.devices.len(), 2);
}

#[test]
fn records_without_a_counter_count_their_own_time() {
    let mut fed = Fed::new();
    fed.launch(1, 1_000_000, 0);
    for (kind, code, times) in [
        (Kind::Compute, 1, (2_000_000, 2_003_000)),
        (Kind::Compute, 2, (2_003_000, 2_050_000)),
        (Kind::Memcpy, 1, (2_100_000, 2_110_000)),
        (Kind::Memset, 0, (2_200_000, 2_201_000)),
        (Kind::Memory, 1, (2_300_000, 2_400_000)),
    ] {
        fed.now(times.1);
        let name = (kind == Kind::Compute).then(|| "add".to_owned());
        fed.span(ActivityRecord {
            name,
            ..record(kind, code, 1, times)
        });
    }
    let rows = fed.rows();
    let expected = BTreeMap::from([
        (key(0, Some(0), "add", "prepare"), (3000, 3000)),
        (key(0, Some(0), "add", "execute"), (47_000, 47_000)),
        (key(0, Some(0), "Memcpy (HtoD)", ""), (10_000, 10_000)),
        (key(0, Some(0), "Memset (Device)", ""), (1000, 1000)),
    ]);
    assert_eq!(rows, expected);
}

#[test]
fn operations_beside_others_are_told() {
    let mut fed = Fed::new();
    fed.kernel(0, "a", 1, 2_000_000, 100);
    // Its input is copied while the first one computes.
    fed.kernel(0, "b", 2, 2_090_000, 100);
    fed.kernel(0, "c", 3, 3_000_000, 100);
    let rows = fed.rows();
    let sum: u64 = rows.values().map(|(ticks, _)| ticks).sum();
    assert_eq!(sum, 3 * 117 * MHZ, "summed over the engines");
    assert_eq!(fed.lost(LossKind::DeviceSpansOverlap), 1);
}

/// Each takes its own place in the graph, whether its times can be true or not.
#[test]
fn works_of_a_graph_without_times_keep_the_others_at_their_paths() {
    let mut fed = Fed::new();
    for path in 1..=3 {
        let kind = WorkKind::Kernel(Some("mm".into()));
        let times = (1_000_000, 1_002_000);
        fed.aiu.launches.executed((PID, TID), times, kind, path);
    }
    fed.span(ActivityRecord {
        tid: Some(TID.into()),
        ..record(Kind::Runtime, 2, 1, (1_000_200, 1_001_800))
    });
    fed.now(2_000_000);
    fed.executed("mm", 1, Some((1_100_000, 1_110_000)));
    fed.executed("mm", 1, None);
    fed.executed("mm", 1, Some((1_120_000, 1_123_000)));
    let expected = [(1, 10_000), (3, 3000)].map(|(path, ns)| {
        let key = key(0, Some(path), "mm", "execute");
        (key, (ns, ns))
    });
    assert_eq!(fed.rows(), BTreeMap::from(expected));
    assert_eq!(fed.lost(LossKind::LaunchesUnrecorded), 0);
}

#[test]
fn records_without_times_are_records_however_many_they_are() {
    let mut fed = Fed::new();
    let count = MOST_WAITING as u64 + 5;
    for i in 0..count {
        fed.launch(i, 1_000_000 + i * 10_000, 3);
        fed.executed("mm", i, None);
    }
    assert!(fed.aiu.waiting.len() <= MOST_WAITING);
    assert!(fed.rows().is_empty());
    assert_eq!(fed.lost(LossKind::LaunchesUnrecorded), 0);
}

#[test]
fn at_the_end_of_a_window_what_is_fresh_waits_for_its_records() {
    let mut fed = Fed::new();
    fed.kernel(0, "mm", 1, 2_000_000, 100);
    fed.aiu.settle(false);
    assert!(fed.aiu.rows.is_empty());
    // The call's record is in the next buffer.
    fed.launch(1, 1_000_000, 3);
    fed.now(1_500_000_000);
    fed.kernel(0, "mm", 2, 1_400_000_000, 100);
    fed.aiu.settle(false);
    let paths: Vec<_> = fed.aiu.rows.keys().map(|row| row.path).collect();
    assert_eq!(paths, [Some(3); 4]);
    fed.aiu.reset();
    assert_eq!(fed.rows().len(), 4, "the second, in its own window");
}

#[test]
fn records_from_outside_of_the_recording_are_counted_and_left_out() {
    let mut fed = Fed::new();
    fed.now(5_000_000_000);
    fed.aiu.first_ns = 5_000_000_000;
    fed.span(record(Kind::Compute, 2, 1, (4_000_000_000, 4_100_000_000)));
    fed.span(record(Kind::Compute, 2, 1, (9_000_000_000, 9_100_000_000)));
    assert!(fed.rows().is_empty());
    assert_eq!(fed.lost(LossKind::ActivityUntimed), 2);
}

#[test]
fn what_waits_and_what_is_kept_is_bounded_and_nothing_is_dropped() {
    let mut fed = Fed { aiu: Aiu::new(10) };
    fed.now(1000);
    let count = MOST_WAITING as u64 * 3 / 2;
    for i in 0..count {
        let name = format!("k{}", i % 50);
        fed.kernel((i % 300) as u32, &name, i, 2_000_000 + i * 200_000, 100);
    }
    assert!(fed.aiu.waiting.len() <= MOST_WAITING);
    let counted: u64 = fed.rows().values().map(|(ticks, _)| ticks).sum();
    assert!(fed.aiu.rows.len() <= 10 && fed.aiu.devices.len() <= 256);
    let refused = fed.lost(LossKind::DeviceSamplesRefused);
    assert_eq!(counted + refused, count * 117 * MHZ);
}

/// Launches before the program had records made, and those of a buffer that was full: what the
/// device did for them is missing, and the losses count it.
#[test]
fn launches_without_records_are_counted_once() {
    let mut fed = Fed::new();
    for i in 0..10 {
        let at = 1_000_000 + i * 100_000;
        fed.launch(i, at, 3);
        if i >= 4 && i != 7 {
            fed.kernel(0, "matmul", i, at + 5000, 20);
        }
    }
    // A launch that the runtime itself has no record of.
    fed.called((5_000_000, 5_001_000), 3);
    fed.rows();
    fed.aiu.settle(true);
    assert_eq!(fed.lost(LossKind::LaunchesUnrecorded), 6);
}
