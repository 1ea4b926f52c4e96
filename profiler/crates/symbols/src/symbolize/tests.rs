//! Native symbolization against binutils, which read the same files with other
//! code: `addr2line -f -i -C` for inlined functions, `nm` for symbols.

use super::native::{BinaryRef, NativeSymbolizer, SymbolizeError, SymbolizeStats};
use super::*;
use crate::elf;
use aiprof_model::profile::{BuildId, FrameKind};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const C_SOURCE: &str = r#"
#include <stdio.h>
static volatile int sink;
static inline __attribute__((always_inline)) int innermost(int x) { sink += x; return sink * 3; }
static inline __attribute__((always_inline)) int middle(int x) { return innermost(x) + innermost(x + 1); }
static __attribute__((noinline)) int a_static(int x) { return middle(x) ^ sink; }
__attribute__((noinline)) int a_global(int x) { for (int i = 0; i < x; i++) sink += middle(i); return a_static(x); }
int main(int argc, char **argv) { return a_global(argc) + printf("%d\n", sink); }
"#;

const CPP_SOURCE: &str = r#"
#include <vector>
#include <string>
namespace outer { namespace {
template <typename T, int N> struct Box {
  T items[N];
  __attribute__((noinline)) T sum(const std::vector<T>& more) const {
    T t{}; for (auto& i : items) t += i; for (auto& m : more) t += m; return t; }
};
} 
struct Shape { virtual ~Shape(); virtual int area(int, unsigned long) const; int n; };
__attribute__((noinline)) Shape::~Shape() { n++; }
__attribute__((noinline)) int Shape::area(int a, unsigned long b) const { return n * a + (int)b; }
__attribute__((noinline)) bool operator<(const Shape& a, const Shape& b) { return a.n < b.n; }
}
int main(int argc, char**) {
  outer::Box<int, 4> b{{1, 2, 3, argc}};
  std::vector<int> v(argc, 7);
  outer::Shape s, t; s.n = argc; t.n = 2;
  return b.sum(v) + s.area(argc, v.size()) + (s < t);
}
"#;

const RUST_SOURCE: &str = r#"
pub mod shapes {
    pub trait Area { fn area(&self) -> u64; }
    pub struct Square<T>(pub T);
    impl<T: Into<u64> + Copy> Area for Square<T> {
        #[inline(never)]
        fn area(&self) -> u64 { let x = self.0.into(); helper(x) * x }
    }
    #[inline(always)]
    fn helper(x: u64) -> u64 { std::hint::black_box(x) + 1 }
}
use shapes::Area;
#[inline(never)]
fn sum(items: &[u8; 4]) -> u64 { items.iter().map(|&i| shapes::Square(i).area()).sum() }
fn main() { println!("{}", sum(&std::hint::black_box([1, 2, 3, 4]))); }
"#;

pub(super) fn run(program: &str, args: &[&str], dir: &Path) -> String {
    let out = Command::new(program)
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {stderr}");
    String::from_utf8(out.stdout).unwrap()
}

/// Compiles a source into `dir/name`.
pub(super) fn compile(
    dir: &Path,
    compiler: &str,
    source: &str,
    name: &str,
    flags: &[&str],
) -> PathBuf {
    let file = format!(
        "{name}.{}",
        match compiler {
            "cc" => "c",
            "c++" => "cpp",
            _ => "rs",
        }
    );
    fs::write(dir.join(&file), source).unwrap();
    run(compiler, &[flags, &["-o", name, &file]].concat(), dir);
    dir.join(name)
}

/// Compiles [`C_SOURCE`] with a build id and debug information.
fn c_program(dir: &Path) -> PathBuf {
    compile(
        dir,
        "cc",
        C_SOURCE,
        "prog",
        &["-O2", "-g", "-Wl,--build-id"],
    )
}

/// Text symbols of the file itself (not of the C runtime): address, size, name.
pub(super) fn functions(path: &Path, filter: &str) -> Vec<(u64, u64, String)> {
    let dir = path.parent().unwrap();
    let listing = run("nm", &["-S", "--defined-only", path.to_str().unwrap()], dir);
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let addr = u64::from_str_radix(words.next()?, 16).ok()?;
        let size = u64::from_str_radix(words.next()?, 16).ok()?;
        matches!(words.next()?, "t" | "T" | "W").then_some((addr, size, words.next()?.to_owned()))
    };
    let all = listing.lines().filter_map(parse);
    let found: Vec<_> = all.filter(|(_, _, name)| name.contains(filter)).collect();
    assert!(
        !found.is_empty(),
        "nm found nothing like {filter} in {}",
        path.display()
    );
    found
}

