//! The mapped files as open files: opened once, when first seen, so that names
//! and unwind data outlive the process, its mount namespace and the file's name.

use super::{
    bpf::perf,
    procfs::{self, OpenError},
};
use crate::{
    process::{FileId, Region},
    profile::BuildId,
    unwind::{PageContent, ReadAt, TextSegment, UnwindError, UnwindFile},
    wire::{FileKey, MapEvent},
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::{cell::Cell, fs::File, io, ops::Deref, sync::Arc};

/// Most files kept open; beyond it, new ones go without names and tables.
const MAX_OPEN: usize = 16_384;
/// Most (device, inode) pairs whose build ids are remembered.
const MAX_IDENTITIES: usize = 65_536;

/// A file shared between the unwinder and the symbolizer; read with pread, so
/// that a file cut off under us is a short read and not a SIGBUS.
#[derive(Clone, Debug)]
pub struct Shared(pub Arc<File>);

impl ReadAt for Shared {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&*self.0, buf, offset)
    }
}

/// An open mapped file.
pub struct Binary {
    /// The file.
    pub file: Shared,
    /// Its unwind data, `None` where it is no ELF file of this machine.
    pub unwind: Option<NamedUnwind>,
    /// Its executable segments.
    pub text: Vec<TextSegment>,
}

impl Binary {
    fn new((file, unwind): Opened, path: &str) -> Self {
        let unwind = unwind
            .inspect_err(|error| tracing::warn!("{path}: no unwind data: {error}"))
            .ok()
            .map(|file| NamedUnwind::new(file, path));
        let text = unwind.as_ref().map_or_else(Vec::new, |u| u.text().to_vec());
        Self { file, unwind, text }
    }
}

/// A file's unwind data that reports, once and by the file's name, what of it is
/// not usable. Reads like the [`UnwindFile`] that it holds.
#[derive(Debug)]
pub struct NamedUnwind {
    file: UnwindFile<Shared>,
    path: String,
    warned: Cell<bool>,
}

impl NamedUnwind {
    fn new(file: UnwindFile<Shared>, path: &str) -> Self {
        let named = Self {
            file,
            path: path.to_owned(),
            warned: Cell::new(false),
        };
        named.check(None);
        named
    }

    /// [`UnwindFile::page`]; warns at the first error or malformed entry.
    ///
    /// # Errors
    /// As there.
    pub fn page(&self, index: u32, out: &mut Vec<u8>) -> Result<PageContent, UnwindError> {
        let content = self.file.page(index, out);
        self.check(content.as_ref().err());
        content
    }

    /// Warns of an error, or of anything malformed so far, the first time.
    fn check(&self, error: Option<&UnwindError>) {
        let malformed = self.file.malformed() > 0;
        if self.warned.get() || !malformed && error.is_none() {
            return;
        }
        self.warned.set(true);
        let path = &self.path;
        match error {
            Some(error) => tracing::warn!("{path}: unwind data not usable: {error}"),
            None => tracing::warn!(
                "{path}: unwind data (.eh_frame) malformed: stacks through it may be cut"
            ),
        }
    }
}

impl Deref for NamedUnwind {
    type Target = UnwindFile<Shared>;

    fn deref(&self) -> &Self::Target {
        &self.file
    }
}

/// A file just opened, and what there is to unwind it by.
type Opened = (Shared, Result<UnwindFile<Shared>, UnwindError>);

fn read(file: File) -> Opened {
    let file = Shared(Arc::new(file));
    let unwind = UnwindFile::open(file.clone());
    (file, unwind)
}

/// Reads a file if it is the mapped one, as far as its build id tells.
fn read_if_mapped(file: File, key: &FileKey) -> Option<Opened> {
    let opened = read(file);
    let found = opened.1.as_ref().ok().and_then(UnwindFile::build_id);
    let same = match (key.build_id, found) {
        (Some(mapped), opened) => opened == Some(mapped),
        (None, _) => true,
    };
    same.then_some(opened)
}

/// All open files by handle.
#[derive(Default)]
pub struct Binaries {
    binaries: FxHashMap<FileId, Binary>,
    /// Build ids by (device, inode, version).
    identities: FxHashMap<(u64, u64, u64), Option<BuildId>>,
    failed: FxHashSet<FileId>,
}

impl Binaries {
    /// An open file.
    pub fn get(&self, id: FileId) -> Option<&Binary> {
        self.binaries.get(&id)
    }

