//! Forwarding of tracepoints: fences and schedulers of device drivers.
//!
//! User space finds the fields and their offsets in the kernel's description of the tracepoint,
//! so one program serves all tracepoints.

use aiprof_common::*;
use aya_ebpf::{
    EbpfContext,
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_smp_processor_id,
        generated::{
            bpf_get_attach_cookie, bpf_ktime_get_ns, bpf_probe_read_kernel,
            bpf_probe_read_kernel_str, bpf_ringbuf_submit,
        },
    },
    macros::tracepoint,
    programs::TracePointContext,
};
use core::{arch::asm, ffi::c_void};

use crate::{
    calls::wakeup,
    maps::{CALLS, COUNTS, TRACES},
    paused::is_paused,
    ring::Ring,
};

/// At a tracepoint. The cookie is its number.
#[tracepoint]
pub fn trace(ctx: TracePointContext) -> u32 {
    if is_paused() {
        return 0;
    }
    // SAFETY: a helper without preconditions.
    let point = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u32;
    let Some(spec) = TRACES.get_ptr(point) else {
        return 0;
    };
    let ring = Ring::of(&CALLS);
    let record: *mut TraceRecord = ring.reserve();
    if record.is_null() {
        count_lost();
        return 0;
    }
    let base = ctx.as_ptr() as u64;
    // SAFETY: a reservation of the size of a TraceRecord, every field of which is
    // written; helpers without preconditions; a checked map value.
    unsafe {
        let ids = bpf_get_current_pid_tgid();
        let now = bpf_ktime_get_ns();
        (&raw mut (*record).kind).write_volatile(KIND_TRACE);
        (&raw mut (*record).cpu).write_volatile(bpf_get_smp_processor_id() as u32);
        (&raw mut (*record).time_ns).write_volatile(now);
        (&raw mut (*record).tgid).write_volatile((ids >> 32) as u32);
        (&raw mut (*record).tid).write_volatile(ids as u32);
        (&raw mut (*record).point).write_volatile(point);
        (&raw mut (*record).pad).write_volatile(0);
        for slot in 0..TRACE_VALUES {
            let value = number(base, (*spec).values[slot]);
            let to = (&raw mut (*record).values).cast::<u64>().add(slot);
            to.write_volatile(value);
        }
        for slot in 0..TRACE_TEXTS {
            let to = (&raw mut (*record).texts)
                .cast::<[u8; TRACE_TEXT_BYTES]>()
                .add(slot);
            text(base, (*spec).texts[slot], to);
        }
        bpf_ringbuf_submit(record.cast(), wakeup(ring, now));
    }
    0
}

/// Counts a record that there was no room for.
#[inline(always)]
fn count_lost() {
    if let Some(counter) = COUNTS.get_ptr_mut(COUNT_TRACE_DROPS) {
        // SAFETY: a checked map value, aligned.
        unsafe { crate::atomic::add(counter, 1) };
    }
}

/// The offset of a field, below 4096.
#[inline(always)]
fn offset(field: TraceField) -> u64 {
    u64::from(field.offset) & 0xfff
}

/// A number in the tracepoint's record, which is in the kernel's memory at `base`.
#[inline(always)]
fn number(base: u64, field: TraceField) -> u64 {
    let mut value = [0u64; 2];
    let mut size = u64::from(field.size);
    // SAFETY: at most 15 bytes are written to 16 bytes on the stack; a bad source is an error.
    // The mask is in assembly, so that the verifier sees it.
    unsafe {
        asm!("{0} &= 15", inout(reg) size, options(pure, nomem, nostack));
        if size == 0 {
            return 0;
        }
        let from = base.wrapping_add(offset(field));
        bpf_probe_read_kernel((&raw mut value).cast(), size as u32, from as *const c_void);
    }
    value[0]
}

/// Copies a text from the tracepoint's record, which is at `base`.
///
/// # Safety
/// `to` must be valid for writes.
#[inline(always)]
unsafe fn text(base: u64, field: TraceField, to: *mut [u8; TRACE_TEXT_BYTES]) {
    // SAFETY: the caller's promise; a bad source is an error. Word by word, because the
    // compiler would otherwise call memset.
    unsafe {
        for word in 0..TRACE_TEXT_BYTES / 8 {
            to.cast::<u64>().add(word).write_volatile(0);
        }
        if field.size == 0 {
            return;
        }
        let mut from = base.wrapping_add(offset(field));
        if field.data_loc != 0 {
            let mut place = 0u32;
            bpf_probe_read_kernel((&raw mut place).cast(), 4, from as *const c_void);
            from = base.wrapping_add(u64::from(place) & 0xffff);
        }
        bpf_probe_read_kernel_str(to.cast(), TRACE_TEXT_BYTES as u32, from as *const c_void);
    }
}
