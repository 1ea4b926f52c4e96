//! The programs that record waits.
//!
//! When the scheduler switches a thread out, the time is noted. When it switches the thread in
//! again, the wait is over and its length is known. A wait of at least a period is always
//! recorded. A shorter one is recorded with the probability length / period, and then counts as
//! a whole period. So the sums are unbiased, and the cost of many short waits is bounded. The
//! kernel part of the stack is taken at that moment. The user part is taken when the thread
//! leaves its system call, because its memory cannot be read before.
//!
//! A thread that is preempted, or that waits for a page, leaves no system call. Its stack is
//! taken when the wait begins, without a kernel part. If such waits are frequent, one in
//! [`BLIND_SHARE`] is taken. The same holds for a thread that is stopped, which may begin another
//! system call in place of the one that it was stopped in.

use aiprof_common::*;
use aya_ebpf::{
    bindings::{pt_regs, task_struct},
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_smp_processor_id,
        generated::{
            bpf_get_current_task_btf, bpf_get_prandom_u32, bpf_get_task_stack, bpf_ktime_get_ns,
            bpf_probe_read_kernel, bpf_ringbuf_output, bpf_task_pt_regs,
        },
    },
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use core::{
    ffi::c_void,
    ptr::{null, null_mut},
};

use crate::{
    atomic,
    calls::{Call, wakeup},
    chosen::is_chosen,
    limits::may_draw,
    maps::{
        CALLS, COUNTS, LAST_SWITCHES, LastSwitch, WAIT_COUNTS, WAIT_SLOTS, WAITS_OVER, WaitOver,
        WaitSlot,
    },
    paused::{is_paused, recording_since},
    ring::{NO_WAKEUP, Ring},
    setting,
    stacks::wait_stack,
};

/// [`WaitOver::owner`] while a program writes or reads the place.
pub const TAKEN: u64 = u64::MAX;
/// Nanoseconds after which a wait that is over is given up: another thread took the slot that
/// refers to it.
const GIVEN_UP_NS: u64 = 1_000_000_000;
/// Places that a thread tries before its wait counts as lost.
const TRIES: u32 = 8;
/// Distance between two places that a thread tries. Odd, so that all places are different;
/// not small, because threads of one program have successive ids.
const STRIDE: u32 = 509;
/// `task_struct.__state` of a thread that will not run again (`TASK_DEAD`,
/// include/linux/sched.h).
const TASK_DEAD: u32 = 0x80;
/// The state of a frozen thread, as [`STATES_STOPPED`] has it.
const TASK_FROZEN: u32 = 0x8000;
/// In `task_struct.jobctl` (include/linux/sched/jobctl.h): the thread is to freeze, or has frozen.
const JOBCTL_TRAP_FREEZE: u32 = 1 << 23;

/// At `sched_switch`: (preempt, prev, next, prev_state).
#[btf_tracepoint(function = "sched_switch")]
pub fn switched(ctx: BtfTracePointContext) -> i32 {
    if is_paused() {
        return 0;
    }
    let (preempted, state) = (ctx.arg::<u64>(0) & 0xff, ctx.arg::<u64>(3) as u32);
    let (prev, next) = (
        ctx.arg::<*mut task_struct>(1),
        ctx.arg::<*mut task_struct>(2),
    );
    // SAFETY: a helper without preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    let state = if preempted != 0 { 0 } else { state };
    let (from, to) = (
        word(prev, setting!(task_pid)),
        word(next, setting!(task_pid)),
    );
    end_unreported(prev, from, now);
    if let Some(last) = LAST_SWITCHES.get_ptr_mut(0) {
        let tid = to.into();
        // SAFETY: a checked map value of this CPU, which nothing interrupts here.
        unsafe { *last = LastSwitch { time_ns: now, tid } };
    }
    leaves(prev, from, state, now);
    comes(next, to, now);
    0
}

/// At `sched_waking`: (task). The waker is the current thread, or an interrupt during it.
#[btf_tracepoint(function = "sched_waking")]
pub fn waking(ctx: BtfTracePointContext) -> i32 {
    if is_paused() {
        return 0;
    }
    let task = ctx.arg::<*mut task_struct>(0);
    // SAFETY: a helper without preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    let tid = word(task, setting!(task_pid));
    if let Some(slot) = slot_of(tid)
        && slot.tid == tid
        && slot.begin_ns != 0
        && slot.woken_ns == 0
    {
        slot.waker = bpf_get_current_pid_tgid();
        slot.woken_ns = now;
    }
    0
}

