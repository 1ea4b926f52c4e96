//! Modules that are cut off, damaged or made to be expensive: no panic, no hang, and
//! what can be read still is.

use super::tests::{module, zebin};
use super::*;
use std::time::{Duration, Instant};

/// Longest that any module may take in a build without optimization.
const LIMIT: Duration = Duration::from_secs(30);

/// Numbers by xorshift: the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

fn word(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// Where the header of each section is.
fn section_headers(bytes: &[u8]) -> Vec<usize> {
    let table = word(bytes, 40);
    let count = usize::from(u16::from_le_bytes([bytes[60], bytes[61]]));
    (0..count).map(|i| table + 64 * i).collect()
}

/// Where a section's bytes are.
fn section(bytes: &[u8], name: &str) -> std::ops::Range<usize> {
    let headers = section_headers(bytes);
    let names = headers[usize::from(u16::from_le_bytes([bytes[62], bytes[63]]))];
    let names = word(bytes, names + 24);
    for header in headers {
        let at = u32::from_le_bytes(bytes[header..header + 4].try_into().unwrap()) as usize;
        let found = bytes[names + at..].split(|b| *b == 0).next().unwrap();
        if found == name.as_bytes() {
            let start = word(bytes, header + 24);
            return start..start + word(bytes, header + 32);
        }
    }
    panic!("no {name}");
}

#[test]
fn every_truncation() {
    for name in ["bmg-lines", "pvc"] {
        let bytes = zebin(name);
        for len in 0..bytes.len() {
            fuzz_module(&bytes[..len]);
        }
    }
}

/// The same file with the table of sections and their names before them, so that a
/// file that is cut off still has both.
fn table_first(bytes: &[u8]) -> Vec<u8> {
    let headers = section_headers(bytes);
    let (size, names) = (headers.len() * 64, section(bytes, ".strtab"));
    let mut out = bytes[..64].to_vec();
    out[40..48].copy_from_slice(&64u64.to_le_bytes());
    out.extend(&bytes[headers[0]..headers[0] + size]);
    out.extend(&bytes[names.clone()]);
    let added = out.len() - 64;
    for at in section_headers(&out) {
        let old = word(&out, at + 24);
        let new = if old == names.start {
            64 + size
        } else {
            old + added
        };
        out[at + 24..at + 32].copy_from_slice(&(new as u64).to_le_bytes());
    }
    out.extend(&bytes[64..headers[0]]);
    out
}

#[test]
fn truncations_with_the_table_first() {
    let whole = table_first(&zebin("bmg-lines"));
    let module = Module::parse(&whole).unwrap();
    assert_eq!(module.problems, Problems::default());
    assert!(module.kernels.iter().all(DeviceFunction::has_lines));
    let mut kernels = std::collections::BTreeSet::new();
    for len in (0..whole.len()).step_by(11) {
        fuzz_module(&whole[..len]);
        kernels.extend(Module::parse(&whole[..len]).map(|m| m.kernels.len()).ok());
    }
    assert_eq!(kernels, (0..=5).collect());
}

/// A file that ends early but whose table of sections comes first loses what is
/// beyond its end only.
#[test]
fn what_is_before_the_end_is_read() {
    let whole = zebin("bmg");
    let headers = section_headers(&whole);
    let mut bytes = whole.clone();
    // The second section, a kernel, ends beyond the file.
    bytes[headers[2] + 32..headers[2] + 40].copy_from_slice(&(1u64 << 40).to_le_bytes());
    let module = Module::parse(&bytes).unwrap();
    assert_eq!((module.kernels.len(), module.problems.sections), (4, 1));
    for kernel in &module.kernels {
        assert!(kernel.has_lines());
    }
}

#[test]
fn damaged_bytes() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for name in ["bmg", "bmg-lines", "bmg-calls"] {
        let whole = zebin(name);
        let table = word(&whole, 40);
        for round in 0..320 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random.below(8) {
                // Half of the damage where it hurts: headers and debug sections.
                let at = match round % 4 {
                    0 => random.below(bytes.len()),
                    1 => table + random.below(bytes.len() - table),
                    2 => section(&whole, ".debug_info").start + random.below(2000),
                    _ => section(&whole, ".debug_line").start + random.below(800),
                };
                bytes[at] = match random.below(4) {
                    0 => 0xff,
                    1 => 0,
                    _ => random.below(256) as u8,
                };
            }
            fuzz_module(&bytes);
        }
    }
}

