//! Rules from instructions, against the compilers' own unwind data: for code that
//! has them they are the truth.

use super::super::{PageContent, UnwindFile, lookup};
use super::callee::rule_behind_call;
use super::explore::{Explorer, Start};
use super::text::CodeText;
use super::{KnownFunctions, rules};
use aiprof_common::{
    CFA_DEREF_RSP, CFA_END, CFA_KEPT, CFA_REG, CFA_RSP, CFA_UNSUPPORTED, PAGE_SIZE, Rule,
};
use std::fs::File;

/// How the instructions of a file compare with its unwind data.
#[derive(Debug, Default)]
struct Count {
    functions: usize,
    doubtful: usize,
    equal: usize,
    wrong: usize,
    unknown: usize,
    other: usize,
}

/// The tables of a file, page by page.
struct Tables {
    first: u64,
    pages: Vec<Vec<u8>>,
}

impl Tables {
    fn rule(&self, at: u64) -> Option<Rule> {
        let offset = at.checked_sub(self.first)?;
        let page = self.pages.get((offset / PAGE_SIZE) as usize)?;
        lookup(page, (offset % PAGE_SIZE) as u16)
    }
}

fn compare(path: &str) -> Option<Count> {
    let file = UnwindFile::open(File::open(path).ok()?).ok()?;
    let mut tables = Tables {
        first: file.first_page_vaddr(),
        pages: Vec::new(),
    };
    for index in 0..file.n_pages() {
        let mut out = Vec::new();
        let content = file.page(index, &mut out).unwrap();
        assert!(content == PageContent::Table || out.is_empty());
        tables.pages.push(out);
    }
    let data = std::fs::read(path).unwrap();
    let mut count = Count::default();
    for segment in file.text() {
        let from = segment.file_offset as usize;
        let bytes = &data[from..from + segment.size as usize];
        let text = CodeText::new(segment.vaddr, bytes);
        let mut at = segment.vaddr;
        let mut starts = Vec::new();
        while at < text.end() {
            match file.code_around(at).unwrap() {
                Some(code) => {
                    starts.push(code.start);
                    at = code.end.max(at + 1);
                }
                None => at += 1,
            }
        }
        let mut explorer = Explorer::new(text, usize::MAX);
        explorer.add_starts(&starts.iter().copied().collect());
        for &start in &starts {
            // Others are parts of functions, and PLTs.
            let first = tables.rule(start).unwrap_or_default();
            if (first.kind, first.cfa_off) != (CFA_RSP, 8) {
                continue;
            }
            count.functions += 1;
            let Some(function) = explorer.function(start, Start::Named) else {
                count.doubtful += 1;
                continue;
            };
            let of_function = |at: &u64| {
                let found = function.instructions.binary_search_by_key(at, |i| i.0);
                found.is_ok()
            };
            for (at, machine) in explorer.states.iter().filter(|(at, _)| of_function(at)) {
                let Some(rule) = tables.rule(*at) else {
                    continue;
                };
                match machine.agrees(&rule) {
                    None => count.other += 1,
                    Some(true) => count.equal += 1,
                    Some(false) if !machine.knows_cfa() => count.unknown += 1,
                    Some(false) => {
                        if count.wrong < 4 {
                            eprintln!("{path} {start:#x} {at:#x}: {rule:?} {machine:?}");
                        }
                        count.wrong += 1;
                    }
                }
            }
        }
    }
    Some(count)
}

/// Files that every machine with glibc has, and others if they are named.
#[test]
fn instructions_say_what_the_unwind_data_say() {
    let more = std::env::var("AIPROF_TEST_ELF_FILES").unwrap_or_default();
    let usual = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/lib64/ld-linux-x86-64.so.2",
        "/lib/x86_64-linux-gnu/libgcc_s.so.1",
    ];
    let mut all = Count::default();
    for path in usual.into_iter().chain(more.split_whitespace()) {
        let Some(count) = compare(path) else { continue };
        eprintln!("{path}: {count:?}");
        assert!(count.doubtful * 50 <= count.functions, "{path}: {count:?}");
        // Hand-written code whose unwind data are wrong, as glibc's mpn_mul_1.
        assert!(count.wrong * 500 <= count.equal, "{path}: {count:?}");
        all.equal += count.equal;
    }
    assert!(all.equal > 10_000, "{all:?}");
}