/// At `sys_exit`. The thread's memory can be read again.
#[btf_tracepoint(function = "sys_exit")]
pub fn left_syscall(ctx: BtfTracePointContext) -> i32 {
    let ids = bpf_get_current_pid_tgid();
    let tid = ids as u32;
    if let Some(slot) = slot_of(tid)
        && slot.tid == tid
        && slot.begin_ns != 0
        && slot.state != 0
    {
        // No switch to it was reported.
        // SAFETY: helpers without preconditions.
        unsafe { comes(bpf_get_current_task_btf(), tid, bpf_ktime_get_ns()) };
    }
    let Some(over) = take_over(tid) else {
        return 0;
    };
    let regs = ctx.arg::<*const pt_regs>(0);
    // SAFETY: a BTF pointer, whose reads the kernel makes fault-safe.
    let is_same = unsafe { (*regs).orig_rax } == over.record.syscall;
    if !is_same {
        // It waited on its way out of the system call before, behind this tracepoint: it closed
        // files, or wrote to its memory.
        // SAFETY: a helper without preconditions.
        over.record.time_ns = unsafe { bpf_ktime_get_ns() };
        send_without_stack(over);
    } else if is_chosen((ids >> 32) as u32) != 0 {
        let bytes = over.kernel_bytes;
        let (stack, flags) = take_stack::<false>(ids, (&raw const over.kernel) as u64, bytes);
        over.record.stack = stack;
        over.record.flags = flags;
        over.record.tgid = (ids >> 32) as u32;
        // Later than the stack's record, which has to come first.
        // SAFETY: a helper without preconditions.
        over.record.time_ns = unsafe { bpf_ktime_get_ns() };
        let ring = Ring::of(&CALLS);
        send(&over.record, wakeup(ring, over.record.time_ns));
    }
    set_owner(over, 0);
    0
}

/// Ends the wait of a thread that is switched away from although no switch to it was reported.
/// Kernels can hide a thread's switches from programs: whoever runs after such a thread seems to
/// wait on. A thread that was blocked is still in its system call, where it ran for a moment. A
/// preempted one may have run since the last switch that its CPU reported; if that is the one
/// away from it, nothing is known.
#[inline(always)]
fn end_unreported(task: *mut task_struct, tid: u32, now: u64) {
    let (Some(slot), Some(last)) = (slot_of(tid), LAST_SWITCHES.get_ptr_mut(0)) else {
        return;
    };
    // SAFETY: a checked map value of this CPU, which nothing interrupts here.
    let (to, since) = unsafe { ((*last).tid, (*last).time_ns) };
    if slot.tid != tid || to == u64::from(tid) || since < recording_since() {
        return;
    }
    if slot.state != 0 {
        comes(task, tid, now);
    } else if since > slot.begin_ns {
        comes(task, tid, since);
    }
}

/// Places in `WAITS_OVER`.
const WAITS_OVER_LEN: u32 = aiprof_common::WAITS_OVER as u32;

/// Reads a field of a task.
#[inline(always)]
fn word(task: *const task_struct, offset: u32) -> u32 {
    let mut value = 0u32;
    // SAFETY: the destination has the size given; a bad source is an error.
    unsafe {
        let from = (task as u64).wrapping_add(u64::from(offset));
        bpf_probe_read_kernel((&raw mut value).cast(), 4, from as *const c_void);
    }
    value
}

/// The slot of a thread.
#[inline(always)]
fn slot_of(tid: u32) -> Option<&'static mut WaitSlot> {
    let slot = WAIT_SLOTS.get_ptr_mut(tid % aiprof_common::WAIT_SLOTS as u32)?;
    // SAFETY: a checked map value.
    Some(unsafe { &mut *slot })
}

/// Counts a wait that could not be recorded.
#[inline(always)]
fn lost() {
    count(COUNT_WAITS_LOST);
}

