use super::*;
use crate::profile::{StallCounts, StallReason};
use std::collections::BTreeMap;

/// First bits of the counters as the driver's structures have them, written down
/// apart from the decoder.
fn bits_of(layout: Layout) -> (u32, Vec<(&'static str, u32)>) {
    let in_row = |at: u32, names: &[&'static str]| {
        let bits = (at..).step_by(8);
        names.iter().copied().zip(bits).collect::<Vec<_>>()
    };
    match layout {
        Layout::Pvc => (
            29,
            vec![
                ("active", 29),
                ("other", 37),
                ("control", 45),
                ("pipestall", 53),
                ("send", 61),
                ("dist_acc", 69),
                ("sbid", 77),
                ("sync", 85),
                ("inst_fetch", 93),
            ],
        ),
        Layout::Xe2 => (
            29,
            vec![
                ("tdr", 29),
                ("other", 37),
                ("control", 45),
                ("pipestall", 53),
                ("send", 61),
                ("dist_acc", 69),
                ("sbid", 77),
                ("sync", 85),
                ("inst_fetch", 93),
                ("active", 101),
            ],
        ),
        Layout::Xe3p => (
            61,
            in_row(
                61,
                &[
                    "tdr",
                    "other",
                    "control",
                    "pipestall",
                    "send",
                    "dist_acc",
                    "sbid",
                    "sync",
                    "inst_fetch",
                    "active",
                ],
            ),
        ),
    }
}

const LAYOUTS: [Layout; 3] = [Layout::Pvc, Layout::Xe2, Layout::Xe3p];

fn put(record: &mut [u8], at: u32, width: u32, value: u64) {
    for i in (0..width).filter(|i| value >> i & 1 == 1) {
        record[((at + i) / 8) as usize] |= 1 << ((at + i) % 8);
    }
}

fn record(layout: Layout, size: usize, address: u64, counts: &[(&str, u64)]) -> Vec<u8> {
    let (width, counters) = bits_of(layout);
    let mut record = vec![0; size];
    put(&mut record, 0, width, address >> 3);
    for (name, count) in counts {
        let at = counters.iter().find(|c| c.0 == *name).unwrap().1;
        put(&mut record, at, 8, *count);
    }
    record
}

fn counts(named: &[(&str, u32)]) -> StallCounts {
    let mut counts = StallCounts::default();
    for (name, count) in named {
        counts[StallReason::of_name(name).unwrap() as usize] += count;
    }
    counts
}

/// Numbers that look random, the same in every run.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 8) % below
    }
}

fn window(layout: Layout, bytes: &[u8]) -> Window {
    let mut sums = Sums::new(layout, RECORD_SIZE, 1 << 16);
    sums.add(bytes);
    sums.take(0)
}

#[test]
fn every_counter_is_where_the_driver_puts_it() {
    for layout in LAYOUTS {
        for (name, _) in bits_of(layout).1 {
            for value in [1, 0x55, 0xaa, 254] {
                let bytes = record(layout, 64, 0x1234_5678, &[(name, value)]);
                let window = window(layout, &bytes);
                assert_eq!(window.counts.len(), 1, "{layout} {name}");
                assert_eq!(window.counts[0].address, 0x1234_5678);
                assert_eq!(window.counts[0].counts, counts(&[(name, value as u32)]));
                assert_eq!((window.strange, window.saturated, window.drops), (0, 0, 0));
            }
        }
    }
}

#[test]
fn addresses_use_all_their_bits() {
    for (layout, most) in [
        (Layout::Pvc, (1 << 32) - 8),
        (Layout::Xe2, (1 << 32) - 8),
        (Layout::Xe3p, u64::MAX - 7),
    ] {
        let bytes = record(layout, 64, most, &[("sbid", 1)]);
        assert_eq!(window(layout, &bytes).counts[0].address, most);
    }
    let mut sums = Sums::new(Layout::Xe2, RECORD_SIZE, 16);
    sums.add(&record(Layout::Xe2, 64, 0x40, &[("sbid", 1)]));
    assert_eq!(
        sums.take(0x8001_0000_0000).counts[0].address,
        0x8001_0000_0040
    );
}

