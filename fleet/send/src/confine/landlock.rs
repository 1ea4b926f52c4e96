//! Which files the program may open, by the kernel's Landlock (landlock(7)).
//!
//! Sources: Documentation/userspace-api/landlock.rst and include/uapi/linux/landlock.h.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_DIR: u64 = 1 << 7;
const MAKE_REG: u64 = 1 << 8;
const TRUNCATE: u64 = 1 << 14;
/// What rules of one file may have.
const OF_FILES: u64 = WRITE_FILE | READ_FILE | TRUNCATE;
/// What each version of the interface knows, from the first on: all but what follows,
/// links between directories, truncation, nothing, and commands to devices.
const KNOWN: [u64; 5] = [
    (1 << 13) - 1,
    (1 << 14) - 1,
    (1 << 15) - 1,
    (1 << 15) - 1,
    (1 << 16) - 1,
];
/// The version that knows signals and abstract sockets, of which none leave.
const SCOPES: usize = 6;
/// Abstract sockets and signals.
const ALL_SCOPES: u64 = 3;

/// What may be done below a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathRights {
    /// Read.
    Read,
    /// Make, write and remove files, and make directories: no links, devices and pipes.
    Files,
}

impl PathRights {
    fn access(self) -> u64 {
        let read = READ_FILE | READ_DIR;
        match self {
            Self::Read => read,
            Self::Files => read | WRITE_FILE | TRUNCATE | REMOVE_FILE | MAKE_DIR | MAKE_REG,
        }
    }
}

/// What may be opened.
#[derive(Debug, Default)]
pub(super) struct Rules {
    places: Vec<(PathBuf, PathRights)>,
    reads_all: bool,
}

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

impl Rules {
    /// All may be read, and nothing be written.
    pub(super) fn to_read_all() -> Self {
        Self {
            places: Vec::new(),
            reads_all: true,
        }
    }

    /// Allows something below places; those that are not there are left out.
    pub(super) fn add(&mut self, places: impl IntoIterator<Item = PathBuf>, rule: PathRights) {
        let places = places.into_iter().map(|place| (place, rule));
        self.places.extend(places);
    }
}

/// Restricts this thread, and all that it starts, to these rules; whether the kernel can.
///
/// # Errors
/// It can, and did not.
pub(super) fn restrict(rules: &Rules) -> io::Result<bool> {
    let Some(version) = version()? else {
        return Ok(false);
    };
    let known = KNOWN.get(version.saturating_sub(1)).or(KNOWN.last());
    let mut handled = known.copied().unwrap_or_default();
    if rules.reads_all {
        handled &= !(READ_FILE | READ_DIR);
    }
    let ruleset = ruleset(handled, version)?;
    for (place, rule) in &rules.places {
        add(&ruleset, place, rule.access() & handled)?;
    }
    // SAFETY: it takes a descriptor and flags, of which there are none.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) };
    checked(done).map(|_| true)
}

/// The version of the kernel's interface; `None`: it has none.
fn version() -> io::Result<Option<usize>> {
    const VERSION: u32 = 1;
    // SAFETY: with this flag it takes no structure, and returns a number.
    let version = unsafe {
        let none = std::ptr::null::<RulesetAttr>();
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, VERSION)
    };
    match checked(version) {
        Ok(version) => Ok(usize::try_from(version).ok()),
        // Not compiled in, switched off, or not known to a container's own filter.
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::EPERM) => Ok(None),
            _ => Err(error),
        },
    }
}

fn ruleset(handled: u64, version: usize) -> io::Result<OwnedFd> {
    let attr = RulesetAttr {
        handled_access_fs: handled,
        handled_access_net: 0,
        scoped: if version >= SCOPES { ALL_SCOPES } else { 0 },
    };
    // SAFETY: the structure is valid for its size. Fields that an older kernel does not know
    // are zero, which it accepts.
    let fd = unsafe {
        let attr = &raw const attr;
        let size = size_of::<RulesetAttr>();
        libc::syscall(libc::SYS_landlock_create_ruleset, attr, size, 0)
    };
    let fd = i32::try_from(checked(fd)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Allows something below a place, if it is there.
fn add(ruleset: &OwnedFd, place: &Path, access: u64) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags};
    const PATH_BENEATH: i32 = 1;
    let opened = rustix::fs::open(place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let Ok(opened) = opened else {
        return Ok(());
    };
    let about = rustix::fs::fstat(&opened)?;
    let is_directory = rustix::fs::FileType::from_raw_mode(about.st_mode).is_dir();
    let attr = PathBeneathAttr {
        allowed_access: if is_directory {
            access
        } else {
            access & OF_FILES
        },
        parent_fd: opened.as_raw_fd(),
    };
    // SAFETY: the structure and both descriptors live until it returns.
    let done = unsafe {
        let (call, attr) = (libc::SYS_landlock_add_rule, &raw const attr);
        libc::syscall(call, ruleset.as_raw_fd(), PATH_BENEATH, attr, 0)
    };
    checked(done).map(drop)
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind::PermissionDenied;
    use std::os::unix::fs::symlink;

    /// Runs it on a thread of its own, which alone is restricted; `None` without Landlock.
    fn restricted<T: Send>(rules: &Rules, then: impl FnOnce() -> T + Send) -> Option<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                rustix::thread::set_no_new_privs(true).unwrap();
                restrict(rules).unwrap().then(then)
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn files_are_written_where_rules_allow_it_and_links_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["read", "written"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        for name in ["other", "read/file"] {
            std::fs::write(path(name), "text").unwrap();
        }
        let mut rules = Rules::default();
        rules.add([path("read"), path("not there")], PathRights::Read);
        rules.add([path("written")], PathRights::Files);
        let refused = restricted(&rules, || {
            std::fs::read(path("read/file")).unwrap();
            std::fs::write(path("written/new"), "text").unwrap();
            std::fs::rename(path("written/new"), path("written/file")).unwrap();
            std::fs::create_dir(path("written/folder")).unwrap();
            [
                std::fs::read(path("other")).map(drop),
                std::fs::write(path("other"), "mine"),
                std::fs::write(path("read/file"), "mine"),
                std::fs::write(path("read/new"), "mine"),
                std::fs::remove_file(path("read/file")),
                symlink(path("other"), path("written/link")),
                std::fs::hard_link(path("other"), path("written/link")),
                std::fs::remove_dir(path("written/folder")),
                std::process::Command::new("/bin/true").status().map(drop),
            ]
        });
        for (at, refused) in refused.into_iter().flatten().enumerate() {
            let kind = refused.unwrap_err().kind();
            // A link between directories is one between file systems then.
            let is_link = kind == std::io::ErrorKind::CrossesDevices;
            assert!(kind == PermissionDenied || is_link, "{at}: {kind}");
        }
    }

    #[test]
    fn who_reads_all_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "text").unwrap();
        let done = restricted(&Rules::to_read_all(), || {
            std::fs::read(&file).unwrap();
            std::fs::write(&file, "mine").unwrap_err().kind()
        });
        assert!(done.is_none_or(|kind| kind == PermissionDenied));
    }
}
