//! Texts, arrays and blobs of a call, in records after its own.
//!
//! A page fault can take as long as the program likes (a page of a file on a slow disk,
//! userfaultfd), and a reserved record holds up everything after it. So pages are faulted in
//! first, by copying one byte, and then read into the record without faults. In other users'
//! processes they are not faulted in at all: data that are not resident are counted.

use aiprof_common::*;
use aya_ebpf::helpers::{
    bpf_get_smp_processor_id,
    generated::{
        bpf_copy_from_user, bpf_loop, bpf_probe_read_user, bpf_probe_read_user_str,
        bpf_ringbuf_discard, bpf_ringbuf_submit,
    },
};
use core::{arch::asm, ffi::c_void};

use crate::{
    calls::{Call, wakeup},
    count,
    fetch::{LOWEST, Op, Sources},
    maps::CALLS,
    ring::{NO_WAKEUP, Ring},
};

/// Bytes of a page of memory.
const PAGE: u64 = 4096;

/// A record of a text of at most `BYTES` bytes, its NUL included.
#[repr(C)]
struct Text<const BYTES: usize> {
    header: DataHeader,
    bytes: [u8; BYTES],
}

/// Bytes of the record that is tried first: most names are shorter. A program that registers
/// 20,000 kernels at once (torch) thus fills the ring half as fast.
const SHORT_TEXT: usize = 384;
/// Results of [`put_text`]: the text was sent, or there was no room.
const SENT: u32 = 1;
/// The text is not resident.
const ABSENT: u32 = 0;
/// The text is longer than the record.
const LONGER: u32 = 2;

/// A record of an array.
#[repr(C)]
struct Array {
    header: DataHeader,
    bytes: [u8; ARRAY_BYTES],
}

/// A record of a blob.
#[repr(C)]
struct Piece {
    header: DataHeader,
    bytes: [u8; BLOB_BYTES],
}

/// Where data are, and what they belong to.
#[repr(C)]
struct Source {
    call: *const Call,
    /// Address; meaningless if not `known`.
    address: u64,
    /// Bytes; 0 for a text.
    total: u64,
    /// 1: the address is known.
    known: u16,
    /// 1: the program may wait for pages.
    waits: u16,
    /// [`DataHeader::tag`].
    tag: u32,
}

/// Context of the loop over a call's operations.
#[repr(C)]
struct Context {
    call: *const Call,
    sources: *const Sources,
}

/// Sends the data that a call's operations name.
#[inline(always)]
pub fn send_data<const SLEEP: bool>(call: &Call, sources: &Sources) {
    let mut context = Context { call, sources };
    // SAFETY: the callback has bpf_loop's signature; the context lives on the
    // caller's stack for the whole call.
    unsafe {
        bpf_loop(
            sources.len(),
            send_one::<SLEEP> as *mut c_void,
            (&raw mut context).cast(),
            0,
        );
    }
}

/// `bpf_loop` callback: sends the data of one operation, if it reads data.
extern "C" fn send_one<const SLEEP: bool>(index: u64, context: *mut Context) -> i64 {
    // SAFETY: the context is send_data's.
    let (call, sources) = unsafe { (&*(*context).call, &*(*context).sources) };
    let op = sources.op(index);
    match op.how() {
        FETCH_TEXT => send_text::<SLEEP>(&source(call, sources, op, false)),
        FETCH_BYTES => send_bytes::<SLEEP>(&source(call, sources, op, true)),
        FETCH_BLOB => send_blob::<SLEEP>(&source(call, sources, op, true)),
        _ => 0,
    };
    0
}

#[inline(always)]
fn source(call: &Call, sources: &Sources, op: Op, counted: bool) -> Source {
    let address = sources.address(op);
    Source {
        call,
        address: address.unwrap_or(0),
        known: address.is_some().into(),
        waits: sources.waits().into(),
        total: if counted { sources.bytes(op) } else { 0 },
        tag: op.to().into(),
    }
}

/// Faults in the page of an address in the data.
#[inline(always)]
fn touch<const SLEEP: bool>(source: &Source, address: u64) {
    if SLEEP && source.waits != 0 {
        let mut byte = 0u8;
        // SAFETY: the destination is one byte on the stack; a bad source is an error.
        unsafe { bpf_copy_from_user((&raw mut byte).cast(), 1, address as *const c_void) };
    }
}

