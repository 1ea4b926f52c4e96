//! Files that have their debug information elsewhere, made by the tools that make them.

use super::native::{BinaryRef, NativeSymbolizer};
use super::tests::{addresses, binary, compile, functions, names, run, symbolize, symbolizer};
use super::tests::{build_id, serve_debug_files};
use super::*;
use crate::elf;
use aiprof_model::profile::FrameKind;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Whether tools are there; Debian's packages are binutils, dwz, lld, llvm and xz-utils.
fn has(tools: &[&str]) -> bool {
    for tool in tools {
        if Command::new(tool).arg("--version").output().is_err() {
            eprintln!("skipped: debug information elsewhere: {tool} is not installed");
            return false;
        }
    }
    true
}

const C_SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
static volatile int sink;
static inline __attribute__((always_inline)) int within(int x) { sink += x; return sink * 3; }
static __attribute__((noinline)) int a_static(int x) { return within(x) ^ sink; }
__attribute__((noinline)) int a_global(int x) { return a_static(x) + within(x + 1); }
int main(int argc, char **argv) { return a_global(argc) + printf("%d\n", sink); }
"#;

/// As in GDB's manual under "MiniDebugInfo".
#[test]
fn symbols_of_stripped_files_with_gnu_debugdata() {
    if !has(&["xz", "objcopy", "strip"]) {
        return;
    }
    for xz in [
        &["xz"][..],
        &["xz", "-9e", "--check=crc32"],
        &["xz", "-T2", "--block-size=4KiB"],
    ] {
        let dir = TempDir::new().unwrap();
        let flags = ["-O2", "-shared", "-fPIC"];
        let library = compile(dir.path(), "cc", C_SOURCE, "lib.so", &flags);
        let (global, _, _) = functions(&library, "a_global").remove(0);
        let (local, size, _) = functions(&library, "a_static").remove(0);
        let script =
            "nm -D lib.so --format=posix --defined-only | awk '{print $1}' | sort > dynamic
            nm lib.so --format=posix --defined-only \
              | awk '{if ($2 == \"T\" || $2 == \"t\" || $2 == \"D\") print $1}' | sort > all
            comm -13 dynamic all > kept
            objcopy --only-keep-debug lib.so debug
            objcopy -S --remove-section .gdb_index --remove-section .comment \
              --keep-symbols=kept debug mini
            strip -s lib.so";
        run("sh", &["-e", "-c", script], dir.path());
        let before = symbolize(&binary(&library), &[global, local]);
        assert_eq!(names(&before[0]), ["a_global"]);
        assert_eq!(names(&before[1]), ["[no symbols lib.so]"]);
        run(xz[0], &[&xz[1..], &["mini"]].concat(), dir.path());
        let add = ["--add-section", ".gnu_debugdata=mini.xz", "lib.so"];
        run("objcopy", &add, dir.path());
        let found = symbolize(&binary(&library), &[global, local, local + size - 1]);
        let found: Vec<_> = found.iter().map(|frames| names(frames)).collect();
        assert_eq!(found, [["a_global"], ["a_static"], ["a_static"]], "{xz:?}");
        cut_and_damaged(&library, local);
    }
}

/// What is damaged in a file costs its names, and is counted.
fn cut_and_damaged(library: &Path, local: u64) {
    let original = fs::read(library).unwrap();
    let info = elf::inspect(&File::open(library).unwrap()).unwrap();
    let (offset, size) = info.mini.unwrap();
    let section = offset as usize..(offset + size) as usize;
    for at in section.clone().step_by(23) {
        let mut bytes = original.clone();
        bytes[at] ^= 0x55;
        fs::write(library, bytes).unwrap();
        let mut out = Vec::new();
        let mut symbolizer = symbolizer();
        symbolizer
            .symbolize(&binary(library), &[local], &mut out)
            .unwrap();
        let is_named = names(&out[0]) == ["a_static"];
        assert!(is_named || out[0][0].kind == FrameKind::Unknown || !out[0].is_empty());
    }
    let mut bytes = original;
    bytes[section.start] = 0;
    fs::write(library, bytes).unwrap();
    let mut out = Vec::new();
    let mut symbolizer = symbolizer();
    symbolizer
        .symbolize(&binary(library), &[local], &mut out)
        .unwrap();
    assert_eq!(names(&out[0]), ["[no symbols lib.so]"]);
    assert_eq!(symbolizer.stats().corrupt, 1);
}

const CPP_SOURCE: &str = r#"
#include <algorithm>
#include <map>
#include <string>
#include <vector>
__attribute__((noinline)) int outer_sum(const std::vector<std::string> &v) {
  std::map<std::string, int> m; int t = 0;
  for (auto &s : v) m[s] += s.size();
  std::vector<int> all;
  for (auto &[k, n] : m) all.push_back(n + k.size());
  std::sort(all.begin(), all.end());
  for (int n : all) t = t * 3 + n;
  return t;
}
int main(int argc, char **argv) { return outer_sum({argv, argv + argc}) + VARIANT; }
"#;

