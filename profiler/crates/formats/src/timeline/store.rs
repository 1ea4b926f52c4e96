//! Puts events in order of time with a bounded amount of memory.
//!
//! Calls become known in the order of their ends, and readers want the order of their
//! begins. What does not fit into memory is sorted in pieces that wait in temporary
//! files, and is merged from there.
//!
//! An event is 64 bytes, little-endian, and its arguments: begin and length in
//! picoseconds (2 x i64), correlation (u64), number of a flow (i64), depth, track, name,
//! category, work, stack (6 x u32), kind, quality, marks, nothing (4 x u8), bytes of the
//! arguments (u32).

use aiprof_model::timeline::{
    Event, Id, Length, Ph, Quality, Sym, Time, TrackId, recorded::EventSink,
};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write},
};

/// Bytes of events held in memory.
const BUFFER: usize = 24 << 20;
/// Sorted pieces of about equal size before they become one: as many files are
/// open, times the logarithm of the whole.
const PIECES: usize = 16;
/// The compressor looks back 32 KiB, and files are read in such pieces: that bounds
/// what each open piece needs.
const WINDOW_LOG: u32 = 15;
const READ: usize = 1 << WINDOW_LOG;
/// Bytes of an event without its arguments.
const SIZE: usize = 64;

/// Gives an empty file for reading and writing that has no name, or will lose it.
pub type Scratch = Box<dyn FnMut() -> io::Result<File> + Send>;

/// Takes an event and its arguments.
type Take<'a> = dyn FnMut(&Event, &str) -> io::Result<()> + 'a;

/// Where an event belongs: its time; then the longer spans, so that parents come
/// before what is in them; then the outer ones.
type Key = (i64, Reverse<i64>, u32);

/// Events that are being put in order. Events with equal keys keep their order.
pub struct Store {
    scratch: Scratch,
    bytes: Vec<u8>,
    /// Key, and where in `bytes` it begins.
    events: Vec<(Key, u32)>,
    /// Sorted pieces, by size; those of a level are about equal.
    levels: Vec<Vec<File>>,
    limit: usize,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("levels", &self.levels.len())
            .finish_non_exhaustive()
    }
}

impl EventSink for Store {
    fn event(&mut self, event: &Event, depth: u32, args: &str) -> io::Result<()> {
        let at = u32::try_from(self.bytes.len()).map_err(io::Error::other)?;
        let len = u32::try_from(args.len()).map_err(io::Error::other)?;
        self.bytes.extend_from_slice(&encode(event, depth, len));
        self.bytes.extend_from_slice(args.as_bytes());
        self.events.push((key(event, depth), at));
        let held = self.bytes.len() + self.events.len() * size_of::<(Key, u32)>();
        if held >= self.limit {
            self.spill()?;
        }
        Ok(())
    }
}

impl Store {
    /// An empty one; temporary files come from `scratch`.
    pub fn new(scratch: Scratch) -> Self {
        Self::with_limit(BUFFER, scratch)
    }

    /// One that keeps about so many bytes in memory.
    fn with_limit(limit: usize, scratch: Scratch) -> Self {
        Self {
            scratch,
            bytes: Vec::new(),
            events: Vec::new(),
            levels: Vec::new(),
            limit,
        }
    }

    /// Gives all events in order.
    ///
    /// # Errors
    /// Those of the temporary files and of `take`.
    pub fn read(mut self, take: &mut Take<'_>) -> io::Result<()> {
        self.events.sort_by_key(|(key, _)| *key);
        let mut pieces: Vec<Piece> = Vec::new();
        // Larger pieces are older: equal keys keep their order.
        for file in self.levels.drain(..).rev().flatten() {
            pieces.push(Piece::open(file)?);
        }
        let mut held = self.events.iter().peekable();
        let bytes = &self.bytes;
        merge(pieces, &mut |key, record| {
            while let Some((_, at)) = held.next_if(|(held, _)| *held < key) {
                give(record_at(bytes, *at), take)?;
            }
            give(record, take)
        })?;
        held.try_for_each(|(_, at)| give(record_at(bytes, *at), take))
    }

    fn spill(&mut self) -> io::Result<()> {
        self.events.sort_by_key(|(key, _)| *key);
        let mut piece = PieceWriter::new((self.scratch)()?)?;
        for &(_, at) in &self.events {
            piece.add(record_at(&self.bytes, at))?;
        }
        self.events.clear();
        self.bytes.clear();
        self.keep(0, piece.finish()?)
    }

