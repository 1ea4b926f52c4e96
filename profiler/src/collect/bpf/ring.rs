//! Reading a BPF ring buffer (linux/kernel/bpf/ringbuf.c).
//!
//! Mapped memory: a page with the consumer's position, a page with the
//! producers', and the data twice in a row, so that a record that wraps around
//! is in one piece. Positions only grow; a record begins with the length and two
//! flags, 8 bytes in all.

use super::mapping::Mapping;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

/// The record is still being written.
const BUSY: u32 = 1 << 31;
/// The record was given up by its writer.
const DISCARDED: u32 = 1 << 30;
const HEADER: u64 = 8;

/// What one look at a ring brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// As much as the ring can hold was read: look again before waiting.
    pub more: bool,
    /// What follows made no sense and was skipped; never seen from a kernel.
    pub damaged: bool,
}

/// The reading end of a ring buffer map; there must be no other.
pub struct Ring {
    fd: OwnedFd,
    consumer: Mapping,
    /// The producers' page, and behind it the data, twice.
    producer: Mapping,
    page: usize,
    size: u64,
}

impl Ring {
    /// Maps the ring `fd` of `size` bytes, a power of two.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn map(fd: BorrowedFd<'_>, size: u32) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let data = size as usize;
        if !data.is_power_of_two() || data < page {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self {
            consumer: Mapping::new(fd, 0, page, true)?,
            producer: Mapping::new(fd, page, page + 2 * data, false)?,
            fd: fd.try_clone_to_owned()?,
            page,
            size: u64::from(size),
        })
    }

    /// The descriptor, to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Gives every record that is there to `sink`, up to what the ring can hold,
    /// so that one look ends even when writers are faster.
    pub fn drain(&mut self, mut sink: impl FnMut(&[u8])) -> Drained {
        let begin = self.consumer_position().load(Ordering::Relaxed);
        let mut at = begin;
        loop {
            let end = self.producer_position().load(Ordering::Acquire);
            let available = end.wrapping_sub(at);
            if available == 0 || at.wrapping_sub(begin) >= self.size {
                let more = available != 0;
                return Drained {
                    more,
                    damaged: false,
                };
            }
            let header = self.header(at).load(Ordering::Acquire);
            if header & BUSY != 0 {
                return Drained::default();
            }
            let len = u64::from(header & !(BUSY | DISCARDED));
            let whole = (len + HEADER).next_multiple_of(8);
            if whole > available || available > self.size {
                self.consume_to(end);
                return Drained {
                    more: false,
                    damaged: true,
                };
            }
            if header & DISCARDED == 0 {
                sink(self.data(at, len));
            }
            at = at.wrapping_add(whole);
            self.consume_to(at);
        }
    }

    /// Frees everything before `at`. Sequentially consistent: a writer wakes the
    /// reader only if the reader had caught up with it. If this store could move
    /// behind the next look at the writer's progress, both sides could miss each
    /// other, and the reader would sleep on a full ring.
    fn consume_to(&self, at: u64) {
        self.consumer_position().store(at, Ordering::SeqCst);
    }

    fn consumer_position(&self) -> &AtomicU64 {
        // SAFETY: the first word of a mapped, writable page; the kernel only
        // reads it, whole.
        unsafe { AtomicU64::from_ptr(self.consumer.base().cast()) }
    }

    fn producer_position(&self) -> &AtomicU64 {
        // SAFETY: the first word of a mapped page, which is only loaded from; the
        // kernel writes it whole.
        unsafe { AtomicU64::from_ptr(self.producer.base().cast()) }
    }

    /// The first word of the record at a position.
    fn header(&self, at: u64) -> &AtomicU32 {
        // SAFETY: records begin at multiples of 8 (`whole` is one), so this is
        // aligned, and in the data by the mask in `place`. Only loaded from.
        unsafe { AtomicU32::from_ptr(self.place(at).cast()) }
    }

    fn data(&self, at: u64, len: u64) -> &[u8] {
        // SAFETY: the caller has checked that header and data are at most `size`
        // bytes, which the second copy has room for. The writer is done, and
        // nobody writes there before the position is freed.
        unsafe { std::slice::from_raw_parts(self.place(at).add(HEADER as usize), len as usize) }
    }

    fn place(&self, at: u64) -> *mut u8 {
        let offset = (at & (self.size - 1) & !(HEADER - 1)) as usize;
        // SAFETY: less than `size` bytes behind the producers' page.
        unsafe { self.producer.base().add(self.page + offset) }
    }
}