/// The output of addr2line: for each address the functions, outermost first, each with its source
/// position.
fn addr2line(path: &Path, addrs: &[u64]) -> Vec<Vec<(String, String)>> {
    let hex: Vec<String> = addrs.iter().map(|a| format!("{a:#x}")).collect();
    let mut args = vec!["-a", "-f", "-i", "-C", "-e", path.to_str().unwrap()];
    args.extend(hex.iter().map(String::as_str));
    let text = run("addr2line", &args, path.parent().unwrap());
    let mut all: Vec<Vec<(String, String)>> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            all.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap();
        let place = place.split(" (discriminator").next().unwrap();
        let frames = all.last_mut().unwrap();
        frames.insert(0, (line.to_owned(), place.to_owned()));
    }
    all
}

pub(super) fn symbolizer() -> NativeSymbolizer {
    NativeSymbolizer::new(SymbolizeOptions {
        source_lines: true,
        keep_inflated: false,
        ..SymbolizeOptions::default()
    })
}

pub(super) fn binary(path: &Path) -> BinaryRef<'_> {
    BinaryRef {
        path,
        file: None,
        build_id: None,
        root: None,
    }
}

pub(super) fn names(frames: &[SymFrame]) -> Vec<&str> {
    frames.iter().map(|f| f.name.as_str()).collect()
}

pub(super) fn symbolize(binary: &BinaryRef<'_>, addrs: &[u64]) -> Vec<Vec<SymFrame>> {
    let mut out = Vec::new();
    symbolizer().symbolize(binary, addrs, &mut out).unwrap();
    assert_eq!(out.len(), addrs.len());
    out
}

/// All addresses of the functions whose mangled names contain `filter`.
pub(super) fn addresses(path: &Path, filter: &str) -> Vec<u64> {
    let all = functions(path, filter);
    all.iter()
        .flat_map(|(addr, size, _)| *addr..addr + size)
        .collect()
}

/// Compares every address with addr2line: names, inlining, source lines.
fn assert_like_addr2line(path: &Path, filter: &str, same_name: fn(&str, &str) -> bool) {
    let addrs = addresses(path, filter);
    let expected = addr2line(path, &addrs);
    let found = symbolize(&binary(path), &addrs);
    let mut inlined = 0;
    for ((addr, expected), found) in addrs.iter().zip(&expected).zip(&found) {
        assert_eq!(
            expected.len(),
            found.len(),
            "{addr:#x}: {expected:?} {found:?}"
        );
        for (i, ((name, place), frame)) in expected.iter().zip(found).enumerate() {
            assert!(
                same_name(name, &frame.name),
                "{addr:#x}: {name} {}",
                frame.name
            );
            let kind = if i == 0 {
                FrameKind::Native
            } else {
                FrameKind::Inlined
            };
            assert_eq!(frame.kind, kind);
            let (file, line) = frame.source.clone().unwrap_or_default();
            let file_name = |p: &str| p.rsplit('/').next().unwrap_or(p).to_owned();
            let (expected_file, expected_line) = place.rsplit_once(':').unwrap();
            if expected_line != "?" {
                assert_eq!(file_name(&file), file_name(expected_file), "{addr:#x}");
                assert_eq!(line.to_string(), expected_line, "{addr:#x} {file}");
            }
            inlined += usize::from(i > 0);
        }
    }
    assert!(
        inlined > 10,
        "the program has no inlined functions to compare"
    );
}

#[test]
fn c_inlines_match_addr2line() {
    let dir = TempDir::new().unwrap();
    let program = c_program(dir.path());
    assert_like_addr2line(&program, "a_", |a, b| a == b);
}

#[test]
fn cpp_templates_match_addr2line() {
    let dir = TempDir::new().unwrap();
    let program = compile(dir.path(), "c++", CPP_SOURCE, "prog", &["-O2", "-g"]);
    assert_like_addr2line(&program, "outer", |a, b| a == b);
}

#[test]
fn rust_names_of_both_schemes_match_addr2line() {
    for scheme in ["v0", "legacy"] {
        let dir = TempDir::new().unwrap();
        let mangling = format!("-Csymbol-mangling-version={scheme}");
        // Stable rustc has either scheme only as an unstable choice, by version.
        let flags = ["-O", "-g", mangling.as_str(), "-Zunstable-options"];
        let flags: &[&str] = if scheme == "v0" { &flags[..3] } else { &flags };
        fs::write(dir.path().join("prog.rs"), RUST_SOURCE).unwrap();
        let mut command = Command::new("rustc");
        command
            .args(flags)
            .args(["-o", "prog", "prog.rs"])
            .env("RUSTC_BOOTSTRAP", "1");
        let out = command.current_dir(dir.path()).output().unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        assert_like_addr2line(&dir.path().join("prog"), "prog", |expected, found| {
            // binutils keeps the hash of legacy names, and crate disambiguators.
            let hashless = expected
                .rsplit_once("::h")
                .map_or(expected, |(name, _)| name);
            expected == found || hashless == found
        });
    }
}

