//! The fields of each version's structures.
//!
//! Up to 3.12 from CPython's headers (`Include/internal/pycore_frame.h`,
//! `Include/cpython/code.h`, `Include/cpython/pystate.h`). From 3.13 on the interpreter
//! has a list of them (`_Py_DebugOffsets`, `Include/internal/pycore_debug_offsets.h`),
//! whose order is stable within a minor version only.

use super::Version;
use aiprof_common::{
    PYTHON_AT_ADDRESS, PYTHON_AT_BYTES, PYTHON_AT_UNITS, PYTHON_ENTRIES, PYTHON_FRAMES,
    PYTHON_NO_FIELD, PYTHON_SHIMS, PythonLayout,
};

/// `FRAME_OWNED_BY_CSTACK` of 3.12 and 3.13, `FRAME_OWNED_BY_INTERPRETER` of 3.14.
const FIRST_SHIM: u8 = 3;
/// Most of a frame, and of a code object, that the programs copy.
const MAX_FRAME_FIELD: u16 = 88 - 8;
const MAX_CODE_FIELD: u16 = 176 - 8;
/// Largest offset of the first interpreter.
const MAX_HEAD: u64 = 1 << 16;
/// Words of `_Py_DebugOffsets` that are the same in all versions: the first interpreter, the next
/// one, and the first thread of one.
const INTERPRETERS: usize = 5;
const INTERPRETER_NEXT: usize = 8;
const INTERPRETER_THREADS: usize = 9;

/// The layout of a version, without addresses.
pub(super) fn of(version: Version, debug: &[u64]) -> Option<PythonLayout> {
    if version.major != 3 {
        return None;
    }
    match version.minor {
        8 | 9 => Some(frames(104, PYTHON_AT_BYTES)),
        10 => Some(frames(96, PYTHON_AT_UNITS)),
        11 => Some(entries()),
        12 => Some(shims()),
        13 => described(debug, &WORDS_3_13).filter(is_possible),
        14 => described(debug, &WORDS_3_14).filter(is_possible),
        15 => described(debug, &WORDS_3_15).filter(is_possible),
        _ => None,
    }
}

/// Where `_PyRuntime` has the first of its interpreters (`interpreters.head`); `None`: threads
/// are not looked for in its lists.
pub(super) fn interpreters(version: Version, debug: &[u64]) -> Option<u64> {
    match version.minor {
        12 => Some(40),
        13.. => debug.get(INTERPRETERS).copied().filter(|&at| at < MAX_HEAD),
        _ => None,
    }
}

/// 3.8 to 3.10: `PyFrameObject`.
fn frames(last_instruction: u16, instruction: u8) -> PythonLayout {
    PythonLayout {
        kind: PYTHON_FRAMES,
        thread_id: 176,
        thread_frame: 24,
        cframe_frame: PYTHON_NO_FIELD,
        cframe_previous: PYTHON_NO_FIELD,
        frame_previous: 24,
        frame_code: 32,
        frame_globals: 48,
        frame_instruction: last_instruction,
        code_flags: 36,
        code_first_line: 40,
        code_filename: 104,
        code_name: 112,
        code_qualname: PYTHON_NO_FIELD,
        code_lines: 120,
        instruction,
        ..objects()
    }
}

/// 3.11: `_PyInterpreterFrame` and `_PyCFrame`.
fn entries() -> PythonLayout {
    PythonLayout {
        kind: PYTHON_ENTRIES,
        thread_id: 152,
        thread_frame: 56,
        cframe_frame: 8,
        cframe_previous: 16,
        frame_previous: 48,
        frame_code: 32,
        frame_globals: 8,
        frame_instruction: 56,
        frame_owner: 68,
        code_first_line: 72,
        code_instructions: 184,
        ..newer_code(objects())
    }
}

/// 3.12.
fn shims() -> PythonLayout {
    PythonLayout {
        kind: PYTHON_SHIMS,
        interp_threads: 72,
        thread_next: 8,
        thread_id: 136,
        thread_frame: 56,
        cframe_frame: 0,
        cframe_previous: 8,
        frame_previous: 8,
        frame_code: 0,
        frame_globals: 24,
        frame_instruction: 56,
        frame_owner: 70,
        code_first_line: 68,
        code_instructions: 192,
        first_shim: FIRST_SHIM,
        string_ascii: 40,
        string_compact: 56,
        ..newer_code(objects())
    }
}

/// The code objects of 3.11 and 3.12.
fn newer_code(layout: PythonLayout) -> PythonLayout {
    PythonLayout {
        code_flags: 48,
        code_filename: 112,
        code_name: 120,
        code_qualname: 128,
        code_lines: 136,
        instruction: PYTHON_AT_ADDRESS,
        ..layout
    }
}

/// Objects of builds with the global lock; strings up to 3.11.
fn objects() -> PythonLayout {
    PythonLayout {
        object_type: 8,
        bytes_size: 16,
        bytes_data: 32,
        string_length: 16,
        string_state: 32,
        string_ascii: 48,
        string_compact: 72,
        dict_keys: 32,
        code_bytecodes: PYTHON_NO_FIELD,
        thread_base: PYTHON_NO_FIELD,
        ..PythonLayout::default()
    }
}