/// Adds one to a counter.
#[inline(always)]
fn count(counter: u32) {
    if let Some(counter) = COUNTS.get_ptr_mut(counter) {
        // SAFETY: a checked map value, aligned.
        unsafe { atomic::add(counter, 1) };
    }
}

/// Records the current thread's stack. Returns its id, or 0 and flags with the reason.
#[inline(always)]
fn take_stack<const LOCKED: bool>(ids: u64, kernel: u64, bytes: u64) -> (u64, u32) {
    let Some(counts) = WAIT_COUNTS.get_ptr_mut(0) else {
        return (0, 0);
    };
    let mut call = Call {
        // SAFETY: a helper without preconditions.
        time_ns: unsafe { bpf_ktime_get_ns() },
        ids,
        sp: 0,
        result: 0,
        stack: 0,
        spec: null(),
        counts,
        pending: null_mut(),
        probe: 0,
        library: 0,
        flags: 0,
        depth: 0,
        around_ns: 0,
    };
    wait_stack::<LOCKED>(&mut call, kernel, bytes);
    (call.stack, call.flags)
}

/// Sends a record.
#[inline(always)]
fn send(record: &WaitRecord, flags: u64) {
    let (from, bytes) = (&raw const *record, size_of::<WaitRecord>() as u64);
    // SAFETY: a ring buffer map, and a record that is initialised.
    if unsafe { bpf_ringbuf_output(Ring::of(&CALLS).map(), from.cast_mut().cast(), bytes, flags) }
        != 0
    {
        lost();
    }
}

/// Sends a wait whose stack cannot be read any more.
#[inline(always)]
fn send_without_stack(over: &mut WaitOver) {
    if is_chosen(over.record.tgid) != 0 {
        over.record.stack = 0;
        over.record.flags = 0;
        send(&over.record, NO_WAKEUP);
    }
}

/// The system call that a thread waits in, with its first two arguments. A preempted thread
/// counts as in none: it may be on its way out of one, after [`left_syscall`] has run. If a wait of
/// the same call is not recorded yet, that wait ends with this one.
#[inline(always)]
fn waits_in(slot: &WaitSlot, task: *mut task_struct) -> (u64, [u64; 2]) {
    // SAFETY: a task of a tracepoint, whose registers' reads the kernel makes fault-safe.
    let (syscall, arguments) = unsafe {
        let regs = bpf_task_pt_regs(task) as *const pt_regs;
        ((*regs).orig_rax, [(*regs).rdi, (*regs).rsi])
    };
    let is_stopped = slot.state & STATES_STOPPED != 0;
    if is_stopped || slot.state == 0 && !has_wait_in(slot, syscall) {
        return (NO_SYSCALL, [0; 2]);
    }
    (syscall, arguments)
}

/// Whether a wait of a thread in this system call is over and not recorded yet.
#[inline(always)]
fn has_wait_in(slot: &WaitSlot, syscall: u64) -> bool {
    let place = slot.over.wrapping_sub(1);
    let Some(over) = WAITS_OVER.get_ptr_mut(place) else {
        return false;
    };
    // SAFETY: fields of a checked map value, aligned. The thread itself does not run.
    unsafe {
        (&raw const (*over).owner).read_volatile() == slot.tid.into()
            && (*over).record.syscall == syscall
    }
}

/// The current thread is switched out.
#[inline(always)]
fn leaves(task: *mut task_struct, tid: u32, state: u32, now: u64) {
    let is_kernel = word(task, setting!(task_flags)) & PF_KTHREAD != 0;
    if tid == 0 || is_kernel {
        return;
    }
    if state & TASK_DEAD != 0 {
        dies(tid, now);
        return;
    }
    let Some(slot) = slot_of(tid) else {
        return;
    };
    if slot.tid != tid && slot.begin_ns != 0 && now.wrapping_sub(slot.begin_ns) < GIVEN_UP_NS {
        // The other thread is still waiting. Its wait is overwritten.
        lost();
    }
    if slot.tid != tid {
        slot.over = 0;
    }
    if slot.tid == tid && slot.begin_ns != 0 && slot.begin_ns >= recording_since() {
        count(COUNT_WAITS_UNENDED);
    }
    slot.tid = tid;
    slot.state = state;
    if state != 0 && is_freezing(task) {
        slot.state |= TASK_FROZEN;
    }
    slot.woken_ns = 0;
    slot.waker = 0;
    slot.stack = 0;
    slot.drawn = 0;
    slot.flags = 0;
    slot.begin_ns = now;
    if waits_in(slot, task).0 == NO_SYSCALL {
        draw(slot);
    }
}

