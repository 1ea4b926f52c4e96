//! The programs at probed functions.

use aiprof_common::*;
use aya_ebpf::{
    EbpfContext,
    bindings::pt_regs,
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_smp_processor_id,
        generated::{bpf_get_attach_cookie, bpf_ktime_get_ns, bpf_ringbuf_submit},
    },
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use core::{arch::asm, mem::MaybeUninit, ptr::null_mut};

use crate::{
    chosen::is_chosen,
    data::send_data,
    fetch::{Sources, current_uid, fetch},
    maps::{CALL_LIMITS, CALLS, PROBE_COUNTS, PROBES},
    paused::is_paused,
    ring::{FORCE_WAKEUP, NO_WAKEUP, Ring, WAKEUP_BYTES},
    setting,
    stacks::user_stack,
    threads,
};

/// Nanoseconds after a CPU has woken the reader until it does so again, unless much data waits.
/// At 200,000 calls a second, one wake-up for each call would cost more than the calls.
const WAKEUP_NS: u64 = 5_000_000;
/// The same if more than [`WAKEUP_BYTES`] wait.
const WAKEUP_FULL_NS: u64 = 250_000;

/// One probe that was hit.
#[repr(C)]
pub struct Call {
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Process id and, in the lower half, thread id.
    pub ids: u64,
    /// [`CallRecord::sp`].
    pub sp: u64,
    /// [`CallRecord::result`].
    pub result: u64,
    /// [`CallRecord::stack`].
    pub stack: u64,
    /// The spec of the probe.
    pub spec: *const ProbeSpec,
    /// Counters of the spec.
    pub counts: *mut ProbeCounts,
    /// The call's state, or null.
    pub pending: *mut PendingCall,
    /// Index of the spec.
    pub probe: u32,
    /// [`CallRecord::library`].
    pub library: u32,
    /// `CALL_*` bits.
    pub flags: u32,
    /// [`CallRecord::depth`].
    pub depth: u32,
    /// [`CallRecord::around_ns`].
    pub around_ns: u64,
}

impl Call {
    /// Sets to 0 the fields that are not known yet when a call begins. One by one, because the
    /// compiler would otherwise call memset, whose loop the verifier follows byte by byte.
    #[inline(always)]
    pub fn clear(&mut self) {
        let call = &raw mut *self;
        // SAFETY: fields of the call.
        unsafe {
            (&raw mut (*call).result).write_volatile(0);
            (&raw mut (*call).stack).write_volatile(0);
            (&raw mut (*call).flags).write_volatile(0);
            (&raw mut (*call).depth).write_volatile(0);
            (&raw mut (*call).around_ns).write_volatile(0);
            (&raw mut (*call).pending).write_volatile(null_mut());
        }
    }
}

/// At the entry of a probed function. Reads resident memory only.
#[uprobe]
pub fn call_entry(ctx: ProbeContext) -> u32 {
    entry::<false>(ctx.as_ptr().cast());
    0
}

/// As `call_entry`, but sleepable, for texts, arrays and blobs.
#[uprobe(sleepable)]
pub fn call_entry_s(ctx: ProbeContext) -> u32 {
    entry::<true>(ctx.as_ptr().cast());
    0
}

/// At a `ret` instruction of a probed function.
#[uprobe]
pub fn call_exit(ctx: ProbeContext) -> u32 {
    exit::<false>(ctx.as_ptr().cast(), 0);
    0
}

/// As `call_exit`, sleepable.
#[uprobe(sleepable)]
pub fn call_exit_s(ctx: ProbeContext) -> u32 {
    exit::<true>(ctx.as_ptr().cast(), 0);
    0
}

/// After the return of a probed function, when the slot of the return address has been popped.
#[uretprobe]
pub fn call_return(ctx: RetProbeContext) -> u32 {
    exit::<false>(ctx.as_ptr().cast(), 8);
    0
}

/// As `call_return`, sleepable.
#[uretprobe(sleepable)]
pub fn call_return_s(ctx: RetProbeContext) -> u32 {
    exit::<true>(ctx.as_ptr().cast(), 8);
    0
}

/// Keeps the program on the stack of the thread that runs it.
///
/// Since Linux 6.13 programs of this type have their stack in memory of the CPU
/// (`bpf_enable_priv_stack` in kernel/bpf/verifier.c), because a kernel probe does not run
/// again before it has ended. A probe in a program does: its thread is preempted, or waits for
/// a page, and the next thread on the CPU overwrites its variables. Programs with a tail call
/// keep their own stack. The tail call here is never executed: the verifier counts it, and then
/// removes it because it knows the constant.
#[inline(always)]
fn keep_own_stack() {
    if setting!(own_tgid) == u32::MAX {
        // SAFETY: never reached.
        unsafe {
            asm!("call 12", lateout("r0") _, lateout("r1") _, lateout("r2") _,
                lateout("r3") _, lateout("r4") _, lateout("r5") _);
        }
    }
}