#[test]
fn symbols_without_debug_information_match_nm() {
    let dir = TempDir::new().unwrap();
    let program = compile(dir.path(), "cc", C_SOURCE, "prog", &["-O2"]);
    for (addr, size, name) in functions(&program, "a_") {
        let found = symbolize(&binary(&program), &[addr, addr + size - 1]);
        for frames in found {
            assert_eq!(names(&frames), [name.as_str()]);
            assert_eq!(frames[0].kind, FrameKind::Native);
        }
    }
}

/// Moves the debug information into `debug` and strips the program.
fn split_debug(program: &Path, debug: &Path, link: bool) {
    let dir = program.parent().unwrap();
    let (program, debug) = (program.to_str().unwrap(), debug.to_str().unwrap());
    run("objcopy", &["--only-keep-debug", program, debug], dir);
    run("strip", &["-s", program], dir);
    if link {
        run(
            "objcopy",
            &[&format!("--add-gnu-debuglink={debug}"), program],
            dir,
        );
    }
}

/// The names that the unstripped program has at some addresses.
fn expected_names(program: &Path) -> (Vec<u64>, Vec<Vec<SymFrame>>) {
    let addrs = addresses(program, "a_");
    let frames = symbolize(&binary(program), &addrs);
    assert!(frames.iter().all(|f| f[0].kind == FrameKind::Native));
    (addrs, frames)
}

#[test]
fn stripped_with_debug_link() {
    for subdir in ["", ".debug"] {
        let dir = TempDir::new().unwrap();
        let program = compile(
            dir.path(),
            "cc",
            C_SOURCE,
            "prog",
            &["-O2", "-g", "-Wl,--build-id=none"],
        );
        let (addrs, expected) = expected_names(&program);
        fs::create_dir_all(dir.path().join(subdir)).unwrap();
        let debug = dir.path().join(subdir).join("prog.debug");
        split_debug(&program, &debug, true);
        assert_eq!(symbolize(&binary(&program), &addrs), expected);
        // A debug file of another build must not be used.
        let mut bytes = fs::read(&debug).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&debug, bytes).unwrap();
        let found = symbolize(&binary(&program), &addrs);
        assert!(found.iter().all(|f| names(f) == ["[no symbols prog]"]));
    }
}

/// The build id as readelf prints it.
pub(super) fn build_id(program: &Path) -> BuildId {
    let notes = run(
        "readelf",
        &["-n", program.to_str().unwrap()],
        program.parent().unwrap(),
    );
    let hex = notes.split("Build ID: ").nth(1).unwrap();
    let hex = hex.split_whitespace().next().unwrap();
    let bytes: Vec<u8> = (0..hex.len() / 2)
        .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    BuildId::new(&bytes).unwrap()
}

#[test]
fn stripped_with_build_id_directory_in_a_container() {
    let root = TempDir::new().unwrap();
    fs::create_dir(root.path().join("app")).unwrap();
    let program = c_program(&root.path().join("app"));
    let (addrs, expected) = expected_names(&program);
    let id = build_id(&program).to_string();
    let dir = root.path().join("usr/lib/debug/.build-id").join(&id[..2]);
    fs::create_dir_all(&dir).unwrap();
    split_debug(&program, &dir.join(format!("{}.debug", &id[2..])), false);
    let inside = BinaryRef {
        path: Path::new("/app/prog"),
        file: None,
        build_id: Some(build_id(&program)),
        root: Some(root.path()),
    };
    assert_eq!(symbolize(&inside, &addrs), expected);
    let outside = symbolize(&binary(&program), &addrs);
    assert!(outside.iter().all(|f| names(f) == ["[no symbols prog]"]));
}

#[test]
fn deleted_file_by_descriptor() {
    let dir = TempDir::new().unwrap();
    let program = c_program(dir.path());
    let (addrs, expected) = expected_names(&program);
    let file = File::open(&program).unwrap();
    fs::remove_file(&program).unwrap();
    let deleted = PathBuf::from(format!("{} (deleted)", program.display()));
    let reference = BinaryRef {
        file: Some(&file),
        ..binary(&deleted)
    };
    let mut symbolizer = symbolizer();
    // Twice: the second time from kept state.
    for _ in 0..2 {
        let mut out = Vec::new();
        symbolizer.symbolize(&reference, &addrs, &mut out).unwrap();
        assert_eq!(out, expected);
    }
    let mut out = Vec::new();
    symbolizer.symbolize(&reference, &[1], &mut out).unwrap();
    assert_eq!(names(&out[0]), ["[no symbols prog]"]);
}