/// Whether a thread that blocks does so because its cgroup is frozen. In cgroups of version 2 its
/// state is that of any thread that waits for signals.
#[inline(always)]
fn is_freezing(task: *mut task_struct) -> bool {
    let offset = setting!(task_jobctl);
    offset != NO_FIELD && word(task, offset) & JOBCTL_TRAP_FREEZE != 0
}

/// A thread ends. The wait inside of the system call that ends it is recorded without a stack,
/// because the thread will not leave that call.
#[inline(always)]
fn dies(tid: u32, now: u64) {
    let Some(over) = take_over(tid) else {
        return;
    };
    over.record.time_ns = now;
    send_without_stack(over);
    set_owner(over, 0);
}

/// Takes the stack of a wait that begins. If there are many, takes one in [`BLIND_SHARE`].
#[inline(never)]
fn draw(slot: &mut WaitSlot) -> u32 {
    let ids = bpf_get_current_pid_tgid();
    if is_chosen((ids >> 32) as u32) == 0 {
        return 0;
    }
    // SAFETY: helpers without preconditions.
    let (now, random) = unsafe { (bpf_ktime_get_ns(), bpf_get_prandom_u32()) };
    slot.drawn = if may_draw(now) {
        1
    } else if random % BLIND_SHARE == 0 {
        BLIND_SHARE
    } else {
        return 0;
    };
    let (stack, flags) = take_stack::<true>(ids, 0, 0);
    slot.stack = stack;
    slot.flags = flags;
    0
}

/// A thread is switched in. Not inlined, so that the record is not on the stack of the functions
/// that take stacks: the verifier's limit would be exceeded.
#[inline(never)]
fn comes(task: *mut task_struct, tid: u32, now: u64) -> u32 {
    let Some(slot) = slot_of(tid) else {
        return 0;
    };
    if tid == 0 || slot.tid != tid || slot.begin_ns == 0 {
        return 0;
    }
    let begin_ns = slot.begin_ns;
    slot.begin_ns = 0;
    if begin_ns < recording_since() {
        // The recording was paused meanwhile: it may have been several waits.
        lost();
        return 0;
    }
    let took = now.wrapping_sub(begin_ns);
    if took < u64::from(setting!(wait_least_us)) * 1000 {
        return 0;
    }
    let (syscall, arguments) = waits_in(slot, task);
    let mut blocked_ns = took;
    if slot.state == 0 {
        blocked_ns = 0;
    } else if slot.woken_ns > begin_ns {
        blocked_ns = slot.woken_ns - begin_ns;
    }
    let mut queued_ns = took.saturating_sub(blocked_ns);
    if syscall == NO_SYSCALL {
        if slot.drawn == 0 {
            return 0;
        }
        // Its stack was taken when it began.
        let record = WaitRecord {
            kind: KIND_WAIT,
            // SAFETY: a helper without preconditions.
            cpu: unsafe { bpf_get_smp_processor_id() },
            time_ns: now,
            tgid: word(task, setting!(task_tgid)),
            tid,
            begin_ns,
            end_ns: now,
            blocked_ns: blocked_ns.wrapping_mul(slot.drawn.into()),
            queued_ns: queued_ns.wrapping_mul(slot.drawn.into()),
            stack: slot.stack,
            waker: slot.waker,
            syscall,
            arguments,
            state: slot.state,
            flags: slot.flags,
        };
        send(&record, NO_WAKEUP);
        return 0;
    }
    let period = u64::from(setting!(wait_period_ns));
    if took < period {
        // SAFETY: a helper without preconditions.
        let random = u64::from(unsafe { bpf_get_prandom_u32() });
        if random * period >> 32 >= took {
            return 0;
        }
        // `took` is not 0 here: a wait of 0 is never drawn.
        blocked_ns = blocked_ns * period / took;
        queued_ns = period.saturating_sub(blocked_ns);
    }
    let Some((over, before)) = claim(slot, tid, now) else {
        lost();
        return 0;
    };
    if before == u64::from(tid) && over.record.syscall == syscall {
        // Another wait of the same system call, whose record ends with this one.
        over.record.end_ns = now;
        over.record.blocked_ns += blocked_ns;
        over.record.queued_ns += queued_ns;
        set_owner(over, tid.into());
        return 0;
    }
    if before != 0 {
        over.record.time_ns = now;
        send_without_stack(over);
    }
    over.record.kind = KIND_WAIT;
    // SAFETY: a helper without preconditions.
    over.record.cpu = unsafe { bpf_get_smp_processor_id() };
    over.record.time_ns = now;
    over.record.tgid = word(task, setting!(task_tgid));
    over.record.tid = tid;
    over.record.begin_ns = begin_ns;
    over.record.end_ns = now;
    over.record.blocked_ns = blocked_ns;
    over.record.queued_ns = queued_ns;
    over.record.waker = slot.waker;
    over.record.syscall = syscall;
    over.record.arguments = arguments;
    over.record.state = slot.state;
    kernel_stack(over, task);
    set_owner(over, tid.into());
    0
}

