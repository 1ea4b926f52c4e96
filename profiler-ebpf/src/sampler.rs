//! The CPU sampler.

use aiprof_common::*;
use aya_ebpf::{
    EbpfContext,
    bindings::{bpf_perf_event_data, pt_regs},
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_current_task_btf, bpf_get_smp_processor_id,
        generated::{
            bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_stack, bpf_ktime_get_ns,
            bpf_probe_read_user, bpf_ringbuf_discard, bpf_ringbuf_output, bpf_ringbuf_query,
            bpf_ringbuf_reserve, bpf_ringbuf_submit, bpf_task_pt_regs,
        },
    },
    macros::perf_event,
    programs::PerfEventContext,
};
use core::ffi::c_void;

use crate::{
    maps::{COUNTS, SAMPLER_SCRATCH, SAMPLES, Scratch},
    setting,
    unwind::walk_user,
};

/// Flags of `bpf_ringbuf_output` and `bpf_ringbuf_query` (linux/bpf.h).
const BPF_RB_NO_WAKEUP: u64 = 1;
const BPF_RB_FORCE_WAKEUP: u64 = 2;
const BPF_RB_AVAIL_DATA: u64 = 0;
const BPF_RB_RING_SIZE: u64 = 1;
/// Bytes in the ring buffer from which on the reader is woken: it also looks
/// by itself several times a second, so most samples need no wake-up.
const WAKEUP_BYTES: u64 = 64 * 1024;

/// One sample of what this CPU runs, attached to a perf event on every CPU.
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
    // SAFETY: fields of a checked map value. Volatile and one by one, for the
    // compiler would otherwise call memset, which is a loop of bytes here.
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
        // stop, flags and the padding: the last 8 bytes of the header.
        let flags = if in_user_mode { FLAG_USER_MODE } else { 0 };
        let tail = u64::from(STOP_KERNEL_THREAD) | u64::from(flags) << 8;
        (&raw mut (*h).stop).cast::<u64>().write_volatile(tail);
    }
    // SAFETY: the destination has the size given; the helper always terminates it.
    unsafe { bpf_get_current_comm(s.header.comm.as_mut_ptr().cast(), 16) };
    // SAFETY: the current task is valid, and so are its registers' addresses.
    let regs = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as *const pt_regs;
    // SAFETY: a BTF pointer, whose reads the kernel makes fault-safe. Kernel
    // threads have no user registers: theirs are zero.
    // Those that the kernel starts for io_uring have a code segment but no
    // instruction pointer.
    if unsafe { (*regs).cs } & 3 == 3 && unsafe { (*regs).rip } != 0 {
        walk_user(scratch, regs);
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

/// Appends the kernel stack behind the `len` user addresses.
#[inline(always)]
fn kernel_stack(ctx: &PerfEventContext, s: &mut Scratch, len: u64) {
    const BYTES: usize = MAX_KERNEL_FRAMES * 8;
    // SAFETY: `len <= MAX_USER_FRAMES`, behind which there is room for BYTES.
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
    const MAX: u64 = (size_of::<SampleHeader>() + (MAX_USER_FRAMES + MAX_KERNEL_FRAMES) * 8) as u64;
    let frames = user_len + (u64::from(s.header.kernel_len) & 127);
    let mut bytes = size_of::<SampleHeader>() as u64 + frames * 8;
    if bytes > MAX {
        bytes = MAX;
    }
    let ring = (&raw const SAMPLES).cast_mut().cast::<c_void>();
    // A miss wants an answer soon: the next sample needs the table.
    let missed = matches!(
        s.header.stop,
        STOP_PAGE_ABSENT | STOP_NO_PROCESS | STOP_NO_MAPPING | STOP_TORN
    );
    // SAFETY: `ring` is a map; the data are `bytes` initialised bytes of the
    // scratch, which is larger than MAX.
    unsafe {
        let waiting = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA);
        let wake = missed || waiting >= WAKEUP_BYTES;
        let flags = if wake {
            BPF_RB_FORCE_WAKEUP
        } else {
            BPF_RB_NO_WAKEUP
        };
        let record = (&raw mut *s).cast::<c_void>();
        if bpf_ringbuf_output(ring, record, bytes, flags) != 0 {
            count(COUNT_RING_DROPS);
        } else if missed && waiting < bpf_ringbuf_query(ring, BPF_RB_RING_SIZE) / 2 {
            // Stack pages are a luxury: they never take the room of samples.
            send_stack(s, ring);
        }
    }
}

/// Sends the pages of the user stack from the stack pointer upwards.
#[inline(always)]
fn send_stack(s: &Scratch, ring: *mut c_void) {
    let first = s.header.rsp & !(STACK_PAGE as u64 - 1);
    for i in 0..MAX_STACK_PAGES as u64 {
        // SAFETY: a reservation of this size is given back below on every way.
        let page = unsafe { bpf_ringbuf_reserve(ring, size_of::<StackPage>() as u64, 0) };
        if page.is_null() {
            return;
        }
        let page = page.cast::<StackPage>();
        let address = first + i * STACK_PAGE as u64;
        // SAFETY: `page` is a reservation of the size of a StackPage.
        unsafe {
            (&raw mut (*page).kind).write_volatile(KIND_STACK_PAGE);
            (&raw mut (*page).cpu).write_volatile(s.header.cpu);
            (&raw mut (*page).time_ns).write_volatile(s.header.time_ns);
            (&raw mut (*page).address).write_volatile(address);
            let data = (&raw mut (*page).data).cast::<c_void>();
            if bpf_probe_read_user(data, STACK_PAGE as u32, address as *const c_void) != 0 {
                bpf_ringbuf_discard(page.cast(), BPF_RB_NO_WAKEUP);
                return;
            }
            bpf_ringbuf_submit(page.cast(), BPF_RB_NO_WAKEUP);
        }
    }
}