#[test]
fn replaced_file_is_not_used() {
    let dir = TempDir::new().unwrap();
    let program = c_program(dir.path());
    let old = build_id(&program);
    let (addrs, _) = expected_names(&program);
    let other = C_SOURCE.replace("sink * 3", "sink * 5");
    fs::remove_file(&program).unwrap();
    compile(
        dir.path(),
        "cc",
        &other,
        "prog",
        &["-O2", "-g", "-Wl,--build-id"],
    );
    let reference = BinaryRef {
        build_id: Some(old),
        ..binary(&program)
    };
    let mut symbolizer = symbolizer();
    let mut out = Vec::new();
    let error = symbolizer
        .symbolize(&reference, &addrs, &mut out)
        .unwrap_err();
    assert!(matches!(error, SymbolizeError::Replaced { .. }));
    assert!(error.to_string().contains("prog"));
    assert_eq!(out.len(), addrs.len());
    assert!(out.iter().all(|f| names(f) == ["[replaced prog]"]));
    assert_eq!(symbolizer.stats().replaced, 1);
    // The same symbolizer sees the new file when the build id fits.
    let reference = BinaryRef {
        build_id: Some(build_id(&program)),
        ..binary(&program)
    };
    symbolizer
        .symbolize(&reference, &addresses(&program, "a_")[..1], &mut out)
        .unwrap();
    assert_eq!(out.last().unwrap()[0].kind, FrameKind::Native);
}

#[test]
fn what_is_no_file_is_unreadable() {
    let dir = TempDir::new().unwrap();
    let fifo = dir.path().join("fifo");
    run("mkfifo", &[fifo.to_str().unwrap()], dir.path());
    for path in [dir.path().join("absent"), dir.path().to_owned(), fifo] {
        let mut out = Vec::new();
        let error = symbolizer()
            .symbolize(&binary(&path), &[1, 2], &mut out)
            .unwrap_err();
        assert!(
            matches!(error, SymbolizeError::Unreadable { .. }),
            "{error}"
        );
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(names(&out[1]), [format!("[unreadable {name}]")]);
    }
}

#[test]
fn corrupt_and_truncated_files_cost_only_themselves() {
    let dir = TempDir::new().unwrap();
    let program = c_program(dir.path());
    let addrs = addresses(&program, "a_");
    let bytes = fs::read(&program).unwrap();
    let victim = dir.path().join("victim");
    let mut state = 99_u64;
    let mut random = |n: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % n
    };
    let mut variants: Vec<Vec<u8>> = (0..40)
        .map(|i| bytes[..bytes.len() * i / 40].to_vec())
        .collect();
    for round in 0..60 {
        let mut damaged = bytes.clone();
        for _ in 0..=round {
            let at = random(damaged.len());
            damaged[at] = random(256) as u8;
        }
        variants.push(damaged);
    }
    let mut symbolizer = symbolizer();
    for variant in variants {
        fs::write(&victim, variant).unwrap();
        let mut out = Vec::new();
        let _ = symbolizer.symbolize(&binary(&victim), &addrs, &mut out);
        assert_eq!(out.len(), addrs.len());
        assert!(out.iter().all(|frames| !frames.is_empty()));
    }
    let mut out = Vec::new();
    symbolizer
        .symbolize(&binary(&program), &addrs, &mut out)
        .unwrap();
    assert!(out.iter().all(|f| f[0].kind == FrameKind::Native));
}

/// All names of `a_global`'s addresses under some options, and the counts.
fn global_names(program: &Path, options: SymbolizeOptions) -> (BTreeSet<String>, SymbolizeStats) {
    let (addr, size, _) = functions(program, "a_global").remove(0);
    let addrs: Vec<u64> = (addr..addr + size).collect();
    let mut symbolizer = NativeSymbolizer::new(options);
    let mut out = Vec::new();
    symbolizer
        .symbolize(&binary(program), &addrs, &mut out)
        .unwrap();
    let names = out.into_iter().flatten().map(|f| f.name).collect();
    (names, symbolizer.stats())
}

