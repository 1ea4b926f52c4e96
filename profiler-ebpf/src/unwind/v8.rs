//! The frames of JavaScript, and their functions (see `V8Layout`).
//!
//! All code that V8 generates keeps rbp; of an interrupted function its instructions say
//! how much of its frame there is. All memory is the program's, which may write anything
//! there: whatever does not look as V8 leaves it is none of its frames, and is walked as
//! other code; a caller is believed only if it is the interpreter, or follows a call.

use aiprof_common::*;
use aya_ebpf::bindings::pt_regs;

use super::{
    BY_FRAME_POINTER, NO_STOP, Walk,
    apply::read_stack,
    forget, frame_at,
    guess::{NO_CALL, call_before},
    python::user,
};
use crate::{maps::Scratch, pool::Block};

/// Slots of a frame, below where rbp leads: a context, and the function. Frames of other
/// kinds have a small integer in place of the context.
const CONTEXT: u64 = 8;
const FUNCTION: u64 = 16;
/// Bytes of the saved rbp and the return address.
const ABOVE: u64 = 16;

/// What stands in place of a context is below.
const MARKERS: u64 = 256;
/// Bytes of the interpreter in which the frame is not made yet.
const PROLOGUE: u64 = 128;

/// What is here is no frame of V8.
const NOT_KNOWN: u32 = u32::MAX - 1;

/// What is read of V8 for a walk.
#[repr(C)]
pub struct V8 {
    /// A copy, so that it does not change meanwhile.
    layout: V8Layout,
}

/// Makes ready for a walk. `reference`: the layout of the process's V8; `regs`: the task's
/// user registers, as for the walk.
#[inline(always)]
pub(super) fn begin(scratch: *mut Scratch, reference: PoolRef, regs: *const pt_regs) {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    s.walk.has_v8 = 0;
    s.walk.no_map = 0;
    s.walk.v8_size = 0;
    if reference >= REF_FIRST {
        // SAFETY: a BTF pointer of the kernel's.
        let r = unsafe { &*regs };
        (s.walk.v8_rdi, s.walk.v8_r9, s.walk.v8_r10) = (r.rdi, r.r9, r.r10);
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
    block.copy(&mut s.v8.layout);
    if owner != 0 && block.u32(0) == owner {
        let layout = &s.v8.layout;
        s.walk.has_v8 = 1;
        s.walk.v8_starts = layout.interpreters;
        s.walk.v8_size = layout.interpreter_size;
    }
    0
}

/// Bytes from the beginning of V8's interpreter to an address to look rules up for;
/// `u64::MAX`: it is not in there.
#[inline(always)]
fn in_interpreter(w: &Walk, address: u64) -> u64 {
    let first = address.wrapping_sub(w.v8_starts[0]);
    let second = address.wrapping_sub(w.v8_starts[1]);
    let offset = if first < second { first } else { second };
    if offset < w.v8_size { offset } else { u64::MAX }
}

/// Whether the current frame is a caller in V8's own functions that keep rbp as generated
/// code does.
#[inline(always)]
pub(super) fn is_builtin(s: &Scratch) -> bool {
    let (w, layout) = (&s.walk, &s.v8.layout);
    let before = layout.builtins_before;
    let address = w.rip.wrapping_sub(1).wrapping_add(before);
    let is_in = |start: u64| address.wrapping_sub(start) < layout.builtins_size && start != 0;
    w.has_v8 != 0 && w.exact == 0 && (is_in(w.v8_starts[0]) || is_in(w.v8_starts[1]))
}

#[inline(always)]
fn is_interpreter(w: &Walk, address: u64) -> bool {
    in_interpreter(w, address) != u64::MAX
}

/// Whether the current frame is a caller in V8's interpreter.
#[inline(always)]
pub(super) fn is_interpreted(w: &Walk) -> bool {
    w.exact == 0 && is_interpreter(w, w.rip.wrapping_sub(1))
}

/// How much of its frame an interrupted function has: all; all but the context and the
/// function, or but the function; nothing yet; the caller's rbp; nothing any more; nothing,
/// and the return address in r10, or r9.
const WHOLE: u32 = 0;
const WITHOUT_FUNCTION: u32 = 1;
const NOT_BEGUN: u32 = 2;
const PUSHED: u32 = 3;
const LEFT: u32 = 4;
const IN_R10: u32 = 5;
const IN_R9: u32 = 6;

/// Moves the walk to the caller from generated code, or from a caller in V8's own functions;
/// anything but `NO_STOP`: nothing that is V8's is here.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn follow_javascript(scratch: *mut Scratch) -> u32 {
    if scratch.is_null() {
        return NOT_KNOWN;
    }
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let w = &mut s.walk;
    let state = if w.exact != 0 {
        forget(javascript_state(w.rip, w.rsp, w.rbp).into()) as u32
    } else {
        WHOLE
    };
    let is_anonymous = w.map_kind == MAP_ANON || w.no_map != 0;
    let is_generated = is_anonymous && s.v8.layout.generated != 0;
    let is_noted = is_generated || is_interpreted(w);
    if forget(leave_javascript(scratch, state, is_noted.into()).into()) as u32 == NO_STOP {
        return NO_STOP;
    }
    // What the instructions seemed to say is not so.
    if state == WHOLE {
        return NOT_KNOWN;
    }
    leave_javascript(scratch, WHOLE, is_noted.into())
}

