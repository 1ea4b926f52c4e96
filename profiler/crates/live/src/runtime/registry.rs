//! Who is who: libraries by their real file, functions by their number.

use aiprof_model::profile::BuildId;
use rustc_hash::FxHashMap;
use std::{fs::File, io, os::fd::AsRawFd as _, os::unix::fs::MetadataExt};

/// `f_type` of overlayfs (linux/magic.h).
const OVERLAYFS: i64 = 0x794c_7630;
/// `f_type` of FUSE: a program of some user answers for such a file.
const FUSE: i64 = 0x6573_5546;

/// Which file a library is, whatever mount shows it.
///
/// A probe is in the file itself, so a file must be probed once only. Device, inode and generation
/// identify the file. Size and change time, which the owner of a file cannot set, identify its
/// content. The time of modification proves nothing: anybody can set it.
///
/// One layer of container images shows another device number in every overlay mount, but the same
/// inode number. There, files of one inode number are the same if size and change time are, too.
/// Users can make overlay mounts of what they like, even of file systems that lie about times. So a
/// file seen by an ordinary user on an overlay proves nothing about the files of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    on_overlay: bool,
    inode: u64,
    /// Where the file system has one.
    generation: Option<u32>,
    size: u64,
    changed: (i64, i64),
    modified: (i64, i64),
    /// If it is known already; it is not read for this.
    build_id: Option<BuildId>,
    /// Who has it mapped.
    uid: u32,
    /// The one process that it is probed in: it was found by its path alone.
    only: Option<u32>,
}

/// What must be known of a file before it is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nature {
    /// Root's, and no other user may write to it.
    pub(super) is_system: bool,
    /// A program of some user answers for it.
    pub(super) is_fuse: bool,
}

impl Nature {
    /// That of an open file.
    ///
    /// # Errors
    /// Those of fstat(2) and fstatfs(2).
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        let is_fuse = rustix::fs::fstatfs(file)?.f_type == FUSE;
        Ok(Self {
            is_system: meta.uid() == 0 && meta.mode() & 0o022 == 0 && !is_fuse,
            is_fuse,
        })
    }
}

/// `FS_IOC_GETVERSION` (linux/fs.h).
const GET_VERSION: libc::c_ulong = 0x8008_7601;

/// The generation of an inode: its number may have been another file's before.
fn generation(file: &File) -> Option<u32> {
    let mut version: libc::c_long = 0;
    // SAFETY: an open descriptor, and memory of the size that the number of the
    // request names.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), GET_VERSION, &raw mut version) };
    // File systems write 32 bits of it.
    (rc == 0).then_some(version as u32)
}

impl FileIdentity {
    /// That of an open file that a process of this user has mapped.
    ///
    /// # Errors
    /// Those of fstat(2) and fstatfs(2).
    pub(super) fn of(file: &File, uid: u32, build_id: Option<BuildId>) -> io::Result<Self> {
        let meta = file.metadata()?;
        let on_overlay = rustix::fs::fstatfs(file)?.f_type == OVERLAYFS;
        Ok(Self {
            device: meta.dev(),
            on_overlay,
            inode: meta.ino(),
            generation: generation(file),
            size: meta.size(),
            changed: (meta.ctime(), meta.ctime_nsec()),
            modified: (meta.mtime(), meta.mtime_nsec()),
            build_id,
            uid,
            only: None,
        })
    }

    /// The same, for one process only.
    pub(super) fn only_in(self, pid: u32) -> Self {
        let only = Some(pid);
        Self { only, ..self }
    }

    /// The one process that the file is probed in.
    pub(super) fn only(&self) -> Option<u32> {
        self.only
    }

    /// Whether the kernel's numbers are those of this file: device as in /proc/PID/maps (major
    /// number << 32 | minor number), and inode.
    pub(super) fn is_at(&self, device: u64, inode: u64) -> bool {
        let (major, minor) = (
            rustix::fs::major(self.device),
            rustix::fs::minor(self.device),
        );
        (u64::from(major) << 32 | u64::from(minor)) == device && self.inode == inode
    }

    /// Whether both are the same file, whatever its content was.
    pub(super) fn is(&self, other: &Self) -> bool {
        // What is probed everywhere is probed in the one process, too.
        let serves = self.only.is_none() || self.only == other.only;
        if self.inode != other.inode || !serves {
            return false;
        }
        if self.device == other.device {
            return self.generation == other.generation;
        }
        let overlay = self.on_overlay || other.on_overlay;
        let believed = self.uid == 0 || self.uid == other.uid;
        let build = match (self.build_id, other.build_id) {
            (Some(own), Some(other)) => own == other,
            _ => true,
        };
        overlay && believed && build && self.has_content_of(other)
    }

