//! ELF headers, the forms of `.eh_frame` and of its index.

use super::build::{
    ENTRY, Frames, PCREL_SDATA4, PT_LOAD, PT_NOTE, Segment, TEXT, TEXT_OFFSET, elf_header, put,
};
use super::*;
use crate::unwind::{TextSegment, UnwindError};
use aiprof_common::{CFA_RSP, CFA_UNSUPPORTED};

fn open(bytes: Vec<u8>) -> UnwindFile<Vec<u8>> {
    UnwindFile::open(bytes).unwrap()
}

#[test]
fn text_pages_and_addresses() {
    let file = open(elf_header(&[
        Segment::new(PT_LOAD, 5, 0x5_2340, 0x9_1340, 0x2_0000),
        Segment::new(PT_LOAD, 4, 0, 0, 0x1000),
        Segment::new(PT_LOAD, 5, 0x1_0010, 0x1_f010, 0x20),
    ]));
    let first = TextSegment {
        file_offset: 0x1_0010,
        vaddr: 0x1_f010,
        size: 0x20,
    };
    let second = TextSegment {
        file_offset: 0x5_2340,
        vaddr: 0x9_1340,
        size: 0x2_0000,
    };
    assert_eq!(file.text(), &[first, second]);
    assert_eq!(file.first_page_vaddr(), 0x1_0000);
    assert_eq!(file.n_pages(), 11); // 0x1_0000 up to 0xb_1340
    assert_eq!(file.vaddr_of(0x1_0010), Some(0x1_f010));
    assert_eq!(file.vaddr_of(0x7_233f), Some(0xb_133f));
    // Mapped along with the segments.
    assert_eq!(file.vaddr_of(0x1_0000), Some(0x1_f000));
    assert_eq!(file.vaddr_of(0x5_2000), Some(0x9_1000));
    assert_eq!(file.vaddr_of(0x5_1fff), None);
    assert_eq!(file.vaddr_of(u64::MAX), None);

    let mut page = vec![1];
    assert_eq!(file.page(10, &mut page).unwrap(), PageContent::NoData);
    assert!(page.is_empty());
    assert!(matches!(
        file.page(11, &mut page),
        Err(UnwindError::NoSuchPage(11))
    ));
}

#[test]
fn file_without_text_has_no_pages() {
    let file = open(elf_header(&[]));
    assert_eq!((file.n_pages(), file.text().len()), (0, 0));
    assert!(matches!(
        file.page(0, &mut Vec::new()),
        Err(UnwindError::NoSuchPage(0))
    ));
}

#[test]
fn build_id_is_found_among_other_notes() {
    let mut notes = Vec::new();
    for (name, kind, description) in [
        (&b"stapsdt\0"[..], 3u32, &[9u8; 5][..]),
        (b"GNU\0", 1, &[8; 4]),
        (b"GNU\0", 3, &[7; 20]),
    ] {
        notes.extend((name.len() as u32).to_le_bytes());
        notes.extend((description.len() as u32).to_le_bytes());
        notes.extend(kind.to_le_bytes());
        notes.extend(name);
        notes.extend(description);
        notes.resize(notes.len().next_multiple_of(4), 0);
    }
    let mut file = elf_header(&[Segment::new(PT_NOTE, 4, 0x200, 0x200, notes.len() as u64)]);
    assert_eq!(open(file.clone()).build_id(), None);
    put(&mut file, 0x200, &notes);
    assert_eq!(open(file).build_id().unwrap().as_bytes(), &[7; 20]);
}

#[test]
fn other_files_are_refused_with_the_reason() {
    let elf = elf_header(&[]);
    let with = |at: u64, bytes: &[u8]| {
        let mut elf = elf.clone();
        put(&mut elf, at, bytes);
        UnwindFile::open(elf)
    };
    assert!(matches!(
        UnwindFile::open(&b"#!/bin/sh\n"[..]),
        Err(UnwindError::NotElf)
    ));
    assert!(matches!(
        UnwindFile::open(&b""[..]),
        Err(UnwindError::NotElf)
    ));
    assert!(matches!(
        UnwindFile::open(&elf[..63]),
        Err(UnwindError::Truncated(_))
    ));
    assert!(matches!(
        with(18, &[183, 0]),
        Err(UnwindError::UnsupportedMachine(183))
    ));
    assert!(matches!(
        with(4, &[1]),
        Err(UnwindError::UnsupportedMachine(62))
    ));
    assert!(matches!(
        with(5, &[2]),
        Err(UnwindError::UnsupportedMachine(_))
    ));
    assert!(matches!(with(56, &[3, 0]), Err(UnwindError::Truncated(_))));
    assert!(matches!(
        with(56, &[0xff, 0xff]),
        Err(UnwindError::TooLarge(_))
    ));
    assert!(matches!(
        with(54, &[57, 0, 1, 0]),
        Err(UnwindError::Malformed(_))
    ));
}

