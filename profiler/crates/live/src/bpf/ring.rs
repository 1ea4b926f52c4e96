//! Reading a BPF ring buffer (linux/kernel/bpf/ringbuf.c).
//!
//! Mapped memory: a page with the consumer's position, a page with the producers' position,
//! and the data. The data are mapped twice in a row, so that a record that wraps around is
//! in one piece. Positions only grow. A record begins with its length and two flags, 8
//! bytes in all.

use super::mapping::SharedMapping;
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
pub struct RingReader {
    fd: OwnedFd,
    consumer: SharedMapping,
    /// The producers' page, and behind it the data, twice.
    producer: SharedMapping,
    page: usize,
    size: u64,
    /// The record that is being read.
    record: Vec<u8>,
}

impl RingReader {
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
            consumer: SharedMapping::new(fd, 0, page, true)?,
            producer: SharedMapping::new(fd, page, page + 2 * data, false)?,
            fd: fd.try_clone_to_owned()?,
            page,
            size: u64::from(size),
            record: Vec::new(),
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
            let is_whole = whole <= available && available <= self.size;
            if !is_whole || !self.copy(at, len) {
                self.consume_to(end);
                return Drained {
                    more: false,
                    damaged: true,
                };
            }
            if header & DISCARDED == 0 {
                sink(&self.record);
            }
            at = at.wrapping_add(whole);
            self.consume_to(at);
        }
    }

    /// Whether more than half of it waits to be read.
    pub(crate) fn is_half_full(&self) -> bool {
        let begin = self.consumer_position().load(Ordering::Relaxed);
        let end = self.producer_position().load(Ordering::Relaxed);
        end.wrapping_sub(begin) > self.size / 2
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

    /// Copies the content of the record at a position. False: it is longer than a
    /// record can be.
    ///
    /// It is copied rather than lent, because whoever may open the map, though that
    /// takes as many rights as we have, can move our position and let writers in.
    fn copy(&mut self, at: u64, len: u64) -> bool {
        let fits = len.checked_add(HEADER).is_some_and(|all| all <= self.size);
        let Ok(len) = usize::try_from(len) else {
            return false;
        };
        self.record.clear();
        if !fits || self.record.try_reserve(len).is_err() {
            return false;
        }
        // SAFETY: `place` is less than `size` bytes behind the producers' page. Header and
        // content are at most `size` bytes by the check above, so that they end in the
        // second copy of the data at the latest. `record` has room for `len` bytes, and its
        // length is set after they are written.
        unsafe {
            let from = self.place(at).add(HEADER as usize);
            std::ptr::copy_nonoverlapping(from, self.record.as_mut_ptr(), len);
            self.record.set_len(len);
        }
        true
    }

    /// Where the record at a position begins.
    fn place(&self, at: u64) -> *mut u8 {
        let offset = (at & (self.size - 1) & !(HEADER - 1)) as usize;
        // SAFETY: less than `size` bytes behind the producers' page, by the mask; the
        // mapping has twice as many there.
        unsafe { self.producer.base().add(self.page + offset) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, os::unix::fs::FileExt};

    const SIZE: u64 = 4096;

    /// The memory of a ring, as the kernel lays it out, in a file; the data is
    /// written twice, where the kernel has the same pages twice.
    struct Fake {
        file: File,
        at: u64,
    }

    impl Fake {
        fn new() -> (Self, RingReader) {
            let file = super::super::perf::memory_file(c"ring", &[]).unwrap();
            let page = rustix::param::page_size() as u64;
            file.set_len(2 * page + 2 * SIZE).unwrap();
            let ring = RingReader::map(file.as_fd(), SIZE as u32).unwrap();
            (Self { file, at: 0 }, ring)
        }

        fn put(&self, position: u64, bytes: &[u8]) {
            let data = 2 * rustix::param::page_size() as u64;
            for (i, byte) in bytes.iter().enumerate() {
                let offset = (position + i as u64) % SIZE;
                for copy in [0, SIZE] {
                    let at = data + copy + offset;
                    self.file.write_all_at(&[*byte], at).unwrap();
                }
            }
        }

        /// Reserves and writes a record with these flags; gives its position.
        fn write(&mut self, content: &[u8], flags: u32) -> u64 {
            let at = self.at;
            self.put(at, &(content.len() as u32 | flags).to_ne_bytes());
            self.put(at + 8, content);
            self.at += (content.len() as u64 + 8).next_multiple_of(8);
            self.publish(self.at);
            at
        }

        fn publish(&self, position: u64) {
            let page = rustix::param::page_size() as u64;
            self.file
                .write_all_at(&position.to_ne_bytes(), page)
                .unwrap();
        }

        fn consumed(&self) -> u64 {
            let mut word = [0; 8];
            self.file.read_exact_at(&mut word, 0).unwrap();
            u64::from_ne_bytes(word)
        }
    }

    fn drain(ring: &mut RingReader) -> (Vec<Vec<u8>>, Drained) {
        let mut records = Vec::new();
        let drained = ring.drain(|record| records.push(record.to_vec()));
        (records, drained)
    }

    #[test]
    fn records_come_once_and_whole_also_around_the_end() {
        let (mut fake, mut ring) = Fake::new();
        let mut seed = 1u64;
        for _ in 0..500 {
            let mut written = Vec::new();
            while fake.at - fake.consumed() < SIZE / 2 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let content = vec![(seed >> 40) as u8; (seed >> 33) as usize % 300];
                fake.write(&content, 0);
                written.push(content);
            }
            assert_eq!(drain(&mut ring), (written, Drained::default()));
            assert_eq!(fake.consumed(), fake.at);
        }
        assert!(fake.at > 100 * SIZE);
    }

    #[test]
    fn a_record_being_written_holds_up_those_behind_it() {
        let (mut fake, mut ring) = Fake::new();
        fake.write(b"first", 0);
        let busy = fake.write(b"second", BUSY);
        fake.write(b"third", 0);
        assert_eq!(drain(&mut ring).0, [b"first"]);
        assert_eq!(fake.consumed(), busy);
        fake.put(busy, &6u32.to_ne_bytes());
        assert_eq!(drain(&mut ring).0, [&b"second"[..], b"third"]);
        assert_eq!(drain(&mut ring).0, [b""; 0]);
    }

    #[test]
    fn it_is_half_full_until_it_is_read() {
        let (mut fake, mut ring) = Fake::new();
        fake.write(&[1; 2040], 0);
        assert!(!ring.is_half_full());
        fake.write(b"more", 0);
        assert!(ring.is_half_full());
        drain(&mut ring);
        assert!(!ring.is_half_full());
    }

    #[test]
    fn discarded_records_are_passed_over() {
        let (mut fake, mut ring) = Fake::new();
        fake.write(b"given up", DISCARDED);
        fake.write(b"kept", 0);
        assert_eq!(drain(&mut ring).0, [b"kept"]);
        assert_eq!(fake.consumed(), fake.at);
    }

    #[test]
    fn one_look_ends_though_writers_go_on() {
        let (mut fake, mut ring) = Fake::new();
        fake.write(&[1; 1016], 0);
        let mut seen = 0;
        let drained = ring.drain(|_| {
            seen += 1;
            fake.write(&[1; 1016], 0);
        });
        assert_eq!(seen, 4, "as much as the ring can hold");
        assert!(drained.more && !drained.damaged);
        let mut fresh = 0;
        assert!(!ring.drain(|_| fresh += 1).more);
        assert_eq!(fresh, 1);
    }

    #[test]
    fn nonsense_is_skipped_and_told() {
        for (len, position) in [(SIZE as u32 * 2, SIZE), (100, 8), (0, SIZE * 9)] {
            let (mut fake, mut ring) = Fake::new();
            fake.put(0, &len.to_ne_bytes());
            fake.publish(position);
            let (records, drained) = drain(&mut ring);
            assert!(records.is_empty() && drained.damaged, "{len} {position}");
            fake.at = position;
            fake.write(b"after", 0);
            assert_eq!(drain(&mut ring).0, [b"after"]);
        }
    }

    #[test]
    fn whatever_the_memory_says_nothing_is_read_beyond_it() {
        let mut seed = 7u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 20
        };
        for _ in 0..300 {
            let (fake, mut ring) = Fake::new();
            let content: Vec<u8> = (0..SIZE).map(|_| next() as u8).collect();
            fake.put(0, &content);
            // Positions that no kernel writes: odd, far apart, about to wrap.
            let at = if next() % 3 == 0 {
                u64::MAX - next() % 64
            } else {
                next() % (2 * SIZE)
            };
            fake.file.write_all_at(&at.to_ne_bytes(), 0).unwrap();
            fake.put(at & !7, &(next() as u32 & !BUSY).to_ne_bytes());
            let ahead = if next() % 3 == 0 {
                next()
            } else {
                next() % (SIZE + 8)
            };
            fake.publish(at.wrapping_add(ahead));
            let (records, _) = drain(&mut ring);
            assert!(records.iter().map(Vec::len).sum::<usize>() <= SIZE as usize);
        }
    }

    #[test]
    fn sizes_that_no_ring_has_are_refused() {
        let file = super::super::perf::memory_file(c"ring", &[]).unwrap();
        for size in [0, 5000, 1024] {
            assert!(RingReader::map(file.as_fd(), size).is_err(), "{size}");
        }
    }
}
