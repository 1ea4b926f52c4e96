//! The layout of table pages.

use super::build::{Frames, TEXT, TEXT_OFFSET, put};
use super::*;
use aiprof_common::{
    CFA_RSP, CFA_UNSUPPORTED, GROUP_BYTES, MAX_GROUPS, MAX_PAGE_RULES, RBP_DERIVED,
};

/// The first page of a file with these frames.
fn first_page(frames: &Frames) -> Vec<u8> {
    let file = UnwindFile::open(frames.elf(1 << 16)).unwrap();
    let mut page = vec![0xee; 3];
    assert_eq!(file.page(0, &mut page).unwrap(), PageContent::Table);
    page
}

/// Instructions that set the CFA to rsp + `offset(i)` after `step` bytes each.
fn staircase(rows: u32, step: u16, offset: impl Fn(u32) -> u32) -> Vec<u8> {
    let mut code = Vec::new();
    for i in 0..rows {
        let offset = offset(i);
        code.push(0x03);
        code.extend(step.to_le_bytes());
        code.extend([
            0x0e,
            offset as u8 | 0x80,
            (offset >> 7) as u8 | 0x80,
            (offset >> 14) as u8,
        ]);
    }
    code
}

#[test]
fn page_bytes_as_the_contract_states_them() {
    let mut frames = Frames::new();
    frames.fde(0, 300, &[0x42, 0x0e, 16]); // rsp + 8; at 2: rsp + 16; at 300: none
    let mut expected = Vec::new();
    expected.extend([0; 8]); // owner, last_used
    expected.extend([1, 0, 3, 0]); // one group, three rules
    expected.extend([32, 0, 0, 0, 56, 0, 0, 0, 0, 0, 0, 0]); // rules_off, groups_off, pad
    expected.extend([0; 8]); // anchor 0, padding
    expected.extend([8, 0, 0, 0, 0, 0, 2, 0]);
    expected.extend([16, 0, 0, 0, 0, 0, 2, 0]);
    expected.extend([0; 8]);
    // 0, 2, bridge at 257, 300, then padding
    expected.extend([0, 2, 255, 43]);
    expected.extend([255; 12]);
    expected.extend([0, 1, 1, 2]);
    expected.extend([2; 12]);
    assert_eq!(first_page(&frames), expected);
}

#[test]
fn lookup_agrees_at_every_byte_whatever_the_distance_of_rows() {
    for step in [
        1u16, 2, 15, 16, 17, 254, 255, 256, 509, 510, 511, 3000, 4080, 4081, 9000,
    ] {
        let rows = (65_000 / u32::from(step)).min(2000);
        let size = (rows + 1) * u32::from(step);
        let mut frames = Frames::new();
        frames.fde(0, size, &staircase(rows, step, |i| 16 + 8 * (i % 100)));
        let page = first_page(&frames);
        for pc in 0..=u16::MAX {
            let row = u32::from(pc) / u32::from(step);
            let expected = match row {
                _ if u32::from(pc) >= size => rule(CFA_NONE, 0),
                0 => rule(CFA_RSP, 8),
                _ => rule(CFA_RSP, 16 + 8 * ((row as i32 - 1) % 100)),
            };
            assert_eq!(lookup(&page, pc), Some(expected), "step {step} at {pc}");
        }
    }
}

#[test]
fn densest_page_stays_within_the_limits() {
    let mut frames = Frames::new();
    let code: Vec<u8> = (0..65_535u32)
        .flat_map(|i| [0x41, 0x0e, 16 + 8 * (i % 2) as u8])
        .collect();
    frames.fde(0, 65_536, &code);
    let page = first_page(&frames);
    let n_groups = usize::from(u16::from_le_bytes([page[8], page[9]]));
    assert_eq!(n_groups, MAX_GROUPS);
    assert!(page.len() < aiprof_common::POOL_CHUNK);
    assert_eq!(lookup(&page, 65_535), Some(rule(CFA_RSP, 16)));
    assert_eq!(lookup(&page, 65_534), Some(rule(CFA_RSP, 24)));
}

#[test]
fn equal_neighbours_are_one_row() {
    let mut frames = Frames::new();
    for i in 0..1000 {
        frames.fde(i * 16, 16, &[]);
    }
    // One row for the functions, one for the text after them.
    assert_eq!(first_page(&frames).len(), 32 + 2 * 8 + 2 * GROUP_BYTES);
}

#[test]
fn rules_beyond_the_limit_become_unsupported() {
    let mut frames = Frames::new();
    frames.fde(0, 16 * 401, &staircase(400, 16, |i| 16 + 8 * i));
    let page = first_page(&frames);
    assert_eq!(
        usize::from(u16::from_le_bytes([page[10], page[11]])),
        MAX_PAGE_RULES
    );
    for row in 1..=400u16 {
        let expected = match i32::from(row) {
            n if n < 255 => rule(CFA_RSP, 8 + 8 * n),
            _ => rule(CFA_UNSUPPORTED, 0),
        };
        assert_eq!(lookup(&page, 16 * row), Some(expected), "row {row}");
    }
}

/// A page of old libraries begins with tables whose bytes make sense as code.
#[test]
fn what_only_looks_like_code_takes_no_place_from_rules_that_are_stated() {
    let mut frames = Frames::new();
    frames.fde(0x8000, 16 * 101, &staircase(100, 16, |i| 4000 + 8 * i));
    let mut file = frames.elf(1 << 16);
    // push %rax, many times; add, ret.
    let mut code = vec![0x50; 400];
    code.extend([0x48, 0x81, 0xc4, 0x80, 0x0c, 0, 0, 0xc3]);
    put(&mut file, TEXT_OFFSET + 0x1000, &code);
    put(&mut file, TEXT_OFFSET + (1 << 16), &[]);
    let file = UnwindFile::open(file).unwrap();
    let mut page = Vec::new();
    assert_eq!(file.page(0, &mut page).unwrap(), PageContent::Table);
    for row in 1..=100u16 {
        let expected = rule(CFA_RSP, 4000 + 8 * (i32::from(row) - 1));
        assert_eq!(
            lookup(&page, 0x8000 + 16 * row),
            Some(expected),
            "row {row}"
        );
    }
    let derived = Rule {
        rbp: RBP_DERIVED,
        ..rule(CFA_RSP, 16)
    };
    assert_eq!(lookup(&page, 0x1001), Some(derived));
    assert_eq!(lookup(&page, 0x1000 + 400), Some(rule(CFA_UNSUPPORTED, 0)));
}

#[test]
fn lookup_of_bytes_that_are_no_page_is_none() {
    let mut frames = Frames::new();
    frames.fde(0, 300, &[0x42, 0x0e, 16]);
    let page = first_page(&frames);
    for len in 0..page.len() {
        // Never a rule from beyond the bytes; what is found must be right.
        let found = lookup(&page[..len], 0);
        assert!(found.is_none(), "{len} bytes");
    }
    let mut no_groups = page.clone();
    no_groups[8] = 0;
    assert_eq!(lookup(&no_groups, 0), None);
    let mut wild = page;
    wild[16..20].fill(0xff);
    assert_eq!(lookup(&wild, 0), None);
    assert_eq!(
        rule_at(&UnwindFile::open(frames.elf(1 << 16)).unwrap(), TEXT),
        rule(CFA_RSP, 8)
    );
}