#[test]
fn compressed_debug_sections() {
    let dir = TempDir::new().unwrap();
    c_program(dir.path());
    for how in ["zlib", "zstd"] {
        let flag = format!("--compress-debug-sections={how}");
        run("objcopy", &[&flag, "prog", how], dir.path());
        let packed = dir.path().join(how);
        let headers = run("readelf", &["-tW", how], dir.path());
        assert!(
            headers.contains(&how.to_uppercase()),
            "objcopy compressed nothing"
        );
        assert_like_addr2line(&packed, "a_", |a, b| a == b);
        let (names, stats) = global_names(
            &packed,
            SymbolizeOptions {
                dwarf_limit: 1000,
                ..SymbolizeOptions::default()
            },
        );
        assert_eq!(
            names,
            BTreeSet::from(["a_global".to_owned()]),
            "beyond the limit"
        );
        assert_eq!(stats.dwarf_too_large, 1);
    }
    // What inflates to more than it claims is cut there, and counted as corrupt.
    let packed = dir.path().join("zlib");
    let mut bytes = fs::read(&packed).unwrap();
    let info = elf::inspect(&File::open(&packed).unwrap()).unwrap();
    for section in &info.debug {
        let size = section.offset as usize + 8;
        bytes[size..size + 8].copy_from_slice(&100_u64.to_ne_bytes());
    }
    fs::write(&packed, bytes).unwrap();
    let (names, stats) = global_names(&packed, SymbolizeOptions::default());
    assert_eq!(names, BTreeSet::from(["a_global".to_owned()]));
    assert_eq!(stats.corrupt, 1);
}

#[test]
fn deadline_leaves_the_symbols_names() {
    let dir = TempDir::new().unwrap();
    let program = c_program(dir.path());
    let (names, stats) = global_names(
        &program,
        SymbolizeOptions {
            dwarf_time: std::time::Duration::ZERO,
            ..SymbolizeOptions::default()
        },
    );
    assert_eq!(names, BTreeSet::from(["a_global".to_owned()]));
    assert_eq!(stats.dwarf_too_slow, 1);
}

#[test]
fn options_select_inlines_and_lines() {
    let dir = TempDir::new().unwrap();
    let program = c_program(dir.path());
    let addrs = addresses(&program, "a_");
    let depth = |inlines, source_lines| {
        let options = SymbolizeOptions {
            inlines,
            source_lines,
            ..SymbolizeOptions::default()
        };
        let mut out = Vec::new();
        let mut symbolizer = NativeSymbolizer::new(options);
        symbolizer
            .symbolize(&binary(&program), &addrs, &mut out)
            .unwrap();
        let lines = out.iter().flatten().any(|f| f.source.is_some());
        (out.iter().map(Vec::len).collect::<BTreeSet<_>>(), lines)
    };
    assert_eq!(depth(false, false), (BTreeSet::from([1]), false));
    assert_eq!(depth(false, true), (BTreeSet::from([1]), true));
    let (depths, lines) = depth(true, false);
    assert!(depths.contains(&3) && !lines, "{depths:?}");
}

/// A program whose one function holds inlined calls nested `depth` deep: two
/// bytes each, so a small file can hold millions.
fn nested_inlines(dir: &Path, depth: u32) -> PathBuf {
    let source = format!(
        r#"
.text
.globl main
.type main, @function
main: nop
  ret
.Lend:
.size main, .Lend - main
.section .debug_abbrev,"",@progbits
  .uleb128 1, 0x11
  .byte 1
  .uleb128 0x11, 0x01, 0x12, 0x07, 0x10, 0x17, 0, 0
  .uleb128 2, 0x2e
  .byte 1
  .uleb128 0x03, 0x08, 0x11, 0x01, 0x12, 0x07, 0, 0
  .uleb128 3, 0x1d
  .byte 1
  .uleb128 0, 0
  .byte 0
.section .debug_info,"",@progbits
  .long .Linfo_end - .Linfo
.Linfo:
  .short 4
  .long 0
  .byte 8
  .uleb128 1
  .quad main
  .quad .Lend - main
  .long 0
  .uleb128 2
  .string "main"
  .quad main
  .quad .Lend - main
  .rept {depth}
  .byte 3
  .endr
  .rept {depth} + 2
  .byte 0
  .endr
.Linfo_end:
.section .debug_line,"",@progbits
  .long .Lline_end - .Lline
.Lline:
  .short 4
  .long .Lprog - .Lhdr
.Lhdr:
  .byte 1, 1, 1, -5, 14, 13
  .byte 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1
  .byte 0
  .string "a.c"
  .uleb128 0, 0, 0
  .byte 0
.Lprog:
  .byte 0, 9, 2
  .quad main
  .byte 1
  .byte 2
  .uleb128 .Lend - main
  .byte 0, 1, 1
.Lline_end:
"#
    );
    fs::write(dir.join("nested.s"), source).unwrap();
    run("cc", &["-o", "nested", "nested.s"], dir);
    dir.join("nested")
}

