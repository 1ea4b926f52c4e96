use super::names::V8Names;
use super::*;
use crate::symbolize::SymFrame;
use aiprof_common::{JsFunction, js_check};
use aiprof_model::profile::FrameKind;
use std::cell::Cell;
use std::io;

/// Memory made up by a test: words by address.
#[derive(Default)]
struct Heap {
    words: std::collections::BTreeMap<u64, u64>,
    next: u64,
    reads: Cell<u64>,
}

impl ReadAt for Heap {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.reads.set(self.reads.get() + 1);
        let mut done = 0;
        for (byte, at) in buf.iter_mut().zip(offset..) {
            let Some(word) = self.words.get(&(at & !7)) else {
                break;
            };
            *byte = word.to_le_bytes()[(at & 7) as usize];
            done += 1;
        }
        match done {
            0 => Err(io::ErrorKind::InvalidInput.into()),
            done => Ok(done),
        }
    }
}

const SHARED: u16 = 282;
const SCRIPT: u16 = 167;
const SCOPE: u16 = 280;
const ONE_BYTE: u16 = 40;
const TWO_BYTE: u16 = 32;
const CONS: u16 = 41;
const EXTERNAL: u16 = 42;
const SLICED: u16 = 43;
const THIN: u16 = 45;
const PROCESS: (u32, u64) = (7, 1);

fn library(scope_variables: u16) -> V8Library {
    V8Library {
        version: (13, 6),
        interpreter: 0x1000..0x1200,
        builtins: 0x800..0x4800,
        fields: V8Fields {
            map_type: 12,
            function_shared: 32,
            shared_type: SHARED,
            shared_name: 24,
            shared_script: 40,
            shared_flags: 56,
            script_type: SCRIPT,
            script_source: 8,
            script_name: 16,
            script_id: 64,
            scope_type: SCOPE,
            scope_variables,
            strings: StringTags {
                first_other: 128,
                form: 7,
                sequential: 0,
                cons: 1,
                external: 2,
                sliced: 3,
                thin: 5,
                encoding: 8,
                one_byte: 8,
            },
            string_length: 12,
            string_chars: 16,
            cons_first: 16,
            cons_second: 24,
            thin_actual: 16,
            sliced_parent: 16,
            sliced_offset: 24,
            external_resource: 16,
        },
    }
}

fn smi(value: u32) -> u64 {
    u64::from(value) << 32
}

impl Heap {
    fn new() -> Self {
        Self {
            next: 0x10_0000,
            ..Self::default()
        }
    }

    /// An object of a type, with these words behind its map. Gives its value.
    fn object(&mut self, kind: u16, words: &[u64]) -> u64 {
        let map = self.next;
        self.words.insert(map, 1);
        self.words.insert(map + 8, u64::from(kind) << 32);
        self.words.insert(map + 16, 0);
        let at = map + 0x40;
        self.words.insert(at, map + 1);
        for (&word, to) in words.iter().zip((at + 8..).step_by(8)) {
            self.words.insert(to, word);
        }
        self.next = at + 8 * (words.len() as u64 + 8);
        at + 1
    }

    fn put(&mut self, value: u64, word: u64, to: u64) {
        self.words.insert(value - 1 + 8 * word, to);
    }

    fn bytes(bytes: &[u8]) -> Vec<u64> {
        let words = bytes.chunks(8).map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_le_bytes(word)
        });
        words.collect()
    }

    fn text(&mut self, text: &str) -> u64 {
        let head = smi(text.len() as u32);
        self.object(
            ONE_BYTE,
            &[&[head][..], &Self::bytes(text.as_bytes())].concat(),
        )
    }

    fn wide(&mut self, text: &str) -> u64 {
        let units: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let head = smi(text.encode_utf16().count() as u32);
        self.object(TWO_BYTE, &[&[head][..], &Self::bytes(&units)].concat())
    }

    fn script(&mut self, id: u32, name: u64, source: u64) -> u64 {
        let mut words = [0; 9];
        (words[0], words[1], words[7]) = (source, name, smi(id));
        self.object(SCRIPT, &words)
    }

    /// A function, its own number being 5.
    fn shared(&mut self, name: u64, script: u64) -> u64 {
        self.object(SHARED, &[0, 0, name, 0, script, 0, smi(5)])
    }
}

fn function(value: u64, script: u32) -> JsFunction {
    JsFunction {
        shared: value - 1,
        check: js_check(script, 5),
    }
}

