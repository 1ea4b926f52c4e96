//! Compiled and real libraries, compared with the output of objdump and nm.

use super::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const SOURCE: &str = r#"
    #include <stddef.h>
    #define API __attribute__((visibility("default")))
    extern int outside(int);
    static volatile int sink;
    API int leaf(int a) { return a + 1; }
    API __attribute__((noinline)) int twice(int a) { if (a > 3) return outside(a) + 1; sink = a; return 7; }
    API int tail(int a) { sink = a; return twice(a * 2); }
    API int to_plt(int a) { return outside(a); }
    API int through(int (*f)(int), int a) { sink = 1; return f(a); }
    API long many(long a, long b, long c, long d, long e, long f, long g) {
        char room[a + 1]; room[b % (a + 1)] = (char)c; sink = room[0];
        switch (d) {
        case 0: return e; case 1: return outside(1); case 2: return f * 2;
        case 3: return g - a; case 4: return outside(5) * 3; case 5: return b;
        case 6: sink = 9; return c; default: return 0; }
    }
    API void loops(char *p, size_t n) { for (size_t i = 0; i < n; i++) p[i] ^= 0x5a; }
    static __attribute__((noinline)) int hidden(int a) { sink = a; return outside(a) - 1; }
    API int to_hidden(int a) { sink++; return hidden(a + 1); }
    extern API __typeof(leaf) leaf_alias __attribute__((alias("leaf")));
    static int (*choose(void))(int) { return leaf; }
    API int chosen(int) __attribute__((ifunc("choose")));
"#;

/// Those that most functions have.
const ARGUMENTS: u8 = 0b11;

/// Builds the source; `None`, with a message, without that compiler.
fn compile(dir: &Path, compiler: &str, flags: &[&str]) -> Option<PathBuf> {
    let (input, output) = (dir.join("a.c"), dir.join("a.so"));
    fs::write(&input, SOURCE).unwrap();
    let built = Command::new(compiler)
        .args(["-shared", "-fPIC", "-o"])
        .args([&output, &input])
        .args(flags)
        .output();
    match built {
        Ok(done) => {
            let text = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{compiler}: {text}");
            Some(output)
        }
        Err(error) => {
            println!("skipped: {compiler} {flags:?}: {error}");
            None
        }
    }
}

/// What objdump prints about a file's code.
#[derive(Default)]
struct Listing {
    /// Addresses of the return instructions.
    returns: BTreeSet<u64>,
    /// All instructions, by address.
    instructions: BTreeMap<u64, String>,
}

fn objdump(path: &Path) -> Option<Listing> {
    let done = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn", "-j", ".text"])
        .arg(path)
        .output();
    let Ok(done) = done.inspect_err(|error| println!("skipped: objdump: {error}")) else {
        return None;
    };
    let mut listing = Listing::default();
    for line in String::from_utf8_lossy(&done.stdout).lines() {
        let Some((address, rest)) = line.split_once(":\t") else {
            continue;
        };
        let address = u64::from_str_radix(address.trim(), 16).unwrap();
        let words: Vec<&str> = rest.split_whitespace().collect();
        if words.contains(&"ret") {
            listing.returns.insert(address);
        }
        listing.instructions.insert(address, words.join(" "));
    }
    Some(listing)
}

fn all(library: &ProbedLibrary<'_>) -> symbols::FoundFunctions {
    library.functions(|_| Some(0)).unwrap()
}

