//! Records on their way to aiprof.

use crate::ffi;
use crate::timing::{
    MAX_TIMING_BATCH, MAX_TIMING_NAME, TIMING_CALL, TIMING_CLOCK, TIMING_DOMAIN, TIMING_LOST,
    TIMING_MAGIC, TIMING_MARKS, TIMING_MARKS_LOST, TIMING_NAME, TIMING_OWN_THREAD, TIMING_REFUSED,
    TIMING_UNTIMED, TIMING_VERSION, TIMING_WORK, TimingBatch, TimingCall, TimingClock,
    TimingDomain, TimingLost, TimingMarks, TimingMarksLost, TimingName, TimingOwnThread,
    TimingRecord, TimingRefused, TimingUntimed, TimingWork,
};
use std::arch::asm;
use std::collections::{HashSet, VecDeque};

/// Most bytes that wait for somebody to look: what comes before the probe is there.
const MAX_WAITING: usize = 32 << 20;
/// Most names that are remembered; beyond this, all are forgotten and sent again.
const MAX_NAMES: usize = 1 << 16;
/// The breakpoint that a probe puts into the code: `int3`.
const PROBED: u8 = 0xcc;
/// Bytes of the function that may have one: its `nop`s.
const LANDING: usize = 8;

/// Takes a batch. It does nothing: aiprof probes it, and reads the bytes.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn aiprof_timing_batch(batch: *const u8, bytes: usize) {
    // SAFETY: no instructions but some that do nothing, for the probe.
    unsafe {
        asm!("nop", "nop", "nop", "nop", "nop", "nop", "nop", "nop",
            in("rdi") batch, in("rsi") bytes, options(nostack));
    }
}

/// Whether somebody probes [`aiprof_timing_batch`].
pub(crate) fn is_probed() -> bool {
    let code = (aiprof_timing_batch as *const ()).cast::<u8>();
    (0..LANDING).any(|at| {
        // SAFETY: code of this library, which is longer; another byte may be written
        // there at any time.
        unsafe { code.add(at).read_volatile() == PROBED }
    })
}

/// Collects records and hands them over.
pub(crate) struct Batch {
    recorder: u32,
    /// Words, for records are read as such: the header and what follows it.
    words: Vec<u64>,
    names: HashSet<u64>,
    /// Full batches that aiprof has not read yet.
    waiting: VecDeque<Vec<u64>>,
    waiting_bytes: usize,
    lost: u64,
}

/// The words of a value of integers.
///
/// # Safety
/// `T` is integers without gaps, and its size a multiple of 8.
unsafe fn words<T>(value: &T) -> Vec<u64> {
    let from = std::ptr::from_ref(value).cast::<u64>();
    let word = |at| {
        // SAFETY: within the value, by its size; unaligned reads need no alignment.
        unsafe { from.add(at).read_unaligned() }
    };
    (0..size_of::<T>() / 8).map(word).collect()
}

/// A record that is nothing but integers.
///
/// # Safety
/// It is `repr(C)`, has no gaps, begins with a [`TimingRecord`], and its size is a
/// multiple of 8.
pub(crate) unsafe trait PlainRecord: Sized {
    /// Its kind.
    const KIND: u32;
}

// SAFETY: as the trait wants it (timing.rs asserts the sizes).
unsafe impl PlainRecord for TimingLost {
    const KIND: u32 = TIMING_LOST;
}
// SAFETY: as the trait wants it.
unsafe impl PlainRecord for TimingName {
    const KIND: u32 = TIMING_NAME;
}

// SAFETY: as the trait wants it.
unsafe impl PlainRecord for TimingUntimed {
    const KIND: u32 = TIMING_UNTIMED;
}

// SAFETY: as the trait wants it.
unsafe impl PlainRecord for TimingRefused {
    const KIND: u32 = TIMING_REFUSED;
}
// SAFETY: as the trait wants it.
unsafe impl PlainRecord for TimingCall {
    const KIND: u32 = TIMING_CALL;
}
// SAFETY: as the trait wants it.
unsafe impl PlainRecord for TimingWork {
    const KIND: u32 = TIMING_WORK;
}
// SAFETY: as the trait wants it.
unsafe impl PlainRecord for TimingClock {
    const KIND: u32 = TIMING_CLOCK;
}
// SAFETY: as the trait wants it.
unsafe impl PlainRecord for TimingOwnThread {
    const KIND: u32 = TIMING_OWN_THREAD;
}

// SAFETY: as the trait wants it.
unsafe impl PlainRecord for TimingDomain {
    const KIND: u32 = TIMING_DOMAIN;
}
// SAFETY: as the trait wants it.
unsafe impl PlainRecord for TimingMarks {
    const KIND: u32 = TIMING_MARKS;
}
// SAFETY: as the trait wants it.
unsafe impl PlainRecord for TimingMarksLost {
    const KIND: u32 = TIMING_MARKS_LOST;
}