/// Lazy binding: the rule behind the call of `_dl_fixup`.
#[test]
fn a_register_of_the_caller_is_where_the_callee_pushed_it() {
    // push %rbp; mov %rsp, %rbp; push %r12; push %rbx
    let callee = CodeText::new(0x2000, &[0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x53, 0x90]);
    let by_rbx = Rule {
        kind: CFA_REG + 3,
        cfa_off: 32,
        ..Rule::default()
    };
    let rule = rule_behind_call(by_rbx, callee).unwrap();
    assert_eq!(rule.kind, CFA_DEREF_RSP);
    let (offset, added) = rule.dereferenced();
    assert_eq!((offset.cast_signed(), added), (-32, 32));
    // A register that is not saved.
    let by_r13 = Rule {
        kind: CFA_REG + 13,
        ..by_rbx
    };
    assert_eq!(rule_behind_call(by_r13, callee), None);
}

fn rules_of(code: &[u8], starts: &[u64]) -> Vec<(u64, u8, i32)> {
    let known = KnownFunctions {
        starts,
        likely: &[],
        borders: &[],
        all: false,
        entry: 0,
        frame: None,
    };
    let pieces = rules(CodeText::new(0x1000, code), known);
    let rows = pieces
        .iter()
        .map(|p| (p.start, p.rule.kind, p.rule.cfa_off));
    rows.collect()
}

#[test]
fn pushes_and_pops_are_followed_to_the_return() {
    // push %rbx; sub $16, %rsp; add $16, %rsp; pop %rbx; ret
    let code = [0x53, 0x48, 0x83, 0xec, 16, 0x48, 0x83, 0xc4, 16, 0x5b, 0xc3];
    let want = [
        (0x1000, CFA_RSP, 8),
        (0x1001, CFA_RSP, 16),
        (0x1005, CFA_RSP, 32),
        (0x1009, CFA_RSP, 16),
        (0x100a, CFA_RSP, 8),
    ];
    assert_eq!(rules_of(&code, &[]), want);
}

/// pop %rcx; nop; push %rcx; ret: in between, nothing on the stack shows who called.
#[test]
fn a_return_address_that_was_taken_off_the_stack_leads_nowhere() {
    let code = [0x59, 0x90, 0x51, 0xc3];
    let text = CodeText::new(0x1000, &code);
    let known = KnownFunctions {
        starts: &[0x1000],
        likely: &[],
        borders: &[],
        all: true,
        entry: 0,
        frame: None,
    };
    let at = |kind, cfa_off, start, end| super::RuledCode {
        start,
        end,
        rule: Rule {
            kind,
            cfa_off,
            ..Rule::default()
        },
    };
    let found = [
        at(CFA_RSP, 8, 0x1000, 0x1001),
        at(CFA_UNSUPPORTED, 0, 0x1001, 0x1003),
        at(CFA_RSP, 8, 0x1003, 0x1004),
    ];
    assert_eq!(rules(text, known), found);
}

#[test]
fn what_does_not_return_as_it_was_entered_is_no_function() {
    // pop %rbx; ret: the end of one.
    assert!(rules_of(&[0x5b, 0xc3], &[]).is_empty());
    // push %rbx; jmp *%rax: nothing shows that this began here.
    assert!(rules_of(&[0x53, 0xff, 0xe0], &[]).is_empty());
    // No code at all.
    assert!(rules_of(&[0x06; 64], &[0x1000]).is_empty());
    assert!(rules_of(&[], &[0x1000]).is_empty());
}

#[test]
fn an_aligned_stack_is_found_where_the_old_one_is_kept() {
    // mov %rsp, %rax; sub $64, %rsp; and $-64, %rsp; mov %rax, 24(%rsp); nop;
    // mov 24(%rsp), %rsp; ret
    let code = [
        0x48, 0x89, 0xe0, 0x48, 0x83, 0xec, 64, 0x48, 0x83, 0xe4, 0xc0, 0x48, 0x89, 0x44, 0x24, 24,
        0x31, 0xc0, 0x90, 0x48, 0x8b, 0x64, 0x24, 24, 0xc3,
    ];
    let rows = rules_of(&code, &[]);
    // After eax is cleared only the slot leads back: CFA = *(rsp + 24) + 8.
    let at_nop = rows.iter().rev().find(|(start, ..)| *start <= 0x1012);
    let rule = Rule {
        kind: CFA_DEREF_RSP,
        cfa_off: at_nop.unwrap().2,
        ..Rule::default()
    };
    assert_eq!(at_nop.unwrap().1, CFA_DEREF_RSP);
    assert_eq!(rule.dereferenced(), (24, 8));
    assert_eq!(rows.last(), Some(&(0x1018, CFA_RSP, 8)));
}

