//! Puts events in order of time with a bounded amount of memory.
//!
//! Calls become known in the order of their ends, and readers want the order of their
//! begins. What does not fit into memory is sorted in pieces that wait in temporary
//! files, and is merged from there.

mod record;

use self::record::{Key, SIZE, decode, encode, key, record_at, size_of_record};
use aiprof_model::parallel;
use aiprof_model::timeline::{Event, Members, recorded::EventSink};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write},
    sync::mpsc::{SyncSender, sync_channel},
    thread::{self, JoinHandle},
};

/// Bytes of events held in memory; as many are on their way to a file.
const BUFFER: usize = 12 << 20;
/// Sorted pieces of about equal size before they become one: as many files are
/// open, times the logarithm of the whole.
const PIECES: usize = 32;
/// The level of zstd: time counts for more than room.
const LEVEL: i32 = -3;
/// The compressor looks back 32 KiB, and files are read in such pieces: that bounds
/// what each open piece needs.
const WINDOW_LOG: u32 = 15;
const READ: usize = 1 << WINDOW_LOG;
/// Bytes of events that are handed on at a time, and how many such batches wait.
const BATCH: usize = 1 << 17;
const AHEAD: usize = 4;

/// Gives an empty file for reading and writing that has no name, or will lose it.
pub type Scratch = Box<dyn FnMut() -> io::Result<File> + Send>;

/// Takes an event and its arguments.
type Take<'a> = dyn FnMut(&Event, Members<'_>) -> io::Result<()> + 'a;

/// Events in memory.
#[derive(Default)]
struct HeldEvents {
    bytes: Vec<u8>,
    /// Key, and where in `bytes` it begins.
    events: Vec<(Key, u32)>,
}

impl HeldEvents {
    fn sort(&mut self) {
        self.events.sort_by_key(|(key, _)| *key);
    }
}

