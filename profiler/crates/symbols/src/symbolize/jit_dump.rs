//! Names of JIT code from jitdump files (`jit-PID.dump`).
//!
//! Format: Linux `tools/perf/Documentation/jitdump-specification.txt`. The file grows
//! while the program runs: it is read on from where it ended before, and of a record
//! that is not whole yet nothing is taken. Machine code and unwind data are skipped.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use std::io::{BufRead, Seek, SeekFrom};
use std::time::Instant;

use rustc_hash::FxHashMap;

/// "JiTD", as a program of this machine's byte order writes it.
const MAGIC: u32 = 0x4A69_5444;
const VERSION: u32 = 1;
/// `EM_X86_64`.
const MACHINE_X86_64: u32 = 62;
const HEADER_BYTES: u32 = 40;
const PREFIX_BYTES: u32 = 16;
/// Bytes of `JIT_CODE_LOAD` in front of the name.
const LOAD_BYTES: u32 = 56;
const MOVE_BYTES: u32 = 64;
/// Bytes of `JIT_CODE_DEBUG_INFO` in front of the entries.
const DEBUG_BYTES: u32 = 32;
/// Flag in the header: times are the processor's counter.
const FLAG_ARCH_TIMESTAMP: u64 = 1;
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const CODE_DEBUG_INFO: u32 = 2;
const CODE_CLOSE: u32 = 3;
/// Longest name read; longer ones are cut.
const MAX_NAME: usize = 4096;
/// Largest record of line numbers read.
const MAX_DEBUG_BYTES: u32 = 4 << 20;
/// Most pairs of an address and a piece of code there that are looked at for one answer.
const MAX_COVERS: usize = 1 << 20;
/// Records between two looks at the clock.
const LOOK: u32 = 64;

/// Bounds for one jitdump file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JitDumpLimits {
    /// Most pieces of code, moved ones once more for each place. Default 131,072.
    pub codes: usize,
    /// Most bytes of the names of functions and files. Default 8 MiB.
    pub name_bytes: usize,
    /// Most line numbers. Default 524,288.
    pub lines: usize,
}

impl Default for JitDumpLimits {
    fn default() -> Self {
        Self {
            codes: 131_072,
            name_bytes: 8 << 20,
            lines: 1 << 19,
        }
    }
}

/// What became of the records of a jitdump file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JitDumpStats {
    /// Pieces of code taken.
    pub loaded: u64,
    /// Moves taken.
    pub moved: u64,
    /// Records refused: they contradict themselves.
    pub malformed: u64,
    /// Records of another process: a fork writes to the same file.
    pub foreign: u64,
    /// Line numbers refused: of no file that has a name, or fewer than were announced.
    pub bad_lines: u64,
    /// Records refused because the limits are reached.
    pub over_limit: u64,
}

/// Why a file is not read, or not on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum JitDumpError {
    /// Not the magic number.
    #[error("not a jitdump file")]
    NoDump,
    /// The other byte order, or another machine's code.
    #[error("a jitdump file from another kind of machine")]
    OtherMachine,
    /// A version that is not known.
    #[error("jitdump version {0} is not supported")]
    Version(u32),
    /// Times that samples do not have.
    #[error(
        "its times are values of the processor's counter, which aiprof cannot use: start the \
         program without the option that selects this clock"
    )]
    ArchTimestamp,
    /// A record that is shorter than its own begin: where the next is cannot be known.
    #[error("damaged: read up to byte {0}")]
    Damaged(u64),
}

/// A name or a file name, in the one text that holds them.
type TextRange = (u32, u32);

/// A function's code, wherever it is.
#[derive(Clone, Copy, Debug)]
struct JitCode {
    name: TextRange,
    /// In `lines`.
    lines: (u32, u32),
}

/// Code that comes to, or leaves, a place.
#[derive(Clone, Copy, Debug)]
struct Placement {
    start: u64,
    end: u64,
    since: u64,
    code: u32,
    leaves: bool,
}

