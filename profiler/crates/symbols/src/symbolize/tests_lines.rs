//! Source lines against `llvm-addr2line`, which reads the same files with other code.
//! (binutils 2.40 names the unit's file for code that other files inlined.)

use super::tests::{binary, compile, run, symbolizer};
use super::*;
use crate::elf;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Most addresses of one program.
const ADDRESSES: usize = 10_000;

/// For each address the source positions, innermost first.
fn llvm_addr2line(path: &Path, addrs: &[u64]) -> Vec<Vec<(String, u32)>> {
    let mut input = String::new();
    for addr in addrs {
        writeln!(input, "{addr:#x}").unwrap();
    }
    let mut child = Command::new("llvm-addr2line")
        .args(["-a", "-i", "-e"])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let out = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let mut all: Vec<Vec<(String, u32)>> = Vec::new();
    for line in String::from_utf8(out.stdout).unwrap().lines() {
        if line.starts_with("0x") {
            all.push(Vec::new());
            continue;
        }
        let line = line.split(" (discriminator").next().unwrap();
        let (file, number) = line.rsplit_once(':').unwrap();
        let frames = all.last_mut().unwrap();
        frames.push((file.to_owned(), number.parse().unwrap_or(0)));
    }
    assert_eq!(all.len(), addrs.len());
    all
}

/// A path without `.` and doubled slashes, and with `..` resolved.
fn tidy(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Addresses of a file's code, evenly spread.
fn code_addresses(path: &Path) -> Vec<u64> {
    let dir = path.parent().unwrap();
    let listing = run("readelf", &["-SW", path.to_str().unwrap()], dir);
    let text = listing.lines().find(|l| l.contains(" .text ")).unwrap();
    let mut words = text.split_whitespace().skip_while(|w| *w != ".text");
    let mut hex = |n| u64::from_str_radix(words.nth(n).unwrap(), 16).unwrap();
    let (begin, size) = (hex(2), hex(1));
    let count = ADDRESSES.min(size as usize) as u64;
    (0..count).map(|i| begin + i * size / count).collect()
}

/// Compares all lines of addresses that llvm-addr2line has a line of; returns how many.
fn compare(path: &Path) -> usize {
    let addrs = code_addresses(path);
    let expected = llvm_addr2line(path, &addrs);
    let mut found = Vec::new();
    // In batches, as while recording: of each some come from pages read before.
    let mut symbolizer = symbolizer();
    for batch in addrs.chunks(997) {
        symbolizer
            .symbolize(&binary(path), batch, &mut found)
            .unwrap();
    }
    let mut compared = 0;
    let mut wrong = Vec::new();
    for ((addr, expected), found) in addrs.iter().zip(&expected).zip(&found) {
        let Some((_, 1..)) = expected.first() else {
            continue;
        };
        compared += 1;
        let told = found
            .iter()
            .rev()
            .map(|f| f.source.clone().unwrap_or_default());
        let told: Vec<_> = told.map(|(file, line)| (tidy(&file), line)).collect();
        let expected: Vec<_> = expected.iter().map(|(f, l)| (tidy(f), *l)).collect();
        if told != expected {
            wrong.push(format!("{addr:#x}: {told:?}, not {expected:?}"));
        }
    }
    let shown = &wrong[..wrong.len().min(10)];
    assert!(
        wrong.is_empty(),
        "{}: {} of {compared}: {shown:#?} {:?}",
        path.display(),
        wrong.len(),
        symbolizer.stats()
    );
    eprintln!("{}: {compared} addresses with lines", path.display());
    compared
}

/// A program of many functions that inline each other.
fn large_c() -> String {
    let mut text = String::from("#include <string.h>\nvolatile int sink;\n");
    for i in 0..150 {
        writeln!(
            text,
            "static inline int in{i}(int x) {{\n  sink += x;\n  return sink * {i};\n}}\n\
             __attribute__((noinline)) int f{i}(int x) {{\n  int t = 0;\n  \
             for (int k = 0; k < x; k++)\n    t += in{i}(k) + in{}(t);\n  \
             char b[64];\n  memset(b, t, sizeof b);\n  return t + b[x & 63];\n}}",
            i / 2
        )
        .unwrap();
    }
    text.push_str("int main(int argc, char **argv) {\n  int t = 0;\n");
    for i in 0..150 {
        writeln!(text, "  t += f{i}(argc);").unwrap();
    }
    text.push_str("  return t;\n}\n");
    text
}

const LARGE_CPP: &str = r#"
#include <algorithm>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>
int main(int argc, char **argv) {
  std::map<std::string, std::vector<int>> m;
  std::unordered_map<std::string, double> u;
  std::regex r("(a|b)*c+[0-9]{2,3}");
  for (int i = 0; i < argc; i++) {
    m[argv[i]].push_back(i);
    u[argv[i]] += i * 1.5;
    if (std::regex_match(argv[i], r)) std::cout << argv[i] << std::endl;
  }
  std::vector<std::pair<std::string, double>> v(u.begin(), u.end());
  std::sort(v.begin(), v.end());
  for (auto &[k, w] : v) std::cout << k << w << m[k].size() << "\n";
}
"#;

const LARGE_RUST: &str = r#"
use std::collections::{BTreeMap, HashMap};

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for word in &words {
        *counts.entry(word).or_default() += 1;
    }
    let mut sorted: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for (word, n) in counts {
        sorted.entry(n).or_default().push(word);
    }
    for (n, mut words) in sorted {
        words.sort_unstable();
        println!("{n} {words:?} {:.3}", n as f64);
    }
}
"#;

