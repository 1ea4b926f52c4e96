//! Compares the table of a small Go program, if Go is installed, with its DWARF, as read by
//! binutils and gimli.

use super::{GoReader, GoTable};
use crate::elf::CodeFile;
use crate::unwind::{PageContent, UnwindFile, lookup};
use aiprof_common::{
    CFA_END, CFA_GO, CFA_RSP, CFA_SIGNAL, CFA_UNSUPPORTED, GO_PAGE_AFTER, GO_PAGE_BEFORE,
    GO_PAGE_FLAGS, GO_PAGE_SAME, PAGE_SIZE,
};
use gimli::{DebugFrame, LittleEndian, UnwindContext, UnwindSection};
use object::{Object as _, ObjectSection as _};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

const SOURCE: &str = r#"
package main

import (
	"fmt"
	"strings"
)

func inlined(n int) int { return n*n + 3 }

//go:noinline
func outer(n int) int { return inlined(n) + len(strings.Repeat("x", n)) }

func main() { fmt.Println(outer(4)) }
"#;

/// Compiles the program; `None`: Go is not installed.
fn build(dir: &Path, flags: &[&str]) -> Option<Vec<u8>> {
    let (source, program) = (dir.join("main.go"), dir.join("program"));
    std::fs::write(&source, SOURCE).unwrap();
    let done = Command::new("go")
        .args(["build", "-ldflags=-compressdwarf=false", "-o"])
        .arg(&program)
        .args(flags)
        .arg(&source)
        .env("GOCACHE", dir.join("cache"))
        .env("GOFLAGS", "-mod=mod")
        .status();
    match done {
        Ok(status) if status.success() => Some(std::fs::read(program).unwrap()),
        result => {
            eprintln!("skipped: go: {result:?}");
            None
        }
    }
}

fn table(data: &[u8]) -> GoTable {
    let elf = CodeFile::read(&data).unwrap();
    GoTable::find(&data, &elf).unwrap().expect("a table")
}

