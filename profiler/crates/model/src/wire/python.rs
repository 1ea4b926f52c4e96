//! Python's frames: code objects as records and events, and the words of stacks.

use super::{WireError, bytes};
use aiprof_common::{
    KIND_PYTHON_CODE, MAX_PYTHON_PIECES, MAX_PYTHON_TEXT, PYTHON_LINES_PIECE, PYTHON_TEXTS,
    PythonCode as Header,
};
use serde::{Deserialize, Serialize};
use std::mem::{offset_of, size_of};
use std::ops::Range;

/// A process has a Python interpreter: from here on its stacks may have Python frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonFound {
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// The process.
    pub pid: u32,
    /// What it calls itself: `3.12`, `3.14t`.
    pub version: String,
    /// Where the process has the interpreter's own code.
    pub text: Range<u64>,
    /// Where it has the function that runs Python code.
    pub eval: Range<u64>,
    /// Whether each Python frame has an activation of that function of its own (up to
    /// 3.10).
    pub one_each: bool,
}

/// A code object of a process, before the first stack that names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonCode {
    /// Before the first stack that names it: CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// The process.
    pub pid: u32,
    /// Its id in the words of stacks.
    pub id: u64,
    /// Line of its definition.
    pub first_line: u32,
    /// How its instructions are numbered (`PYTHON_AT_*`), which decides the meaning of
    /// `lines`.
    pub instruction: u8,
    /// Name of its module; empty: not known.
    pub module: String,
    /// Qualified name of the function; before 3.11 its name alone.
    pub function: String,
    /// Its file.
    pub file: String,
    /// Its line table, or the beginning of it.
    pub lines: Vec<u8>,
    /// Whether there is more of the table: then later lines are not known.
    pub is_cut: bool,
}

/// The words of the stack of the sample that follows, where samples are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonStack {
    /// The sample's time.
    pub time_ns: u64,
    /// The sample's thread.
    pub tid: u32,
    /// See [`Sample::python`](super::Sample::python).
    pub words: Vec<u64>,
}

/// How long before its first stack a code object counts as known. It is longer than the
/// programs take from the time of a stack to its record. So another CPU's stack, which
/// relies on the record, does not come before it.
const AHEAD_NS: u64 = 1_000_000;

/// A record of a code object, or of more of its line table.
#[derive(Debug, PartialEq, Eq)]
pub struct PythonRecord {
    /// The content of the record; `lines` is a piece only.
    pub code: PythonCode,
    /// Where the piece begins.
    pub lines_at: usize,
    /// Bytes of the whole table.
    pub lines_len: usize,
}

macro_rules! field {
    ($data:expr, $field:ident: $ty:ty) => {
        bytes($data, offset_of!(Header, $field)).map(<$ty>::from_ne_bytes)
    };
}

pub(super) fn decode(data: &[u8]) -> Result<PythonRecord, WireError> {
    let kind = field!(data, kind: u32)?;
    let lines_len = field!(data, lines_len: u32)? as usize;
    let lines_at = field!(data, lines_at: u32)? as usize;
    let mut at = size_of::<Header>();
    let mut texts = [const { String::new() }; PYTHON_TEXTS];
    if kind == KIND_PYTHON_CODE {
        for (index, text) in texts.iter_mut().enumerate() {
            let len = bytes(data, offset_of!(Header, text_len) + 2 * index)?;
            let len = usize::from(u16::from_ne_bytes(len));
            let [width] = bytes(data, offset_of!(Header, text_width) + index)?;
            if len > MAX_PYTHON_TEXT {
                return Err(WireError::OutOfRange("text_len"));
            }
            *text = decode_text(slice(data, at, len)?, width);
            if len + usize::from(width) > MAX_PYTHON_TEXT {
                text.push_str("[..]");
            }
            at += len;
        }
    }
    let piece = usize::from(field!(data, piece_len: u16)?);
    if lines_at.saturating_add(piece) > lines_len {
        return Err(WireError::OutOfRange("piece_len"));
    }
    let [module, function, file] = texts;
    let [instruction] = bytes(data, offset_of!(Header, instruction))?;
    Ok(PythonRecord {
        code: PythonCode {
            time_ns: field!(data, time_ns: u64)?.saturating_sub(AHEAD_NS),
            pid: field!(data, tgid: u32)?,
            id: field!(data, id: u64)?,
            first_line: field!(data, first_line: u32)?,
            instruction,
            module,
            function,
            file,
            lines: slice(data, at, piece)?.to_vec(),
            is_cut: piece < lines_len,
        },
        lines_at,
        lines_len,
    })
}

fn slice(data: &[u8], at: usize, len: usize) -> Result<&[u8], WireError> {
    data.get(at..at + len).ok_or(WireError::Truncated {
        have: data.len(),
        need: at + len,
    })
}

/// The characters of a string, of `width` bytes each: Latin-1, UCS-2 or UCS-4 (PEP 393).
fn decode_text(bytes: &[u8], width: u8) -> String {
    let character = |code: u32| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    match width {
        1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
        2 => bytes
            .chunks_exact(2)
            .map(|pair| character(u16::from_ne_bytes([pair[0], pair[1]]).into()))
            .collect(),
        4 => bytes
            .chunks_exact(4)
            .map(|four| character(u32::from_ne_bytes([four[0], four[1], four[2], four[3]])))
            .collect(),
        _ => String::new(),
    }
}

