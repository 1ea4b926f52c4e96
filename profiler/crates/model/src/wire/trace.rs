//! Tracepoints of device drivers, as events.

use super::{WireError, bytes};
use aiprof_common::{TRACE_TEXT_BYTES, TRACE_TEXTS, TRACE_VALUES, TraceRecord};
use serde::{Deserialize, Serialize};
use std::mem::offset_of;

/// A tracepoint that is recorded, and what is taken of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracePoint {
    /// Its id, dense from 0.
    pub id: u32,
    /// Its category: `dma_fence`.
    pub category: String,
    /// Its name: `dma_fence_signaled`.
    pub name: String,
    /// Names of the numbers, by slot; empty where this kernel has no such field.
    pub values: Vec<String>,
    /// Names of the texts, by slot; empty where this kernel has no such field.
    pub texts: Vec<String>,
}

impl TracePoint {
    /// The slot of a number.
    pub fn value(&self, name: &str) -> Option<usize> {
        self.values.iter().position(|value| value == name)
    }

    /// The slot of a text.
    pub fn text(&self, name: &str) -> Option<usize> {
        self.texts.iter().position(|text| text == name)
    }
}

/// A tracepoint that was hit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// CPU it was seen on.
    pub cpu: u32,
    /// Process of whoever ran; an interrupt's is anybody's.
    pub pid: u32,
    /// Thread of whoever ran.
    pub tid: u32,
    /// Which one: the id of a [`TracePoint`].
    pub point: u32,
    /// Numbers by slot.
    pub values: [u64; TRACE_VALUES],
    /// Texts by slot, cut at 31 bytes.
    pub texts: [String; TRACE_TEXTS],
}

macro_rules! field {
    ($data:expr, $of:ident.$field:ident: $ty:ty) => {
        bytes($data, offset_of!($of, $field)).map(<$ty>::from_ne_bytes)
    };
}

pub(super) fn decode(data: &[u8]) -> Result<Trace, WireError> {
    let mut values = [0; TRACE_VALUES];
    for (slot, value) in values.iter_mut().enumerate() {
        *value = u64::from_ne_bytes(bytes(data, offset_of!(TraceRecord, values) + slot * 8)?);
    }
    let mut texts: [String; TRACE_TEXTS] = Default::default();
    for (slot, text) in texts.iter_mut().enumerate() {
        let at = offset_of!(TraceRecord, texts) + slot * TRACE_TEXT_BYTES;
        let raw: [u8; TRACE_TEXT_BYTES] = bytes(data, at)?;
        let end = raw.iter().position(|byte| *byte == 0);
        let raw = raw.get(..end.unwrap_or(raw.len())).unwrap_or_default();
        *text = String::from_utf8_lossy(raw).into_owned();
    }
    Ok(Trace {
        time_ns: field!(data, TraceRecord.time_ns: u64)?,
        cpu: field!(data, TraceRecord.cpu: u32)?,
        pid: field!(data, TraceRecord.tgid: u32)?,
        tid: field!(data, TraceRecord.tid: u32)?,
        point: field!(data, TraceRecord.point: u32)?,
        values,
        texts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record, byte for byte, as the program writes it.
    fn record() -> Vec<u8> {
        let mut data = Vec::new();
        for word in [aiprof_common::KIND_TRACE, 3] {
            data.extend(word.to_ne_bytes());
        }
        data.extend(77u64.to_ne_bytes());
        for word in [10u32, 11, 5, 0] {
            data.extend(word.to_ne_bytes());
        }
        for value in 1..=TRACE_VALUES as u64 {
            data.extend(value.to_ne_bytes());
        }
        let mut texts = [0u8; TRACE_TEXT_BYTES * TRACE_TEXTS];
        texts[..4].copy_from_slice(b"vgem");
        texts[TRACE_TEXT_BYTES..].fill(b'x');
        data.extend(texts);
        data
    }

    #[test]
    fn reads_a_record() {
        let trace = decode(&record()).unwrap();
        assert_eq!((trace.time_ns, trace.cpu, trace.point), (77, 3, 5));
        assert_eq!((trace.pid, trace.tid), (10, 11));
        assert_eq!(trace.values, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(trace.texts[0], "vgem");
        assert_eq!(trace.texts[1], "x".repeat(TRACE_TEXT_BYTES));
    }

    #[test]
    fn a_cut_record_is_an_error() {
        let whole = record();
        for len in 0..whole.len() {
            assert!(decode(&whole[..len]).is_err(), "{len}");
        }
    }
}
