//! Sending code objects: their names and their line tables.

use aiprof_common::*;
use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_user, bpf_ringbuf_output};
use core::ffi::c_void;

use super::{CODE_WORDS, Context, MAX_NEW, Python, at, field, place, user};
use crate::{
    maps::{PYTHON_SEEN, Scratch},
    ring::NO_WAKEUP,
    unwind::{FOUND, GO_ON, STOP, forget},
};

/// Bytes of a string's header that are read.
const STRING_BYTES: u32 = 88;
/// Last offset in the room for a record after which a piece of a line table still fits.
const MOST_TEXT: u64 = 4095;
/// `__name__`, as it is in memory.
const NAME: u64 = u64::from_le_bytes(*b"__name__");
const HEADER: u64 = size_of::<PythonCode>() as u64;

/// Argument of the loop over the further pieces of a line table.
#[repr(C)]
struct Pieces {
    context: *mut Context,
    data: u64,
    failed: u64,
}

/// `bpf_loop` callback: sends one code object, and remembers that it was sent.
pub(super) extern "C" fn send(index: u64, context: *mut Context) -> i64 {
    // SAFETY: the context is walk_python's, the scratch a checked map value.
    let (scratch, ring) = unsafe { ((*context).scratch, (*context).ring) };
    // Names have low priority: they never take the room of samples.
    if !ring.has_free(1) {
        return STOP;
    }
    let bytes = forget(describe(scratch, index));
    if bytes == 0 {
        return GO_ON;
    }
    // SAFETY: `ring` is a map; `bytes` bytes are within the frames.
    let rc = unsafe {
        let record = (*scratch).frames.as_mut_ptr().cast();
        bpf_ringbuf_output(ring.map(), record, bytes & 8191, NO_WAKEUP)
    };
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    if rc != 0 || send_pieces(context) != FOUND {
        return STOP;
    }
    // SAFETY: within the array by the mask.
    let new = unsafe { *s.python.new.as_ptr().add(index as usize & (MAX_NEW - 1)) };
    if let Some(seen) = PYTHON_SEEN.get_ptr_mut(new.slot as u32) {
        // SAFETY: an aligned word of a map value.
        unsafe { seen.write_volatile(place(&s.header, new.id)) };
    }
    GO_ON
}

/// Builds the record of a code object. Returns its bytes, 0 if it cannot be read.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn describe(scratch: *mut Scratch, index: u64) -> u64 {
    if scratch.is_null() {
        return 0;
    }
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    // SAFETY: within the array by the mask.
    let new = unsafe { *s.python.new.as_ptr().add(index as usize & (MAX_NEW - 1)) };
    let layout = s.python.layout;
    let name = if layout.code_qualname == PYTHON_NO_FIELD {
        layout.code_name
    } else {
        layout.code_qualname
    };
    let lines = at(new.code, layout.code_lines);
    let lines_len = at(lines, layout.bytes_size);
    let header = s.frames.as_mut_ptr().cast::<PythonCode>();
    // SAFETY: within the frames. Field by field, because the compiler would otherwise call
    // memset.
    unsafe {
        (&raw mut (*header).kind).write_volatile(KIND_PYTHON_CODE);
        (&raw mut (*header).tgid).write_volatile(s.header.tgid);
        (&raw mut (*header).time_ns).write_volatile(s.header.time_ns);
        (&raw mut (*header).id).write_volatile(new.id);
        (&raw mut (*header).code).write_volatile(new.code);
        (&raw mut (*header).space).write_volatile(s.header.space);
        (&raw mut (*header).first_line).write_volatile(at(new.code, layout.code_first_line) as u32);
        (&raw mut (*header).lines_len).write_volatile(lines_len as u32);
        (&raw mut (*header).lines_at).write_volatile(0);
        (&raw mut (*header).instruction).write_volatile(layout.instruction);
        (&raw mut (*header).pad).write_volatile(0);
    }
    let mut end = HEADER;
    end += text(scratch, 0, module_name(&layout, new.globals), end);
    end += text(scratch, 1, at(new.code, name), end);
    end += text(scratch, 2, at(new.code, layout.code_filename), end);
    let piece = piece(
        scratch,
        lines.wrapping_add(layout.bytes_data.into()),
        lines_len,
        end,
    );
    // SAFETY: within the frames.
    unsafe { (&raw mut (*header).piece_len).write_volatile(piece as u16) };
    end + piece
}

