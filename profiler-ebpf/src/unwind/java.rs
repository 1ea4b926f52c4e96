//! The frames of HotSpot's generated code (see `JavaLayout`).
//!
//! All memory that is read here is the program's, which may write anything to it, so every
//! search is bounded. The blob has the size of a caller's frame. For an interrupted function,
//! the instruction shows which part of the frame exists. The resulting return address is
//! accepted only if it is in HotSpot's interpreter or follows a call.
//!
//! Code may push words below its frame: where it compares or searches strings, checks types,
//! converts numbers or saves registers around a barrier. The blob does not have their number.
//! The return address is then searched for above the frame's usual end, see [`search`].

use aiprof_common::*;
use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_user};
use core::ffi::c_void;

use super::{
    GO_ON, NO_STOP, STOP, Walk,
    apply::{read_stack, user_register},
    frame_at,
    guess::{NO_CALL, call_among, call_before},
    mark_last,
    python::{field, user},
};
use crate::{maps::Scratch, pool::Block};

/// Result: the address is in no such frame.
pub(super) const NOT_KNOWN: u32 = u32::MAX - 1;

/// Result: the blob has no frame size.
const NO_SIZE: u32 = u32::MAX - 2;

/// Words of a blob's header.
const BLOB_WORDS: usize = JAVA_BLOB_BYTES / 8;
/// Most steps from a segment to the first one of its block; a step leads back by up to 254.
const MAX_SEGMENT_STEPS: u32 = 32;
/// Value of a free segment. Lower values are steps.
const SEGMENT_FREE: u8 = 255;
/// Most bytes of a frame of generated code.
const MAX_FRAME: u64 = 1 << 20;
/// Most bytes of a method's parameters and variables, by which it extends the stack.
const MAX_LOCALS: u64 = 1 << 20;

/// Most words that code pushes below its frame.
const MAX_PUSHED: u32 = 16;
/// The same with all registers, which it saves around the call of a barrier.
const MAX_SAVED: u32 = 160;

/// Numbers of registers in DWARF.
const RAX: u8 = 0;
const RBX: u8 = 3;
const R13: u8 = 13;

/// Slots of an interpreted frame, from rbp: the return address, the caller's stack
/// pointer, the method.
const RETURN_ADDRESS: u64 = 8;
const SENDER_SP: u64 = 8;
const METHOD: u64 = 24;

/// First 8 bytes of blobs' names.
const NMETHOD: u64 = u64::from_le_bytes(*b"nmethod\0");
const NATIVE_NMETHOD: u64 = u64::from_le_bytes(*b"native n");
const VTABLE_CHUNKS: u64 = u64::from_le_bytes(*b"vtable c");

/// State of a walk for frames of HotSpot.
#[repr(C)]
pub struct Java {
    /// A copy, so that it does not change meanwhile.
    layout: JavaLayout,
    /// The current blob's address, then its header.
    blob: u64,
    header: [u64; BLOB_WORDS],
    /// Bytes of its frame.
    size: u64,
}

/// Prepares a walk. `reference`: the layout of the process's HotSpot.
#[inline(always)]
pub(super) fn begin(scratch: *mut Scratch, reference: PoolRef) {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    s.walk.heaps.start = 0;
    s.walk.heaps.size = 0;
    if reference >= REF_FIRST {
        copy_layout(scratch, reference);
    }
}

#[inline(never)]
fn copy_layout(scratch: *mut Scratch, reference: PoolRef) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let Some(block) = Block::get(reference) else {
        return 0;
    };
    let owner = block.u32(0);
    block.copy(&mut s.java.layout);
    if owner != 0 && block.u32(0) == owner {
        let layout = &s.java.layout;
        s.walk.heaps.start = layout.start;
        s.walk.heaps.size = layout.end.wrapping_sub(layout.start);
    }
    0
}

/// Moves the walk from an address in HotSpot's heaps, which was recorded, to the caller.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn follow(scratch: *mut Scratch) -> u32 {
    if scratch.is_null() {
        return NOT_KNOWN;
    }
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let is_leaf = s.walk.exact != 0 && s.walk.len == 1;
    if is_interpreter(&s.java, s.walk.rip) {
        if is_leaf && at_border(scratch) == NO_STOP {
            return NO_STOP;
        }
        return interpreted(scratch);
    }
    match find_blob(scratch) {
        NO_STOP => {}
        NO_SIZE => return stub(scratch),
        _ => return NOT_KNOWN,
    }
    if s.walk.exact != 0 {
        return interrupted(scratch);
    }
    let cfa = s.walk.rsp.wrapping_add(s.java.size);
    if !is_generated(&s.walk, user(cfa.wrapping_sub(8))) && is_method(&s.java) {
        return search(scratch, cfa, MAX_SAVED);
    }
    to_result(whole_frame(s))
}

