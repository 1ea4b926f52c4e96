use super::*;
use crate::elf::Dynamic;
use aiprof_common::{PYTHON_NO_FIELD, PYTHON_SHIMS, TSS_GLIBC, TSS_LIST, TSS_MUSL};
use std::process::Command;

fn version(minor: u8, free_threaded: bool) -> Version {
    Version {
        major: 3,
        minor,
        free_threaded,
    }
}

/// `PyGILState_GetThisThreadState`, as compilers made it.
#[test]
fn the_key_is_found_in_the_function_that_uses_it() {
    // 3.8.18, shared: mov _PyRuntime@got(%rip),%rax; cmpq $0,0x568(%rax); je; lea
    // 0x570(%rax),%rdi; jmp PyThread_tss_get@plt.
    let shared = [
        0x48, 0x8b, 0x05, 0xc1, 0x86, 0x16, 0x00, 0x48, 0x83, 0xb8, 0x68, 0x05, 0x00, 0x00, 0x00,
        0x74, 0x0f, 0x48, 0x8d, 0xb8, 0x70, 0x05, 0x00, 0x00, 0xe9, 0x23, 0x7a, 0xeb, 0xff, 0x0f,
        0x1f, 0x00, 0x31, 0xc0, 0xc3,
    ];
    assert_eq!(key::offset(&shared, 0x1b_25b0, 0x37_2e00), Some(0x570));
    // Debian's 3.11, static, with link-time optimization: cmpq $0,_PyRuntime+0x248(%rip);
    // je; mov _PyRuntime+0x254(%rip),%edi; jmp pthread_getspecific@plt.
    let optimized = [
        0x48, 0x83, 0x3d, 0x10, 0x91, 0x58, 0x00, 0x00, 0x74, 0x0b, 0x8b, 0x3d, 0x14, 0x91, 0x58,
        0x00, 0xe9, 0x8b, 0x33, 0xf5, 0xff, 0x31, 0xc0, 0xc3,
    ];
    assert_eq!(key::offset(&optimized, 0x4c_d350, 0xa5_6220), Some(0x250));
    for length in 0..shared.len() {
        key::offset(&shared[..length], 0, u64::MAX);
    }
    assert_eq!(key::offset(&[0xc3], 0, 0), None);
}

/// `PyGILState_GetThisThreadState` of 3.15, as compilers made it.
#[test]
fn the_variable_is_found_in_the_function_that_returns_it() {
    // Debian's 3.15, the program: endbr64; mov %fs:-0x28,%rax; ret.
    let program = [
        0xf3, 0x0f, 0x1e, 0xfa, 0x64, 0x48, 0x8b, 0x04, 0x25, 0xd8, 0xff, 0xff, 0xff, 0xc3,
    ];
    let offset = 0x28u64.wrapping_neg();
    let found = key::variable(&program, 0x42_fa7d);
    assert_eq!(found, Some(StatePlace::Static(offset)));
    // Its library: endbr64; push %rbp; mov %rsp,%rbp; lea 0x4aa661(%rip),%rdi; call
    // __tls_get_addr@plt; pop %rbp; mov 0x28(%rax),%rax; ret.
    let library = [
        0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x3d, 0x61, 0xa6, 0x4a, 0x00,
        0xe8, 0x5c, 0x9d, 0xcf, 0xff, 0x5d, 0x48, 0x8b, 0x40, 0x28, 0xc3,
    ];
    let found = key::variable(&library, 0x3c_f120);
    let place = StatePlace::Dynamic {
        index: 0x87_9790,
        added: 0x28,
    };
    assert_eq!(found, Some(place));
    // What initial-exec libraries have: mov 0x100(%rip),%rax; mov %fs:(%rax),%rax; ret.
    let loaded = [
        0x48, 0x8b, 0x05, 0x00, 0x01, 0x00, 0x00, 0x64, 0x48, 0x8b, 0x00, 0xc3,
    ];
    let found = key::variable(&loaded, 0x1000);
    assert_eq!(found, Some(StatePlace::Loaded(0x1107)));
    for length in 0..library.len() {
        key::variable(&library[..length], u64::MAX);
    }
    assert_eq!(key::variable(&[0xc3], 0), None);
}

