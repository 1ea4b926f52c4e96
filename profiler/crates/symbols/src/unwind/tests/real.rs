//! Real files of the machine the tests run on, compared with gimli row by row
//! over all their pages.

use super::reference::{Kinds, compare};
use crate::unwind::{UnwindFile, build_all, lookup};
use aiprof_common::{
    CFA_END, CFA_NONE, CFA_PLT, CFA_RBP, CFA_REG, CFA_RSP, CFA_SIGNAL, RBP_UNDEFINED,
};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::Command;

/// Start, end and path of the executable mappings of this process.
fn mappings() -> Vec<(u64, u64, String)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (start, end) = fields.first()?.split_once('-')?;
            let address = |text| u64::from_str_radix(text, 16).ok();
            let executable = fields.get(1)?.contains('x');
            executable.then_some((address(start)?, address(end)?, fields.get(5)?.to_string()))
        })
        .collect()
}

/// Compares the file mapped into this process whose path contains `name`.
fn compare_mapped(name: &str) -> Kinds {
    let mappings = mappings();
    let path = mappings
        .iter()
        .map(|(_, _, path)| path)
        .find(|path| path.contains(name));
    let path = path.unwrap_or_else(|| panic!("{name} is mapped here"));
    let data = std::fs::read(path).unwrap();
    // Both kinds of source give the same.
    let stats = build_all(&UnwindFile::open(File::open(path).unwrap()).unwrap()).unwrap();
    assert_eq!(
        stats,
        build_all(&UnwindFile::open(data.as_slice()).unwrap()).unwrap()
    );
    compare(&data)
}

/// Asserts that a comparison met all these kinds of rules.
fn assert_met(kinds: &Kinds, expected: &[u8]) {
    for kind in expected {
        assert!(kinds.contains_key(kind), "kind {kind} in {kinds:?}");
    }
}

#[test]
fn c_library() {
    let kinds = compare_mapped("libc.so");
    // glibc: __restore_rt, clone's child, code without unwind data.
    assert_met(
        &kinds,
        &[CFA_NONE, CFA_RSP, CFA_RBP, CFA_SIGNAL, CFA_END, CFA_PLT],
    );
}

#[test]
fn dynamic_linker() {
    // _dl_runtime_resolve keeps the CFA in rbx.
    assert_met(
        &compare_mapped("ld-linux"),
        &[CFA_RSP, CFA_RBP, CFA_REG + 3],
    );
}

#[test]
fn this_test_binary() {
    let exe = std::env::current_exe().unwrap();
    let kinds = compare(&std::fs::read(exe).unwrap());
    assert_met(&kinds, &[CFA_NONE, CFA_RSP, CFA_END]);
}

/// libgcc resumes an exception in another frame: before, it overwrites the rbp that it saved.
#[test]
fn what_an_exception_overwrites_is_not_known() {
    let path = "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1";
    let Ok(data) = std::fs::read(path) else {
        eprintln!("skipped: {path} is not there");
        return;
    };
    let file = UnwindFile::open(data).unwrap();
    let mut table = Vec::new();
    let mut found = 0;
    for index in 0..file.n_pages() {
        file.page(index, &mut table).unwrap();
        let rules = (0..=u16::MAX).filter_map(|at| lookup(&table, at));
        let mut is_before = false;
        for rule in rules {
            let is_in = rule.kind == CFA_RBP && rule.rbp == RBP_UNDEFINED;
            found += usize::from(is_in && !is_before);
            is_before = is_in;
        }
    }
    // `_Unwind_RaiseException`, `_Unwind_ForcedUnwind`, `_Unwind_Resume` and one more.
    assert!((3..=5).contains(&found), "{found}");
}

#[test]
fn vdso() {
    let (start, end, _) = mappings()
        .into_iter()
        .find(|(_, _, path)| path == "[vdso]")
        .unwrap();
    let mut memory = File::open("/proc/self/mem").unwrap();
    memory.seek(SeekFrom::Start(start)).unwrap();
    let mut image = vec![0; (end - start) as usize];
    memory.read_exact(&mut image).unwrap();
    assert_met(&compare(&image), &[CFA_RSP]);
    assert!(UnwindFile::open(image).unwrap().build_id().is_some());
}

#[test]
fn shell_and_libraries_that_are_installed() {
    let candidates = ["/bin/bash", "/bin/sh", "/usr/bin/perl", "/usr/bin/python3"]
        .into_iter()
        .map(PathBuf::from)
        .chain(libraries());
    let mut compared = 0;
    for path in candidates {
        let Ok(data) = std::fs::read(&path) else {
            eprintln!("skipped: {} is not there", path.display());
            continue;
        };
        eprintln!("{}", path.display());
        compare(&data);
        compared += 1;
    }
    assert!(compared > 0, "not even a shell");
}

/// Libraries in C++, in hand-written assembler, and the compiler's own, where
/// they are found.
fn libraries() -> Vec<PathBuf> {
    let names = [
        "libstdc++.so.6",
        "libcrypto.so.3",
        "libm.so.6",
        "libgcc_s.so.1",
    ];
    let mut paths: Vec<PathBuf> = names
        .iter()
        .map(|name| PathBuf::from("/usr/lib/x86_64-linux-gnu").join(name))
        .collect();
    paths.extend(rust_compiler());
    // Further files, separated by colons, for whoever doubts one.
    if let Some(more) = std::env::var_os("AIPROF_TEST_UNWIND_FILES") {
        paths.extend(std::env::split_paths(&more));
    }
    paths
}

/// The compiler's library: more than a million rows.
fn rust_compiler() -> Option<PathBuf> {
    let rustc = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .ok()?;
    let lib = PathBuf::from(String::from_utf8(rustc.stdout).ok()?.trim()).join("lib");
    let mut files = std::fs::read_dir(lib)
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    files.find(|path| path.to_string_lossy().contains("/librustc_driver-"))
}
