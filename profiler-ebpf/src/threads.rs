//! The pending calls of a thread: which call is inside which, and what an exit needs from its
//! entry.
//!
//! A call is open under two conditions: its thread has not left its *slot*, the place on the
//! stack that holds its return address, and that address is still there. If the stack is walked
//! for another reason, its frames must also return there, because a slot that was not
//! overwritten keeps the address of a call that is over.

use aiprof_common::{
    ADDR_EXACT, ADDR_GUESSED, MAX_PENDING, MAX_USER_FRAMES, PendingCall, SPEC_EXIT, STOP_END,
    ThreadCalls,
};
use aya_ebpf::helpers::generated::{
    bpf_loop, bpf_map_update_elem, bpf_probe_read_kernel, bpf_probe_read_user,
};
use core::{arch::asm, ffi::c_void, ptr::null_mut};

use crate::{
    calls::Call,
    maps::{CALL_SHARED, Frames, Scratch, THREADS},
    setting,
    unwind::{MAX_RETURN_INSTANCES, pending_return, read_kernel},
};

/// Bytes above a slot within which a thread has left it. Further away is another stack (a
/// fiber's, a signal handler's), where only the slot's content shows whether the call is open.
const SAME_STACK: u64 = 8 << 20;
/// `BPF_NOEXIST` of `bpf_map_update_elem` (linux/bpf.h).
const NOEXIST: u64 = 1;
/// Bits of an address within its page. The trampoline of return probes begins a page
/// (`xol_area`, kernel/events/uprobes.c).
const IN_PAGE: u64 = 4095;

/// Result of [`settle`]: a call of its own.
pub const CALL: u32 = 0;
/// Result of [`settle`]: the pending call itself, which continues in an inner library.
pub const TAIL: u32 = 1;

/// The state of the current thread, which is created if there is none.
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

/// The address of the pending call `index`.
#[inline(always)]
pub fn pending_at(thread: *mut ThreadCalls, index: u32) -> *mut PendingCall {
    const { assert!(MAX_PENDING.is_power_of_two()) };
    let mut at = u64::from(index);
    // SAFETY: arithmetic on one register; the result is within the array. In assembly, because
    // the compiler must not leave the mask out.
    unsafe {
        asm!("{0} &= {mask}", inout(reg) at, mask = const MAX_PENDING - 1,
            options(pure, nomem, nostack));
        (&raw mut (*thread).calls)
            .cast::<PendingCall>()
            .add(at as usize)
    }
}

/// Number of pending calls, at most [`MAX_PENDING`].
#[inline(always)]
fn count_of(thread: *mut ThreadCalls) -> u32 {
    // SAFETY: a field of a checked map value.
    let n = unsafe { (&raw const (*thread).n).read_volatile() };
    if n > MAX_PENDING as u32 { 0 } else { n }
}

#[inline(always)]
fn set_count(thread: *mut ThreadCalls, n: u32) {
    // SAFETY: a field of a checked map value that no other program uses (see THREADS).
    unsafe { (&raw mut (*thread).n).write_volatile(n) };
}

/// 1 if a pending call can be open while its thread is at the stack pointer `sp`. For a call
/// whose slot is at `sp`, it returns 1 and the caller must decide.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_open(pending: *const PendingCall, sp: u64) -> u32 {
    if pending.is_null() {
        return 0;
    }
    // SAFETY: part of a checked map value.
    let call = unsafe { &*pending };
    if call.sp == sp {
        return 1;
    }
    if sp.wrapping_sub(call.sp) < SAME_STACK {
        return 0;
    }
    let (there, read) = user_word(call.sp);
    if read && there == call.return_address {
        return 1;
    }
    u32::from(read && there & IN_PAGE == 0 && is_probed(call.sp) != 0)
}

/// Whether a pending call continues in `function`, entered at the same slot: it is the same
/// function of another library, and will return to the caller of the first.
#[inline(always)]
fn is_tail(top: &PendingCall, call: &Call, function: u32) -> bool {
    let another = top.probe != call.probe || top.library != call.library;
    another && top.function == function && {
        let (there, read) = user_word(top.sp);
        !read || there == top.return_address || there & IN_PAGE == 0
    }
}

/// Whether a slot of the current thread holds the trampoline of a pending return probe.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_probed(slot: u64) -> u32 {
    let mut instance = pending_return();
    for _ in 0..MAX_RETURN_INSTANCES {
        if instance == 0 {
            return 0;
        }
        if read_kernel(instance, setting!(ri_stack)) == slot {
            return 1;
        }
        instance = read_kernel(instance, setting!(ri_next));
    }
    0
}