/// What a program has of an interpreter that it links: the variable in its section, with the words
/// of 3.13 and the type of its code objects. The other type is a decoy.
const LINKED: &str = r#"
typedef struct { long count; void *type; long size; const char *name; long basic, item; } Type;
__attribute__((section(".PyRuntime"))) unsigned long _PyRuntime[128] = { WORDS };
Type Other_Type = { 1, 0, 0, "coder", 200, 2 };
Type PyCode_Type = { 1, 0, 0, "code", 200, 2 };
__attribute__((noinline)) int _PyEval_EvalFrameDefault(int n) { return n * 3; }
__attribute__((noinline)) int PyObject_Call(int n) { return _PyEval_EvalFrameDefault(n) + 1; }
int main(int n, char **v) { return PyObject_Call(n) + (int)_PyRuntime[n] + (v == 0); }
"#;

#[test]
fn an_interpreter_that_a_program_links_is_found_with_names_and_without() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let words = DEBUG_3_13.map(|word| word.to_string()).join(",");
    std::fs::write(path("a.c"), LINKED.replace("WORDS", &words)).unwrap();
    for flags in [&["-pie", "-fPIE"][..], &["-no-pie"], &["-static"]] {
        let mut cc = Command::new("cc");
        cc.args(flags).arg("-O1").args([path("a.c").as_os_str()]);
        if !cc
            .arg("-o")
            .arg(path("a"))
            .status()
            .is_ok_and(|done| done.success())
        {
            println!("skipped: an_interpreter_that_a_program_links: no C compiler");
            return;
        }
        let named = std::fs::read(path("a")).unwrap();
        let symbols = symbols_of(&named);
        let found = Interpreter::find(&Bytes(named)).unwrap();
        let (eval, size) = symbols["_PyEval_EvalFrameDefault"];
        assert_eq!(found.version, version(13, false));
        assert_eq!(found.eval, eval..eval + size);
        assert_eq!(found.code_type, symbols["PyCode_Type"].0);
        let (call, size) = symbols["PyObject_Call"];
        assert_eq!(
            found.functions,
            eval.min(call)..(call + size).max(found.eval.end)
        );
        assert!(!found.functions.contains(&symbols["main"].0));
        let strip = Command::new("strip").arg(path("a")).status();
        assert!(strip.is_ok_and(|done| done.success()));
        let found = Interpreter::find(&Bytes(std::fs::read(path("a")).unwrap())).unwrap();
        assert_eq!((found.eval.clone(), found.functions.clone()), (0..0, 0..0));
        assert_eq!(found.code_type, symbols["PyCode_Type"].0);
        let layout = found.layout(0x1000, false).unwrap();
        assert_eq!(layout.tss, TSS_LIST);
        let runtime = symbols["_PyRuntime"].0;
        assert_eq!(layout.interpreters, runtime + 0x1000 + DEBUG_3_13[5]);
    }
}

/// Addresses and sizes of a file's symbols.
fn symbols_of(file: &[u8]) -> std::collections::BTreeMap<String, (u64, u64)> {
    use object::{Object as _, ObjectSymbol as _};
    let file = object::File::parse(file).unwrap();
    let symbols = file.symbols();
    symbols
        .map(|s| (s.name().unwrap().to_owned(), (s.address(), s.size())))
        .collect()
}

/// The first words of `_PyRuntime` of 3.13.0.
const DEBUG_3_13: [u64; 73] = [
    COOKIE,
    0x030d_00f0,
    0,
    283_320,
    608,
    632,
    194_968,
    7272,
    7264,
    7344,
    7400,
    7656,
    7640,
    7648,
    16,
    7752,
    0,
    7768,
    7760,
    304,
    0,
    8,
    16,
    72,
    152,
    160,
    232,
    32,
    80,
    8,
    0,
    56,
    72,
    70,
    208,
    112,
    120,
    128,
    136,
    68,
    52,
    96,
    104,
    200,
    16,
    8,
    416,
    24,
    88,
    168,
    32,
    24,
    16,
    40,
    24,
    16,
    48,
    32,
    40,
    24,
    16,
    32,
    16,
    24,
    40,
    16,
    32,
    64,
    32,
    16,
    40,
    240,
    200,
];

