//! The chain of Python frames of the current thread (see `PythonLayout`).
//!
//! The thread state is the one that the thread is bound to (`autoTSSkey`). It exists even while
//! the interpreter's lock is released, in waits and in calls into runtimes. A thread that runs
//! another interpreter has a further thread state for each one around it ([`states`]). All memory that is
//! read here is the program's, which may write anything to it. So every chain is bounded, and a
//! thread state counts only if its `thread_id` is this thread's.

use aiprof_common::*;
use aya_ebpf::helpers::{
    bpf_get_current_task_btf,
    generated::{bpf_loop, bpf_probe_read_kernel, bpf_probe_read_user},
};
use core::ffi::c_void;

use super::{FOUND, GO_ON, STOP, forget, read_kernel};
use crate::{
    maps::{PYTHON_SEEN, Scratch},
    pool::{Block, le_bit},
    ring::Ring,
    setting,
};

mod code;
mod states;

/// Bytes of a frame that are read: in 3.8 to 3.10, and in later versions.
const FRAME_BYTES: [u32; 2] = [112, 88];
/// Words that hold them.
const FRAME_WORDS: usize = 16;
/// Bytes of a code object that are read: up to `co_linetable`, also in builds without the GIL.
const CODE_BYTES: u32 = 176;
/// Words that hold them.
const CODE_WORDS: usize = 32;
/// Most code objects of one stack that are sent with it.
const MAX_NEW: usize = 64;
/// Offset of the values of the first 32 keys in glibc, and of the table of all values (struct
/// pthread: `specific_1stblock`, `specific`). A key's value follows its sequence number.
const GLIBC_FIRST: u64 = 0x310;
const GLIBC_TABLE: u64 = 0x510;
const GLIBC_BLOCK: u64 = 32;
/// Offset of the table of values in musl 1.2 (struct pthread: `tsd`).
const MUSL_TABLE: u64 = 128;
/// Most keys (PTHREAD_KEYS_MAX).
const MAX_KEYS: u64 = 1024;

/// A code object that was not sent yet.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NewCode {
    code: u64,
    globals: u64,
    id: u64,
    slot: u64,
}

/// The Python frames of a walk.
#[repr(C)]
pub struct Python {
    /// A copy, so that it does not change meanwhile.
    layout: PythonLayout,
    /// The thread's fs base, by which its states are known.
    thread: u64,
    search: states::StateSearch,
    /// The frame that ends the chain without being a mark; 0: none.
    base: u64,
    /// The next frame, then the next `_PyCFrame`.
    frame: u64,
    cframe: u64,
    /// Address of the next mark that is not placed; `u64::MAX`: none.
    mark: u64,
    /// Number of words, then the number of marks among them.
    len: u32,
    marks: u32,
    /// Number of marks that are placed.
    placed: u32,
    /// Number of code objects to send.
    new_len: u32,
    /// Bytes of them that may be sent.
    budget: u64,
    new: [NewCode; MAX_NEW],
    /// A copy of the frame.
    frame_words: [u64; FRAME_WORDS],
    /// A copy of the code object, or of another object.
    words_of: [u64; CODE_WORDS],
    /// Indices of the marks among the words.
    mark_at: [u32; MAX_PYTHON_MARKS],
    /// The words.
    words: [u64; MAX_PYTHON_WORDS],
}

impl Python {
    /// Address of the next mark.
    #[inline(always)]
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// The words.
    #[inline(always)]
    pub fn words(&self) -> *const u64 {
        self.words.as_ptr()
    }
}

/// Argument of the loop callbacks.
#[repr(C)]
struct Context {
    scratch: *mut Scratch,
    ring: Ring,
}

/// Starts without Python frames.
#[inline(always)]
pub fn clear(s: &mut Scratch) {
    s.python.len = 0;
    s.python.mark = u64::MAX;
    s.header.python_len = 0;
}

/// Reads the chain of the current thread, and sends the code objects that were not sent before.
/// `reference`: the layout of the process's interpreter. It uses the room for native frames, so
/// these must be walked later.
#[inline(always)]
pub fn walk_python(scratch: *mut Scratch, reference: PoolRef, ring: Ring) {
    if reference < REF_FIRST || begin(scratch, reference) != FOUND {
        return;
    }
    let mut context = Context { scratch, ring };
    // SAFETY: the callbacks have bpf_loop's signature; the context lives on this frame's
    // stack for the whole call.
    unsafe {
        read_chain(&raw mut context);
        states::read_others(&raw mut context);
        let p = &mut (*scratch).python;
        (*scratch).header.python_len = p.len as u16;
        if p.marks > 0 {
            p.mark = mark_address(p, 0);
        }
        if p.frame != 0 {
            (*scratch).header.flags |= FLAG_PYTHON_CUT;
        }
        if p.new_len > 0 {
            bpf_loop(
                p.new_len,
                code::send as *mut c_void,
                (&raw mut context).cast(),
                0,
            );
        }
    }
}

