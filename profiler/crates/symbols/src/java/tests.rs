use super::*;
use crate::symbolize::SymFrame;
use aiprof_common::ADDR_METHOD;
use aiprof_model::profile::FrameKind;
use std::io;

/// Memory made up by a test: pieces by address.
#[derive(Clone, Debug, Default)]
struct Image(Vec<(u64, Vec<u8>)>);

impl ReadAt for Image {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // The latest counts.
        let piece = self.0.iter().rev().find_map(|(start, bytes)| {
            let skip = usize::try_from(offset.checked_sub(*start)?).ok()?;
            bytes.get(skip..).filter(|rest| !rest.is_empty())
        });
        let Some(rest) = piece else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

impl Image {
    fn put(&mut self, at: u64, bytes: &[u8]) {
        let known = self.0.iter_mut().rev().find(|(start, piece)| {
            at >= *start && at + bytes.len() as u64 <= *start + piece.len() as u64
        });
        match known {
            Some((start, piece)) => {
                let skip = (at - *start) as usize;
                piece[skip..skip + bytes.len()].copy_from_slice(bytes);
            }
            None => self.0.push((at, bytes.to_vec())),
        }
    }

    fn words(&mut self, at: u64, words: &[u64]) {
        for (word, at) in words.iter().zip((at..).step_by(8)) {
            self.put(at, &word.to_le_bytes());
        }
    }