#[inline(always)]
fn to_result(done: Result<(), u8>) -> u32 {
    match done {
        Ok(()) => NO_STOP,
        Err(stop) => stop.into(),
    }
}

#[inline(always)]
fn is_interpreter(java: &Java, address: u64) -> bool {
    let (start, end) = (java.layout.interpreter_start, java.layout.interpreter_end);
    address.wrapping_sub(start) < end.wrapping_sub(start)
}

/// Steps from a stub. One that has called a function has a frame that rbp leads to.
#[inline(always)]
fn stub(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let w = unsafe { &mut (*scratch).walk };
    let frame = w.rbp;
    if w.exact != 0 {
        return search(scratch, w.rsp, MAX_PUSHED);
    }
    if frame < w.rsp || frame & 7 != 0 {
        return search(scratch, w.rsp, MAX_SAVED);
    }
    let (Ok(caller), Ok(address)) = (
        read_stack(w, frame),
        read_stack(w, frame.wrapping_add(RETURN_ADDRESS)),
    ) else {
        return NOT_KNOWN;
    };
    if address == 0 {
        return NOT_KNOWN;
    }
    w.rbp = caller;
    go_to(w, address, frame.wrapping_add(16));
    NO_STOP
}

/// Steps from a frame of the interpreter.
#[inline(never)]
fn interpreted(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    to_result(try_interpreted(unsafe { &mut *scratch }))
}

#[inline(always)]
fn try_interpreted(s: &mut Scratch) -> Result<(), u8> {
    let w = &mut s.walk;
    let frame = w.rbp;
    if frame < w.rsp || frame & 7 != 0 {
        return Err(STOP_FRAME_POINTER);
    }
    let method = read_stack(w, frame.wrapping_sub(METHOD))?;
    let sender = read_stack(w, frame.wrapping_sub(SENDER_SP))?;
    let caller = read_stack(w, frame)?;
    let address = read_stack(w, frame.wrapping_add(RETURN_ADDRESS))?;
    if sender <= frame || sender.wrapping_sub(frame) > MAX_LOCALS || address == 0 {
        return Err(STOP_FRAME_POINTER);
    }
    note_method(s, method);
    let w = &mut s.walk;
    w.rbp = caller;
    go_to(w, address, sender);
    Ok(())
}

/// Steps from interpreter code that begins or ends a method's frame. There r13 is not the
/// address of the method's next instruction, as it is elsewhere.
///
/// At the beginning, r13 is the caller's stack pointer, and rbx is the method. The return
/// address is on top of the stack, or in rax while room is made for variables. At the end, r13
/// is the return address and rbx the caller's stack pointer: the method has returned.
#[inline(never)]
fn at_border(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let (r13, rbx) = (user_register(R13), user_register(RBX));
    let w = &mut s.walk;
    if r13.wrapping_sub(w.heaps.start) < w.heaps.size {
        if rbx.wrapping_sub(w.rsp) > MAX_LOCALS || !may_return(s, r13) {
            return NOT_KNOWN;
        }
        s.walk.len = 0;
        go_to(&mut s.walk, r13, rbx);
        return NO_STOP;
    }
    if r13.wrapping_sub(w.rsp) > MAX_LOCALS {
        return NOT_KNOWN;
    }
    let address = if r13 == w.rsp.wrapping_add(8) {
        user(w.rsp)
    } else {
        user_register(RAX)
    };
    if !may_return(s, address) {
        return NOT_KNOWN;
    }
    note_method(s, rbx);
    let w = &mut s.walk;
    if w.rbp >= w.rsp && w.rbp < r13 {
        w.rbp = user(w.rbp);
    }
    go_to(w, address, r13);
    NO_STOP
}

