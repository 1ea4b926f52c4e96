//! The files that processes map, each once.
//!
//! A file is what the kernel says is mapped: device, inode, and the number of its
//! content. Not its build id, which anybody can copy, nor its path. Recordings made
//! before that was so have build ids only.

use crate::{profile::BuildId, wire::FileKey};
use rustc_hash::FxHashMap;

/// Handle of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// What kind of memory a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// A file on disk (or once on disk).
    File,
    /// The kernel's vdso image.
    Vdso,
    /// The vsyscall page.
    Vsyscall,
    /// The kernel's uprobe area.
    Uprobes,
    /// Anonymous memory: code generated at run time.
    Anonymous,
}

impl Region {
    /// The kind of a mapping by the name the kernel gives it.
    pub fn of(key: &FileKey) -> Self {
        if key.build_id.is_some() {
            return Self::File;
        }
        match key.path.as_str() {
            "[vdso]" => Self::Vdso,
            "[vsyscall]" => Self::Vsyscall,
            "[uprobes]" | "[uprobes-trampoline]" => Self::Uprobes,
            path if path.is_empty() || path.starts_with(['[', '#']) => Self::Anonymous,
            path if path.starts_with("//anon") || path.starts_with("anon_inode:") => {
                Self::Anonymous
            }
            path if path.starts_with("/dev/zero") || path.starts_with("/anon_hugepage") => {
                Self::Anonymous
            }
            path if path.starts_with("/memfd:") || path.starts_with("/SYSV") => Self::Anonymous,
            _ => Self::File,
        }
    }
}

#[derive(PartialEq, Eq, Hash)]
enum Identity {
    BuildId(BuildId),
    /// Device, inode, version.
    Inode(u64, u64, u64),
    Name(String),
}

/// All files seen in mappings.
#[derive(Default)]
pub struct FileTable {
    keys: Vec<FileKey>,
    index: FxHashMap<Identity, FileId>,
}

impl FileTable {
    /// The handle of a file; a new one if it was not seen before.
    pub fn intern(&mut self, key: &FileKey) -> FileId {
        let identity = match key.build_id {
            _ if key.inode != 0 => Identity::Inode(key.device, key.inode, key.version),
            Some(id) => Identity::BuildId(id),
            None => Identity::Name(key.path.clone()),
        };
        let next = FileId(u32::try_from(self.keys.len()).unwrap_or(u32::MAX));
        *self.index.entry(identity).or_insert_with(|| {
            self.keys.push(key.clone());
            next
        })
    }

    /// What was first seen of a file.
    pub fn key(&self, id: FileId) -> Option<&FileKey> {
        self.keys.get(id.0 as usize)
    }

    /// Files seen.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether none was seen.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