/// Fills in a header.
///
/// # Safety
/// `header` must be valid for writes.
#[inline(always)]
unsafe fn fill(header: *mut DataHeader, source: &Source, offset: u64, read: Option<u64>) {
    // SAFETY: the caller's promise; the call is on the stack of the program. Volatile and one
    // by one, because the compiler would otherwise call memset.
    unsafe {
        let call = &*source.call;
        (&raw mut (*header).kind).write_volatile(KIND_CALL_DATA);
        (&raw mut (*header).cpu).write_volatile(bpf_get_smp_processor_id() as u32);
        (&raw mut (*header).time_ns).write_volatile(call.time_ns);
        (&raw mut (*header).tgid).write_volatile((call.ids >> 32) as u32);
        (&raw mut (*header).tid).write_volatile(call.ids as u32);
        (&raw mut (*header).probe).write_volatile(call.probe);
        (&raw mut (*header).tag).write_volatile(source.tag as u8);
        (&raw mut (*header).unread).write_volatile(read.is_none().into());
        (&raw mut (*header).len).write_volatile(read.unwrap_or(0) as u16);
        (&raw mut (*header).offset).write_volatile(offset);
        (&raw mut (*header).total).write_volatile(source.total);
    }
}

/// Limits a number to MAX so that the verifier sees the bound, even if the compiler knows it.
#[inline(always)]
fn at_most<const MAX: usize>(bytes: u64) -> u64 {
    const { assert!(MAX.is_power_of_two()) };
    let mut n = if bytes > MAX as u64 {
        MAX as u64
    } else {
        bytes
    };
    // SAFETY: arithmetic on one register.
    unsafe {
        asm!("{0} &= {mask}", inout(reg) n, mask = const 2 * MAX - 1,
            options(pure, nomem, nostack));
    }
    if n > MAX as u64 { MAX as u64 } else { n }
}

/// Counts a record for which there was no room.
#[inline(always)]
fn lost(source: &Source) -> u32 {
    // SAFETY: the call is on the stack of the program.
    let call = unsafe { &*source.call };
    count!(call.counts, data_lost);
    0
}

/// Counts data that were not in memory and were not waited for.
#[inline(always)]
fn absent<const SLEEP: bool>(source: &Source) {
    if SLEEP && source.waits == 0 && source.known != 0 && source.address >= LOWEST {
        // SAFETY: the call is on the stack of the program.
        let call = unsafe { &*source.call };
        count!(call.counts, absent);
    }
}

/// Sends a text.
#[inline(never)]
fn send_text<const SLEEP: bool>(source: &Source) -> u32 {
    touch::<SLEEP>(source, source.address);
    // The next page may be touched only if the text may reach it.
    let next = (source.address | (PAGE - 1)).wrapping_add(1);
    let crosses = next.wrapping_sub(source.address) < TEXT_BYTES as u64;
    let retry = SLEEP && source.waits != 0 && crosses;
    let mut sent = put_text::<SLEEP, SHORT_TEXT>(source, !retry);
    if sent == LONGER {
        sent = put_text::<SLEEP, TEXT_BYTES>(source, !retry);
    }
    if sent == ABSENT {
        touch::<SLEEP>(source, next);
        put_text::<SLEEP, TEXT_BYTES>(source, true);
    }
    0
}

