//! Who is who: libraries by their real file, functions by their number.

use crate::profile::BuildId;
use rustc_hash::FxHashMap;
use std::{fs::File, io, os::unix::fs::MetadataExt};

/// `f_type` of overlayfs (linux/magic.h).
const OVERLAYFS: i64 = 0x794c_7630;

/// Which file a library is, whatever mount shows it.
///
/// A probe is in the file itself, so a file must be probed once only. One layer of
/// container images shows another device number in every overlay mount, but the
/// same inode number: on overlayfs the device says nothing. Elsewhere it does:
/// copies of a whole file system have the same inode numbers and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    on_overlay: bool,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// As far as it is known already; it is not read for this.
    build_id: Option<BuildId>,
}

impl Identity {
    /// Of an open file.
    ///
    /// # Errors
    /// Those of fstat(2) and fstatfs(2).
    pub(super) fn of(file: &File, build_id: Option<BuildId>) -> io::Result<Self> {
        let meta = file.metadata()?;
        let on_overlay = rustix::fs::fstatfs(file)?.f_type == OVERLAYFS;
        Ok(Self {
            device: meta.dev(),
            on_overlay,
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            build_id,
        })
    }

    /// Whether both are the same file.
    pub(super) fn is(&self, other: &Self) -> bool {
        let device = self.device == other.device || self.on_overlay || other.on_overlay;
        let build = match (self.build_id, other.build_id) {
            (Some(own), Some(other)) => own == other,
            _ => true,
        };
        let content = self.size == other.size && self.modified == other.modified;
        device && build && content && self.inode == other.inode
    }

    /// Whether an open file has changed since: written to, or not to be found by
    /// any name any more.
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
    by_inode: FxHashMap<u64, Vec<Identity>>,
    n: usize,
}

impl Files {
    /// Most files remembered.
    const MAX: usize = 4096;

    /// Remembers a file; `false` if it was there already.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn insert(&mut self, identity: &Identity) -> Result<bool, TooMany> {
        if self.n >= Self::MAX {
            return Err(TooMany);
        }
        let known = self.by_inode.entry(identity.inode).or_default();
        if known.iter().any(|other| other.is(identity)) {
            return Ok(false);
        }
        known.push(identity.clone());
        self.n += 1;
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
            (Identity::of(&file, None).unwrap(), file)
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
        let plain = Identity {
            on_overlay: false,
            ..Identity::of(&file, None).unwrap()
        };
        let elsewhere = Identity {
            device: plain.device + 1,
            ..plain.clone()
        };
        let overlay = Identity {
            on_overlay: true,
            ..elsewhere.clone()
        };
        assert!(!plain.is(&elsewhere));
        assert!(plain.is(&overlay) && overlay.is(&plain));
        let other_build = Identity {
            build_id: BuildId::new(&[1; 20]),
            ..overlay.clone()
        };
        let own_build = Identity {
            build_id: BuildId::new(&[2; 20]),
            ..plain.clone()
        };
        assert!(plain.is(&other_build) && !own_build.is(&other_build));
    }
}
