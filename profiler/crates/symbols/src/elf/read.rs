//! Reading a file by offset, without mapping it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Why a file is no usable ELF file.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// The system's word.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Other first bytes.
    #[error("not an ELF file")]
    NotElf,
    /// Big endian on a little-endian machine, or the other way around.
    #[error("byte order differs from this machine's")]
    ForeignEndian,
    /// For another machine than x86-64 where only that is read; holds `e_machine`.
    #[error("not an x86-64 ELF file (machine {0})")]
    ForeignMachine(u16),
    /// What contradicts itself in it.
    #[error("{0}")]
    Malformed(&'static str),
    /// The file ends within what is named.
    #[error("truncated: {0}")]
    Truncated(&'static str),
    /// What is named exceeds a limit.
    #[error("too large: {0}")]
    TooLarge(&'static str),
}

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileRange {
    /// Where it begins.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// Bytes that can be read at an offset.
///
/// Files are read with `pread` and never mapped: a file that shrinks while it
/// is read gives a short read, where a mapping would end the process.
pub trait ReadAt: Send {
    /// Reads up to `buf.len()` bytes at `offset`; 0 at and after the end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buf, offset)
    }
}

impl ReadAt for &[u8] {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|at| self.get(at..))
            .unwrap_or_default();
        let n = rest.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), rest.get(..n)) {
            to.copy_from_slice(from);
        }
        Ok(n)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.as_slice().read_at(buf, offset)
    }
}

/// Fills as much of `buf` as the source has at `offset`; the count is short
/// only at the end of the source.
pub(crate) fn read_full<R: ReadAt>(source: &R, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        // An offset off_t cannot hold is past any file's end; pread would call
        // it an error.
        let at = match offset.checked_add(done as u64) {
            Some(at) if i64::try_from(at).is_ok() => at,
            _ => break,
        };
        match source.read_at(rest, at) {
            Ok(0) => break,
            Ok(n) => done += n.min(rest.len()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// All bytes of a range, of which there may be `most`.
///
/// # Errors
/// There are more, the source ends before, or its own.
pub(super) fn read_all<R: ReadAt>(
    source: &R,
    range: FileRange,
    most: u64,
) -> Result<Vec<u8>, ElfError> {
    if range.size > most {
        return Err(ElfError::Malformed("header table too large"));
    }
    let size = usize::try_from(range.size).map_err(|_| ElfError::Malformed("size"))?;
    let mut bytes = vec![0; size];
    match read_full(source, &mut bytes, range.offset)? {
        n if n < size => Err(ElfError::Malformed("truncated")),
        _ => Ok(bytes),
    }
}

/// A piece of a source, read in chunks: neighbouring requests share one read.
pub(crate) struct ReadWindow {
    start: u64,
    data: Vec<u8>,
    chunk: usize,
}

impl ReadWindow {
    /// An empty window that reads `chunk` bytes at a time.
    pub(crate) fn new(chunk: usize) -> Self {
        Self {
            start: 0,
            data: Vec::new(),
            chunk,
        }
    }

    /// The `len` bytes at `offset`; fewer only at the end of the source. The
    /// caller bounds `len`.
    pub(crate) fn get<R: ReadAt>(
        &mut self,
        source: &R,
        offset: u64,
        len: usize,
    ) -> io::Result<&[u8]> {
        if !self.holds(offset, len) {
            self.data.resize(len.max(self.chunk), 0);
            let n = read_full(source, &mut self.data, offset).inspect_err(|_| self.data.clear())?;
            self.data.truncate(n);
            self.start = offset;
        }
        let at = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        let rest = self.data.get(at..).unwrap_or_default();
        Ok(rest.get(..len).unwrap_or(rest))
    }

    /// Whether the bytes are here already.
    fn holds(&self, offset: u64, len: usize) -> bool {
        offset
            .checked_sub(self.start)
            .and_then(|at| at.checked_add(len as u64))
            .is_some_and(|end| end <= self.data.len() as u64)
    }
}

/// The two bytes at an offset as a number.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The four bytes at an offset as a number.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The four bytes at an offset as a number with a sign.
pub(crate) fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The eight bytes at an offset as a number.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_gives_the_bytes_of_the_source() {
        let source: Vec<u8> = (0..=255).collect();
        let mut window = ReadWindow::new(16);
        for (offset, len) in [(0, 4), (10, 6), (10, 7), (3, 1), (100, 64), (250, 6)] {
            let got = window.get(&source, offset as u64, len).unwrap();
            assert_eq!(got, &source[offset..offset + len]);
        }
    }

    #[test]
    fn window_is_short_at_the_end_and_past_it() {
        let source: Vec<u8> = vec![7; 10];
        let mut window = ReadWindow::new(16);
        assert_eq!(window.get(&source, 8, 4).unwrap(), &[7, 7]);
        assert!(window.get(&source, 11, 4).unwrap().is_empty());
        assert!(window.get(&source, u64::MAX, 4).unwrap().is_empty());
        let file = tempfile::tempfile().unwrap();
        assert!(window.get(&file, u64::MAX - 2, 4).unwrap().is_empty());
    }
}
