//! What the ring buffers have in common: when their reader is woken, and the stack pages with
//! which user space finishes a walk.

use aiprof_common::*;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task_btf, bpf_probe_read_user, bpf_ringbuf_discard, bpf_ringbuf_query,
    bpf_ringbuf_reserve, bpf_ringbuf_submit,
};
use core::ffi::c_void;

use crate::{
    maps::RingBufDef,
    setting,
    unwind::{MAX_RETURN_INSTANCES, hidden_return, pending_return, read_kernel},
};

/// Flags of the ring buffer helpers (linux/bpf.h).
pub const NO_WAKEUP: u64 = 1;
/// As [`NO_WAKEUP`].
pub const FORCE_WAKEUP: u64 = 2;
const AVAIL_DATA: u64 = 0;
const RING_SIZE: u64 = 1;
/// Bytes in a ring buffer from which on the reader is woken. It also looks by itself several
/// times a second, so most records need no wake-up.
pub const WAKEUP_BYTES: u64 = 64 * 1024;

/// Mask of an address that leaves its word's offset in the page.
const WORD_IN_PAGE: u64 = STACK_PAGE as u64 - 8;

/// A ring buffer map.
#[derive(Clone, Copy)]
pub struct Ring(*mut c_void);

impl Ring {
    /// The ring buffer of a definition.
    #[inline(always)]
    pub fn of(map: &'static RingBufDef) -> Self {
        Self((&raw const *map).cast_mut().cast())
    }

    /// The map, for the helpers.
    #[inline(always)]
    pub fn map(self) -> *mut c_void {
        self.0
    }

    /// Bytes that wait for the reader.
    #[inline(always)]
    pub fn waiting(self) -> u64 {
        // SAFETY: a ring buffer map.
        unsafe { bpf_ringbuf_query(self.0, AVAIL_DATA) }
    }

    /// Whether more than `1 / 2^shift` of the ring is free.
    #[inline(always)]
    pub fn has_free(self, shift: u32) -> bool {
        // SAFETY: a ring buffer map.
        let size = unsafe { bpf_ringbuf_query(self.0, RING_SIZE) };
        self.waiting() < size - (size >> shift)
    }

    /// Room for a `T`; null if there is none.
    #[inline(always)]
    pub fn reserve<T>(self) -> *mut T {
        // SAFETY: a ring buffer map; the caller submits or discards the record.
        unsafe { bpf_ringbuf_reserve(self.0, size_of::<T>() as u64, 0).cast() }
    }
}

/// Sends the pages of the user stack from the stack pointer upwards, for the record that begins
/// with `header`. On a signal's own stack those of the stack that the signal interrupted come
/// after it. `false`: there is no room for all of them.
#[inline(always)]
pub fn send_stack(header: &SampleHeader, ring: Ring) -> bool {
    // SAFETY: always valid in a tracing program.
    let task = unsafe { bpf_get_current_task_btf() } as u64;
    let start = read_kernel(task, setting!(task_sas_ss_sp));
    let size = read_kernel(task, setting!(task_sas_ss_size));
    let mut below = Interrupted {
        start,
        size,
        rsp: 0,
    };
    if header.rsp.wrapping_sub(start) >= size {
        below.size = 0;
    }
    if !send_pages(header, header.rsp, ring, &mut below) {
        return false;
    }
    let rsp = below.rsp;
    below.size = 0;
    rsp == 0 || send_pages(header, rsp, ring, &mut below)
}

/// A signal's own stack (sigaltstack(2)), and the stack pointer that the signal interrupted.
#[repr(C)]
struct Interrupted {
    /// Where the signal's stack begins.
    start: u64,
    /// Its bytes; 0: nothing is looked for.
    size: u64,
    /// The stack pointer before the signal; 0: not found.
    rsp: u64,
}

