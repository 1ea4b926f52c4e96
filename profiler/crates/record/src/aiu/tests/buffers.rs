//! Whole buffers of every combination of layouts in the table.

use super::{Random, T, record};
use crate::aiu::*;

/// The kinds of records that a profiled program gets, and their layouts.
fn families(layouts: &Layouts) -> Vec<Vec<&str>> {
    let kinds = [
        Kind::Compute,
        Kind::Runtime,
        Kind::Memcpy,
        Kind::Memory,
        Kind::Memset,
    ];
    kinds
        .iter()
        .map(|kind| {
            let of_kind = layouts.layouts().iter().filter(|l| l.kind == *kind);
            of_kind.map(|l| l.name.as_str()).collect()
        })
        .collect()
}

#[test]
fn every_combination_of_layouts_is_told_apart() {
    let layouts = Layouts::builtin().unwrap();
    let families = families(&layouts);
    let combinations: usize = families.iter().map(Vec::len).product();
    assert!(combinations >= 2 * 3 * 4 * 2 * 2);
    let mut random = Random(42);
    for combination in 0..combinations {
        let mut rest = combination;
        let names: Vec<&str> = families
            .iter()
            .map(|names| {
                let name = names[rest % names.len()];
                rest /= names.len();
                name
            })
            .collect();
        let order: Vec<&str> = (0..40).map(|_| names[random.below(5) as usize]).collect();
        let buffer: Vec<u8> = order
            .iter()
            .enumerate()
            .flat_map(|(n, name)| record(&layouts, name, n as u64))
            .collect();
        let mut decoder = Decoder::new(&layouts);
        let mut records = Vec::new();
        let unknown = decoder.buffer(&buffer, &BufferContext::default(), |r| records.push(r));
        assert_eq!(unknown, Unknown::default(), "{names:?}");
        assert_eq!(records.len(), 40);
        for (n, record) in records.iter().enumerate() {
            assert_eq!(record.correlation, Some(n as u64 + 1));
            assert_eq!(record.start, EpochNs(T + n as u64 * 1000));
            assert_eq!(record.amount, Some(n as u64 * 4096));
        }
        let mut seen: Vec<&str> = order.clone();
        seen.sort_by_key(|name| layouts.layouts().iter().position(|l| l.name == *name));
        seen.dedup();
        assert_eq!(decoder.in_use(), seen);
    }
}

#[test]
fn one_record_is_enough() {
    let layouts = Layouts::builtin().unwrap();
    for layout in layouts.layouts() {
        for n in 0..300 {
            let bytes = record(&layouts, &layout.name, n);
            let (records, unknown) = decode_records(&bytes, &layouts, &BufferContext::default());
            assert_eq!(
                (records.len(), unknown.total()),
                (1, 0),
                "{} {n}",
                layout.name
            );
            assert_eq!(records[0].kind, layout.kind);
            assert_eq!(records[0].start, EpochNs(T + n * 1000), "{}", layout.name);
        }
    }
}

#[test]
fn fields_of_a_compute_record() {
    let layouts = Layouts::builtin().unwrap();
    let bytes = record(&layouts, "compute-232", 7);
    let (records, _) = decode_records(&bytes, &layouts, &BufferContext::default());
    let expected = ActivityRecord {
        kind: Kind::Compute,
        status: LayoutStatus::Published,
        code: Some(2),
        device: Some(3),
        context: Some(1),
        stream: Some(2),
        correlation: Some(8),
        start: EpochNs(T + 7000),
        end: EpochNs(T + 7700),
        queued: Some(EpochNs(T + 6950)),
        submitted: Some(EpochNs(T + 6980)),
        amount: Some(7 * 4096),
        address: None,
        pid: None,
        tid: None,
        name: Some("sdsc_fused_mm_7".to_owned()),
        // The counter wraps between TS1 and TS5 of other records; here all wrapped.
        cycles: Some([192, 193, 194, 195, 196]),
    };
    assert_eq!(records, [expected]);
}

#[test]
fn big_endian() {
    let layouts = Layouts::builtin().unwrap();
    let mut bytes = record(&layouts, "runtime-natural", 3);
    for range in [4..8, 8..16, 16..24, 24..28, 28..32, 32..36, 40..48] {
        bytes[range].reverse();
    }
    let big = BufferContext {
        endian: Endian::Big,
        ..BufferContext::default()
    };
    let (records, unknown) = decode_records(&bytes, &layouts, &big);
    assert_eq!(unknown, Unknown::default());
    assert_eq!((records[0].pid, records[0].code), (Some(4711), Some(4)));
    assert!(
        decode_records(&bytes, &layouts, &BufferContext::default())
            .0
            .is_empty()
    );
}

#[test]
fn broken_records_are_counted_and_passed() {
    let layouts = Layouts::builtin().unwrap();
    let mut buffer = Vec::new();
    for n in 0..100 {
        let mut bytes = record(&layouts, "runtime-natural", n);
        if n == 30 || n == 31 {
            // Ends before it starts.
            bytes[16..24].copy_from_slice(&(T - 5).to_le_bytes());
        }
        buffer.extend(bytes);
        buffer.extend(record(&layouts, "compute-192", n));
    }
    let (records, unknown) = decode_records(&buffer, &layouts, &BufferContext::default());
    assert_eq!(records.len(), 198);
    assert_eq!(
        (unknown.implausible, unknown.total(), unknown.bytes),
        (2, 2, 96)
    );
}

