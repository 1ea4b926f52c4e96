//! Buffers of activity records to records.
//!
//! A buffer holds records of several kinds, one after the other. The size of a record depends on
//! its kind and on the version of the library, and is written nowhere. So the decoder learns which
//! layout of each kind is in use. With the right one, times are in order, and another record (its
//! first byte is a kind) or the end of the buffer follows each record. The layout is kept for the
//! process's next buffers. Where no layout fits, or where several fit that differ, the records are
//! counted and left out, never guessed.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use super::layouts::Layouts;
use super::learn::{BufferWalk, Chosen, WINDOW};
use super::record::{ActivityRecord, BufferContext, View};
use std::ops::AddAssign;

/// What could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unknown {
    /// Records of known layout with impossible times or ids.
    pub implausible: u64,
    /// Stretches that begin with a record of a kind of which no layout fits.
    pub no_layout: u64,
    /// Stretches that begin with a record that several layouts fit.
    pub ambiguous: u64,
    /// Stretches that begin with no kind of record.
    pub foreign: u64,
    /// Records cut by the end of the buffer.
    pub cut: u64,
    /// Bytes that were not read, for any of these reasons.
    pub bytes: u64,
}

impl Unknown {
    /// How often something could not be read.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.implausible + self.no_layout + self.ambiguous + self.foreign + self.cut
    }
}

impl AddAssign for Unknown {
    fn add_assign(&mut self, other: Self) {
        self.implausible += other.implausible;
        self.no_layout += other.no_layout;
        self.ambiguous += other.ambiguous;
        self.foreign += other.foreign;
        self.cut += other.cut;
        self.bytes += other.bytes;
    }
}

/// Reads one buffer of which nothing is known yet.
///
/// For the buffers of one process, [`Decoder`] keeps what it learned and needs no
/// memory for the records.
#[cfg(test)]
pub(super) fn decode_records(
    bytes: &[u8],
    layouts: &Layouts,
    context: &BufferContext<'_>,
) -> (Vec<ActivityRecord>, Unknown) {
    let mut records = Vec::new();
    let unknown = Decoder::new(layouts).buffer(bytes, context, |record| records.push(record));
    (records, unknown)
}

/// Why a single record could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// There is nothing, or the first byte is no kind.
    #[error("not an activity record")]
    Foreign,
    /// No layout fits, or the record makes no sense in the one that is in use.
    #[error("no known record layout fits")]
    NoLayout,
    /// Several layouts fit.
    #[error("several record layouts fit")]
    Ambiguous,
}

/// Reads the buffers of one process, or of several with the same library.
#[derive(Clone, Debug)]
pub struct Decoder<'t> {
    layouts: &'t Layouts,
    chosen: Chosen,
}

/// One buffer on its way.
struct Pass<'a, S> {
    walk: BufferWalk<'a>,
    unknown: Unknown,
    /// First bytes of the records that were read in it.
    seen: [bool; 256],
    sink: S,
}

impl<'t> Decoder<'t> {
    /// One that knows nothing yet.
    #[must_use]
    pub fn new(layouts: &'t Layouts) -> Self {
        Self {
            layouts,
            chosen: [None; 256],
        }
    }