/// Compares entries and exits with objdump; returns (functions, emulated entries,
/// functions whose exits are known).
fn compare(path: &Path) -> Option<(usize, usize, usize)> {
    let listing = objdump(path)?;
    let file = File::open(path).unwrap();
    let library = ProbedLibrary::open(&file).unwrap();
    let (mut n, mut emulated, mut known) = (0, 0, 0);
    for function in all(&library).functions {
        if !listing.instructions.contains_key(&function.vaddr) {
            continue; // in .init or .fini
        }
        let Some(places) = library
            .places(&function, ARGUMENTS, Some(Objects::default()))
            .unwrap()
        else {
            println!("{}: not probed", function.name);
            continue;
        };
        let vaddr = |offset| aiprof_symbols::unwind::address_of(library.text(), offset).unwrap();
        let at = &listing.instructions[&vaddr(places.entry)];
        n += 1;
        emulated += usize::from(places.emulated);
        let emulates = at.starts_with(['j', 'c', 'p', 'n', 'x']) || at.starts_with("bnd j");
        assert!(emulates || !places.emulated, "{}: {at}", function.name);
        let exits: BTreeSet<u64> = places.exits.iter().map(|&offset| vaddr(offset)).collect();
        if exits.is_empty() {
            continue;
        }
        known += 1;
        // Those of tail calls are returns too.
        assert!(exits.is_subset(&listing.returns), "{}", function.name);
        let code = function.vaddr..function.vaddr + function.size;
        let own: Vec<u64> = exits.range(code.clone()).copied().collect();
        let expected: Vec<u64> = listing.returns.range(code).copied().collect();
        assert_eq!(own, expected, "{}", function.name);
    }
    Some((n, emulated, known))
}

#[test]
fn compiled_functions() {
    let dir = tempfile::tempdir().unwrap();
    for compiler in ["gcc", "clang"] {
        for flags in [
            &["-O0"][..],
            &["-O2"],
            &["-O3", "-fcf-protection=full"],
            &["-O2", "-fno-plt", "-fno-omit-frame-pointer"],
            &["-Os", "-fno-asynchronous-unwind-tables"],
        ] {
            let Some(path) = compile(dir.path(), compiler, flags) else {
                continue;
            };
            let Some((n, emulated, known)) = compare(&path) else {
                return;
            };
            println!("{compiler} {flags:?}: {n} functions, {emulated} emulated, {known} exits");
            assert!(n >= 8 && known >= 6, "{compiler} {flags:?}: {n} {known}");
        }
    }
}

#[test]
fn tail_calls_are_followed_into_functions_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = compile(
        dir.path(),
        "gcc",
        &["-O2", "-fno-semantic-interposition", "-s"],
    ) else {
        return;
    };
    let file = File::open(&path).unwrap();
    let library = ProbedLibrary::open(&file).unwrap();
    let found = all(&library);
    let exits = |name: &str| {
        let function = found.functions.iter().find(|f| f.name == name).unwrap();
        let places = library
            .places(function, ARGUMENTS, Some(Objects::default()))
            .unwrap()
            .unwrap();
        let end = function.file_offset + function.size;
        let own = |&&e: &&u64| (function.file_offset..end).contains(&e);
        let inside = places.exits.iter().filter(own).count();
        (inside, places.exits.len() - inside)
    };
    // `hidden` has no symbol left, and is found by the unwind data.
    assert_eq!(exits("to_hidden"), (0, 1));
    let (inside, outside) = exits("tail");
    assert!(inside == 0 && outside >= 1, "{inside} {outside}");
    // Where a PLT entry or a pointer leads to is not known.
    assert_eq!(exits("to_plt"), (0, 0));
    assert_eq!(exits("through"), (0, 0));
}

#[test]
fn aliases_resolvers_and_local_functions() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = compile(dir.path(), "gcc", &["-O1"]) else {
        return;
    };
    let file = File::open(&path).unwrap();
    let library = ProbedLibrary::open(&file).unwrap();
    let names = ["leaf_alias", "leaf", "hidden", "chosen", "outside"];
    let found = library
        .functions(|name| names.iter().position(|n| *n == name))
        .unwrap();
    let mut got: Vec<&str> = found.functions.iter().map(|f| f.name.as_str()).collect();
    got.sort_unstable();
    // The lower rank wins; `outside` is not of this file.
    assert_eq!(got, ["hidden", "leaf_alias"]);
    assert_eq!((found.aliases, found.resolvers > 0), (2, true));
}