#[test]
fn deeply_nested_inlines_do_not_exhaust_the_stack() {
    let dir = TempDir::new().unwrap();
    let program = nested_inlines(dir.path(), 1_000_000);
    let (addr, _, _) = functions(&program, "main").remove(0);
    let found = symbolize(&binary(&program), &[addr]);
    assert_eq!(names(&found[0])[0], "main");
}

#[test]
fn stripped_library_with_mini_debug_information() {
    let dir = TempDir::new().unwrap();
    let flags = ["-O2", "-shared", "-fPIC"];
    let library = compile(dir.path(), "cc", C_SOURCE, "lib.so", &flags);
    let (addr, _, name) = functions(&library, "a_global").remove(0);
    run("strip", &["-s", "lib.so"], dir.path());
    fs::write(dir.path().join("xz"), "no xz data").unwrap();
    run(
        "objcopy",
        &["--add-section", ".gnu_debugdata=xz", "lib.so"],
        dir.path(),
    );
    assert_eq!(
        names(&symbolize(&binary(&library), &[addr])[0]),
        [name.as_str()]
    );
}

/// Serves debug files as debuginfod does; ends with the test program.
pub(super) fn serve_debug_files(files: Vec<(String, Vec<u8>)>) -> std::net::SocketAddr {
    use std::io::{BufRead as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
            let head: Vec<String> = lines
                .map_while(Result::ok)
                .take_while(|l| !l.is_empty())
                .collect();
            let path = head.first().and_then(|l| l.split(' ').nth(1)).unwrap_or("");
            let wanted = |(id, _): &&(String, _)| path == format!("/buildid/{id}/debuginfo");
            let (status, body) = match files.iter().find(wanted) {
                Some((_, bytes)) => ("200 OK", &bytes[..]),
                None => ("404 Not Found", &b""[..]),
            };
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            let _ = stream.write_all(answer.as_bytes());
            if head.first().is_some_and(|l| l.starts_with("GET")) {
                let _ = stream.write_all(body);
            }
        }
    });
    address
}

#[test]
fn debuginfod_fetches_what_is_stripped() {
    if Command::new("debuginfod-find")
        .arg("--version")
        .output()
        .is_err()
    {
        eprintln!("SKIPPED: debuginfod-find is not installed (apt install debuginfod)");
        return;
    }
    let dir = TempDir::new().unwrap();
    let program = c_program(dir.path());
    let (addrs, expected) = expected_names(&program);
    let id = build_id(&program);
    let debug = dir.path().join("elsewhere");
    split_debug(&program, &debug, false);
    let address = serve_debug_files(vec![(id.to_string(), fs::read(&debug).unwrap())]);
    let config = debuginfod::Config {
        urls: format!("http://{address}/").into(),
        cache: Some(dir.path().join("cache")),
        program: "debuginfod-find".into(),
    };
    let options = SymbolizeOptions {
        source_lines: true,
        ..SymbolizeOptions::default()
    };
    let mut symbolizer = NativeSymbolizer::with_servers(options, Some(config));
    let reference = BinaryRef {
        build_id: Some(id),
        ..binary(&program)
    };
    let mut out = Vec::new();
    symbolizer.symbolize(&reference, &addrs, &mut out).unwrap();
    assert!(out.iter().all(|f| names(f) == ["[no symbols prog]"]));
    symbolizer.settle(Duration::from_secs(60));
    assert!(!symbolizer.is_fetching(Some(id)));
    out.clear();
    symbolizer.symbolize(&reference, &addrs, &mut out).unwrap();
    assert_eq!(out, expected);
}

/// Functions with several names, and the one that should be reported.
const ALIAS_SOURCE: &str = r#"
#define ALIAS(name, of) int name(int) __attribute__((alias(#of)))
int sink;
/* Global: the fewest underscores. */
int __time_get(int x) { return sink += x; }
ALIAS(time_get, __time_get);
ALIAS(_time_get, __time_get);
/* Local names and glibc's internal ones come last. */
static __attribute__((used)) int __GI_grow(int x) { return sink *= x; }
ALIAS(__grow, __GI_grow);
/* Weak after global, but not if it is glibc's public name. */
int strong(int x) { return sink -= x; }
__attribute__((weak)) ALIAS(a_weak, strong);
int __poll(int x) { return sink += x * 3; }
__attribute__((weak)) ALIAS(poll, __poll);
int __vdso_time(int x) { return sink += x * 5; }
__attribute__((weak)) ALIAS(time, __vdso_time);
/* Compilers' clones. */
int __clone(int x) __asm__("clone.part.0");
int __clone(int x) { return sink ^= x; }
int _of(int) __attribute__((alias("clone.part.0")));
/* With versions, as in glibc's debug files. */
int _versioned_impl(int x) { return sink |= x; }
__asm__(".symver _versioned_impl, versioned@V_1.0, remove");
ALIAS(versioned_new, _versioned_impl);
__asm__(".symver versioned_new, versioned@@V_2.1, remove");
/* Assembly without a type, and a typed name for the same code. */
__asm__(".text\n.globl untyped\nuntyped:\n.globl _typed\n.type _typed, @function\n_typed: ret\n.size _typed, 1\n");
"#;

