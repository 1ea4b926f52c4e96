//! Puts lines in order of time with a bounded amount of memory.
//!
//! Calls become known in the order of their ends, and readers want the order of
//! their begins. What does not fit into memory is sorted in pieces that wait in
//! temporary files, and is merged from there.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write},
};

/// Bytes of lines held in memory.
const BUFFER: usize = 8 << 20;
/// Sorted pieces of about equal size before they become one: as many files are
/// open, times the logarithm of the whole.
const PIECES: usize = 16;
/// The compressor looks back 32 KiB, and files are read in such pieces: that bounds
/// what each open piece needs.
const WINDOW_LOG: u32 = 15;
const READ: usize = 1 << WINDOW_LOG;

/// Gives an empty file for reading and writing that has no name, or will lose it.
pub type Scratch<'a> = dyn FnMut() -> io::Result<File> + 'a;

/// Where a line belongs: its time; then the longer spans, so that parents come
/// before what is in them; then the outer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    time: u64,
    shortness: u64,
    depth: u32,
}

impl Key {
    /// Of a span.
    pub(super) fn span(start: u64, duration: u64, depth: u32) -> Self {
        Self {
            time: start,
            shortness: u64::MAX - duration,
            depth,
        }
    }

    /// Of what describes the trace.
    pub(super) fn first() -> Self {
        Self {
            time: 0,
            shortness: 0,
            depth: 0,
        }
    }

    /// Of what refers to spans that begin at this time.
    pub(super) fn after(time: u64) -> Self {
        Self {
            time,
            shortness: u64::MAX,
            depth: u32::MAX,
        }
    }

    /// Of an end of a flow: by number and process, begins before ends.
    pub(super) fn flow(correlation: u64, process: u64, side: u64) -> Self {
        Self {
            time: correlation,
            shortness: process,
            depth: u32::from(side != 0),
        }
    }

    fn to_bytes(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.time.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.shortness.to_le_bytes());
        bytes[16..].copy_from_slice(&self.depth.to_le_bytes());
        bytes
    }

    fn read(input: &mut impl Read) -> io::Result<Self> {
        let (mut time, mut shortness, mut depth) = ([0; 8], [0; 8], [0; 4]);
        input.read_exact(&mut time)?;
        input.read_exact(&mut shortness)?;
        input.read_exact(&mut depth)?;
        Ok(Self {
            time: u64::from_le_bytes(time),
            shortness: u64::from_le_bytes(shortness),
            depth: u32::from_le_bytes(depth),
        })
    }
}

/// Lines that are being put in order. Lines with equal keys keep their order.
pub(super) struct Sorter {
    text: Vec<u8>,
    /// Key, and where in `text` it ends.
    lines: Vec<(Key, usize, usize)>,
    /// Sorted pieces, by size; those of a level are about equal.
    levels: Vec<Vec<File>>,
    limit: usize,
}

impl Sorter {
    /// An empty one.
    pub(super) fn new() -> Self {
        Self::with_limit(BUFFER)
    }

    /// One that keeps about so many bytes in memory.
    pub(super) fn with_limit(limit: usize) -> Self {
        Self {
            text: Vec::new(),
            lines: Vec::new(),
            levels: Vec::new(),
            limit,
        }
    }

    /// Adds a line.
    ///
    /// # Errors
    /// Those of the temporary files.
    pub(super) fn push(
        &mut self,
        key: Key,
        line: &str,
        scratch: &mut Scratch<'_>,
    ) -> io::Result<()> {
        let start = self.text.len();
        self.text.extend_from_slice(line.as_bytes());
        self.lines.push((key, start, self.text.len()));
        let held = self.text.len() + self.lines.len() * size_of::<(Key, usize, usize)>();
        if held >= self.limit {
            self.spill(scratch)?;
        }
        Ok(())
    }

    /// Gives all lines in order.
    ///
    /// # Errors
    /// Those of the temporary files and of `take`.
    pub(super) fn finish(
        mut self,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.lines.sort_by_key(|(key, ..)| *key);
        let mut pieces: Vec<Piece> = Vec::new();
        // Larger pieces are older: equal keys keep their order.
        for file in self.levels.drain(..).rev().flatten() {
            pieces.push(Piece::open(file)?);
        }
        let (text, lines) = (&self.text, &self.lines);
        let mut held = lines
            .iter()
            .map(|&(key, start, end)| (key, &text[start..end]));
        let mut next = held.next();
        merge(pieces, &mut |key, line| {
            while let Some((_, held_line)) = next.filter(|(held, _)| *held < key) {
                take(held_line)?;
                next = held.next();
            }
            take(line)
        })?;
        while let Some((_, line)) = next {
            take(line)?;
            next = held.next();
        }
        Ok(())
    }

    fn spill(&mut self, scratch: &mut Scratch<'_>) -> io::Result<()> {
        self.lines.sort_by_key(|(key, ..)| *key);
        let mut piece = PieceWriter::new(scratch()?)?;
        for &(key, start, end) in &self.lines {
            piece.add(key, &self.text[start..end])?;
        }
        self.lines.clear();
        self.text.clear();
        self.keep(0, piece.finish()?, scratch)
    }

