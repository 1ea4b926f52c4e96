//! Directories in which programs of other users leave files for this process.
//!
//! A program writes to the given directory, with its own rights: so the directory is its user's.
//! That user can put anything there, and can move the directory away. So files are found from the
//! opened directory, links are followed nowhere, and a file is opened only if it is a regular one
//! of that user.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// How often a name is tried that is taken.
const TRIES: usize = 16;
/// Most entries that are taken away in the end.
const MAX_ENTRIES: usize = 4096;

/// A directory that programs of one user write to. It is taken away when this is dropped.
#[derive(Debug)]
pub struct ExchangeDirectory {
    parent: OwnedFd,
    name: String,
    fd: OwnedFd,
    path: PathBuf,
    uid: u32,
}

impl ExchangeDirectory {
    /// Makes one below `parent`, where everybody may write. It is this process's own until it is
    /// [given](Self::give) away; no other user can look into it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create(parent: &Path, prefix: &str) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent_fd = rustix::fs::openat(CWD, parent, flags, Mode::empty())?;
        let mut tries = 0;
        let name = loop {
            let name = format!(
                "{prefix}{:016x}",
                RandomState::new().build_hasher().finish()
            );
            match rustix::fs::mkdirat(&parent_fd, &name, Mode::RWXU) {
                Ok(()) => break name,
                Err(Errno::EXIST) if tries < TRIES => tries += 1,
                Err(error) => return Err(error.into()),
            }
        };
        let fd = rustix::fs::openat(&parent_fd, &name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let uid = rustix::process::geteuid().as_raw();
        if rustix::fs::fstat(&fd)?.st_uid != uid {
            return Err(io::Error::other(
                "the new directory belongs to another user",
            ));
        }
        Ok(Self {
            parent: parent_fd,
            path: parent.join(&name),
            name,
            fd,
            uid,
        })
    }

    /// Puts a file there that everybody who can look into the directory may read. Call it
    /// before the directory is given away.
    ///
    /// # Errors
    /// It cannot be written, or there is one.
    pub fn put(&self, name: &str, content: &[u8]) -> io::Result<PathBuf> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        let mut file = File::from(rustix::fs::openat(&self.fd, name, flags, mode)?);
        file.write_all(content)?;
        // Whatever the umask is.
        rustix::fs::fchmod(&file, mode)?;
        Ok(self.path.join(name))
    }

    /// Gives it to a user: only their programs can write there from now on.
    ///
    /// # Errors
    /// fchown(2)'s: without `CAP_CHOWN` it is for this process's own user only.
    pub fn give(&mut self, uid: u32, gid: u32) -> io::Result<()> {
        if uid != self.uid {
            let to = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::fchown(&self.fd, to.0, to.1)?;
            self.uid = uid;
        }
        Ok(())
    }

    /// The user whose programs write there.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file that a program of its user left there. `None`: it is not there.
    ///
    /// # Errors
    /// It is no regular file, not that user's alone, or larger than `max_bytes`.
    pub fn open(&self, name: &str, max_bytes: u64) -> io::Result<Option<File>> {
        // Opening a pipe must not wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let fd = match rustix::fs::openat2(&self.fd, name, flags, Mode::empty(), resolve) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let stat = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is not a regular file"));
        }
        if stat.st_uid != self.uid {
            let why = format!(
                "it belongs to user {}, not to user {}",
                stat.st_uid, self.uid
            );
            return Err(io::Error::other(why));
        }
        if stat.st_nlink != 1 {
            return Err(io::Error::other("it has other hard links"));
        }
        if u64::try_from(stat.st_size).unwrap_or(u64::MAX) > max_bytes {
            let why = format!(
                "it has {} bytes, more than the limit of {max_bytes}",
                stat.st_size
            );
            return Err(io::Error::other(why));
        }
        Ok(Some(fd.into()))
    }

    /// Takes a name away, if it is there.
    pub fn remove(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty());
    }
}

impl Drop for ExchangeDirectory {
    fn drop(&mut self) {
        let names = Dir::read_from(&self.fd).into_iter().flatten().flatten();
        let names: Vec<_> = names
            .take(MAX_ENTRIES)
            .map(|e| e.file_name().to_owned())
            .collect();
        for name in names
            .iter()
            .filter(|name| !matches!(name.to_bytes(), b"." | b".."))
        {
            let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty());
        }
        // If it is not empty, its user has put directories there.
        let _ = rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn create() -> (tempfile::TempDir, ExchangeDirectory) {
        let parent = tempfile::tempdir().unwrap();
        let made = ExchangeDirectory::create(parent.path(), "test-").unwrap();
        (parent, made)
    }

    #[test]
    fn only_files_of_the_user_are_opened() {
        let (parent, made) = create();
        let mode = std::fs::metadata(made.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let inside = |name: &str| made.path().join(name);
        std::fs::write(inside("good"), b"12345").unwrap();
        assert!(made.open("good", 5).unwrap().is_some());
        assert!(
            made.open("good", 4)
                .unwrap_err()
                .to_string()
                .contains("5 bytes")
        );
        assert!(made.open("none", 5).unwrap().is_none());
        let outside = parent.path().join("outside");
        std::fs::write(&outside, b"secret").unwrap();
        symlink(&outside, inside("link")).unwrap();
        assert!(made.open("link", 100).is_err());
        assert!(made.open("../outside", 100).is_err());
        std::fs::hard_link(&outside, inside("hard")).unwrap();
        let error = made.open("hard", 100).unwrap_err().to_string();
        assert!(error.contains("other hard links"), "{error}");
        std::fs::create_dir(inside("dir")).unwrap();
        assert!(made.open("dir", 100).is_err());
        // It returns at once: the pipe has no writer.
        let fifo = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, inside("pipe"), FileType::Fifo, fifo, 0).unwrap();
        assert!(made.open("pipe", 100).is_err());
    }

    #[test]
    fn of_another_user_nothing_else_is_read() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (_parent, mut made) = create();
        std::fs::write(made.path().join("roots"), b"1").unwrap();
        made.give(4711, 4711).unwrap();
        let error = made.open("roots", 100).unwrap_err().to_string();
        assert!(error.contains("user 0, not to user 4711"), "{error}");
        std::os::unix::fs::chown(made.path().join("roots"), Some(4711), None).unwrap();
        assert!(made.open("roots", 100).unwrap().is_some());
    }

    #[test]
    fn nothing_stays_behind() {
        let (parent, made) = create();
        let conf = made.put("conf", b"KEY=1\n").unwrap();
        assert_eq!(std::fs::read(&conf).unwrap(), b"KEY=1\n");
        assert!(made.put("conf", b"again").is_err());
        std::fs::write(made.path().join("left"), b"1").unwrap();
        drop(made);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
