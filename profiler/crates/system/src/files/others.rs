//! Files that belong to other users.
//!
//! Their names are chosen by whoever likes to: a link may lead anywhere, a name may be that of a
//! pipe or of a file without end. So a path is resolved inside the root directory of its process,
//! whatever links it has on the way (openat2(2), `RESOLVE_IN_ROOT`). It is opened as a mere place
//! first (`O_PATH`), which has no effect on anything. It is only opened for reading if type, owner
//! and size are right.
//!
//! Any of this may block for ever where the file system is the user's own (FUSE):
//! not for the thread that reads the rings, see [`crate::workers`].

use super::{kernel, rights};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Statx, StatxFlags};
use std::{
    ffi::OsString,
    fs::File,
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

/// Who may own a file, and how large it may be.
#[derive(Clone, Copy, Debug)]
pub struct Trust {
    /// The user whom the file describes; root's files that everybody may read are accepted as
    /// well.
    pub uid: u32,
    /// Most bytes that the file may have.
    pub max_bytes: u64,
}

/// The root directory of a process, as a place to find files from.
#[derive(Debug)]
pub struct RootDir(OwnedFd);

impl RootDir {
    /// That of a process.
    ///
    /// # Errors
    /// It is gone, or may not be looked at.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::at(format!("/proc/{pid}/root"))
    }

    /// This machine's own.
    ///
    /// # Errors
    /// open(2)'s.
    pub fn of_host() -> io::Result<Self> {
        Self::at("/")
    }

    /// Any directory.
    ///
    /// # Errors
    /// open(2)'s.
    pub fn at(path: impl AsRef<Path>) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path.as_ref(), flags, Mode::empty())?))
    }

    /// Opens a regular file below this root to read it, with the caller's rights.
    /// `path` and all links on its way count from the root.
    ///
    /// # Errors
    /// It is not there, no regular file, somebody else's, or too large.
    pub fn open(&self, path: impl AsRef<Path>, trust: Trust) -> io::Result<File> {
        // Whoever made a link there must not lead the caller to what he may not read.
        rights::as_caller(|| {
            let place = self.place(path.as_ref())?;
            let stat = rustix::fs::fstat(&place)?;
            check(&stat, trust)?;
            // Among root's files a user may use those that everybody may read, by paths of root's
            // only. A link could lead this program through directories that are closed to its
            // maker.
            if stat.st_uid != trust.uid {
                let is_for_all = stat.st_mode & 0o004 != 0;
                if !is_for_all || self.has_link_of_others(path.as_ref())? {
                    return Err(io::Error::other(
                        "belongs to root, and the process's user may not read it",
                    ));
                }
            }
            if (trust.uid == 0 || stat.st_uid != trust.uid) && is_fuse(&place)? {
                return Err(io::Error::other(
                    "not read, because it is on a FUSE file system, which can claim any owner",
                ));
            }
            reopen(&place)
        })
    }

    /// Whether there is a link on the way that is not root's.
    fn has_link_of_others(&self, path: &Path) -> io::Result<bool> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        let parts = relative
            .ancestors()
            .filter(|part| !part.as_os_str().is_empty());
        for part in parts {
            let stat = rustix::fs::fstat(self.resolve(part, OFlags::NOFOLLOW)?)?;
            let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
            if is_link && stat.st_uid != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// [`RootDir::open`] of a file whoever owns it.
    ///
    /// # Errors
    /// It is not there, or no regular file.
    pub fn open_any(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let place = self.place(path.as_ref())?;
        let stat = rustix::fs::fstat(&place)?;
        let trust = Trust {
            uid: stat.st_uid,
            max_bytes: u64::MAX,
        };
        check(&stat, trust)?;
        reopen(&place)
    }

    /// Where a path leads, without links, from this root on.
    ///
    /// # Errors
    /// It is not there, or above this root.
    pub fn real_path(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let name = |fd: &OwnedFd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let (real, own) = (name(&self.place(path.as_ref())?)?, name(&self.0)?);
        let relative = real.strip_prefix(own).map_err(io::Error::other)?;
        Ok(relative.to_owned())
    }

    /// A file as a place only: nothing is opened for reading.
    ///
    /// # Errors
    /// It is not there.
    pub fn place(&self, path: &Path) -> io::Result<OwnedFd> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        self.resolve(relative, OFlags::empty())
    }

    fn resolve(&self, relative: &Path, more: OFlags) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat2(
            &self.0,
            relative,
            OFlags::PATH | OFlags::CLOEXEC | more,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )?)
    }
}

