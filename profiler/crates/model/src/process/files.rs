//! The files that processes map, each once.
//!
//! The kernel identifies a mapped file: by device, inode, and the number of its content.
//! Its build id does not, for any program can copy it, nor does its path. Recordings made
//! before that was so have build ids only.

use super::ScriptTable;
use crate::{profile::BuildId, wire::FileKey};
use rustc_hash::FxHashMap;

/// Handle of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// What the vdso of programs of 32 bits is called here, which is another one.
pub const NARROW_VDSO: &str = "[vdso32]";

/// How the kernel's names of memory files begin (memfd_create(2)).
const MEMORY_FILE: &str = "/memfd:";

/// What a memory file is called that holds a whole program or library; `None`: the path is that of
/// no memory file. It has no slash in front, which shows that its code is not generated.
pub fn name_in_memory(path: &str) -> Option<String> {
    path.starts_with(MEMORY_FILE)
        .then(|| path.trim_start_matches('/').to_owned())
}

/// A mapped file's path without the kernel's mark that the file is deleted.
pub fn without_mark(path: &str) -> &str {
    path.strip_suffix(" (deleted)").unwrap_or(path)
}

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
    /// Anonymous memory, or a memory file that is not known to hold a program or library: code
    /// generated at run time.
    Anonymous,
}

impl Region {
    /// The kind of a mapping by the name the kernel gives it.
    pub fn of(key: &FileKey) -> Self {
        if key.build_id.is_some() {
            return Self::File;
        }
        match key.path.as_str() {
            "[vdso]" | NARROW_VDSO => Self::Vdso,
            "[vsyscall]" => Self::Vsyscall,
            "[uprobes]" | "[uprobes-trampoline]" => Self::Uprobes,
            path if path.is_empty() || path.starts_with(['[', '#']) => Self::Anonymous,
            path if path.starts_with("//anon") || path.starts_with("anon_inode:") => {
                Self::Anonymous
            }
            path if path.starts_with("/dev/zero") || path.starts_with("/anon_hugepage") => {
                Self::Anonymous
            }
            path if path.starts_with(MEMORY_FILE) || path.starts_with("/SYSV") => Self::Anonymous,
            _ => Self::File,
        }
    }

    /// Whether what is mapped must be looked at: it is a file, or a memory file, which may hold a
    /// program or library.
    pub fn may_be_file(key: &FileKey) -> bool {
        Self::of(key) == Self::File || key.path.starts_with(MEMORY_FILE)
    }
}

#[derive(PartialEq, Eq, Hash)]
enum Identity {
    BuildId(BuildId),
    /// Device, inode, version.
    Inode(u64, u64, u64),
    Name(String),
}

/// The files seen in mappings. A handle is never given to another file, also after its
/// own was forgotten.
#[derive(Default)]
pub struct FileTable {
    keys: FxHashMap<FileId, FileKey>,
    index: FxHashMap<Identity, FileId>,
    next: u32,
    /// Functions of scripts, which have no file that is mapped.
    pub scripts: ScriptTable,
}

impl FileTable {
    /// The handle of a file; a new one if it was not seen before.
    pub fn intern(&mut self, key: &FileKey) -> FileId {
        let identity = match key.build_id {
            _ if key.inode != 0 => Identity::Inode(key.device, key.inode, key.version),
            Some(id) => Identity::BuildId(id),
            None => Identity::Name(key.path.clone()),
        };
        if let Some(id) = self.index.get(&identity) {
            return *id;
        }
        let id = self.handle();
        self.keys.insert(id, key.clone());
        self.index.insert(identity, id);
        id
    }

    /// A handle that no file has or gets.
    pub fn handle(&mut self) -> FileId {
        let id = FileId(self.next);
        self.next = self.next.saturating_add(1);
        id
    }

    /// Forgets the files that `keep` does not want. If one is seen again it gets
    /// another handle.
    pub fn retain(&mut self, keep: impl Fn(FileId) -> bool) {
        self.index.retain(|_, id| keep(*id));
        self.keys.retain(|id, _| keep(*id));
        self.index.shrink_to(2 * self.index.len());
        self.keys.shrink_to(2 * self.keys.len());
    }

    /// What was first seen of a file.
    pub fn key(&self, id: FileId) -> Option<&FileKey> {
        self.keys.get(&id)
    }

    /// Files known.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(inode: u64) -> FileKey {
        FileKey {
            path: format!("/tmp/{inode}"),
            build_id: None,
            device: 1,
            inode,
            version: 1,
        }
    }

    #[test]
    fn a_memory_file_is_a_file_once_it_is_known_to_be_one() {
        let of = |path: &str| FileKey {
            path: path.into(),
            ..key(7)
        };
        let raw = of("/memfd:a b (deleted)");
        assert_eq!(Region::of(&raw), Region::Anonymous);
        assert!(Region::may_be_file(&raw));
        let known = of(&name_in_memory(&raw.path).unwrap());
        assert_eq!(known.path, "memfd:a b (deleted)");
        assert_eq!(Region::of(&known), Region::File);
        for other in ["/bin/memfd:", "//anon", "[heap]", "/dev/zero (deleted)", ""] {
            assert_eq!(name_in_memory(other), None);
            assert_eq!(Region::may_be_file(&of(other)), other == "/bin/memfd:");
        }
    }

    #[test]
    fn a_forgotten_file_leaves_nothing_and_its_handle_to_nobody() {
        let mut files = FileTable::default();
        let kept = files.intern(&key(1));
        for inode in 2..50_000 {
            let id = files.intern(&key(inode));
            files.retain(|one| one == kept);
            assert_eq!((files.len(), files.key(id)), (1, None));
        }
        assert!(files.keys.capacity() < 64 && files.index.capacity() < 64);
        let again = files.intern(&key(2));
        assert!(again.0 >= 49_999, "{again:?} was another file's");
        assert_eq!(files.intern(&key(1)), kept);
        assert_eq!(files.key(kept), Some(&key(1)));
    }
}
