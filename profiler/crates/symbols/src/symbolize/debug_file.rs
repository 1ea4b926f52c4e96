//! Finding the separate debug file of a stripped binary.
//!
//! Where distributions put them: `/usr/lib/debug/.build-id/xx/yyyy.debug`, and
//! the places that GDB documents for `.gnu_debuglink`. A candidate counts only
//! if its build id, or else its checksum, matches.

use super::elf::{self, DebugLink, ElfInfo};
use aiprof_model::profile::BuildId;
use aiprof_system::files::others::{RootDir, Trust};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const DEBUG_DIR: &str = "usr/lib/debug";
/// Most bytes read to verify a debug link's checksum.
const MAX_CRC_BYTES: u64 = 1 << 30;
/// Longest time for that.
const MAX_CRC_TIME: Duration = Duration::from_secs(2);
/// Largest debug file.
const MAX_BYTES: u64 = 64 << 30;

/// Searches below `root` (the process's root directory) and then on the host.
/// `path` is the binary's as the process saw it, `info` its summary, `owner` the
/// user whose file it is: a debug file is believed if it is that user's or root's,
/// on the host only if it is root's. A build id alone proves nothing.
pub(super) fn find(
    info: &ElfInfo,
    path: &Path,
    owner: u32,
    root: Option<&Path>,
) -> Option<(File, ElfInfo)> {
    let host = Path::new("/");
    let own = root.filter(|root| *root != host).map(|root| (root, owner));
    for (root, uid) in own.into_iter().chain([(host, 0)]) {
        let Ok(root) = RootDir::at(root) else {
            continue;
        };
        let trust = Trust {
            uid,
            max_bytes: MAX_BYTES,
        };
        let by_id = info.build_id.iter().map(build_id_path);
        let by_link = info
            .debug_link
            .iter()
            .flat_map(|l| link_paths(&root, path, l));
        for candidate in by_id.chain(by_link) {
            let opened = root.open(&candidate, trust);
            if let Some(found) = opened.ok().and_then(|file| accept(file, info)) {
                return Some(found);
            }
        }
    }
    None
}

fn build_id_path(id: &BuildId) -> PathBuf {
    let hex = id.to_string();
    let (dir, rest) = hex.split_at_checked(2).unwrap_or(("", &hex));
    Path::new(DEBUG_DIR)
        .join(".build-id")
        .join(dir)
        .join(format!("{rest}.debug"))
}

fn link_paths(root: &RootDir, path: &Path, link: &DebugLink) -> Vec<PathBuf> {
    let Some(dir) = path.parent() else {
        return Vec::new();
    };
    let dir = dir.strip_prefix("/").unwrap_or(dir);
    let mut paths = vec![
        dir.join(&link.name),
        dir.join(".debug").join(&link.name),
        Path::new(DEBUG_DIR).join(dir).join(&link.name),
    ];
    // Packages name files under /usr/lib while processes map them from /lib.
    if let Ok(real) = root.real_path(dir) {
        paths.push(Path::new(DEBUG_DIR).join(real).join(&link.name));
    }
    paths
}

/// Verifies that a candidate belongs to the binary.
pub(super) fn accept(file: File, binary: &ElfInfo) -> Option<(File, ElfInfo)> {
    let info = elf::inspect(&file).ok()?;
    if !info.has_symtab && !info.has_dwarf {
        return None;
    }
    let same = match (&binary.build_id, &info.build_id) {
        (Some(expected), Some(found)) => expected == found,
        _ => {
            let expected = binary.debug_link.as_ref()?.crc;
            crc(&file) == Some(expected)
        }
    };
    same.then_some((file, info))
}

/// CRC-32 of the whole file, as `.gnu_debuglink` records it.
fn crc(file: &File) -> Option<u32> {
    if file.metadata().ok()?.len() > MAX_CRC_BYTES {
        return None;
    }
    let mut crc = flate2::Crc::new();
    let mut buffer = vec![0; 256 << 10];
    let mut at = 0;
    let deadline = Instant::now() + MAX_CRC_TIME;
    loop {
        if at > MAX_CRC_BYTES || Instant::now() > deadline {
            return None;
        }
        let n = file.read_at(&mut buffer, at).ok()?;
        if n == 0 {
            return Some(crc.sum());
        }
        crc.update(buffer.get(..n)?);
        at += n as u64;
    }
}
