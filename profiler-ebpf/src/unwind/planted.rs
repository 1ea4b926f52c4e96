//! Return addresses that no call has pushed.
//!
//! A program that makes a context (`makecontext`, Boost, a scheduler of its own) puts an address on
//! the new stack to which the context's first function returns. It is looked up as it is: the
//! instruction before it belongs to other code. Nothing has called the code there, so that the
//! stack ends there.

use aiprof_common::*;

use super::{
    FOUND, NO_STOP, frame_at,
    guess::follows_no_call,
    mark_last,
    tables::{find_mapping, find_rule},
};
use crate::maps::Scratch;

/// Looks again at a return address in a file for which no rule was found, or that of a function
/// that probably ends before it. [`NO_STOP`]: the rule is the right one.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn look_up_planted(scratch: *mut Scratch) -> u32 {
    if scratch.is_null() {
        return NO_STOP;
    }
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    if s.walk.exact != 0 || s.walk.guessed != 0 || s.walk.len < 2 {
        return NO_STOP;
    }
    if !follows_no_call(s.walk.rip) {
        return NO_STOP;
    }
    let own = s.walk.rule;
    s.walk.exact = 1;
    let mut stop = find_mapping(scratch);
    if stop == FOUND {
        stop = find_rule(scratch);
        if stop != NO_STOP {
            return stop;
        }
        let rule = s.walk.rule;
        let begins = rule.kind == CFA_NONE || rule.kind == CFA_RSP && rule.cfa_off == 8;
        if !begins || is_described(scratch) {
            mark_last(s, ADDR_EXACT);
            return if begins { STOP_END.into() } else { NO_STOP };
        }
    }
    s.walk.exact = 0;
    s.walk.rule = own;
    NO_STOP
}

/// Whether unwind data describe the frame below the current one: the current address is certainly
/// what that frame returns to.
#[inline(always)]
fn is_described(scratch: *mut Scratch) -> bool {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let own = s.walk.rip;
    let at = s.walk.len.wrapping_sub(2);
    // SAFETY: in bounds by its mask.
    let below = unsafe { *frame_at(&mut s.frames, at.into()) };
    s.walk.rip = below & !(ADDR_EXACT | ADDR_GUESSED);
    s.walk.exact = u32::from(at == 0 || below & ADDR_EXACT != 0);
    let known = find_mapping(scratch) == FOUND
        && s.walk.map.kind == MAP_FILE
        && find_rule(scratch) == NO_STOP
        && s.walk.rule.kind != CFA_NONE
        && s.walk.rule.rbp & RBP_DERIVED == 0;
    s.walk.rip = own;
    s.walk.exact = 0;
    known && find_mapping(scratch) == FOUND
}
