//! What a process that ran before the recording holds in its memory: device code
//! and, behind kernel handles, kernel names.
//!
//! Only reads, through `/proc/PID/mem`: the process is neither stopped nor
//! changed, so everything read may change meanwhile and is checked before it is
//! believed.
//!
//! * [`guard`]: reads that may never return;
//! * [`images`]: device images (zebin, SPIR-V) and the kernels they declare;
//! * [`path`]: the way from a kernel handle to the kernel's name;
//! * [`predict`]: names of kernels that were not used yet.

pub mod guard;
pub mod images;
pub mod path;
pub mod predict;

pub use path::within;

use super::owner;
use aiprof_system::files::kernel;
use guard::Guarded;
pub use guard::serve;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
};

/// Most bytes read of `/proc/PID/maps`.
const MAX_MAPS: u64 = 8 << 20;

/// A process's memory, or a copy of it.
pub trait ReadMemory {
    /// Reads at `address` into `buffer`; returns how many bytes could be read from
    /// its start.
    fn read(&self, address: u64, buffer: &mut [u8]) -> usize;

    /// The `u64` at `address`.
    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read(address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }
}

/// A readable, writable mapping without a file: heap, stack, anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
}

/// Largest size of an allocation that is believed.
const MAX_CHUNK: u64 = 1 << 20;

/// Bytes of the object at an address, by the header that glibc's malloc puts before
/// what it hands out. Objects may begin 8 bytes behind that (a handle, behind a table
/// of virtual functions), or 16 (behind what counts its owners). `None`: there is no
/// such header.
pub(crate) fn object_size(memory: &impl ReadMemory, address: u64) -> Option<u64> {
    // In use before it; of another arena.
    const FLAGS: u64 = 1 | 4;
    let aligned = address % 16;
    [aligned, aligned + 16].into_iter().find_map(|inner| {
        let start = address.checked_sub(8 + inner)?;
        let header = memory.word(start)?;
        let size = header & !15;
        let fits = header & 15 & !FLAGS == 0 && (32..=MAX_CHUNK).contains(&size);
        let next = start
            .checked_add(size)
            .filter(|_| fits && aligned.is_multiple_of(8))?;
        // The next header shows whether this chunk is in use.
        let used = memory.word(next)? & 1 == 1;
        used.then(|| (size - 8).checked_sub(inner)).flatten()
    })
}

/// The memory of a running process.
#[derive(Debug)]
pub(crate) struct ProcessMemory(MemoryReader);

/// Who reads it.
#[derive(Debug)]
enum MemoryReader {
    /// This thread.
    Here(File),
    /// Another thread, which may be given up.
    Elsewhere(Guarded),
}

impl ProcessMemory {
    /// Opens the memory of a process for reading.
    ///
    /// # Errors
    /// The process is gone, or may not be looked at, or reads of its user's processes
    /// do not return.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        let file = kernel::open(format!("/proc/{pid}/mem"))?;
        let owner = owner::owner_of(pid);
        if owner::is_trusted(owner) {
            return Ok(Self(MemoryReader::Here(file)));
        }
        let guarded = Guarded::new(owner, file).ok_or(io::ErrorKind::TimedOut)?;
        Ok(Self(MemoryReader::Elsewhere(guarded)))
    }
}

impl ReadMemory for ProcessMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        match &self.0 {
            MemoryReader::Here(file) => guard::read_at(file, address, buffer),
            MemoryReader::Elsewhere(guarded) => guarded.read(address, buffer),
        }
    }
}

/// The lines of `/proc/PID/maps`.
fn maps(pid: u32) -> io::Result<Vec<String>> {
    let read = guard::quickly(pid, move || -> io::Result<Vec<String>> {
        let maps = kernel::open(format!("/proc/{pid}/maps"))?.take(MAX_MAPS);
        Ok(BufReader::new(maps).lines().map_while(Result::ok).collect())
    });
    read.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}

