//! Rows in memory, before they are sorted and written.

use crate::schema::{Row, TextField};
use rustc_hash::FxHashMap;
use std::cmp::Ordering;
use std::sync::Arc;

/// What sample types of truths begin with.
pub const TRUTH: &str = "aiprof.";

/// Texts, each once.
#[derive(Debug, Default)]
struct TextIndex {
    index: FxHashMap<Arc<str>, u32>,
    all: Vec<Arc<str>>,
    bytes: usize,
}

impl TextIndex {
    fn add(&mut self, text: &str) -> u32 {
        if let Some(&known) = self.index.get(text) {
            return known;
        }
        let new = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let text: Arc<str> = text.into();
        self.bytes += text.len();
        self.index.insert(Arc::clone(&text), new);
        self.all.push(text);
        new
    }

    fn get(&self, id: u32) -> &str {
        self.all.get(id as usize).map_or("", |text| text)
    }

    /// The place of each text in their order.
    fn ranks(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..).take(self.all.len()).collect();
        order.sort_unstable_by(|a, b| self.get(*a).cmp(self.get(*b)));
        let mut ranks = vec![0; order.len()];
        for (rank, id) in (0..).zip(order) {
            if let Some(slot) = ranks.get_mut(id as usize) {
                *slot = rank;
            }
        }
        ranks
    }
}

/// A row as indices of texts.
#[derive(Clone, Copy, Debug)]
struct IndexedRow {
    time: i64,
    duration: i64,
    value: i64,
    count: i64,
    texts: [u32; TextField::COUNT],
    labels: u32,
}

/// A sample without its values: what rows of it share.
#[derive(Clone, Copy, Debug)]
pub struct RowSample {
    time: i64,
    duration: i64,
    texts: [u32; TextField::COUNT],
    labels: u32,
}

/// Rows. Equal ones are merged when they are sorted, not before: that takes less
/// memory than a table of all.
#[derive(Debug)]
pub struct Rows {
    /// Host and host id of windows that do not state theirs.
    usual: [u32; 2],
    /// Those of what is added next.
    host: [u32; 2],
    texts: TextIndex,
    entries: Vec<IndexedRow>,
}

impl Rows {
    /// None yet, of what is usually this host.
    pub fn new(host_id: &str, host: &str) -> Self {
        let mut texts = TextIndex::default();
        texts.add("");
        let host = [host, host_id].map(|text| texts.add(text));
        Self {
            usual: host,
            host,
            texts,
            entries: Vec::new(),
        }
    }

    /// Sets the host on which the rows that are added next were recorded; empty: the usual one. A
    /// host may have had another name or id when a window was recorded.
    pub fn recorded_on(&mut self, host_id: &str, host: &str) {
        self.host = self.usual;
        for (slot, text) in self.host.iter_mut().zip([host, host_id]) {
            if !text.is_empty() {
                *slot = self.texts.add(text);
            }
        }
    }

    /// What rows of a sample share; host, sample type and unit among its texts do not count.
    pub fn sample(
        &mut self,
        time: i64,
        duration: i64,
        texts: &[(TextField, &str)],
        labels: &str,
    ) -> RowSample {
        let mut own = [0; TextField::COUNT];
        for (text, value) in texts {
            own[text.at()] = self.texts.add(value);
        }
        [own[TextField::Host.at()], own[TextField::HostId.at()]] = self.host;
        RowSample {
            time,
            duration,
            texts: own,
            labels: self.texts.add(labels),
        }
    }

    /// Adds a row.
    pub fn push(&mut self, sample: RowSample, of: (&str, &str), value: i64, count: i64) {
        let mut texts = sample.texts;
        for (text, value) in [(TextField::SampleType, of.0), (TextField::Unit, of.1)] {
            texts[text.at()] = self.texts.add(value);
        }
        self.entries.push(IndexedRow {
            time: sample.time,
            duration: sample.duration,
            value,
            count,
            texts,
            labels: sample.labels,
        });
    }

    /// Rows so far; fewer after [`Rows::sort`].
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// About the bytes that they take.
    pub fn bytes(&self) -> usize {
        let per_text = 96;
        self.entries.len() * size_of::<IndexedRow>()
            + self.texts.bytes
            + self.texts.all.len() * per_text
    }

    /// Sorts and merges: values of equal rows are added. For truths the largest is kept, since each
    /// profile of a window may state the same.
    pub fn sort(&mut self) {
        let ranks = self.texts.ranks();
        let rank = |id: u32| ranks.get(id as usize).copied().unwrap_or(0);
        let by = |a: &IndexedRow, b: &IndexedRow, text: TextField| {
            rank(a.texts[text.at()]).cmp(&rank(b.texts[text.at()]))
        };
        let rest = |a: &IndexedRow, b: &IndexedRow| {
            let ids = a.texts.iter().zip(&b.texts);
            let order = ids
                .filter(|(a, b)| a != b)
                .map(|(a, b)| rank(*a).cmp(&rank(*b)));
            let mut unequal = order.filter(|order| order.is_ne());
            unequal.next().unwrap_or(Ordering::Equal)
        };
        self.entries.sort_unstable_by(|a, b| {
            by(a, b, TextField::Service)
                .then_with(|| by(a, b, TextField::SampleType))
                .then_with(|| by(a, b, TextField::Stack))
                .then_with(|| a.time.cmp(&b.time))
                .then_with(|| rest(a, b))
                .then_with(|| rank(a.labels).cmp(&rank(b.labels)))
                .then_with(|| a.duration.cmp(&b.duration))
        });
        let texts = &self.texts;
        self.entries.dedup_by(|next, kept| {
            let is_same = next.time == kept.time
                && next.duration == kept.duration
                && next.texts == kept.texts
                && next.labels == kept.labels;
            if is_same {
                let of = kept.texts[TextField::SampleType.at()];
                if texts.get(of).starts_with(TRUTH) {
                    kept.value = kept.value.max(next.value);
                } else {
                    kept.value = kept.value.saturating_add(next.value);
                    kept.count = kept.count.saturating_add(next.count);
                }
            }
            is_same
        });
    }

    /// The rows, in order if they were sorted last.
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        self.entries.iter().map(|entry| Row {
            time: entry.time,
            duration: entry.duration,
            value: entry.value,
            count: entry.count,
            texts: entry.texts.map(|id| self.texts.get(id)),
            labels: self.texts.get(entry.labels),
        })
    }
}