const GO_SOURCE: &str = r#"package main

import (
	"fmt"
	"os"
	"sort"
)

func main() {
	words := append([]string{}, os.Args...)
	sort.Strings(words)
	fmt.Println(words)
}
"#;

/// Whether a tool is there.
fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output();
    if found.is_err() {
        eprintln!("skipped: source lines against addr2line: {tool} is not installed");
    }
    found.is_ok()
}

#[test]
fn lines_of_c_equal_addr2line() {
    let dir = TempDir::new().unwrap();
    let mut compilers = vec![("cc", "-gdwarf-4"), ("cc", "-gdwarf-5")];
    if has("clang") {
        compilers.push(("clang", "-gdwarf-5"));
    }
    for (compiler, flag) in compilers {
        fs::write(dir.path().join("large.c"), large_c()).unwrap();
        let args = ["-O2", flag, "-o", "large", "large.c"];
        run(compiler, &args, dir.path());
        if has("llvm-addr2line") {
            let compared = compare(&dir.path().join("large"));
            assert!(compared > 9000, "{compared}");
        }
    }
}

#[test]
fn lines_of_cpp_equal_addr2line() {
    let dir = TempDir::new().unwrap();
    let flags = ["-O2", "-g", "-std=c++17"];
    let program = compile(dir.path(), "c++", LARGE_CPP, "large", &flags);
    if has("llvm-addr2line") {
        assert!(compare(&program) > 9000);
    }
}

#[test]
fn lines_of_rust_equal_addr2line() {
    let dir = TempDir::new().unwrap();
    let flags = ["-O", "-g", "--edition=2024"];
    let program = compile(dir.path(), "rustc", LARGE_RUST, "large", &flags);
    if has("llvm-addr2line") {
        // The standard library's own code has lines, too.
        let compared = compare(&program);
        assert!(compared > 5000, "{compared}");
    }
}

#[test]
fn lines_of_go_equal_addr2line() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("main.go"), GO_SOURCE).unwrap();
    if Command::new("go").arg("version").output().is_err() {
        eprintln!("skipped: lines_of_go_equal_addr2line: go is not installed");
        return;
    }
    let mut go = Command::new("go");
    go.args(["build", "-o", "prog", "main.go"]);
    go.env("GOCACHE", dir.path().join("cache"))
        .env("GOFLAGS", "-mod=mod");
    assert!(go.current_dir(dir.path()).status().unwrap().success());
    if has("llvm-addr2line") {
        assert!(compare(&dir.path().join("prog")) > 9000);
    }
}

/// The C library of this machine, whose debug file the package libc6-dbg has: compressed,
/// and with units of assembly.
#[test]
fn lines_of_a_stripped_library_equal_addr2line() {
    let library = PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6");
    let found = File::open(&library).is_ok_and(|file| {
        let info = elf::inspect(&file).unwrap();
        let finder = debug_file::Finder {
            path: &library,
            owner: 0,
            root: None,
        };
        finder.debug(&info).is_some()
    });
    if !found {
        eprintln!("skipped: lines_of_a_stripped_library_equal_addr2line: no libc6-dbg");
        return;
    }
    if has("llvm-addr2line") {
        assert!(compare(&library) > 9000);
    }
}