/// Copies a string to byte `end` of the record. Returns its bytes.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn text(scratch: *mut Scratch, index: u32, string: u64, end: u64) -> u64 {
    if scratch.is_null() {
        return 0;
    }
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let p = &mut s.python;
    let (bytes, width) = string_size(p, string);
    let bytes = if bytes > MAX_PYTHON_TEXT as u64 {
        MAX_PYTHON_TEXT as u64
    } else {
        bytes
    };
    let ascii = width & 8 != 0;
    let data = string.wrapping_add(
        if ascii {
            p.layout.string_ascii
        } else {
            p.layout.string_compact
        }
        .into(),
    );
    let mut width = width & 7;
    // SAFETY: MOST_TEXT and a text are within the frames; a bad source is an error.
    let rc = unsafe {
        let to = s
            .frames
            .as_mut_ptr()
            .cast::<u8>()
            .add((end & MOST_TEXT) as usize);
        bpf_probe_read_user(to.cast(), bytes as u32, data as *const c_void)
    };
    let bytes = if rc == 0 { bytes } else { 0 };
    if rc != 0 {
        width = 0;
    }
    let header = s.frames.as_mut_ptr().cast::<PythonCode>();
    let index = index as usize & 3;
    // SAFETY: within the frames: a fourth text's fields would be in the header, too.
    unsafe {
        let lens = (&raw mut (*header).text_len).cast::<u16>();
        lens.add(index).write_volatile(bytes as u16);
        let widths = (&raw mut (*header).text_width).cast::<u8>();
        widths.add(index).write_volatile(width as u8);
    }
    bytes
}

/// Bytes of a string's characters, and bytes of one character, plus 8 if it is ASCII.
#[inline(always)]
fn string_size(p: &mut Python, string: u64) -> (u64, u64) {
    const _: () = assert!(STRING_BYTES as usize <= CODE_WORDS * 8);
    // SAFETY: the destination is larger; a bad source is an error.
    let rc = unsafe {
        bpf_probe_read_user(
            p.words_of.as_mut_ptr().cast(),
            STRING_BYTES,
            string as *const c_void,
        )
    };
    if string == 0 || rc != 0 {
        return (0, 0);
    }
    let length = field(&p.words_of, p.layout.string_length);
    let state =
        field(&p.words_of, p.layout.string_state) >> if p.layout.wide_state != 0 { 8 } else { 2 };
    // After the state of interning: kind (3 bits), compact, ascii.
    let (kind, compact, ascii) = (state & 7, state >> 3 & 1, state >> 4 & 1);
    if compact == 0 || length > MAX_PYTHON_TEXT as u64 * 16 {
        return (0, 0);
    }
    let bytes = match kind {
        1 => length,
        2 => length * 2,
        4 => length * 4,
        _ => return (0, 0),
    };
    (bytes, kind | ascii << 3)
}

/// The string `__name__` of a module's dictionary, if that is its first entry; else 0.
#[inline(always)]
fn module_name(layout: &PythonLayout, globals: u64) -> u64 {
    if layout.dict_keys == PYTHON_NO_FIELD {
        return 0;
    }
    let keys = at(globals, layout.dict_keys);
    if keys == 0 {
        return 0;
    }
    // PyDictKeysObject: in 3.8 to 3.10, its size and a function; later, logarithms and a kind.
    let (entries, is_unicode) = if layout.kind == PYTHON_FRAMES {
        let size = user(keys.wrapping_add(8));
        let width = if size <= 0xff {
            1
        } else if size <= 0xffff {
            2
        } else {
            4
        };
        (40u64.wrapping_add(size.wrapping_mul(width)), false)
    } else {
        let head = user(keys.wrapping_add(8));
        (32 + (1u64 << (head >> 8 & 31)), head >> 16 & 0xff != 0)
    };
    let mut entry = keys.wrapping_add(entries);
    if !is_unicode {
        // The hash is before the key.
        entry = entry.wrapping_add(8);
    }
    let key = user(entry);
    let is_name = at(key, layout.string_length) == 8 && at(key, layout.string_ascii) == NAME;
    if is_name {
        user(entry.wrapping_add(8))
    } else {
        0
    }
}

