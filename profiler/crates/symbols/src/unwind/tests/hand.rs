//! Call frame information assembled by hand, with the rules it states.

use super::build::{ENTRY, Frames, PCREL_SDATA4, TEXT};
use super::*;
use crate::unwind::rule::dereference;
use aiprof_common::{
    CFA_DEREF_RBP, CFA_DEREF_RSP, CFA_END, CFA_PLT, CFA_RBP, CFA_REG, CFA_RETURN, CFA_RSP,
    CFA_SIGNAL, CFA_UNSUPPORTED, RBP_AT_RBP, RBP_UNDEFINED,
};

/// Opens the file with these frames and 1 MiB of text.
fn open(frames: &Frames) -> UnwindFile<Vec<u8>> {
    UnwindFile::open(frames.elf(1 << 20)).unwrap()
}

/// Asserts the rules at offsets of the text.
fn check(frames: &Frames, expected: &[(u64, Rule)]) {
    let file = open(frames);
    for &(offset, rule) in expected {
        assert_eq!(rule_at(&file, TEXT + offset), rule, "at {offset:#x}");
    }
}

/// The rule of one FDE whose instructions are `code`.
fn rule_of_code(code: &[u8]) -> Rule {
    let mut frames = Frames::new();
    frames.fde(0x100, 0x10, code);
    rule_at(&open(&frames), TEXT + 0x108)
}

/// The rule of an FDE without instructions, of a CIE with `augmentation`.
fn rule_of_cie(augmentation: &str, code: &[u8]) -> Rule {
    let mut frames = Frames::default();
    let cie = frames.cie(augmentation, &[PCREL_SDATA4], code);
    frames.fde_of(cie, TEXT + 0x100, 0x10, &[]);
    rule_at(&open(&frames), TEXT + 0x108)
}

/// push %rbp; mov %rsp, %rbp; ...; leave; ret
const FRAME_POINTER: &[u8] = &[
    0x41, // advance 1
    0x0e, 16, // def_cfa_offset 16
    0x86, 2,    // offset rbp at CFA - 16
    0x43, // advance 3
    0x0d, 6, // def_cfa_register rbp
    0x02, 0x20, // advance 32
    0x0c, 7, 8,    // def_cfa rsp 8
    0xc6, // restore rbp
];

#[test]
fn frame_pointer_function_and_the_text_around_it() {
    let mut frames = Frames::new();
    frames.fde(0x100, 0x30, FRAME_POINTER);
    check(
        &frames,
        &[
            (0, rule(CFA_NONE, 0)),
            (0xff, rule(CFA_NONE, 0)),
            (0x100, rule(CFA_RSP, 8)),
            (0x101, rule_rbp(CFA_RSP, 16, -16)),
            (0x103, rule_rbp(CFA_RSP, 16, -16)),
            (0x104, rule_rbp(CFA_RBP, 16, -16)),
            (0x123, rule_rbp(CFA_RBP, 16, -16)),
            (0x124, rule(CFA_RSP, 8)),
            (0x12f, rule(CFA_RSP, 8)),
            (0x130, rule(CFA_NONE, 0)),
            (0xffff, rule(CFA_NONE, 0)),
            (0x1_0000, rule(CFA_NONE, 0)),
        ],
    );
}

#[test]
fn remember_and_restore_nest() {
    let code = [
        0x41, 0x0e, 16, 0x0a, // advance 1, def_cfa_offset 16, remember
        0x41, 0x0e, 24, 0x0a, // advance 1, def_cfa_offset 24, remember
        0x41, 0x0e, 32, // advance 1, def_cfa_offset 32
        0x41, 0x0b, // advance 1, restore
        0x41, 0x0b, // advance 1, restore
    ];
    let mut frames = Frames::new();
    frames.fde(0, 0x10, &code);
    let offsets = [8, 16, 24, 32, 24, 16, 16];
    let expected: Vec<_> = (0..).zip(offsets.map(|o| rule(CFA_RSP, o))).collect();
    check(&frames, &expected);
}

#[test]
fn function_over_three_pages_states_its_rule_at_each_page() {
    let code = [0x41, 0x0e, 16, 0x04, 0xff, 0xff, 1, 0, 0x0e, 24];
    let mut frames = Frames::new();
    frames.fde(0xfff0, 0x2_0000, &code);
    check(
        &frames,
        &[
            (0xffef, rule(CFA_NONE, 0)),
            (0xfff0, rule(CFA_RSP, 8)),
            (0xfff1, rule(CFA_RSP, 16)),
            (0x1_0000, rule(CFA_RSP, 16)),
            (0x1_8000, rule(CFA_RSP, 16)),
            (0x2_0000, rule(CFA_RSP, 16)),
            (0x2_ffef, rule(CFA_RSP, 16)),
            (0x2_fff0, rule(CFA_NONE, 0)),
            (0x3_0000, rule(CFA_NONE, 0)),
        ],
    );
    let mut page = Vec::new();
    assert_eq!(
        open(&frames).page(3, &mut page).unwrap(),
        PageContent::NoData
    );
    assert!(page.is_empty());
}

