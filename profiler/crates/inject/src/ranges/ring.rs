//! Marks of each thread, in a ring that it alone writes.
//!
//! A mark is the words of [`Mark`](crate::timing::Mark) and of the fields that its flags
//! announce; the bytes of its text are behind it.

use super::drainer;
use crate::timing::{
    MARK_CATEGORY, MARK_GAP, MARK_ID, MARK_LONG_ID, MARK_THREAD_END, MARKS_LOST_REASONS,
    MARKS_LOST_THREADS, MAX_RANGE_TEXT,
};
use crate::{ffi, guarded};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

/// Words of a ring, a power of two: 512 KiB.
const WORDS: usize = 1 << 16;
/// Most rings: threads that mark ranges at a time.
const MOST_RINGS: usize = 128;
/// Words of a mark without its text, at most.
pub(super) const MOST_WORDS: usize = 7;

/// In a ring only: the name is the number of bytes of the text that follows.
pub(super) const HAS_TEXT: u8 = 1 << 5;
/// In a ring only: the name is the number of a registered text.
pub(super) const IS_REGISTERED: u8 = 1 << 6;

/// A mark as the program makes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewMark<'a> {
    /// `MARK_PUSH` and its like.
    pub(super) kind: u8,
    pub(super) domain: u16,
    pub(super) id: MarkId,
    /// `PAYLOAD_UNSIGNED` and its like, and the value.
    pub(super) payload: Option<(u8, u64)>,
    /// 0: none.
    pub(super) category: u32,
    pub(super) text: MarkText<'a>,
}

/// The number of a range that may end on any thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum MarkId {
    None,
    Short(u64),
    Long([u64; 3]),
}

/// The text of a mark.
#[derive(Clone, Copy, Debug)]
pub(super) enum MarkText<'a> {
    None,
    /// At most [`MAX_RANGE_TEXT`] bytes.
    Bytes(&'a [u8]),
    /// Number of a text that was registered before.
    Registered(u32),
}

/// All rings, and the thread that empties them.
#[derive(Debug, Default)]
pub(super) struct Rings {
    pub(super) list: Vec<Arc<MarkRing>>,
    drainer: Option<Thread>,
}

impl Rings {
    /// In a child: the rings are its parent's, and the child has no thread that empties them.
    pub(super) fn forget_parent(&mut self) {
        *self = Self::default();
        for lost in &LOST {
            lost.store(0, Ordering::Relaxed);
        }
    }
}

/// The marks of a thread.
#[derive(Debug)]
pub(super) struct MarkRing {
    words: Box<[AtomicU64]>,
    /// Words that were ever written; only its thread changes it.
    head: AtomicUsize,
    /// Words that were ever taken out; only the thread that empties it changes it.
    tail: AtomicUsize,
    /// Marks that found no room since the last one that did.
    dropped: AtomicU64,
    /// Its thread, as it sees itself.
    pub(super) tid: u32,
    /// Its thread has ended.
    pub(super) is_over: AtomicBool,
    /// The thread that empties it was woken for it.
    is_asked: AtomicBool,
    drainer: Option<Thread>,
}

static RINGS: Mutex<Rings> = Mutex::new(Rings {
    list: Vec::new(),
    drainer: None,
});
/// What was lost, by reason.
static LOST: [AtomicU64; MARKS_LOST_REASONS] = [const { AtomicU64::new(0) }; MARKS_LOST_REASONS];
/// The thread that empties the rings sleeps until somebody marks something.
pub(super) static IS_IDLE: AtomicBool = AtomicBool::new(false);

thread_local! {
    static OWN: OwnRing = const {
        OwnRing {
            ring: RefCell::new(None),
            forks: Cell::new(0),
            is_refused: Cell::new(false),
            missed: Cell::new(0),
        }
    };
}

/// The ring of the thread that asks.
struct OwnRing {
    ring: RefCell<Option<Arc<MarkRing>>>,
    /// [`ffi::forks`] when it was made.
    forks: Cell<u32>,
    /// There was no room for it.
    is_refused: Cell<bool>,
    /// Marks that a handler of a signal made in the middle of another mark.
    missed: Cell<u64>,
}

impl Drop for OwnRing {
    fn drop(&mut self) {
        if self.forks.get() == ffi::forks()
            && let Some(ring) = self.ring.take()
        {
            ring.end();
            ring.is_over.store(true, Ordering::Release);
        }
    }
}

/// The rings, for this thread alone.
pub(super) fn lock() -> MutexGuard<'static, Rings> {
    RINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether no thread works on the list of rings right now.