/// The 8 bytes of user memory at an address, and whether they are there.
#[inline(always)]
fn user_word(address: u64) -> (u64, bool) {
    let mut word = 0u64;
    // SAFETY: the destination is 8 bytes on the stack; a bad source is an error.
    let rc = unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, address as *const c_void) };
    (word, rc == 0)
}

/// The innermost pending call, if it is over when its thread enters `function` at `call.sp`. If
/// `function` is 0, the thread is at an exit.
#[inline(always)]
pub fn over(thread: *mut ThreadCalls, call: &Call, function: u32) -> Option<*mut PendingCall> {
    let n = count_of(thread);
    if n == 0 {
        return None;
    }
    let pending = pending_at(thread, n - 1);
    // SAFETY: in bounds by its mask.
    let top = unsafe { &*pending };
    if top.sp == call.sp {
        return (function != 0 && !is_tail(top, call, function)).then_some(pending);
    }
    (is_open(pending, call.sp) == 0).then_some(pending)
}

/// Forgets the calls that are over when their thread enters `function` at `call.sp`. If
/// `function` is 0, the thread is elsewhere at `call.sp`. Sets `depth` and `around_ns` of
/// `call`. [`TAIL`]: the innermost call continues in `function`.
#[inline(never)]
pub fn settle(thread: *mut ThreadCalls, call: &mut Call, function: u32) -> u32 {
    let mut is = CALL;
    for _ in 0..MAX_PENDING {
        let left = count_of(thread);
        if left == 0 {
            break;
        }
        let pending = pending_at(thread, left - 1);
        // SAFETY: in bounds by its mask.
        let top = unsafe { &*pending };
        if top.sp == call.sp {
            if function == 0 || is_tail(top, call, function) {
                is = TAIL;
                break;
            }
        } else if is_open(pending, call.sp) != 0 {
            break;
        }
        set_count(thread, left - 1);
    }
    tell(thread, call);
    is
}

/// Sets `depth` and `around_ns` of `call` from the pending calls.
#[inline(always)]
fn tell(thread: *mut ThreadCalls, call: &mut Call) {
    let left = count_of(thread);
    call.depth = left;
    call.around_ns = 0;
    if left > 0 {
        // SAFETY: in bounds by its mask.
        call.around_ns = unsafe { (*pending_at(thread, left - 1)).time_ns };
    }
}

/// Context of a search in a stack.
struct Search {
    frames: *const Frames,
    address: u64,
    found: u64,
}

/// Makes the walk look for the pending calls of a thread.
#[inline(never)]
pub fn look_for(thread: *mut ThreadCalls, depth: u32, scratch: *mut Scratch) -> u32 {
    // SAFETY: a claimed map value.
    let walk = unsafe { &mut (*scratch).walk };
    if depth == 0 || thread.is_null() {
        walk.look_for(0);
        return 0;
    }
    let n = count_of(thread);
    for at in 0..MAX_PENDING as u32 {
        if at < n {
            // SAFETY: in bounds by its mask.
            let (sp, to) = unsafe {
                let pending = pending_at(thread, at);
                ((*pending).sp, (*pending).return_address)
            };
            walk.set_pending(at as usize, sp, to);
        }
    }
    walk.look_for(n);
    0
}

/// Forgets the calls that the walk has shown to be over. If the stack was walked to its end,
/// also forgets those whose return address is not among its frames. Sets `depth` and
/// `around_ns` of `call`.
#[inline(never)]
pub fn prune(thread: *mut ThreadCalls, call: &mut Call, scratch: *const Scratch) -> u32 {
    // SAFETY: a claimed map value.
    let header = unsafe { &(*scratch).header };
    let len = u32::from(header.user_len);
    // SAFETY: a claimed map value.
    let (left, is_found) = unsafe { (*scratch).walk.pending() };
    if left < count_of(thread) {
        set_count(thread, left);
        tell(thread, call);
    }
    if header.stop != STOP_END || len > MAX_USER_FRAMES as u32 {
        return 0;
    }
    for _ in 0..MAX_PENDING {
        let left = count_of(thread);
        if left == 0 || is_found {
            break;
        }
        // SAFETY: in bounds by its mask.
        let address = unsafe { (*pending_at(thread, left - 1)).return_address };
        // A trampoline is never found: the walk replaces it.
        if address & IN_PAGE == 0 {
            break;
        }
        let mut search = Search {
            // SAFETY: a field of a claimed map value.
            frames: unsafe { &raw const (*scratch).frames },
            address,
            found: 0,
        };
        // SAFETY: the callback has bpf_loop's signature; the context lives on this
        // frame's stack for the whole call.
        unsafe {
            bpf_loop(len, is_frame as *mut c_void, (&raw mut search).cast(), 0);
        }
        if search.found != 0 {
            break;
        }
        set_count(thread, left - 1);
    }
    tell(thread, call);
    0
}