/// Finds the blob that holds the current address, and the size of its frame.
#[inline(never)]
fn find_blob(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let pc = s.walk.rip.wrapping_sub(u64::from(s.walk.exact == 0));
    let java = &mut s.java;
    let mut heap = JavaHeap::default();
    for known in &java.layout.heaps {
        if pc.wrapping_sub(known.start) < known.end.wrapping_sub(known.start) {
            heap = *known;
        }
    }
    if heap.end == 0 {
        return NOT_KNOWN;
    }
    let shift = java.layout.segment_shift & 31;
    let mut segment = pc.wrapping_sub(heap.start) >> shift;
    let mut found = false;
    for _ in 0..MAX_SEGMENT_STEPS {
        let mut back = SEGMENT_FREE;
        let at = heap.segments.wrapping_add(segment);
        // SAFETY: the destination is a byte on the stack; a bad source is an error.
        let rc = unsafe { bpf_probe_read_user((&raw mut back).cast(), 1, at as *const c_void) };
        if rc != 0 || back == SEGMENT_FREE {
            return NOT_KNOWN;
        }
        if back == 0 {
            found = true;
            break;
        }
        segment = segment.wrapping_sub(back.into());
    }
    if !found {
        return NOT_KNOWN;
    }
    java.blob = heap
        .start
        .wrapping_add(segment << shift)
        .wrapping_add(java.layout.block_header.into());
    // SAFETY: the destination is as large; a bad source is an error.
    let rc = unsafe {
        bpf_probe_read_user(
            java.header.as_mut_ptr().cast(),
            JAVA_BLOB_BYTES as u32,
            java.blob as *const c_void,
        )
    };
    let words = field(&java.header, java.layout.blob_frame_size) as u32;
    java.size = u64::from(words) * 8;
    if rc != 0 {
        NOT_KNOWN
    } else if java.size == 0 || java.size > MAX_FRAME {
        java.size = 0;
        NO_SIZE
    } else {
        NO_STOP
    }
}

/// Steps from code whose frame is complete.
#[inline(always)]
fn whole_frame(s: &mut Scratch) -> Result<(), u8> {
    let size = s.java.size;
    let w = &mut s.walk;
    let cfa = w.rsp.wrapping_add(size);
    let address = read_stack(w, cfa.wrapping_sub(8))?;
    if size > 8 {
        w.rbp = read_stack(w, cfa.wrapping_sub(16))?;
    }
    if address == 0 {
        return Err(STOP_END);
    }
    go_to(w, address, cfa);
    Ok(())
}

/// The existing part of an interrupted function's frame: only the return address; also the
/// caller's rbp below it; all but that rbp; all.
const BARE: u32 = 0;
const PUSHED: u32 = 1;
const WITHOUT_RBP: u32 = 2;
const WHOLE: u32 = 3;

/// Steps from an interrupted function.
#[inline(always)]
fn interrupted(scratch: *mut Scratch) -> u32 {
    let state = state_of(scratch);
    if leave(scratch, state) == NO_STOP {
        return NO_STOP;
    }
    if state == WHOLE {
        // SAFETY: a checked map value.
        let s = unsafe { &*scratch };
        let cfa = s.walk.rsp.wrapping_add(s.java.size);
        if search(scratch, cfa, MAX_PUSHED) == NO_STOP {
            return NO_STOP;
        }
    }
    // The instruction was misleading.
    for other in [WHOLE, BARE, PUSHED] {
        if other != state && leave(scratch, other) == NO_STOP {
            // SAFETY: a checked map value.
            mark_last(unsafe { &mut *scratch }, ADDR_GUESSED);
            return NO_STOP;
        }
    }
    NOT_KNOWN
}

/// More than one.
const MANY: u64 = 2;

/// A search for a return address on the stack.
struct ReturnSearch {
    scratch: *mut Scratch,
    /// Address of the first word.
    from: u64,
    /// The return address, and where it is; 0: none was found.
    address: u64,
    at: u64,
    /// Number of addresses that any call may have left, at most [`MANY`]; 0 if one is certain.
    doubtful: u64,
}

/// Steps from code that has pushed words, to the return address from `from` on among `words`
/// words.
///
/// The first address is certain that follows a call of the current blob. An address in the
/// interpreter, which calls methods by register, is certain if it is the first one of all. So is
/// the first word of a stub that selects a method: such stubs push nothing, and HotSpot changes
/// the calls that lead to them.
///
/// Otherwise the only address after some call among the first ones is taken, but not from a
/// stub. If there are several, the first one is a guess: others may be left from calls that are
/// over.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn search(scratch: *mut Scratch, from: u64, words: u32) -> u32 {
    if scratch.is_null() {
        return NOT_KNOWN;
    }
    let mut search = ReturnSearch {
        scratch,
        from,
        address: 0,
        at: 0,
        doubtful: 0,
    };
    // SAFETY: a checked map value.
    let is_stub = unsafe { (*scratch).java.size } == 0;
    let is_selector = is_stub && is_vtable_stub(scratch);
    // SAFETY: the callback has bpf_loop's signature; the context lives on this frame's
    // stack for the whole call.
    unsafe {
        bpf_loop(
            if is_selector { 1 } else { words },
            find_return as *mut c_void,
            (&raw mut search).cast(),
            0,
        );
    }
    if search.at == 0 || is_stub && search.doubtful != 0 && !is_selector {
        return NOT_KNOWN;
    }
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    if search.doubtful == MANY {
        mark_last(s, ADDR_GUESSED);
    }
    let below = search.at.wrapping_sub(8);
    let w = &mut s.walk;
    // A stub may have none, or one that rbp leads to.
    if !is_stub && s.java.size > 8 || is_stub && w.rbp == below {
        w.rbp = user(below);
    }
    go_to(w, search.address, search.at.wrapping_add(8));
    NO_STOP
}