/// Moves the walk out of a frame that is so far made, and records its function if it
/// `is_noted`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn leave_javascript(scratch: *mut Scratch, state: u32, is_noted: u32) -> u32 {
    if scratch.is_null() {
        return NOT_KNOWN;
    }
    // SAFETY: a checked map value.
    match leave(unsafe { &mut (*scratch).walk }, state) {
        Ok(function) => {
            if is_noted != 0 {
                note(scratch, function);
            }
            NO_STOP
        }
        Err(_) => NOT_KNOWN,
    }
}

/// Moves the walk out of a frame. Gives its function; 0: it is none of JavaScript.
#[inline(always)]
fn leave(w: &mut Walk, state: u32) -> Result<u64, u8> {
    let (rip, rsp, rbp) = (w.rip, w.rsp, w.rbp);
    let has_frame = state <= WITHOUT_FUNCTION;
    if has_frame && (rbp < rsp || rbp & 7 != 0) {
        return Err(STOP_FRAME_POINTER);
    }
    let at = if has_frame {
        rbp.wrapping_add(8)
    } else if state == PUSHED {
        rsp.wrapping_add(8)
    } else {
        rsp
    };
    // What is below the stack pointer is still there: signals leave 128 bytes (System V
    // ABI, "The Stack Frame").
    let frame = if has_frame {
        rbp
    } else {
        at.wrapping_sub(8 + 8 * u64::from(state >= IN_R10))
    };
    let begins = state != WHOLE && state < LEFT;
    let is_leaf = w.len == 1;
    let in_register = state >= IN_R10;
    if in_register && !is_leaf {
        return Err(STOP_FRAME_POINTER);
    }
    let function = if begins {
        if is_leaf { w.v8_rdi } else { 0 }
    } else {
        let kind = read_stack(w, frame.wrapping_sub(CONTEXT))?;
        if is_object(kind) {
            read_stack(w, frame.wrapping_sub(FUNCTION))?
        } else if kind < MARKERS && kind & 1 == 0 {
            0
        } else {
            return Err(STOP_FRAME_POINTER);
        }
    };
    let address = if in_register {
        if state == IN_R10 { w.v8_r10 } else { w.v8_r9 }
    } else {
        read_stack(w, at)?
    };
    let returns =
        is_interpreter(w, address.wrapping_sub(1)) || call_before(address, rip, 0, 0) != NO_CALL;
    if address == 0 || !returns {
        return Err(STOP_FRAME_POINTER);
    }
    if has_frame || state == PUSHED {
        w.rbp = read_stack(w, at.wrapping_sub(8))?;
    }
    w.rsp = if in_register { at } else { at.wrapping_add(8) };
    w.rip = address;
    w.exact = 0;
    w.guessed = BY_FRAME_POINTER;
    Ok(function)
}

