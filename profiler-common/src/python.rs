//! The frames of CPython: how the programs find them in a process's memory, and what they send.
//!
//! A thread's Python frames are a chain in memory, apart from its native stack. The walk reads
//! the chain first and sends it as *words* after the addresses of the stack: one word for each
//! Python frame, leaf first, with *marks* between them. A mark is an object that each
//! activation of the interpreter's evaluation function has in its own native frame. That
//! activation runs the Python frames from the previous mark up to its own. The native walk
//! finds the frame of each mark. CPython before 3.11 has no marks, but one activation for each
//! Python frame.
//!
//! A word names a code object by a hash of its address and its content, because programs make
//! code objects where others have been. Its name and its line table are sent once, in a
//! [`PythonCode`] before the stack.

use crate::PoolRef;

/// Most words of a stack.
pub const MAX_PYTHON_WORDS: usize = 1024;
/// Most marks among them.
pub const MAX_PYTHON_MARKS: usize = 256;
/// Bit of a word: it is a mark.
pub const PYTHON_MARK: u64 = 1 << 63;
/// Bit of a mark whose native frame is known. The other bits are the frame's number in the
/// walk, from the leaf. Without this bit they are the mark's address.
pub const PYTHON_PLACED: u64 = 1 << 62;
/// Bits of a frame's word that hold the index of its instruction in units of 2 bytes;
/// above them is the code object's id.
pub const PYTHON_INDEX_BITS: u32 = 20;
/// The bits of a code object's id.
pub const PYTHON_ID: u64 = (1 << (63 - PYTHON_INDEX_BITS)) - 1;
/// The index if the instruction is not known, or if the frame has not begun.
pub const PYTHON_NO_INDEX: u64 = (1 << PYTHON_INDEX_BITS) - 1;

/// The word of a frame; `index` counts units of 2 bytes.
#[must_use]
#[inline(always)]
pub const fn python_word(id: u64, index: u64) -> u64 {
    let index = if index < PYTHON_NO_INDEX {
        index
    } else {
        PYTHON_NO_INDEX
    };
    (id & PYTHON_ID) << PYTHON_INDEX_BITS | index
}

/// The id of the code object in a frame's word.
#[must_use]
pub const fn python_id(word: u64) -> u64 {
    word >> PYTHON_INDEX_BITS & PYTHON_ID
}

/// The index of the instruction in a frame's word; `None` if it is not known, or if the frame
/// has not begun.
#[must_use]
pub const fn python_index(word: u64) -> Option<u64> {
    match word & PYTHON_NO_INDEX {
        PYTHON_NO_INDEX => None,
        index => Some(index),
    }
}

/// CPython 3.8 to 3.10: frames are `PyFrameObject`s, one activation for each.
pub const PYTHON_FRAMES: u32 = 1;
/// CPython 3.11: marks are `_PyCFrame`s, after frames with `is_entry`.
pub const PYTHON_ENTRIES: u32 = 2;
/// CPython 3.12 and newer: marks are frames of their own (`FRAME_OWNED_BY_CSTACK`).
pub const PYTHON_SHIMS: u32 = 3;

/// Instructions are numbered in bytes, as an `int` (3.8, 3.9).
pub const PYTHON_AT_BYTES: u8 = 0;
/// Instructions are numbered in units of 2 bytes, as an `int` (3.10).
pub const PYTHON_AT_UNITS: u8 = 1;
/// Instructions are identified by their address (3.11 and newer).
pub const PYTHON_AT_ADDRESS: u8 = 2;

/// A thread's state is a value under a key (3.8 to 3.14). The C library keeps such values as glibc
/// does.
pub const TSS_GLIBC: u8 = 0;
/// As musl does.
pub const TSS_MUSL: u8 = 1;
/// A thread's state is in a variable of the thread (3.15 and newer), at a known offset from the
/// thread's fs base.
pub const TSS_STATIC: u8 = 2;
/// The loader has written that offset to a word.
pub const TSS_LOADED: u8 = 3;
/// The variable is in the block of a library, which the C library has found as glibc does.
pub const TSS_DYNAMIC: u8 = 4;
/// As musl does.
pub const TSS_DYNAMIC_MUSL: u8 = 5;
/// Only the lists of interpreters and threads lead to a thread's state.
pub const TSS_LIST: u8 = 6;

/// Most interpreters that have Python frames in one stack.
pub const MAX_PYTHON_STATES: u32 = 8;
/// Most steps to the next interpreter of a stack: interpreters, threads, and frames until the
/// first mark.
pub const MAX_PYTHON_SEARCH: u32 = 4096;

/// A field that this version does not have.
pub const PYTHON_NO_FIELD: u16 = u16::MAX;