/// A line number from an offset in the code on.
#[derive(Clone, Copy, Debug)]
struct JitLine {
    offset: u32,
    line: u32,
    file: TextRange,
}

/// What was at an address from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub since: u64,
    /// `None`: nothing.
    at: Option<At>,
}

/// A place in a piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At {
    code: u32,
    offset: u64,
}

/// The name and the line of a place in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JitName<'a> {
    /// As the program wrote it.
    pub name: &'a str,
    /// Its code.
    code: u32,
    /// From the code's begin.
    offset: u64,
}

/// What was read of a jitdump file.
#[derive(Debug, Default)]
pub(super) struct JitDump {
    limits: JitDumpLimits,
    /// Where the next record begins; 0: the header was not read.
    at: u64,
    pid: u32,
    is_closed: bool,
    error: Option<JitDumpError>,
    texts: String,
    files: FxHashMap<Box<str>, TextRange>,
    codes: Vec<JitCode>,
    /// Codes by their numbers in the file.
    by_index: FxHashMap<u64, u32>,
    placements: Vec<Placement>,
    lines: Vec<JitLine>,
    /// Line numbers that came before their code: its address, and those.
    pending: Option<(u64, (u32, u32))>,
    pub stats: JitDumpStats,
}

/// What reading came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordOutcome {
    /// A record was read.
    Read,
    /// No whole record is left.
    Wait,
}

impl JitDump {
    pub(super) fn new(limits: JitDumpLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Bytes read so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.at
    }