/// How much of its frame interrupted code has, by the instructions around it. It begins
/// with `push %rbp; mov %rsp, %rbp; push %rsi; push %rdi` (55, 48 89 e5, 56, 57), in front of
/// which it may ask whether it is still valid. It ends with `mov %rbp, %rsp; pop %rbp`
/// (48 8b e5, 5d), a comparison of the number of arguments in rcx or r8, and `ret n`, or
/// `pop %r10`, `lea (%rsp, %rcx, 8), %rsp`, `push %r10`, `ret`, or the same with r9 and r8.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn javascript_state(rip: u64, rsp: u64, rbp: u64) -> u32 {
    let code = user(rip);
    let (one, two, three) = (code & 0xff, code & 0xffff, code & 0xff_ffff);
    let was_pushed = user(rip.wrapping_sub(8)) >> 56 == 0x55;
    if three == 0xe5_8948 && was_pushed {
        return PUSHED;
    }
    if rsp <= rbp && rsp > rbp.wrapping_sub(FUNCTION) && (one == 0x56 || one == 0x57) {
        return WITHOUT_FUNCTION;
    }
    if one == 0xc3 || one == 0xc2 {
        return LEFT;
    }
    if one == 0x55 || find_code(rip, 6, 0xe589_4855) != 0 {
        return NOT_BEGUN;
    }
    let in_r10 = three == 0x24_8d48 || two == 0x5241;
    let in_r9 = three == 0x24_8d4a || two == 0x5141;
    let pops = two == 0x5a41 || two == 0x5941;
    let compares = three & 0xff_fdff == 0xf9_8148 || three & 0xff_fdff == 0xf8_8149;
    let jumps = one == 0x7e || one == 0x7f || two == 0x8f0f || two == 0x8e0f;
    let ends = pops || in_r10 || in_r9 || compares || jumps;
    if !ends || find_code(rip.wrapping_sub(27), 3, 0x5de5_8b48) == 0 {
        WHOLE
    } else if in_r10 {
        IN_R10
    } else if in_r9 {
        IN_R9
    } else {
        LEFT
    }
}

/// Whether 4 bytes are found in code, up to 7 words.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_code(from: u64, words: u64, wanted: u64) -> u32 {
    let mut word = user(from);
    for index in 1..7 {
        if index > words {
            break;
        }
        let behind = user(from.wrapping_add(8 * index));
        let mut pair = (word, behind);
        for _ in 0..8 {
            if pair.0 as u32 == wanted as u32 {
                return 1;
            }
            pair = (pair.0 >> 8 | pair.1 << 56, pair.1 >> 8);
        }
        word = behind;
    }
    0
}

/// Records the function of the frame that was interrupted in the interpreter itself, and
/// that was walked by the rules of the file: its registers were `rip`, `rsp` and `rbp`.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn note_interrupted(
    scratch: *mut Scratch,
    rip: u64,
    rsp: u64,
    rbp: u64,
) -> u32 {
    if scratch.is_null() {
        return 0;
    }
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let w = &mut s.walk;
    let offset = in_interpreter(w, rip);
    if offset == u64::MAX || w.len != 1 {
        return 0;
    }
    let is_whole = rsp <= rbp.wrapping_sub(FUNCTION) && w.rsp == rbp.wrapping_add(ABOVE);
    let function = if is_whole {
        match read_stack(w, rbp.wrapping_sub(CONTEXT)) {
            Ok(context) if is_object(context) => {
                read_stack(w, rbp.wrapping_sub(FUNCTION)).unwrap_or(0)
            }
            _ => 0,
        }
    } else if offset < PROLOGUE {
        w.v8_rdi
    } else {
        0
    };
    note(scratch, function)
}

/// Records a function in place of the address of the frame that was just walked.
#[inline(always)]
fn note(scratch: *mut Scratch, function: u64) -> u32 {
    let address = describe(scratch, function);
    if address != 0 {
        // SAFETY: a checked map value.
        let s = unsafe { &mut *scratch };
        let at = u64::from(s.walk.len.wrapping_sub(1));
        // SAFETY: in bounds by its mask.
        let slot = unsafe { &mut *frame_at(&mut s.frames, at) };
        *slot = address | *slot & ADDR_EXACT;
    }
    0
}

/// Whether a value is the address of an object: 1 is added to it.
#[inline(always)]
fn is_object(value: u64) -> bool {
    value & 7 == 1 && value >> 47 == 0
}

/// What the sample says of a function (`JsFunction`); 0: it is none.
#[inline(never)]
fn describe(scratch: *mut Scratch, function: u64) -> u64 {
    // SAFETY: a checked map value.
    let (w, layout) = unsafe { (&(*scratch).walk, &(*scratch).v8.layout) };
    let field = |object: u64, offset: u16| {
        if is_object(object) {
            user(object.wrapping_sub(1).wrapping_add(offset.into()))
        } else {
            0
        }
    };
    let shared = field(function, layout.function_shared);
    let map = field(shared, 0);
    if field(map, layout.map_type) as u16 != layout.shared_type || !is_object(map) {
        return 0;
    }
    let script = field(shared, layout.shared_script);
    let literal = field(shared, layout.shared_flags) >> 32;
    if w.no_map != 0 {
        // It may be one of V8's own functions, which have names of their own.
        let map = field(script, 0);
        if field(map, layout.map_type) as u16 != layout.script_type || !is_object(map) {
            return 0;
        }
    }
    let number = field(script, layout.script_id) >> 32;
    JsFunction {
        shared: shared.wrapping_sub(1),
        check: js_check(number as u32, literal as u32),
    }
    .to_address()
}
