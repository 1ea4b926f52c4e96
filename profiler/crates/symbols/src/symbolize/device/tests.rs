//! Modules of Intel's compiler against its listings and the source they came from.
//!
//! `tests/data/zebin/README.md` describes how the files were made.

use super::isa::Platform;
use super::*;
use std::io::Read as _;
use std::path::PathBuf;

/// A file of the repository.
fn file(path: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .join(path);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn unpacked(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let packed = file(&format!("tests/data/zebin/{name}.gz"));
    flate2::read::GzDecoder::new(packed.as_slice())
        .read_to_end(&mut out)
        .unwrap();
    out
}

pub(super) fn zebin(name: &str) -> Vec<u8> {
    unpacked(&format!("{name}.zebin"))
}

pub(super) fn module(name: &str) -> Module {
    let module = Module::parse(&zebin(name)).unwrap();
    assert_eq!(module.problems, Problems::default(), "{name}");
    module
}

/// The listings of a module's kernels, as text.
fn listing_texts(name: &str) -> Vec<String> {
    let text = String::from_utf8(unpacked(&format!("{name}.asm"))).unwrap();
    let parts = text.split("//.kernel ").skip(1);
    parts.map(|part| format!("//.kernel {part}")).collect()
}

/// Functions of the source: name, file, first and last line.
const FUNCTIONS: [(&str, &str, u32, u32); 9] = [
    ("weight", "field.h", 5, 8),
    ("blend", "field.h", 10, 15),
    ("gather", "field.h", 17, 23),
    ("smooth", "field.cl", 6, 15),
    ("scale", "field.cl", 18, 22),
    ("total", "field.cl", 26, 39),
    ("slow", "field.cl", 42, 48),
    ("waves", "field.cl", 51, 58),
    ("demo::Copy", "field.cl", 62, 66),
];

/// Names as compiled: `-gline-tables-only` calls the source `1`.
fn source_name(path: &str) -> &str {
    match path.rsplit('/').next() {
        Some("1") => "field.cl",
        Some(name) => name,
        None => path,
    }
}

/// The function table agrees with the source.
#[test]
fn functions_of_the_source() {
    for (name, path, first, last) in FUNCTIONS {
        let text = file(&format!("tests/workloads/device/{path}"));
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let name = name.rsplit(':').next().unwrap();
        assert!(lines[first as usize - 1].contains(name), "{name}");
        assert_eq!(lines[last as usize - 1], "}", "{name}");
    }
}

/// How instructions compare with the compiler's listing.
#[derive(Debug, Default, PartialEq, Eq)]
struct Compared {
    /// File and line are the listing's.
    same: usize,
    /// DWARF gives the opening line of the function: the code that loads arguments
    /// or saves registers. The listing has nothing there, or what came before.
    opening: usize,
    /// DWARF gives line 0: no line. The listing does not show that.
    no_line: usize,
    /// Anything else.
    different: Vec<(String, u32)>,
}

fn compare(name: &str) -> Compared {
    let module = module(name);
    let mut out = Compared::default();
    for text in listing_texts(name) {
        let listing = Listing::parse(text.as_bytes()).unwrap();
        let kernel = module.kernel(&listing.kernel).unwrap();
        assert!(listing.size() as usize <= kernel.code.len());
        for listed in &listing.instructions {
            let source = kernel.source(listed.offset);
            let frame = source
                .last()
                .unwrap_or_else(|| panic!("{name} {}", listed.offset));
            let opens = |f: &&(&str, &str, u32, u32)| f.0 == frame.function && f.2 == frame.line;
            if listed.file.as_deref() == Some(&frame.file) && listed.line == frame.line {
                out.same += 1;
            } else if FUNCTIONS.iter().any(|f| opens(&f)) && frame.column == 0 {
                out.opening += 1;
            } else if frame.line == 0 {
                out.no_line += 1;
            } else {
                out.different.push((kernel.name.clone(), listed.offset));
            }
        }
    }
    out
}

#[test]
fn lines_are_those_of_the_compilers_listings() {
    for (name, same, opening, no_line) in [
        ("bmg", 426, 69, 5),
        ("bmg-lines", 426, 69, 5),
        ("ptl", 435, 69, 5),
        ("pvc", 465, 115, 6),
    ] {
        let expected = Compared {
            same,
            opening,
            no_line,
            different: Vec::new(),
        };
        assert_eq!(compare(name), expected, "{name}");
    }
}

/// In a module whose functions are called through the stack, DWARF gives the code that saves and
/// restores registers the call's line. The listing gives it the line of the function's end.
#[test]
fn lines_of_called_functions() {
    let compared = compare("bmg-calls");
    let texts = listing_texts("bmg-calls");
    for (kernel, offset) in &compared.different {
        let mut listings = texts.iter().filter_map(|t| Listing::parse(t.as_bytes()));
        let listing = listings.find(|l| l.kernel == *kernel).unwrap();
        let listed = listing.at(*offset).unwrap();
        let source = file(&format!(
            "tests/workloads/device/{}",
            source_name(listed.file.as_deref().unwrap())
        ));
        let source = String::from_utf8(source).unwrap();
        let line = source.lines().nth(listed.line as usize - 1).unwrap().trim();
        assert!(
            line.starts_with("return ") || line == "}",
            "{kernel} {listed:?}: {line}"
        );
    }
    let counts = (
        compared.same,
        compared.opening,
        compared.no_line,
        compared.different.len(),
    );
    assert_eq!(counts, (620, 192, 20, 21));
}

/// Every frame of every instruction lies in its function, and its callee's name
/// stands where the call is.
#[test]
fn frames_are_where_the_source_has_them() {
    let texts = ["field.cl", "field.h"].map(|path| {
        let text = file(&format!("tests/workloads/device/{path}"));
        (path, String::from_utf8(text).unwrap())
    });
    let line = |path: &str, line: u32| {
        let (_, text) = texts.iter().find(|(p, _)| *p == path).unwrap();
        text.lines().nth(line as usize - 1).unwrap().to_owned()
    };
    let mut inlined = 0;
    for name in ["bmg", "bmg-lines", "ptl", "pvc", "bmg-calls"] {
        for kernel in &module(name).kernels {
            for offset in (0..kernel.code.len() as u32).step_by(8) {
                let frames = kernel.source(offset);
                for (i, frame) in frames.iter().enumerate() {
                    let place = format!("{name} {} {offset:#x} {frames:?}", kernel.name);
                    let function = FUNCTIONS.iter().find(|f| f.0 == frame.function);
                    let (_, path, first, last) = function.expect(&place);
                    assert_eq!(source_name(&frame.file), *path, "{place}");
                    assert_eq!(frame.inlined, i > 0, "{place}");
                    let fits = frame.line == 0 || (*first..=*last).contains(&frame.line);
                    assert!(fits, "{place}");
                    if let Some(callee) = frames.get(i + 1) {
                        let call = line(path, frame.line);
                        assert!(call.contains(&format!("{}(", callee.function)), "{place}");
                        inlined += 1;
                    }
                }
            }
        }
    }
    assert!(inlined > 1000, "{inlined}");
}

#[test]
fn nested_inlined_functions_are_told() {
    for name in ["bmg", "bmg-lines", "ptl", "pvc"] {
        let module = module(name);
        let kernel = module.kernel("smooth").unwrap();
        let mut chains = std::collections::BTreeSet::new();
        for offset in (0..kernel.code.len() as u32).step_by(8) {
            let frames = kernel.source(offset);
            chains.insert(
                frames
                    .into_iter()
                    .map(|f| f.function)
                    .collect::<Vec<_>>()
                    .join(";"),
            );
        }
        for chain in [
            "smooth",
            "smooth;gather",
            "smooth;gather;blend",
            "smooth;gather;blend;weight",
            "smooth;blend",
            "smooth;blend;weight",
        ] {
            assert!(chains.contains(chain), "{name}: {chain}: {chains:?}");
        }
    }
}

#[test]
fn names_platforms_and_code() {
    for (name, platform) in [
        ("bmg", Platform::Xe2),
        ("bmg-lines", Platform::Xe2),
        ("bmg-calls", Platform::Xe2),
        ("ptl", Platform::Xe3),
        ("pvc", Platform::XeHpc),
    ] {
        let module = module(name);
        assert_eq!(module.platform, Some(platform), "{name}");
        let mut names: Vec<_> = module.kernels.iter().map(|k| k.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["_ZTSN4demo4CopyE", "scale", "smooth", "total", "waves"]
        );
        assert_eq!(
            module.kernel("_ZTSN4demo4CopyE").unwrap().display,
            "demo::Copy"
        );
        assert!(module.functions.is_empty() && module.kernel("none").is_none());
        for text in listing_texts(name) {
            let listing = Listing::parse(text.as_bytes()).unwrap();
            let kernel = module.kernel(&listing.kernel).unwrap();
            assert_eq!(listing.platform.unwrap_or(platform), platform);
            // The code proper begins where the listing has the label.
            let label = text.find("// _main:\n").unwrap();
            let before = Listing::parse(&text.as_bytes()[..label]).unwrap();
            assert_eq!(
                kernel.payload_entry,
                before.size(),
                "{name} {}",
                kernel.name
            );
        }
    }
}

/// Attributes against the source, and against the listings' number of registers.
#[test]
fn attributes_are_those_of_the_source() {
    for name in ["bmg", "bmg-lines", "ptl", "pvc", "bmg-calls"] {
        let module = module(name);
        let simd = [
            ("_ZTSN4demo4CopyE", 32),
            ("scale", 32),
            ("smooth", 16),
            ("total", 16),
            ("waves", 16),
        ];
        for (kernel, size) in simd {
            let attributes = &module.kernel(kernel).unwrap().attributes;
            assert_eq!(attributes.simd_size, Some(size));
            assert_eq!(attributes.required_sub_group_size, Some(size));
            let is_total = kernel == "total";
            assert_eq!(attributes.slm_bytes, is_total.then_some(64 * 4));
            assert_eq!(attributes.barrier_count, is_total.then_some(1));
            assert_eq!(
                attributes.required_work_group_size,
                is_total.then_some([64, 1, 1])
            );
        }
        for text in listing_texts(name) {
            let listing = Listing::parse(text.as_bytes()).unwrap();
            let count = text
                .split("numGRF=")
                .nth(1)
                .unwrap()
                .split(',')
                .next()
                .unwrap();
            let attributes = &module.kernel(&listing.kernel).unwrap().attributes;
            assert_eq!(attributes.grf_count, count.parse().ok(), "{name}");
        }
    }
    let calls = module("bmg-calls");
    let stack = |kernel: &str| calls.kernel(kernel).unwrap().attributes.has_stack_calls;
    assert_eq!((stack("waves"), stack("total")), (Some(true), None));
}

/// Called functions have symbols inside their kernel's section: the listing has
/// their labels.
#[test]
fn called_functions_are_named() {
    let module = module("bmg-calls");
    let kernel = module.kernel("waves").unwrap();
    let text = listing_texts("bmg-calls");
    let text = text
        .iter()
        .find(|t| t.starts_with("//.kernel waves"))
        .unwrap();
    for (label, function) in [("\nL_f0_slow:", "slow"), ("\nL_f1_weight:", "weight")] {
        let before = &text.as_bytes()[..text.find(label).unwrap()];
        let start = Listing::parse(before).unwrap().size();
        assert_eq!(kernel.function(start), function);
        assert_ne!(kernel.function(start - 8), function);
        assert_eq!(kernel.source(start)[0].function, function);
    }
    assert_eq!(kernel.function(0), "waves");
    assert_eq!(kernel.function(u32::MAX), "waves");
}

/// An archive for two devices, as `ar` writes it.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = b"!<arch>\n".to_vec();
    for (name, bytes) in members {
        let head = format!(
            "{:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n",
            format!("{name}/"),
            0,
            0,
            0,
            644,
            bytes.len()
        );
        out.extend(head.as_bytes());
        out.extend(*bytes);
        if bytes.len() % 2 == 1 {
            out.push(b'\n');
        }
    }
    out
}

