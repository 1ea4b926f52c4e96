//! The pending calls of a thread: which call is inside which, and what an exit
//! needs from its entry.

use aiprof_common::{MAX_PENDING, PendingCall, ProbeSpec, ThreadCalls};
use aya_ebpf::helpers::generated::bpf_map_update_elem;
use core::arch::asm;

use crate::{
    calls::Call,
    maps::{CALL_SHARED, THREADS},
};

/// Calls whose stack pointers differ by more are on different stacks (fibers,
/// signal stacks): nothing can be said about which is inside which.
const SAME_STACK: u64 = 1 << 20;
/// `BPF_NOEXIST` of `bpf_map_update_elem` (linux/bpf.h).
const NOEXIST: u64 = 1;

/// What an entry is, seen from the calls that are pending.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A call; its state can be kept.
    Pushed(*mut PendingCall),
    /// The pending call itself, which went on in an inner library.
    Tail,
    /// A call; there is no room to keep its state.
    Full,
}

/// The state of the current thread, made if there is none.
#[inline(always)]
pub fn current(tid: u32) -> Option<*mut ThreadCalls> {
    if let Some(thread) = known(tid) {
        return Some(thread);
    }
    let shared = CALL_SHARED.get_ptr(0)?;
    // SAFETY: key and value have the sizes of the map's; the value is copied.
    unsafe {
        let map = (&raw const THREADS).cast_mut().cast();
        let fresh = &raw const (*shared).fresh;
        bpf_map_update_elem(map, (&raw const tid).cast(), fresh.cast(), NOEXIST);
    }
    known(tid)
}

/// The state of a thread, if there is one.
#[inline(always)]
pub fn known(tid: u32) -> Option<*mut ThreadCalls> {
    THREADS.get_ptr_mut(tid)
}

/// The pending call at `index`.
#[inline(always)]
pub fn pending_at(thread: *mut ThreadCalls, index: u32) -> *mut PendingCall {
    const { assert!(MAX_PENDING.is_power_of_two()) };
    let mut at = u64::from(index);
    // SAFETY: arithmetic on one register; the result is within the array. In
    // assembly, for the compiler must not leave the mask out.
    unsafe {
        asm!("{0} &= {mask}", inout(reg) at, mask = const MAX_PENDING - 1,
            options(pure, nomem, nostack));
        (&raw mut (*thread).calls)
            .cast::<PendingCall>()
            .add(at as usize)
    }
}

/// Forgets the calls that are over because their thread is above them, at the
/// stack pointer `sp`; returns how many are left.
#[inline(never)]
pub fn settle(thread: *mut ThreadCalls, sp: u64) -> u32 {
    let n = &raw mut (*thread_ref(thread)).n;
    for _ in 0..MAX_PENDING {
        // SAFETY: a field of a checked map value.
        let left = unsafe { n.read_volatile() };
        if left == 0 || left > MAX_PENDING as u32 {
            return 0;
        }
        // SAFETY: in bounds by its mask.
        let top = unsafe { (*pending_at(thread, left - 1)).sp };
        if top.wrapping_sub(sp).wrapping_add(SAME_STACK) > 2 * SAME_STACK {
            break;
        }
        if top >= sp {
            return left;
        }
        // SAFETY: as above.
        unsafe { n.write_volatile(left - 1) };
    }
    // SAFETY: as above.
    unsafe { n.write_volatile(0) };
    0
}

/// The innermost pending call if it is over, for its thread is at the stack pointer
/// `sp` outside of it, at the entry of `function` or, if that is 0, at an exit.
#[inline(always)]
pub fn over(thread: *mut ThreadCalls, call: &Call, function: u32) -> Option<*mut PendingCall> {
    // SAFETY: a field of a checked map value.
    let n = unsafe { (&raw const (*thread).n).read_volatile() };
    if n == 0 || n > MAX_PENDING as u32 {
        return None;
    }
    let pending = pending_at(thread, n - 1);
    // SAFETY: in bounds by its mask.
    let top = unsafe { &*pending };
    let sp = call.sp;
    let same_stack = top.sp.wrapping_sub(sp).wrapping_add(SAME_STACK) <= 2 * SAME_STACK;
    if top.sp == sp {
        let again = top.probe == call.probe && top.library == call.library;
        return (function != 0 && (again || top.function != function)).then_some(pending);
    }
    (same_stack && top.sp < sp).then_some(pending)
}

/// Reborrows the checked map value.
#[inline(always)]
fn thread_ref<'a>(thread: *mut ThreadCalls) -> &'a mut ThreadCalls {
    // SAFETY: a checked map value that no other program uses (see THREADS).
    unsafe { &mut *thread }
}

/// Enters a call: forgets those that are over and keeps this one. Sets `depth`.
#[inline(always)]
pub fn enter(thread: *mut ThreadCalls, call: &mut Call, spec: &ProbeSpec) -> Place {
    let mut left = settle(thread, call.sp);
    call.depth = left;
    if left > 0 {
        // SAFETY: in bounds by its mask.
        let top = unsafe { &*pending_at(thread, left - 1) };
        if top.sp == call.sp {
            let another = top.probe != call.probe || top.library != call.library;
            if another && top.function == spec.function {
                return Place::Tail;
            }
            left -= 1;
            call.depth = left;
        }
    }
    if left >= MAX_PENDING as u32 {
        return Place::Full;
    }
    let pending = pending_at(thread, left);
    // SAFETY: in bounds by its mask, and this thread's.
    unsafe {
        (&raw mut (*pending).sp).write_volatile(call.sp);
        (&raw mut (*pending).time_ns).write_volatile(call.time_ns);
        (&raw mut (*pending).stack).write_volatile(0);
        (&raw mut (*pending).function).write_volatile(spec.function);
        (&raw mut (*pending).probe).write_volatile(call.probe);
        (&raw mut (*pending).library).write_volatile(call.library);
        (&raw mut (*pending).unread).write_volatile(0);
    }
    thread_ref(thread).n = left + 1;
    Place::Pushed(pending)
}

/// Leaves the call of `function` at `sp`, and with it those inside: the call,
/// whose memory stays valid until the thread's next entry. Sets `depth`.
#[inline(always)]
pub fn leave(thread: *mut ThreadCalls, call: &mut Call, function: u32) -> Option<*mut PendingCall> {
    let left = settle(thread, call.sp);
    call.depth = left;
    if left == 0 {
        return None;
    }
    let pending = pending_at(thread, left - 1);
    // SAFETY: in bounds by its mask.
    let top = unsafe { &*pending };
    if top.sp != call.sp {
        return None;
    }
    call.depth = left - 1;
    if top.function != function {
        // One that jumped here, or is over: its own exit may be at this
        // instruction too.
        return None;
    }
    thread_ref(thread).n = left - 1;
    Some(pending)
}