fn named(name: &str, source: Option<(&str, u32)>) -> Vec<SymFrame> {
    vec![SymFrame {
        name: name.into(),
        kind: FrameKind::Jit,
        source: source.map(|(file, line)| (file.to_owned(), line)),
    }]
}

fn frames(heap: &Heap, scope: u16, function: JsFunction) -> Vec<SymFrame> {
    V8Names::default().frames(PROCESS, &library(scope), Some(heap), function)
}

const SOURCE: &str = "let a;\r\nlet b;\rlet c;\n\nfunction name() {}";

/// A scope of the newer form: as many variables, their names, and what else there is.
fn scope(heap: &mut Heap, flags: u64, variables: u32, start: u32, rest: &[u64]) -> u64 {
    let mut words = vec![flags, smi(0), smi(variables), smi(start), smi(start + 2)];
    words.extend(vec![smi(0); variables as usize * 2]);
    words.extend(rest);
    words.extend([0; 4]);
    heap.object(SCOPE, &words)
}

#[test]
fn names_files_and_lines() {
    let mut heap = Heap::new();
    let (name, file, source) = (
        heap.text("jsname"),
        heap.text("/a b/x.js"),
        heap.text(SOURCE),
    );
    let script = heap.script(3, file, source);
    for (at, line) in [(0, 1), (7, 1), (8, 2), (15, 3), (22, 4), (37, 5)] {
        for flags in [smi(1 << 12), 2 << 12 | 1 << 3] {
            let scope = scope(&mut heap, flags, 2, at, &[name, smi(0)]);
            let shared = heap.shared(scope, script);
            let found = frames(&heap, 5, function(shared, 3));
            assert_eq!(found, named("jsname", Some(("/a b/x.js", line))), "{at}");
        }
    }
}

#[test]
fn scopes_of_older_versions() {
    let mut heap = Heap::new();
    let (name, file, source) = (heap.text("jsname"), heap.text("x.js"), heap.text(SOURCE));
    let inferred = heap.text("a.b");
    let script = heap.script(3, file, source);
    let name_of = |heap: &mut Heap, flags: u32, words: &[u64]| {
        let head = [smi(flags), smi(0), smi(1), 0, smi(0)];
        let scope = heap.object(SCOPE, &[&head, words, &[0; 6]].concat());
        let shared = heap.shared(scope, script);
        frames(heap, 3, function(shared, 3))
    };
    let position = [smi(37), smi(40)];
    let own = [name, smi(9), position[0], position[1]];
    let expected = named("jsname", Some(("x.js", 5)));
    assert_eq!(name_of(&mut heap, 1 << 12, &own), expected);
    // A class, and a name for want of another, which is there but not asked for.
    let both = [smi(1), name, smi(9), inferred, position[0], position[1]];
    assert_eq!(
        name_of(&mut heap, 1 << 12 | 1 << 10 | 1 << 14, &both),
        expected
    );
    let without = [0, smi(9), inferred, position[0], position[1]];
    let expected = named("a.b", Some(("x.js", 5)));
    assert_eq!(name_of(&mut heap, 1 << 12 | 1 << 14, &without), expected);
    let neither = [0, smi(9), position[0], position[1]];
    let expected = named("(anonymous x.js:5)", Some(("x.js", 5)));
    assert_eq!(name_of(&mut heap, 1 << 12, &neither), expected);
    // What is not as it should be.
    assert!(name_of(&mut heap, 1 << 12, &[name, name, smi(1), smi(2)]).is_empty());
    assert!(name_of(&mut heap, 1 << 12, &[script, smi(0), smi(1), smi(2)]).is_empty());
    assert!(name_of(&mut heap, 1 << 12, &[name, smi(0), smi(2), smi(1)]).is_empty());
}

#[test]
fn strings_of_all_forms() {
    let mut heap = Heap::new();
    let (first, second) = (heap.text("first."), heap.wide("zweites\u{20ac}"));
    let none = heap.text("");
    let cons = heap.object(CONS, &[smi(14), first, second]);
    let flat = heap.object(CONS, &[smi(6), first, none]);
    let thin = heap.object(THIN, &[smi(14), cons]);
    let sliced = heap.object(SLICED, &[smi(3), flat, smi(2)]);
    let chars = heap.next + 0x1000;
    for (word, to) in Heap::bytes(b"outside")
        .into_iter()
        .zip((chars..).step_by(8))
    {
        heap.words.insert(to, word);
    }
    let external = heap.object(EXTERNAL, &[smi(7), 0x5000, chars]);
    for (value, text) in [
        (first, "first."),
        (second, "zweites\u{20ac}"),
        (cons, "first.zweites\u{20ac}"),
        (flat, "first."),
        (sliced, "rst"),
        (external, "outside"),
    ] {
        let shared = heap.shared(value, 1);
        // Without a script its number is what lies there.
        assert_eq!(frames(&heap, 5, function(shared, 0)), named(text, None));
    }
    // One that is put together leads on to no other.
    let shared = heap.shared(thin, 1);
    assert!(frames(&heap, 5, function(shared, 0)).is_empty());
}