    /// Completes a mapping's identity by its build id where the kernel did not
    /// give one, so that a file is one file however it was first seen.
    pub fn identify(&mut self, pid: u32, map: &mut MapEvent) {
        if map.file.build_id.is_some() || Region::of(&map.file) != Region::File {
            return;
        }
        let Some(version) = procfs::mapped_version(pid, map) else {
            return;
        };
        map.file.version = version;
        let identity = (map.file.device, map.file.inode, version);
        map.file.build_id = match self.identities.get(&identity) {
            Some(&known) => known,
            None => {
                if self.identities.len() >= MAX_IDENTITIES {
                    self.identities.clear();
                }
                let opened = procfs::open_mapped(pid, map, |file| Some(read(file)));
                let Ok((_, unwind)) = opened else { return };
                let found = unwind.ok().and_then(|u| u.build_id());
                self.identities.insert(identity, found);
                found
            }
        };
        if map.file.build_id.is_some() {
            // The build id says it all, as it does where the kernel gave it.
            map.file.version = 0;
        }
    }

    /// Opens the file of a mapping if it is not open yet.
    pub fn open(&mut self, id: FileId, pid: u32, map: &MapEvent) {
        if self.binaries.contains_key(&id) {
            return;
        }
        let opened = match Region::of(&map.file) {
            Region::Vdso => perf::vdso_image()
                .and_then(|image| perf::memory_file(c"vdso", &image))
                .map(read)
                .map_err(OpenError::Io),
            Region::File if self.binaries.len() < MAX_OPEN => {
                procfs::open_mapped(pid, map, |file| read_if_mapped(file, &map.file))
            }
            _ => return,
        };
        let path = &map.file.path;
        match opened {
            Ok(opened) => {
                self.binaries.insert(id, Binary::new(opened, path));
            }
            Err(error) => {
                if !self.failed.insert(id) {
                    return;
                }
                match error {
                    OpenError::Replaced => tracing::warn!("{path}: {error}: not used"),
                    OpenError::Io(_) => tracing::debug!("{path}: cannot be opened: {error}"),
                }
            }
        }
    }

    /// Files that could not be opened.
    pub fn failed(&self) -> u64 {
        self.failed.len() as u64
    }

    /// Closes the files that `keep` does not want any more.
    pub fn retain(&mut self, keep: impl Fn(FileId) -> bool) {
        self.binaries.retain(|&id, _| keep(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path, process::Command};

    fn compile(dir: &Path, name: &str, result: &str) {
        let source = dir.join("a.c");
        fs::write(
            &source,
            format!(
                "#include <unistd.h>\nint main(void) {{ char c; return read(0, &c, 1) + {result}; }}"
            ),
        )
        .unwrap();
        let status = Command::new("cc")
            .args(["-Wl,--build-id", "-o"])
            .arg(dir.join(name))
            .arg(&source)
            .status()
            .unwrap();
        assert!(status.success());
    }

    fn build_id(path: &Path) -> Option<BuildId> {
        read(File::open(path).unwrap()).1.unwrap().build_id()
    }

    /// The mapping of a program's text.
    fn mapping(pid: u32, name: &str) -> MapEvent {
        for _ in 0..1000 {
            let maps = procfs::executable_maps(pid, pid).unwrap_or_default();
            if let Some(map) = maps.into_iter().find(|m| m.file.path.ends_with(name)) {
                return map;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("{name} does not run");
    }

    #[test]
    fn the_mapped_file_is_found_when_another_has_its_name() {
        // Opening through map_files needs CAP_CHECKPOINT_RESTORE.
        if !rustix::process::geteuid().is_root() {
            println!("skipped: the_mapped_file_is_found_when_another_has_its_name: needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        compile(dir.path(), "old", "1");
        compile(dir.path(), "new", "2");
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        let id = build_id(&old);
        assert!(id.is_some() && id != build_id(&new));
        let mut child = Command::new(&old)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut map = mapping(child.id(), "old");
        // As in an MMAP2 event with a build id, which has no inode.
        (map.file.inode, map.file.build_id) = (0, id);
        fs::rename(&new, &old).unwrap();
        let mut binaries = Binaries::default();
        binaries.open(FileId(0), child.id(), &map);
        child.kill().unwrap();
        child.wait().unwrap();
        let found = binaries.get(FileId(0)).unwrap().unwind.as_ref().unwrap();
        assert_eq!(found.build_id(), id);
        // Without the mapping, the other file is refused.
        binaries.open(FileId(1), child.id(), &map);
        assert!(binaries.get(FileId(1)).is_none());
        assert_eq!(binaries.failed(), 1);
    }
}