#[test]
fn of_aliases_the_one_that_users_know_is_reported() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("map"), "V_1.0 { }; V_2.1 { } V_1.0;").unwrap();
    for debug in ["-g0", "-g"] {
        let flags = ["-shared", "-fPIC", "-O1", debug, "-Wl,--version-script=map"];
        let library = compile(dir.path(), "cc", ALIAS_SOURCE, "aliases", &flags);
        let text = run(
            "nm",
            &["--defined-only", library.to_str().unwrap()],
            dir.path(),
        );
        let address = |name: &str| {
            let line = text.lines().find(|l| l.split(' ').nth(2) == Some(name));
            let line = line.unwrap_or_else(|| panic!("no {name} in:\n{text}"));
            u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
        };
        for (any, expected) in [
            ("__time_get", "time_get"),
            ("__GI_grow", "__grow"),
            ("a_weak", "strong"),
            ("__poll", "poll"),
            ("time", "__vdso_time"),
            ("clone.part.0", "_of"),
            ("versioned@V_1.0", "versioned"),
            ("untyped", "_typed"),
        ] {
            let found = symbolize(&binary(&library), &[address(any)]);
            assert_eq!(names(&found[0]), [expected], "{any} {debug}:\n{text}");
        }
    }
}

const PLT_SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
int (*volatile pointer)(const char *) = puts;
double (*volatile other)(double) = cbrt;
int main(int argc, char **argv) {
    qsort(argv, argc, sizeof *argv, (int (*)(const void *, const void *))strcmp);
    printf("%f\n", cbrt(argc));
    return pointer(strchr(argv[0], '/')) + (int)other(argc) + puts(argv[0]) + (int)strlen(argv[argc - 1]);
}
"#;

/// The library stands before the source, so it must not be left out as unused.
const PLT_FLAGS: &[&str] = &["-O2", "-fno-builtin", "-Wl,--no-as-needed", "-lm"];

/// What objdump calls each instruction's function, for those in PLT sections:
/// address and name.
fn plt_instructions(path: &Path) -> Vec<(u64, String)> {
    let dir = path.parent().unwrap();
    let text = run("objdump", &["-d", "-w", path.to_str().unwrap()], dir);
    let (mut section, mut name) = (String::new(), String::new());
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(of) = line.strip_prefix("Disassembly of section ") {
            section = of.trim_end_matches(':').to_owned();
        } else if let Some((_, rest)) = line.split_once(" <")
            && let Some(label) = rest.strip_suffix(">:")
        {
            name = label.to_owned();
        }
        let address = line.trim_start().split_once(":\t");
        let address = address.and_then(|(hex, _)| u64::from_str_radix(hex, 16).ok());
        if let Some(address) = address
            && section.starts_with(".plt")
            && (name.ends_with("@plt") || name.starts_with("*ABS*"))
        {
            found.push((address, name.clone()));
        }
    }
    found
}

#[test]
fn plt_entries_are_named_as_by_objdump() {
    let layouts: [&[&str]; 6] = [
        &["-Wl,-z,lazy"],
        &["-Wl,-z,now"],
        &["-fcf-protection", "-Wl,-z,ibtplt", "-Wl,-z,lazy"],
        &["-fcf-protection", "-Wl,-z,ibtplt", "-Wl,-z,now"],
        &["-no-pie", "-Wl,-z,lazy"],
        &["-Wl,-z,lazy", "-s"],
    ];
    for flags in layouts {
        let dir = TempDir::new().unwrap();
        let flags = [PLT_FLAGS, flags].concat();
        let program = compile(dir.path(), "cc", PLT_SOURCE, "prog", &flags);
        let expected = plt_instructions(&program);
        for name in ["qsort@plt", "strchr@plt", "puts@plt"] {
            assert!(
                expected.iter().any(|(_, n)| n == name),
                "{flags:?}: {expected:?}"
            );
        }
        let addrs: Vec<u64> = expected.iter().map(|(address, _)| *address).collect();
        for ((address, name), found) in expected.iter().zip(symbolize(&binary(&program), &addrs)) {
            assert_eq!(names(&found), [name.as_str()], "{flags:?}: {address:#x}");
            assert_eq!(found[0].kind, FrameKind::Native);
        }
    }
}