/// Sends pages from the one that holds `rsp`, and looks in them for what a signal interrupted.
///
/// Not inlined: the verifier explores its loop once for each call.
#[inline(never)]
fn send_pages(header: &SampleHeader, rsp: u64, ring: Ring, below: &mut Interrupted) -> bool {
    let first = rsp & !(STACK_PAGE as u64 - 1);
    let mut pending = pending_return();
    for i in 0..MAX_STACK_PAGES as u64 {
        let page: *mut StackPage = ring.reserve();
        if page.is_null() {
            return false;
        }
        let address = first + i * STACK_PAGE as u64;
        // SAFETY: `page` is a reservation of the size of a StackPage, which every path submits
        // or discards.
        unsafe {
            (&raw mut (*page).kind).write_volatile(KIND_STACK_PAGE);
            (&raw mut (*page).cpu).write_volatile(header.cpu);
            (&raw mut (*page).time_ns).write_volatile(header.time_ns);
            (&raw mut (*page).address).write_volatile(address);
            let data = (&raw mut (*page).data).cast::<c_void>();
            if bpf_probe_read_user(data, STACK_PAGE as u32, address as *const c_void) != 0 {
                bpf_ringbuf_discard(page.cast(), NO_WAKEUP);
                // The end of the stack. The first page is an exception: a call may just have
                // moved the stack pointer to a page that does not exist yet.
                if i > 0 {
                    break;
                }
                continue;
            }
            if pending != 0 {
                pending = show_returns(page, address, pending);
            }
            if below.size != 0 && below.rsp == 0 {
                below.rsp = interrupted(page, below.start, below.size);
            }
            bpf_ringbuf_submit(page.cast(), NO_WAKEUP);
        }
    }
    true
}

/// Words from `ss_sp` in a signal's `ucontext` to the stack pointer in it: `ss_sp`, `ss_flags`,
/// `ss_size`, 15 registers (asm/sigcontext.h).
const TO_RSP: u64 = 18;

/// The stack pointer that a signal interrupted, from a page of its own stack, which begins at
/// `start` and has `size` bytes; 0 if the page has none. The kernel writes both into the
/// `ucontext` that it puts there. One with a stack pointer on the same stack is of a signal that
/// interrupted a handler.
///
/// It is a function of its own to the verifier, as [`show_returns`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn interrupted(page: *mut StackPage, start: u64, size: u64) -> u64 {
    if page.is_null() {
        return 0;
    }
    // SAFETY: a field of a whole page.
    let address = unsafe { (&raw const (*page).address).read_volatile() };
    for i in 0..STACK_PAGE / 8 - 2 {
        // SAFETY: words within the page's data.
        let (first, third) = unsafe {
            let words = (&raw const (*page).data).cast::<u64>();
            (
                words.add(i).read_volatile(),
                words.add(i + 2).read_volatile(),
            )
        };
        if first != start || third != size {
            continue;
        }
        let from = address + (i as u64 + TO_RSP) * 8;
        let mut rsp = 0_u64;
        // SAFETY: the destination is 8 bytes on the stack; a bad source is an error.
        unsafe { bpf_probe_read_user((&raw mut rsp).cast(), 8, from as *const c_void) };
        if rsp.wrapping_sub(start) >= size {
            return rsp;
        }
    }
    0
}

/// Puts return addresses that return probes hide into a stack page that begins at `address`,
/// because user space cannot know them. `pending` is the innermost probe that may be in the
/// page. Returns the first one that is above it.
///
/// Probes of frames that were left by longjmp(3) stay pending until the next return. So only a
/// trampoline's address, which begins a page, is replaced.
///
/// It is a function of its own to the verifier, which would otherwise follow its loop on every
/// path that leads here.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn show_returns(page: *mut StackPage, address: u64, pending: u64) -> u64 {
    let mut pending = pending;
    for _ in 0..MAX_RETURN_INSTANCES {
        if pending == 0 || page.is_null() {
            return 0;
        }
        let (slot, hidden, next) = hidden_return(pending);
        let into = slot.wrapping_sub(address);
        if slot >= address && into >= STACK_PAGE as u64 {
            return pending;
        }
        if slot >= address {
            // SAFETY: a word within the page's data, by the mask.
            unsafe {
                let data = (&raw mut (*page).data).cast::<u8>();
                let word = data.add((into & WORD_IN_PAGE) as usize).cast::<u64>();
                let there = word.read_volatile();
                if there != 0 && there & (STACK_PAGE as u64 - 1) == 0 {
                    word.write_volatile(hidden);
                }
            }
        }
        pending = next;
    }
    0
}

/// Whether the walk ended because a table was missing, so that user space can finish it.
#[inline(always)]
pub fn is_unfinished(stop: u8) -> bool {
    matches!(
        stop,
        STOP_PAGE_ABSENT | STOP_NO_PROCESS | STOP_NO_MAPPING | STOP_TORN
    )
}