pub(super) fn is_free() -> bool {
    !matches!(RINGS.try_lock(), Err(std::sync::TryLockError::WouldBlock))
}

/// Counts what was lost.
pub(super) fn count_lost(reason: u32, count: u64) {
    if let Some(lost) = LOST.get(reason as usize) {
        lost.fetch_add(count, Ordering::Relaxed);
    }
}

/// What was lost since the last call, by reason.
pub(super) fn take_lost() -> [u64; MARKS_LOST_REASONS] {
    std::array::from_fn(|at| {
        let lost = LOST.get(at);
        lost.map_or(0, |lost| lost.swap(0, Ordering::Relaxed))
    })
}

/// Writes a mark down, or counts it.
pub(super) fn mark(new: &NewMark<'_>) {
    let mut has_ring = Ok(false);
    guarded(|| has_ring = OWN.try_with(|own| own.write(new)));
    if has_ring != Ok(true) {
        count_lost(MARKS_LOST_THREADS, 1);
    }
}

impl OwnRing {
    /// `false`: this thread has no ring.
    fn write(&self, new: &NewMark<'_>) -> bool {
        let Ok(mut ring) = self.ring.try_borrow_mut() else {
            self.missed.set(self.missed.get() + 1);
            return true;
        };
        let forks = ffi::forks();
        if self.forks.get() != forks {
            self.forks.set(forks);
            self.is_refused.set(false);
            *ring = None;
        }
        if ring.is_none() && !self.is_refused.get() {
            *ring = new_ring();
            self.is_refused.set(ring.is_none());
        }
        let Some(ring) = &*ring else {
            return false;
        };
        ring.dropped
            .fetch_add(self.missed.take(), Ordering::Relaxed);
        ring.write(new);
        true
    }
}

/// A ring for this thread; `None`: there are too many.
fn new_ring() -> Option<Arc<MarkRing>> {
    let mut rings = lock();
    if rings.drainer.is_none() {
        rings.drainer = drainer::spawn();
    }
    if rings.list.len() >= MOST_RINGS {
        return None;
    }
    let ring = Arc::new(MarkRing {
        words: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
        head: AtomicUsize::new(0),
        tail: AtomicUsize::new(0),
        dropped: AtomicU64::new(0),
        tid: ffi::tid(),
        is_over: AtomicBool::new(false),
        is_asked: AtomicBool::new(false),
        drainer: rings.drainer.clone(),
    });
    rings.list.push(Arc::clone(&ring));
    Some(ring)
}

/// The second word of a mark.
pub(super) fn second_word(kind: u8, flags: u8, domain: u16, name: u32) -> u64 {
    let ([d0, d1], [n0, n1, n2, n3]) = (domain.to_ne_bytes(), name.to_ne_bytes());
    u64::from_ne_bytes([kind, flags, d0, d1, n0, n1, n2, n3])
}