#[test]
fn corrupt_plt_costs_only_its_names() {
    let dir = TempDir::new().unwrap();
    let program = compile(dir.path(), "cc", PLT_SOURCE, "prog", PLT_FLAGS);
    let entries = plt_instructions(&program);
    let (main, _, _) = functions(&program, "main").remove(0);
    let addrs: Vec<u64> = entries.iter().map(|(a, _)| *a).chain([main]).collect();
    let original = fs::read(&program).unwrap();
    let headers = run("readelf", &["-SW", program.to_str().unwrap()], dir.path());
    let offset = |name: &str| {
        let line = headers
            .lines()
            .find(|l| l.split_whitespace().any(|w| w == name))
            .unwrap();
        let mut words = line.split_whitespace().skip_while(|w| *w != name);
        usize::from_str_radix(words.nth(3).unwrap(), 16).unwrap()
    };
    let (relocations, plt) = (offset(".rela.plt"), offset(".plt"));
    for byte in [0u8, 0x68, 0xff] {
        for (at, len) in [(relocations, 48), (plt, 64), (plt + 16, 16)] {
            let mut bytes = original.clone();
            bytes[at..at + len].fill(byte);
            let damaged = dir.path().join("damaged");
            fs::write(&damaged, bytes).unwrap();
            let mut out = Vec::new();
            let done = symbolizer().symbolize(&binary(&damaged), &addrs, &mut out);
            assert!(done.is_ok() && out.len() == addrs.len());
            assert_eq!(names(out.last().unwrap()), ["main"]);
        }
    }
}

/// A program that is linked statically chooses its functions by processor: it calls them through
/// entries without a size in the file.
#[test]
fn entries_of_static_programs_are_named_by_what_they_lead_to() {
    const SOURCE: &str = r#"
static int one(void) { return 1; }
static int two(void) { return 2; }
static void *first_chooser(void) { return one; }
static void *second_chooser(void) { return two; }
static void *third_chooser(void) { return one; }
int first(void) __attribute__((ifunc("first_chooser")));
int second(void) __attribute__((ifunc("second_chooser")));
int third(void) __attribute__((ifunc("third_chooser")));
int main(void) { return first() + second() + third(); }
"#;
    for protection in ["-fcf-protection=none", "-fcf-protection=full"] {
        let dir = TempDir::new().unwrap();
        let flags = ["-O1", "-static", "-no-pie", protection];
        let program = compile(dir.path(), "cc", SOURCE, "prog", &flags);
        let text = run(
            "objdump",
            &["-d", "-w", program.to_str().unwrap()],
            dir.path(),
        );
        let main = text.split("<main>:").nth(1).unwrap();
        let main = main.split("\n\n").next().unwrap();
        // call 401020 <.plt+0x8>
        let calls = main.lines().filter_map(|line| line.split_once("call"));
        let entries: Vec<u64> = calls
            .filter_map(|(_, to)| u64::from_str_radix(to.split_whitespace().next()?, 16).ok())
            .collect();
        let expected = ["first", "second", "third"];
        assert_eq!(entries.len(), expected.len(), "{main}");
        let last_bytes: Vec<u64> = entries.iter().map(|entry| entry + 7).collect();
        for addrs in [&entries, &last_bytes] {
            for (found, name) in symbolize(&binary(&program), addrs).iter().zip(expected) {
                let found = &names(found)[0];
                // The symbol of the choice is that of its chooser.
                let choosers = [format!("{name}@plt"), format!("{name}_chooser@plt")];
                assert!(
                    choosers.contains(&(*found).to_owned()),
                    "{found} for {name}"
                );
            }
        }
    }
}

/// Assembly gives functions no size; linkers and libraries give numbers names.
#[test]
fn a_name_of_a_number_is_no_function() {
    const SOURCE: &str = r#"
__asm__(".globl a_number\n.set a_number, 0x400f00\n.globl sized\n.text\nsized: nop\n ret\n");
__asm__(".globl low_number\n.set low_number, 1\n");
int main(void) { return 0; }
"#;
    let dir = TempDir::new().unwrap();
    let program = compile(
        dir.path(),
        "cc",
        SOURCE,
        "prog",
        &["-no-pie", "-nostartfiles", "-Wl,-emain"],
    );
    let (main, _, _) = functions(&program, "main").remove(0);
    // In front of all code, where only the numbers are.
    let found = symbolize(&binary(&program), &[2, 0x401000 - 1, main]);
    assert_eq!(found[0][0].kind, FrameKind::Unknown, "{:?}", found[0]);
    assert_eq!(found[1][0].kind, FrameKind::Unknown, "{:?}", found[1]);
    assert_eq!(names(&found[2]), ["main"]);
}