    /// Keeps a piece; merges those of its size when there are many.
    fn keep(&mut self, level: usize, piece: File, scratch: &mut Scratch<'_>) -> io::Result<()> {
        if self.levels.len() <= level {
            self.levels.push(Vec::new());
        }
        let Some(pieces) = self.levels.get_mut(level) else {
            return Ok(());
        };
        pieces.push(piece);
        if pieces.len() < PIECES {
            return Ok(());
        }
        let full = std::mem::take(pieces);
        let open = full.into_iter().map(Piece::open);
        let mut merged = PieceWriter::new(scratch()?)?;
        merge(open.collect::<io::Result<_>>()?, &mut |key, line| {
            merged.add(key, line)
        })?;
        self.keep(level + 1, merged.finish()?, scratch)
    }
}

/// A sorted piece that is being written.
struct PieceWriter(zstd::Encoder<'static, BufWriter<File>>);

impl PieceWriter {
    fn new(file: File) -> io::Result<Self> {
        let mut out = zstd::Encoder::new(BufWriter::new(file), 1)?;
        out.window_log(WINDOW_LOG)?;
        Ok(Self(out))
    }

    fn add(&mut self, key: Key, line: &[u8]) -> io::Result<()> {
        let len = u32::try_from(line.len()).map_err(io::Error::other)?;
        self.0.write_all(&key.to_bytes())?;
        self.0.write_all(&len.to_le_bytes())?;
        self.0.write_all(line)
    }

    fn finish(self) -> io::Result<File> {
        let file = self.0.finish()?.into_inner();
        file.map_err(io::IntoInnerError::into_error)
    }
}

/// A sorted piece that is being read.
struct Piece {
    input: zstd::Decoder<'static, BufReader<File>>,
    line: Vec<u8>,
}

impl Piece {
    fn open(mut file: File) -> io::Result<Self> {
        file.seek(SeekFrom::Start(0))?;
        Ok(Self {
            input: zstd::Decoder::with_buffer(BufReader::with_capacity(READ, file))?,
            line: Vec::new(),
        })
    }

    /// Reads the next line and gives its key; `None` at the end.
    fn next(&mut self) -> io::Result<Option<Key>> {
        let key = match Key::read(&mut self.input) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            key => key?,
        };
        let mut len = [0; 4];
        self.input.read_exact(&mut len)?;
        self.line.resize(u32::from_le_bytes(len) as usize, 0);
        self.input.read_exact(&mut self.line)?;
        Ok(Some(key))
    }
}

/// Gives the lines of sorted pieces in order; of equal ones those of earlier pieces
/// first.
fn merge(
    mut pieces: Vec<Piece>,
    take: &mut dyn FnMut(Key, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut heap = BinaryHeap::new();
    for (index, piece) in pieces.iter_mut().enumerate() {
        heap.extend(piece.next()?.map(|key| Reverse((key, index))));
    }
    while let Some(Reverse((key, index))) = heap.pop() {
        if let Some(piece) = pieces.get_mut(index) {
            take(key, &piece.line)?;
            heap.extend(piece.next()?.map(|key| Reverse((key, index))));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(limit: usize, keys: &[Key]) -> (Vec<String>, usize) {
        let mut files = 0;
        let mut scratch = || {
            files += 1;
            tempfile::tempfile()
        };
        let mut sorter = Sorter::with_limit(limit);
        for (i, key) in keys.iter().enumerate() {
            sorter
                .push(*key, &format!("line {i}"), &mut scratch)
                .unwrap();
        }
        let mut lines = Vec::new();
        let mut take = |line: &[u8]| {
            lines.push(String::from_utf8(line.to_vec()).unwrap());
            Ok(())
        };
        sorter.finish(&mut take).unwrap();
        (lines, files)
    }

    #[test]
    fn the_order_is_the_same_with_and_without_files() {
        let mut random = 1_u64;
        let keys: Vec<Key> = (0..5000)
            .map(|_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                Key::span(random >> 56, random >> 40 & 3, (random >> 33 & 1) as u32)
            })
            .collect();
        let (in_memory, files) = sorted(usize::MAX, &keys);
        assert_eq!(files, 0);
        let mut expected: Vec<_> = keys.iter().enumerate().collect();
        expected.sort_by_key(|(_, key)| **key);
        let expected: Vec<_> = expected.iter().map(|(i, _)| format!("line {i}")).collect();
        assert_eq!(in_memory, expected);
        // Enough pieces for three levels of merging.
        let (with_files, files) = sorted(500, &keys);
        assert!(files > PIECES * PIECES, "{files}");
        assert_eq!(with_files, expected);
    }

    #[test]
    fn parents_come_first() {
        let keys = [
            Key::span(5, 0, 3),
            Key::span(5, 1, 2),
            Key::span(5, 9, 1),
            Key::span(5, 9, 0),
            Key::span(4, 0, 3),
        ];
        let (lines, _) = sorted(usize::MAX, &keys);
        assert_eq!(lines, ["line 4", "line 3", "line 2", "line 1", "line 0"]);
    }
}