    /// Reads on. Returns whether all that is there was read before `deadline`.
    ///
    /// # Errors
    /// The file is none that can be read (on); what was read stays.
    pub(super) fn read(
        &mut self,
        reader: &mut (impl BufRead + Seek),
        deadline: Instant,
    ) -> Result<bool, JitDumpError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let read = self.read_records(reader, deadline);
        if let Err(error) = read {
            self.error = Some(error);
        }
        read
    }

    fn read_records(
        &mut self,
        reader: &mut (impl BufRead + Seek),
        deadline: Instant,
    ) -> Result<bool, JitDumpError> {
        let size = reader.seek(SeekFrom::End(0)).unwrap_or(0);
        if reader.seek(SeekFrom::Start(self.at)).is_err() {
            return Ok(true);
        }
        if self.at == 0 && self.header(reader)? == RecordOutcome::Wait {
            return Ok(true);
        }
        if reader.seek(SeekFrom::Start(self.at)).is_err() {
            return Ok(true);
        }
        let mut look = 0;
        while !self.is_closed && self.record(reader, size)? == RecordOutcome::Read {
            look += 1;
            if look % LOOK == 0 && Instant::now() > deadline {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn header(&mut self, reader: &mut impl BufRead) -> Result<RecordOutcome, JitDumpError> {
        let mut bytes = [0; HEADER_BYTES as usize];
        if reader.read_exact(&mut bytes).is_err() {
            return Ok(RecordOutcome::Wait);
        }
        let mut fields = NumberReader(&bytes);
        match fields.u32() {
            MAGIC => {}
            magic if magic == MAGIC.swap_bytes() => return Err(JitDumpError::OtherMachine),
            _ => return Err(JitDumpError::NoDump),
        }
        let (version, total, machine) = (fields.u32(), fields.u32(), fields.u32());
        let (_pad, pid, _time, flags) = (fields.u32(), fields.u32(), fields.u64(), fields.u64());
        if version != VERSION {
            return Err(JitDumpError::Version(version));
        }
        if machine != MACHINE_X86_64 && cfg!(target_arch = "x86_64") {
            return Err(JitDumpError::OtherMachine);
        }
        if flags & FLAG_ARCH_TIMESTAMP != 0 {
            return Err(JitDumpError::ArchTimestamp);
        }
        if total < HEADER_BYTES {
            return Err(JitDumpError::Damaged(0));
        }
        self.pid = pid;
        self.at = u64::from(total);
        Ok(RecordOutcome::Read)
    }

    /// Reads the record at `self.at`, where the reader is, if the file has it whole.
    fn record(
        &mut self,
        reader: &mut (impl BufRead + Seek),
        size: u64,
    ) -> Result<RecordOutcome, JitDumpError> {
        let mut prefix = [0; PREFIX_BYTES as usize];
        if size.saturating_sub(self.at) < u64::from(PREFIX_BYTES)
            || reader.read_exact(&mut prefix).is_err()
        {
            return Ok(RecordOutcome::Wait);
        }
        let mut fields = NumberReader(&prefix);
        let (id, total, time) = (fields.u32(), fields.u32(), fields.u64());
        if total < PREFIX_BYTES {
            return Err(JitDumpError::Damaged(self.at));
        }
        let end = self.at + u64::from(total);
        if end > size {
            return Ok(RecordOutcome::Wait);
        }
        let body = total - PREFIX_BYTES;
        let wanted = match id {
            CODE_LOAD => body.min(LOAD_BYTES - PREFIX_BYTES + MAX_NAME as u32 + 1),
            CODE_MOVE => body.min(MOVE_BYTES - PREFIX_BYTES),
            CODE_DEBUG_INFO if body <= MAX_DEBUG_BYTES => body,
            _ => 0,
        };
        let mut bytes = vec![0; wanted as usize];
        if reader.read_exact(&mut bytes).is_err() {
            // Cut short meanwhile.
            return Ok(RecordOutcome::Wait);
        }
        let taken = match id {
            CODE_LOAD => self.load(time, total, &bytes),
            CODE_MOVE => self.moved(time, &bytes),
            CODE_DEBUG_INFO if wanted == body => self.debug_info(&bytes),
            CODE_DEBUG_INFO => Err(RefusedRecord::OverLimit),
            CODE_CLOSE => {
                self.is_closed = true;
                Ok(())
            }
            _ => Ok(()),
        };
        match taken {
            Ok(()) => {}
            Err(RefusedRecord::Malformed) => self.stats.malformed += 1,
            Err(RefusedRecord::Foreign) => self.stats.foreign += 1,
            Err(RefusedRecord::OverLimit) => self.stats.over_limit += 1,
        }
        self.at = end;
        let skip = i64::from(body - wanted);
        match reader.seek_relative(skip) {
            Ok(()) => Ok(RecordOutcome::Read),
            Err(_) => Ok(RecordOutcome::Wait),
        }
    }

    fn load(&mut self, time: u64, total: u32, bytes: &[u8]) -> Result<(), RefusedRecord> {
        let pending = self.pending.take();
        let (fixed, rest) = bytes
            .split_at_checked((LOAD_BYTES - PREFIX_BYTES) as usize)
            .ok_or(RefusedRecord::Malformed)?;
        let mut fields = NumberReader(fixed);
        let (pid, _tid, _vma) = (fields.u32(), fields.u32(), fields.u64());
        let (start, size, index) = (fields.u64(), fields.u64(), fields.u64());
        let end = start.checked_add(size).ok_or(RefusedRecord::Malformed)?;
        let name = rest.split(|&b| b == 0).next().unwrap_or_default();
        // The code is behind the name and its zero.
        let behind = u64::from(LOAD_BYTES) + name.len() as u64 + 1;
        let fits = behind
            .checked_add(size)
            .is_some_and(|all| all <= u64::from(total));
        let is_cut = name.len() > MAX_NAME;
        if size == 0 || name.is_empty() || !(fits || is_cut && size < u64::from(total)) {
            return Err(RefusedRecord::Malformed);
        }
        if pid != self.pid {
            return Err(RefusedRecord::Foreign);
        }
        let name = String::from_utf8_lossy(&name[..name.len().min(MAX_NAME)]);
        if self.codes.len() >= self.limits.codes || self.placements.len() >= self.limits.codes {
            return Err(RefusedRecord::OverLimit);
        }
        let name = self.text(&name)?;
        let lines = match pending {
            Some((address, lines)) if address == start => lines,
            _ => (0, 0),
        };
        let code = self.codes.len() as u32;
        self.codes.push(JitCode { name, lines });
        self.by_index.insert(index, code);
        self.placements.push(Placement {
            start,
            end,
            since: time,
            code,
            leaves: false,
        });
        self.stats.loaded += 1;
        Ok(())
    }

    fn moved(&mut self, time: u64, bytes: &[u8]) -> Result<(), RefusedRecord> {
        if bytes.len() < (MOVE_BYTES - PREFIX_BYTES) as usize {
            return Err(RefusedRecord::Malformed);
        }
        let mut fields = NumberReader(bytes);
        let (pid, _tid, _vma) = (fields.u32(), fields.u32(), fields.u64());
        let (old, new) = (fields.u64(), fields.u64());
        let (size, index) = (fields.u64(), fields.u64());
        if pid != self.pid {
            return Err(RefusedRecord::Foreign);
        }
        let &code = self.by_index.get(&index).ok_or(RefusedRecord::Malformed)?;
        let (Some(old_end), Some(new_end)) = (old.checked_add(size), new.checked_add(size)) else {
            return Err(RefusedRecord::Malformed);
        };
        if size == 0 {
            return Err(RefusedRecord::Malformed);
        }
        if self.placements.len() + 2 > self.limits.codes {
            return Err(RefusedRecord::OverLimit);
        }
        let from = Placement {
            start: old,
            end: old_end,
            since: time,
            code,
            leaves: true,
        };
        self.placements.push(from);
        self.placements.push(Placement {
            start: new,
            end: new_end,
            leaves: false,
            ..from
        });
        self.stats.moved += 1;
        Ok(())
    }

    /// Line numbers, which belong to the code that is loaded next.
    fn debug_info(&mut self, bytes: &[u8]) -> Result<(), RefusedRecord> {
        self.pending = None;
        let (fixed, mut rest) = bytes
            .split_at_checked((DEBUG_BYTES - PREFIX_BYTES) as usize)
            .ok_or(RefusedRecord::Malformed)?;
        let mut fields = NumberReader(fixed);
        let (start, count) = (fields.u64(), fields.u64());
        let first = self.lines.len();
        let mut file = None;
        for _ in 0..count {
            let Some((address, line, name, behind)) = debug_entry(rest) else {
                self.lines.truncate(first);
                self.stats.bad_lines += 1;
                return Ok(());
            };
            rest = behind;
            // The name of the entry before.
            if name != b"\xff" {
                // V8 11 writes what the collector has left of some names.
                file = match std::str::from_utf8(name) {
                    Ok(name) if !name.chars().any(char::is_control) => Some(self.file(name)?),
                    _ => None,
                };
                self.stats.bad_lines += u64::from(file.is_none());
            }
            let (Some(file), Some(offset)) = (file, address.checked_sub(start)) else {
                continue;
            };
            let Ok(offset) = u32::try_from(offset) else {
                continue;
            };
            if self.lines.len() >= self.limits.lines {
                return Err(RefusedRecord::OverLimit);
            }
            self.lines.push(JitLine { offset, line, file });
        }
        let last = self.lines.len();
        self.lines[first..].sort_by_key(|line| line.offset);
        self.pending = Some((start, (first as u32, last as u32)));
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<TextRange, RefusedRecord> {
        if self.texts.len() + text.len() > self.limits.name_bytes {
            return Err(RefusedRecord::OverLimit);
        }
        let at = self.texts.len() as u32;
        self.texts.push_str(text);
        Ok((at, text.len() as u32))
    }

    /// The name of a file, each once.
    fn file(&mut self, name: &str) -> Result<TextRange, RefusedRecord> {
        if let Some(&known) = self.files.get(name) {
            return Ok(known);
        }
        let name = name.get(..MAX_NAME).unwrap_or(name);
        let text = self.text(name)?;
        self.files.insert(name.into(), text);
        Ok(text)
    }

    fn str(&self, (at, len): TextRange) -> &str {
        let at = at as usize;
        self.texts.get(at..at + len as usize).unwrap_or_default()
    }

    /// What was at each address, ascending by time: the latest changes of each address, at most
    /// `most` in all. Nothing where so much is at the same places that the search would take long.
    pub(super) fn changes(&self, addresses: &[u64], most: usize) -> Vec<Vec<Change>> {
        let mut sorted: Vec<usize> = (0..addresses.len()).collect();
        sorted.sort_by_key(|&i| addresses[i]);
        let each = (most / addresses.len().max(1)).max(1);
        let mut order: Vec<&Placement> = self.placements.iter().collect();
        // Among equal times, what was written later is later.
        order.sort_by_key(|placement| placement.since);
        let mut all: Vec<Vec<Change>> = vec![Vec::new(); addresses.len()];
        let mut left = MAX_COVERS;
        for placement in order {
            let first = sorted.partition_point(|&i| addresses[i] < placement.start);
            let covered = sorted.get(first..).unwrap_or_default().iter();
            for &index in covered.take_while(|&&i| addresses[i] < placement.end) {
                let at = At {
                    code: placement.code,
                    offset: addresses[index] - placement.start,
                };
                add(&mut all[index], placement, at);
                left -= 1;
                if left == 0 {
                    return vec![Vec::new(); addresses.len()];
                }
            }
        }
        for changes in &mut all {
            changes.drain(..changes.len().saturating_sub(each));
        }
        all
    }

    /// The name of what came with a change; `None`: nothing did.
    pub(super) fn name(&self, change: Change) -> Option<JitName<'_>> {
        let at = change.at?;
        let code = self.codes.get(at.code as usize)?;
        Some(JitName {
            name: self.str(code.name),
            code: at.code,
            offset: at.offset,
        })
    }

    /// File and line of a place in code. `shift`: what the program added to the addresses
    /// of its line numbers.
    pub(super) fn line(&self, place: JitName<'_>, shift: u64) -> Option<(&str, u32)> {
        let (first, last) = self.codes.get(place.code as usize)?.lines;
        let lines = self.lines.get(first as usize..last as usize)?;
        let offset = place.offset + shift;
        let after = lines.partition_point(|line| u64::from(line.offset) <= offset);
        // In front of the first line the code belongs to it: the function's entry.
        let line = lines.get(after.saturating_sub(1))?;
        Some((self.str(line.file), line.line))
    }
}

/// The first of some entries of `JIT_CODE_DEBUG_INFO`, address, line and file, and those
/// behind it.
fn debug_entry(entries: &[u8]) -> Option<(u64, u32, &[u8], &[u8])> {
    let (fixed, text) = entries.split_at_checked(16)?;
    let len = text.iter().position(|&b| b == 0)?;
    let mut fields = NumberReader(fixed);
    let (address, line) = (fields.u64(), fields.u32());
    Some((address, line, &text[..len], &text[len + 1..]))
}

/// Adds what comes with a placement to what was at an address.
fn add(changes: &mut Vec<Change>, placement: &Placement, at: At) {
    let last = changes.last().copied();
    let at = match (placement.leaves, last.and_then(|last| last.at)) {
        // Something else came there meanwhile, or it was not known that it was there.
        (true, known) if known.is_none_or(|known| known.code != placement.code) => return,
        (true, _) => None,
        (false, known) if known == Some(at) => return,
        (false, _) => Some(at),
    };
    let change = Change {
        since: placement.since,
        at,
    };
    match changes.last_mut() {
        Some(last) if last.since == placement.since => *last = change,
        _ => changes.push(change),
    }
}

/// Why a record was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusedRecord {
    Malformed,
    Foreign,
    OverLimit,
}

/// Numbers one after the other; zero behind the end.
struct NumberReader<'a>(&'a [u8]);

impl NumberReader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((number, rest)) = self.0.split_first_chunk() else {
            self.0 = &[];
            return [0; N];
        };
        self.0 = rest;
        *number
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }
}

#[cfg(test)]
#[path = "jit_dump_tests.rs"]
pub(super) mod tests;