#[test]
fn text_must_fit_a_directory() {
    let with_size = |size| UnwindFile::open(elf_header(&[Segment::new(PT_LOAD, 5, 0, 0, size)]));
    // 256 KiB less 8 bytes of header, 4 bytes a page.
    assert_eq!(with_size(65_534 << 16).unwrap().n_pages(), 65_534);
    assert!(matches!(
        with_size((65_534 << 16) + 1),
        Err(UnwindError::TooLarge(_))
    ));
    assert!(matches!(with_size(u64::MAX), Err(UnwindError::TooLarge(_))));
    let wraps = elf_header(&[Segment::new(PT_LOAD, 5, 0, 2, u64::MAX)]);
    assert!(matches!(
        UnwindFile::open(wraps),
        Err(UnwindError::Malformed(_))
    ));
}

/// Two functions, an empty FDE and a terminator between them.
fn two_functions(wide: bool) -> Frames {
    let mut frames = Frames::default();
    if wide {
        frames.use_64_bit_lengths();
    }
    frames.cie("zR", &[PCREL_SDATA4], ENTRY);
    frames.fde(0x2_0000, 0x100, &[0x0e, 16]);
    frames.fde(0x50, 0, &[0x0e, 24]);
    frames.terminator();
    frames.fde(0x20, 0x40, &[0x0e, 32]);
    frames
}

fn check_two_functions(bytes: Vec<u8>) {
    let file = open(bytes);

    for (offset, expected) in [
        (0x1f, rule(CFA_NONE, 0)),
        (0x20, rule(CFA_RSP, 32)),
        (0x5f, rule(CFA_RSP, 32)),
        (0x60, rule(CFA_NONE, 0)),
        (0x1_0000, rule(CFA_NONE, 0)),
        (0x2_0000, rule(CFA_RSP, 16)),
        (0x2_00ff, rule(CFA_RSP, 16)),
        (0x2_0100, rule(CFA_NONE, 0)),
    ] {
        assert_eq!(rule_at(&file, TEXT + offset), expected, "at {offset:#x}");
    }
}

#[test]
fn search_table_section_and_bare_pointer_lead_to_the_same_rules() {
    for wide in [false, true] {
        let frames = two_functions(wide);
        check_two_functions(frames.elf(0x3_0000));
        check_two_functions(frames.elf_with_sections(0x3_0000));
        // Only a pointer to .eh_frame: no count, no table.
        let mut hdr = vec![1, PCREL_SDATA4, 0xff, 0xff];
        hdr.extend((0x10_0000u32 - 0x1004).to_le_bytes());
        check_two_functions(frames.elf_with_hdr(0x3_0000, &hdr));
        // A table of 8-byte numbers.
        let mut hdr = vec![1, PCREL_SDATA4, 0x04, 0x3c];
        hdr.extend((0x10_0000u32 - 0x1004).to_le_bytes());
        hdr.extend(3u64.to_le_bytes());
        let mut fdes = frames.fdes.clone();
        fdes.sort();
        for (start, fde) in fdes {
            hdr.extend((start - 0x1000).to_le_bytes());
            hdr.extend((0x10_0000 + fde - 0x1000).to_le_bytes());
        }
        check_two_functions(frames.elf_with_hdr(0x3_0000, &hdr));
    }
}

#[test]
fn file_without_eh_frame_has_no_data() {
    let frames = Frames::default();
    for bytes in [
        frames.elf_with_sections(1 << 16),
        frames.elf_with_hdr(1 << 16, &[9, 0, 0, 0]),
    ] {
        let file = open(bytes);

        assert_eq!(file.page(0, &mut Vec::new()).unwrap(), PageContent::NoData);
        assert_eq!(file.vaddr_of(TEXT_OFFSET + 1), Some(TEXT + 1));
    }
}

/// The rule for a function whose addresses have this encoding, written by `write`.
fn rule_with_encoding(encoding: u8, write: impl Fn(u64) -> Vec<u8>) -> Rule {
    let mut frames = Frames::default();
    frames.cie("zR", &[encoding], ENTRY);
    frames.raw_fde(0, TEXT + 0x100, |field| {
        let mut body = write(field);
        body.push(0);
        body
    });
    rule_at(&open(frames.elf(1 << 16)), TEXT + 0x108)
}