#[test]
fn real_libraries() {
    let folder = Path::new("/usr/lib/x86_64-linux-gnu");
    for name in [
        "libze_loader.so.1",
        "libz.so.1",
        "libstdc++.so.6",
        "libm.so.6",
    ] {
        let path = folder.join(name);
        if !path.exists() {
            println!("skipped: real_libraries: no {name}");
            continue;
        }
        let Some((n, emulated, known)) = compare(&path) else {
            return;
        };
        println!("{name}: {n} functions, {emulated} emulated, exits of {known}");
        assert!(n > 0, "{name}");
    }
}

#[test]
fn damaged_files_are_survived() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = compile(dir.path(), "gcc", &["-O2"]) else {
        return;
    };
    let good = fs::read(&path).unwrap();
    let mut state = 1_u64;
    for round in 0..400 {
        let mut bytes = good.clone();
        for _ in 0..1 + round % 8 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // Most of what matters is at both ends.
            let span = if state >> 63 == 0 { 1024 } else { bytes.len() };
            let at = (state >> 20) as usize % span;
            let at = if state >> 62 & 1 == 0 {
                at
            } else {
                bytes.len() - 1 - at
            };
            bytes[at] = (state >> 8) as u8;
        }
        if round % 5 == 0 {
            bytes.truncate((state >> 33) as usize % bytes.len());
        }
        fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        let Ok(library) = ProbedLibrary::open(&file) else {
            continue;
        };
        let Ok(found) = library.functions(|_| Some(0)) else {
            continue;
        };
        for function in &found.functions {
            let _ = library.places(function, ARGUMENTS, Some(Objects::default()));
        }
    }
}

/// The ends of the functions of Intel's driver are known, although nearly all go on in
/// virtual functions, and Debian 12's returns and jumps stand in thunks. More files can
/// be named in AIPROF_TEST_DRIVERS.
#[test]
fn functions_of_intels_driver_have_ends() {
    use crate::runtime::plan;
    use aiprof_model::probes::{Tables, table::Exits};
    const DRIVER: &str = "/usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1";
    let more = std::env::var("AIPROF_TEST_DRIVERS").unwrap_or_default();
    let tables = Tables::built_in();
    for path in std::iter::once(DRIVER).chain(more.split_whitespace()) {
        let Ok(file) = fs::File::open(path) else {
            println!("skipped: functions_of_intels_driver_have_ends: no {path}");
            continue;
        };
        let uses: Vec<_> = tables
            .of_file(path, &[])
            .map(|active| plan::Use {
                table: std::sync::Arc::clone(active.table),
                layer: 1,
                names_only: false,
            })
            .collect();
        let library = ProbedLibrary::open(&file).unwrap();
        let planned = plan::plan(&library, &uses, Exits::All).unwrap();
        assert!(
            planned.functions.len() > 20,
            "{path}: {}",
            planned.functions.len()
        );
        let wanted = |f: &&plan::Planned| f.compiled.spec.flags & aiprof_common::SPEC_EXIT != 0;
        let all = planned.functions.iter().filter(wanted);
        let (with, without): (Vec<_>, Vec<_>) = all.partition(|f| !f.places.exits.is_empty());
        let places: usize = with.iter().map(|f| f.places.exits.len()).sum();
        // These go on in another library, which the driver loads when it needs it.
        let elsewhere = |symbol: &&String| symbol.starts_with("zeRTAS");
        let without = without.iter().map(|f| &f.symbol);
        let without: Vec<_> = without.filter(|symbol| !elsewhere(symbol)).collect();
        println!(
            "{path}: {} functions, {places} ends; none of {without:?}",
            with.len()
        );
        assert!(without.is_empty(), "{path}: {without:?}");
    }
}