#[test]
fn any_bytes_are_survived() {
    let mut seed = 1u64;
    for _ in 0..300 {
        let mut byte = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as u8
        };
        let code: Vec<u8> = (0..2000).map(|_| byte()).collect();
        rules_of(&code, &[0x1000, 0x1003, 0x1100]);
    }
}

/// A function that does not return, with another behind its last call. What follows returns as it
/// was entered, but that shows nothing about the frames of the first.
#[test]
fn what_follows_a_call_proves_nothing_of_what_may_be_the_midst_of_a_function() {
    // A function before; then push %rbx; call; 1: call; call; test; jne 1b; call (exit).
    let mut code = vec![0xc3];
    code.push(0x53);
    for _ in 0..2 {
        code.extend([0xe8, 0, 1, 0, 0]);
    }
    let again = code.len();
    for _ in 0..2 {
        code.extend([0xe8, 0, 1, 0, 0]);
    }
    code.extend([0x85, 0xc0, 0x75, 0]);
    let back = again as i64 - code.len() as i64;
    *code.last_mut().unwrap() = back as u8;
    // jmp over to the last call, as compilers lay it out.
    code.extend([0xeb, 1, 0xc3]);
    let exit = code.len();
    code.extend([0xe8, 0, 1, 0, 0]);
    let end = code.len();
    // The next one: push %rbp; push %rbx; push %r12; call; pop; pop; pop; ret
    code.extend([
        0x55, 0x53, 0x41, 0x54, 0xe8, 0, 1, 0, 0, 0x41, 0x5c, 0x5b, 0x5d, 0xc3,
    ]);
    let known = KnownFunctions {
        starts: &[],
        likely: &[],
        borders: &[],
        all: false,
        entry: 0,
        frame: None,
    };
    let pieces = rules(CodeText::new(0x1000, &code), known);
    let rule = |at: usize| {
        let at = 0x1000 + at as u64;
        let piece = pieces.iter().find(|p| (p.start..p.end).contains(&at));
        piece.map(|p| (p.rule.kind, p.rule.cfa_off))
    };
    for at in [again, again + 5, exit] {
        let right = [None, Some((CFA_RSP, 16))];
        assert!(right.contains(&rule(at)), "{at:#x}: {pieces:x?}");
    }
    assert_eq!(rule(end), Some((CFA_RSP, 8)), "{pieces:x?}");
    assert_eq!(rule(end + 4), Some((CFA_RSP, 32)), "{pieces:x?}");
}

/// OpenSSL's ciphers: the caller's frame is found by rax, which its part leaves alone.
#[test]
fn a_register_that_the_callee_leaves_alone_is_known() {
    let by_rax = Rule {
        kind: CFA_REG,
        cfa_off: 8,
        ..Rule::default()
    };
    let kind = |code: &[u8]| rule_behind_call(by_rax, CodeText::new(0x2000, code)).map(|r| r.kind);
    // add %rcx, %rdx; je over the first ret; ret; ret
    let keeps = [0x48, 0x01, 0xca, 0x74, 1, 0xc3, 0xc3];
    assert_eq!(kind(&keeps), Some(CFA_KEPT));
    // Writes eax behind the first ret; calls; jumps elsewhere.
    assert_eq!(kind(&[0x74, 1, 0xc3, 0x31, 0xc0, 0xc3]), None);
    assert_eq!(kind(&[0xe8, 0, 0, 0, 0, 0xc3]), None);
    assert_eq!(kind(&[0xff, 0xe1]), None);
    assert_eq!(kind(&[0xeb, 0x80, 0xc3]), None);
}