#[test]
fn neighbours_need_no_gap_and_overlaps_go_to_the_later_start() {
    let mut frames = Frames::new();
    frames.fde(0x000, 0x100, &[0x0e, 16]);
    frames.fde(0x100, 0x100, &[0x0e, 24]);
    frames.fde(0x180, 0x010, &[0x0e, 32]);
    frames.fde(0x185, 0x000, &[0x0e, 40]);
    check(
        &frames,
        &[
            (0x0ff, rule(CFA_RSP, 16)),
            (0x100, rule(CFA_RSP, 24)),
            (0x17f, rule(CFA_RSP, 24)),
            (0x180, rule(CFA_RSP, 32)),
            (0x185, rule(CFA_RSP, 32)),
            (0x190, rule(CFA_NONE, 0)),
        ],
    );
}

#[test]
fn empty_entries_before_a_page_do_not_hide_what_covers_it() {
    let mut frames = Frames::new();
    frames.fde(0, 0x2_0000, &[0x0e, 16]);
    for start in 0..5 {
        frames.fde(0x8000 + start, 0, &[0x0e, 24]);
    }
    check(
        &frames,
        &[(0x1_0000, rule(CFA_RSP, 16)), (0x9000, rule(CFA_RSP, 16))],
    );
}

#[test]
fn plt_expressions_keep_their_threshold() {
    // binutils: bfd/elfxx-x86.c, elf_x86_64_eh_frame_plt (11) and the forms for
    // entries that begin with endbr64.
    for threshold in [5u8, 9, 10, 11] {
        let expression = [
            0x77,
            8,
            0x80,
            0,
            0x3f,
            0x1a,
            0x30 + threshold,
            0x2a,
            0x33,
            0x24,
            0x22,
        ];
        let mut code = vec![
            0x0e, 16, // def_cfa_offset 16
            0x46, 0x0e, 24, // advance 6, def_cfa_offset 24
            0x4a, 0x0f, 11, // advance 10, def_cfa_expression
        ];
        code.extend(expression);
        let mut frames = Frames::new();
        frames.fde(0x20, 0x100, &code);
        check(
            &frames,
            &[
                (0x20, rule(CFA_RSP, 16)),
                (0x26, rule(CFA_RSP, 24)),
                (0x30, rule(CFA_PLT, i32::from(threshold))),
                (0x11f, rule(CFA_PLT, i32::from(threshold))),
            ],
        );
    }
    let shift_by_two = [
        0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x32, 0x24, 0x22,
    ];
    assert_eq!(rule_of_code(&shift_by_two), rule(CFA_UNSUPPORTED, 0));
}

/// A signed LEB128 number of two bytes.
fn sleb2(value: i64) -> [u8; 2] {
    [(value & 0x7f) as u8 | 0x80, (value >> 7 & 0x7f) as u8]
}

/// Instructions of a signal trampoline whose `ucontext` is at rsp + `uc`.
fn signal_code(uc: i64, rip: i64) -> Vec<u8> {
    let mut code = vec![0x0f, 4, 0x77]; // def_cfa_expression breg7 ...; deref
    code.extend(sleb2(uc + 160));
    code.push(0x06);
    for (register, offset) in [(6, uc + 120), (7, uc + 160), (16, rip)] {
        code.extend([0x10, register, 3, 0x77]); // expression: breg7 ...
        code.extend(sleb2(offset));
    }
    code
}

#[test]
fn signal_trampoline_is_recognised_only_with_the_kernels_layout() {
    assert_eq!(
        rule_of_cie("zRS", &signal_code(0, 168)),
        rule(CFA_SIGNAL, 0)
    );
    assert_eq!(
        rule_of_cie("zRS", &signal_code(8, 176)),
        rule(CFA_SIGNAL, 8)
    );
    assert_eq!(
        rule_of_cie("zRS", &signal_code(0, 176)),
        rule(CFA_UNSUPPORTED, 0)
    );
    assert_eq!(rule_of_cie("zRS", ENTRY), rule(CFA_UNSUPPORTED, 0));
    // The same rules without 'S' are no signal frame.
    assert_eq!(
        rule_of_cie("zR", &signal_code(0, 168)),
        rule(CFA_UNSUPPORTED, 0)
    );
}