#[test]
fn archives_hold_modules_for_several_devices() {
    let (bmg, ptl) = (zebin("bmg"), zebin("ptl"));
    let bytes = archive(&[
        ("pad_0", b"        "),
        ("64.bmg", &bmg),
        ("pad_1", b"   "),
        ("64.ptl", &ptl),
    ]);
    let platform = |wanted| Module::parse_for(&bytes, wanted).unwrap().platform;
    assert_eq!(Module::parse(&bytes).unwrap().platform, Some(Platform::Xe2));
    assert_eq!(platform(Some(Platform::Xe3)), Some(Platform::Xe3));
    // For a device that it is not for, its first.
    assert_eq!(platform(Some(Platform::XeHpg)), Some(Platform::Xe2));
    let empty = archive(&[("pad_0", b"        ")]);
    assert_eq!(
        Module::parse(&empty).unwrap_err(),
        ModuleError::EmptyArchive
    );
    assert_eq!(Module::parse(b"").unwrap_err(), ModuleError::Unknown);
}

#[test]
fn dump_folders_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().join("app_17");
    std::fs::create_dir(&below).unwrap();
    std::fs::write(below.join("OCL_asm1.progbin"), zebin("bmg")).unwrap();
    std::fs::write(
        below.join("OCL_asm1_simd16_entry_0001.visaasm"),
        ".version 4.2\n\n.kernel \"smooth\"\n",
    )
    .unwrap();
    std::fs::write(below.join("OCL_asm1.cl"), "kernel").unwrap();
    std::fs::write(below.join("cut.progbin"), &zebin("bmg")[..1000]).unwrap();
    std::os::unix::fs::symlink("/dev/zero", below.join("endless.asm")).unwrap();
    for (i, text) in listing_texts("bmg").iter().enumerate() {
        std::fs::write(below.join(format!("OCL_asm1_entry_{i:04}.asm")), text).unwrap();
    }
    let dump = read_dump_folder(dir.path()).unwrap();
    assert_eq!(
        (dump.modules.len(), dump.listings.len(), dump.problems.files),
        (1, 5, 1)
    );
    assert_eq!(dump.virtual_listings[0].1, "smooth");
    let kernel = dump.kernel("smooth").unwrap();
    let listing = dump.listing(kernel).unwrap();
    assert_eq!(listing.instructions.len(), 235);
    assert!(listing.at(kernel.payload_entry).is_some());
    assert!(read_dump_folder(&dir.path().join("none")).is_err());
}
