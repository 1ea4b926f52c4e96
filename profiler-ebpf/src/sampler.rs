//! The CPU sampler.

use aiprof_common::*;
use aya_ebpf::{
    EbpfContext,
    bindings::{bpf_perf_event_data, pt_regs},
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_current_task_btf, bpf_get_smp_processor_id,
        generated::{
            bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_stack, bpf_ktime_get_ns,
            bpf_ringbuf_output, bpf_task_pt_regs,
        },
    },
    macros::perf_event,
    programs::PerfEventContext,
};
use core::ffi::c_void;

use crate::{
    maps::{COUNTS, Frames, SAMPLER_SCRATCH, SAMPLES, Scratch},
    ring::{FORCE_WAKEUP, NO_WAKEUP, Ring, WAKEUP_BYTES, is_unfinished, send_stack},
    setting,
    unwind::{append, walk_user},
};

/// Takes one sample of the thread that this CPU runs. Attached to a perf event on every CPU.
#[perf_event]
pub fn sampler(ctx: PerfEventContext) -> u32 {
    count(COUNT_SAMPLES);
    let ids = bpf_get_current_pid_tgid();
    if ids as u32 == 0 && setting!(include_idle) == 0 {
        count(COUNT_IDLE);
        return 0;
    }
    if let Some(scratch) = SAMPLER_SCRATCH.get_ptr_mut(0) {
        sample(&ctx, ids, scratch);
    }
    0
}

/// Adds one to a counter.
#[inline(always)]
fn count(index: u32) {
    if let Some(counter) = COUNTS.get_ptr_mut(index) {
        // SAFETY: a per-CPU value; this program does not nest.
        unsafe { *counter += 1 };
    }
}

#[inline(always)]
fn sample(ctx: &PerfEventContext, ids: u64, scratch: *mut Scratch) {
    let data = ctx.as_ptr().cast::<bpf_perf_event_data>();
    // SAFETY: a checked map value, not shared while this program runs.
    let s = unsafe { &mut *scratch };
    // SAFETY: fields of the context, and helpers without preconditions.
    let (interrupted_cs, period, time_ns, cgroup) = unsafe {
        (
            (*data).regs.cs,
            (*data).sample_period,
            bpf_ktime_get_ns(),
            bpf_get_current_cgroup_id(),
        )
    };
    let in_user_mode = interrupted_cs & 3 == 3;
    let h = &raw mut s.header;
    // SAFETY: fields of a checked map value. Volatile and one by one, because the compiler
    // would otherwise call memset, which is a loop over bytes here.
    unsafe {
        (&raw mut (*h).kind).write_volatile(KIND_SAMPLE);
        (&raw mut (*h).cpu).write_volatile(bpf_get_smp_processor_id() as u32);
        (&raw mut (*h).time_ns).write_volatile(time_ns);
        (&raw mut (*h).tgid).write_volatile((ids >> 32) as u32);
        (&raw mut (*h).tid).write_volatile(ids as u32);
        (&raw mut (*h).cgroup).write_volatile(cgroup);
        (&raw mut (*h).period).write_volatile(period);
        (&raw mut (*h).space).write_volatile(0);
        (&raw mut (*h).miss_dir).write_volatile(0);
        (&raw mut (*h).miss_page).write_volatile(0);
        (&raw mut (*h).user_len).write_volatile(0);
        (&raw mut (*h).kernel_len).write_volatile(0);
        // stop, flags, python_len and omitted: 8 bytes.
        let flags = if in_user_mode { FLAG_USER_MODE } else { 0 };
        let tail = u64::from(STOP_KERNEL_THREAD) | u64::from(flags) << 8;
        (&raw mut (*h).stop).cast::<u64>().write_volatile(tail);
    }
    // SAFETY: the destination has the size given; the helper always terminates the name.
    unsafe { bpf_get_current_comm(s.header.comm.as_mut_ptr().cast(), 16) };
    // SAFETY: the current task is valid, and so are its registers' addresses.
    let regs = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as *const pt_regs;
    // SAFETY: a BTF pointer, whose reads the kernel makes fault-safe. Kernel threads have no
    // user registers: theirs are zero. Threads that the kernel starts for io_uring have a code
    // segment but no instruction pointer.
    if unsafe { (*regs).cs } & 3 == 3 && unsafe { (*regs).rip } != 0 {
        s.walk.look_for(0);
        let cache = (0, setting!(rule_cache_mask));
        walk_user(scratch, regs, cache, Ring::of(&SAMPLES));
    }
    let mut len = u64::from(s.header.user_len) & (2 * MAX_USER_FRAMES as u64 - 1);
    if len > MAX_USER_FRAMES as u64 {
        len = MAX_USER_FRAMES as u64;
    }
    if !in_user_mode && setting!(kernel_stacks) != 0 {
        kernel_stack(ctx, s, len);
    }
    submit(s, len);
}

/// Appends the kernel stack after the `len` user addresses.
#[inline(always)]
fn kernel_stack(ctx: &PerfEventContext, s: &mut Scratch, len: u64) {
    const BYTES: usize = MAX_KERNEL_FRAMES * 8;
    // SAFETY: `len <= MAX_USER_FRAMES`, after which there is room for BYTES.
    let rc = unsafe {
        let to = s.frames.as_mut_ptr().add(len as usize);
        bpf_get_stack(ctx.as_ptr(), to.cast::<c_void>(), BYTES as u32, 0)
    };
    if rc < 0 {
        s.header.flags |= FLAG_KERNEL_FAILED;
        return;
    }
    s.header.kernel_len = (rc / 8) as u16;
    if rc as usize >= BYTES {
        s.header.flags |= FLAG_KERNEL_TRUNCATED;
    }
}

/// Sends the record.
#[inline(always)]
fn submit(s: &mut Scratch, user_len: u64) {
    const MAX: u64 = (size_of::<SampleHeader>() + size_of::<Frames>()) as u64;
    let frames = user_len + (u64::from(s.header.kernel_len) & 127);
    let frames = frames + append(s, frames);
    let mut bytes = size_of::<SampleHeader>() as u64 + frames * 8;
    if bytes > MAX {
        bytes = MAX;
    }
    let ring = Ring::of(&SAMPLES);
    // After a miss, user space should load the table soon: the next sample needs it. The fill
    // level of the ring is in cache lines that all CPUs write, so only one sample in four
    // checks it.
    let missed = is_unfinished(s.header.stop);
    let asks = s.header.time_ns >> 20 & 3 == 0;
    let flags = if missed || asks && ring.waiting() >= WAKEUP_BYTES {
        FORCE_WAKEUP
    } else {
        NO_WAKEUP
    };
    let record = (&raw mut *s).cast::<c_void>();
    // SAFETY: `ring` is a map; the data are `bytes` initialised bytes of the
    // scratch, which is larger than MAX.
    if unsafe { bpf_ringbuf_output(ring.map(), record, bytes, flags) } != 0 {
        count(COUNT_RING_DROPS);
    } else if missed && ring.has_free(1) {
        // Stack pages have low priority: they never take the room of samples.
        send_stack(&s.header, ring);
    }
}