/// Takes a place in `WAITS_OVER`: the thread's own, or one of the first [`TRIES`] that is free.
/// Returns it with the thread that held it before (0: none). `None`: none is free.
#[inline(always)]
fn claim(slot: &mut WaitSlot, tid: u32, now: u64) -> Option<(&'static mut WaitOver, u64)> {
    if let Some(over) = take_over_of(slot, tid) {
        return Some((over, tid.into()));
    }
    for i in 0..TRIES {
        let place = tid.wrapping_add(i * STRIDE) % WAITS_OVER_LEN;
        let over = WAITS_OVER.get_ptr_mut(place)?;
        // SAFETY: fields of a checked map value, aligned.
        let (before, since) = unsafe {
            (
                (&raw const (*over).owner).read_volatile(),
                (*over).record.end_ns,
            )
        };
        let is_free = before == 0 || before != TAKEN && now.wrapping_sub(since) > GIVEN_UP_NS;
        // SAFETY: as above.
        if is_free
            && unsafe { atomic::compare_exchange(&raw mut (*over).owner, before, TAKEN) } == before
        {
            slot.over = place + 1;
            // SAFETY: a checked map value, which is claimed.
            return Some((unsafe { &mut *over }, before));
        }
    }
    None
}

/// Takes the place in `WAITS_OVER` that a thread holds, if it holds one.
#[inline(always)]
fn take_over(tid: u32) -> Option<&'static mut WaitOver> {
    let slot = slot_of(tid)?;
    if slot.tid != tid {
        return None;
    }
    take_over_of(slot, tid)
}

/// As [`take_over`], for the thread's slot.
#[inline(always)]
fn take_over_of(slot: &mut WaitSlot, tid: u32) -> Option<&'static mut WaitOver> {
    let place = slot.over.checked_sub(1)?;
    let over = WAITS_OVER.get_ptr_mut(place)?;
    let tid = u64::from(tid);
    // SAFETY: a field of a checked map value, aligned.
    unsafe {
        let owner = &raw mut (*over).owner;
        if owner.read_volatile() != tid || atomic::compare_exchange(owner, tid, TAKEN) != tid {
            return None;
        }
        Some(&mut *over)
    }
}

/// Gives a taken place in `WAITS_OVER` to a thread; 0 makes it free.
#[inline(always)]
fn set_owner(over: &mut WaitOver, owner: u64) {
    // SAFETY: a field of a checked map value, aligned; written last.
    unsafe { (&raw mut over.owner).write_volatile(owner) };
}

/// Takes the kernel stack of a task that does not run.
#[inline(always)]
fn kernel_stack(over: &mut WaitOver, task: *mut task_struct) {
    over.kernel_bytes = 0;
    if setting!(kernel_stacks) == 0 {
        return;
    }
    let (to, room) = ((&raw mut over.kernel).cast(), (MAX_WAIT_FRAMES * 8) as u32);
    // SAFETY: the destination has the size given.
    let rc = unsafe { bpf_get_task_stack(task.cast(), to, room, 0) };
    if rc > 0 {
        over.kernel_bytes = rc as u64;
    }
}