/// Begins a [`Call`] from the registers and the cookie. `false`: it must not be recorded.
#[inline(always)]
fn begin(call: &mut Call, regs: *mut pt_regs, popped: u64) -> bool {
    keep_own_stack();
    // SAFETY: helpers without preconditions, and fields of the context.
    unsafe {
        call.ids = bpf_get_current_pid_tgid();
        let cookie = bpf_get_attach_cookie(regs.cast());
        call.probe = cookie as u32;
        call.library = (cookie >> 32) as u32;
        call.sp = (*regs).rsp.wrapping_sub(popped);
        call.time_ns = bpf_ktime_get_ns();
    }
    call.clear();
    if is_chosen((call.ids >> 32) as u32) == 0 {
        return false;
    }
    let (Some(spec), Some(counts)) = (
        PROBES.get_ptr(call.probe),
        PROBE_COUNTS.get_ptr_mut(call.probe),
    ) else {
        return false;
    };
    call.spec = spec;
    call.counts = counts;
    true
}

/// Adds one to a counter. Atomically: programs preempt each other.
#[macro_export]
macro_rules! count {
    ($counts:expr, $field:ident) => {
        // SAFETY: a field of a checked map value, aligned.
        unsafe { $crate::atomic::add(&raw mut (*$counts).$field, 1) }
    };
}

/// The integer arguments of a function.
#[inline(always)]
fn arguments(regs: *const pt_regs) -> [u64; 6] {
    // SAFETY: fields of the context.
    unsafe {
        let r = &*regs;
        [r.rdi, r.rsi, r.rdx, r.rcx, r.r8, r.r9]
    }
}

#[inline(always)]
fn entry<const SLEEP: bool>(regs: *mut pt_regs) {
    let mut call = MaybeUninit::<Call>::uninit();
    // SAFETY: `begin` fills in every field before anything reads one.
    let call = unsafe { &mut *call.as_mut_ptr() };
    if !begin(call, regs, 0) {
        return;
    }
    // SAFETY: a checked map value; user space does not change specs in use.
    let spec = unsafe { &*call.spec };
    // Calls that began before the pause are followed to their end.
    if spec.flags & SPEC_WORK != 0 && is_paused() {
        return;
    }
    count!(call.counts, calls);
    let thread = threads::current(call.ids as u32);
    if let Some(thread) = thread
        && let Some(over) = threads::over(thread, call, spec.function)
        && report_late::<SLEEP>(call, over) != 0
        && !begin(call, regs, 0)
    {
        return;
    }
    let thread = thread.unwrap_or(null_mut());
    if !thread.is_null() && threads::settle(thread, call, spec.function) == threads::TAIL {
        call.flags = CALL_TAIL.into();
    } else {
        if spec.flags & SPEC_STACK != 0 {
            user_stack(call, regs, thread);
        }
        if thread.is_null() {
            call.flags |= u32::from(CALL_UNTRACKED);
        } else {
            call.pending = threads::push(thread, call, spec.flags, spec.function);
        }
        if call.pending.is_null() {
            count!(call.counts, untracked);
        }
    }
    report_entry::<SLEEP>(call, regs);
}

/// Fetches the entry's values, keeps them and sends the record.
#[inline(never)]
fn report_entry<const SLEEP: bool>(call: &Call, regs: *mut pt_regs) -> u32 {
    let mut sources = MaybeUninit::<Sources>::uninit();
    // SAFETY: a checked map value.
    let spec = unsafe { &*call.spec };
    let ops = (0, spec.n_entry);
    Sources::set(
        sources.as_mut_ptr(),
        spec,
        ops,
        arguments(regs),
        (call.sp, 0),
    );
    // SAFETY: just set.
    let sources = unsafe { &mut *sources.as_mut_ptr() };
    fetch::<SLEEP>(sources);
    let kept = !call.pending.is_null();
    if kept && spec.flags & SPEC_KEEP != 0 {
        // SAFETY: a checked map value of this thread's.
        let pending = unsafe { &mut *call.pending };
        for slot in 0..MAX_VALUES {
            pending.values[slot] = sources.value(slot);
        }
        pending.unread = sources.unread();
    }
    if spec.flags & SPEC_EXIT_ONLY == 0 || !kept || sources.has_data() {
        report::<SLEEP>(call, sources);
    }
    if kept && spec.flags & SPEC_LATE != 0 && spec.n_exit > 0 {
        keep_before::<SLEEP>(call, sources);
    }
    0
}

