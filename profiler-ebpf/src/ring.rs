//! What the ring buffers have in common: when their reader is woken, and the stack pages with
//! which user space finishes a walk.

use aiprof_common::*;
use aya_ebpf::helpers::generated::{
    bpf_probe_read_user, bpf_ringbuf_discard, bpf_ringbuf_query, bpf_ringbuf_reserve,
    bpf_ringbuf_submit,
};
use core::ffi::c_void;

use crate::{
    maps::RingBufDef,
    unwind::{MAX_RETURN_INSTANCES, hidden_return, pending_return},
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
/// with `header`. `false`: there is no room for all of them.
#[inline(always)]
pub fn send_stack(header: &SampleHeader, ring: Ring) -> bool {
    let first = header.rsp & !(STACK_PAGE as u64 - 1);
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
            bpf_ringbuf_submit(page.cast(), NO_WAKEUP);
        }
    }
    true
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