/// Which word of `_Py_DebugOffsets` a field is.
struct OffsetWords {
    thread_next: usize,
    thread_frame: usize,
    thread_base: Option<usize>,
    thread_id: usize,
    frame_previous: usize,
    frame_code: usize,
    frame_instruction: usize,
    frame_owner: usize,
    frame_bytecode: Option<usize>,
    code_filename: usize,
    code_name: usize,
    code_qualname: usize,
    code_lines: usize,
    code_first_line: usize,
    code_instructions: usize,
    code_bytecodes: Option<usize>,
    object_type: usize,
    dict_keys: usize,
    bytes_size: usize,
    bytes_data: usize,
    string_state: usize,
    string_length: usize,
    string_head: usize,
}

const WORDS_3_13: OffsetWords = OffsetWords {
    thread_next: 21,
    thread_frame: 23,
    thread_base: None,
    thread_id: 24,
    frame_previous: 29,
    frame_code: 30,
    frame_instruction: 31,
    frame_owner: 33,
    frame_bytecode: None,
    code_filename: 35,
    code_name: 36,
    code_qualname: 37,
    code_lines: 38,
    code_first_line: 39,
    code_instructions: 43,
    code_bytecodes: None,
    object_type: 45,
    dict_keys: 57,
    bytes_size: 65,
    bytes_data: 66,
    string_state: 68,
    string_length: 69,
    string_head: 70,
};

const WORDS_3_14: OffsetWords = OffsetWords {
    thread_next: 24,
    thread_frame: 26,
    thread_base: None,
    thread_id: 27,
    frame_previous: 32,
    frame_code: 33,
    frame_instruction: 34,
    frame_owner: 36,
    frame_bytecode: Some(38),
    code_filename: 40,
    code_name: 41,
    code_qualname: 42,
    code_lines: 43,
    code_first_line: 44,
    code_instructions: 48,
    code_bytecodes: Some(49),
    object_type: 51,
    dict_keys: 67,
    bytes_size: 75,
    bytes_data: 76,
    string_state: 78,
    string_length: 79,
    string_head: 80,
};

const WORDS_3_15: OffsetWords = OffsetWords {
    thread_next: 24,
    thread_frame: 26,
    thread_base: Some(27),
    thread_id: 30,
    frame_previous: 40,
    frame_code: 41,
    frame_instruction: 42,
    frame_owner: 44,
    frame_bytecode: Some(46),
    code_filename: 48,
    code_name: 49,
    code_qualname: 50,
    code_lines: 51,
    code_first_line: 52,
    code_instructions: 56,
    code_bytecodes: Some(57),
    object_type: 59,
    dict_keys: 79,
    bytes_size: 87,
    bytes_data: 88,
    string_state: 90,
    string_length: 91,
    string_head: 92,
};

/// The layout that an interpreter describes itself.
fn described(debug: &[u64], words: &OffsetWords) -> Option<PythonLayout> {
    let field = |index: usize| u16::try_from(*debug.get(index)?).ok();
    let free_threaded = *debug.get(2)? != 0;
    let own = |index: Option<usize>| match index.filter(|_| free_threaded) {
        Some(index) => field(index),
        None => Some(PYTHON_NO_FIELD),
    };
    let head = field(words.string_head)?;
    Some(PythonLayout {
        kind: PYTHON_SHIMS,
        interp_next: field(INTERPRETER_NEXT)?,
        interp_threads: field(INTERPRETER_THREADS)?,
        thread_next: field(words.thread_next)?,
        thread_id: field(words.thread_id)?,
        thread_frame: field(words.thread_frame)?,
        thread_base: match words.thread_base {
            Some(index) => field(index)?,
            None => PYTHON_NO_FIELD,
        },
        cframe_frame: PYTHON_NO_FIELD,
        cframe_previous: PYTHON_NO_FIELD,
        frame_previous: field(words.frame_previous)?,
        frame_code: field(words.frame_code)?,
        // Not in the list; the same in all versions.
        frame_globals: 24,
        frame_instruction: field(words.frame_instruction)?,
        frame_owner: field(words.frame_owner)?,
        frame_bytecode: own(words.frame_bytecode)?,
        // Not in the list, and not needed to distinguish code objects.
        code_flags: 0,
        code_first_line: field(words.code_first_line)?,
        code_filename: field(words.code_filename)?,
        code_name: field(words.code_name)?,
        code_qualname: field(words.code_qualname)?,
        code_lines: field(words.code_lines)?,
        code_instructions: field(words.code_instructions)?,
        code_bytecodes: own(words.code_bytecodes)?,
        object_type: field(words.object_type)?,
        bytes_size: field(words.bytes_size)?,
        bytes_data: field(words.bytes_data)?,
        string_length: field(words.string_length)?,
        string_state: field(words.string_state)?,
        string_ascii: head,
        // PyCompactUnicodeObject adds the length and the place of its UTF-8 form.
        string_compact: head.checked_add(16)?,
        dict_keys: field(words.dict_keys)?,
        first_shim: FIRST_SHIM,
        instruction: PYTHON_AT_ADDRESS,
        wide_state: u8::from(free_threaded),
        ..PythonLayout::default()
    })
}

/// Whether the fields are where the programs can read them.
fn is_possible(layout: &PythonLayout) -> bool {
    let frame = [
        layout.frame_previous,
        layout.frame_code,
        layout.frame_instruction,
        layout.frame_owner,
    ];
    let code = [
        layout.code_first_line,
        layout.code_filename,
        layout.code_name,
        layout.code_qualname,
        layout.code_lines,
        layout.object_type,
    ];
    let known =
        layout.frame_bytecode == PYTHON_NO_FIELD || layout.frame_bytecode <= MAX_FRAME_FIELD;
    known
        && frame.iter().all(|&field| field <= MAX_FRAME_FIELD)
        && code.iter().all(|&field| field <= MAX_CODE_FIELD)
}