    /// Keeps a piece; merges those of its size when there are many.
    fn keep(&mut self, level: usize, piece: File) -> io::Result<()> {
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
        let mut merged = PieceWriter::new((self.scratch)()?)?;
        merge(open.collect::<io::Result<_>>()?, &mut |_, record| {
            merged.add(record)
        })?;
        self.keep(level + 1, merged.finish()?)
    }
}

fn key(event: &Event, depth: u32) -> Key {
    // The ends of arrows come after the spans that begin then.
    let length = if event.is_slice() { event.length.0 } else { -1 };
    (event.start.0, Reverse(length), depth)
}

/// The event that begins there, with its arguments.
fn record_at(bytes: &[u8], at: u32) -> &[u8] {
    let from = bytes.get(at as usize..).unwrap_or_default();
    let len = number::<4>(from, 60).map_or(0, u32::from_le_bytes);
    from.get(..SIZE + len as usize).unwrap_or_default()
}

fn encode(event: &Event, depth: u32, args: u32) -> [u8; SIZE] {
    let mut out = [0; SIZE];
    let flow = event.id.number();
    let marks = u8::from(event.binds_enclosing) | u8::from(flow.is_some()) << 1;
    let longs = [
        event.start.0,
        event.length.0,
        event.correlation.cast_signed(),
        flow.unwrap_or(0),
    ];
    let words = [
        depth,
        event.track.0,
        event.name.index() as u32,
        event.cat.index() as u32,
        event.work.index() as u32,
        event.stack,
        u32::from_le_bytes([event.ph as u8, event.quality as u8, marks, 0]),
        args,
    ];
    let (long, word) = out.split_at_mut(32);
    for (to, from) in long.chunks_exact_mut(8).zip(longs) {
        to.copy_from_slice(&from.to_le_bytes());
    }
    for (to, from) in word.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&from.to_le_bytes());
    }
    out
}

fn number<const N: usize>(record: &[u8], at: usize) -> Option<[u8; N]> {
    record.get(at..)?.first_chunk().copied()
}

/// The event of a record, and how many spans are around it. `None`: it is damaged.
fn decode(record: &[u8]) -> Option<(Event, u32, &str)> {
    let long = |index: usize| number(record, 8 * index).map(i64::from_le_bytes);
    let word = |index: usize| number(record, 32 + 4 * index).map(u32::from_le_bytes);
    let [ph, quality, marks, _] = word(6)?.to_le_bytes();
    let ph = Ph::of(std::str::from_utf8(&[ph]).ok()?)?;
    let mut event = Event::new(ph, Sym::at(word(2)?), TrackId(word(1)?), Time(long(0)?));
    event.length = Length(long(1)?);
    event.correlation = long(2)?.cast_unsigned();
    if marks & 2 != 0 {
        event.id = Id::Number(long(3)?);
    }
    event.binds_enclosing = marks & 1 != 0;
    event.cat = Sym::at(word(3)?);
    event.work = Sym::at(word(4)?);
    event.stack = word(5)?;
    event.quality = match quality {
        0 => Quality::Exact,
        1 => Quality::Bounded,
        _ => Quality::Estimated,
    };
    let args = std::str::from_utf8(record.get(SIZE..)?).ok()?;
    Some((event, word(0)?, args))
}

fn give(record: &[u8], take: &mut Take<'_>) -> io::Result<()> {
    let (event, _, args) = decode(record).ok_or(io::ErrorKind::InvalidData)?;
    take(&event, args)
}