#[test]
fn realigned_stack_dereferences_rbp() {
    // gcc: CFA = *(rbp - 8); the caller's rbp is at rbp + 0, which has no fixed
    // distance from the CFA.
    let code = [0x0f, 3, 0x76, 0x78, 0x06, 0x10, 6, 2, 0x76, 0];
    let expected = Rule {
        rbp: RBP_AT_RBP,
        ..rule(CFA_DEREF_RBP, dereference(-8, 0).unwrap())
    };
    assert_eq!(rule_of_code(&code), expected);
    assert_eq!(
        rule_of_code(&[0x0f, 3, 0x77, 0x10, 0x06]),
        rule(CFA_DEREF_RSP, 16)
    );
    // OpenSSL's assembly: CFA = *(rsp + 152) + 8.
    let added = rule_of_code(&[0x0f, 6, 0x77, 0x98, 0x01, 0x06, 0x23, 8]);
    assert_eq!(added, rule(CFA_DEREF_RSP, dereference(152, 8).unwrap()));
    assert_eq!(added.dereferenced(), (152, 8));
    // Before the prologue ends the CFA is r10.
    assert_eq!(rule_of_code(&[0x0c, 10, 0]), rule(CFA_REG + 10, 0));
    assert_eq!(rule_of_code(&[0x0c, 17, 0]), rule(CFA_UNSUPPORTED, 0));
}

#[test]
fn undefined_return_address_is_the_end() {
    assert_eq!(rule_of_code(&[0x07, 16]), rule(CFA_END, 0));
    assert_eq!(rule_of_cie("zR", &[0x0c, 7, 8, 0x07, 16]), rule(CFA_END, 0));
    // No rule at all is not the same as "undefined".
    assert_eq!(rule_of_cie("zR", &[0x0c, 7, 8]), rule(CFA_UNSUPPORTED, 0));
}

#[test]
fn every_form_of_saving_rbp() {
    let undefined = Rule {
        rbp: RBP_UNDEFINED,
        ..rule(CFA_RSP, 8)
    };
    for (code, expected) in [
        (&[0x86, 2][..], rule_rbp(CFA_RSP, 8, -16)),  // offset
        (&[0x05, 6, 2], rule_rbp(CFA_RSP, 8, -16)),   // offset_extended
        (&[0x11, 6, 0x7e], rule_rbp(CFA_RSP, 8, 16)), // offset_extended_sf -2
        (&[0x2f, 6, 2], rule_rbp(CFA_RSP, 8, 16)),    // negative_offset_extended
        (&[0x10, 6, 2, 0x77, 0x70], rule_rbp(CFA_RSP, 8, -24)), // expression breg7 -16
        (&[0x86, 2, 0x06, 6], rule(CFA_RSP, 8)),      // restore_extended
        (&[0x86, 2, 0x08, 6], rule(CFA_RSP, 8)),      // same_value
        (&[0x86, 2, 0x09, 6, 6], rule(CFA_RSP, 8)),   // register, itself
        (&[0x86, 2, 0x07, 6], undefined),             // undefined
        (&[0x09, 6, 3], undefined),                   // register, another
        (&[0x14, 6, 2], undefined),                   // val_offset
        (&[0x15, 6, 2], undefined),                   // val_offset_sf
        (&[0x16, 6, 2, 0x77, 0], undefined),          // val_expression
        (&[0x05, 6, 0x80, 0x80, 1], undefined),       // too far for the field
        (&[0x83, 2, 0x05, 12, 3, 0x2e, 64], rule(CFA_RSP, 8)), // rbx, r12, args_size
    ] {
        assert_eq!(rule_of_code(code), expected, "{code:x?}");
    }
}

#[test]
fn every_form_of_the_cfa() {
    for (code, expected) in [
        (&[0x12, 6, 0x7e][..], rule(CFA_RBP, 16)), // def_cfa_sf
        (&[0x13, 0x7e], rule(CFA_RSP, 16)),        // def_cfa_offset_sf
        (&[0x0f, 2, 0x77, 32], rule(CFA_RSP, 32)), // def_cfa_expression breg7
        (&[0x0f, 1, 0x9c], rule(CFA_UNSUPPORTED, 0)),
        (&[0x0f, 0], rule(CFA_UNSUPPORTED, 0)),
        // An offset that no rule can hold, a return address elsewhere, a caller's
        // rsp that is not the CFA.
        (
            &[0x0e, 0x80, 0x80, 0x80, 0x80, 0x08],
            rule(CFA_UNSUPPORTED, 0),
        ),
        (&[0x90, 2], rule(CFA_UNSUPPORTED, 0)),
        // In rcx, and in a register that is none.
        (&[0x09, 16, 2], rule(CFA_RETURN + 2, 8)),
        (&[0x09, 16, 17], rule(CFA_UNSUPPORTED, 0)),
        (&[0x87, 2], rule(CFA_UNSUPPORTED, 0)),
        (&[0x14, 7, 0], rule(CFA_RSP, 8)),
    ] {
        assert_eq!(rule_of_code(code), expected, "{code:x?}");
    }
}