#[test]
fn wrong_section_headers() {
    let whole = zebin("bmg-lines");
    let size = whole.len() as u64;
    for header in section_headers(&whole) {
        // Name, type, flags, address, offset, size, link and info.
        for (field, width) in [
            (0, 4),
            (4, 4),
            (8, 8),
            (16, 8),
            (24, 8),
            (32, 8),
            (40, 4),
            (44, 4),
        ] {
            for value in [0, 7, size - 1, size + 1, u64::MAX] {
                let mut bytes = whole.clone();
                let value = value.to_le_bytes();
                bytes[header + field..header + field + width].copy_from_slice(&value[..width]);
                fuzz_module(&bytes);
            }
        }
    }
    for at in [40, 58, 60, 62] {
        for value in [0u16, 1, 63, 64, 0xff00, 0xffff] {
            let mut bytes = whole.clone();
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
            fuzz_module(&bytes);
        }
    }
}

/// A zebin with the given sections; code sections have `code` bytes.
fn made(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let mut names = vec![0u8];
    let mut headers = vec![0u8; 64];
    let mut body = vec![0u8; 64];
    for (name, bytes) in sections.iter().copied().chain([(".strtab", &[][..])]) {
        let at = names.len() as u32;
        names.extend(name.as_bytes());
        names.push(0);
        let bytes = if name == ".strtab" {
            names.as_slice()
        } else {
            bytes
        };
        let kind: u32 = if name == ".strtab" { 3 } else { 1 };
        for half in [at, kind] {
            headers.extend(half.to_le_bytes());
        }
        for long in [0, 0, body.len() as u64, bytes.len() as u64, 0, 1, 0] {
            headers.extend(u64::to_le_bytes(long));
        }
        body.extend(bytes);
    }
    let count = (headers.len() / 64) as u16;
    let table = body.len() as u64;
    body[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    body[16..20].copy_from_slice(&[1, 0, 205, 0]);
    body[40..48].copy_from_slice(&table.to_le_bytes());
    for (at, half) in [(52, 64), (58, 64), (60, count), (62, count - 1)] {
        body[at..at + 2].copy_from_slice(&half.to_le_bytes());
    }
    body.extend(headers);
    body
}

/// Abbreviations: 1 a unit with a line table and an address, 2 a function with
/// children, by reference, 3 an inlined function with children, by reference.
const ABBREVIATIONS: &[u8] = &[
    1, 0x11, 1, 0x10, 0x17, 0x11, 0x01, 0, 0, // stmt_list, low_pc
    2, 0x2e, 1, 0x11, 0x01, 0x12, 0x06, 0x31, 0x13, 0, 0, // low_pc, high_pc, origin
    3, 0x1d, 1, 0x11, 0x01, 0x12, 0x06, 0x31, 0x13, 0, 0, 0,
];

/// A unit of DWARF 4 whose entries after the first are `entries`.
fn unit(entries: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let size = 7 + 1 + 4 + 8 + entries.len() as u32;
    out.extend(size.to_le_bytes());
    out.extend([4, 0, 0, 0, 0, 0, 8, 1]);
    out.extend([0; 12]);
    out.extend(entries);
    out
}

/// A line table of DWARF 4 with one file and a program.
fn line_table(program: &[u8]) -> Vec<u8> {
    let header: &[u8] = &[
        1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, b'f', 0, 0, 0, 0, 0,
    ];
    let mut out = Vec::new();
    out.extend((6 + (header.len() + program.len()) as u32).to_le_bytes());
    out.extend([4, 0]);
    out.extend((header.len() as u32).to_le_bytes());
    out.extend(header);
    out.extend(program);
    out
}

/// A function or inlined function at 0 of `size` bytes that refers to `origin`.
fn entry(code: u8, size: u32, origin: u32) -> Vec<u8> {
    let mut out = vec![code];
    out.extend([0; 8]);
    out.extend(size.to_le_bytes());
    out.extend(origin.to_le_bytes());
    out
}

fn timed(bytes: &[u8]) -> Module {
    let start = Instant::now();
    fuzz_module(bytes);
    let module = Module::parse(bytes).unwrap();
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    module
}

const SET_ADDRESS: [u8; 11] = [0, 9, 2, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn a_small_module_made_by_hand() {
    let mut program = SET_ADDRESS.to_vec();
    // Line 5 from 0, line 6 from 16; the end at 32.
    program.extend([3, 4, 1, 2, 16, 3, 1, 1, 2, 16, 0, 1, 1]);
    let info = unit(&entry(2, 32, 11));
    let bytes = made(&[
        (".text.k", &[0; 32]),
        (".debug_abbrev", ABBREVIATIONS),
        (".debug_info", &info),
        (".debug_line", &line_table(&program)),
    ]);
    let module = timed(&bytes);
    let kernel = module.kernel("k").unwrap();
    let told = |offset| {
        kernel
            .source(offset)
            .first()
            .map(|f| (f.function.clone(), f.line))
    };
    assert_eq!(told(0), Some(("k".to_owned(), 5)));
    assert_eq!(told(16), Some(("k".to_owned(), 6)));
    assert_eq!(told(32), None);
    assert_eq!(kernel.source(0)[0].file, "f");
    assert_eq!(module.problems, Problems::default());
}

/// Thousands of units that share one long line table.
#[test]
fn line_tables_read_over_and_over() {
    let mut program = SET_ADDRESS.to_vec();
    program.extend(vec![1; 1 << 20]);
    let info = unit(&[]).repeat(20_000);
    let bytes = made(&[
        (".text.k", &[0; 32]),
        (".debug_abbrev", ABBREVIATIONS),
        (".debug_info", &info),
        (".debug_line", &line_table(&program)),
    ]);
    let module = timed(&bytes);
    assert!(module.problems.debug_units > 0);
}

/// A table of abbreviations without end that each unit reads from another byte on.
#[test]
fn abbreviations_without_end() {
    let table: Vec<u8> = [0x85, 1, 0x2e, 1, 0x11, 1, 0, 0].repeat(1 << 17);
    let mut info = Vec::new();
    for i in 0..20_000u32 {
        let mut unit = unit(&[]);
        unit[6..10].copy_from_slice(&(i * 8).to_le_bytes());
        info.extend(unit);
    }
    let bytes = made(&[
        (".text.k", &[0; 32]),
        (".debug_abbrev", &table),
        (".debug_info", &info),
    ]);
    let module = timed(&bytes);
    assert!(module.problems.debug_units > 0);
}

/// Functions inlined into each other without end, and functions that are their own
/// origin.
#[test]
fn nesting_and_origins_without_end() {
    let mut entries = entry(2, 32, 27);
    entries.extend(entry(3, 32, 27).repeat(1 << 16));
    let info = unit(&entries);
    let mut program = SET_ADDRESS.to_vec();
    program.extend([1, 2, 32, 0, 1, 1]);
    let bytes = made(&[
        (".text.k", &[0; 32]),
        (".debug_abbrev", ABBREVIATIONS),
        (".debug_info", &info),
        (".debug_line", &line_table(&program)),
    ]);
    let module = timed(&bytes);
    let frames = module.kernel("k").unwrap().source(0);
    assert_eq!(frames.len(), 256);
    assert!(frames.iter().skip(1).all(|f| f.inlined));
}

/// A header of a line table that claims more files than there are bytes.
#[test]
fn absurd_line_headers() {
    let sound = line_table(&SET_ADDRESS);
    for (at, value) in [
        (0, u32::MAX - 15),
        (0, 1),
        (6, u32::MAX),
        (6, 1),
        (6, 2 << 20),
    ] {
        let mut lines = sound.clone();
        lines[at..at + 4].copy_from_slice(&value.to_le_bytes());
        lines.extend(vec![b'x'; 3 << 20]);
        let bytes = made(&[
            (".text.k", &[0; 32]),
            (".debug_abbrev", ABBREVIATIONS),
            (".debug_info", &unit(&[])),
            (".debug_line", &lines),
        ]);
        timed(&bytes);
    }
    // DWARF 5: 255 formats, then 2^63 files.
    let mut five = vec![
        0xff, 0xff, 0xff, 0, 5, 0, 8, 0, 0xf0, 0xff, 0xff, 0, 1, 1, 1, 0xfb, 14, 1, 1, 1, 8,
    ];
    five.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
    five.resize(1 << 20, 0);
    let bytes = made(&[
        (".text.k", &[0; 32]),
        (".debug_abbrev", ABBREVIATIONS),
        (".debug_info", &unit(&[])),
        (".debug_line", &five),
    ]);
    assert!(timed(&bytes).problems.debug_units > 0);
}

/// Names without an end, and one name that a million references lead to.
#[test]
fn texts_without_end() {
    let long = vec![b'x'; 16 << 20];
    // Thousands of sections whose names are the table's one text.
    let names: Vec<String> = (0..4000).map(|i| format!(".text.k{i}")).collect();
    let mut sections: Vec<(&str, &[u8])> = names.iter().map(|n| (n.as_str(), &[][..])).collect();
    sections.push((".debug_str", &long));
    let mut bytes = made(&sections);
    let headers = section_headers(&bytes);
    let text = section(&bytes, ".debug_str");
    let strings = headers[headers.len() - 1];
    for header in &headers {
        bytes[*header..header + 4].copy_from_slice(&0u32.to_le_bytes());
    }
    bytes[strings + 24..strings + 32].copy_from_slice(&(text.start as u64).to_le_bytes());
    bytes[strings + 32..strings + 40].copy_from_slice(&(text.len() as u64).to_le_bytes());
    assert!(timed(&bytes).kernels.is_empty());
    // Abbreviations with names in `.debug_str`, and in the entry itself.
    let mut table = ABBREVIATIONS[..ABBREVIATIONS.len() - 1].to_vec();
    table.extend([
        4, 0x2e, 0, 0x03, 0x0e, 0, 0, 5, 0x2e, 0, 0x03, 0x08, 0, 0, 0,
    ]);
    let mut entries = entry(2, 32, 0);
    for (i, code) in [(0, 4), (1, 5)] {
        let at = 24 + entries.len() as u32;
        entries.push(code);
        if i == 0 {
            entries.extend([0; 4]);
        } else {
            entries.extend(&long[..1 << 20]);
            entries.push(0);
        }
        entries.extend(entry(3, 32, at).repeat(1 << 15));
    }
    let info = unit(&entries);
    let bytes = made(&[
        (".text.k", &[0; 32]),
        (".debug_abbrev", &table),
        (".debug_info", &info),
        (".debug_str", &long),
        (".debug_line", &line_table(&SET_ADDRESS)),
    ]);
    timed(&bytes);
}

/// Sections that all are the whole file.
#[test]
fn sections_upon_each_other() {
    let names: Vec<String> = (0..2000).map(|i| format!(".text.k{i}")).collect();
    let code = vec![0; 1 << 16];
    let sections: Vec<(&str, &[u8])> = names
        .iter()
        .enumerate()
        .map(|(i, n)| (n.as_str(), if i == 0 { &code[..] } else { &[] }))
        .collect();
    let mut bytes = made(&sections);
    let size = (bytes.len() as u64).to_le_bytes();
    for header in section_headers(&bytes).into_iter().skip(1).take(2000) {
        bytes[header + 24..header + 32].copy_from_slice(&[0; 8]);
        bytes[header + 32..header + 40].copy_from_slice(&size);
    }
    let module = timed(&bytes);
    assert!(module.memory() < bytes.len() * 3, "{}", module.memory());
    assert_eq!((module.kernels.len(), module.problems.sections), (1, 1999));
}

/// A module as the runtime's debugger interface gives it: placed on the device.
#[test]
fn placed_modules_have_the_same_lines() {
    for name in ["bmg", "ptl"] {
        let whole = module(name);
        let mut bytes = zebin(name);
        let headers = section_headers(&bytes);
        for (i, header) in headers.iter().enumerate().skip(1).take(5) {
            let address = 0x8000_ffff_0000u64 + (i as u64) * 0x1_0000;
            bytes[header + 16..header + 24].copy_from_slice(&address.to_le_bytes());
        }
        let placed = Module::parse(&bytes).unwrap();
        assert_eq!(placed.problems, Problems::default());
        for kernel in &whole.kernels {
            let other = placed.kernel(&kernel.name).unwrap();
            assert!(other.address > 0x8000_ffff_0000);
            for offset in (0..kernel.code.len() as u32).step_by(8) {
                assert_eq!(
                    kernel.source(offset),
                    other.source(offset),
                    "{name} {}",
                    kernel.name
                );
                assert_eq!(kernel.function(offset), other.function(offset));
            }
        }
    }
}

#[test]
fn spir_v_in_pieces() {
    let word = |words: &[u32]| {
        words
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let text = |text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize((bytes.len() + 1).next_multiple_of(4), 0);
        bytes
            .chunks_exact(4)
            .map(|c| u32::from_le_bytes(c.try_into().unwrap()))
            .collect::<Vec<u32>>()
    };
    let mut words = vec![spirv::SPIRV_MAGIC, 0x0001_0200, 0, 9, 0];
    let mut instruction = |op: u32, operands: &[u32]| {
        words.push((operands.len() as u32 + 1) << 16 | op);
        words.extend(operands);
    };
    instruction(15, &[&[6, 5][..], &text("_ZTSN4demo4CopyE")].concat());
    instruction(15, &[&[6, 6][..], &text("plain")].concat());
    instruction(15, &[&[0, 7][..], &text("a_shader")].concat());
    instruction(7, &[&[1][..], &text("dir/field.cl")].concat());
    instruction(54, &[2, 5, 0, 3]);
    instruction(8, &[1, 10, 2]);
    instruction(56, &[]);
    instruction(54, &[2, 6, 0, 3]);
    instruction(56, &[]);
    let bytes = word(&words);
    let module = Module::parse(&bytes).unwrap();
    let told: Vec<_> = module
        .kernels
        .iter()
        .map(|k| (k.display.as_str(), k.source_file.as_deref()))
        .collect();
    assert_eq!(
        told,
        [("demo::Copy", Some("dir/field.cl")), ("plain", None)]
    );
    assert_eq!(
        (module.platform, module.problems),
        (None, Problems::default())
    );
    for len in 0..bytes.len() {
        fuzz_module(&bytes[..len]);
    }
    let mut random = Random(7);
    for _ in 0..2000 {
        let mut bytes = bytes.clone();
        let at = random.below(bytes.len());
        bytes[at] = random.below(256) as u8;
        fuzz_module(&bytes);
    }
}
