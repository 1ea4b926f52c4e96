//! Processes as /proc shows them, for those that ran before the recording.

use crate::wire::{FileKey, MapEvent};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::PathBuf,
};

/// Most bytes read of one /proc file: 65,530 mappings of 100 bytes.
const MAX_BYTES: u64 = 8 << 20;

/// The executable mappings of a process, without build ids.
///
/// # Errors
/// The process is gone, or may not be looked at.
pub fn executable_maps(pid: u32) -> io::Result<Vec<MapEvent>> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?
        .take(MAX_BYTES)
        .read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .filter_map(parse_line)
        .collect())
}

/// `START-END PERMS OFFSET MAJOR:MINOR INODE PATH`, if it is executable.
fn parse_line(line: &str) -> Option<MapEvent> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    if fields.next()?.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let file_offset = hex(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode = fields.next()?.parse().ok()?;
    let path = fields.next().unwrap_or("").trim_start_matches(' ');
    let (start, end) = (hex(start)?, hex(end)?);
    let path = if path.is_empty() {
        "//anon".to_owned()
    } else {
        path.replace("\\012", "\n")
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
        },
    })
}

/// The name of a process.
///
/// # Errors
/// The process is gone.
pub fn comm(pid: u32) -> io::Result<String> {
    let mut text = fs::read(format!("/proc/{pid}/comm"))?;
    text.truncate(text.trim_ascii_end().len());
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What /proc/PID/stat says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Process id.
    pub pid: u32,
    /// Process id of the parent.
    pub parent: u32,
    /// Whether its main thread is running or ready to (state `R`).
    pub running: bool,
    /// CPU time it used so far, in clock ticks.
    pub ticks: u64,
}

/// All processes there are.
pub fn processes() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let stat = |pid: u32| -> Option<Stat> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let text = String::from_utf8_lossy(&text);
        // The name is in parentheses and may hold anything, also `)`.
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let running = fields.next()? == "R";
        let parent = fields.next()?.parse().ok()?;
        // Fields 14 and 15 of proc_pid_stat(5), of which 5 is next.
        let mut times = fields.skip(9).take(2).filter_map(|t| t.parse::<u64>().ok());
        let ticks = times.next()?.saturating_add(times.next()?);
        Some(Stat {
            pid,
            parent,
            running,
            ticks,
        })
    };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .filter_map(stat)
        .collect()
}

/// The processes that likely run in the next moment: those whose main thread
/// is running, and the `busiest` ones by the CPU time they used so far.
pub fn likely_to_run(busiest: usize) -> Vec<u32> {
    let mut all = processes();
    all.sort_by_key(|stat| (!stat.running, std::cmp::Reverse(stat.ticks)));
    let running = all.iter().filter(|stat| stat.running).count();
    all.truncate(running + busiest);
    all.into_iter().map(|stat| stat.pid).collect()
}

/// Whether a process still exists, in whatever state.
pub fn exists(pid: u32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap_or(false)
}

/// Process id in its own pid namespace, as its perf map's name has it.
pub fn namespace_pid(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    ids.split_ascii_whitespace().last()?.parse().ok()
}

/// Opens the file behind a mapping of a process: as the process itself sees it,
/// else through the mapping (which also finds deleted files), else from here.
/// Only regular files: opening anything else may block or have effects.
///
/// # Errors
/// The last attempt's.
pub fn open_mapped(pid: u32, map: &MapEvent) -> io::Result<File> {
    let path = &map.file.path;
    let candidates = [
        PathBuf::from(format!("/proc/{pid}/root{path}")),
        PathBuf::from(format!(
            "/proc/{pid}/map_files/{:x}-{:x}",
            map.start,
            map.start.wrapping_add(map.len)
        )),
        PathBuf::from(path),
    ];
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for candidate in candidates {
        match open_regular(&candidate, map.file.inode) {
            Ok(file) => return Ok(file),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn open_regular(path: &std::path::Path, inode: u64) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if inode != 0 && meta.ino() != inode {
        return Err(io::Error::other("another file has its path now"));
    }
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0)?;
    if &magic != b"\x7fELF" {
        return Err(io::Error::other("not an ELF file"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_maps_lines() {
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
        let maps = executable_maps(std::process::id()).unwrap();
        let here = finds_the_text_of_this_very_process as fn() as usize as u64;
        let own = maps
            .iter()
            .find(|m| m.start <= here && here < m.start + m.len)
            .unwrap();
        open_mapped(std::process::id(), own).unwrap();
        let own = std::process::id();
        assert!(processes().iter().any(|s| s.pid == own && s.parent != 0));
        assert!(exists(own) && !exists(u32::MAX));
        assert_eq!(namespace_pid(std::process::id()), Some(std::process::id()));
    }
}