/// Whether the blob has stubs that select a method.
#[inline(always)]
fn is_vtable_stub(scratch: *mut Scratch) -> bool {
    // SAFETY: a checked map value.
    blob_name(unsafe { &(*scratch).java }) == VTABLE_CHUNKS
}

/// `bpf_loop` callback: looks at a word of the stack.
extern "C" fn find_return(index: u64, search: *mut ReturnSearch) -> i64 {
    // SAFETY: the context is search's, the scratch a checked map value.
    let (search, s) = unsafe { (&mut *search, &*(*search).scratch) };
    let at = search.from.wrapping_add(8 * index);
    let address = user(at);
    if !is_generated(&s.walk, address) {
        return GO_ON;
    }
    let is_next = search.at == 0 && s.java.size != 0;
    if is_next && is_interpreter(&s.java, address) || calls_blob(s, address) {
        search.address = address;
        search.at = at;
        search.doubtful = 0;
        return STOP;
    }
    if index < MAX_PUSHED.into() && call_among(address, s.walk.rip, 0, 0) != NO_CALL {
        // No count: the verifier would follow each number.
        if search.at != 0 {
            search.doubtful = MANY;
            return GO_ON;
        }
        search.address = address;
        search.at = at;
        search.doubtful = 1;
    }
    GO_ON
}

/// Whether the call before an address (e8) leads into the current blob.
#[inline(always)]
fn calls_blob(s: &Scratch, address: u64) -> bool {
    let code = user(address.wrapping_sub(8));
    let target = address.wrapping_add((code >> 32) as i32 as i64 as u64);
    let blob = s.java.blob;
    code >> 24 & 0xff == 0xe8 && target.wrapping_sub(blob) <= s.walk.rip.wrapping_sub(blob)
}

/// Whether an address is among HotSpot's heaps.
#[inline(always)]
fn is_generated(w: &Walk, address: u64) -> bool {
    address.wrapping_sub(w.heaps.start) < w.heaps.size
}

/// Moves to the caller of an interrupted function. `state`: the part of its frame that exists.
#[inline(never)]
fn leave(scratch: *mut Scratch, state: u32) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let size = s.java.size;
    let w = &mut s.walk;
    let at = match state {
        BARE => w.rsp,
        PUSHED => w.rsp.wrapping_add(8),
        _ => w.rsp.wrapping_add(size).wrapping_sub(8),
    };
    let Ok(address) = read_stack(w, at) else {
        return NOT_KNOWN;
    };
    if !may_return(s, address) {
        return NOT_KNOWN;
    }
    let w = &mut s.walk;
    if state == PUSHED || state == WHOLE && size > 8 {
        let Ok(caller) = read_stack(w, at.wrapping_sub(8)) else {
            return NOT_KNOWN;
        };
        w.rbp = caller;
    }
    go_to(w, address, at.wrapping_add(8));
    NO_STOP
}

/// Finds which part of an interrupted function's frame exists, from its next instruction.
#[inline(never)]
fn state_of(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &*scratch };
    let pc = s.walk.rip;
    let next = user(pc);
    let last = user(pc.wrapping_sub(8));
    if let Some(state) = at_return(next, last) {
        return state;
    }
    let code = code_of(&s.java);
    let complete = frame_complete(&s.java);
    if pc.wrapping_sub(code) >= complete {
        return WHOLE;
    }
    if pc.wrapping_sub(code) < entry_of(&s.java, code) {
        return BARE;
    }
    let has_pushed = last >> 56 == 0x55;
    // mov %rsp, %rbp (48 89 e5, 48 8b ec).
    let moves = |code: u64| code & 0xff_ffff == 0xe5_8948 || code & 0xff_ffff == 0xec_8b48;
    let has_moved = moves(last >> 40) && last >> 32 & 0xff == 0x55;
    if has_pushed || has_moved {
        return PUSHED;
    }
    // push %rbp; sub $n, %rsp (48 83 ec, 48 81 ec); mov %eax, n(%rsp) (89 84 24), which checks
    // that the stack may grow.
    let subtracts = next & 0xff_ffff == 0xec_8348 || next & 0xff_ffff == 0xec_8148;
    if next & 0xff == 0x55 || subtracts || next & 0xff_ffff == 0x24_8489 {
        return BARE;
    }
    // mov %rbp, n(%rsp) (48 89 6c 24, 48 89 ac 24).
    if next as u32 == 0x246c_8948 || next as u32 == 0x24ac_8948 {
        return WITHOUT_RBP;
    }
    WHOLE
}