/// A sorted piece that is being written.
struct PieceWriter(zstd::Encoder<'static, BufWriter<File>>);

impl PieceWriter {
    fn new(file: File) -> io::Result<Self> {
        let mut out = zstd::Encoder::new(BufWriter::new(file), 1)?;
        out.window_log(WINDOW_LOG)?;
        Ok(Self(out))
    }

    fn add(&mut self, record: &[u8]) -> io::Result<()> {
        self.0.write_all(record)
    }

    fn finish(self) -> io::Result<File> {
        let file = self.0.finish()?.into_inner();
        file.map_err(io::IntoInnerError::into_error)
    }
}

/// A sorted piece that is being read.
struct Piece {
    input: zstd::Decoder<'static, BufReader<File>>,
    record: Vec<u8>,
}

impl Piece {
    fn open(mut file: File) -> io::Result<Self> {
        file.seek(SeekFrom::Start(0))?;
        Ok(Self {
            input: zstd::Decoder::with_buffer(BufReader::with_capacity(READ, file))?,
            record: vec![0; SIZE],
        })
    }

    /// Reads the next event and gives its key; `None` at the end.
    fn next(&mut self) -> io::Result<Option<Key>> {
        self.record.resize(SIZE, 0);
        match self.input.read_exact(&mut self.record) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let Some((event, depth, _)) = decode(&self.record) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let len = number::<4>(&self.record, 60).map_or(0, u32::from_le_bytes);
        self.record.resize(SIZE + len as usize, 0);
        let args = self.record.get_mut(SIZE..).unwrap_or_default();
        self.input.read_exact(args)?;
        Ok(Some(key(&event, depth)))
    }
}

/// Gives the events of sorted pieces in order; of equal ones those of earlier pieces
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
            take(key, &piece.record)?;
            heap.extend(piece.next()?.map(|key| Reverse((key, index))));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    fn span(start: i64, length: i64) -> Event {
        let mut event = Event::new(Ph::Complete, Sym::at(3), TrackId(7), Time(start));
        event.length = Length(length);
        event
    }

    fn sorted(limit: usize, events: &[(Event, u32)]) -> (Vec<String>, usize) {
        let files = Arc::new(AtomicUsize::new(0));
        let made = files.clone();
        let scratch = move || {
            made.fetch_add(1, Ordering::Relaxed);
            tempfile::tempfile()
        };
        let mut store = Store::with_limit(limit, Box::new(scratch));
        for (i, (event, depth)) in events.iter().enumerate() {
            store.event(event, *depth, &format!("args {i}")).unwrap();
        }
        let mut lines = Vec::new();
        let mut take = |_: &Event, args: &str| {
            lines.push(args.to_owned());
            Ok(())
        };
        store.read(&mut take).unwrap();
        (lines, files.load(Ordering::Relaxed))
    }

    #[test]
    fn the_order_is_the_same_with_and_without_files() {
        let mut random = 1_u64;
        let events: Vec<_> = (0..5000)
            .map(|_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let event = span((random >> 56) as i64, (random >> 40 & 3) as i64);
                (event, (random >> 33 & 1) as u32)
            })
            .collect();
        let (in_memory, files) = sorted(usize::MAX, &events);
        assert_eq!(files, 0);
        let mut expected: Vec<_> = events.iter().enumerate().collect();
        expected.sort_by_key(|(_, (event, depth))| key(event, *depth));
        let expected: Vec<_> = expected.iter().map(|(i, _)| format!("args {i}")).collect();
        assert_eq!(in_memory, expected);
        // Enough pieces for three levels of merging.
        let (with_files, files) = sorted(1500, &events);
        assert!(files > PIECES * PIECES, "{files}");
        assert_eq!(with_files, expected);
    }

    #[test]
    fn parents_come_first_and_arrows_last() {
        let mut arrow = span(5, 0);
        arrow.ph = Ph::FlowStart;
        let events = [
            (arrow, u32::MAX),
            (span(5, 0), 3),
            (span(5, 1), 2),
            (span(5, 9), 1),
            (span(5, 9), 0),
            (span(4, 0), 3),
        ];
        let (lines, _) = sorted(usize::MAX, &events);
        assert_eq!(
            lines,
            ["args 5", "args 4", "args 3", "args 2", "args 1", "args 0"]
        );
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let mut event = span(-5, 1 << 50);
        event.correlation = u64::MAX;
        event.id = Id::Number(1 << 40);
        event.cat = Sym::at(1);
        event.work = Sym::at(2);
        event.stack = 9;
        event.quality = Quality::Bounded;
        event.binds_enclosing = true;
        for event in [event, span(0, 0)] {
            let args = "\"a\":\"é\"";
            let mut record = encode(&event, 4, args.len() as u32).to_vec();
            record.extend_from_slice(args.as_bytes());
            let (read, depth, text) = decode(&record).unwrap();
            assert_eq!((depth, text), (4, args));
            assert_eq!(format!("{read:?}"), format!("{event:?}"));
            assert_eq!(record_at(&record, 0), record);
            for len in 0..SIZE {
                assert!(decode(&record[..len]).is_none());
            }
        }
    }
}
