//! Finding the separate debug file of a stripped binary, and what that refers to.
//!
//! Where distributions put them: `/usr/lib/debug/.build-id/xx/yyyy.debug`, and
//! the places that GDB documents for `.gnu_debuglink`. A candidate counts only
//! if its build id, or else its checksum, matches.

use crate::elf::{self, AltLink, DebugLink, ElfInfo};
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

/// Finds the files that belong to a binary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finder<'a> {
    /// Path of the binary as the process saw it.
    pub path: &'a Path,
    /// The user whose file it is: other files are believed if they are that user's or
    /// root's, on the host only if they are root's. A build id alone proves nothing.
    pub owner: u32,
    /// The process's root directory, which is searched before the host's.
    pub root: Option<&'a Path>,
}

/// A file that was found.
pub(super) struct DebugFile {
    pub file: File,
    pub info: ElfInfo,
    /// Where it was, below the root directory.
    pub path: PathBuf,
}

impl Finder<'_> {
    /// The separate debug file of a binary, `info` its summary.
    pub(super) fn debug(&self, info: &ElfInfo) -> Option<DebugFile> {
        let paths = |root: &RootDir| {
            let by_id = info.build_id.iter().map(build_id_path);
            let by_link = info.debug_link.iter();
            let by_link = by_link.flat_map(|l| link_paths(root, self.path, l));
            by_id.chain(by_link).collect()
        };
        self.search(paths, |file| accept(file, info))
    }

    /// The file that `dwz` moved common parts to, of a file at `path`.
    pub(super) fn supplement(&self, link: &AltLink, path: &Path) -> Option<DebugFile> {
        let beside = path.parent().unwrap_or(Path::new("/")).join(&link.path);
        let paths = |_: &RootDir| vec![build_id_path(&link.build_id), beside.clone()];
        self.search(paths, |file| accept_supplement(file, link.build_id))
    }

    /// The package of the binary's split units. Their ids show which units it has.
    pub(super) fn package(&self) -> Option<(File, ElfInfo)> {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".dwp");
        self.object(Path::new(&name))
    }

    /// A file with split units.
    pub(super) fn object(&self, path: &Path) -> Option<(File, ElfInfo)> {
        let found = self.search(
            |_| vec![path.to_owned()],
            |file| {
                let info = elf::inspect(&file).ok()?;
                info.has_split.then_some((file, info))
            },
        );
        found.map(|found| (found.file, found.info))
    }

    fn search(
        &self,
        paths: impl Fn(&RootDir) -> Vec<PathBuf>,
        accept: impl Fn(File) -> Option<(File, ElfInfo)>,
    ) -> Option<DebugFile> {
        let host = Path::new("/");
        let own = self.root.filter(|root| *root != host);
        let own = own.map(|root| (root, self.owner));
        for (root, uid) in own.into_iter().chain([(host, 0)]) {
            let Ok(root) = RootDir::at(root) else {
                continue;
            };
            let trust = Trust {
                uid,
                max_bytes: MAX_BYTES,
            };
            for path in paths(&root) {
                let opened = root.open(&path, trust);
                if let Some((file, info)) = opened.ok().and_then(&accept) {
                    return Some(DebugFile { file, info, path });
                }
            }
        }
        None
    }
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

/// Verifies that a candidate is what `dwz` made, by its build id.
pub(super) fn accept_supplement(file: File, id: BuildId) -> Option<(File, ElfInfo)> {
    let info = elf::inspect(&file).ok()?;
    let is_it = info.has_dwarf && info.build_id == Some(id);
    is_it.then_some((file, info))
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