#[test]
fn what_moved_has_no_name() {
    let mut heap = Heap::new();
    let (name, other) = (heap.text("one"), heap.text("two"));
    let (file, source) = (heap.text("x.js"), heap.text(""));
    let script = heap.script(3, file, source);
    let shared = heap.shared(name, script);
    let mut names = V8Names::default();
    let mut ask =
        |heap: Option<&Heap>, function| names.frames(PROCESS, &library(5), heap, function);
    assert!(ask(Some(&heap), function(shared, 4)).is_empty());
    let expected = named("one", Some(("x.js", 0)));
    assert_eq!(ask(Some(&heap), function(shared, 3)), expected);
    // Another function of another script is there now.
    let next = heap.script(4, file, source);
    heap.put(shared, 3, other);
    heap.put(shared, 5, next);
    assert_eq!(ask(Some(&heap), function(shared, 3)), expected);
    let expected_then = named("two", Some(("x.js", 0)));
    assert_eq!(ask(Some(&heap), function(shared, 4)), expected_then);
    // Something else; and the process has ended.
    heap.put(shared, 0, heap.words[&(script - 1)]);
    assert!(ask(Some(&heap), function(shared, 5)).is_empty());
    assert_eq!(ask(None, function(shared, 3)), expected);
    assert!(ask(None, function(shared, 9)).is_empty());
}

#[test]
fn scribbled_memory_takes_bounded_work() {
    let mut heap = Heap::new();
    let (file, source) = (heap.text("x.js"), heap.text(""));
    let script = heap.script(3, file, source);
    let circle = heap.object(CONS, &[smi(9), 0, 0]);
    heap.put(circle, 2, circle);
    heap.put(circle, 3, circle);
    let thin = heap.object(THIN, &[smi(9), 0]);
    heap.put(thin, 2, thin);
    let huge = heap.object(ONE_BYTE, &[smi(0x7fff_ffff), 0]);
    let negative = heap.object(ONE_BYTE, &[smi(0xffff_ffff), 0]);
    let variables = heap.object(SCOPE, &[smi(1 << 12), smi(0), smi(0xffff_ffff), 0, 0, 0]);
    for name in [
        circle,
        thin,
        huge,
        negative,
        variables,
        1,
        5,
        u64::MAX,
        script,
    ] {
        let shared = heap.shared(name, script);
        heap.reads.set(0);
        assert!(
            frames(&heap, 5, function(shared, 3)).is_empty(),
            "{name:#x}"
        );
        assert!(heap.reads.get() < 1000);
    }
    // A source whose recorded size is larger than its text has no lines.
    let name = heap.text("one");
    let script = heap.script(3, file, huge);
    let scope = scope(&mut heap, smi(1 << 12), 0, 9, &[name, smi(0)]);
    let shared = heap.shared(scope, script);
    assert_eq!(
        frames(&heap, 5, function(shared, 3)),
        named("one", Some(("x.js", 0)))
    );
}

#[test]
fn layouts_for_the_kernel() {
    let library = library(5);
    let layout = library.layout([0x1000, 0x7000, 0x9000].into_iter(), true);
    assert_eq!(layout.interpreters, [0x1000, 0x7000]);
    assert_eq!(layout.interpreter_size, 0x200);
    assert_eq!(
        (layout.builtins_before, layout.builtins_size),
        (0x800, 0x4000)
    );
    assert_eq!((layout.generated, layout.shared_type), (1, SHARED));
    let stripped = V8Library {
        interpreter: 0..0,
        ..library
    };
    let layout = stripped.layout(std::iter::empty(), false);
    assert_eq!((layout.interpreters, layout.interpreter_size), ([0, 0], 0));
    assert_eq!(layout.generated, 0);
}

#[test]
fn a_function_in_a_symbol_table() {
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let [found, lost] = table::find(&file, [&b"main"[..], b"aiprof_v8_tests_lost"]).unwrap();
    assert!(found.start > 0 && found.end > found.start);
    assert_eq!(lost, 0..0);
    assert_eq!(table::find(&&b"\x7fELF"[..], [&b"main"[..]]), None);
    assert!(V8Library::find(&file).is_none());
}