impl MarkRing {
    /// Adds a mark, or counts it as lost. After a gap, it first adds a mark of the gap.
    fn write(&self, new: &NewMark<'_>) {
        if !(self.tell_gap() && self.try_write(new)) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Its thread ends.
    fn end(&self) {
        if self.tell_gap() {
            // Without room for it, what is open ends with the process.
            self.try_write(&super::plain(MARK_THREAD_END, 0));
        }
    }

    /// Adds a mark with the number of marks that are missing here; `false`: there is no room.
    fn tell_gap(&self) -> bool {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped == 0 {
            return true;
        }
        let mut gap = super::plain(MARK_GAP, 0);
        gap.id = MarkId::Short(dropped);
        let is_told = self.try_write(&gap);
        if !is_told {
            self.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        is_told
    }

    /// Marks that found no room, and behind which nothing came.
    pub(super) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }

    /// Adds a mark; `false`: there is no room.
    fn try_write(&self, new: &NewMark<'_>) -> bool {
        let mut words = [0; MOST_WORDS];
        let (mut flags, mut used) = (0, 2);
        let mut add = |more: &[u64]| {
            for (to, from) in words.iter_mut().skip(used).zip(more) {
                *to = *from;
            }
            used += more.len();
        };
        match new.id {
            MarkId::None => {}
            MarkId::Short(id) => {
                flags |= MARK_ID;
                add(&[id]);
            }
            MarkId::Long(id) => {
                flags |= MARK_LONG_ID;
                add(&id);
            }
        }
        if let Some((kind, value)) = new.payload {
            flags |= kind;
            add(&[value]);
        }
        if new.category != 0 {
            flags |= MARK_CATEGORY;
            add(&[new.category.into()]);
        }
        let (name, text) = match new.text {
            MarkText::None => (0, &[][..]),
            MarkText::Registered(number) => {
                flags |= IS_REGISTERED;
                (number, &[][..])
            }
            MarkText::Bytes(text) => {
                flags |= HAS_TEXT;
                let text = text.get(..MAX_RANGE_TEXT).unwrap_or(text);
                (text.len() as u32, text)
            }
        };
        let second = second_word(new.kind, flags, new.domain, name);
        for (to, from) in words.iter_mut().zip([ffi::now(), second]) {
            *to = from;
        }
        self.append(words.get(..used).unwrap_or_default(), text)
    }

    fn append(&self, words: &[u64], text: &[u8]) -> bool {
        let (head, tail) = (
            self.head.load(Ordering::Relaxed),
            self.tail.load(Ordering::Acquire),
        );
        let used = head.wrapping_sub(tail);
        let needed = words.len() + text.len().div_ceil(8);
        let is_written = used + needed <= WORDS;
        if is_written {
            let texts = text.chunks(8).map(super::writer::word);
            for (at, word) in words.iter().copied().chain(texts).enumerate() {
                self.place(head.wrapping_add(at), |to| {
                    to.store(word, Ordering::Relaxed)
                });
            }
            self.head
                .store(head.wrapping_add(needed), Ordering::Release);
        }
        let is_half = used + needed > WORDS / 2 && !self.is_asked.swap(true, Ordering::Relaxed);
        let is_first = IS_IDLE.load(Ordering::Relaxed) && IS_IDLE.swap(false, Ordering::Relaxed);
        if is_half || is_first {
            self.drainer.as_ref().inspect(|drainer| drainer.unpark());
        }
        is_written
    }

    fn place<T: Default>(&self, at: usize, work: impl FnOnce(&AtomicU64) -> T) -> T {
        let word = self.words.get(at & (WORDS - 1));
        word.map(work).unwrap_or_default()
    }

    /// Takes out all that is there.
    pub(super) fn take(&self) -> Vec<u64> {
        self.is_asked.store(false, Ordering::Relaxed);
        let head = self.head.load(Ordering::Acquire);
        let tail = self.tail.load(Ordering::Relaxed);
        let count = head.wrapping_sub(tail).min(WORDS);
        let word = |at| self.place(tail.wrapping_add(at), |word| word.load(Ordering::Relaxed));
        let taken = (0..count).map(word).collect();
        self.tail.store(head, Ordering::Release);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::{MARK_POP, MARK_PUSH};

    fn ring() -> MarkRing {
        MarkRing {
            words: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            head: AtomicUsize::new(usize::MAX - 2),
            tail: AtomicUsize::new(usize::MAX - 2),
            dropped: AtomicU64::new(0),
            tid: 7,
            is_over: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
            drainer: None,
        }
    }

    #[test]
    fn words_are_taken_out_as_they_were_written_and_what_has_no_room_is_refused() {
        let ring = ring();
        let mut push = super::super::plain(MARK_PUSH, 3);
        (push.text, push.id) = (MarkText::Bytes(b"nine char"), MarkId::Short(5));
        push.category = 9;
        assert!(ring.try_write(&push));
        assert!(ring.try_write(&super::super::plain(MARK_POP, 3)));
        let words = ring.take();
        let flags = HAS_TEXT | MARK_ID | MARK_CATEGORY;
        let texts = [*b"nine cha", *b"r\0\0\0\0\0\0\0"].map(u64::from_ne_bytes);
        let second = u64::from_ne_bytes([MARK_PUSH, flags, 3, 0, 9, 0, 0, 0]);
        assert_eq!(words[1..6], [second, 5, 9, texts[0], texts[1]]);
        assert_eq!(
            words[7],
            u64::from_ne_bytes([MARK_POP, 0, 3, 0, 0, 0, 0, 0])
        );
        assert_eq!(words.len(), 8);
        let mut written = 0;
        while ring.try_write(&push) {
            written += 1;
        }
        assert_eq!(written, WORDS / 6);
        for _ in 0..5 {
            ring.write(&push);
        }
        // The marks of gaps, those with room before and those before the next mark, count five.
        let mut words = ring.take().split_off(written * 6);
        ring.write(&super::super::plain(MARK_POP, 3));
        words.extend(ring.take());
        let (gaps, pop) = words.split_at(words.len() - 2);
        assert_eq!(pop[1], second_word(MARK_POP, 0, 3, 0));
        let told = gaps.chunks(3).map(|gap| {
            assert_eq!(gap[1], second_word(MARK_GAP, MARK_ID, 0, 0));
            gap[2]
        });
        assert_eq!(told.sum::<u64>(), 5);
        assert_eq!(ring.take_dropped(), 0);
    }
}