/// A function that never returns, with a call before its last one, and another behind it.
#[test]
fn with_all_starts_known_a_function_need_not_return() {
    // push %rbx; call; mov %eax, %ebx; call
    let mut code = vec![0x53, 0xe8, 0, 1, 0, 0, 0x89, 0xc3, 0xe8, 0, 1, 0, 0];
    let next = code.len() as u64;
    // sub $24, %rsp; call
    code.extend([0x48, 0x83, 0xec, 24, 0xe8, 0, 1, 0, 0, 0x90]);
    let second = [0x1000 + next];
    let rule = |known: KnownFunctions<'_>, at: u64| {
        let pieces = rules(CodeText::new(0x1000, &code), known);
        let piece = pieces
            .iter()
            .find(|p| (p.start..p.end).contains(&(0x1000 + at)));
        piece.map(|p| (p.rule.kind, p.rule.cfa_off))
    };
    let all = KnownFunctions {
        starts: &[0x1000],
        likely: &second,
        borders: &[],
        all: true,
        entry: 0,
        frame: None,
    };
    assert_eq!(rule(all, 1), Some((CFA_RSP, 16)));
    assert_eq!(rule(all, 8), Some((CFA_RSP, 16)));
    assert_eq!(rule(all, next), Some((CFA_RSP, 8)));
    assert_eq!(rule(all, next + 4), Some((CFA_RSP, 32)));
    // A border ends what is known behind a call.
    let bordered = KnownFunctions {
        likely: &[],
        borders: &second,
        ..all
    };
    assert_eq!(rule(bordered, 8), Some((CFA_RSP, 16)));
    assert_eq!(rule(bordered, next + 4), None);
    // What may be a label is no start before it returns.
    let label = KnownFunctions {
        starts: &[],
        likely: &[0x1000 + 6],
        ..all
    };
    assert_eq!(rule(label, 8), None);
    // Where some starts are not known, nothing proves that it is one function.
    let some = KnownFunctions {
        likely: &[],
        all: false,
        ..all
    };
    assert_eq!(rule(some, 8), None);
}

/// A dynamic linker's first code: it calls, then jumps to the program. What follows in a program's
/// own first code is another function.
#[test]
fn first_code_goes_on_behind_calls_only_to_run_the_program() {
    // mov %rsp, %rdi; call; mov %rax, %r12; call; jmp *%r12
    let linker = [
        0x48, 0x89, 0xe7, 0xe8, 0, 1, 0, 0, 0x49, 0x89, 0xc4, 0xe8, 0, 1, 0, 0, 0x41, 0xff, 0xe4,
    ];
    // and $-16, %rsp; call; push %rbx; pop %rbx; ret
    let program = [0x48, 0x83, 0xe4, 0xf0, 0xe8, 0, 1, 0, 0, 0x53, 0x5b, 0xc3];
    let kinds = |code: &[u8], starts: &[u64]| {
        let known = KnownFunctions {
            starts,
            likely: &[],
            borders: &[],
            all: true,
            entry: 0x1000,
            frame: None,
        };
        let pieces = rules(CodeText::new(0x1000, code), known);
        let kinds = pieces.iter().map(|p| (p.start, p.end, p.rule.kind));
        kinds.collect::<Vec<_>>()
    };
    // The linker has a symbol behind its first call.
    for starts in [&[0x1000][..], &[0x1000, 0x1008]] {
        assert_eq!(kinds(&linker, starts), [(0x1000, 0x1013, CFA_END)]);
    }
    let found = kinds(&program, &[0x1000, 0x1009]);
    assert_eq!(found.first(), Some(&(0x1000, 0x1009, CFA_END)));
    assert_eq!(found.get(1), Some(&(0x1009, 0x100a, CFA_RSP)));
}

/// Haskell's functions use rbp for a stack of their own, and run in one frame.
#[test]
fn functions_that_share_a_frame_add_what_they_push() {
    // add $-24, %rbp; sub $8, %rsp; call; add $8, %rsp; jmp *(%rbp)
    let code = [
        0x48, 0x83, 0xc5, 0xe8, 0x48, 0x83, 0xec, 8, 0xe8, 0, 1, 0, 0, 0x48, 0x83, 0xc4, 8, 0xff,
        0x65, 0,
    ];
    let frame = Rule {
        kind: CFA_RSP,
        cfa_off: 16440,
        rbp_off: -48,
        rbp: 1,
    };
    let known = KnownFunctions {
        starts: &[0x1000],
        likely: &[],
        borders: &[],
        all: true,
        entry: 0,
        frame: Some(frame),
    };
    let pieces = rules(CodeText::new(0x1000, &code), known);
    let offsets: Vec<_> = pieces.iter().map(|p| (p.start, p.rule)).collect();
    let pushed = Rule {
        cfa_off: 16448,
        ..frame
    };
    assert_eq!(
        offsets,
        [(0x1000, frame), (0x1008, pushed), (0x1011, frame)]
    );
}
