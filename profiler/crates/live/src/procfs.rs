//! Processes as /proc shows them, for those that ran before the recording.

use aiprof_model::{
    process::Mapping,
    wire::{FileKey, MapEvent},
};
use aiprof_system::files::{
    kernel,
    others::{self, RootDir},
};
use rustix::fs::FileType;
use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
    os::unix::fs::FileExt,
    path::Path,
};

/// Most bytes read of one /proc file: 65,530 mappings of 100 bytes.
const MAX_BYTES: u64 = 8 << 20;

/// Most bytes kept of a mapped file's path.
const MAX_PATH: usize = 1024;

/// The executable mappings of a process, without build ids. `tid` is any of
/// its live threads: a main thread that has exited shows no mappings.
///
/// # Errors
/// The process is gone, or may not be looked at.
pub(crate) fn executable_maps(pid: u32, tid: u32) -> io::Result<Vec<MapEvent>> {
    let is_executable = |permissions: &str| permissions.as_bytes().get(2) == Some(&b'x');
    maps(pid, tid, is_executable)
}

/// The mappings of a process that it cannot execute.
///
/// # Errors
/// As [`executable_maps`].
pub(crate) fn other_maps(pid: u32, tid: u32) -> io::Result<Vec<MapEvent>> {
    let is_other = |permissions: &str| permissions.as_bytes().get(2) == Some(&b'-');
    maps(pid, tid, is_other)
}

/// The mappings of a process whose permissions are wanted.
fn maps(pid: u32, tid: u32, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<MapEvent>> {
    let mut text = Vec::new();
    kernel::open(format!("/proc/{pid}/task/{tid}/maps"))?
        .take(MAX_BYTES)
        .read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .filter_map(|line| parse_line(line, &is_wanted))
        .collect())
}

/// The path of a mapped file, shortened where it is so long that only somebody who
/// tries things makes it: paths are kept for every file.
pub fn shortened(path: String) -> String {
    if path.len() <= MAX_PATH {
        return path;
    }
    let mut from = path.len() - MAX_PATH;
    while !path.is_char_boundary(from) {
        from += 1;
    }
    format!("/...{}", path.get(from..).unwrap_or_default())
}

/// `START-END PERMS OFFSET MAJOR:MINOR INODE PATH`, if it is wanted by its permissions.
fn parse_line(line: &str, is_wanted: impl Fn(&str) -> bool) -> Option<MapEvent> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    if !is_wanted(fields.next()?) {
        return None;
    }
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let file_offset = hex(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode = fields.next()?.parse().ok()?;
    let path = fields.next().unwrap_or("").trim_start_matches(' ');
    let (start, end) = (hex(start)?, hex(end)?);
    if start >> 63 != 0 {
        // [vsyscall], the one user mapping in the kernel's half: known by its
        // address everywhere.
        return None;
    }
    let path = if path.is_empty() {
        "//anon".to_owned()
    } else {
        shortened(path.replace("\\012", "\n"))
    };
    Some(MapEvent {
        start,
        len: end.checked_sub(start)?,
        file_offset,
        file: FileKey {
            path,
            build_id: None,
            device: hex(major)? << 32 | hex(minor)?,
            inode,
            version: 0,
        },
    })
}

/// The name of a process.
///
/// # Errors
/// The process is gone.
pub fn comm(pid: u32) -> io::Result<String> {
    let mut text = kernel::read(format!("/proc/{pid}/comm"))?;
    text.truncate(text.trim_ascii_end().len());
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What /proc/PID/stat contains about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Process id.
    pub pid: u32,
    /// Process id of the parent.
    pub parent: u32,
    /// Whether its main thread is running or ready to (state `R`).
    pub is_running: bool,
}

/// All processes there are.
pub fn processes() -> Vec<Stat> {
    let entries = kernel::read_dir("/proc").unwrap_or_default();
    let stat = |pid: u32| -> Option<Stat> {
        let text = kernel::read(format!("/proc/{pid}/stat")).ok()?;
        let text = String::from_utf8_lossy(&text);
        // The name is in parentheses and may hold anything, also `)`.
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let is_running = fields.next()? == "R";
        let parent = fields.next()?.parse().ok()?;
        Some(Stat {
            pid,
            parent,
            is_running,
        })
    };
    entries
        .iter()
        .filter_map(|(_, name)| name.to_str()?.parse().ok())
        .filter_map(stat)
        .collect()
}