/// Events that are being put in order. Events with equal keys keep their order.
pub struct Store {
    scratch: Scratch,
    held: HeldEvents,
    /// The piece that is being written.
    spilling: Option<JoinHandle<io::Result<(File, HeldEvents)>>>,
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
    fn event(&mut self, event: &Event, depth: u32, args: Members<'_>) -> io::Result<()> {
        let args = args.bytes();
        let held = &mut self.held;
        let at = u32::try_from(held.bytes.len()).map_err(io::Error::other)?;
        encode(&mut held.bytes, event, depth, args)?;
        held.events.push((key(event, depth), at));
        let size = held.bytes.len() + held.events.len() * size_of::<(Key, u32)>();
        if size >= self.limit {
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

    /// A store that keeps about `limit` bytes in memory.
    fn with_limit(limit: usize, scratch: Scratch) -> Self {
        Self {
            scratch,
            held: HeldEvents::default(),
            spilling: None,
            levels: Vec::new(),
            limit,
        }
    }

    /// Gives all events in order. Another thread brings them.
    ///
    /// # Errors
    /// Those of the temporary files and of `take`.
    pub fn read(mut self, take: &mut Take<'_>) -> io::Result<()> {
        let (to, batches) = sync_channel::<Vec<u8>>(AHEAD);
        let (taken, brought) = parallel::both(
            || batches.into_iter().try_for_each(|batch| give(&batch, take)),
            move || self.bring(&mut Batches::new(to)),
        );
        taken.and(brought)
    }

    /// Hands on all records in order.
    fn bring(&mut self, to: &mut Batches) -> io::Result<()> {
        self.settle()?;
        self.held.sort();
        let mut pieces: Vec<EventPiece> = Vec::new();
        // Larger pieces are older: equal keys keep their order.
        for file in self.levels.drain(..).rev().flatten() {
            pieces.push(EventPiece::open(file)?);
        }
        let bytes = &self.held.bytes;
        let mut held = self.held.events.iter().peekable();
        merge(pieces, &mut |key, record| {
            while let Some((_, at)) = held.next_if(|(held, _)| *held < key) {
                to.add(record_at(bytes, *at))?;
            }
            to.add(record)
        })?;
        held.try_for_each(|(_, at)| to.add(record_at(bytes, *at)))?;
        to.flush()
    }

    /// Has what is held put into a file, by another thread.
    fn spill(&mut self) -> io::Result<()> {
        let spare = self.settle()?;
        let mut full = std::mem::replace(&mut self.held, spare);
        let file = (self.scratch)()?;
        self.spilling = Some(thread::spawn(move || {
            full.sort();
            let mut piece = PieceWriter::new(file)?;
            for &(_, at) in &full.events {
                piece.add(record_at(&full.bytes, at))?;
            }
            full.events.clear();
            full.bytes.clear();
            Ok((piece.finish()?, full))
        }));
        Ok(())
    }

    /// Waits for the piece that is being written; gives its memory for more.
    fn settle(&mut self) -> io::Result<HeldEvents> {
        let Some(spilling) = self.spilling.take() else {
            return Ok(HeldEvents::default());
        };
        match spilling.join() {
            Ok(written) => {
                let (piece, spare) = written?;
                self.keep(0, piece)?;
                Ok(spare)
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
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
        let open = full.into_iter().map(EventPiece::open);
        let mut merged = PieceWriter::new((self.scratch)()?)?;
        merge(open.collect::<io::Result<_>>()?, &mut |_, record| {
            merged.add(record)
        })?;
        self.keep(level + 1, merged.finish()?)
    }
}

/// Gives the events of a batch.
fn give(mut batch: &[u8], take: &mut Take<'_>) -> io::Result<()> {
    while !batch.is_empty() {
        let record = record_at(batch, 0);
        let (event, _, args) = decode(record).ok_or(io::ErrorKind::InvalidData)?;
        take(&event, args)?;
        batch = batch.get(record.len()..).unwrap_or_default();
    }
    Ok(())
}

/// Hands records on, many at a time.
struct Batches {
    to: SyncSender<Vec<u8>>,
    batch: Vec<u8>,
}

impl Batches {
    fn new(to: SyncSender<Vec<u8>>) -> Self {
        let batch = Vec::with_capacity(BATCH);
        Self { to, batch }
    }

    fn add(&mut self, record: &[u8]) -> io::Result<()> {
        if self.batch.len() + record.len() > BATCH {
            self.flush()?;
        }
        self.batch.extend_from_slice(record);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let full = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        // The receiver has failed, and reports why.
        self.to.send(full).map_err(io::Error::other)
    }
}

/// A sorted piece that is being written.
struct PieceWriter(zstd::Encoder<'static, BufWriter<File>>);

impl PieceWriter {
    fn new(file: File) -> io::Result<Self> {
        let mut out = zstd::Encoder::new(BufWriter::new(file), LEVEL)?;
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
struct EventPiece {
    input: zstd::Decoder<'static, BufReader<File>>,
    record: Vec<u8>,
}

impl EventPiece {
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
        self.record.resize(size_of_record(&self.record), 0);
        let rest = self.record.get_mut(SIZE..).unwrap_or_default();
        self.input.read_exact(rest)?;
        match decode(&self.record) {
            Some((event, depth, _)) => Ok(Some(key(&event, depth))),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Gives the events of sorted pieces in order; of equal ones those of earlier pieces
/// first.
fn merge(
    mut pieces: Vec<EventPiece>,
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
    use aiprof_model::timeline::{Length, Ph, Sym, Time, TrackId};
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
            let args = format!("args {i}");
            let args = Members::of(args.as_bytes());
            store.event(event, *depth, args).unwrap();
        }
        let mut lines = Vec::new();
        let mut take = |_: &Event, args: Members<'_>| {
            lines.push(String::from_utf8_lossy(args.bytes()).into_owned());
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
        let (with_files, files) = sorted(250, &events);
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
}