/// Keeps the values that the exit's operations read at the entry, in the same slots.
#[inline(always)]
fn keep_before<const SLEEP: bool>(call: &Call, sources: &mut Sources) {
    // SAFETY: a checked map value.
    let spec = unsafe { &*call.spec };
    sources.go_on((spec.n_entry, spec.n_exit));
    fetch::<SLEEP>(sources);
    // SAFETY: a checked map value of this thread's.
    let pending = unsafe { &mut *call.pending };
    for slot in 0..MAX_VALUES {
        pending.values[slot] = sources.value(slot);
    }
}

/// Sends what the exit of the finished call `over` would have sent, if its spec asks for that.
/// Values that have not changed since the entry are marked as unread, and so is what was on a
/// part of the stack that the thread has left. Returns 1 if it has changed `call`, else 0.
#[inline(never)]
fn report_late<const SLEEP: bool>(call: &mut Call, over: *mut PendingCall) -> u32 {
    // SAFETY: a checked map value of this thread's.
    let pending = unsafe { &*over };
    let Some(spec) = PROBES.get_ptr(pending.probe) else {
        return 0;
    };
    // SAFETY: a checked map value.
    let how = unsafe { &*spec };
    let wanted = SPEC_LATE | SPEC_KEEP;
    if how.flags & wanted != wanted || how.n_exit == 0 {
        return 0;
    }
    call.spec = spec;
    call.probe = pending.probe;
    call.library = pending.library;
    let dead = call.sp.wrapping_sub(pending.sp);
    call.sp = pending.sp;
    call.stack = pending.stack;
    call.around_ns = pending.time_ns;
    call.flags = u32::from(CALL_EXIT | CALL_LATE);
    // One nanosecond before the call that revealed it.
    call.time_ns = call.time_ns.wrapping_sub(1);
    let mut sources = MaybeUninit::<Sources>::uninit();
    let ops = (how.n_entry, how.n_exit);
    Sources::set(sources.as_mut_ptr(), spec, ops, [0; 6], (call.sp, 0));
    // SAFETY: just set.
    let sources = unsafe { &mut *sources.as_mut_ptr() };
    for slot in 0..MAX_VALUES {
        sources.set_value(slot, pending.values[slot]);
    }
    sources.set_unread(pending.unread);
    sources.set_dead(dead);
    fetch::<SLEEP>(sources);
    let mut changed = 0;
    for slot in 0..MAX_VALUES {
        changed |= differ(sources.value(slot), pending.values[slot]) << slot;
    }
    let slots = u64::from(how.exit_slots);
    let unread = u64::from(sources.unread()) | slots & !changed;
    sources.set_unread(unread as u32);
    report::<SLEEP>(call, sources);
    1
}

/// 1 if two values differ. Without a branch: each would double the verifier's paths.
#[inline(always)]
fn differ(a: u64, b: u64) -> u64 {
    let mut bits = a ^ b;
    // SAFETY: arithmetic on registers. In assembly, because the compiler must not turn it into
    // a comparison.
    unsafe {
        asm!("{1} = {0}", "{1} = -{1}", "{0} |= {1}", "{0} >>= 63",
            inout(reg) bits, out(reg) _, options(pure, nomem, nostack));
    }
    bits
}

#[inline(always)]
fn exit<const SLEEP: bool>(regs: *mut pt_regs, popped: u64) {
    let mut call = MaybeUninit::<Call>::uninit();
    // SAFETY: `begin` fills in every field before anything reads one.
    let call = unsafe { &mut *call.as_mut_ptr() };
    if !begin(call, regs, popped) {
        return;
    }
    // SAFETY: a field of the context.
    call.result = unsafe { (*regs).rax };
    call.flags = CALL_EXIT.into();
    // SAFETY: a checked map value.
    let spec = unsafe { &*call.spec };
    let thread = threads::known(call.ids as u32);
    if let Some(over) = thread.and_then(|thread| threads::over(thread, call, 0))
        && report_late::<SLEEP>(call, over) != 0
    {
        if !begin(call, regs, popped) {
            return;
        }
        // SAFETY: a field of the context.
        call.result = unsafe { (*regs).rax };
        call.flags = CALL_EXIT.into();
    }
    let pending = thread.and_then(|thread| threads::leave(thread, call, spec.function));
    match pending {
        Some(pending) => {
            // SAFETY: a checked map value of this thread's.
            let p = unsafe { &*pending };
            call.pending = pending;
            call.around_ns = p.time_ns;
            call.stack = p.stack;
            call.probe = p.probe;
            call.library = p.library;
            let Some(spec) = PROBES.get_ptr(p.probe) else {
                return;
            };
            call.spec = spec;
        }
        None => {
            let alone = spec.n_exit > 0 && spec.flags & SPEC_KEEP == 0;
            if spec.flags & SPEC_EXIT == 0 || !alone {
                return;
            }
            if spec.flags & SPEC_WORK != 0 && is_paused() {
                return;
            }
            call.flags |= u32::from(CALL_ENTRY_UNKNOWN);
        }
    }
    report_exit::<SLEEP>(call, regs);
}