/// Processes that run just now, at most `most` of them.
pub fn running(most: usize) -> impl Iterator<Item = u32> {
    let all = processes().into_iter();
    all.filter(|stat| stat.is_running)
        .map(|stat| stat.pid)
        .take(most)
}

/// Whether threads of a process live on whose main thread has exited.
pub(crate) fn has_other_threads(pid: u32) -> bool {
    let threads = kernel::read_dir(format!("/proc/{pid}/task")).unwrap_or_default();
    threads
        .iter()
        .filter_map(|(_, name)| name.to_str()?.parse::<u32>().ok())
        .any(|tid| tid != pid)
}

/// Whether a process still exists, in whatever state.
pub fn exists(pid: u32) -> bool {
    kernel::exists(format!("/proc/{pid}"))
}

/// Identifies a file and its content, by what the file system reports. Comparable while one of the
/// two is held open: then no other file has its inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct FileStat {
    /// Device number of stat(2), as [`FileKey::device`] has it. On overlayfs and
    /// btrfs another one than mappings show.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Time of the last change of content or attributes, which no user can set.
    pub changed: (i64, i64),
}

impl FileStat {
    fn of(stat: &rustix::fs::Stat) -> Self {
        let (major, minor) = (
            rustix::fs::major(stat.st_dev),
            rustix::fs::minor(stat.st_dev),
        );
        Self {
            device: u64::from(major) << 32 | u64::from(minor),
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }

    /// What this machine has cached about an open file. It asks no server and no process that
    /// serves a file system, so it never blocks.
    ///
    /// # Errors
    /// statx(2)'s.
    pub fn cached(file: impl AsFd) -> io::Result<Self> {
        use rustix::fs::StatxFlags;
        let wanted = StatxFlags::INO | StatxFlags::SIZE | StatxFlags::CTIME;
        let found = others::cached(file, wanted)?;
        Ok(Self {
            device: u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor),
            inode: found.stx_ino,
            size: found.stx_size,
            changed: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec.into()),
        })
    }
}

/// The file behind a mapping.
#[derive(Debug)]
pub(crate) struct MappedFile {
    /// Open for reading; its first bytes are those of an ELF file. Closing it may
    /// block, as reading may.
    pub file: File,
    /// The same as a place only (`O_PATH`): may be kept and closed everywhere, and
    /// opened again by [`others::reopen`].
    pub place: OwnedFd,
    /// Which file it is.
    pub stat: FileStat,
    /// It was found through the mapping itself and so is the mapped file. Else by
    /// its path: then it is what that process calls so, and may be another one.
    pub through_mapping: bool,
}

/// Opens the file behind a mapping of a process, through the mapping: this also finds deleted and
/// replaced files. Where that is not allowed or the process has gone, it opens it by its path in
/// the root of the process, else of this machine. It opens only regular files: opening anything
/// else may have effects.
///
/// # Errors
/// [`OpenError::Replaced`] if only another file was found, else why none was.
pub(crate) fn open_exact(pid: u32, map: &MapEvent) -> Result<MappedFile, OpenError> {
    let through = place_of(pid, map);
    // Another file may be mapped there by now.
    let opened = through
        .map_err(OpenError::Io)
        .and_then(|place| open_elf(place, map.file.inode, true));
    let mut last = match opened {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    let roots = [RootDir::of_process(pid), RootDir::of_host()];
    for root in roots.into_iter().flatten() {
        let place = root.place(Path::new(&map.file.path));
        let opened = place
            .map_err(OpenError::Io)
            .and_then(|place| open_elf(place, map.file.inode, false));
        match opened {
            Ok(found) => return Ok(found),
            // That another file was found, or that it may not be read, explains more than that
            // one is missing.
            Err(error) if !matches!(last, OpenError::Replaced) && !last.is_denial() => last = error,
            Err(_) => {}
        }
    }
    Err(last)
}

/// The file of a mapping, as a place, by the mapping itself.
///
/// # Errors
/// The process is gone, or has no such mapping.
pub(crate) fn place_of(pid: u32, map: &MapEvent) -> io::Result<OwnedFd> {
    let end = map.start.wrapping_add(map.len);
    link(pid, map.start, end).or_else(|error| {
        // The mapping may have been cut since: by the one that begins there now.
        let range = range_at(pid, map).ok_or(error)?;
        link(pid, range.0, range.1)
    })
}

/// The file of a mapping, as a place.
fn link(pid: u32, start: u64, end: u64) -> io::Result<OwnedFd> {
    kernel::place(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))
}