    /// Whether size and change time are the same.
    fn has_content_of(&self, other: &Self) -> bool {
        self.size == other.size && self.changed == other.changed
    }

    /// Whether an open file has changed since: written to, or not to be found by
    /// any name any more. For a message only, which chmod(1) and ln(1) need not
    /// cause: so the time of modification is good enough.
    pub(super) fn has_changed(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|now| {
            let modified = (now.mtime(), now.mtime_nsec());
            now.nlink() == 0 || now.size() != self.size || modified != self.modified
        })
    }
}

/// The files seen, each once.
#[derive(Debug, Default)]
pub(super) struct Files {
    by_inode: FxHashMap<u64, Vec<Remembered>>,
    n: usize,
}

/// A file seen.
#[derive(Debug)]
struct Remembered {
    identity: FileIdentity,
    /// How often its content was read again.
    again: u32,
}

/// What is known of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSeen {
    /// Nothing.
    New,
    /// It was seen, with other content.
    Changed,
    /// It was seen.
    Known,
}

impl Files {
    /// Most files remembered.
    const MAX: usize = 16_384;
    /// Most times that a file's content is read again.
    const AGAIN: u32 = 8;

    /// What is known of a file.
    pub(super) fn look(&self, identity: &FileIdentity) -> FileSeen {
        let known = self.by_inode.get(&identity.inode);
        let same = |known: &&Remembered| known.identity.is(identity);
        match known.and_then(|known| known.iter().find(same)) {
            None => FileSeen::New,
            Some(known) if known.identity.has_content_of(identity) => FileSeen::Known,
            Some(known) if known.again < Self::AGAIN => FileSeen::Changed,
            Some(_) => FileSeen::Known,
        }
    }

    /// Forgets the files that are probed in this process only.
    pub(super) fn forget(&mut self, pid: u32) {
        let n = &mut self.n;
        self.by_inode.retain(|_, known| {
            let before = known.len();
            known.retain(|known| known.identity.only() != Some(pid));
            *n -= before - known.len();
            !known.is_empty()
        });
    }

    /// Remembers a file; `false` if it was there already, with this content.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn insert(&mut self, identity: &FileIdentity) -> Result<bool, TooMany> {
        let seen = self.look(identity);
        let known = self.by_inode.entry(identity.inode).or_default();
        match seen {
            FileSeen::Known => return Ok(false),
            FileSeen::New if self.n >= Self::MAX => return Err(TooMany),
            FileSeen::New => {
                known.push(Remembered {
                    identity: identity.clone(),
                    again: 0,
                });
                self.n += 1;
            }
            FileSeen::Changed => {
                for known in known.iter_mut().filter(|k| k.identity.is(identity)) {
                    known.identity.size = identity.size;
                    known.identity.changed = identity.changed;
                    known.again += 1;
                }
            }
        }
        Ok(true)
    }
}

/// A limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// Numbers of functions and of probed files.
#[derive(Debug)]
pub(super) struct Registry {
    /// By table and symbol.
    probes: FxHashMap<(String, String), u32>,
    capacity: u32,
    files: u32,
}

/// The number of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// It has one.
    Known(u32),
    /// It was just given one.
    New(u32),
}