#[test]
fn kinds_without_layout_are_counted_and_passed() {
    let layouts = Layouts::builtin().unwrap();
    let mut buffer = Vec::new();
    for n in 0..100 {
        buffer.extend(record(&layouts, "runtime-packed", n));
        buffer.extend(record(&layouts, "memcpy-packed", n));
        if n % 10 == 9 {
            // A synchronization record of unknown layout.
            let mut foreign = vec![0xa5; 77];
            foreign[0] = 8;
            buffer.extend(foreign);
        }
    }
    let (records, unknown) = decode_records(&buffer, &layouts, &BufferContext::default());
    assert_eq!(records.len(), 200);
    assert_eq!(
        (unknown.no_layout, unknown.total(), unknown.bytes),
        (10, 10, 770)
    );
}

#[test]
fn what_is_known_of_the_process_counts() {
    let layouts = Layouts::builtin().unwrap();
    let bytes: Vec<u8> = ["runtime-natural", "memcpy-natural"]
        .iter()
        .flat_map(|name| record(&layouts, name, 5))
        .collect();
    let kinds = |context: &BufferContext<'_>| {
        let records = decode_records(&bytes, &layouts, context).0;
        records.iter().map(|r| r.kind).collect::<Vec<_>>()
    };
    let both = [Kind::Runtime, Kind::Memcpy];
    let mut context = BufferContext {
        pid: Some(4711),
        earliest: EpochNs(T),
        latest: EpochNs(T + 1_000_000),
        known_correlation: Some(&|id| id == 6),
        ..BufferContext::default()
    };
    assert_eq!(kinds(&context), both);
    context.known_correlation = Some(&|id| id == 7);
    assert_eq!(kinds(&context), []);
    context.known_correlation = None;
    context.pid = Some(4710);
    assert!(!kinds(&context).contains(&Kind::Runtime));
    context.pid = None;
    context.latest = EpochNs(T + 5000);
    assert_eq!(kinds(&context), []);
}

#[test]
fn layouts_learned_from_one_buffer_serve_the_next() {
    let layouts = Layouts::builtin().unwrap();
    let mut decoder = Decoder::new(&layouts);
    let mut count = 0;
    for n in 0..5 {
        let mut buffer = record(&layouts, "runtime-narrow", n);
        if n > 0 {
            // Cut in the middle of the second record: still the first is read.
            buffer.extend(&record(&layouts, "runtime-narrow", n)[..40]);
        }
        let unknown = decoder.buffer(&buffer, &BufferContext::default(), |_| count += 1);
        assert_eq!(unknown.cut, u64::from(n > 0));
    }
    assert_eq!(count, 5);
}

#[test]
fn another_library_is_learned_anew() {
    let layouts = Layouts::builtin().unwrap();
    let buffer = |runtime, compute| -> Vec<u8> {
        let pair = |n| [record(&layouts, runtime, n), record(&layouts, compute, n)].concat();
        (0..50).flat_map(pair).collect()
    };
    let mut decoder = Decoder::new(&layouts);
    let (mut count, context) = (0, BufferContext::default());
    for (runtime, compute) in [
        ("runtime-natural", "compute-192"),
        ("runtime-narrow", "compute-232"),
        ("runtime-packed", "compute-232"),
    ] {
        let unknown = decoder.buffer(&buffer(runtime, compute), &context, |_| count += 1);
        assert_eq!(unknown, Unknown::default(), "{runtime}");
        assert_eq!(decoder.in_use(), [compute, runtime]);
    }
    assert_eq!(count, 300);
}

#[test]
fn a_broken_first_record_does_not_shake_what_is_known() {
    let layouts = Layouts::builtin().unwrap();
    let mut decoder = Decoder::new(&layouts);
    let (mut count, context) = (0, BufferContext::default());
    let good = record(&layouts, "runtime-natural", 1);
    decoder.buffer(&good, &context, |_| count += 1);
    let mut bytes = good.clone();
    bytes[16..24].fill(0);
    bytes.extend(&good);
    let unknown = decoder.buffer(&bytes, &context, |_| count += 1);
    assert_eq!((count, unknown.implausible, unknown.bytes), (2, 1, 48));
}

#[test]
fn captures_cut_in_a_record() {
    let layouts = Layouts::builtin().unwrap();
    let buffer: Vec<u8> = (0..9)
        .flat_map(|n| record(&layouts, "compute-232", n))
        .collect();
    let cut = BufferContext {
        is_cut: true,
        ..BufferContext::default()
    };
    let (records, unknown) = decode_records(&buffer[..5 * 232 + 100], &layouts, &cut);
    assert_eq!((records.len(), unknown.cut, unknown.bytes), (5, 1, 100));
}

#[test]
fn records_one_by_one() {
    let layouts = Layouts::builtin().unwrap();
    let context = BufferContext::default();
    for layout in layouts.layouts() {
        let mut decoder = Decoder::new(&layouts);
        let mut bytes = record(&layouts, &layout.name, 3);
        bytes.resize(512, 0);
        let first = decoder.record(&bytes, Some(layout.size), &context);
        assert_eq!(
            first.map(|r| r.start),
            Ok(EpochNs(T + 3000)),
            "{}",
            layout.name
        );
        // Known by now: what follows does not matter.
        assert!(decoder.record(&bytes, None, &context).is_ok());
        assert_eq!(
            decoder.record(&bytes, Some(layout.size + 8), &context),
            Err(RecordError::NoLayout)
        );
    }
    let mut decoder = Decoder::new(&layouts);
    assert_eq!(
        decoder.record(&[], None, &context),
        Err(RecordError::Foreign)
    );
    assert_eq!(
        decoder.record(&[77; 64], None, &context),
        Err(RecordError::Foreign)
    );
    // Both sizes of a compute record may end here.
    let mut bytes = record(&layouts, "compute-232", 3);
    bytes[192] = 6;
    assert_eq!(
        decoder.record(&bytes, None, &context),
        Err(RecordError::Ambiguous)
    );
}
