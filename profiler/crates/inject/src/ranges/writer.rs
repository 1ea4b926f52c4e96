//! Marks in batches: each batch has the texts and domains that its marks refer to.

use super::ring::{HAS_TEXT, IS_REGISTERED, MOST_WORDS, second_word};
use super::tables::RangeTables;
use crate::batch::{begin, head, name_words, record_words};
use crate::timing::{
    MARK_CATEGORY, MARK_ID, MARK_LONG_ID, MARK_PAYLOAD, MAX_RANGE_TEXT, MAX_TIMING_BATCH,
    TIMING_RANGES, TimingDomain, TimingMarks, TimingMarksLost,
};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Words that a mark may need with all that it refers to: three texts, a domain, the
/// records around it.
const MOST_NEEDED: usize = 3 * (MAX_RANGE_TEXT / 8 + 3) + 3 + 2 + MOST_WORDS;

/// A batch that is full, and how many marks are in it.
#[derive(Debug)]
pub(super) struct FullBatch {
    pub(super) words: Vec<u64>,
    pub(super) marks: u64,
}

/// The batch that is being written.
#[derive(Default)]
pub(super) struct Writer {
    words: Vec<u64>,
    /// By their words.
    texts: HashMap<Box<[u64]>, u32, BuildHasherDefault<TextHasher>>,
    /// Words of a text that is looked up.
    text: Vec<u64>,
    domains: HashSet<u16>,
    /// Where the record of marks begins that is being written, and of which thread it is.
    open: Option<(usize, u32)>,
    marks: u64,
}

/// A mark in the words of a ring.
#[derive(Debug)]
struct RingMark<'a> {
    time_ns: u64,
    kind: u8,
    flags: u8,
    domain: u16,
    id: &'a [u64],
    payload: Option<u64>,
    category: Option<u32>,
    registered: Option<u32>,
    /// Its words and its bytes.
    text: Option<(&'a [u64], usize)>,
}

/// Hashes texts, which a program does not choose to do harm to itself.
#[derive(Default)]
struct TextHasher(u64);

impl Hasher for TextHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            self.write_u64(word(chunk));
        }
    }

    fn write_u64(&mut self, word: u64) {
        // The multiplier of FxHash.
        let mixed = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        self.0 = mixed.rotate_left(26);
    }
}

/// At most 8 bytes as a word.
pub(super) fn word(chunk: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(chunk) {
        *to = *from;
    }
    u64::from_ne_bytes(bytes)
}

/// Takes `count` words.
fn split<'a>(words: &mut &'a [u64], count: usize) -> Option<&'a [u64]> {
    let (first, rest) = words.split_at_checked(count)?;
    *words = rest;
    Some(first)
}

/// Takes the next mark out.
fn next<'a>(words: &mut &'a [u64]) -> Option<RingMark<'a>> {
    let [time_ns, second] = *split(words, 2)? else {
        return None;
    };
    let [kind, flags, d0, d1, n0, n1, n2, n3] = second.to_ne_bytes();
    let name = u32::from_ne_bytes([n0, n1, n2, n3]);
    let id = match flags & (MARK_ID | MARK_LONG_ID) {
        MARK_ID => split(words, 1)?,
        MARK_LONG_ID => split(words, 3)?,
        _ => &[],
    };
    let mut word = |flag| match flags & flag {
        0 => None,
        _ => split(words, 1)?.first().copied(),
    };
    let payload = word(MARK_PAYLOAD);
    let category = word(MARK_CATEGORY).map(|word| word as u32);
    let text = match flags & HAS_TEXT {
        0 => None,
        _ => {
            let len = name as usize;
            Some((split(words, len.div_ceil(8))?, len))
        }
    };
    Some(RingMark {
        time_ns,
        kind,
        flags,
        domain: u16::from_ne_bytes([d0, d1]),
        id,
        payload,
        category,
        registered: (flags & IS_REGISTERED != 0).then_some(name),
        text,
    })
}