/// Fetches the exit's values, in addition to those kept, and sends the record.
#[inline(never)]
fn report_exit<const SLEEP: bool>(call: &Call, regs: *mut pt_regs) -> u32 {
    let mut sources = MaybeUninit::<Sources>::uninit();
    // SAFETY: a checked map value.
    let spec = unsafe { &*call.spec };
    let ops = (spec.n_entry, spec.n_exit);
    let given = (call.sp, call.result);
    Sources::set(sources.as_mut_ptr(), spec, ops, arguments(regs), given);
    // SAFETY: just set.
    let sources = unsafe { &mut *sources.as_mut_ptr() };
    if !call.pending.is_null() && spec.flags & SPEC_KEEP != 0 {
        // SAFETY: a checked map value of this thread's.
        let pending = unsafe { &*call.pending };
        for slot in 0..MAX_VALUES {
            sources.set_value(slot, pending.values[slot]);
        }
        sources.set_unread(pending.unread);
    }
    fetch::<SLEEP>(sources);
    report::<SLEEP>(call, sources)
}

/// Sends a call's record, then its data.
#[inline(always)]
pub fn report<const SLEEP: bool>(call: &Call, sources: &Sources) -> u32 {
    let ring = Ring::of(&CALLS);
    let mut flags = call.flags;
    let mut data = sources.has_data();
    if sources.is_absent() {
        count!(call.counts, absent);
    }
    if data && setting!(own_data_only) != 0 && current_uid() != setting!(caller_uid) {
        count!(call.counts, withheld);
        flags |= u32::from(CALL_DATA_LOST);
        data = false;
    }
    if data && !ring.has_free(2) {
        // Records of calls have priority over data.
        count!(call.counts, data_lost);
        flags |= u32::from(CALL_DATA_LOST);
        data = false;
    }
    let record: *mut CallRecord = ring.reserve();
    if record.is_null() {
        count!(call.counts, lost);
        return 0;
    }
    // SAFETY: a reservation of the size of a CallRecord, and a checked map value.
    unsafe {
        fill(record, call, sources, flags);
        bpf_ringbuf_submit(record.cast(), wakeup(ring, call.time_ns));
    }
    if data {
        send_data::<SLEEP>(call, sources);
    }
    0
}

/// Writes every field of a record.
///
/// # Safety
/// `record` must be valid for writes.
#[inline(always)]
unsafe fn fill(record: *mut CallRecord, call: &Call, sources: &Sources, flags: u32) {
    // SAFETY: the caller's promise, and a checked map value. Volatile and one by one, because
    // the compiler would otherwise build the record on the stack.
    unsafe {
        (&raw mut (*record).kind).write_volatile(KIND_CALL);
        (&raw mut (*record).cpu).write_volatile(bpf_get_smp_processor_id() as u32);
        (&raw mut (*record).time_ns).write_volatile(call.time_ns);
        (&raw mut (*record).tgid).write_volatile((call.ids >> 32) as u32);
        (&raw mut (*record).tid).write_volatile(call.ids as u32);
        (&raw mut (*record).probe).write_volatile(call.probe);
        (&raw mut (*record).library).write_volatile(call.library);
        (&raw mut (*record).stack).write_volatile(call.stack);
        (&raw mut (*record).sp).write_volatile(call.sp);
        (&raw mut (*record).around_ns).write_volatile(call.around_ns);
        (&raw mut (*record).result).write_volatile(call.result);
        (&raw mut (*record).unread).write_volatile(sources.unread() as u16);
        (&raw mut (*record).flags).write_volatile(flags as u16);
        (&raw mut (*record).depth).write_volatile(call.depth as u8);
        (&raw mut (*record).n_values).write_volatile((*call.spec).n_values);
        (&raw mut (*record).pad).write_volatile(0);
        for slot in 0..MAX_VALUES {
            let to = (&raw mut (*record).values).cast::<u64>().add(slot);
            to.write_volatile(sources.value(slot));
        }
    }
}

/// Ring buffer flags for a record: whether to wake the reader. The reader also looks by itself
/// a few milliseconds after it was woken.
#[inline(always)]
pub fn wakeup(ring: Ring, now: u64) -> u64 {
    let Some(limits) = CALL_LIMITS.get_ptr_mut(0) else {
        return FORCE_WAKEUP;
    };
    // SAFETY: a checked map value (see CallLimits).
    let woken = unsafe { &mut (*limits).woken_ns };
    let since = now.wrapping_sub(*woken);
    if since < WAKEUP_FULL_NS || (since < WAKEUP_NS && ring.waiting() < WAKEUP_BYTES) {
        return NO_WAKEUP;
    }
    *woken = now;
    FORCE_WAKEUP
}