/// Reads the frames from the next one to the end of their chain.
#[inline(always)]
unsafe fn read_chain(context: *mut Context) {
    // SAFETY: the callback has bpf_loop's signature; the context is walk_python's.
    unsafe {
        bpf_loop(
            MAX_PYTHON_WORDS as u32,
            step as *mut c_void,
            context.cast(),
            0,
        );
    }
}

/// Finds the thread's innermost frame.
#[inline(never)]
fn begin(scratch: *mut Scratch, reference: PoolRef) -> u32 {
    // SAFETY: a checked map value.
    let p = unsafe { &mut (*scratch).python };
    p.marks = 0;
    p.placed = 0;
    p.new_len = 0;
    p.frame = 0;
    p.base = 0;
    let Some(block) = Block::get(reference) else {
        return 0;
    };
    let owner = block.u32(0);
    block.copy(&mut p.layout);
    if owner == 0 || block.u32(0) != owner {
        return 0;
    }
    // SAFETY: always valid in a tracing program.
    let task = unsafe { bpf_get_current_task_btf() } as u64;
    let thread = read_kernel(task, setting!(task_fsbase));
    p.thread = thread;
    if p.layout.tss == TSS_LIST {
        return FOUND;
    }
    let state = match p.layout.tss {
        TSS_GLIBC | TSS_MUSL => under_key(p, thread),
        _ => in_variable(p, thread),
    };
    if state == 0 || at(state, p.layout.thread_id) != thread {
        return 0;
    }
    let frame = at(state, p.layout.thread_frame);
    if p.layout.cframe_frame == PYTHON_NO_FIELD {
        p.frame = frame;
    } else {
        p.cframe = frame;
        p.frame = at(frame, p.layout.cframe_frame);
    }
    p.base = base_of(p, state);
    FOUND
}

/// The frame that ends a thread state's chain without being a mark; 0: none.
#[inline(always)]
fn base_of(p: &Python, state: u64) -> u64 {
    match p.layout.thread_base {
        PYTHON_NO_FIELD => 0,
        field => at(state, field),
    }
}

/// The thread state in a variable of the thread; 0: none.
#[inline(always)]
fn in_variable(p: &Python, thread: u64) -> u64 {
    let key = p.layout.key;
    match p.layout.tss {
        TSS_STATIC => user(thread.wrapping_add(key)),
        TSS_LOADED => user(thread.wrapping_add(user(key))),
        tss => {
            // tls_index: the library's number, and an offset in its block. The table of blocks
            // (dtv) has an address for each, in glibc with another word behind it.
            let module = user(key);
            let offset = user(key.wrapping_add(8)).wrapping_add(p.layout.tls_offset);
            let bytes = if tss == TSS_DYNAMIC { 16 } else { 8 };
            let block = user(user(thread.wrapping_add(8)).wrapping_add(module.wrapping_mul(bytes)));
            user(block.wrapping_add(offset))
        }
    }
}

/// The thread state under a key; 0: none.
#[inline(always)]
fn under_key(p: &Python, thread: u64) -> u64 {
    // Py_tss_t: a flag whether it is initialized, then the key.
    let tss = user(p.layout.key);
    let key = tss >> 32;
    if thread == 0 || tss as u32 != 1 || key >= MAX_KEYS {
        return 0;
    }
    if p.layout.tss == TSS_MUSL {
        return user(user(thread.wrapping_add(MUSL_TABLE)).wrapping_add(8 * key));
    }
    let block = if key < GLIBC_BLOCK {
        thread.wrapping_add(GLIBC_FIRST)
    } else {
        user(thread.wrapping_add(GLIBC_TABLE + 8 * (key / GLIBC_BLOCK)))
    };
    user(block.wrapping_add(16 * (key % GLIBC_BLOCK) + 8))
}

/// The 8 bytes of user memory at an address; 0 if they cannot be read.
#[inline(always)]
pub(super) fn user(address: u64) -> u64 {
    let mut value = 0u64;
    // SAFETY: the destination is 8 bytes on the stack; a bad source is an error, and
    // clears it.
    unsafe { bpf_probe_read_user((&raw mut value).cast(), 8, address as *const c_void) };
    value
}

/// A field of an object.
#[inline(always)]
fn at(object: u64, field: u16) -> u64 {
    if object == 0 {
        return 0;
    }
    user(object.wrapping_add(field.into()))
}

/// A field of an object, from a copy that starts at its first byte.
#[inline(always)]
pub(super) fn field<const N: usize>(words: &[u64; N], offset: u16) -> u64 {
    let index = offset as usize >> 3 & (N - 1);
    // SAFETY: within the array by the mask, because N is a power of two.
    let word = unsafe { words.as_ptr().add(index).read() };
    word >> (u64::from(offset & 7) * 8)
}