/// The remaining part of the frame of a function that returns. It is at `ret` (c3, c2), at
/// `pop %rbp` (5d), or between them, where it checks whether to stop at a safepoint. The check
/// is one of:
///
/// * `cmp n(%r15), %rsp; ja` (49 3b a7, 0f 87);
/// * `mov n(%r15), %r10; test %eax, (%r10)` (4d 8b 97, 41 85 02);
/// * `test %eax, n(%rip)` (85 05).
#[inline(always)]
fn at_return(next: u64, last: u64) -> Option<u32> {
    let first = next & 0xff;
    if first == 0xc3 || first == 0xc2 {
        return Some(BARE);
    }
    if first == 0x5d {
        return Some(PUSHED);
    }
    let three = next & 0xff_ffff;
    let two = next & 0xffff;
    // Where that check goes if it stops: lea n(%rip), %r10; mov %r10, n(%r15).
    if three == 0x15_8d4c || three == 0x97_894d && last >> 8 & 0xff_ffff == 0x15_8d4c {
        return Some(BARE);
    }
    let has_popped = last >> 56 == 0x5d;
    if has_popped && (three == 0xa7_3b49 || three == 0x97_8b4d || two == 0x0585) {
        return Some(BARE);
    }
    let compared = last as u32 == 0xa73b_495d && two == 0x870f;
    let loaded = last as u32 == 0x978b_4d5d && three == 0x02_8541;
    if compared || loaded {
        return Some(BARE);
    }
    None
}

/// The address of a blob's code.
#[inline(always)]
fn code_of(java: &Java) -> u64 {
    let code = field(&java.header, java.layout.blob_code);
    if java.layout.code_is_offset != 0 {
        java.blob.wrapping_add(code & 0xffff_ffff)
    } else {
        code
    }
}

/// Offset in a blob's code from which on the frame is complete.
#[inline(always)]
fn frame_complete(java: &Java) -> u64 {
    let offset = field(&java.header, java.layout.blob_frame_complete);
    let offset = if java.layout.frame_complete_bytes == 2 {
        i64::from(offset as u16 as i16)
    } else {
        i64::from(offset as u32 as i32)
    };
    if offset > 0 { offset as u64 } else { 0 }
}

/// Offset in a compiled method's code of the entry for callers that know the type of the
/// object.
#[inline(always)]
fn entry_of(java: &Java, code: u64) -> u64 {
    if !is_method(java) {
        return 0;
    }
    let entry = user(java.blob.wrapping_add(java.layout.method_entry.into()));
    if java.layout.entry_is_offset != 0 {
        entry & 0xffff
    } else {
        entry.wrapping_sub(code)
    }
}

/// Whether the blob is a compiled method.
#[inline(always)]
fn is_method(java: &Java) -> bool {
    let name = blob_name(java);
    name == NMETHOD || name == NATIVE_NMETHOD
}

/// The first 8 bytes of the blob's name.
#[inline(always)]
fn blob_name(java: &Java) -> u64 {
    user(field(&java.header, java.layout.blob_name))
}

/// Whether a function may return to an address: it is in the interpreter, or follows a call.
#[inline(always)]
fn may_return(s: &Scratch, address: u64) -> bool {
    is_interpreter(&s.java, address) || call_before(address, s.walk.rip, 0, 0) != NO_CALL
}

/// Records the method of the current frame in place of its address.
#[inline(always)]
fn note_method(s: &mut Scratch, method: u64) {
    let at = s.walk.len.wrapping_sub(1);
    let mark = if s.walk.exact != 0 && at > 0 {
        ADDR_METHOD | ADDR_EXACT
    } else {
        ADDR_METHOD
    };
    if method >> 47 == 0 && method & 7 == 0 && method != 0 {
        // SAFETY: in bounds by its mask.
        unsafe { *frame_at(&mut s.frames, at.into()) = method | mark };
    }
}

/// Makes the frame of a return address the current one.
#[inline(always)]
fn go_to(w: &mut Walk, address: u64, rsp: u64) {
    w.rip = address;
    w.rsp = rsp;
    w.exact = 0;
    w.guessed = 0;
}
