//! Files that belong to other users.
//!
//! Their names are chosen by whoever likes to: a link may lead anywhere, a name may
//! be that of a pipe or of a file without end. So a path is resolved inside the
//! root directory of its process, whatever links it has on the way (openat2(2),
//! `RESOLVE_IN_ROOT`); opened as a mere place first (`O_PATH`), which has no effect
//! on anything; and only opened for reading if type, owner and size are right.
//!
//! Any of this may block for ever where the file system is the user's own (FUSE):
//! not for the thread that reads the rings, see [`crate::workers`].

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use std::{
    fs::File,
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::Path,
};

/// Who may own a file, and how large it may be.
#[derive(Clone, Copy, Debug)]
pub struct Trust {
    /// The user whom the file describes; root's files are accepted as well.
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

    /// Opens a regular file below this root to read it. `path` and all links on
    /// its way count from the root.
    ///
    /// # Errors
    /// It is not there, no regular file, somebody else's, or too large.
    pub fn open(&self, path: impl AsRef<Path>, trust: Trust) -> io::Result<File> {
        let place = self.place(path.as_ref())?;
        let stat = rustix::fs::fstat(&place)?;
        check(&stat, trust)?;
        reopen(&place)
    }

    /// A file as a place only: nothing is opened for reading.
    ///
    /// # Errors
    /// It is not there.
    pub fn place(&self, path: &Path) -> io::Result<OwnedFd> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        Ok(rustix::fs::openat2(
            &self.0,
            relative,
            OFlags::PATH | OFlags::CLOEXEC,
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
    let path = format!("/proc/{pid}/map_files/{:x}-{:x}", range.start, range.end);
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    regular(rustix::fs::open(path, flags, Mode::empty())?)
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
            "{} bytes, more than {}",
            stat.st_size, trust.max_bytes
        )));
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

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
}
