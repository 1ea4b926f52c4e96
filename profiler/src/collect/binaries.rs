//! The mapped files as open files: opened once, when first seen, so that names
//! and unwind data outlive the process, its mount namespace and the file's name.

use super::{bpf::perf, procfs};
use crate::{
    process::{FileId, Region},
    profile::BuildId,
    unwind::{ReadAt, TextSegment, UnwindFile},
    wire::{FileKey, MapEvent},
};
use rustc_hash::FxHashMap;
use std::{fs::File, io, sync::Arc};

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
    pub unwind: Option<UnwindFile<Shared>>,
    /// Its executable segments.
    pub text: Vec<TextSegment>,
}

impl Binary {
    fn new(file: File) -> Self {
        let file = Shared(Arc::new(file));
        let unwind = UnwindFile::open(file.clone())
            .inspect_err(|error| tracing::debug!("no unwind data: {error}"))
            .ok();
        let text = unwind.as_ref().map_or_else(Vec::new, |u| u.text().to_vec());
        Self { file, unwind, text }
    }
}

/// All open files by handle.
#[derive(Default)]
pub struct Binaries {
    binaries: FxHashMap<FileId, Binary>,
    identities: FxHashMap<(u64, u64), Option<BuildId>>,
    /// Files that could not be opened, with the reason of each.
    pub failed: u64,
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
        let identity = (map.file.device, map.file.inode);
        map.file.build_id = match self.identities.get(&identity) {
            Some(&known) => known,
            None => {
                if self.identities.len() >= MAX_IDENTITIES {
                    self.identities.clear();
                }
                let opened = procfs::open_mapped(pid, map);
                let found = opened
                    .ok()
                    .and_then(|file| UnwindFile::open(Shared(Arc::new(file))).ok()?.build_id());
                self.identities.insert(identity, found);
                found
            }
        };
    }

    /// Opens the file of a mapping if it is not open yet.
    pub fn open(&mut self, id: FileId, pid: u32, map: &MapEvent) {
        if self.binaries.contains_key(&id) {
            return;
        }
        let opened = match Region::of(&map.file) {
            Region::Vdso => perf::vdso_image().and_then(|i| perf::memory_file(c"vdso", &i)),
            Region::File if self.binaries.len() < MAX_OPEN => procfs::open_mapped(pid, map),
            _ => return,
        };
        match opened.map(Binary::new) {
            Ok(binary) if matches(&binary, &map.file) => {
                self.binaries.insert(id, binary);
            }
            Ok(_) => {
                self.failed += 1;
                tracing::warn!("{}: replaced since it was mapped: not used", map.file.path);
            }
            Err(error) => {
                self.failed += 1;
                tracing::debug!("{}: cannot be opened: {error}", map.file.path);
            }
        }
    }

    /// Closes the files that `keep` does not want any more.
    pub fn retain(&mut self, keep: impl Fn(FileId) -> bool) {
        self.binaries.retain(|&id, _| keep(id));
    }
}

/// Whether the opened file is the mapped one, as far as it can be told.
fn matches(binary: &Binary, key: &FileKey) -> bool {
    match (
        key.build_id,
        binary.unwind.as_ref().and_then(UnwindFile::build_id),
    ) {
        (Some(mapped), Some(opened)) => mapped == opened,
        _ => true,
    }
}