/// Copies the next part of a line table, of which `left` bytes remain, to byte `end`. Returns
/// its bytes.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn piece(scratch: *mut Scratch, data: u64, left: u64, end: u64) -> u64 {
    if scratch.is_null() {
        return 0;
    }
    let bytes = if left > PYTHON_LINES_PIECE as u64 {
        PYTHON_LINES_PIECE as u64
    } else {
        left
    };
    // SAFETY: MOST_TEXT and a piece are within the frames; a bad source is an error.
    let rc = unsafe {
        let frames = (*scratch).frames.as_mut_ptr().cast::<u8>();
        let to = frames.add((end & MOST_TEXT) as usize);
        bpf_probe_read_user(to.cast(), bytes as u32, data as *const c_void)
    };
    if rc == 0 { bytes } else { 0 }
}

/// Sends the parts of the line table that did not fit into the record.
#[inline(never)]
fn send_pieces(context: *mut Context) -> u32 {
    // SAFETY: the context is walk_python's, the scratch a checked map value.
    let s = unsafe { &mut *(*context).scratch };
    let header = s.frames.as_mut_ptr().cast::<PythonCode>();
    // SAFETY: within the frames.
    let (code, len) = unsafe { ((*header).code, u64::from((*header).lines_len)) };
    let first = PYTHON_LINES_PIECE as u64;
    if len <= first {
        return FOUND;
    }
    let lines = at(code, s.python.layout.code_lines);
    let mut pieces = Pieces {
        context,
        data: lines.wrapping_add(s.python.layout.bytes_data.into()),
        failed: 0,
    };
    // SAFETY: the callback has bpf_loop's signature; the context lives on this frame's
    // stack for the whole call.
    unsafe {
        bpf_loop(
            MAX_PYTHON_PIECES,
            send_piece as *mut c_void,
            (&raw mut pieces).cast(),
            0,
        );
    }
    u32::from(pieces.failed == 0)
}

/// `bpf_loop` callback: sends one piece.
extern "C" fn send_piece(index: u64, pieces: *mut Pieces) -> i64 {
    // SAFETY: the context is send_pieces', and holds walk_python's.
    let p = unsafe { &mut *pieces };
    // SAFETY: as above; the scratch is a checked map value.
    let (scratch, ring) = unsafe { ((*p.context).scratch, (*p.context).ring) };
    // SAFETY: as above.
    let header = unsafe { (*scratch).frames.as_mut_ptr().cast::<PythonCode>() };
    let from = (index + 1) * PYTHON_LINES_PIECE as u64;
    // SAFETY: within the frames.
    let len = unsafe { u64::from((*header).lines_len) };
    if from >= len {
        return STOP;
    }
    let bytes = forget(piece(
        scratch,
        p.data.wrapping_add(from),
        len - from,
        HEADER,
    ));
    // SAFETY: within the frames.
    unsafe {
        (&raw mut (*header).kind).write_volatile(KIND_PYTHON_LINES);
        (&raw mut (*header).lines_at).write_volatile(from as u32);
        (&raw mut (*header).piece_len).write_volatile(bytes as u16);
    }
    p.failed = 1;
    if bytes == 0 || !ring.has_free(1) {
        return STOP;
    }
    let total = (HEADER + bytes) & 8191;
    // SAFETY: `ring` is a map; `total` bytes are within the frames.
    let rc = unsafe {
        let record = (*scratch).frames.as_mut_ptr().cast();
        bpf_ringbuf_output(ring.map(), record, total, NO_WAKEUP)
    };
    if rc != 0 {
        return STOP;
    }
    p.failed = 0;
    GO_ON
}