/// Where the mapping is that covers an address now, if it is still of this file; else, where the
/// text of a file was copied, another one of it.
fn range_at(pid: u32, map: &MapEvent) -> Option<(u64, u64)> {
    let is_same = |m: &MapEvent| {
        (m.file.device, m.file.inode) == (map.file.device, map.file.inode) && m.file.inode != 0
    };
    let range = |m: &MapEvent| (m.start, m.start.wrapping_add(m.len));
    let now = executable_maps(pid, pid).ok()?;
    let covers = |m: &&MapEvent| m.start <= map.start && map.start < m.start.wrapping_add(m.len);
    if let Some(found) = now.iter().find(covers).filter(|m| is_same(m)) {
        return Some(range(found));
    }
    let others = other_maps(pid, pid).ok()?;
    now.iter().chain(&others).find(|m| is_same(m)).map(range)
}

/// Why the file behind a mapping could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be opened, or is no regular ELF file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another file has its name now, and the mapping does not lead to it.
    #[error("replaced since it was mapped")]
    Replaced,
}

impl OpenError {
    /// Whether this program may not read the file.
    pub(crate) fn is_denial(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::PermissionDenied)
    }
}

/// Opens a place for reading if it is a regular ELF file. `inode`: which one it must
/// be; 0: any.
pub(crate) fn open_elf(
    place: OwnedFd,
    inode: u64,
    through_mapping: bool,
) -> Result<MappedFile, OpenError> {
    let stat = rustix::fs::fstat(&place).map_err(io::Error::from)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("not a regular file").into());
    }
    if inode != 0 && stat.st_ino != inode {
        return Err(OpenError::Replaced);
    }
    let file = others::reopen(&place)?;
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0)?;
    if &magic != b"\x7fELF" {
        return Err(io::Error::other("not an ELF file").into());
    }
    Ok(MappedFile {
        file,
        place,
        stat: FileStat::of(&stat),
        through_mapping,
    })
}

/// A mapping as an event has it.
pub(crate) fn map_event(mapping: &Mapping, file: &FileKey) -> MapEvent {
    MapEvent {
        start: mapping.start,
        len: mapping.end - mapping.start,
        file_offset: mapping.file_offset,
        file: file.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_maps_lines() {
        let parse_line = |line: &str| parse_line(line, |permissions| permissions.contains('x'));
        let line = "7f00a000-7f00c000 r-xp 00001000 fe:01 1234                       /lib/a b.so (deleted)";
        let map = parse_line(line).unwrap();
        assert_eq!(
            (map.start, map.len, map.file_offset),
            (0x7f00_a000, 0x2000, 0x1000)
        );
        assert_eq!(map.file.path, "/lib/a b.so (deleted)");
        assert_eq!((map.file.device, map.file.inode), (0xfe << 32 | 1, 1234));
        let anon = parse_line("1000-2000 rwxp 00000000 00:00 0 ").unwrap();
        assert_eq!(anon.file.path, "//anon");
        assert!(parse_line("1000-2000 rw-p 00000000 00:00 0 [heap]").is_none());
        let vsyscall = "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]";
        assert!(parse_line(vsyscall).is_none());
        for bad in [
            "",
            "x",
            "1000 r-xp",
            "2000-1000 r-xp 0 00:00 0 /a",
            "1-2 r-xp zz 00:00 0",
        ] {
            assert!(parse_line(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn finds_the_text_of_this_very_process() {
        let maps = executable_maps(std::process::id(), std::process::id()).unwrap();
        let here = finds_the_text_of_this_very_process as fn() as usize as u64;
        let own = maps
            .iter()
            .find(|m| m.start <= here && here < m.start + m.len)
            .unwrap();
        open_exact(std::process::id(), own).unwrap();
        let own = std::process::id();
        assert!(processes().iter().any(|s| s.pid == own && s.parent != 0));
        assert!(exists(own) && !exists(u32::MAX));
    }
}
