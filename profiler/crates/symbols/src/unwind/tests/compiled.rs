//! What the C compiler of this machine writes for code that is hard to come by elsewhere. Without
//! one, these tests print that and pass.

use super::reference::compare;
use super::{UnwindFile, rule, rule_at, rule_rbp};
use aiprof_common::{CFA_DEREF_RBP, CFA_PLT, CFA_RBP, CFA_REG, CFA_RSP};
use object::{Object as _, ObjectSymbol as _};
use std::path::Path;
use std::process::Command;

/// Compiles C to a shared object; `None` if there is no compiler for it.
fn compile(source: &str, flags: &[&str], dir: &Path) -> Option<Vec<u8>> {
    let (input, output) = (dir.join("test.c"), dir.join("test.so"));
    std::fs::write(&input, source).unwrap();
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .args([&output, &input])
        .args(flags)
        .status();
    match done {
        Ok(status) if status.success() => Some(std::fs::read(output).unwrap()),
        result => {
            eprintln!("skipped: cc: {result:?}");
            None
        }
    }
}

#[test]
fn realigned_stack_and_lazy_plt() {
    // An aligned variable next to one of unknown size: gcc addresses the first
    // by a register of its own and keeps the CFA in memory.
    let source = "
        extern void use(void *a, void *b);
        int f(int n, ...) {
            __builtin_va_list list;
            __builtin_va_start(list, n);
            char small[n];
            char aligned[128] __attribute__((aligned(64)));
            use(small, aligned);
            return __builtin_va_arg(list, int) + aligned[n];
        }";
    let dir = tempfile::tempdir().unwrap();
    let flags = ["-Wl,-z,lazy", "-fplt", "-fomit-frame-pointer"];
    let Some(data) = compile(source, &flags, dir.path()) else {
        return;
    };
    let kinds = compare(&data);
    assert!(kinds.contains_key(&CFA_PLT), "{kinds:?}");
    let version = Command::new("cc").arg("--version").output().unwrap().stdout;
    if String::from_utf8_lossy(&version).contains("Free Software Foundation") {
        assert!(kinds.contains_key(&CFA_DEREF_RBP), "{kinds:?}");
        assert!(kinds.contains_key(&(CFA_REG + 10)), "{kinds:?}");
    }
}

#[test]
fn file_without_a_search_table() {
    let source = "int g(int); int f(int n) { return g(n) + g(n + 1); }";
    let dir = tempfile::tempdir().unwrap();
    let flags = ["-Wl,--no-eh-frame-hdr"];
    let Some(data) = compile(source, &flags, dir.path()) else {
        return;
    };
    assert!(!compare(&data).is_empty());
}

/// push %ebp (one byte); mov %esp, %ebp (two): registers have other numbers there, and addresses
/// on the stack four bytes.
#[test]
fn programs_of_32_bits_have_rules_in_words_of_four_bytes() {
    let source = "int g(int); int f(int n) { return g(n) + g(n + 1); }";
    let dir = tempfile::tempdir().unwrap();
    for frame_table in ["-Wl,--eh-frame-hdr", "-Wl,--no-eh-frame-hdr"] {
        let flags = [
            "-m32",
            "-nostdlib",
            "-fno-omit-frame-pointer",
            "-fcf-protection=none",
        ];
        let flags = [&flags[..], &[frame_table]].concat();
        let Some(data) = compile(source, &flags, dir.path()) else {
            return;
        };
        let object = object::File::parse(&data[..]).unwrap();
        let mut symbols = object.dynamic_symbols();
        let f = symbols
            .find(|symbol| symbol.name() == Ok("f"))
            .unwrap()
            .address();
        let file = UnwindFile::open(data.clone()).unwrap();
        assert!(file.is_narrow() && file.malformed() == 0);
        assert_eq!(rule_at(&file, f), rule(CFA_RSP, 4), "{frame_table}");
        assert_eq!(
            rule_at(&file, f + 1),
            rule_rbp(CFA_RSP, 8, -8),
            "{frame_table}"
        );
        assert_eq!(
            rule_at(&file, f + 3),
            rule_rbp(CFA_RBP, 8, -8),
            "{frame_table}"
        );
    }
}