    fn int(&mut self, at: u64, value: i32) {
        self.put(at, &value.to_le_bytes());
    }
}

const BIAS: u64 = 0x7f00_0000_0000;
/// Where things are in the process.
const TABLE: u64 = BIAS + 0x1_0000;
const TYPE_TABLE: u64 = BIAS + 0x2_0000;
const TEXTS: u64 = BIAS + 0x3_0000;
const VERSION: u64 = BIAS + 0x4_0000;
const HEAPS: u64 = BIAS + 0x4_0100;
const INTERPRETER: u64 = BIAS + 0x4_0200;
const STRIDE: u64 = 48;
/// The heap of code, its map, and a compiled method in it.
const CODE: u64 = 0x7e00_0000_0000;
const SEGMENTS: u64 = 0x7e00_1000_0000;
const BLOB: u64 = CODE + 0x100 + HEADER;
const HEADER: u64 = 16;
const METHODS: u64 = 0x7d00_0000_0000;
const POOL: u64 = METHODS + 0x8000;

/// The fields of a version, with the types and offsets that matter.
type Fields = Vec<(&'static str, &'static str, u64)>;

/// What JDK 17 and 25 have alike.
fn common() -> Fields {
    vec![
        ("Abstract_VM_Version::_vm_major_version", "int", VERSION),
        ("CodeCache::_heaps", "GrowableArray<CodeHeap*>*", HEAPS),
        ("AbstractInterpreter::_code", "StubQueue*", INTERPRETER),
        ("GrowableArrayBase::_len", "int", 0),
        ("GrowableArray<int>::_data", "int*", 8),
        ("CodeHeap::_memory", "VirtualSpace", 8),
        ("CodeHeap::_segmap", "VirtualSpace", 120),
        ("CodeHeap::_log2_segment_size", "int", 256),
        ("VirtualSpace::_low_boundary", "char*", 0),
        ("VirtualSpace::_high_boundary", "char*", 8),
        ("VirtualSpace::_low", "char*", 16),
        ("StubQueue::_stub_buffer", "address", 8),
        ("StubQueue::_buffer_limit", "int", 20),
        ("PcDesc::_pc_offset", "int", 0),
        ("PcDesc::_scope_decode_offset", "int", 4),
        ("Method::_constMethod", "ConstMethod*", 8),
        ("ConstMethod::_constants", "ConstantPool*", 8),
        ("ConstMethod::_name_index", "u2", 34),
        ("ConstantPool::_pool_holder", "InstanceKlass*", 24),
        ("ConstantPool::_length", "int", 60),
        ("Klass::_name", "Symbol*", 24),
        ("Symbol::_length", "u2", 4),
        ("Symbol::_body[0]", "u1", 6),
        ("nmethod::_compile_id", "int", 212),
    ]
}

fn jdk_17() -> Fields {
    let mut fields = common();
    fields.extend([
        ("CodeBlob::_name", "const char*", 96),
        ("CodeBlob::_size", "int", 12),
        ("CodeBlob::_frame_size", "int", 28),
        ("CodeBlob::_frame_complete_offset", "int", 20),
        ("CodeBlob::_code_begin", "address", 32),
        ("CompiledMethod::_method", "Method*", 112),
        ("CompiledMethod::_scopes_data_begin", "address", 120),
        ("nmethod::_verified_entry_point", "address", 224),
        ("nmethod::_metadata_offset", "int", 260),
        ("nmethod::_scopes_pcs_offset", "int", 268),
        ("nmethod::_dependencies_offset", "int", 272),
    ]);
    fields
}

fn jdk_25() -> Fields {
    let mut fields = common();
    fields.extend([
        ("CodeBlob::_name", "const char*", 8),
        ("CodeBlob::_size", "int", 24),
        ("CodeBlob::_frame_size", "int", 44),
        ("CodeBlob::_frame_complete_offset", "int16_t", 54),
        ("CodeBlob::_code_offset", "int", 36),
        ("CodeBlob::_data_offset", "int", 40),
        ("CodeBlob::_relocation_size", "int", 28),
        ("CodeBlob::_mutable_data", "address", 16),
        ("nmethod::_method", "Method*", 80),
        ("nmethod::_verified_entry_offset", "u2", 154),
        ("nmethod::_scopes_pcs_offset", "int", 196),
        ("nmethod::_scopes_data_offset", "int", 200),
        ("nmethod::_immutable_data", "address", 96),
    ]);
    fields
}

/// The tables that describe the fields.
fn described(fields: &Fields) -> Image {
    let mut image = Image::default();
    image.put(BIAS, &vec![0; 0x5_0000]);
    let mut text_at = TEXTS;
    let mut text = |image: &mut Image, text: &str| {
        let at = text_at;
        image.put(at, text.as_bytes());
        text_at += text.len() as u64 + 1;
        at
    };
    for (index, (name, type_name, number)) in fields.iter().enumerate() {
        let (of, field) = name.split_once("::").unwrap();
        let is_static = *number > BIAS;
        let entry = [
            text(&mut image, of),
            text(&mut image, field),
            text(&mut image, type_name),
            is_static.into(),
            if is_static { 0 } else { *number },
            if is_static { *number } else { 0 },
        ];
        image.words(TABLE + STRIDE * index as u64, &entry);
    }
    let types = [("HeapBlock", HEADER), ("PcDesc", 16), ("ConstantPool", 72)];
    for (index, (name, size)) in types.into_iter().enumerate() {
        let entry = [text(&mut image, name), 0, 0, 0, size, 0];
        image.words(TYPE_TABLE + STRIDE * index as u64, &entry);
    }
    // The tables, and the numbers that describe their layout, as the symbols have them.
    image.words(
        BIAS,
        &[TABLE, 0, 8, 16, 32, 40, STRIDE, TYPE_TABLE, 0, 32, STRIDE],
    );
    image
}

fn library() -> JavaLibrary {
    JavaLibrary {
        symbols: std::array::from_fn(|index| 8 * index as u64),
    }
}

/// A method with a name in a class; its address.
fn method(image: &mut Image, index: u64, class: &str, name: &str) -> u64 {
    let at = METHODS + 0x200 * index;
    let holder = POOL + 0x1000 * (index + 1);
    let symbol = |image: &mut Image, at: u64, text: &str| {
        let mut bytes = vec![0; 4];
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend([0xff; 3]);
        image.put(at, &bytes);
    };
    // Method, ConstMethod, ConstantPool with one entry behind it, InstanceKlass.
    image.put(at, &[0; 0x100]);
    image.words(at + 8, &[at + 0x80]);
    image.words(at + 0x80 + 8, &[holder]);
    image.put(at + 0x80 + 34, &1u16.to_le_bytes());
    image.put(holder, &[0; 0x200]);
    image.words(holder + 24, &[holder + 0x100]);
    image.int(holder + 60, 2);
    image.words(holder + 72 + 8, &[holder + 0x800]);
    image.words(holder + 0x100 + 24, &[holder + 0x900]);
    symbol(image, holder + 0x800, name);
    symbol(image, holder + 0x900, class);
    at
}

/// A process of JDK 17, or 25, that has compiled `inner`, `middle` and `outer` into one.
fn process(version: i32) -> Image {
    let is_new = version >= 23;
    let mut image = described(&if is_new { jdk_25() } else { jdk_17() });
    image.int(VERSION, version);
    let (heaps, heap) = (BIAS + 0x4_1000, BIAS + 0x4_2000);
    image.words(HEAPS, &[heaps]);
    image.int(heaps, 1);
    image.words(heaps + 8, &[heaps + 0x100]);
    image.words(heaps + 0x100, &[heap]);
    image.words(heap + 8, &[CODE, CODE + 0x10_0000]);
    image.words(heap + 120 + 16, &[SEGMENTS]);
    image.int(heap + 256, 7);
    let queue = BIAS + 0x4_3000;
    image.words(INTERPRETER, &[queue]);
    image.words(queue + 8, &[CODE + 0x8000]);
    image.int(queue + 20, 0x1000);

    let methods = [
        method(&mut image, 0, "p/q/Demo", "outer"),
        method(
            &mut image,
            1,
            "p/q/Demo$$Lambda$14+0x0000000800c03000",
            "middle",
        ),
        method(&mut image, 2, "java/lang/Math", "inner"),
    ];
    // Blocks from segment 2 to 600 and from 600 on; all else is free.
    let mut segments = vec![0xff; 0x2000];
    for (at, segment) in segments.iter_mut().enumerate().take(600).skip(2) {
        *segment = (at - 2).min(200) as u8;
    }
    segments[600] = 0;
    image.put(SEGMENTS, &segments);
    image.put(CODE, &vec![0; 0x10_0000]);
    let texts = TEXTS + 0x8000;
    image.put(texts, b"nmethod\0Interpreter\0");
    // Numbers: of methods from 1 on; scopes: nothing at 0, outer at 1, middle at 4 that
    // outer calls at 1, inner at 7; of the last number all digits.
    let less = u8::from(version >= 20);
    let mut data = vec![0];
    for (sender, method) in [(0, 1), (1, 2), (4, 3)] {
        data.extend([sender + less, method + less, 1 + less]);
    }
    // PcDescs: before the code, in outer, in inner, behind all.
    let mut table = Vec::new();
    for (pc, scope) in [(-1, 0), (0x10, 1), (0x20, 4), (0x40, 7), (i32::MAX, 0)] {
        for number in [pc, scope, 0, 0] {
            table.extend(i32::to_le_bytes(number));
        }
    }
    let code = BLOB + 0x200;
    if is_new {
        image.words(BLOB + 8, &[texts]);
        image.int(BLOB + 24, 0x1000);
        image.int(BLOB + 36, 0x200);
        image.words(BLOB + 80, &[methods[0]]);
        let (mutable, fixed) = (METHODS + 0x7_0000, METHODS + 0x8_0000);
        image.words(BLOB + 16, &[mutable]);
        image.int(BLOB + 28, 0x40);
        image.words(mutable + 0x40, &methods);
        image.words(BLOB + 96, &[fixed]);
        image.int(BLOB + 196, 0x30);
        image.int(BLOB + 200, 0x30 + table.len() as i32);
        image.put(fixed + 0x30, &[table, data].concat());
    } else {
        image.words(BLOB + 96, &[texts]);
        image.int(BLOB + 12, 0x1000);
        image.words(BLOB + 32, &[code]);
        image.words(BLOB + 112, &[methods[0], BLOB + 0x900]);
        image.int(BLOB + 260, 0x800);
        image.int(BLOB + 268, 0xa00);
        image.int(BLOB + 272, 0xa00 + table.len() as i32);
        image.words(BLOB + 0x800, &methods);
        image.put(BLOB + 0x900, &data);
        image.put(BLOB + 0xa00, &table);
    }
    image
}

fn read(image: &Image) -> Result<HotSpot, HotSpotError> {
    HotSpot::read(&library(), BIAS, image)
}

/// The names at an offset of the compiled method's code, outermost first.
fn at(names: &mut JavaNames, hotspot: &HotSpot, image: Option<&Image>, offset: u64) -> Vec<String> {
    let address = BLOB + 0x200 + offset;
    let frames = names.frames((1, 1), hotspot, image, address);
    let text = |frame: SymFrame| format!("{}{}", frame.name, frame.kind.suffix());
    frames.into_iter().map(text).collect()
}

const OUTER: &str = "p.q.Demo.outer_[j]";
const MIDDLE: &str = "p.q.Demo$$Lambda$14.middle_[i]";
const INNER: &str = "java.lang.Math.inner_[i]";

#[test]
fn versions_describe_themselves() {
    for version in [17, 25] {
        let hotspot = read(&process(version)).unwrap();
        assert_eq!(hotspot.version(), version);
        assert!(hotspot.contains(CODE) && !hotspot.contains(CODE + 0x10_0000));
        let layout = hotspot.layout();
        assert_eq!((layout.start, layout.end), (CODE, CODE + 0x10_0000));
        assert_eq!(layout.heaps[0].segments, SEGMENTS);
        assert_eq!(layout.heaps[1], JavaHeap::default());
        assert_eq!(layout.segment_shift, 7);
        assert_eq!(layout.interpreter_start, CODE + 0x8000);
        assert_eq!(layout.interpreter_end, CODE + 0x9000);
        let is_new = version == 25;
        let expected = if is_new {
            (44, 54, 2, 36, 1)
        } else {
            (28, 20, 4, 32, 0)
        };
        let found = (
            layout.blob_frame_size,
            layout.blob_frame_complete,
            layout.frame_complete_bytes,
            layout.blob_code,
            layout.code_is_offset,
        );
        assert_eq!(found, expected);
        assert_eq!(layout.entry_is_offset, u16::from(is_new));
    }
}

#[test]
fn methods_that_were_inlined_have_names() {
    for version in [17, 19, 20, 25] {
        let image = process(version);
        let hotspot = read(&image).unwrap();
        let mut names = JavaNames::default();
        let mut at = |offset| at(&mut names, &hotspot, Some(&image), offset);
        assert_eq!(at(0), [OUTER]);
        assert_eq!(at(0x10), [OUTER]);
        assert_eq!(at(0x11), [OUTER, MIDDLE]);
        assert_eq!(at(0x20), [OUTER, MIDDLE]);
        assert_eq!(at(0x3f), [OUTER, MIDDLE, INNER]);
        // Behind what is described.
        assert_eq!(at(0x41), [OUTER]);
    }
}

#[test]
fn interpreted_methods_have_names() {
    let image = process(17);
    let hotspot = read(&image).unwrap();
    let mut names = JavaNames::default();
    let mut of = |method: u64| names.frames((1, 1), &hotspot, Some(&image), method | ADDR_METHOD);
    let found = of(METHODS + 0x400);
    assert_eq!(
        found,
        [SymFrame::plain("java.lang.Math.inner", FrameKind::Jit)]
    );
    assert_eq!(of(METHODS + 0x600), []);
    assert_eq!(of(8), []);
}

/// A program may end before all addresses are asked for.
#[test]
fn what_is_known_outlives_the_process() {
    let image = process(25);
    let hotspot = read(&image).unwrap();
    let mut names = JavaNames::default();
    assert_eq!(at(&mut names, &hotspot, None, 0x3f), [] as [&str; 0]);
    assert_eq!(at(&mut names, &hotspot, Some(&image), 0), [OUTER]);
    assert_eq!(at(&mut names, &hotspot, None, 0x3f), [OUTER, MIDDLE, INNER]);
    assert_eq!(at(&mut names, &hotspot, None, 0x1000), [] as [&str; 0]);
}

/// The same memory, another method.
#[test]
fn code_that_takes_the_place_of_other_code_has_its_own_name() {
    let mut image = process(17);
    let hotspot = read(&image).unwrap();
    let mut names = JavaNames::default();
    assert_eq!(at(&mut names, &hotspot, Some(&image), 0x10), [OUTER]);
    image.words(BLOB + 112, &[METHODS + 0x400]);
    image.int(BLOB + 212, 77);
    // Its scopes belong to another method.
    assert_eq!(
        at(&mut names, &hotspot, Some(&image), 0x3f),
        ["java.lang.Math.inner_[j]"]
    );
}

#[test]
fn one_that_has_only_just_started_is_not_ready() {
    for (place, at_start) in [(HEAPS, 0), (INTERPRETER, 0)] {
        let mut image = process(17);
        image.words(place, &[at_start]);
        assert_eq!(read(&image), Err(HotSpotError::NotReady));
    }
    let mut image = process(17);
    image.int(BIAS + 0x4_1000, 0);
    assert_eq!(read(&image), Err(HotSpotError::NotReady));
}

#[test]
fn versions_without_a_field_are_declined() {
    let all = jdk_17();
    for left_out in 0..all.len() {
        let mut fields = all.clone();
        let (name, _, _) = fields.remove(left_out);
        let mut image = process(17);
        image.0.insert(0, (0, Vec::new()));
        let without = described(&fields);
        // The tables of a version without it, and the rest of the process.
        for (from, bytes) in [(TABLE, 0x1_0000), (TEXTS, 0x8000)] {
            let skip = (from - BIAS) as usize;
            image.put(from, &without.0[0].1[skip..skip + bytes]);
        }
        let types = (TYPE_TABLE - BIAS) as usize;
        image.put(TYPE_TABLE, &without.0[0].1[types..types + 0x1000]);
        match read(&image) {
            Err(HotSpotError::Lacks(_)) => {}
            // Without scopes there are no inlined methods, and all else.
            Ok(found) => {
                assert!(
                    name.contains("scope")
                        || name.contains("PcDesc")
                        || name.contains("metadata")
                        || name.contains("dependencies"),
                    "{name}"
                );
                assert_eq!(found.scopes, None, "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// Whatever a process has in its memory, reading it ends, and yields no wrong names for others.
#[test]
fn memory_that_makes_no_sense_is_declined() {
    let mut image = process(17);
    // As many heaps as there may never be, heaps without end.
    image.int(BIAS + 0x4_1000, i32::MAX);
    assert!(matches!(read(&image), Err(HotSpotError::Odd(_))));
    image.int(BIAS + 0x4_1000, -1);
    assert!(matches!(read(&image), Err(HotSpotError::Odd(_))));
    let mut image = process(17);
    image.words(BIAS + 0x4_2000 + 16, &[u64::MAX]);
    assert!(matches!(read(&image), Err(HotSpotError::Odd(_))));
    // Tables that are not there, without end, of entries without size.
    let mut image = process(17);
    image.words(BIAS, &[1]);
    assert_eq!(read(&image), Err(HotSpotError::Unreadable));
    for stride in [0, 7, 1 << 40] {
        let mut image = process(17);
        image.words(BIAS + 48, &[stride]);
        assert!(matches!(read(&image), Err(HotSpotError::Odd(_))));
    }
    let mut image = process(17);
    let endless: Vec<u8> = [TEXTS; 6].iter().flat_map(|w| w.to_le_bytes()).collect();
    image.0.push((TABLE, endless.repeat(9000)));
    assert!(matches!(read(&image), Err(HotSpotError::Odd(_))));
}

#[test]
fn scopes_and_segments_that_lead_nowhere_end() {
    let image = process(17);
    let hotspot = read(&image).unwrap();
    let mut names = JavaNames::default();
    // A scope that its caller is; one that is called by what is behind it.
    for (place, sender) in [(4, 4), (4, 7), (1, 1)] {
        let mut image = image.clone();
        image.put(BLOB + 0x900 + place, &[sender]);
        image.int(BLOB + 212, i32::from(sender) + 100 * place as i32);
        let found = at(&mut names, &hotspot, Some(&image), 0x3f);
        assert!(found.len() <= 3 && found[0] == OUTER, "{found:?}");
    }
    // A table that ends before it begins, or takes all memory.
    for end in [0, i32::MAX] {
        let mut image = image.clone();
        image.int(BLOB + 272, end);
        image.int(BLOB + 212, end / 2 + 9);
        assert_eq!(at(&mut names, &hotspot, Some(&image), 0x3f), [OUTER]);
    }
    // Segments that lead back for ever, or out of the heap.
    let mut names = JavaNames::default();
    for step in [1, 254] {
        let mut image = image.clone();
        image.put(SEGMENTS, &vec![step; 0x2000]);
        assert_eq!(
            at(&mut names, &hotspot, Some(&image), 0x3f),
            [] as [&str; 0]
        );
    }
    // A blob without size, or larger than all code.
    for size in [0, -1, i32::MAX] {
        let mut image = image.clone();
        image.int(BLOB + 12, size);
        assert_eq!(
            at(&mut names, &hotspot, Some(&image), 0x3f),
            [] as [&str; 0]
        );
    }
}

/// Any byte of what a name is read from may be any other.
#[test]
fn changed_memory_costs_names_and_nothing_else() {
    let mut state = 7_u64;
    let mut random = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % n
    };
    for version in [17, 25] {
        let image = process(version);
        let hotspot = read(&image).unwrap();
        for _ in 0..3000 {
            let mut image = image.clone();
            let piece = random(image.0.len() as u64) as usize;
            let (_, bytes) = &mut image.0[piece];
            for _ in 0..4 {
                let near =
                    random(bytes.len() as u64) as usize & [usize::MAX, 0xfff][random(2) as usize];
                bytes[near] = random(256) as u8;
            }
            let mut names = JavaNames::default();
            for offset in [0, 0x11, 0x3f] {
                let frames = at(&mut names, &hotspot, Some(&image), offset);
                assert!(frames.len() <= 300);
            }
            let _ = read(&image);
        }
    }
}

#[test]
fn numbers_of_both_kinds() {
    let read = |bytes: &[u8], has_no_zero| names::unsigned5(&mut &*bytes, has_no_zero);
    assert_eq!(read(&[0], false), Some(0));
    assert_eq!(read(&[191], false), Some(191));
    assert_eq!(read(&[192, 0], false), Some(192));
    assert_eq!(read(&[193, 1], false), Some(193 + 64));
    assert_eq!(read(&[255, 255, 255, 255, 255], false), Some(51_130_559));
    assert_eq!(read(&[1], true), Some(0));
    assert_eq!(read(&[191], true), Some(190));
    assert_eq!(read(&[192, 1], true), Some(191));
    assert_eq!(read(&[192, 2], true), Some(191 + 64));
    assert_eq!(read(&[0], true), None);
    assert_eq!(read(&[200], false), None);
}