/// The private, writable mappings without a file of a process, by address: where
/// a program's objects and its copies of device code are.
///
/// # Errors
/// The process is gone, or may not be looked at.
pub fn regions(pid: u32) -> io::Result<Vec<Region>> {
    let lines = maps(pid)?.into_iter();
    Ok(lines.filter_map(|line| parse(&line)).collect())
}

/// Where a process has the data of files: mappings of them that are not executable,
/// by address. `is_wanted`: whether a file of this path counts.
///
/// # Errors
/// The process is gone, or may not be looked at.
pub(crate) fn data_of(pid: u32, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<Region>> {
    let lines = maps(pid)?.into_iter();
    let wanted = |line: &String| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let data = fields.next().is_some_and(|a| a.get(2..3) == Some("-"));
        data && fields.nth(3).is_some_and(&is_wanted)
    };
    Ok(lines.filter(wanted).filter_map(|l| range_of(&l)).collect())
}

/// All addresses that mean something to a process: mappings with any access.
///
/// # Errors
/// The process is gone, or may not be looked at.
pub fn accessible(pid: u32) -> io::Result<Vec<Region>> {
    let lines = maps(pid)?.into_iter();
    let wanted = |line: &String| {
        let access = line.split_ascii_whitespace().nth(1);
        access.is_some_and(|access| !access.starts_with("---"))
    };
    Ok(lines.filter(wanted).filter_map(|l| range_of(&l)).collect())
}

/// The addresses in a line of `/proc/PID/maps`.
fn range_of(line: &str) -> Option<Region> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    (start < end).then_some(Region { start, end })
}

/// A line of `/proc/PID/maps`, if it is wanted.
fn parse(line: &str) -> Option<Region> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let access = fields.next()?;
    let inode = fields.nth(2)?;
    let path = fields.next().unwrap_or("");
    let wanted = access.starts_with("rw") && access.ends_with('p') && inode == "0";
    // The stacks of threads and of the program hold no objects for long, but
    // small programs keep handles and images there.
    if !wanted || path.starts_with("[v") {
        return None;
    }
    range_of(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_anonymous_writable_memory() {
        let heap = "55e0c0000000-55e0c0021000 rw-p 00000000 00:00 0    [heap]";
        let expected = Region {
            start: 0x55e0_c000_0000,
            end: 0x55e0_c002_1000,
        };
        assert_eq!(parse(heap), Some(expected));
        for other in [
            "7f0000000000-7f0000001000 r-xp 00000000 08:01 42 /usr/lib/libc.so.6",
            "7f0000000000-7f0000001000 rw-p 00001000 08:01 42 /usr/lib/libc.so.6",
            "7f0000000000-7f0000001000 r--p 00000000 00:00 0 [vvar]",
            "7f0000001000-7f0000000000 rw-p 00000000 00:00 0",
            "nonsense",
            "",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn reads_itself_and_stops_at_unmapped_memory() {
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let value = Box::new(0x1122_3344_5566_7788u64);
        let address = std::ptr::from_ref::<u64>(&value) as u64;
        assert_eq!(memory.word(address), Some(*value));
        assert_eq!(memory.word(8), None);
        assert_eq!(memory.word(u64::MAX - 3), None);
        let here = regions(std::process::id()).unwrap();
        assert!(here.iter().any(|r| (r.start..r.end).contains(&address)));
    }
}

#[cfg(test)]
pub(super) mod tests_memory {
    use super::{ReadMemory, Region};

    /// A piece of memory at an address.
    pub(crate) struct Copy {
        base: u64,
        bytes: Vec<u8>,
    }

    impl Copy {
        pub(crate) fn new(base: u64, bytes: Vec<u8>) -> Self {
            Self { base, bytes }
        }

        pub(crate) fn regions(&self) -> Vec<Region> {
            vec![Region {
                start: self.base,
                end: self.base + self.bytes.len() as u64,
            }]
        }
    }

    impl ReadMemory for Copy {
        fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
            let Some(at) = address.checked_sub(self.base) else {
                return 0;
            };
            let rest = self.bytes.get(at as usize..).unwrap_or_default();
            let len = rest.len().min(buffer.len());
            buffer[..len].copy_from_slice(&rest[..len]);
            len
        }
    }
}