/// Two programs whose common parts `dwz -m` moves to a file of their own.
#[test]
fn names_in_a_common_file_of_dwz() {
    if !has(&["dwz"]) {
        return;
    }
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let dir = TempDir::new().unwrap();
        let mut programs = Vec::new();
        for (name, variant) in [("one", "-DVARIANT=1"), ("two", "-DVARIANT=2")] {
            let flags = ["-O2", version, variant, "-std=c++17"];
            let program = compile(dir.path(), "c++", CPP_SOURCE, name, &flags);
            programs.push(program);
        }
        let program = &programs[0];
        let addrs = addresses(program, "outer_sum");
        let expected = symbolize(&binary(program), &addrs);
        assert!(expected.iter().any(|frames| frames.len() > 4));
        run(
            "dwz",
            &["-m", "common.debug", "-r", "one", "two"],
            dir.path(),
        );
        let link = run("readelf", &["-SW", "one"], dir.path());
        assert!(link.contains(".gnu_debugaltlink"), "{version}");
        assert_eq!(symbolize(&binary(program), &addrs), expected, "{version}");
        // Without it, or with another, there are lines and the names of functions.
        fs::copy(program, dir.path().join("common.debug")).unwrap();
        let mut out = Vec::new();
        let mut symbolizer = symbolizer();
        symbolizer
            .symbolize(&binary(program), &addrs, &mut out)
            .unwrap();
        assert_eq!(symbolizer.stats().incomplete, 1);
        for (found, expected) in out.iter().zip(&expected) {
            let place = |frame: &SymFrame| {
                let (path, line) = frame.source.clone().unwrap();
                (path.rsplit('/').next().unwrap().to_owned(), line)
            };
            // A symbol's name has more detail on what was split off: ` [clone .cold]`.
            assert!(found[0].name.starts_with(&expected[0].name));
            // The directory is in the common file, too.
            assert_eq!(place(&found[0]), place(&expected[0]));
        }
    }
}

