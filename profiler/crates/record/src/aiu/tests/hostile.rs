//! Bytes that are not valid records.

use super::{Random, T, record};
use crate::aiu::*;
use std::time::{Duration, Instant};

/// What holds for any input.
fn check(bytes: &[u8], layouts: &Layouts) -> usize {
    let (records, unknown) = decode_records(bytes, layouts, &BufferContext::default());
    assert!(records.len() <= bytes.len() / 25, "more records than fit");
    assert!(unknown.bytes <= bytes.len() as u64);
    let read: usize = bytes.len() - unknown.bytes as usize;
    assert!(records.len() <= read / 25);
    assert_eq!(unknown.bytes > 0, unknown.total() > 0);
    for record in &records {
        assert!(record.start <= record.end);
    }
    records.len()
}

#[test]
fn noise_is_no_record() {
    let layouts = Layouts::builtin().unwrap();
    let mut random = Random(7);
    for length in (0..2000).step_by(13) {
        let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        assert_eq!(check(&bytes, &layouts), 0);
    }
}

#[test]
fn damaged_buffers_never_panic() {
    let layouts = Layouts::builtin().unwrap();
    let names: Vec<&str> = layouts.layouts().iter().map(|l| l.name.as_str()).collect();
    let mut random = Random(99);
    for round in 0..400 {
        let mut bytes: Vec<u8> = (0..30)
            .flat_map(|n| {
                record(
                    &layouts,
                    names[random.below(names.len() as u64) as usize],
                    n,
                )
            })
            .collect();
        for _ in 0..round % 20 {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        check(&bytes, &layouts);
    }
}

/// Every byte a kind and every eight of them a time: the most work to refuse.
#[test]
fn hostile_buffers_end_soon() {
    let layouts = Layouts::builtin().unwrap();
    let time = T.to_le_bytes();
    let shapes: [Vec<u8>; 4] = [
        vec![6; 4 << 20],
        (0..4 << 20)
            .map(|i| [1, 2, 3, 4, 6, 11, 8][i % 7])
            .collect(),
        (0..4 << 20).map(|i| time[i % 8]).collect(),
        (0..4 << 20)
            .map(|i| if i % 8 == 0 { 6 } else { time[i % 8] })
            .collect(),
    ];
    for bytes in shapes {
        let start = Instant::now();
        check(&bytes, &layouts);
        // Without the budget this takes hours.
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

/// Two layouts of one size that read the same bytes differently.
#[test]
fn what_fits_two_layouts_is_not_guessed() {
    let table = "[kinds]\nruntime = 6\n\
        [[layout]]\nname = \"a\"\nkind = \"runtime\"\nstatus = \"assumed\"\nsize = 32\n\
        [layout.fields]\nstart = \"u64@8\"\nend = \"u64@16\"\npid = \"u32@24\"\ntid = \"u32@28\"\n\
        [[layout]]\nname = \"b\"\nkind = \"runtime\"\nstatus = \"assumed\"\nsize = 32\n\
        [layout.fields]\nstart = \"u64@8\"\nend = \"u64@16\"\npid = \"u32@28\"\ntid = \"u32@24\"\n";
    let layouts = Layouts::parse(table).unwrap();
    let mut bytes = record(&layouts, "a", 1);
    bytes.extend(record(&layouts, "a", 2));
    let (records, unknown) = decode_records(&bytes, &layouts, &BufferContext::default());
    assert_eq!(
        (records.len(), unknown.ambiguous, unknown.bytes),
        (0, 2, 64)
    );
    // Known to be of this process, only one fits.
    let context = BufferContext {
        pid: Some(4711),
        ..BufferContext::default()
    };
    let (records, unknown) = decode_records(&bytes, &layouts, &context);
    assert_eq!((records.len(), unknown.total()), (2, 0));
}

/// Every layout of the table, when the table does not have it: nothing is read
/// into its bytes.
#[test]
fn layouts_that_are_not_in_the_table_are_unknown() {
    let full = Layouts::builtin().unwrap();
    let text = include_str!("../../../../../probes/aiupti-layouts.toml");
    for missing in full.layouts() {
        let entries: Vec<&str> = text.split("[[layout]]").collect();
        let name = format!("name = \"{}\"", missing.name);
        let kept: Vec<&str> = entries.into_iter().filter(|e| !e.contains(&name)).collect();
        let table = Layouts::parse(&kept.join("[[layout]]")).unwrap();
        assert_eq!(table.layouts().len(), full.layouts().len() - 1);
        let mut bytes = Vec::new();
        for n in 0..50 {
            bytes.extend(record(&full, "runtime-natural", n));
            bytes.extend(record(&full, &missing.name, n));
        }
        let (records, unknown) = decode_records(&bytes, &table, &BufferContext::default());
        assert!(unknown.total() > 0, "{}", missing.name);
        for one in &records {
            // Whatever is read is true: the times and ids of the record of that kind.
            let n = one.correlation.unwrap() - 1;
            assert_eq!(one.start, EpochNs(T + n * 1000), "{}", missing.name);
            assert_eq!(one.end, EpochNs(T + n * 1000 + 700), "{}", missing.name);
        }
    }
}
