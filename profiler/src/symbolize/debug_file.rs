//! Finding the separate debug file of a stripped binary.
//!
//! Where distributions put them: `/usr/lib/debug/.build-id/xx/yyyy.debug`, and
//! the places that GDB documents for `.gnu_debuglink`. A candidate counts only
//! if its build id, or else its checksum, matches.

use super::elf::{self, DebugLink, ElfInfo};
use crate::profile::BuildId;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

const DEBUG_DIR: &str = "usr/lib/debug";
/// Most bytes read to verify a debug link's checksum.
const MAX_CRC_BYTES: u64 = 1 << 30;

/// Searches below `root` (the process's root directory) and then on the host.
/// `path` is the binary's as the process saw it, `info` its summary.
pub(super) fn find(info: &ElfInfo, path: &Path, root: Option<&Path>) -> Option<(File, ElfInfo)> {
    let host = Path::new("/");
    let roots = root
        .into_iter()
        .chain([host].into_iter().filter(|_| root != Some(host)));
    for root in roots {
        let by_id = info.build_id.iter().map(|id| build_id_path(root, id));
        let by_link = info
            .debug_link
            .iter()
            .flat_map(|l| link_paths(root, path, l));
        for candidate in by_id.chain(by_link) {
            if let Some(found) = accept(&candidate, info) {
                return Some(found);
            }
        }
    }
    None
}

fn build_id_path(root: &Path, id: &BuildId) -> PathBuf {
    let hex = id.to_string();
    let (dir, rest) = hex.split_at(2);
    root.join(DEBUG_DIR)
        .join(".build-id")
        .join(dir)
        .join(format!("{rest}.debug"))
}

fn link_paths(root: &Path, path: &Path, link: &DebugLink) -> Vec<PathBuf> {
    let inside = |dir: &Path| root.join(dir.strip_prefix("/").unwrap_or(dir));
    let Some(dir) = path.parent() else {
        return Vec::new();
    };
    let mut paths = vec![
        inside(dir).join(&link.name),
        inside(dir).join(".debug").join(&link.name),
        root.join(DEBUG_DIR)
            .join(dir.strip_prefix("/").unwrap_or(dir))
            .join(&link.name),
    ];
    // Packages name files under /usr/lib while processes map them from /lib.
    if let Ok(real) = inside(dir).canonicalize()
        && let Ok(relative) = real.strip_prefix(root)
    {
        paths.push(root.join(DEBUG_DIR).join(relative).join(&link.name));
    }
    paths
}

/// Opens a candidate and verifies that it belongs to the binary.
pub(super) fn accept(path: &Path, binary: &ElfInfo) -> Option<(File, ElfInfo)> {
    let file = elf::open_regular(path).ok()?;
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
    loop {
        let n = file.read_at(&mut buffer, at).ok()?;
        if n == 0 {
            return Some(crc.sum());
        }
        crc.update(buffer.get(..n)?);
        at += n as u64;
    }
}