/// Sends a text. Sends nothing if it is [`LONGER`] than the record, or if it is [`ABSENT`] and
/// `anyway` is not set. With `anyway`, an absent text is sent as unread.
#[inline(never)]
fn put_text<const SLEEP: bool, const BYTES: usize>(source: &Source, anyway: bool) -> u32 {
    let ring = Ring::of(&CALLS);
    let text: *mut Text<BYTES> = ring.reserve();
    if text.is_null() {
        lost(source);
        return SENT;
    }
    let mut len = -1;
    // SAFETY: a reservation of the size of a Text, which every path submits or discards; the
    // destination is in it, and the call on the stack of the program.
    unsafe {
        if source.known != 0 {
            let to = (&raw mut (*text).bytes).cast::<c_void>();
            len = bpf_probe_read_user_str(to, BYTES as u32, source.address as *const c_void);
        }
        if len < 0 && !anyway {
            bpf_ringbuf_discard(text.cast(), NO_WAKEUP);
            return ABSENT;
        }
        if BYTES < TEXT_BYTES && len >= BYTES as i64 {
            bpf_ringbuf_discard(text.cast(), NO_WAKEUP);
            return LONGER;
        }
        // The NUL does not count. Older kernels do not count it for an empty text.
        let read = (len >= 0).then(|| (len as u64).saturating_sub(1));
        if read.is_none() {
            absent::<SLEEP>(source);
        }
        fill(&raw mut (*text).header, source, 0, read);
        bpf_ringbuf_submit(text.cast(), wakeup(ring, (*source.call).time_ns));
    }
    SENT
}

/// Sends an array.
#[inline(never)]
fn send_bytes<const SLEEP: bool>(source: &Source) -> u32 {
    let ring = Ring::of(&CALLS);
    let len = at_most::<ARRAY_BYTES>(source.total);
    if len > 0 {
        touch::<SLEEP>(source, source.address);
        touch::<SLEEP>(source, source.address.wrapping_add(len - 1));
    }
    let array: *mut Array = ring.reserve();
    if array.is_null() {
        return lost(source);
    }
    // SAFETY: a reservation of the size of an Array; the destination is in it and
    // `len` at most its size; the call is on the stack of the program.
    unsafe {
        let to = (&raw mut (*array).bytes).cast::<c_void>();
        let from = source.address as *const c_void;
        let read = source.known != 0 && bpf_probe_read_user(to, len as u32, from) == 0;
        if !read {
            absent::<SLEEP>(source);
        }
        fill(&raw mut (*array).header, source, 0, read.then_some(len));
        bpf_ringbuf_submit(array.cast(), wakeup(ring, (*source.call).time_ns));
    }
    0
}

/// Sends a blob, piece by piece.
#[inline(always)]
fn send_blob<const SLEEP: bool>(source: &Source) -> u32 {
    let bytes = source.total.min(MAX_BLOB);
    // Even an empty blob has one piece, so that a record shows that it is empty.
    let pieces = bytes.div_ceil(BLOB_BYTES as u64).max(1);
    // SAFETY: the callback has bpf_loop's signature; the context lives on the
    // caller's stack for the whole call.
    unsafe {
        bpf_loop(
            pieces as u32,
            send_piece::<SLEEP> as *mut c_void,
            (&raw const *source).cast_mut().cast(),
            0,
        );
    }
    0
}

/// `bpf_loop` callback: sends one piece of a blob. Stops at a piece that cannot be read, or for
/// which there is no room.
extern "C" fn send_piece<const SLEEP: bool>(index: u64, source: *mut Source) -> i64 {
    // SAFETY: the context is send_blob's.
    let source = unsafe { &*source };
    let ring = Ring::of(&CALLS);
    let offset = index * BLOB_BYTES as u64;
    let address = source.address.wrapping_add(offset);
    let rest = source.total.min(MAX_BLOB).wrapping_sub(offset);
    let len = at_most::<BLOB_BYTES>(rest);
    if len > 0 {
        touch::<SLEEP>(source, address);
        touch::<SLEEP>(source, address.wrapping_add(len - 1));
    }
    let piece: *mut Piece = if ring.has_free(2) {
        ring.reserve()
    } else {
        core::ptr::null_mut()
    };
    if piece.is_null() {
        lost(source);
        return 1;
    }
    // SAFETY: a reservation of the size of a Piece; the destination is in it and
    // `len` at most its size; the call is on the stack of the program.
    unsafe {
        let to = (&raw mut (*piece).bytes).cast::<c_void>();
        let from = address as *const c_void;
        let read = source.known != 0 && bpf_probe_read_user(to, len as u32, from) == 0;
        if !read {
            absent::<SLEEP>(source);
        }
        fill(
            &raw mut (*piece).header,
            source,
            offset,
            read.then_some(len),
        );
        bpf_ringbuf_submit(piece.cast(), wakeup(ring, (*source.call).time_ns));
        i64::from(!read)
    }
}
