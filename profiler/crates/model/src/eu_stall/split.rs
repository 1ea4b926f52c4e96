//! Whole records out of pieces.

use super::Layout;

/// Largest record that is believed, in bytes.
const MAX_RECORD: usize = 4096;

/// Cuts a stream that arrives in pieces into whole records. Keeps less than one
/// record.
#[derive(Debug)]
pub struct Splitter {
    record_size: usize,
    /// The begin of a record whose end has not come.
    partial: Vec<u8>,
}

impl Splitter {
    /// For records of a size in bytes; `None`: no record of this layout has that size.
    pub fn new(layout: Layout, record_size: usize) -> Option<Self> {
        let fits = (layout.bytes()..=MAX_RECORD).contains(&record_size);
        fits.then(|| Self {
            record_size,
            partial: Vec::with_capacity(record_size),
        })
    }

    /// Bytes of a record.
    pub fn record_size(&self) -> usize {
        self.record_size
    }

    /// Hands on the whole records of the next piece, with what was left of the last;
    /// each slice is a multiple of the record size long.
    pub fn split(&mut self, mut piece: &[u8], mut whole: impl FnMut(&[u8])) {
        if !self.partial.is_empty() {
            let missing = self.record_size - self.partial.len();
            let (head, rest) = piece.split_at(missing.min(piece.len()));
            self.partial.extend_from_slice(head);
            piece = rest;
            if self.partial.len() < self.record_size {
                return;
            }
            whole(&self.partial);
            self.partial.clear();
        }
        let (records, rest) = piece.split_at(piece.len() - piece.len() % self.record_size);
        if !records.is_empty() {
            whole(records);
        }
        self.partial.extend_from_slice(rest);
    }

    /// Forgets a record that was cut off, because the stream ended or begins anew.
    /// Returns its bytes.
    pub fn reset(&mut self) -> usize {
        let cut = self.partial.len();
        self.partial.clear();
        cut
    }
}
