//! From generated code that cannot be walked to the native code that runs it.
//!
//! Some runtimes have one frame on the stack for all code that they generate. A bounded search of
//! the stack finds the first address in a file that a call has pushed: probably where that frame
//! returns to. Words that earlier calls have left may be such addresses too, so it is a guess and
//! marked as one ([`ADDR_GUESSED`]).

use aiprof_common::*;
use aya_ebpf::helpers::generated::bpf_loop;
use core::ffi::c_void;

use super::{
    FOUND, GO_ON, NO_STOP, STOP, Walk,
    apply::{RBP_UNKNOWN, read_stack},
    guess::{follows_no_call, is_call_by_pointer},
    mark_last,
    tables::{find_mapping, find_rule},
};
use crate::maps::Scratch;

/// Words of the stack that are searched. Larger frames, as QEMU's, are full of what earlier calls
/// have left.
const WORDS: u32 = 64;
/// Words among which any call counts. Further up, only a call by a pointer does, as all calls of
/// generated code are: what earlier calls have left is mostly from others.
const NEAR_WORDS: u64 = 24;
/// Most bytes from a return address to the frame pointer of its function.
const FRAME_REACH: u64 = 1 << 16;

/// The search.
#[repr(C)]
struct Search {
    scratch: *mut Scratch,
    /// The generated code.
    start: u64,
    end: u64,
    /// Where the address was found; 0: nowhere.
    at: u64,
    /// Why the walk ends if it was not found.
    stop: u32,
}

/// Moves the walk from generated code to the native code that probably runs it.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn find_native(scratch: *mut Scratch) -> u32 {
    if scratch.is_null() {
        return STOP_FRAME_POINTER.into();
    }
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let (rip, exact) = (s.walk.rip, s.walk.exact);
    let mut search = Search {
        scratch,
        start: s.walk.map.start,
        end: s.walk.map.end,
        at: 0,
        stop: STOP_FRAME_POINTER.into(),
    };
    s.walk.exact = 0;
    // SAFETY: the callback has bpf_loop's signature; the context lives on this frame's
    // stack for the whole call.
    unsafe {
        bpf_loop(WORDS, look_at as *mut c_void, (&raw mut search).cast(), 0);
    }
    if search.at == 0 {
        (s.walk.rip, s.walk.exact) = (rip, exact);
        return search.stop;
    }
    mark_last(s, ADDR_GUESSED);
    s.walk.rbp = callers_rbp(&mut s.walk, search.at);
    s.walk.rsp = search.at.wrapping_add(8);
    s.walk.guessed = 0;
    NO_STOP
}

/// `bpf_loop` callback: looks at one word of the stack.
extern "C" fn look_at(index: u64, search: *mut Search) -> i64 {
    // SAFETY: the context is find_native's, the scratch a checked map value.
    let (search, w) = unsafe { (&mut *search, &mut (*(*search).scratch).walk) };
    let at = w.rsp.wrapping_add(8 * index);
    let Ok(word) = read_stack(w, at) else {
        return STOP;
    };
    let is_own = word.wrapping_sub(search.start) < search.end.wrapping_sub(search.start);
    if word < 4096 || word >> 47 != 0 || is_own || follows_no_call(word) {
        return GO_ON;
    }
    if index >= NEAR_WORDS && !is_call_by_pointer(word) {
        return GO_ON;
    }
    w.rip = word;
    if find_mapping(search.scratch) != FOUND || w.map.kind != MAP_FILE {
        return GO_ON;
    }
    let stop = find_rule(search.scratch);
    // SAFETY: as above.
    let w = unsafe { &mut (*search.scratch).walk };
    if stop != NO_STOP {
        // Not known yet: its table is wanted.
        search.stop = stop;
        return STOP;
    }
    if is_called(w, at) {
        search.at = at;
        return STOP;
    }
    GO_ON
}

/// Whether the function that an address on the stack returns to was called itself, by a direct
/// call. What is left of earlier calls mostly leads to the call of the generated code instead,
/// which is one by a pointer.
#[inline(always)]
fn is_called(w: &mut Walk, at: u64) -> bool {
    let offset = i64::from(w.rule.cfa_off) as u64;
    let cfa = match w.rule.kind {
        CFA_RSP => at.wrapping_add(8).wrapping_add(offset),
        CFA_RBP => callers_rbp(w, at).wrapping_add(offset),
        _ => return false,
    };
    match read_stack(w, cfa.wrapping_sub(8)) {
        Ok(caller) => !follows_no_call(caller) && !is_call_by_pointer(caller),
        Err(_) => false,
    }
}

/// The frame pointer of the function that the address at `at` returns to. Either the generated
/// code leaves rbp alone, or it saved rbp first.
#[inline(always)]
fn callers_rbp(w: &mut Walk, at: u64) -> u64 {
    let is_frame = |rbp: u64| rbp.wrapping_sub(at) < FRAME_REACH && rbp & 7 == 0;
    if is_frame(w.rbp) {
        return w.rbp;
    }
    let pushed = read_stack(w, at.wrapping_sub(8)).unwrap_or(RBP_UNKNOWN);
    if is_frame(pushed) {
        pushed
    } else {
        RBP_UNKNOWN
    }
}