#[test]
fn what_goes_in_comes_out() {
    for (layout, seed) in LAYOUTS.into_iter().zip(1..) {
        for addresses in [1, 3, 700, 5000] {
            let mut number = numbers(seed * addresses);
            let mut expected = BTreeMap::<u64, StallCounts>::new();
            let mut bytes = Vec::new();
            let mut full = 0;
            for _ in 0..8000 {
                let address = number(addresses) * 16 + 0x1_0000;
                let named: Vec<_> = bits_of(layout)
                    .1
                    .iter()
                    .map(|(name, _)| (*name, if number(3) == 0 { number(256) } else { 0 }))
                    .collect();
                full += named.iter().filter(|n| n.1 == 255).count() as u64;
                bytes.extend(record(layout, 64, address, &named));
                let named: Vec<_> = named.iter().map(|n| (n.0, n.1 as u32)).collect();
                if named.iter().any(|n| n.1 > 0) {
                    let sum = expected.entry(address).or_default();
                    for (sum, n) in sum.iter_mut().zip(counts(&named)) {
                        *sum += n;
                    }
                }
            }
            let window = window(layout, &bytes);
            let found: Vec<_> = window
                .counts
                .iter()
                .map(|c| (c.address, c.counts))
                .collect();
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
            assert_eq!((window.records, window.saturated), (8000, full));
            assert_eq!((window.refused, window.strange), (0, 0));
        }
    }
}

#[test]
fn windows_begin_empty() {
    let mut sums = Sums::new(Layout::Xe2, RECORD_SIZE, 1 << 16);
    for round in 0..5_u64 {
        // More addresses than the first table has, then fewer.
        let addresses = [10, 3000, 10, 900, 0][round as usize];
        for i in 0..addresses {
            let address = (i * 7 + round) << 4;
            sums.add(&record(Layout::Xe2, 64, address, &[("send", round + 1)]));
        }
        assert_eq!(sums.records(), addresses);
        let window = sums.take(0);
        assert_eq!(window.counts.len() as u64, addresses);
        let expected = counts(&[("send", round as u32 + 1)]);
        assert!(window.counts.iter().all(|c| c.counts == expected));
    }
    assert_eq!(sums.take(0), Window::default());
}

#[test]
fn what_finds_no_room_is_counted() {
    let mut sums = Sums::new(Layout::Xe2, RECORD_SIZE, 4);
    for i in 0..10 {
        sums.add(&record(
            Layout::Xe2,
            64,
            i * 8,
            &[("sbid", 3), ("active", 2)],
        ));
    }
    // An address that has room already.
    sums.add(&record(Layout::Xe2, 64, 0, &[("tdr", 1)]));
    let window = sums.take(0);
    assert_eq!((window.records, window.counts.len()), (11, 4));
    assert_eq!((window.refused, window.refused_samples), (6, 30));
    assert_eq!(
        window.counts[0].counts,
        counts(&[("sbid", 3), ("active", 2), ("tdr", 1)])
    );
    sums.add(&record(Layout::Xe2, 64, 0x800, &[("sync", 1)]));
    assert_eq!(sums.take(0).refused, 0);
}

#[test]
fn full_counters_and_marks_of_the_driver_are_counted() {
    let full = record(
        Layout::Xe2,
        64,
        8,
        &[("sbid", 255), ("active", 255), ("sync", 254)],
    );
    assert_eq!(window(Layout::Xe2, &full).saturated, 2);
    let full = record(Layout::Pvc, 64, 8, &[("inst_fetch", 255)]);
    assert_eq!(window(Layout::Pvc, &full).saturated, 1);
    for (layout, drops, strange) in [
        (Layout::Pvc, 1, 0),
        (Layout::Xe2, 1, 0),
        (Layout::Xe3p, 0, 1),
    ] {
        let mut marked = record(layout, 64, 8, &[("sbid", 1)]);
        // Subslice 5, overflow.
        marked[48] = 5;
        marked[51] = 1;
        let window = window(layout, &marked);
        assert_eq!((window.drops, window.strange), (drops, strange), "{layout}");
        assert_eq!(window.counts.len(), 1);
    }
    // An execution id and an end mark are no counts, and nothing strange.
    let mut ended = record(Layout::Xe2, 64, 8, &[("active", 1)]);
    put(&mut ended, 109, 4, 0xf);
    assert_eq!(window(Layout::Xe2, &ended).strange, 0);
    assert_eq!(window(Layout::Pvc, &ended).strange, 1);
    put(&mut ended, 113, 1, 1);
    assert_eq!(window(Layout::Xe2, &ended).strange, 1);
    // Records without counts are records, at no address.
    let empty = window(Layout::Xe2, &[0; 128]);
    assert_eq!((empty.records, empty.counts.len()), (2, 0));
}

