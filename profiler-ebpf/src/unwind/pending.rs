//! Pending calls of probed functions: which of them a walk finds on the stack.

use aiprof_common::*;
use aya_ebpf::helpers::generated::bpf_loop;
use core::ffi::c_void;

use super::{GO_ON, LoopContext, Passed, PendingCalls, STOP};
use crate::maps::Scratch;

impl PendingCalls {
    /// Whether the last call can return to an address: it is the call's return address, or one
    /// of the two belongs to a return probe.
    #[inline(always)]
    fn may_return_to(&self, address: u64) -> bool {
        let last = (self.count as usize).wrapping_sub(1) & (MAX_PENDING - 1);
        // SAFETY: within the array by the mask.
        let own = unsafe { self.to.as_ptr().add(last).read() };
        own == address || own & 0xfff == 0 || address & 0xfff == 0
    }

    #[inline(always)]
    pub(super) fn watched(&self) -> u64 {
        if self.count == 0 {
            return u64::MAX;
        }
        let last = self.count as usize - 1 & (MAX_PENDING - 1);
        // SAFETY: within the array by the mask.
        unsafe { self.at.as_ptr().add(last).read() }.wrapping_add(8)
    }
}

/// Whether the stack pointer after a pending call is within a frame, or at its end.
#[inline(always)]
pub(super) fn is_passed(watch: u64, from: u64, to: u64) -> bool {
    watch.wrapping_sub(from) <= to.wrapping_sub(from)
}

/// Notes which pending call is the frame from `from` to `to`, which returns to `address`, and
/// which calls that frame shows to be over. A call is over if its slot would be in the middle
/// of the frame, or has another return address. Returns the new `watch`.
#[inline(never)]
pub(super) fn pass(scratch: *mut Scratch, from: u64, to: u64, address: u64) -> u64 {
    let mut context = LoopContext { scratch };
    // SAFETY: the scratch is a checked map value; the callback has bpf_loop's signature,
    // and the context lives on this frame's stack for the whole call.
    unsafe {
        (*scratch).walk.calls.passed = Passed { from, to, address };
        bpf_loop(
            MAX_PENDING as u32,
            pass_one as *mut c_void,
            (&raw mut context).cast(),
            0,
        );
        (*scratch).walk.calls.watch
    }
}

/// `bpf_loop` callback: checks the last pending call.
extern "C" fn pass_one(_index: u64, context: *mut LoopContext) -> i64 {
    // SAFETY: the context is pass's, the scratch a checked map value.
    let w = unsafe { &mut (*(*context).scratch).walk };
    let (from, to) = (w.calls.passed.from, w.calls.passed.to);
    if w.calls.count == 0 || !is_passed(w.calls.watch, from, to) {
        return STOP;
    }
    if w.calls.watch == to && w.calls.may_return_to(w.calls.passed.address) {
        w.calls.found = 1;
        w.calls.watch = u64::MAX;
        return STOP;
    }
    w.calls.count -= 1;
    w.calls.watch = w.calls.watched();
    GO_ON
}