#[test]
fn pointer_encodings() {
    let start = TEXT + 0x100;
    let size = 0x10u64;
    let eight = |a: u64, b: u64| [a.to_le_bytes(), b.to_le_bytes()].concat();
    let four = |a: u64, b: u64| [(a as u32).to_le_bytes(), (b as u32).to_le_bytes()].concat();
    let good = rule(CFA_RSP, 8);
    assert_eq!(rule_with_encoding(0x00, |_| eight(start, size)), good);
    assert_eq!(rule_with_encoding(0x03, |_| four(start, size)), good);
    assert_eq!(rule_with_encoding(0x0b, |_| four(start, size)), good);
    assert_eq!(
        rule_with_encoding(0x1b, |f| four(start.wrapping_sub(f), size)),
        good
    );
    assert_eq!(
        rule_with_encoding(0x1c, |f| eight(start.wrapping_sub(f), size)),
        good
    );
    assert_eq!(
        rule_with_encoding(0x10, |f| eight(start.wrapping_sub(f), size)),
        good
    );
    // uleb128: 0x4000_0100 in groups of seven bits.
    assert_eq!(
        rule_with_encoding(0x01, |_| vec![0x80, 0x82, 0x80, 0x80, 4, 0x10]),
        good
    );
    // Known only at run time (indirect), or written by no linker for code.
    let refused = rule(CFA_UNSUPPORTED, 0);
    for encoding in [0x9b, 0x2b, 0x3b, 0x4b, 0x50, 0x05, 0xff] {
        assert_eq!(
            rule_with_encoding(encoding, |_| eight(start, size)),
            refused,
            "{encoding:x}"
        );
    }
}

#[test]
fn augmentations() {
    for (augmentation, data, expected) in [
        ("zR", &[PCREL_SDATA4][..], rule(CFA_RSP, 8)),
        (
            "zPLR",
            &[0x9b, 1, 2, 3, 4, PCREL_SDATA4, PCREL_SDATA4],
            rule(CFA_RSP, 8),
        ),
        ("zR", &[], rule(CFA_UNSUPPORTED, 0)),
        ("zRX", &[PCREL_SDATA4], rule(CFA_UNSUPPORTED, 0)),
        ("eh", &[], rule(CFA_UNSUPPORTED, 0)),
    ] {
        let mut frames = Frames::default();
        let cie = frames.cie(augmentation, data, ENTRY);
        frames.fde_of(cie, TEXT + 0x100, 0x10, &[]);
        let file = open(frames.elf(1 << 16));
        assert_eq!(rule_at(&file, TEXT + 0x100), expected, "{augmentation}");
    }
}

#[test]
fn entries_that_contradict_their_table_are_refused() {
    let mut frames = Frames::new();
    frames.fde(0x100, 0x40, &[]);
    frames.fde(0x200, 0x40, &[]);
    // The table has 0x180, the FDE 0x200.
    frames.fdes[1].0 = TEXT + 0x180;
    // An entry that points at a CIE.
    frames.fdes.push((TEXT + 0x300, 0));
    let file = open(frames.elf(1 << 16));
    assert_eq!(rule_at(&file, TEXT + 0x120), rule(CFA_RSP, 8));
    assert_eq!(rule_at(&file, TEXT + 0x150), rule(CFA_NONE, 0));
    assert_eq!(rule_at(&file, TEXT + 0x180), rule(CFA_UNSUPPORTED, 0));
    assert_eq!(rule_at(&file, TEXT + 0x300), rule(CFA_UNSUPPORTED, 0));
}

#[test]
fn empty_function_listed_in_place_of_the_real_one_does_not_hide_it() {
    // As lld does it where both have the same address.
    let mut frames = Frames::new();
    frames.fde(0x100, 0, &[]);
    frames.fde(0x100, 0x40, &[0x0e, 16]);
    frames.fde(0x8000, 0, &[]);
    frames.fde(0x8000, 0x1_0000, &[0x0e, 24]);
    frames.fdes.dedup_by_key(|fde| fde.0);
    assert_eq!(frames.fdes.len(), 2);
    let file = open(frames.elf(1 << 17));
    assert_eq!(rule_at(&file, TEXT + 0x13f), rule(CFA_RSP, 16));
    assert_eq!(rule_at(&file, TEXT + 0x140), rule(CFA_NONE, 0));
    assert_eq!(rule_at(&file, TEXT + 0x1_0000), rule(CFA_RSP, 24));
}