/// glibc's `vfork`: pop %rdi; syscall; push %rdi.
#[test]
fn the_return_address_is_in_a_register_for_a_while() {
    let mut frames = Frames::new();
    let code = [0x41, 0x0e, 0, 0x09, 16, 5, 0x48, 0x0e, 8, 0x90, 1];
    frames.fde(0x100, 0x20, &code);
    check(
        &frames,
        &[
            (0x100, rule(CFA_RSP, 8)),
            (0x101, rule(CFA_RETURN + 5, 0)),
            (0x108, rule(CFA_RETURN + 5, 0)),
            (0x109, rule(CFA_RSP, 8)),
        ],
    );
}

/// GHC's `StgRun`: the CFA is its own stack pointer, the caller's is an expression.
#[test]
fn the_callers_stack_pointer_may_be_an_expression() {
    // def_cfa rsp 0; rbp at CFA + 32; return address at CFA + 56; rsp = breg7 64
    let code = [
        0x0c, 7, 0, 0x11, 6, 0x7c, 0x11, 16, 0x79, 0x16, 7, 3, 0x77, 0xc0, 0,
    ];
    assert_eq!(rule_of_code(&code), rule_rbp(CFA_RSP, 64, -32));
    // A return address that is not below it.
    let code = [0x0c, 7, 0, 0x11, 16, 0x7a, 0x16, 7, 3, 0x77, 0xc0, 0];
    assert_eq!(rule_of_code(&code), rule(CFA_UNSUPPORTED, 0));
}

#[test]
fn every_form_of_advancing() {
    let mut frames = Frames::new();
    frames.raw_fde(0, TEXT, |field| {
        let mut body = (TEXT.wrapping_sub(field) as u32).to_le_bytes().to_vec();
        body.extend(0x3_0000u32.to_le_bytes());
        body.push(0);
        body.extend([0x45, 0x0e, 16]); // advance 5
        body.extend([0x02, 0xf0, 0x0e, 24]); // advance1 240
        body.extend([0x03, 0, 0x10, 0x0e, 32]); // advance2 4096
        body.extend([0x04, 0, 0, 1, 0, 0x0e, 40]); // advance4 65536
        body.push(0x01); // set_loc, encoded as the FDE's address
        let at = field + body.len() as u64;
        body.extend(((TEXT + 0x2_0000).wrapping_sub(at) as u32).to_le_bytes());
        body.extend([0x0e, 48]);
        body
    });
    check(
        &frames,
        &[
            (0, rule(CFA_RSP, 8)),
            (5, rule(CFA_RSP, 16)),
            (244, rule(CFA_RSP, 16)),
            (245, rule(CFA_RSP, 24)),
            (245 + 4096, rule(CFA_RSP, 32)),
            (245 + 4096 + 65535, rule(CFA_RSP, 32)),
            (245 + 4096 + 65536, rule(CFA_RSP, 40)),
            (0x1_ffff, rule(CFA_RSP, 40)),
            (0x2_0000, rule(CFA_RSP, 48)),
        ],
    );
}

#[test]
fn malformed_instructions_refuse_the_rest_of_the_function_only() {
    for bad in [
        &[0x3f][..], // unknown opcode
        &[0x0b],     // restore_state without remember
        &[
            0x0e, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
        ], // over 64 bits
        &[0x0f, 9, 0x77, 8], // expression cut off
        &[0x01, 0, 0, 0, 0], // set_loc backwards
        &[0x0a; 100], // more states than are kept
        &[0x0f, 3, 0x77, 8, 0x06, 0x0e, 8], // offset of an expression
    ] {
        let code = [&[0x0e, 16, 0x44, 0x0e, 24, 0x44][..], bad].concat();
        let mut frames = Frames::new();
        frames.fde(0x100, 0x20, &code);
        frames.fde(0x200, 0x20, &[]);
        check(
            &frames,
            &[
                (0x100, rule(CFA_RSP, 16)),
                (0x104, rule(CFA_RSP, 24)),
                (0x108, rule(CFA_UNSUPPORTED, 0)),
                (0x11f, rule(CFA_UNSUPPORTED, 0)),
                (0x120, rule(CFA_NONE, 0)),
                (0x200, rule(CFA_RSP, 8)),
            ],
        );
    }
}

#[test]
fn rows_past_the_end_of_the_function_are_dropped() {
    let mut frames = Frames::new();
    frames.fde(0x100, 0x10, &[0x0e, 16, 0x60, 0x0e, 24]);
    check(
        &frames,
        &[
            (0x10f, rule(CFA_RSP, 16)),
            (0x110, rule(CFA_NONE, 0)),
            (0x121, rule(CFA_NONE, 0)),
        ],
    );
}
