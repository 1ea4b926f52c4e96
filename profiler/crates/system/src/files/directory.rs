//! A directory that results are written to: opened once, so that its path may
//! lead elsewhere later without any effect. All with the caller's rights.

use super::rights::as_caller;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    hash::{BuildHasher as _, RandomState},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    sync::Arc,
};

/// What the names of files begin with that are being written.
const PREFIX: &str = ".aiprof-";
/// Letters and digits after it.
const RANDOM: usize = 6;
/// Names that are tried before giving up.
const TRIES: usize = 100;
/// Most entries of a directory that are looked at.
const MAX_ENTRIES: usize = 1 << 20;

/// The directory.
#[derive(Clone, Debug)]
pub struct Directory(Arc<OwnedFd>);

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Directory {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }

    /// What is known of the directory itself.
    ///
    /// # Errors
    /// fstat(2)'s.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.0)?)
    }

    /// What is known of an entry; a link is not followed.
    ///
    /// # Errors
    /// stat(2)'s.
    pub fn stat_of(&self, name: &OsStr) -> io::Result<Stat> {
        as_caller(|| {
            Ok(rustix::fs::statat(
                &self.0,
                name,
                AtFlags::SYMLINK_NOFOLLOW,
            )?)
        })
    }

    /// The names in it.
    ///
    /// # Errors
    /// It may not be read.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        as_caller(|| {
            let fd = rustix::fs::openat(&self.0, ".", flags, Mode::empty())?;
            let entries = rustix::fs::Dir::new(fd)?.take(MAX_ENTRIES);
            let names = entries
                .map(|entry| Ok(OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned()))
                .filter(|name| !matches!(name, Ok(name) if name == "." || name == ".."));
            names.collect()
        })
    }

    /// Takes a name away.
    ///
    /// # Errors
    /// unlink(2)'s.
    pub fn unlink(&self, name: &OsStr) -> io::Result<()> {
        as_caller(|| Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?))
    }

    /// Makes a directory in this one and opens it.
    ///
    /// # Errors
    /// mkdir(2)'s; somebody put another in its place.
    pub(super) fn make_directory(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        as_caller(|| {
            rustix::fs::mkdirat(&self.0, name, Mode::from_raw_mode(0o777))?;
            let fd = rustix::fs::openat(&self.0, name, flags, Mode::empty())?;
            if rustix::fs::fstat(&fd)?.st_uid != rustix::process::geteuid().as_raw() {
                return Err(io::Error::other("another user replaced it"));
            }
            Ok(Self::new(fd))
        })
    }

    /// Creates a file that must not be there yet, for writing.
    ///
    /// # Errors
    /// open(2)'s.
    pub fn create_new(&self, name: &OsStr) -> io::Result<File> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        as_caller(|| Ok(File::from(rustix::fs::openat(&self.0, name, flags, mode)?)))
    }

    /// A file without a name on the same file system.
    ///
    /// # Errors
    /// It cannot be created here.
    pub fn scratch(&self) -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let unnamed = as_caller(|| Ok(File::from(rustix::fs::openat(&self.0, ".", flags, mode)?)));
        // Not every file system has files without names.
        unnamed.or_else(|_| self.create_temporary(0o600).map(|(file, _)| file))
    }

    /// Creates a file under a name that others cannot guess. It is deleted with the result unless
    /// that is given another name.
    ///
    /// It is locked as long as it is open: so [`Self::prune_temporaries`] of another
    /// process knows that it is being written.
    ///
    /// # Errors
    /// It cannot be created here.
    pub fn create_temporary(&self, mode: u32) -> io::Result<(File, Temporary)> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        for _ in 0..TRIES {
            let name = random_name();
            match as_caller(|| Ok(rustix::fs::openat(&self.0, &name, flags, mode)?)) {
                Ok(fd) => {
                    let temporary = Temporary {
                        directory: self.clone(),
                        name: Some(name),
                    };
                    // Where locks do not work, nothing is pruned either.
                    let locked = rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive);
                    let is_pruned = locked == Err(rustix::io::Errno::WOULDBLOCK)
                        || rustix::fs::fstat(&fd)?.st_nlink == 0;
                    if !is_pruned {
                        return Ok((File::from(fd), temporary));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Makes a symbolic link, whose name it takes from whatever had it.
    ///
    /// # Errors
    /// symlink(2)'s and rename(2)'s.
    pub fn put_link(&self, name: &OsStr, target: &OsStr) -> io::Result<()> {
        for _ in 0..TRIES {
            let made = random_name();
            match as_caller(|| Ok(rustix::fs::symlinkat(target, &self.0, &made)?)) {
                Ok(()) => {
                    let temporary = Temporary {
                        directory: self.clone(),
                        name: Some(made),
                    };
                    return temporary.rename(name);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Sets its mode, whatever the umask was when it was made.
    ///
    /// # Errors
    /// chmod(2)'s.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        let mode = Mode::from_raw_mode(mode);
        as_caller(|| Ok(rustix::fs::chmodat(&self.0, ".", mode, AtFlags::empty())?))
    }

    /// Deletes what killed processes left behind: files that were being written, whose owner is
    /// ours by `is_own`, and that no process has open.
    pub fn prune_temporaries(&self, is_own: impl Fn(u32) -> bool) {
        let names = self.names().unwrap_or_default();
        for name in names.iter().filter(|name| is_temporary(name)) {
            if self.prune_temporary(name, &is_own).is_err() {
                tracing::debug!("{}: cannot delete this temporary file", name.display());
            }
        }
    }

    fn prune_temporary(&self, name: &OsStr, is_own: impl Fn(u32) -> bool) -> io::Result<()> {
        let stat = self.stat_of(name)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || !is_own(stat.st_uid) {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = as_caller(|| Ok(rustix::fs::openat(&self.0, name, flags, Mode::empty())?))?;
        let opened = rustix::fs::fstat(&fd)?;
        if (opened.st_dev, opened.st_ino) != (stat.st_dev, stat.st_ino) {
            return Ok(());
        }
        rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
        self.unlink(name)
    }
}

/// The name of a file that is being written; it goes when this is dropped.
#[derive(Debug)]
pub struct Temporary {
    directory: Directory,
    /// Taken by [`Temporary::rename`].
    name: Option<OsString>,
}

impl Temporary {
    /// Gives the file its name, which it takes from whatever had it.
    ///
    /// # Errors
    /// rename(2)'s; the file is gone then.
    pub fn rename(mut self, to: &OsStr) -> io::Result<()> {
        let at = &self.directory.0;
        let from = self.name.as_deref().unwrap_or_default();
        as_caller(|| Ok(rustix::fs::renameat(at, from, at, to)?))?;
        self.name = None;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // If it cannot be deleted, the next run tries again.
            let _ = self.directory.unlink(name);
        }
    }
}

fn random_name() -> OsString {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    // Keyed by the kernel's random numbers once a thread, other keys each time.
    let mut random = RandomState::new().hash_one(std::process::id());
    let mut name = PREFIX.to_owned();
    for _ in 0..RANDOM {
        let letter = LETTERS.get((random % LETTERS.len() as u64) as usize);
        name.extend(letter.map(|&letter| char::from(letter)));
        random /= LETTERS.len() as u64;
    }
    name.into()
}

/// Whether a name is one that [`random_name`] makes.
fn is_temporary(name: &OsStr) -> bool {
    let random = name.as_bytes().strip_prefix(PREFIX.as_bytes());
    random.is_some_and(|r| r.len() == RANDOM && r.iter().all(u8::is_ascii_alphanumeric))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn open(path: &Path) -> Directory {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Directory::new(rustix::fs::open(path, flags, Mode::empty()).unwrap())
    }

    #[test]
    fn what_the_dead_left_is_pruned_and_what_the_living_write_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let directory = open(dir.path());
        for name in [".aiprof-abcDE1", ".aiprof-notes.txt", ".aiprof-abc"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("x", dir.path().join(".aiprof-alink0")).unwrap();
        let (_file, living) = directory.create_temporary(0o600).unwrap();
        directory.prune_temporaries(|_| false);
        assert_eq!(directory.names().unwrap().len(), 5);
        directory.prune_temporaries(|_| true);
        let mut names = directory.names().unwrap();
        names.sort();
        let mut expected = [".aiprof-abc", ".aiprof-alink0", ".aiprof-notes.txt"]
            .map(OsString::from)
            .to_vec();
        expected.extend(living.name.clone());
        expected.sort();
        assert_eq!(names, expected);
    }

    #[test]
    fn a_temporary_goes_with_its_owner_unless_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let directory = open(dir.path());
        drop(directory.create_temporary(0o600).unwrap());
        drop(directory.scratch().unwrap());
        assert!(directory.names().unwrap().is_empty());
        let (_file, temporary) = directory.create_temporary(0o600).unwrap();
        temporary.rename(OsStr::new("x")).unwrap();
        assert_eq!(directory.names().unwrap(), ["x"]);
    }

    #[test]
    fn a_link_takes_the_name_of_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let directory = open(dir.path());
        std::fs::write(dir.path().join("x"), "").unwrap();
        for target in ["a", "b"] {
            directory
                .put_link(OsStr::new("x"), OsStr::new(target))
                .unwrap();
            let link = std::fs::read_link(dir.path().join("x")).unwrap();
            assert_eq!(link, Path::new(target));
        }
        assert_eq!(directory.names().unwrap(), ["x"]);
    }
}