/// Opens the regular file behind a mapping of a process to read it, whatever its
/// name is now. Needs `CAP_CHECKPOINT_RESTORE`.
///
/// # Errors
/// The process has no such mapping, it may not be looked at, or the file is no
/// regular one.
pub fn open_mapping(pid: u32, range: Range<u64>) -> io::Result<File> {
    regular(mapping(pid, range)?)
}

/// The file behind a mapping of a process, as a place only.
///
/// # Errors
/// As [`open_mapping`].
pub fn mapping(pid: u32, range: Range<u64>) -> io::Result<OwnedFd> {
    let path = format!("/proc/{pid}/map_files/{:x}-{:x}", range.start, range.end);
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// What is known here of a file, without asking a server or the program that serves
/// its file system: never blocks.
///
/// # Errors
/// statx(2)'s.
pub fn cached(file: impl AsFd, wanted: StatxFlags) -> io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(rustix::fs::statx(file, c"", flags, wanted)?)
}

/// Opens a regular file that anybody may have put there, to read it. Links are not
/// followed.
///
/// # Errors
/// It is none, or open(2)'s.
pub fn open_untrusted(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    regular(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Paths and names in a directory that anybody may write to, of at most `limit`.
///
/// # Errors
/// opendir(3)'s.
pub fn read_dir(path: &Path, limit: usize) -> io::Result<Vec<(PathBuf, OsString)>> {
    let entries = std::fs::read_dir(path)?.flatten().take(limit);
    Ok(entries.map(|e| (e.path(), e.file_name())).collect())
}

/// The user namespace that the machine starts with (include/linux/proc_ns.h).
const INITIAL_USER_NAMESPACE: u64 = 0xefff_fffd;

/// Whether a place is on a file system that the kernel itself serves, by the mounts of a process:
/// then reading it ends. Users can mount what a program serves (FUSE), and in namespaces of their
/// own overlays, below which that may be. Asks no file system.
///
/// # Errors
/// It is not so, or is not known.
pub fn is_served_by_kernel(pid: u32, place: impl AsFd) -> io::Result<()> {
    let id = cached(place, StatxFlags::MNT_ID)?.stx_mnt_id.to_string();
    let table = kernel::read_to_string(format!("/proc/{pid}/mountinfo"))?;
    let line = table
        .lines()
        .find(|line| line.split(' ').next() == Some(&id));
    // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS...] - TYPE SOURCE OPTIONS
    let kind = line.and_then(|line| line.split_once(" - ")?.1.split(' ').next());
    match kind {
        None => Err(io::Error::other("on a mount of another mount namespace")),
        Some(kind) if kind.starts_with("fuse") => Err(io::Error::other(
            "on a file system that a program serves (FUSE)",
        )),
        Some("overlay") if !is_mounted_by_root(pid)? => {
            Err(io::Error::other("on an overlay that a user mounted"))
        }
        Some(_) => Ok(()),
    }
}

/// Whether only root of this machine can mount where a process is: what looks like
/// root's file there is root's. Elsewhere a user can lay an overlay of theirs above
/// what a program of theirs serves.
///
/// # Errors
/// It is gone, or may not be looked at.
pub fn is_mounted_by_root(pid: u32) -> io::Result<bool> {
    let mounts = kernel::open(format!("/proc/{pid}/ns/mnt"))?;
    let owner = user_namespace(&mounts)?;
    Ok(rustix::fs::fstat(&owner)?.st_ino == INITIAL_USER_NAMESPACE)
}

/// The user namespace that owns a namespace (`NS_GET_USERNS`, ioctl_nsfs(2)).
fn user_namespace(namespace: &File) -> io::Result<OwnedFd> {
    const NS_GET_USERNS: libc::c_ulong = 0xb701;
    // SAFETY: the request takes no argument and gives a new descriptor.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens the file of a place, if it is a regular one, for reading.
///
/// # Errors
/// It is none, or open(2)'s.
pub fn regular(place: OwnedFd) -> io::Result<File> {
    let stat = rustix::fs::fstat(&place)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("not a regular file"));
    }
    reopen(&place)
}

/// Whether a file is what it has to be.
///
/// # Errors
/// What is wrong with it.
pub fn check(stat: &Stat, trust: Trust) -> io::Result<()> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("not a regular file"));
    }
    if stat.st_uid != 0 && stat.st_uid != trust.uid {
        return Err(io::Error::other(format!(
            "belongs to user {}, not to user {} or root",
            stat.st_uid, trust.uid
        )));
    }
    if u64::try_from(stat.st_size).unwrap_or(u64::MAX) > trust.max_bytes {
        return Err(io::Error::other(format!(
            "{} bytes exceed the limit of {}",
            stat.st_size, trust.max_bytes
        )));
    }
    Ok(())
}