/// `bpf_loop` callback: reads one frame.
extern "C" fn step(_index: u64, context: *mut Context) -> i64 {
    // SAFETY: the context is walk_python's, the scratch a checked map value.
    let scratch = unsafe { (*context).scratch };
    if forget(take_frame(scratch).into()) == FOUND.into() {
        GO_ON
    } else {
        STOP
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn take_frame(scratch: *mut Scratch) -> u32 {
    if scratch.is_null() {
        return 0;
    }
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let p = &mut s.python;
    if p.frame == p.base {
        p.frame = 0;
    }
    if p.frame == 0 || p.len >= MAX_PYTHON_WORDS as u32 {
        return 0;
    }
    let bytes = FRAME_BYTES[usize::from(p.layout.kind != PYTHON_FRAMES)];
    // SAFETY: the destination is larger; a bad source is an error.
    let rc = unsafe {
        bpf_probe_read_user(
            p.frame_words.as_mut_ptr().cast(),
            bytes,
            p.frame as *const c_void,
        )
    };
    if rc != 0 {
        return 0;
    }
    let owner = field(&p.frame_words, p.layout.frame_owner) as u8;
    let next = field(&p.frame_words, p.layout.frame_previous);
    if p.layout.kind == PYTHON_SHIMS && owner >= p.layout.first_shim {
        let mark = p.frame;
        if push_mark(p, mark) != FOUND {
            return 0;
        }
        p.frame = next;
        return FOUND;
    }
    take_code(s);
    let p = &mut s.python;
    if p.layout.kind == PYTHON_ENTRIES && owner != 0 {
        // A generator into which an exception is thrown is in the chain, but does not run. Then
        // the outer activation does not run the frames before it.
        let mark = p.cframe;
        let outer = at(mark, p.layout.cframe_previous);
        if next == at(outer, p.layout.cframe_frame) {
            if push_mark(p, mark) != FOUND {
                return 0;
            }
            p.cframe = outer;
        }
    }
    p.frame = next;
    FOUND
}

/// Adds the word of the frame that was read, if it has a code object.
#[inline(always)]
fn take_code(s: &mut Scratch) {
    let p = &mut s.python;
    // References may have tag bits.
    let code = field(&p.frame_words, p.layout.frame_code) & !7;
    // SAFETY: the destination is larger; a bad source is an error.
    let rc = unsafe {
        bpf_probe_read_user(
            p.words_of.as_mut_ptr().cast(),
            CODE_BYTES,
            code as *const c_void,
        )
    };
    if rc != 0 || field(&p.words_of, p.layout.object_type) != p.layout.code_type {
        return;
    }
    let instruction = field(&p.frame_words, p.layout.frame_instruction);
    let index = match p.layout.instruction {
        PYTHON_AT_BYTES => i64::from(instruction as u32 as i32) as u64 >> 1,
        PYTHON_AT_UNITS => i64::from(instruction as u32 as i32) as u64,
        _ => instruction.wrapping_sub(first_instruction(p, code)) >> 1,
    };
    let id = identity(p, code) & PYTHON_ID;
    push(p, python_word(id, index));
    // A code object counts as sent only for this process and the program that it executes.
    let place = place(&s.header, id);
    let slot = place & (u64::from(PYTHON_SEEN_SLOTS) - 1);
    let Some(seen) = PYTHON_SEEN.get_ptr_mut(slot as u32) else {
        return;
    };
    // SAFETY: an aligned word of a map value, which all CPUs write whole.
    let known = unsafe { seen.read_volatile() };
    let new = p.new_len as usize;
    if known == place || new >= MAX_NEW {
        return;
    }
    let globals = field(&p.frame_words, p.layout.frame_globals);
    // SAFETY: within the array by the mask.
    unsafe {
        *p.new.as_mut_ptr().add(new & (MAX_NEW - 1)) = NewCode {
            code,
            globals,
            id,
            slot,
        };
    }
    p.new_len = new as u32 + 1;
}

/// Distinguishes a code object from others that were at its address: a hash of all its parts,
/// which count by their addresses.
#[inline(always)]
fn identity(p: &Python, code: u64) -> u64 {
    let mut hash = code;
    let from = u64::from(p.layout.object_type >> 3) + 1;
    let to = u64::from(p.layout.code_lines >> 3);
    // Flags share a word with a counter in 3.11, and change in no version.
    let flags = u64::from(p.layout.code_flags >> 3);
    for word in 0..u64::from(CODE_BYTES / 8) {
        // No branch: the verifier would follow both paths each time.
        let is_flags = le_bit(flags, word) & le_bit(word, flags);
        let taken = le_bit(from, word) & le_bit(word, to) & (1 - is_flags);
        let value = field(&p.words_of, (word << 3) as u16);
        hash = mix(hash, value & taken.wrapping_neg());
    }
    // If a program compiles one text repeatedly, the parts have the same sizes and addresses
    // each time. The beginning of the line table differs if the lines differ.
    let lines = field(&p.words_of, p.layout.code_lines);
    let data = lines.wrapping_add(p.layout.bytes_data.into());
    mix(hash, user(data))
}

/// The address of the first instruction of the frame's bytecode.
#[inline(always)]
fn first_instruction(p: &Python, code: u64) -> u64 {
    if p.layout.code_bytecodes == PYTHON_NO_FIELD {
        return code.wrapping_add(p.layout.code_instructions.into());
    }
    // _PyCodeArray: its size, then the bytecode of each thread.
    let entries = at(code, p.layout.code_bytecodes);
    let index = field(&p.frame_words, p.layout.frame_bytecode) as u32;
    user(entries.wrapping_add(8 + 8 * u64::from(index)))
}

#[inline(always)]
fn push(p: &mut Python, word: u64) {
    let len = p.len as usize;
    // SAFETY: within the array by the mask.
    unsafe {
        *p.words.as_mut_ptr().add(len & (MAX_PYTHON_WORDS - 1)) = word;
    }
    p.len = len as u32 + 1;
}

#[inline(always)]
fn push_mark(p: &mut Python, mark: u64) -> u32 {
    let (marks, len) = (p.marks as usize, p.len);
    if marks >= MAX_PYTHON_MARKS || len >= MAX_PYTHON_WORDS as u32 {
        return 0;
    }
    // SAFETY: within the array by the mask.
    unsafe {
        *p.mark_at.as_mut_ptr().add(marks & (MAX_PYTHON_MARKS - 1)) = len;
    }
    p.marks = marks as u32 + 1;
    push(p, PYTHON_MARK | mark & (PYTHON_PLACED - 1));
    FOUND
}

/// The address of a mark.
#[inline(always)]
fn mark_address(p: &Python, mark: u32) -> u64 {
    let mark = mark as usize & (MAX_PYTHON_MARKS - 1);
    // SAFETY: within the arrays by the masks.
    unsafe {
        let at = p.mark_at.as_ptr().add(mark).read() as usize;
        let word = p.words.as_ptr().add(at & (MAX_PYTHON_WORDS - 1)).read();
        word & (PYTHON_PLACED - 1)
    }
}

/// Records that the next mark is in native frame number `native`. Returns the address of the
/// mark after it.
#[inline(never)]
pub fn place_mark(scratch: *mut Scratch, native: u32) -> u64 {
    // SAFETY: a checked map value.
    let p = unsafe { &mut (*scratch).python };
    let mark = p.placed as usize & (MAX_PYTHON_MARKS - 1);
    // SAFETY: within the arrays by the masks.
    unsafe {
        let at = p.mark_at.as_ptr().add(mark).read() as usize;
        let word = p.words.as_mut_ptr().add(at & (MAX_PYTHON_WORDS - 1));
        *word = PYTHON_MARK | PYTHON_PLACED | u64::from(native);
    }
    p.placed = mark as u32 + 1;
    p.mark = if p.placed < p.marks {
        mark_address(p, p.placed)
    } else {
        u64::MAX
    };
    p.mark
}

/// Appends the words after the `len` addresses of a stack. Returns their number.
#[inline(always)]
pub fn append(s: &mut Scratch, len: u64) -> u64 {
    let words = u64::from(s.header.python_len) & (2 * MAX_PYTHON_WORDS as u64 - 1);
    if words == 0 || words > MAX_PYTHON_WORDS as u64 {
        s.header.python_len = 0;
        return 0;
    }
    const MOST: u64 = (MAX_USER_FRAMES + MAX_KERNEL_FRAMES) as u64;
    let len = if len > MOST { MOST } else { len };
    // SAFETY: after `len` addresses there is room for all words; the source is as large.
    let rc = unsafe {
        bpf_probe_read_kernel(
            s.frames.as_mut_ptr().add(len as usize).cast(),
            (words * 8) as u32,
            s.python.words().cast(),
        )
    };
    if rc != 0 {
        s.header.python_len = 0;
        return 0;
    }
    words
}

/// The fingerprint of a code object that was sent, for this process and the program that it
/// executes. Never 0.
#[inline(always)]
fn place(header: &SampleHeader, id: u64) -> u64 {
    let whose = u64::from(header.tgid) << 32 | u64::from(header.space);
    mix(mix(id, whose), 1) | 1 << 63
}

/// Folds a word into a hash.
#[inline(always)]
fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 32
}