/// A block of the pool: where a process's interpreter has its data. Fields whose documentation
/// has no unit are offsets in bytes within the structure they are named after; names are
/// CPython's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonLayout {
    /// Identity of this incarnation of the block, never 0.
    pub owner: u32,
    /// [`PYTHON_FRAMES`], [`PYTHON_ENTRIES`] or [`PYTHON_SHIMS`].
    pub kind: u32,
    /// By `tss`: the address of `_PyRuntime.gilstate.autoTSSkey`; the offset from the fs
    /// base, or the address of the word that has it; the address of a `tls_index`.
    pub key: u64,
    /// What is added to where a `tls_index` leads.
    pub tls_offset: u64,
    /// Address of `_PyRuntime.interpreters.head`; 0: not known.
    pub interpreters: u64,
    /// Address of `PyCode_Type`.
    pub code_type: u64,
    /// `PyInterpreterState.next`.
    pub interp_next: u16,
    /// `PyInterpreterState.threads.head`.
    pub interp_threads: u16,
    /// `PyThreadState.next`.
    pub thread_next: u16,
    /// `PyThreadState.base_frame`, or none: it ends the chain, and is no mark.
    pub thread_base: u16,
    /// `PyThreadState.thread_id`.
    pub thread_id: u16,
    /// `PyThreadState`: the innermost frame, or the `_PyCFrame`.
    pub thread_frame: u16,
    /// `_PyCFrame.current_frame`, or none.
    pub cframe_frame: u16,
    /// `_PyCFrame.previous`.
    pub cframe_previous: u16,
    /// The frame's caller.
    pub frame_previous: u16,
    /// The frame's code object.
    pub frame_code: u16,
    /// The frame's instruction.
    pub frame_instruction: u16,
    /// The frame's owner, a byte; in 3.11, `is_entry`.
    pub frame_owner: u16,
    /// The frame's globals, a dictionary.
    pub frame_globals: u16,
    /// The frame's index of its thread's bytecode, in builds without the GIL.
    pub frame_bytecode: u16,
    /// Code objects: `co_flags`.
    pub code_flags: u16,
    /// `co_firstlineno`.
    pub code_first_line: u16,
    /// `co_filename`.
    pub code_filename: u16,
    /// `co_name`.
    pub code_name: u16,
    /// `co_qualname`, or none.
    pub code_qualname: u16,
    /// `co_lnotab` or `co_linetable`.
    pub code_lines: u16,
    /// `co_code_adaptive`.
    pub code_instructions: u16,
    /// `co_tlbc`, or none.
    pub code_bytecodes: u16,
    /// `PyObject.ob_type`.
    pub object_type: u16,
    /// `PyVarObject.ob_size`, of bytes.
    pub bytes_size: u16,
    /// `PyBytesObject.ob_sval`.
    pub bytes_data: u16,
    /// `PyASCIIObject.length`.
    pub string_length: u16,
    /// `PyASCIIObject.state`.
    pub string_state: u16,
    /// Offset of the characters of an ASCII string.
    pub string_ascii: u16,
    /// Offset of the characters of other compact strings.
    pub string_compact: u16,
    /// `PyDictObject.ma_keys`, or none.
    pub dict_keys: u16,
    /// A frame with this owner, or a higher one, is a mark.
    pub first_shim: u8,
    /// One of the `PYTHON_AT_*` constants.
    pub instruction: u8,
    /// One of the `TSS_*` constants.
    pub tss: u8,
    /// 1: `state` has whole bytes (builds without the GIL).
    pub wide_state: u8,
    /// Zero.
    pub reserved: [u64; 3],
}
const _: () = assert!(size_of::<PythonLayout>() == 128);

/// Slots that record which code objects were sent: a power of two.
pub const PYTHON_SEEN_SLOTS: u32 = 1 << 15;

/// Value of [`crate::ProcEntry::python`] in a process without an interpreter.
pub const NO_PYTHON: PoolRef = 0;

/// A code object; sent before the first stack that names it.
pub const KIND_PYTHON_CODE: u32 = 7;
/// A further part of a code object's line table.
pub const KIND_PYTHON_LINES: u32 = 8;

/// Most bytes of each text of a code object; the rest is cut off.
pub const MAX_PYTHON_TEXT: usize = 512;
/// Most bytes of a line table in one record.
pub const PYTHON_LINES_PIECE: usize = 4096;
/// Most records with further parts of a line table.
pub const MAX_PYTHON_PIECES: u32 = 63;

/// Texts of a code object: the module's `__name__`, the function, the file.
pub const PYTHON_TEXTS: usize = 3;

/// Header of a code object's record. The bytes of its texts and the beginning of its line table
/// follow. In a [`KIND_PYTHON_LINES`] record, a further part of the line table follows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonCode {
    /// [`KIND_PYTHON_CODE`] or [`KIND_PYTHON_LINES`].
    pub kind: u32,
    /// Process id (tgid) in the root pid namespace.
    pub tgid: u32,
    /// CLOCK_MONOTONIC nanoseconds of the first stack that names it.
    pub time_ns: u64,
    /// Its id.
    pub id: u64,
    /// Its address.
    pub code: u64,
    /// Address space of the process, as in the stack's header.
    pub space: u32,
    /// `co_firstlineno`.
    pub first_line: u32,
    /// Bytes of the whole line table, of which the first MAX_PYTHON_PIECES + 1 pieces are
    /// sent.
    pub lines_len: u32,
    /// Offset of this part in the line table ([`KIND_PYTHON_LINES`]).
    pub lines_at: u32,
    /// Bytes of each text.
    pub text_len: [u16; PYTHON_TEXTS],
    /// Bytes of a character of each text: 1 (Latin-1), 2 or 4; 0: it could not be read.
    pub text_width: [u8; PYTHON_TEXTS],
    /// One of the `PYTHON_AT_*` constants, which determines the format of the line table.
    pub instruction: u8,
    /// Bytes of the line table in this record.
    pub piece_len: u16,
    /// Zero.
    pub pad: u32,
}
const _: () = assert!(size_of::<PythonCode>() == 64);
