//! The metrics file.

use super::Random;
use crate::aiu::metrics::*;

fn words(out: &mut Vec<u8>, numbers: &[u32]) {
    numbers.iter().for_each(|n| out.extend(n.to_le_bytes()));
}

/// A file with one section of device counters and one of a kind of tomorrow's.
fn file() -> Vec<u8> {
    let section = |kind: u32, metrics: &[(u32, &[u64])]| -> Vec<u8> {
        let count: usize = metrics.iter().map(|(_, v)| v.len()).sum();
        let size = 32 + metrics.len() * 8 + count * 8;
        let mut out = Vec::new();
        words(&mut out, &[kind, size as u32, 9, metrics.len() as u32]);
        out.extend(1_795_000_000_123_u64.to_le_bytes());
        words(&mut out, &[20, 0]);
        metrics
            .iter()
            .for_each(|(id, v)| words(&mut out, &[*id, v.len() as u32]));
        let values = metrics.iter().flat_map(|(_, v)| v.iter());
        values.for_each(|value| out.extend(value.to_le_bytes()));
        out
    };
    let sections = [
        section(
            0x20,
            &[
                (0x10, &[255, 300]),
                (0x11, &[401, 455, 430]),
                (0x14, &[1, 2, 3]),
            ],
        ),
        section(0x77, &[(0x81, &[10, 11]), (0x999, &[5])]),
    ];
    let size = 32 + 16 + sections[0].len() + sections[1].len();
    let mut out = b"AiuM".to_vec();
    words(
        &mut out,
        &[size as u32, u32::from_le_bytes([1, 0, 4, 2]), 2],
    );
    out.extend(1_795_000_000_124_u64.to_le_bytes());
    out.extend(0_u64.to_le_bytes());
    words(
        &mut out,
        &[
            0x20,
            sections[0].len() as u32,
            0x77,
            sections[1].len() as u32,
        ],
    );
    sections.iter().for_each(|section| out.extend(section));
    // The file may be longer than what it holds.
    out.extend([0xee; 100]);
    out
}

#[test]
fn values_and_their_summaries() {
    let metrics = parse(&file()).unwrap();
    assert_eq!(metrics.time_ms, 1_795_000_000_124);
    let [counters, other] = &metrics.sections[..] else {
        panic!("{metrics:?}")
    };
    assert_eq!(
        (counters.kind, other.kind),
        (SectionKind::Counters, SectionKind::Other(0x77))
    );
    assert_eq!((counters.sequence, counters.interval), (9, 20));
    assert_eq!(counters.values[1].samples, [401, 455, 430]);
    let summaries: Vec<_> = counters
        .values
        .iter()
        .map(|v| v.summary().unwrap())
        .collect();
    assert_eq!(summaries, [25.5, 45.5, 6.0 * 1024.0]);
    assert_eq!(other.values[0].summary(), Some(10.5 * 1024.0 * 1024.0));
    assert_eq!(other.values[1].summary(), None);
    assert_eq!(known(0x10).unwrap().unit, "W");
}

#[test]
fn other_formats_are_named() {
    assert!(matches!(parse(&[0; 64]), Err(MetricsError::OldFormat)));
    let text = parse(&[0; 64]).unwrap_err().to_string();
    assert!(text.contains("physical functions"), "{text}");
    assert!(matches!(parse(b"hello, world"), Err(MetricsError::Foreign)));
    assert!(matches!(
        parse(b"A"),
        Err(MetricsError::Truncated { at: 0, .. })
    ));
    let mut bytes = file();
    bytes[9] = 7;
    let text = parse(&bytes).unwrap_err().to_string();
    assert!(text.contains("version 1.7"), "{text}");
}

#[test]
fn a_rewriting_is_waited_for() {
    let good = file();
    let mut marked = good.clone();
    marked[0] = b'!';
    let mut torn = good.clone();
    torn[90] ^= 1;
    assert!(matches!(parse(&marked), Err(MetricsError::Rewriting)));
    let mut readings = [&marked, &good, &torn, &torn, &marked, &good, &good].into_iter();
    // Marked; good and torn disagree; torn and marked disagree; good twice.
    let metrics = snapshot(|| Ok(readings.next().unwrap().clone()), 4).unwrap();
    assert_eq!(metrics, parse(&good).unwrap());
    let mut calls = 0;
    let never = snapshot(
        || {
            calls += 1;
            Ok(marked.clone())
        },
        5,
    );
    assert!(matches!(never, Err(MetricsError::Rewriting)));
    assert_eq!(calls, 5);
    // Created, and not written to yet.
    assert!(matches!(parse(&[]), Err(MetricsError::Rewriting)));
    let mut readings = [&[][..], &good, &good].into_iter();
    let filled = snapshot(|| Ok(readings.next().unwrap().to_vec()), 2).unwrap();
    assert_eq!(filled, metrics);
    let gone = snapshot(|| Err(std::io::ErrorKind::NotFound.into()), 5);
    assert!(matches!(gone, Err(MetricsError::Io(_))));
}

#[test]
fn every_cut_and_every_flipped_byte_is_survived() {
    let good = file();
    let whole = good.len() - 100;
    for length in 0..whole {
        assert!(parse(&good[..length]).is_err(), "{length} bytes");
    }
    let mut random = Random(3);
    for at in 0..good.len() {
        for _ in 0..16 {
            let mut bytes = good.clone();
            bytes[at] = random.next() as u8;
            testing::fuzz_metrics(&bytes);
        }
    }
}

#[test]
fn counts_beyond_reason_cost_nothing() {
    for (at, value) in [
        (4, u32::MAX),
        (12, u32::MAX),
        (36, u32::MAX),
        (48 + 12, 1024),
        (48 + 36, u32::MAX),
    ] {
        let mut bytes = file();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        assert!(parse(&bytes).is_err(), "{value} at {at}");
    }
}