impl Writer {
    /// Adds the marks of a thread. Batches that are full go to `full`.
    pub(super) fn add(
        &mut self,
        tid: u32,
        mut words: &[u64],
        tables: &RangeTables,
        full: &mut impl FnMut(FullBatch),
    ) {
        while let Some(mark) = next(&mut words) {
            self.make_room(full);
            self.mark(tid, &mark, tables);
        }
    }

    /// Adds what was lost.
    pub(super) fn lost(&mut self, reason: u32, count: u64, full: &mut impl FnMut(FullBatch)) {
        self.make_room(full);
        self.close();
        self.words.extend(record_words(&TimingMarksLost {
            record: head::<TimingMarksLost>(),
            count,
            reason,
            pad: 0,
        }));
    }

    /// Ends the batch.
    pub(super) fn finish(&mut self, full: &mut impl FnMut(FullBatch)) {
        self.close();
        let Self { words, marks, .. } = std::mem::take(self);
        if !words.is_empty() {
            full(FullBatch { words, marks });
        }
    }

    fn make_room(&mut self, full: &mut impl FnMut(FullBatch)) {
        if (self.words.len() + MOST_NEEDED) * 8 > MAX_TIMING_BATCH {
            self.finish(full);
        }
        if self.words.is_empty() {
            self.words = begin(TIMING_RANGES);
        }
    }

    fn mark(&mut self, tid: u32, mark: &RingMark<'_>, tables: &RangeTables) {
        let registered = mark.registered.and_then(|number| tables.text(number));
        let name = match (mark.text, registered) {
            (Some((words, bytes)), _) => self.text_of(words, bytes),
            (None, Some(text)) => self.text(text),
            (None, None) => 0,
        };
        let category = mark.category.map(|number| {
            let name = tables.category(mark.domain, number);
            let name = name.map_or(0, |name| self.text(name));
            u64::from(number) | u64::from(name) << 32
        });
        if self.domains.insert(mark.domain)
            && let Some(domain) = tables.domain(mark.domain)
        {
            let name = match &*domain.name {
                [] => 0,
                name => self.text(name).into(),
            };
            self.close();
            self.words.extend(record_words(&TimingDomain {
                record: head::<TimingDomain>(),
                domain: mark.domain.into(),
                api: domain.api,
                name,
            }));
        }
        self.open_for(tid);
        let flags = mark.flags & !(HAS_TEXT | IS_REGISTERED);
        let second = second_word(mark.kind, flags, mark.domain, name);
        self.words.extend([mark.time_ns, second]);
        self.words.extend(mark.id);
        self.words.extend(mark.payload);
        self.words.extend(category);
        self.marks += 1;
    }

    /// The number of a text, which is written first if it is new.
    fn text(&mut self, text: &[u8]) -> u32 {
        let mut words = std::mem::take(&mut self.text);
        words.clear();
        words.extend(text.chunks(8).map(word));
        let number = self.text_of(&words, text.len());
        self.text = words;
        number
    }

    fn text_of(&mut self, words: &[u64], bytes: usize) -> u32 {
        if let Some(&known) = self.texts.get(words) {
            return known;
        }
        self.close();
        let number = self.texts.len() as u32 + 1;
        let text: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let text = text.get(..bytes).unwrap_or_default();
        self.words.extend(name_words(number.into(), text));
        self.texts.insert(words.into(), number);
        number
    }

    /// The marks that follow are of this thread.
    fn open_for(&mut self, tid: u32) {
        if self.open.is_some_and(|(_, of)| of != tid) {
            self.close();
        }
        if self.open.is_none() {
            self.open = Some((self.words.len(), tid));
            self.words.extend(record_words(&TimingMarks {
                record: head::<TimingMarks>(),
                tid,
                pad: 0,
            }));
        }
    }

    /// Ends the record of marks: its length is known.
    fn close(&mut self) {
        let Some((at, tid)) = self.open.take() else {
            return;
        };
        let mut record = TimingMarks {
            record: head::<TimingMarks>(),
            tid,
            pad: 0,
        };
        let bytes = self.words.len().saturating_sub(at) * 8;
        record.record.bytes = u32::try_from(bytes).unwrap_or(0);
        for (to, from) in self.words.iter_mut().skip(at).zip(record_words(&record)) {
            *to = from;
        }
    }
}