    /// Names of the layouts that were found to be in use, in the table's order.
    #[must_use]
    pub fn in_use(&self) -> Vec<&'t str> {
        let mut indices: Vec<u16> = self.chosen.iter().flatten().copied().collect();
        indices.sort_unstable();
        let layouts = indices.iter().filter_map(|at| self.layouts.get(*at));
        layouts.map(|layout| layout.name.as_str()).collect()
    }

    /// Hands each record of a completed buffer to `sink`, in order, and returns what it could not
    /// read. `bytes` is the valid part of the buffer. The context has to note if the buffer was cut
    /// when it was captured.
    pub fn buffer(
        &mut self,
        bytes: &[u8],
        context: &BufferContext<'_>,
        sink: impl FnMut(ActivityRecord),
    ) -> Unknown {
        let mut pass = Pass {
            walk: BufferWalk::new(self.layouts, bytes, context),
            unknown: Unknown::default(),
            seen: [false; 256],
            sink,
        };
        let mut at = 0;
        while let Some(byte) = bytes.get(at).copied() {
            let next = match self.step(&mut pass, at, byte) {
                Some(next) => next,
                None => {
                    let next = pass.walk.resync(at + 1, &self.chosen);
                    let next = next.unwrap_or(bytes.len());
                    pass.unknown.bytes += (next - at) as u64;
                    next
                }
            };
            at = next;
        }
        pass.unknown
    }

    /// Reads the record at `at` and returns where it ends; `None` when that is not known.
    fn step<S: FnMut(ActivityRecord)>(
        &mut self,
        pass: &mut Pass<'_, S>,
        at: usize,
        byte: u8,
    ) -> Option<usize> {
        if self.layouts.kind(byte).is_none() {
            pass.unknown.foreign += 1;
            return None;
        }
        if self.chosen[usize::from(byte)].is_none() {
            self.learn(&mut pass.walk, at);
        }
        let Some(index) = self.chosen[usize::from(byte)] else {
            match pass.walk.fitting(at, byte) {
                0 | 1 => pass.unknown.no_layout += 1,
                _ => pass.unknown.ambiguous += 1,
            }
            return None;
        };
        self.read(pass, at, byte, index)
    }

    /// Reads the record at `at` by a layout.
    fn read<S: FnMut(ActivityRecord)>(
        &mut self,
        pass: &mut Pass<'_, S>,
        at: usize,
        byte: u8,
        index: u16,
    ) -> Option<usize> {
        let layout = self.layouts.get(index)?;
        let (end, bytes) = (at + layout.size, pass.walk.bytes);
        let Some(view) = View::new(layout, bytes, at, pass.walk.context.endian) else {
            pass.unknown.cut += 1;
            pass.unknown.bytes += (bytes.len() - at) as u64;
            return Some(bytes.len());
        };
        if let Some(record) = view.read(pass.walk.context) {
            pass.seen[usize::from(byte)] = true;
            (pass.sink)(record);
            return Some(end);
        }
        if !pass.seen[usize::from(byte)] && self.learn_anew(pass, at, byte) {
            return self.step(pass, at, byte);
        }
        pass.unknown.implausible += 1;
        // It ends where the layout puts its end if another record can begin there.
        let next = bytes.get(end).copied();
        let follows = next.is_none_or(|byte| self.chosen[usize::from(byte)].is_some());
        follows.then(|| {
            pass.unknown.bytes += layout.size as u64;
            end
        })
    }

    /// Finds the layouts of the kinds from `at` on, up to where they are certain.
    fn learn(&mut self, walk: &mut BufferWalk<'_>, at: usize) {
        let solutions = walk.solve(at, &self.chosen, WINDOW);
        let Some(first) = solutions.first() else {
            return;
        };
        for (byte, known) in self.chosen.iter_mut().enumerate() {
            let choice = first.chosen[byte];
            if known.is_none() && solutions.iter().all(|s| s.chosen[byte] == choice) {
                *known = choice;
            }
        }
    }

    /// Doubts what was learned from earlier buffers: finds another layout for the
    /// record at `at`, and for all kinds that this buffer has not confirmed.
    fn learn_anew<S>(&mut self, pass: &mut Pass<'_, S>, at: usize, byte: u8) -> bool {
        let before = self.chosen;
        for (known, seen) in self.chosen.iter_mut().zip(pass.seen) {
            *known = known.filter(|_| seen);
        }
        self.learn(&mut pass.walk, at);
        let now = self.chosen[usize::from(byte)];
        let changed = now.is_some() && now != before[usize::from(byte)];
        if !changed {
            self.chosen = before;
        }
        changed
    }

    /// Reads a single record, as records are handed out one by one. `bytes` begin
    /// with it and may go on behind it; `stride` is the distance to the next
    /// record of the buffer, where that is known.
    ///
    /// # Errors
    /// When it is no record, or no single layout fits.
    pub fn record(
        &mut self,
        bytes: &[u8],
        stride: Option<usize>,
        context: &BufferContext<'_>,
    ) -> Result<ActivityRecord, RecordError> {
        let byte = *bytes.first().ok_or(RecordError::Foreign)?;
        self.layouts.kind(byte).ok_or(RecordError::Foreign)?;
        let known = self.chosen[usize::from(byte)];
        let candidates = match &known {
            Some(index) => std::slice::from_ref(index),
            None => self.layouts.candidates(byte),
        };
        let mut fitting = candidates.iter().filter_map(|index| {
            let layout = self.layouts.get(*index)?;
            let record = View::new(layout, bytes, 0, context.endian)?.read(context)?;
            let ends = match stride {
                Some(stride) => stride == layout.size,
                None if known.is_some() => true,
                // What follows must be another record or nothing.
                None => bytes
                    .get(layout.size)
                    .is_none_or(|next| self.layouts.kind(*next).is_some()),
            };
            ends.then_some((*index, record))
        });
        let (index, record) = fitting.next().ok_or(RecordError::NoLayout)?;
        if fitting.next().is_some() {
            return Err(RecordError::Ambiguous);
        }
        if stride.is_some() {
            self.chosen[usize::from(byte)] = Some(index);
        }
        Ok(record)
    }
}
