//! The other thread states of a thread.
//!
//! A thread that runs a subinterpreter has a state in it and one in the interpreter that called
//! it, which is idle meanwhile and keeps its chain of frames. The interpreters' lists lead to all
//! states. The marks are on the thread's stack, so their addresses show the order of the chains:
//! the next one has the lowest first mark above the last mark so far.

use aiprof_common::*;
use aya_ebpf::helpers::generated::bpf_loop;
use core::ffi::c_void;

use super::{Context, Python, at, base_of, mark_address, read_chain, user};
use crate::unwind::{FOUND, GO_ON, STOP, forget};

/// Where a search is, and what it has found.
#[repr(C)]
pub struct StateSearch {
    /// The next interpreter, thread state, and frame of the state before that; 0: none.
    interp: u64,
    state: u64,
    frame: u64,
    /// The innermost frame of the chain with that frame, and the frame that ends it.
    first: u64,
    base: u64,
    /// Marks up to here are known.
    after: u64,
    /// The chain that was found: its first mark, its innermost frame, and what ends it.
    mark: u64,
    found: u64,
    found_base: u64,
}

/// Reads the chains of the thread's other states, from the innermost on.
#[inline(always)]
pub(super) unsafe fn read_others(context: *mut Context) {
    // SAFETY: the context is walk_python's; the callback has bpf_loop's signature.
    unsafe {
        let p = &(*(*context).scratch).python;
        if p.layout.interpreters == 0 || p.frame != 0 {
            return;
        }
        let first = user(p.layout.interpreters);
        if p.layout.tss != TSS_LIST && at(first, p.layout.interp_next) == 0 {
            return;
        }
        bpf_loop(
            MAX_PYTHON_STATES,
            read_other as *mut c_void,
            context.cast(),
            0,
        );
    }
}

/// `bpf_loop` callback: reads the chain of one more state, if there is one.
extern "C" fn read_other(_index: u64, context: *mut Context) -> i64 {
    // SAFETY: the context is walk_python's, the scratch a checked map value.
    unsafe {
        let p = &mut (*(*context).scratch).python;
        p.search.interp = user(p.layout.interpreters);
        p.search.state = 0;
        p.search.frame = 0;
        p.search.after = match p.marks {
            0 => 0,
            marks => mark_address(p, marks - 1),
        };
        p.search.mark = u64::MAX;
        bpf_loop(
            MAX_PYTHON_SEARCH,
            search_step as *mut c_void,
            context.cast(),
            0,
        );
        let p = &mut (*(*context).scratch).python;
        if p.search.mark == u64::MAX {
            // Not all was seen: the stack counts as cut.
            p.frame = p.search.interp | p.search.state | p.search.frame;
            return STOP;
        }
        p.frame = p.search.found;
        p.base = p.search.found_base;
        read_chain(context);
        let p = &(*(*context).scratch).python;
        if p.frame == 0 { GO_ON } else { STOP }
    }
}

/// `bpf_loop` callback: one step of a search.
extern "C" fn search_step(_index: u64, context: *mut Context) -> i64 {
    // SAFETY: the context is walk_python's, the scratch a checked map value.
    let scratch = unsafe { (*context).scratch };
    // SAFETY: as above.
    let p = unsafe { &mut (*scratch).python };
    if forget(search_on(p).into()) == FOUND.into() {
        GO_ON
    } else {
        STOP
    }
}

/// Looks at the next frame, state or interpreter. 0: there is none.
#[inline(always)]
fn search_on(p: &mut Python) -> u32 {
    let frame = p.search.frame;
    if frame != 0 {
        let owner = user(frame.wrapping_add(p.layout.frame_owner.into())) as u8;
        if frame == p.search.base {
            p.search.frame = 0;
        } else if owner < p.layout.first_shim {
            p.search.frame = at(frame, p.layout.frame_previous);
        } else {
            if frame > p.search.after && frame < p.search.mark {
                p.search.mark = frame;
                p.search.found = p.search.first;
                p.search.found_base = p.search.base;
            }
            p.search.frame = 0;
        }
        return FOUND;
    }
    let state = p.search.state;
    if state != 0 {
        p.search.state = at(state, p.layout.thread_next);
        if at(state, p.layout.thread_id) == p.thread {
            let mut frame = at(state, p.layout.thread_frame);
            if p.layout.cframe_frame != PYTHON_NO_FIELD {
                frame = at(frame, p.layout.cframe_frame);
            }
            p.search.frame = frame;
            p.search.first = frame;
            p.search.base = base_of(p, state);
        }
        return FOUND;
    }
    let interp = p.search.interp;
    if interp == 0 {
        return 0;
    }
    p.search.state = at(interp, p.layout.interp_threads);
    p.search.interp = at(interp, p.layout.interp_next);
    FOUND
}