#[test]
fn the_wrong_layout_looks_strange() {
    let bytes = record(
        Layout::Xe3p,
        64,
        0x8001_0000_4000,
        &[("sbid", 7), ("active", 1)],
    );
    assert_eq!(window(Layout::Xe2, &bytes).strange, 1);
    assert_eq!(window(Layout::Pvc, &bytes).strange, 1);
}

#[test]
fn pieces_of_any_length_give_the_same() {
    let mut number = numbers(99);
    for (layout, size) in [
        (Layout::Xe2, 64),
        (Layout::Xe2, 16),
        (Layout::Pvc, 20),
        (Layout::Xe3p, 128),
        (Layout::Xe3p, 24),
    ] {
        let mut bytes = Vec::new();
        for i in 0..50 {
            bytes.extend(record(
                layout,
                size,
                i % 7 * 8,
                &[("sbid", i + 1), ("other", 1)],
            ));
        }
        let mut all = Sums::new(layout, size, 100);
        all.add(&bytes);
        let all = all.take(0);
        assert_eq!((all.records, all.counts.len()), (50, 7));
        let sbid = |c: &crate::wire::StallCount| c.counts[StallReason::Sbid as usize];
        assert_eq!(all.counts.iter().map(sbid).sum::<u32>(), 50 * 51 / 2);
        let mut sums = Sums::new(layout, size, 100);
        let mut splitter = Splitter::new(layout, size).unwrap();
        let mut rest = &bytes[..bytes.len() - 3];
        while !rest.is_empty() {
            let (piece, after) = rest.split_at((number(90) as usize).min(rest.len()));
            splitter.split(piece, |records| {
                assert!(records.len().is_multiple_of(size) && !records.is_empty());
                sums.add(records);
            });
            rest = after;
        }
        assert_eq!(sums.records(), 49);
        // The writer went on, after all.
        splitter.split(&bytes[bytes.len() - 3..], |records| sums.add(records));
        assert_eq!(sums.take(0), all);
        // Or it was killed.
        splitter.split(&bytes[..size + 5], |records| sums.add(records));
        assert_eq!((splitter.reset(), splitter.reset()), (5, 0));
        assert_eq!(sums.take(0).records, 1);
    }
    assert!(Splitter::new(Layout::Xe2, 15).is_none());
    assert!(Splitter::new(Layout::Xe3p, 16).is_none());
    assert!(Splitter::new(Layout::Xe2, 1 << 20).is_none());
}

#[test]
fn any_bytes_are_decoded() {
    let mut number = numbers(7);
    for round in 0..300 {
        let length = number(700) as usize;
        let data: Vec<_> = (0..length).map(|_| number(256) as u8).collect();
        testing::fuzz_records(&data);
        testing::fuzz_records(&[&[round as u8, 64], &*vec![0xff; length]].concat());
    }
}

#[test]
fn layouts_are_told_by_device() {
    assert_eq!(Layout::of(0x0bd5, None), Ok(Layout::Pvc));
    assert_eq!(Layout::of(0xe20b, Some((20, 1))), Ok(Layout::Xe2));
    assert_eq!(Layout::of(0xb080, Some((30, 0))), Ok(Layout::Xe2));
    // Not in the table, but the hardware reports its version.
    assert_eq!(Layout::of(0x1234, Some((35, 10))), Ok(Layout::Xe3p));
    let error = Layout::of(0xe2ff, None).unwrap_err();
    assert_eq!(error.nearest, Layout::Xe2);
    let text = error.to_string();
    assert!(text.contains("0xe2ff") && text.contains("xe2"), "{text}");
    let error = Layout::of(0x1234, Some((40, 3))).unwrap_err();
    assert_eq!(error.nearest, Layout::Xe3p);
    assert!(
        error
            .to_string()
            .contains("0x1234 is unknown (graphics IP 40.03)")
    );
    for layout in LAYOUTS {
        assert_eq!(layout.to_string().parse(), Ok(layout));
    }
    assert_eq!("xe3".parse(), Ok(Layout::Xe2));
    assert!("xe4".parse::<Layout>().is_err());
}
