//! Phases of operations by their counter values.

use crate::aiu::operation::{Operation, OperationPart, stamps};
use crate::aiu::{ActivityRecord, EpochNs, Kind, LayoutStatus};
use aiprof_model::timeline::Phase;

pub(super) fn record(kind: Kind, code: u32, took_ns: u64, cycles: [u64; 5]) -> ActivityRecord {
    ActivityRecord {
        kind,
        status: LayoutStatus::Published,
        code: Some(code),
        device: Some(0),
        context: None,
        stream: None,
        correlation: Some(1),
        start: EpochNs(1_000_000),
        end: EpochNs(1_000_000 + took_ns),
        queued: None,
        submitted: None,
        amount: None,
        address: None,
        pid: None,
        tid: None,
        name: (kind == Kind::Compute).then(|| "mm".to_owned()),
        cycles: (cycles != [0; 5]).then_some(cycles),
    }
}

fn ticks(parts: &[OperationPart]) -> Vec<(Option<Phase>, u64)> {
    parts.iter().map(|part| (part.phase, part.ticks)).collect()
}

const STAMPS: [u64; 5] = [1000, 1100, 1130, 2130, 2130];

#[test]
fn any_record_of_a_kernel_tells_all_phases_and_their_sum_is_the_whole() {
    let execute = record(Kind::Compute, 2, 1000, STAMPS);
    let operation = Operation::new(&execute).unwrap();
    let parts = operation.parts(32, None, Some(500.0));
    let expected = [
        (Some(Phase::DmaIn), 100),
        (Some(Phase::Prep), 30),
        (Some(Phase::Exec), 1000),
    ];
    assert_eq!(ticks(&parts), expected);
    let time: f64 = parts.iter().map(|part| part.time_ns).sum();
    assert_eq!(time, 1130.0 * 2.0, "1130 cycles at 500 MHz");
    // More records of it add nothing but what the kernel is called.
    let mut joined = Operation::new(&record(Kind::Memcpy, 1, 100, STAMPS)).unwrap();
    joined.join(&record(Kind::Compute, 1, 30, STAMPS));
    joined.join(&execute);
    assert!(joined.is_kernel() && *joined.name == *"mm");
    assert_eq!(joined.parts(32, None, Some(500.0)), parts);
}

#[test]
fn a_counter_that_wraps_within_an_operation_counts_on() {
    let top = 1 << 32;
    let stamps = [top - 50, top - 20, 30, 430, 431];
    let operation = Operation::new(&record(Kind::Compute, 2, 400, stamps)).unwrap();
    let counts: Vec<u64> = operation
        .parts(32, None, None)
        .iter()
        .map(|p| p.ticks)
        .collect();
    assert_eq!(counts, [30, 50, 400, 1]);
    // Wider values do not wrap.
    let wide = [top - 50, top - 20, top + 30, top + 430, top + 431];
    let operation = Operation::new(&record(Kind::Compute, 2, 400, wide)).unwrap();
    let counts: Vec<u64> = operation
        .parts(64, None, None)
        .iter()
        .map(|p| p.ticks)
        .collect();
    assert_eq!(counts, [30, 50, 400, 1]);
}

/// 5 s at 1 GHz are more than the counter's 32 bits.
#[test]
fn a_kernel_longer_than_the_counter_s_period_is_not_shortened() {
    let long = 5_000_000_000_u64;
    let stamps = [7, 8, 9, (9 + long) & 0xffff_ffff, (9 + long) & 0xffff_ffff];
    let operation = Operation::new(&record(Kind::Compute, 2, long, stamps)).unwrap();
    let counts: Vec<u64> = operation
        .parts(32, Some(1000.1), None)
        .iter()
        .map(|p| p.ticks)
        .collect();
    assert_eq!(counts, [1, 1, long]);
}

#[test]
fn until_the_frequency_is_known_the_records_own_times_scale() {
    let operation = Operation::new(&record(Kind::Compute, 2, 2000, STAMPS)).unwrap();
    let parts = operation.parts(32, None, None);
    let times: Vec<f64> = parts.iter().map(|part| part.time_ns).collect();
    // 1000 cycles took 2000 ns.
    assert_eq!(times, [200.0, 60.0, 2000.0]);
    // A record of no length: the first durations' frequency, else nothing.
    let operation = Operation::new(&record(Kind::Compute, 2, 0, STAMPS)).unwrap();
    let time = |mhz| {
        operation
            .parts(32, mhz, None)
            .iter()
            .map(|p| p.time_ns)
            .sum::<f64>()
    };
    assert_eq!((time(Some(1000.0)), time(None)), (1130.0, 0.0));
}

#[test]
fn without_counter_values_a_record_is_its_own_length() {
    let none = [0; 5];
    let cases = [
        (Kind::Compute, 1, Some(Phase::Prep), "mm"),
        (Kind::Compute, 2, Some(Phase::Exec), "mm"),
        (Kind::Memcpy, 1, None, "Memcpy (HtoD)"),
        (Kind::Memcpy, 3, None, "Memcpy (PtoP)"),
        (Kind::Memset, 0, None, "Memset (Device)"),
    ];
    for (kind, code, phase, name) in cases {
        let operation = Operation::new(&record(kind, code, 700, none)).unwrap();
        let expected = OperationPart {
            phase,
            ticks: 700,
            time_ns: 700.0,
        };
        assert_eq!(operation.parts(32, None, Some(500.0)), [expected]);
        assert_eq!(&*operation.name, name);
    }
    // A value that is missing among others makes none of them usable.
    let broken = record(Kind::Compute, 2, 700, [1000, 1100, 0, 2130, 2130]);
    assert_eq!(stamps(&broken), None);
    let operation = Operation::new(&broken).unwrap();
    assert_eq!(
        ticks(&operation.parts(32, None, None)),
        [(Some(Phase::Exec), 700)]
    );
    // Allocations are no work of the device.
    assert_eq!(Operation::new(&record(Kind::Memory, 1, 700, none)), None);
    assert_eq!(Operation::new(&record(Kind::Runtime, 2, 700, none)), None);
}

#[test]
fn a_copy_alone_is_what_its_own_phase_took() {
    for (code, expected) in [(1, 100), (2, 40), (3, 1170)] {
        let stamps = [1000, 1100, 1130, 2130, 2170];
        let operation = Operation::new(&record(Kind::Memcpy, code, 90, stamps)).unwrap();
        assert_eq!(ticks(&operation.parts(32, None, None)), [(None, expected)]);
    }
    // Where the phase that it should be is empty, it is whichever is not.
    let operation = Operation::new(&record(Kind::Memcpy, 1, 90, [5, 5, 5, 5, 9])).unwrap();
    assert_eq!(ticks(&operation.parts(32, None, None)), [(None, 4)]);
}

#[test]
fn any_values_are_survived() {
    let mut wild = 1_u64;
    for i in 0..5000_u32 {
        let mut next = || {
            wild = wild.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            wild >> (i % 33)
        };
        let stamps = [next(), next(), next(), next(), next()];
        let mut record = record(Kind::Compute, i % 4, 0, stamps);
        (record.start, record.end) = (EpochNs(next()), EpochNs(next()));
        let Some(operation) = Operation::new(&record) else {
            continue;
        };
        for bits in [32, 64] {
            operation.parts(bits, Some(1000.0), None);
            operation.parts(bits, None, Some(1e-6));
        }
    }
}
