//! Inputs that are cut off, damaged or made to cost time: whatever they are, a
//! call returns, soon, without panic.

use super::build::{FRAMES, Frames, TEXT};
use super::*;
use crate::unwind::{UnwindError, build_all, fuzz_one};
use aiprof_common::{CFA_RSP, CFA_UNSUPPORTED};
use std::time::Duration;

/// CPU time of this thread, which no other program adds to.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

/// A small file with a bit of everything, most of its bytes meaningful: the
/// headers and frames lie closer together than in [`Frames::elf`].
fn small_file() -> Vec<u8> {
    let mut frames = Frames::new();
    for i in 0..20u64 {
        let code = [
            0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x0a, 0x48, 0x0c, 7, 8, 0x0b,
        ];
        frames.fde(i * 0x1000, 0x800, &code[..i as usize % 14]);
    }
    frames.elf(1 << 18)
}

/// Where the small file has content, as ranges of its offsets.
fn content(file: &[u8]) -> Vec<usize> {
    let blocks = file
        .chunks(64)
        .enumerate()
        .filter(|(_, b)| b.iter().any(|&b| b != 0));
    blocks.flat_map(|(i, b)| i * 64..i * 64 + b.len()).collect()
}

#[test]
fn every_prefix_is_an_error_or_a_file() {
    let file = small_file();
    let full = build_all(&UnwindFile::open(file.as_slice()).unwrap()).unwrap();
    assert_eq!(full.pages, 2);
    let mut built = 0;
    for len in content(&file) {
        let prefix = &file[..len];
        fuzz_one(prefix);
        if let Ok(file) = UnwindFile::open(prefix) {
            match build_all(&file) {
                Ok(_) => built += 1,
                Err(e) => assert!(matches!(e, UnwindError::Truncated(_)), "{e}"),
            }
        }
    }
    assert!(built > 0);
}

#[test]
fn damaged_files_return_soon() {
    let original = small_file();
    let content = content(&original);
    let mut file = original.clone();
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    for _ in 0..3000 {
        let places: Vec<usize> = (0..1 + next() % 8)
            .map(|_| content[next() % content.len()])
            .collect();
        for &at in &places {
            file[at] = match next() % 4 {
                0 => 0xff,
                1 => 0,
                2 => file[at] ^ (1 << (next() % 8)),
                _ => next() as u8,
            };
        }
        let start = cpu_time();
        fuzz_one(&file);
        assert!(cpu_time() - start < Duration::from_secs(2), "{places:?}");
        for at in places {
            file[at] = original[at];
        }
    }
}

#[test]
fn one_long_function_named_for_every_byte_costs_bounded_time() {
    let mut frames = Frames::new();
    // advance 0, 200,000 times.
    frames.fde(0, 1 << 16, &[0x40; 200_000]);
    let fde = frames.fdes[0].1;
    frames.fdes = (0..1u64 << 16).map(|i| (TEXT + i, fde)).collect();
    let file = UnwindFile::open(frames.elf(1 << 16)).unwrap();
    let start = cpu_time();
    assert_eq!(rule_at(&file, TEXT + 0xffff), rule(CFA_UNSUPPORTED, 0));
    assert!(cpu_time() - start < Duration::from_secs(2));
}

#[test]
fn record_too_long_to_decode_is_refused() {
    let mut frames = Frames::new();
    frames.fde(0, 0x100, &[0; 300_000]);
    let file = UnwindFile::open(frames.elf(1 << 16)).unwrap();
    assert_eq!(rule_at(&file, TEXT), rule(CFA_UNSUPPORTED, 0));
}

#[test]
fn section_of_terminators_is_scanned_in_bounded_time() {
    let mut frames = Frames::default();
    frames.bytes.resize(32 << 20, 0);
    let file = UnwindFile::open(frames.elf_with_sections(1 << 16)).unwrap();
    let start = cpu_time();
    assert_eq!(file.page(0, &mut Vec::new()).unwrap(), PageContent::NoData);
    assert!(cpu_time() - start < Duration::from_secs(5));
}

#[test]
fn file_truncated_after_it_was_opened_is_an_error() {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&small_file()).unwrap();
    let unwind = UnwindFile::open(file.try_clone().unwrap()).unwrap();
    assert_eq!(unwind.page(0, &mut Vec::new()).unwrap(), PageContent::Table);
    file.set_len(0x1000).unwrap();
    let mut page = Vec::new();
    assert!(matches!(
        unwind.page(0, &mut page),
        Err(UnwindError::Truncated(_))
    ));
    assert!(page.is_empty());
}

/// What a file counts as malformed before its first page is read, and after.
fn malformed(file: &[u8]) -> (u64, u64) {
    let file = UnwindFile::open(file).unwrap();
    let before = file.malformed();
    file.page(0, &mut Vec::new()).unwrap();
    (before, file.malformed())
}

#[test]
fn what_is_malformed_is_counted() {
    let mut frames = Frames::new();
    frames.fde(0, 0x100, &[]);
    frames.fde(0x100, 0x100, &[0x3f]); // no such instruction
    let spoilt = |mut file: Vec<u8>, from: u64| {
        let at = from as usize;
        file[at..at + frames.bytes.len()].fill(0xfe);
        file
    };
    assert_eq!(malformed(&frames.elf(0x1000)), (0, 1));
    assert_eq!(malformed(&spoilt(frames.elf(0x1000), FRAMES)).0, 0);
    assert!(malformed(&spoilt(frames.elf(0x1000), FRAMES)).1 > 0);
    // Without a search table: the scan cannot go on after a bad length.
    let scanned = frames.elf_with_sections(0x1000);
    assert_eq!(malformed(&scanned), (0, 1));
    assert_eq!(malformed(&spoilt(scanned, FRAMES)), (0, 1));
    // A bad header and nothing else to go by.
    assert_eq!(malformed(&frames.elf_with_hdr(0x1000, &[0xfe; 64])), (1, 1));
}

/// Hand-written assembly of libgcrypt has this; gimli refuses all of the function.
#[test]
fn a_new_offset_for_an_expression_is_unsupported_until_the_next_definition() {
    let mut frames = Frames::new();
    // CFA: an expression; advance 4; its offset is 16; advance 4; CFA: rsp + 24.
    let code = [0x0f, 1, 0x96, 0x44, 0x0e, 16, 0x44, 0x0c, 7, 24];
    frames.fde(0, 0x100, &code);
    let file = UnwindFile::open(frames.elf(0x1000)).unwrap();
    assert_eq!(rule_at(&file, TEXT + 5), rule(CFA_UNSUPPORTED, 0));
    assert_eq!(rule_at(&file, TEXT + 8), rule(CFA_RSP, 24));
    assert_eq!(file.malformed(), 0);
}
