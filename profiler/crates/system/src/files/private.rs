//! A directory in which processes of one user meet.
//!
//! No other user can look into it or put anything there. The directory above and the directory
//! itself are the user's own, links are followed nowhere, and what is found otherwise is an error.
//! Sockets are named from the opened directory, so that no later change of the path leads
//! elsewhere.

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

/// Name of the directory.
const NAME: &str = "aiprof";
/// How directories are opened: no link leads to one.
const DIRECTORY: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// How often a lock is tried whose file is taken away meanwhile.
const TRIES: usize = 16;
/// Most entries that are looked at.
const MAX_ENTRIES: usize = 4096;

/// The directory, opened.
#[derive(Debug)]
pub struct PrivateDirectory(OwnedFd);

impl PrivateDirectory {
    /// The one below a directory, made where there is none.
    ///
    /// # Errors
    /// It cannot be made, or it or the one above is not this user's own.
    pub fn below(parent: &Path) -> io::Result<Self> {
        let parent_fd = open_parent(parent)?;
        match rustix::fs::mkdirat(&parent_fd, NAME, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        Self::named(&parent_fd, parent)
    }

    /// Looks whether [`Self::below`] gives one, and makes none.
    ///
    /// # Errors
    /// As there.
    pub fn check_below(parent: &Path) -> io::Result<()> {
        let parent_fd = open_parent(parent)?;
        match rustix::fs::statat(&parent_fd, NAME, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => tempfile::tempfile_in(parent).map(drop),
            _ => Self::named(&parent_fd, parent).map(drop),
        }
    }

    /// The one in an opened directory, of this path.
    fn named(parent_fd: &OwnedFd, parent: &Path) -> io::Result<Self> {
        let own = rustix::fs::openat(parent_fd, NAME, DIRECTORY, Mode::empty())?;
        check(&rustix::fs::fstat(&own)?, user(), 0o077)
            .map_err(|why| io::Error::other(format!("{}/{NAME}: {why}", parent.display())))?;
        Ok(Self(own))
    }

    /// This one, made where there is none. Others may read it, but not write to it.
    ///
    /// # Errors
    /// It cannot be made, or is not this user's own.
    pub fn at(path: &Path) -> io::Result<Self> {
        match rustix::fs::mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        Self::open(path)
    }

    /// Checks whether [`Self::at`] would give this one, by what can be seen before it is made;
    /// makes none.
    ///
    /// # Errors
    /// As there.
    pub fn check(path: &Path) -> io::Result<()> {
        if !Self::is_missing(path) {
            return Self::open(path).map(drop);
        }
        let parent = path.parent().unwrap_or(Path::new("/"));
        match std::fs::metadata(parent) {
            Ok(about) if about.is_dir() => Ok(()),
            Ok(_) => Err(Errno::NOTDIR.into()),
            Err(error) => Err(error),
        }
    }

    /// Whether nothing has this path.
    pub fn is_missing(path: &Path) -> bool {
        let found = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
        matches!(found, Err(Errno::NOENT))
    }

    fn open(path: &Path) -> io::Result<Self> {
        let own = rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())?;
        check(&rustix::fs::fstat(&own)?, user(), 0o022).map_err(io::Error::other)?;
        Ok(Self(own))
    }