/// What a fetched debug file refers to is fetched too.
#[test]
fn common_file_of_dwz_from_debuginfod() {
    if !has(&["dwz", "debuginfod-find"]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    for (name, variant) in [("one", "-DVARIANT=1"), ("two", "-DVARIANT=2")] {
        let flags = ["-O2", "-g", variant, "-std=c++17", "-Wl,--build-id"];
        compile(dir.path(), "c++", CPP_SOURCE, name, &flags);
    }
    let program = dir.path().join("one");
    let addrs = addresses(&program, "outer_sum");
    let expected = symbolize(&binary(&program), &addrs);
    run(
        "objcopy",
        &["--only-keep-debug", "one", "one.debug"],
        dir.path(),
    );
    run(
        "objcopy",
        &["--only-keep-debug", "two", "two.debug"],
        dir.path(),
    );
    run(
        "dwz",
        &["-m", "common", "one.debug", "two.debug"],
        dir.path(),
    );
    run("strip", &["-s", "one"], dir.path());
    let serve = |name: &str| {
        let path = dir.path().join(name);
        let id = build_id(&path).to_string();
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(path).unwrap();
        (id, bytes)
    };
    let files = vec![serve("one.debug"), serve("common")];
    let config = debuginfod::Config {
        urls: format!("http://{}/", serve_debug_files(files)).into(),
        cache: Some(dir.path().join("cache")),
        program: "debuginfod-find".into(),
    };
    let options = SymbolizeOptions {
        source_lines: true,
        ..SymbolizeOptions::default()
    };
    let mut symbolizer = NativeSymbolizer::with_servers(options, Some(config));
    let id = build_id(&program);
    let reference = BinaryRef {
        build_id: Some(id),
        ..binary(&program)
    };
    let mut out = Vec::new();
    for _ in 0..3 {
        out.clear();
        symbolizer.symbolize(&reference, &addrs, &mut out).unwrap();
        if !symbolizer.is_fetching(Some(id)) {
            break;
        }
        symbolizer.settle(Duration::from_secs(60));
    }
    assert_eq!(out, expected);
    assert_eq!(symbolizer.stats().incomplete, 0);
}

/// Compiles with split units, and without these, and returns program, addresses and what
/// the unsplit one has there.
fn split(dir: &Path, compiler: &str, version: &str) -> (PathBuf, Vec<u64>, Vec<Vec<SymFrame>>) {
    let whole = dir.join("whole");
    fs::create_dir(&whole).unwrap();
    let flags = ["-O2", "-g", version, "-std=c++17", "-DVARIANT=1"];
    fs::write(dir.join("prog.cpp"), CPP_SOURCE).unwrap();
    // An object file of its own: where it lies is where its .dwo file lies.
    for (name, extra) in [("whole/prog", &[][..]), ("prog", &["-gsplit-dwarf"][..])] {
        let object = format!("{name}.o");
        let args = [&flags[..], extra, &["-c", "-o", &object, "prog.cpp"]].concat();
        run(compiler, &args, dir);
        run(compiler, &["-o", name, &object], dir);
    }
    let addrs = addresses(&whole.join("prog"), "outer_sum");
    let split_addrs = addresses(&dir.join("prog"), "outer_sum");
    assert_eq!(addrs, split_addrs, "the compiler made other code");
    let expected = symbolize(&binary(&whole.join("prog")), &addrs);
    assert!(expected.iter().any(|frames| frames.len() > 4));
    (dir.join("prog"), addrs, expected)
}

#[test]
fn names_in_split_units() {
    let compilers = [
        ("c++", "-gdwarf-4", "dwp"),
        ("c++", "-gdwarf-5", "llvm-dwp"),
        ("clang++", "-gdwarf-5", "llvm-dwp"),
    ];
    for (compiler, version, packer) in compilers {
        if !has(&[compiler, packer]) {
            continue;
        }
        let dir = TempDir::new().unwrap();
        let (program, addrs, expected) = split(dir.path(), compiler, version);
        let id = format!("{compiler} {version}");
        assert_eq!(symbolize(&binary(&program), &addrs), expected, "{id}");
        // As a package.
        run(packer, &["-e", "prog", "-o", "prog.dwp"], dir.path());
        let hidden = dir.path().join("hidden");
        fs::rename(dir.path().join("prog.dwo"), &hidden).unwrap();
        assert_eq!(
            symbolize(&binary(&program), &addrs),
            expected,
            "{id}, packed"
        );
        // Without either: lines and symbols, and the loss is counted.
        fs::remove_file(dir.path().join("prog.dwp")).unwrap();
        let mut out = Vec::new();
        let mut symbolizer = symbolizer();
        for _ in 0..2 {
            out.clear();
            symbolizer
                .symbolize(&binary(&program), &addrs, &mut out)
                .unwrap();
        }
        assert_eq!(symbolizer.stats().split_missing, 1, "{id}");
        for (found, expected) in out.iter().zip(&expected) {
            assert!(found[0].name.starts_with(&expected[0].name), "{id}");
            let innermost = expected.last().unwrap();
            assert_eq!(found[0].source, innermost.source, "{id}");
        }
        // That of another unit is not used.
        let other = dir.path().join("prog.dwo");
        let text = CPP_SOURCE.replace("t * 3", "t * 5");
        fs::write(dir.path().join("other.cpp"), text).unwrap();
        let flags = [
            "-O2",
            "-g",
            version,
            "-std=c++17",
            "-DVARIANT=1",
            "-gsplit-dwarf",
        ];
        run(
            compiler,
            &[&flags[..], &["-c", "-o", "other.o", "other.cpp"]].concat(),
            dir.path(),
        );
        fs::rename(dir.path().join("other.dwo"), other).unwrap();
        let found = symbolize(&binary(&program), &addrs);
        assert!(found.iter().all(|frames| frames.len() == 1), "{id}");
    }
}

/// Damage anywhere in the file that another refers to costs names and no more.
#[test]
fn damaged_split_units() {
    let dir = TempDir::new().unwrap();
    let (program, addrs, _) = split(dir.path(), "c++", "-gdwarf-5");
    let object = dir.path().join("prog.dwo");
    let original = fs::read(&object).unwrap();
    let mut symbolizer = symbolizer();
    for round in 0..60 {
        let mut bytes = original.clone();
        let step = 997 + 31 * round;
        for at in (round..bytes.len()).step_by(step) {
            bytes[at] = bytes[at].wrapping_add(1 + round as u8);
        }
        bytes.truncate(original.len() - (original.len() / 80) * (round % 2) * round / 2);
        fs::write(&object, bytes).unwrap();
        let mut out = Vec::new();
        let _ = symbolizer.symbolize(&binary(&program), &addrs, &mut out);
        assert_eq!(out.len(), addrs.len());
        assert!(out.iter().all(|frames| !frames.is_empty()));
    }
}

/// gdb's index lists the units' addresses where there is no `.debug_aranges`.
#[test]
fn units_by_gdb_index() {
    if !has(&["clang++", "ld.lld"]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let flags = [
        "-O2",
        "-g",
        "-ggnu-pubnames",
        "-fuse-ld=lld",
        "-Wl,--gdb-index",
        "-std=c++17",
        "-DVARIANT=1",
    ];
    fs::write(dir.path().join("prog.cpp"), CPP_SOURCE).unwrap();
    run(
        "clang++",
        &[&flags[..], &["-o", "prog", "prog.cpp"]].concat(),
        dir.path(),
    );
    let headers = run("readelf", &["-SW", "prog"], dir.path());
    assert!(headers.contains(".gdb_index") && !headers.contains(".debug_aranges"));
    let program = dir.path().join("prog");
    let addrs = addresses(&program, "outer_sum");
    let found = symbolize(&binary(&program), &addrs);
    assert!(found.iter().any(|frames| frames.len() > 4));
    run(
        "objcopy",
        &["--remove-section", ".gdb_index", "prog", "plain"],
        dir.path(),
    );
    let expected = symbolize(&binary(&dir.path().join("plain")), &addrs);
    assert_eq!(found, expected);
}