/// The functions at addresses with their lines, innermost first, by binutils.
fn by_addr2line(program: &Path, addresses: &[u64]) -> Vec<Vec<(String, u32)>> {
    let mut child = Command::new("addr2line")
        .args(["-a", "-f", "-i", "-e"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input: String = addresses.iter().map(|at| format!("{at:#x}\n")).collect();
    let mut to = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || to.write_all(input.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap().stdout;
    writer.join().unwrap();
    let mut found: Vec<Vec<(String, u32)>> = Vec::new();
    let text = String::from_utf8(output).unwrap();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            found.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap_or_default();
        let number = place.rsplit(':').next().unwrap_or_default();
        let number = number.split(' ').next().unwrap_or_default().parse();
        let last = found.last_mut().unwrap();
        last.push((line.to_owned(), number.unwrap_or(0)));
    }
    found
}

#[test]
fn names_lines_and_inlined_calls_are_those_of_dwarf() {
    let dir = tempfile::tempdir().unwrap();
    let Some(data) = build(dir.path(), &[]) else {
        return;
    };
    let table = table(&data);
    let source = data.as_slice();
    let mut reader = GoReader::new(&source, &table);
    let mut addresses = Vec::new();
    for index in 0..table.len() {
        let function = reader.function(index).unwrap().unwrap();
        let name = reader.name(&function).unwrap();
        let depths = reader.values(&function, function.pcsp).unwrap();
        // Padding belongs to no function in DWARF; assembly has no lines of its own.
        let end = depths.and_then(|d| d.last().map(|(code, _)| code.end));
        if ["main.", "strings.", "fmt."]
            .iter()
            .any(|package| name.starts_with(package))
        {
            addresses.extend((function.start..end.unwrap_or(0)).step_by(3));
        }
    }
    let expected = by_addr2line(&dir.path().join("program"), &addresses);
    let (mut same, mut inlined) = (0, 0);
    let mut other = BTreeSet::new();
    for (&at, expected) in addresses.iter().zip(&expected) {
        let frames = reader.frames(at, true).unwrap();
        let frames = frames.into_iter().rev().map(|frame| {
            let line = frame.source.map_or(0, |(_, line)| line);
            (frame.name, line)
        });
        let frames: Vec<(String, u32)> = frames.collect();
        inlined += usize::from(frames.len() > 1);
        // binutils give the innermost of several functions the name of the outermost, if
        // the symbol is of that name.
        let names = |list: &[(String, u32)]| -> Vec<String> {
            let known = usize::from(list.len() > 1);
            list.iter()
                .skip(known)
                .map(|(name, _)| name.clone())
                .collect()
        };
        let lines =
            |list: &[(String, u32)]| -> Vec<u32> { list.iter().map(|(_, line)| *line).collect() };
        match names(&frames) == names(expected) && lines(&frames) == lines(expected) {
            true => same += 1,
            false => drop(other.insert(format!("{at:#x} {frames:?} {expected:?}"))),
        }
    }
    let n = addresses.len();
    let some: Vec<_> = other.iter().take(5).collect();
    assert!(
        n > 10_000 && same * 1000 >= n * 995,
        "{same} of {n}: {some:#?}"
    );
    assert!(inlined * 20 > n, "{inlined} of {n} inlined");
}

/// CFA less the stack pointer that `.debug_frame` gives at the first byte of each row.
fn by_debug_frame(data: &[u8]) -> BTreeMap<u64, i64> {
    let file = object::File::parse(data).unwrap();
    let section = file.section_by_name(".debug_frame").unwrap();
    let bytes = section.data().unwrap();
    let mut frames = DebugFrame::new(bytes, LittleEndian);
    frames.set_address_size(8);
    let bases = gimli::BaseAddresses::default();
    let mut entries = frames.entries(&bases);
    let mut context = UnwindContext::new();
    let mut found = BTreeMap::new();
    while let Some(entry) = entries.next().unwrap() {
        let gimli::CieOrFde::Fde(fde) = entry else {
            continue;
        };
        let fde = fde.parse(DebugFrame::cie_from_offset).unwrap();
        let mut rows = fde.rows(&frames, &bases, &mut context).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            let gimli::CfaRule::RegisterAndOffset { register, offset } = row.cfa() else {
                continue;
            };
            assert_eq!(register.0, 7);
            found.insert(row.start_address(), *offset);
        }
    }
    found
}

/// The rule at an address.
fn rule_at(
    file: &UnwindFile<&[u8]>,
    pages: &mut BTreeMap<u32, Vec<u8>>,
    at: u64,
) -> Option<aiprof_common::Rule> {
    let index = u32::try_from((at - file.first_page_vaddr()) / PAGE_SIZE).unwrap();
    let page = pages.entry(index).or_insert_with(|| {
        let mut out = Vec::new();
        let content = file.page(index, &mut out).unwrap();
        assert_eq!(content, PageContent::Table);
        out
    });
    lookup(page, (at % PAGE_SIZE) as u16)
}

#[test]
fn stack_depths_are_those_of_debug_frame() {
    for flags in [&[][..], &["-buildmode=pie"]] {
        let dir = tempfile::tempdir().unwrap();
        let Some(data) = build(dir.path(), flags) else {
            return;
        };
        let file = UnwindFile::open(data.as_slice()).unwrap();
        assert!(file.has_unwind_data());
        let mut pages = BTreeMap::new();
        let mut kinds = BTreeMap::new();
        for (at, cfa) in by_debug_frame(&data) {
            let rule = rule_at(&file, &mut pages, at).unwrap();
            *kinds.entry(rule.kind).or_insert(0) += 1;
            if rule.kind == CFA_RSP {
                assert_eq!(i64::from(rule.cfa_off), cfa, "{at:#x}");
            }
        }
        let n: usize = kinds.values().sum();
        let plain = kinds.get(&CFA_RSP).copied().unwrap_or(0);
        assert!(n > 5_000 && plain * 100 >= n * 98, "{kinds:?}");
        assert!(
            kinds.contains_key(&CFA_GO) && kinds.contains_key(&CFA_END),
            "{kinds:?}"
        );
        assert_eq!(file.malformed(), 0);
    }
}

/// In a library, rules lead to a word that the loader fills in with an offset from the fs base.
#[test]
fn a_library_s_goroutine_is_where_its_relocation_is() {
    use object::{Object as _, RelocationFlags};
    const R_X86_64_TPOFF64: object::elf::RelocationType = object::elf::RelocationType(18);
    let dir = tempfile::tempdir().unwrap();
    let Some(data) = build(dir.path(), &["-buildmode=c-shared"]) else {
        return;
    };
    let object = object::File::parse(&*data).unwrap();
    let words: BTreeSet<u64> = object
        .dynamic_relocations()
        .unwrap()
        .filter(|(_, r)| matches!(r.flags(), RelocationFlags::Elf { r_type } if r_type == R_X86_64_TPOFF64))
        .map(|(at, _)| at)
        .collect();
    let table = table(&data);
    let source = data.as_slice();
    let elf = CodeFile::read(&source).unwrap();
    let mut reader = GoReader::new(&source, &table);
    let file = UnwindFile::open(source).unwrap();
    let mut pages = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for index in 0..table.len() {
        let function = reader.function(index).unwrap().unwrap();
        let name = reader.name(&function).unwrap();
        let name = name
            .trim_end_matches(".abi0")
            .trim_start_matches("runtime.");
        if !["systemstack", "cgocallback", "morestack", "nanotime1"].contains(&name) {
            continue;
        }
        for at in function.start..function.end {
            let Some(rule) = rule_at(&file, &mut pages, at).filter(|rule| rule.kind == CFA_GO)
            else {
                continue;
            };
            let pages = match rule.rbp & GO_PAGE_FLAGS {
                GO_PAGE_BEFORE => at - PAGE_SIZE,
                GO_PAGE_SAME => at,
                GO_PAGE_AFTER => at + PAGE_SIZE,
                _ => panic!("{name} at {at:#x}: {rule:?}"),
            };
            let by = (pages & !(PAGE_SIZE - 1)) + u64::from(rule.rbp_off.cast_unsigned());
            let from = elf.loaded_from(by).unwrap().offset as usize;
            let distance = i32::from_le_bytes(data[from..from + 4].try_into().unwrap());
            let word = (by + 4).wrapping_add_signed(distance.into());
            assert!(words.contains(&word), "{name} at {at:#x}: {word:#x}");
            seen.insert(name.to_owned());
        }
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[test]
fn what_the_runtime_does_to_stacks_is_found_in_its_code() {
    let dir = tempfile::tempdir().unwrap();
    let Some(data) = build(dir.path(), &[]) else {
        return;
    };
    let table = table(&data);
    let source = data.as_slice();
    let mut reader = GoReader::new(&source, &table);
    let file = UnwindFile::open(source).unwrap();
    let mut pages = BTreeMap::new();
    let mut kinds: BTreeMap<String, BTreeSet<u8>> = BTreeMap::new();
    for index in 0..table.len() {
        let function = reader.function(index).unwrap().unwrap();
        let name = reader.name(&function).unwrap();
        let depths = reader.values(&function, function.pcsp).unwrap();
        let end = depths.and_then(|d| d.last().map(|(code, _)| code.end));
        let found = kinds.entry(name).or_default();
        for at in function.start..end.unwrap_or(function.end) {
            found.extend(rule_at(&file, &mut pages, at).map(|rule| rule.kind));
        }
    }
    for (name, expected) in [
        ("runtime.systemstack", &[CFA_RSP, CFA_GO][..]),
        ("runtime.morestack", &[CFA_RSP, CFA_GO]),
        ("runtime.mcall", &[CFA_END, CFA_RSP, CFA_UNSUPPORTED]),
        ("runtime.mstart", &[CFA_END, CFA_RSP]),
        ("runtime.rt0_go", &[CFA_END, CFA_RSP, CFA_UNSUPPORTED]),
        ("runtime.nanotime1", &[CFA_RSP, CFA_GO]),
        ("time.now", &[CFA_RSP, CFA_GO]),
        ("runtime.newstack", &[CFA_END, CFA_RSP]),
        ("runtime.asyncPreempt", &[CFA_GO]),
        ("runtime.sigpanic", &[CFA_GO]),
        ("runtime.goexit", &[CFA_END]),
        ("main.main", &[CFA_RSP]),
    ] {
        let found: Vec<u8> = kinds[name].iter().copied().collect();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected, "{name}");
    }
    let restorer = kinds
        .iter()
        .find(|(name, _)| name.starts_with("runtime.sigreturn"));
    assert_eq!(
        restorer.map(|(_, kinds)| kinds.contains(&CFA_SIGNAL)),
        Some(true)
    );
}

#[test]
fn small_tables_of_each_kind() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds/go_table");
    for name in ["go1.16", "go1.18", "go1.20"] {
        let data = std::fs::read(seeds.join(name)).unwrap();
        let span = crate::elf::FileSpan {
            offset: 0,
            vaddr: 0x50_0000,
            size: data.len() as u64,
        };
        let table = GoTable::parse(&data, span).unwrap();
        let source = data.as_slice();
        let mut reader = GoReader::new(&source, &table);
        assert_eq!(reader.range().unwrap(), Some(0x40_1000..0x40_1080));
        let frames = reader.frames(0x40_1041, true).unwrap();
        assert_eq!(frames[0].name, "main.work");
        assert_eq!(frames[0].source, Some(("main.go".to_owned(), 3)));
        let function = reader.function(1).unwrap().unwrap();
        let depths = reader.values(&function, function.pcsp).unwrap().unwrap();
        let at = |offset: u64| 0x40_1040 + offset;
        assert_eq!(
            depths,
            [
                (at(0)..at(4), 0),
                (at(4)..at(8), 8),
                (at(8)..at(58), 32),
                (at(58)..at(64), 0)
            ]
        );
        for cut in 0..data.len() {
            super::fuzz_go_table(&data[..cut]);
        }
        for i in 0..20_000u32 {
            let mut data = data.clone();
            let at = (i.wrapping_mul(2_654_435_761) >> 8) as usize % data.len();
            data[at] = (i >> 5) as u8;
            super::fuzz_go_table(&data);
        }
    }
}