/// `bpf_loop` callback: whether the frame at `index` is the one searched for. A guess counts
/// too, because any frame may be missing after it.
extern "C" fn is_frame(index: u64, search: *mut Search) -> i64 {
    let mut at = index;
    // SAFETY: the context is prune's. In bounds by the mask, which is in assembly so that the
    // verifier sees it.
    unsafe {
        asm!("{0} &= {mask}", inout(reg) at, mask = const MAX_USER_FRAMES - 1,
            options(pure, nomem, nostack));
        let frame = (*search).frames.cast::<u64>().add(at as usize).read();
        if frame & ADDR_GUESSED != 0 || frame & !ADDR_EXACT == (*search).address {
            (*search).found = 1;
            return 1;
        }
    }
    0
}

/// Remembers a call that was entered, inside of those pending. Null if there is no room.
#[inline(always)]
pub fn push(thread: *mut ThreadCalls, call: &Call, flags: u32, function: u32) -> *mut PendingCall {
    if count_of(thread) >= MAX_PENDING as u32 && make_room(thread) == 0 {
        return null_mut();
    }
    let left = count_of(thread);
    let pending = pending_at(thread, left);
    let (return_address, _) = user_word(call.sp);
    // SAFETY: in bounds by its mask, and this thread's.
    unsafe {
        (&raw mut (*pending).sp).write_volatile(call.sp);
        (&raw mut (*pending).time_ns).write_volatile(call.time_ns);
        (&raw mut (*pending).stack).write_volatile(call.stack);
        (&raw mut (*pending).function).write_volatile(function);
        (&raw mut (*pending).probe).write_volatile(call.probe);
        (&raw mut (*pending).library).write_volatile(call.library);
        (&raw mut (*pending).unread).write_volatile(0);
        (&raw mut (*pending).flags).write_volatile(flags);
        (&raw mut (*pending).return_address).write_volatile(return_address);
    }
    set_count(thread, left + 1);
    pending
}

/// Forgets the outermost call whose exit is not probed. 0: there is none.
#[inline(never)]
fn make_room(thread: *mut ThreadCalls) -> u32 {
    let mut found = 0;
    for at in 0..MAX_PENDING as u32 {
        // SAFETY: in bounds by its mask.
        let flags = unsafe { (&raw const (*pending_at(thread, at)).flags).read_volatile() };
        if found == 0 && flags & SPEC_EXIT == 0 {
            found = 1;
        }
        if found != 0 && at + 1 < MAX_PENDING as u32 {
            let (to, from) = (pending_at(thread, at), pending_at(thread, at + 1));
            // SAFETY: both are parts of a checked map value; the helper copies memory.
            unsafe {
                bpf_probe_read_kernel(to.cast(), size_of::<PendingCall>() as u32, from.cast());
            }
        }
    }
    if found != 0 {
        set_count(thread, MAX_PENDING as u32 - 1);
    }
    found
}

/// Removes the pending call of `function` at `call.sp`, and those inside it. Returns that call,
/// whose memory stays valid until the thread's next entry. Sets `depth` and `around_ns`.
#[inline(always)]
pub fn leave(thread: *mut ThreadCalls, call: &mut Call, function: u32) -> Option<*mut PendingCall> {
    let at = find(thread, call.sp);
    if at >= MAX_PENDING as u32 {
        settle(thread, call, 0);
        return None;
    }
    let pending = pending_at(thread, at);
    // SAFETY: in bounds by its mask.
    let top = unsafe { &*pending };
    // A call of another function jumped here, or is over: the exit of that function may be at
    // the same instruction.
    let is = top.function == function;
    set_count(thread, at + u32::from(!is));
    tell(thread, call);
    is.then_some(pending)
}

/// The index of the pending call at the stack pointer `sp`; MAX_PENDING if there is none.
#[inline(never)]
fn find(thread: *mut ThreadCalls, sp: u64) -> u32 {
    let n = count_of(thread);
    let mut found = MAX_PENDING as u32;
    for at in 0..MAX_PENDING as u32 {
        // SAFETY: in bounds by its mask.
        let there = unsafe { (&raw const (*pending_at(thread, at)).sp).read_volatile() };
        if at < n && there == sp {
            found = at;
        }
    }
    found
}