/// Puts the pieces of code objects together.
#[derive(Debug, Default)]
pub struct PythonPieces {
    open: Vec<(PythonCode, usize)>,
}

/// Most bytes of a line table that are sent.
const MAX_LINES: usize = (MAX_PYTHON_PIECES as usize + 1) * PYTHON_LINES_PIECE;
/// Most code objects that wait for more of their line tables.
const MAX_OPEN: usize = 256;

impl PythonPieces {
    /// Takes a record in; gives the code object if it is whole now.
    pub fn take(&mut self, record: PythonRecord) -> Option<PythonCode> {
        let PythonRecord {
            code,
            lines_at,
            lines_len,
        } = record;
        if lines_at == 0 {
            if !code.is_cut || code.lines.is_empty() {
                return Some(code);
            }
            if self.open.len() >= MAX_OPEN {
                // Their last pieces were lost.
                self.open.clear();
            }
            self.open.push((code, lines_len.min(MAX_LINES)));
            return None;
        }
        let same = |(open, _): &(PythonCode, usize)| {
            (open.pid, open.id, open.time_ns) == (code.pid, code.id, code.time_ns)
        };
        let index = self.open.iter().position(same)?;
        let (open, len) = self.open.get_mut(index)?;
        if open.lines.len() == lines_at {
            open.lines.extend(&code.lines);
        }
        if lines_at + code.lines.len() < *len {
            return None;
        }
        let mut whole = self.open.swap_remove(index).0;
        whole.is_cut = whole.lines.len() < lines_len;
        Some(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Record, decode};

    /// A record as the kernel side lays it out, written by hand from the offsets of its
    /// header. It has texts of Latin-1, UCS-2 and UCS-4, and the first piece of a table.
    fn record(kind: u32, lines_at: u32, texts: &[(&[u8], u8)], piece: &[u8]) -> Vec<u8> {
        let mut data = vec![0; 64];
        let mut put = |at: usize, bytes: &[u8]| data[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &kind.to_ne_bytes());
        put(4, &12u32.to_ne_bytes());
        put(8, &5_000_000u64.to_ne_bytes());
        put(16, &9u64.to_ne_bytes());
        put(24, &0x7f00_0000u64.to_ne_bytes());
        put(36, &3u32.to_ne_bytes());
        put(40, &6u32.to_ne_bytes());
        put(44, &lines_at.to_ne_bytes());
        for (index, (text, width)) in texts.iter().enumerate() {
            put(48 + 2 * index, &(text.len() as u16).to_ne_bytes());
            put(54 + index, &[*width]);
        }
        put(57, &[aiprof_common::PYTHON_AT_ADDRESS]);
        put(58, &(piece.len() as u16).to_ne_bytes());
        texts.iter().for_each(|(text, _)| data.extend(*text));
        data.extend(piece);
        data
    }

    fn decoded(data: &[u8]) -> Result<PythonRecord, WireError> {
        decode(data).map(|record| match record {
            Record::Python(record) => record,
            other => panic!("{other:?}"),
        })
    }

    const TEXTS: [(&[u8], u8); 3] = [
        (b"gr\xfc\xdfe", 1),
        (&[0x09, 0x59, b'f', 0], 2),
        (&[0x00, 0xf6, 0x01, 0, b'/', 0, 0, 0], 4),
    ];

    #[test]
    fn code_objects_come_in_pieces() {
        let first = decoded(&record(7, 0, &TEXTS, &[1, 2, 3, 4])).unwrap();
        assert_eq!(first.code.module, "gr\u{fc}\u{df}e");
        assert_eq!(first.code.function, "\u{5909}f");
        assert_eq!(first.code.file, "\u{1f600}/");
        assert_eq!(
            (first.code.pid, first.code.id, first.code.first_line),
            (12, 9, 3)
        );
        assert_eq!(first.code.time_ns, 4_000_000);
        let mut pieces = PythonPieces::default();
        assert_eq!(pieces.take(first), None);
        let second = decoded(&record(8, 4, &[], &[5, 6])).unwrap();
        let whole = pieces.take(second).unwrap();
        assert_eq!(whole.lines, [1, 2, 3, 4, 5, 6]);
        // What belongs to nothing is nothing.
        let again = decoded(&record(8, 4, &[], &[5, 6])).unwrap();
        assert_eq!(pieces.take(again), None);
    }

    #[test]
    fn hostile_records_are_refused() {
        let whole = record(7, 0, &TEXTS, &[1, 2, 3, 4]);
        for length in 0..whole.len() {
            assert!(decode(&whole[..length]).is_err(), "{length} bytes");
        }
        let change = |at: usize, bytes: &[u8]| {
            let mut data = whole.clone();
            data[at..at + bytes.len()].copy_from_slice(bytes);
            decode(&data).map(drop)
        };
        let refused = |field| Err(WireError::OutOfRange(field));
        assert_eq!(change(44, &5u32.to_ne_bytes()), refused("piece_len"));
        assert_eq!(change(48, &600u16.to_ne_bytes()), refused("text_len"));
        // A width that no string has is no text.
        change(54, &[3]).unwrap();
    }
}