impl Registry {
    /// With room for this many functions.
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            probes: FxHashMap::default(),
            capacity,
            files: 0,
        }
    }

    /// The number of a function, the same in every library.
    ///
    /// # Errors
    /// The kernel side has no room for another.
    pub(super) fn probe(&mut self, table: &str, symbol: &str) -> Result<Number, TooMany> {
        let next = u32::try_from(self.probes.len()).map_err(|_| TooMany)?;
        match self.probes.entry((table.to_owned(), symbol.to_owned())) {
            std::collections::hash_map::Entry::Occupied(known) => Ok(Number::Known(*known.get())),
            std::collections::hash_map::Entry::Vacant(free) if next < self.capacity => {
                free.insert(next);
                Ok(Number::New(next))
            }
            std::collections::hash_map::Entry::Vacant(_) => Err(TooMany),
        }
    }

    /// A number for another probed file.
    pub(super) fn file(&mut self) -> u32 {
        self.files = self.files.saturating_add(1);
        self.files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_function_has_one_number_and_there_are_not_too_many() {
        let mut registry = Registry::new(2);
        assert_eq!(registry.probe("t", "a"), Ok(Number::New(0)));
        assert_eq!(registry.probe("u", "a"), Ok(Number::New(1)));
        assert_eq!(registry.probe("t", "a"), Ok(Number::Known(0)));
        assert_eq!(registry.probe("t", "b"), Err(TooMany));
        assert_eq!(registry.probe("u", "a"), Ok(Number::Known(1)));
        assert_eq!((registry.file(), registry.file()), (1, 2));
    }

    #[test]
    fn a_file_is_the_same_by_any_name_and_another_if_it_was_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("a"), "one").unwrap();
        fs::hard_link(path("a"), path("b")).unwrap();
        fs::copy(path("a"), path("c")).unwrap();
        let open = |name: &str| {
            let file = File::open(path(name)).unwrap();
            (FileIdentity::of(&file, 0, None).unwrap(), file)
        };
        let (a, a_file) = open("a");
        assert!(a.is(&open("b").0) && !a.is(&open("c").0));
        let mut files = Files::default();
        for (name, new) in [("a", true), ("b", false), ("c", true), ("c", false)] {
            assert_eq!(files.insert(&open(name).0), Ok(new), "{name}");
        }
        assert!(!a.has_changed(&a_file));
        fs::remove_file(path("a")).unwrap();
        assert!(!a.has_changed(&a_file));
        fs::rename(path("c"), path("b")).unwrap();
        assert!(a.has_changed(&a_file));
        assert!(!a.is(&open("b").0));
    }

    #[test]
    fn the_device_counts_except_on_overlayfs() {
        let file = tempfile::tempfile().unwrap();
        let plain = FileIdentity {
            on_overlay: false,
            ..FileIdentity::of(&file, 0, None).unwrap()
        };
        let elsewhere = FileIdentity {
            device: plain.device + 1,
            ..plain.clone()
        };
        let overlay = FileIdentity {
            on_overlay: true,
            ..elsewhere.clone()
        };
        assert!(!plain.is(&elsewhere));
        assert!(plain.is(&overlay) && overlay.is(&plain));
        let other_build = FileIdentity {
            build_id: BuildId::new(&[1; 20]),
            ..overlay.clone()
        };
        let own_build = FileIdentity {
            build_id: BuildId::new(&[2; 20]),
            ..plain.clone()
        };
        assert!(plain.is(&other_build) && !own_build.is(&other_build));
    }
    #[test]
    fn a_twin_with_the_times_of_another_file_is_another_file() {
        let file = tempfile::tempfile().unwrap();
        let roots = FileIdentity::of(&file, 0, BuildId::new(&[1; 20])).unwrap();
        // utimensat(2) sets the time of modification, nothing sets that of change.
        let twin = FileIdentity {
            device: roots.device + 1,
            changed: (roots.changed.0 + 1, roots.changed.1),
            on_overlay: true,
            uid: 65534,
            ..roots.clone()
        };
        assert!(!roots.is(&twin) && !twin.is(&roots));
        // A user's own file system can report any time. If its file is seen first, root's file must
        // still be probed.
        let liar = FileIdentity {
            changed: roots.changed,
            ..twin
        };
        let mut files = Files::default();
        assert_eq!(files.insert(&liar), Ok(true));
        assert_eq!(files.insert(&roots), Ok(true));
        assert_eq!(files.insert(&liar), Ok(false));
    }

    #[test]
    fn new_content_is_read_again_and_not_for_ever() {
        let file = tempfile::tempfile().unwrap();
        let mut identity = FileIdentity::of(&file, 1, None).unwrap();
        let mut files = Files::default();
        let mut taken = 0;
        for _ in 0..100 {
            identity.changed.0 += 1;
            taken += u32::from(files.insert(&identity).unwrap());
        }
        assert_eq!(taken, 1 + Files::AGAIN);
        let by_path = identity.clone().only_in(7);
        assert_eq!(files.look(&by_path), FileSeen::Known);
        let mut other = Files::default();
        assert_eq!(other.insert(&by_path), Ok(true));
        assert_eq!(other.look(&identity.clone().only_in(8)), FileSeen::New);
        assert_eq!(other.look(&identity), FileSeen::New);
    }
}