/// The begin of a batch.
pub(crate) fn begin(recorder: u32) -> Vec<u64> {
    let header = TimingBatch {
        magic: TIMING_MAGIC,
        version: TIMING_VERSION,
        recorder,
        pid: ffi::pid(),
    };
    // SAFETY: four integers of 4 bytes.
    unsafe { words(&header) }
}

/// The words of a record.
pub(crate) fn record_words<T: PlainRecord>(record: &T) -> Vec<u64> {
    // SAFETY: the trait's promise.
    unsafe { words(record) }
}

/// The words of a name's record.
pub(crate) fn name_words(number: u64, text: &[u8]) -> Vec<u64> {
    let text = text.get(..MAX_TIMING_NAME).unwrap_or(text);
    let (len, padded) = (text.len(), text.len().next_multiple_of(8));
    let mut record = head::<TimingName>();
    record.bytes += u32::try_from(padded).unwrap_or(0);
    let mut all = record_words(&TimingName {
        record,
        name: number,
        len: u32::try_from(len).unwrap_or(0),
        pad: 0,
    });
    all.extend(text.chunks(8).map(|chunk| {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(chunk) {
            *to = *from;
        }
        u64::from_ne_bytes(bytes)
    }));
    all
}

/// The begin of a record.
pub(crate) fn head<T: PlainRecord>() -> TimingRecord {
    TimingRecord {
        kind: T::KIND,
        bytes: u32::try_from(size_of::<T>()).unwrap_or(0),
    }
}

impl Batch {
    /// An empty batch of a recorder.
    pub(crate) fn new(recorder: u32) -> Self {
        Self {
            recorder,
            words: Vec::new(),
            names: HashSet::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            lost: 0,
        }
    }

    /// Adds a record.
    pub(crate) fn push<T: PlainRecord>(&mut self, record: &T) {
        self.append(&record_words(record));
    }

    /// Sends a name, unless it was sent before.
    pub(crate) fn name(&mut self, number: u64, text: &[u8]) {
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        if !self.names.insert(number) {
            return;
        }
        let all = name_words(number, text);
        self.append(&all);
    }

    /// Counts records that there was no room for.
    pub(crate) fn lost(&mut self, count: u64) {
        self.lost += count;
    }

    fn append(&mut self, record: &[u64]) {
        if (self.words.len() + record.len()) * 8 > MAX_TIMING_BATCH {
            self.seal();
        }
        if self.words.is_empty() {
            self.words = begin(self.recorder);
        }
        self.words.extend_from_slice(record);
    }

    /// Ends a batch: it waits to be handed over.
    fn seal(&mut self) {
        let full = std::mem::take(&mut self.words);
        if full.is_empty() {
            return;
        }
        self.waiting_bytes += full.len() * 8;
        self.waiting.push_back(full);
        while self.waiting_bytes > MAX_WAITING {
            let Some(oldest) = self.waiting.pop_front() else {
                break;
            };
            self.waiting_bytes -= oldest.len() * 8;
            // Names may have gone with it.
            self.names.clear();
            self.lost += 1;
        }
    }

    /// Hands over what there is, if somebody looks. `true`: nothing waits any more.
    pub(crate) fn hand_over(&mut self) -> bool {
        if self.lost > 0 {
            let count = std::mem::take(&mut self.lost);
            self.push(&TimingLost {
                record: head::<TimingLost>(),
                count,
            });
        }
        self.seal();
        if !is_probed() {
            return self.waiting.is_empty();
        }
        while let Some(batch) = self.waiting.pop_front() {
            self.waiting_bytes -= batch.len() * 8;
            aiprof_timing_batch(batch.as_ptr().cast(), batch.len() * 8);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_looks_at_waits_and_is_bounded() {
        let mut batch = Batch::new(1);
        batch.name(7, b"a_kernel");
        batch.name(7, b"a_kernel");
        batch.hand_over();
        // Not probed: it waits. A header of 16 bytes, a name of 24 and its 8.
        assert_eq!(batch.waiting_bytes, 48);
        let first = batch.waiting.front().unwrap();
        assert_eq!(first[0] as u32, TIMING_MAGIC);
        assert_eq!(first[2] as u32, TIMING_NAME);
        assert_eq!((first[2] >> 32) as usize, 32);
        assert_eq!(first[5].to_ne_bytes(), *b"a_kernel");
        for number in 0..40_000 {
            batch.name(number, &[b'x'; 1000]);
        }
        batch.hand_over();
        assert!(batch.waiting_bytes <= MAX_WAITING + MAX_TIMING_BATCH);
        assert!(
            batch
                .waiting
                .iter()
                .all(|one| one.len() * 8 <= MAX_TIMING_BATCH)
        );
    }
}