#[test]
fn an_interpreter_that_describes_itself_is_believed_where_that_can_be() {
    let layout = layout::of(version(13, false), &DEBUG_3_13).unwrap();
    // As in its headers.
    assert_eq!(layout.kind, PYTHON_SHIMS);
    assert_eq!((layout.thread_frame, layout.thread_id), (72, 152));
    assert_eq!((layout.frame_previous, layout.frame_code), (8, 0));
    assert_eq!((layout.frame_instruction, layout.frame_owner), (56, 70));
    assert_eq!((layout.code_filename, layout.code_qualname), (112, 128));
    assert_eq!((layout.code_lines, layout.code_instructions), (136, 200));
    assert_eq!((layout.string_ascii, layout.string_compact), (40, 56));
    assert_eq!((layout.bytes_size, layout.bytes_data), (16, 32));
    assert_eq!(layout.code_bytecodes, PYTHON_NO_FIELD);
    // Where the other states of a thread are: interpreters.next and threads.head, and next.
    assert_eq!((layout.interp_next, layout.interp_threads), (7264, 7344));
    assert_eq!(layout.thread_next, 8);
    // What the programs could not read, or is cut off, is not.
    for (word, value) in [(29, 4096), (33, 100), (38, 400), (45, 1 << 20)] {
        let mut other = DEBUG_3_13;
        other[word] = value;
        assert_eq!(layout::of(version(13, false), &other), None, "{word}");
    }
    assert_eq!(layout::of(version(13, false), &DEBUG_3_13[..60]), None);
    assert_eq!(layout::of(version(13, false), &[]), None);
}

#[test]
fn versions_that_are_not_known_have_no_layout() {
    for minor in [0, 7, 15, 255] {
        assert_eq!(layout::of(version(minor, false), &DEBUG_3_13), None);
    }
    let two = Version {
        major: 2,
        ..version(11, false)
    };
    assert_eq!(layout::of(two, &[]), None);
    for minor in 8..=12 {
        let layout = layout::of(version(minor, false), &[]).unwrap();
        let interpreter = Interpreter {
            version: version(minor, false),
            eval: 0x100..0x200,
            functions: 0..0,
            state: key::usual(version(minor, false)).map(StatePlace::Key),
            runtime: 0x4000,
            code_type: 0x5000,
            debug: Vec::new(),
        };
        let placed = interpreter.layout(0x7000_0000, true).unwrap();
        assert_eq!((placed.tss, placed.code_type), (TSS_MUSL, 0x7000_5000));
        let key = key::usual(version(minor, false)).unwrap();
        assert_eq!(placed.key, 0x7000_0000 + key);
        assert_eq!(placed.code_lines, layout.code_lines);
        assert_eq!(interpreter.layout(0, false).unwrap().tss, TSS_GLIBC);
    }
}

/// A file in memory.
struct Bytes(Vec<u8>);

impl ReadAt for Bytes {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = self.0.get(from..).unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

/// The symbols that a file of this machine exports are those that an independent reader
/// finds.
#[test]
fn exported_symbols_are_found_by_their_hash() {
    use object::{Object as _, ObjectSymbol as _};
    let paths = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib64/libc.so.6",
        "/usr/bin/python3",
    ];
    let mut seen = 0;
    for bytes in paths.iter().filter_map(|path| std::fs::read(path).ok()) {
        let file = object::File::parse(&*bytes).unwrap();
        let symbols: Vec<(Vec<u8>, u64, u64)> = file
            .dynamic_symbols()
            .filter(|symbol| symbol.is_definition() && symbol.is_global())
            .map(|s| (s.name_bytes().unwrap().to_vec(), s.address(), s.size()))
            .collect();
        let source = Bytes(bytes.clone());
        let dynamic = Dynamic::read(&source).unwrap();
        for (name, ..) in &symbols {
            let found = dynamic.find(name);
            let is_one = |found: &crate::elf::DynamicSymbol| {
                let mut same = symbols.iter().filter(|(other, ..)| other == name);
                same.any(|(_, address, size)| (found.address, found.size) == (*address, *size))
            };
            assert!(found.as_ref().is_some_and(is_one), "{found:?}");
            seen += 1;
        }
        assert_eq!(dynamic.find(b"no_such_symbol_in_any_file"), None);
    }
    if seen == 0 {
        println!("skipped: exported_symbols_are_found_by_their_hash: no libc where it usually is");
    }
}

#[test]
fn damaged_files_have_no_interpreter_and_do_no_harm() {
    let Ok(whole) = std::fs::read(std::env::current_exe().unwrap()) else {
        return;
    };
    assert_eq!(Interpreter::find(&Bytes(whole.clone())), None);
    let head = whole[..4096.min(whole.len())].to_vec();
    let mut state = 7u64;
    for _ in 0..2000 {
        let mut damaged = whole[..(64 << 10).min(whole.len())].to_vec();
        damaged[..head.len()].copy_from_slice(&head);
        for _ in 0..20 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = (state >> 33) as usize % 2048;
            damaged[at] = (state >> 20) as u8;
        }
        Interpreter::find(&Bytes(damaged));
    }
}