/// Whether a file is root's, with an identity that no other file can have: only root can change it,
/// and no other user's program serves it.
pub fn is_roots_own(file: &File) -> bool {
    let is_own = || -> io::Result<bool> {
        let stat = rustix::fs::fstat(file)?;
        Ok(stat.st_uid == 0 && stat.st_mode & 0o022 == 0 && !is_fuse(file)?)
    };
    is_own().unwrap_or(false)
}

/// Whether a file lies in a FUSE file system: there a program of any user decides which owner a
/// file shows.
fn is_fuse(place: impl AsFd) -> io::Result<bool> {
    const FUSE_SUPER_MAGIC: u64 = 0x6573_5546;
    let kind = rustix::fs::fstatfs(place)?.f_type;
    Ok(u64::try_from(kind).is_ok_and(|kind| kind & 0xffff_ffff == FUSE_SUPER_MAGIC))
}

/// Opens the file of a place for reading.
///
/// # Errors
/// open(2)'s.
pub fn reopen(place: impl AsFd) -> io::Result<File> {
    // The link of a descriptor leads to its very file, whatever its name is now.
    let path = format!("/proc/self/fd/{}", place.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// An open file as a place only: whoever closes it waits for no file system.
///
/// # Errors
/// open(2)'s.
pub fn place_of(file: impl AsFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, chown, lchown, symlink},
    };

    #[test]
    fn links_stay_below_the_root() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        fs::write(dir.path().join("etc/hostname"), "inside").unwrap();
        symlink("/etc/hostname", dir.path().join("absolute")).unwrap();
        symlink("../../../../etc/hostname", dir.path().join("up")).unwrap();
        symlink("/proc/self/root/etc/hostname", dir.path().join("magic")).unwrap();
        let root = RootDir::at(dir.path()).unwrap();
        let trust = Trust {
            uid: rustix::process::getuid().as_raw(),
            max_bytes: 100,
        };
        for name in ["absolute", "up", "/etc/hostname"] {
            let file = root.open(name, trust).unwrap();
            assert_eq!(io::read_to_string(file).unwrap(), "inside", "{name}");
        }
        assert!(root.open("magic", trust).is_err());
    }

    #[test]
    fn pipes_strangers_files_and_large_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = RootDir::at(dir.path()).unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        fs::write(dir.path().join("file"), "12345").unwrap();
        let own = rustix::process::getuid().as_raw();
        let open = |name: &str, uid, max_bytes| root.open(name, Trust { uid, max_bytes });
        assert!(open("pipe", own, 100).is_err());
        assert!(open(".", own, 100).is_err());
        assert!(open("file", own, 4).is_err());
        assert!(open("file", own, 5).is_ok());
        if own != 0 {
            assert!(open("file", own + 1, 5).is_err());
        }
    }

    #[test]
    fn a_link_of_a_user_leads_to_nothing_of_roots_that_is_closed() {
        const USER: u32 = 65534;
        if !rustix::process::getuid().is_root() {
            println!(
                "skipped: a_link_of_a_user_leads_to_nothing_of_roots_that_is_closed: not root"
            );
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("closed")).unwrap();
        for (name, owner, mode) in [
            ("secret", 0, 0o600),
            ("closed/open", 0, 0o644),
            ("open", 0, 0o644),
            ("own", USER, 0o600),
        ] {
            fs::write(at(name), name).unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
            chown(at(name), Some(owner), None).unwrap();
        }
        for (owner, target) in [
            (USER, "secret"),
            (USER, "closed/open"),
            (USER, "own"),
            (USER, "closed"),
            (0, "open"),
        ] {
            let link = at(&format!("{owner}-{}", target.replace('/', "-")));
            symlink(target, &link).unwrap();
            lchown(&link, Some(owner), None).unwrap();
        }
        let root = RootDir::at(dir.path()).unwrap();
        let trust = Trust {
            uid: USER,
            max_bytes: 100,
        };
        for (name, is_fine) in [
            ("secret", false),
            ("open", true),
            ("own", true),
            ("65534-secret", false),
            ("65534-closed-open", false),
            ("65534-closed/open", false),
            ("65534-own", true),
            ("0-open", true),
        ] {
            assert_eq!(root.open(name, trust).is_ok(), is_fine, "{name}");
        }
    }
}
