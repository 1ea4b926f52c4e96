//! The frames of JavaScript, and their functions (see `V8Layout`).
//!
//! All code that V8 generates keeps rbp. For an interrupted function, the instructions show
//! which part of its frame exists. All memory that is read here is the program's, which may
//! write anything to it. A frame that does not look like V8's is walked as other code. A caller
//! is accepted only if it is in the interpreter or follows a call.

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

/// Slots of a frame, below the address in rbp: a context, and the function. Frames of other
/// kinds have a small integer in place of the context.
const CONTEXT: u64 = 8;
const FUNCTION: u64 = 16;
/// Bytes of the saved rbp and the return address.
const ABOVE: u64 = 16;

/// Such integers are below this.
const MARKERS: u64 = 256;
/// Bytes of the interpreter during which the frame is not complete yet.
const PROLOGUE: u64 = 128;

/// Result: this is no frame of V8.
const NOT_KNOWN: u32 = u32::MAX - 1;

/// State of a walk for frames of V8.
#[repr(C)]
pub struct V8 {
    /// A copy, so that it does not change meanwhile.
    layout: V8Layout,
}

/// Prepares a walk. `reference`: the layout of the process's V8; `regs`: the task's user
/// registers, as for the walk.
#[inline(always)]
pub(super) fn begin(scratch: *mut Scratch, reference: PoolRef, regs: *const pt_regs) {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    s.walk.v8.is_walked = 0;
    s.walk.map.is_missing = 0;
    s.walk.v8.size = 0;
    if reference >= REF_FIRST {
        // SAFETY: a BTF pointer of the kernel's.
        let r = unsafe { &*regs };
        (s.walk.v8.rdi, s.walk.v8.r9, s.walk.v8.r10) = (r.rdi, r.r9, r.r10);
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
        s.walk.v8.is_walked = 1;
        s.walk.v8.starts = layout.interpreters;
        s.walk.v8.size = layout.interpreter_size;
    }
    0
}

/// Offset of an address in V8's interpreter; `u64::MAX`: it is outside.
#[inline(always)]
fn in_interpreter(w: &Walk, address: u64) -> u64 {
    let first = address.wrapping_sub(w.v8.starts[0]);
    let second = address.wrapping_sub(w.v8.starts[1]);
    let offset = if first < second { first } else { second };
    if offset < w.v8.size { offset } else { u64::MAX }
}

/// Whether the current frame is a caller in V8's built-in functions, which keep rbp as
/// generated code does.
#[inline(always)]
pub(super) fn is_builtin(s: &Scratch) -> bool {
    let (w, layout) = (&s.walk, &s.v8.layout);
    let before = layout.builtins_before;
    let address = w.rip.wrapping_sub(1).wrapping_add(before);
    let is_in = |start: u64| address.wrapping_sub(start) < layout.builtins_size && start != 0;
    w.v8.is_walked != 0 && w.exact == 0 && (is_in(w.v8.starts[0]) || is_in(w.v8.starts[1]))
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

/// The existing part of an interrupted function's frame, in this order:
///
/// * all;
/// * all but the function, and maybe the context;
/// * nothing yet;
/// * the caller's rbp;
/// * nothing any more;
/// * nothing, and the return address is in r10;
/// * nothing, and the return address is in r9.
const WHOLE: u32 = 0;
const WITHOUT_FUNCTION: u32 = 1;
const NOT_BEGUN: u32 = 2;
const PUSHED: u32 = 3;
const LEFT: u32 = 4;
const IN_R10: u32 = 5;
const IN_R9: u32 = 6;

/// Moves the walk to the caller from generated code, or from a caller in V8's built-in
/// functions. Any result but `NO_STOP`: this is no frame of V8.
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
    let is_anonymous = w.map.kind == MAP_ANON || w.map.is_missing != 0;
    let is_generated = is_anonymous && s.v8.layout.generated != 0;
    let is_noted = is_generated || is_interpreted(w);
    if forget(leave_javascript(scratch, state, is_noted.into()).into()) as u32 == NO_STOP {
        return NO_STOP;
    }
    // The instructions were misleading.
    if state == WHOLE {
        return NOT_KNOWN;
    }
    leave_javascript(scratch, WHOLE, is_noted.into())
}

/// Moves the walk out of a frame of which the part `state` exists. Records its function if
/// `is_noted` is not 0.
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

/// Moves the walk out of a frame. Returns its function; 0: it is no JavaScript function.
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
    // Data below the stack pointer is still there: signals leave 128 bytes (System V ABI, "The
    // Stack Frame").
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
        if is_leaf { w.v8.rdi } else { 0 }
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
        if state == IN_R10 { w.v8.r10 } else { w.v8.r9 }
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

/// Finds which part of an interrupted function's frame exists, by the instructions around it.
///
/// It begins with `push %rbp; mov %rsp, %rbp; push %rsi; push %rdi` (55, 48 89 e5, 56, 57).
/// Before that, it may check whether the code is still valid. It ends with
/// `mov %rbp, %rsp; pop %rbp` (48 8b e5, 5d) and a comparison of the number of arguments in rcx
/// or r8. After these come `ret n`, or `pop %r10`, `lea (%rsp, %rcx, 8), %rsp`, `push %r10`,
/// `ret`. The latter can have r9 and r8 in place of r10 and rcx.
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

/// Whether the 4 bytes `wanted` begin in the `words` words of code at `from`, 6 at most.
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

/// Records the function of a frame that was interrupted in the interpreter itself and then
/// walked by the rules of the file. `rip`, `rsp` and `rbp` were its registers.
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
        w.v8.rdi
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

/// Whether a value is a reference to an object: its address plus 1.
#[inline(always)]
fn is_object(value: u64) -> bool {
    value & 7 == 1 && value >> 47 == 0
}

/// The address that stands for a function in the sample (`JsFunction`); 0: it is no function.
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
    if w.map.is_missing != 0 {
        // It may be one of V8's built-in functions, which have names of their own.
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