    /// Locks a file of this name, made where there is none, for as long as it is open and
    /// this process lives; children do not inherit the lock. `None`: another process has
    /// it.
    ///
    /// # Errors
    /// It cannot be opened, or is no file of this user.
    pub fn lock(&self, name: &str) -> io::Result<Option<File>> {
        let flags = OFlags::CREATE
            | OFlags::RDWR
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let mode = Mode::RUSR | Mode::WUSR;
            let file = rustix::fs::openat(&self.0, name, flags, mode)?;
            let stat = rustix::fs::fstat(&file)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Err(io::Error::other(format!("{name} is not a regular file")));
            }
            check(&stat, user(), 0o077)
                .map_err(|why| io::Error::other(format!("{name}: {why}")))?;
            match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::ACCESS) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            // Whoever had it before may have taken its name away.
            let named = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW);
            if named.is_ok_and(|named| named.st_ino == stat.st_ino && named.st_dev == stat.st_dev) {
                return Ok(Some(file.into()));
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// A path of an entry that leads through the opened directory.
    pub fn path_of(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.0.as_fd().as_raw_fd()).into()
    }

    /// Whether a name is there.
    pub fn has(&self, name: &str) -> bool {
        rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Takes a name away, if it is there.
    pub fn unlink(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.0, name, AtFlags::empty());
    }

    /// The names in it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.0, ".", flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(fd)?.take(MAX_ENTRIES) {
            names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
        }
        Ok(names)
    }
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Opens a directory that is this user's own and that others cannot write to.
fn open_parent(parent: &Path) -> io::Result<OwnedFd> {
    let opened = rustix::fs::openat(CWD, parent, DIRECTORY, Mode::empty())?;
    check(&rustix::fs::fstat(&opened)?, user(), 0o022)
        .map_err(|why| io::Error::other(format!("{}: {why}", parent.display())))?;
    Ok(opened)
}

/// Checks that something is of a user, and that others have none of these rights.
fn check(stat: &Stat, user: u32, of_others: u32) -> Result<(), String> {
    if stat.st_uid != user {
        return Err(format!(
            "belongs to user {}, not to user {user}",
            stat.st_uid
        ));
    }
    match stat.st_mode & of_others {
        0 => Ok(()),
        _ => Err("other users may access it".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_directory_that_others_can_use_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let open = || PrivateDirectory::below(parent.path());
        open().unwrap();
        let own = parent.path().join(NAME);
        let mode = std::fs::metadata(&own).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        std::fs::set_permissions(&own, PermissionsExt::from_mode(0o750)).unwrap();
        assert!(open().unwrap_err().to_string().contains("other users"));
        std::fs::remove_dir(&own).unwrap();
        symlink("/tmp", &own).unwrap();
        open().unwrap_err();
        std::fs::remove_file(&own).unwrap();
        std::fs::set_permissions(parent.path(), PermissionsExt::from_mode(0o777)).unwrap();
        open().unwrap_err();
    }

    #[test]
    fn what_is_looked_at_is_not_made() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        PrivateDirectory::check_below(parent.path()).unwrap();
        PrivateDirectory::check(&at("state")).unwrap();
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
        PrivateDirectory::check(&at("none/state")).unwrap_err();
        std::fs::create_dir(at("state")).unwrap();
        std::fs::create_dir(at(NAME)).unwrap();
        for name in ["state", NAME] {
            std::fs::set_permissions(at(name), PermissionsExt::from_mode(0o777)).unwrap();
        }
        let error = PrivateDirectory::check(&at("state")).unwrap_err();
        assert!(
            error.to_string().contains("other users may access it"),
            "{error}"
        );
        PrivateDirectory::check_below(parent.path()).unwrap_err();
        symlink("state", at("link")).unwrap();
        PrivateDirectory::check(&at("link")).unwrap_err();
    }

    #[test]
    fn links_and_pipes_are_not_locked() {
        let parent = tempfile::tempdir().unwrap();
        let directory = PrivateDirectory::below(parent.path()).unwrap();
        let own = parent.path().join(NAME);
        symlink("/etc/passwd", own.join("link")).unwrap();
        directory.lock("link").unwrap_err();
        rustix::fs::mknodat(
            CWD,
            own.join("pipe"),
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        assert!(directory.lock("pipe").is_err());
        assert!(directory.lock("file").unwrap().is_some());
        directory.unlink("file");
        let mut names = directory.names().unwrap();
        names.sort();
        assert_eq!(names, [".", "..", "link", "pipe"]);
        assert!(directory.path_of("x").starts_with("/proc/self/fd"));
    }
}
