//! Where to write a result: a path, walked component by component with the caller's rights, so that
//! no other user decides where it leads.
//!
//! A link or a pipe of another user is not followed, wherever it lies. The kernel does so in
//! directories like /tmp (fs.protected_symlinks and fs.protected_fifos,
//! Documentation/admin-guide/sysctl/fs.rst). Those of this user, of root and of whoever called sudo
//! are followed. Only for an ordinary user are links to *directories* followed as any program
//! follows them.

use super::{
    directory::Directory,
    rights::{as_caller, is_trusted},
};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::{Component, Path, PathBuf},
};

/// Most links on the way, as the kernel has it (MAXSYMLINKS).
const MAX_LINKS: u32 = 40;
/// File system type of /proc (include/uapi/linux/magic.h).
const PROC_SUPER_MAGIC: u64 = 0x9fa0;

/// What a path leads to.
#[derive(Debug)]
pub enum Place {
    /// Nothing yet: this name in this directory is free.
    New(Directory, OsString),
    /// A regular file of this name in this directory, which can be replaced.
    File(Directory, OsString, Box<Stat>),
    /// A directory.
    Directory(Directory),
    /// A device, a pipe or a socket, which is written to as it is.
    Special(Special),
    /// A descriptor that this process was started with, such as /dev/stdout.
    Descriptor(i32),
}

/// A device, a pipe or a socket: found, not opened yet.
#[derive(Debug)]
pub struct Special {
    place: OwnedFd,
    /// Its type.
    pub kind: FileType,
}

/// Why a path leads nowhere.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// On the way is something of somebody who is not trusted.
    #[error(
        "the {what} {path} belongs to user {uid}, who could redirect the output: remove it, or \
         choose another path with -o"
    )]
    Foreign {
        /// A link or a pipe.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// It is a file that only another process has open.
    #[error("{0} is an open file of another process: give the path of the file itself")]
    OfProcess(PathBuf),
    /// The way is not there, or barred.
    #[error("{path}: {source}")]
    Way {
        /// The part of the path that was walked.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl From<PlaceError> for io::Error {
    fn from(error: PlaceError) -> Self {
        Self::other(error)
    }
}

/// Finds out what a path leads to.
///
/// # Errors
/// A directory on the way is not there or not accessible, or something on the way
/// belongs to a stranger.
pub fn find(path: &Path) -> Result<Place, PlaceError> {
    let at = |source| PlaceError::Way {
        path: path.to_owned(),
        source,
    };
    as_caller(|| Ok(Walk::new(path).and_then(Walk::end))).map_err(at)?
}

/// A walk along a path.
struct Walk {
    at: OwnedFd,
    shown: PathBuf,
    todo: VecDeque<OsString>,
    links: u32,
}

impl Walk {
    fn new(path: &Path) -> Result<Self, PlaceError> {
        let start = match path.is_absolute() {
            true => "/",
            false => ".",
        };
        let mut walk = Self {
            at: open_directory(CWD, OsStr::new(start)).map_err(|e| way(start.into(), e))?,
            shown: PathBuf::new(),
            todo: VecDeque::new(),
            links: 0,
        };
        walk.prepend(path);
        Ok(walk)
    }

    fn prepend(&mut self, path: &Path) {
        for component in path.components().rev() {
            let name = match component {
                Component::Prefix(_) | Component::CurDir => continue,
                Component::RootDir => OsStr::new("/"),
                Component::ParentDir => OsStr::new(".."),
                Component::Normal(name) => name,
            };
            self.todo.push_front(name.to_owned());
        }
    }

    /// The rest of the way, if it is that of a descriptor.
    fn descriptor(&self) -> Option<i32> {
        let rest: PathBuf = self.todo.iter().collect();
        descriptor(&rest)
    }

    fn end(mut self) -> Result<Place, PlaceError> {
        if let Some(number) = self.descriptor() {
            return Ok(Place::Descriptor(number));
        }
        while let Some(name) = self.todo.pop_front() {
            let before = self.shown.clone();
            self.shown.push(&name);
            if name == "/" || name == ".." {
                self.at = open_directory(&self.at, &name).map_err(|e| self.way(e))?;
                continue;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = match rustix::fs::openat(&self.at, &name, flags, Mode::empty()) {
                Ok(found) => found,
                Err(rustix::io::Errno::NOENT) if self.todo.is_empty() => {
                    return Ok(Place::New(Directory::new(self.at), name));
                }
                Err(error) => return Err(self.way(error)),
            };
            let stat = rustix::fs::fstat(&found).map_err(|e| self.way(e))?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink => {
                    self.shown = before;
                    if let Some(place) = self.follow(&found, &stat, name)? {
                        return Ok(place);
                    }
                }
                FileType::Directory => self.at = found,
                _ if !self.todo.is_empty() => return Err(self.way(rustix::io::Errno::NOTDIR)),
                FileType::RegularFile => {
                    let directory = Directory::new(self.at);
                    return Ok(Place::File(directory, name, Box::new(stat)));
                }
                kind => return special(found, kind, stat.st_uid, self.shown),
            }
        }
        Ok(Place::Directory(Directory::new(self.at)))
    }

    /// Goes where a link leads; gives the place if it leads to one at once.
    fn follow(
        &mut self,
        link: &OwnedFd,
        stat: &Stat,
        name: OsString,
    ) -> Result<Option<Place>, PlaceError> {
        let path = self.shown.join(&name);
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(way(path, rustix::io::Errno::LOOP));
        }
        if !is_trusted(stat.st_uid) && self.is_guarded()? {
            return Err(PlaceError::Foreign {
                what: "link",
                path,
                uid: stat.st_uid,
            });
        }
        let text = rustix::fs::readlinkat(link, "", Vec::new()).map_err(|e| way(path, e))?;
        let target = PathBuf::from(OsString::from_vec(text.into_bytes()));
        if self.is_magic(link, &name, &target) {
            return self.enter_magic(&name);
        }
        self.prepend(&target);
        Ok(self.descriptor().map(Place::Descriptor))
    }

    /// Whether a stranger's link in this directory is not to be followed.
    fn is_guarded(&self) -> Result<bool, PlaceError> {
        if self.todo.is_empty() || rustix::process::geteuid().is_root() {
            return Ok(true);
        }
        let stat = rustix::fs::fstat(&self.at).map_err(|e| self.way(e))?;
        let open_to_all = Mode::SVTX | Mode::WOTH;
        Ok(Mode::from_raw_mode(stat.st_mode).contains(open_to_all))
    }

    /// Whether a link of /proc is one that leads to an object, not to a path.
    fn is_magic(&self, link: &OwnedFd, name: &OsStr, target: &Path) -> bool {
        let in_proc =
            rustix::fs::fstatfs(link).is_ok_and(|fs| fs.f_type as u64 == PROC_SUPER_MAGIC);
        let is_path =
            target.is_relative() && !target.as_os_str().as_encoded_bytes().contains(&b':');
        in_proc && name != "self" && name != "thread-self" && !is_path
    }

    fn enter_magic(&mut self, name: &OsStr) -> Result<Option<Place>, PlaceError> {
        self.shown.push(name);
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found = rustix::fs::openat(&self.at, name, flags, Mode::empty());
        let found = found.map_err(|e| self.way(e))?;
        let stat = rustix::fs::fstat(&found).map_err(|e| self.way(e))?;
        let shown = self.shown.clone();
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.at = found,
            _ if !self.todo.is_empty() => return Err(self.way(rustix::io::Errno::NOTDIR)),
            FileType::RegularFile => return Err(PlaceError::OfProcess(shown)),
            kind => return special(found, kind, stat.st_uid, shown).map(Some),
        }
        Ok(None)
    }

    fn way(&self, error: rustix::io::Errno) -> PlaceError {
        way(self.shown.clone(), error)
    }
}

fn way(path: PathBuf, error: rustix::io::Errno) -> PlaceError {
    PlaceError::Way {
        path,
        source: error.into(),
    }
}

fn open_directory(at: impl std::os::fd::AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

fn special(place: OwnedFd, kind: FileType, uid: u32, path: PathBuf) -> Result<Place, PlaceError> {
    // Only root makes devices; anybody makes pipes and sockets.
    let anybodys = matches!(kind, FileType::Fifo | FileType::Socket);
    if anybodys && !is_trusted(uid) {
        let what = match kind {
            FileType::Fifo => "pipe",
            _ => "socket",
        };
        return Err(PlaceError::Foreign { what, path, uid });
    }
    Ok(Place::Special(Special { place, kind }))
}

/// The number of the descriptor that a path is another name of.
fn descriptor(path: &Path) -> Option<i32> {
    let path = path.to_str()?;
    let folders = ["/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"];
    match path {
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        _ => {
            let number = folders
                .iter()
                .find_map(|folder| path.strip_prefix(folder))?;
            number.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
            number.parse().ok()
        }
    }
}

/// A handle of its own to a descriptor that this process was started with.
///
/// # Errors
/// There is none of this number, it is this process's own affair, or it is not
/// open for writing.
pub fn inherited(number: i32) -> io::Result<File> {
    let closed = || io::Error::other(format!("descriptor {number} is not open for writing"));
    // SAFETY: only asked for its flags, which fails with EBADF if it is not open.
    let (flags, mode) = unsafe {
        (
            libc::fcntl(number, libc::F_GETFD),
            libc::fcntl(number, libc::F_GETFL),
        )
    };
    // What this process opened itself is closed on exec, what it was given is not.
    if flags < 0 || flags & libc::FD_CLOEXEC != 0 || mode & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(closed());
    }
    // SAFETY: it is open, as was just seen, and nothing closes what was inherited.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    Ok(File::from(rustix::io::fcntl_dupfd_cloexec(fd, 3)?))
}

impl Special {
    /// Opens it for writing. If a pipe has no reader, this calls `waits` and then waits for one.
    ///
    /// # Errors
    /// open(2)'s; it is a socket.
    pub fn open(&self, waits: impl FnOnce()) -> io::Result<File> {
        if self.kind == FileType::Socket {
            return Err(io::Error::other("it is a socket, not a file or a pipe"));
        }
        if self.kind != FileType::Fifo {
            return self.reopen(OFlags::empty());
        }
        match self.reopen(OFlags::NONBLOCK) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
                waits();
                self.reopen(OFlags::empty())
            }
            opened => {
                let file = opened?;
                rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
                Ok(file)
            }
        }
    }

    fn reopen(&self, more: OFlags) -> io::Result<File> {
        // The link of a descriptor leads to its very file, whatever its name is now.
        let path = format!("/proc/self/fd/{}", self.place.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY | more;
        as_caller(|| Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?)))
    }
}

/// Creates a directory and opens it; one that is there is only opened. `give` gets
/// a new one, to change its owner.
///
/// # Errors
/// It cannot be created, or is something else.
pub fn make_directory(
    path: &Path,
    give: impl FnOnce(&Directory) -> io::Result<()>,
) -> Result<Option<Directory>, PlaceError> {
    let at = |source| PlaceError::Way {
        path: path.to_owned(),
        source,
    };
    match find(path)? {
        Place::Directory(directory) => Ok(Some(directory)),
        Place::New(parent, name) => {
            let made = parent.make_directory(&name).map_err(at)?;
            give(&made).map_err(at)?;
            Ok(Some(made))
        }
        _ => Ok(None),
    }
}

/// Checks whether files of `room` bytes can be written to a directory, which [`make_directory`]
/// makes where there is none. Nothing of it stays, and nothing is made.
///
/// # Errors
/// It cannot be made or written to, or is something else.
pub fn check_directory(path: &Path, room: usize) -> Result<(), PlaceError> {
    let holder = match find(path)? {
        Place::Directory(directory) | Place::New(directory, _) => directory,
        _ => return Err(way(path.to_owned(), rustix::io::Errno::NOTDIR)),
    };
    let written = holder
        .scratch()
        .and_then(|mut file| file.write_all(&vec![0; room]));
    written.map_err(|source| PlaceError::Way {
        path: path.to_owned(),
        source,
    })
}

/// What [`make_directory`] gives to another user.
///
/// # Errors
/// chown(2)'s.
pub fn give_directory(directory: &Directory, uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (
        rustix::fs::Uid::from_raw(uid),
        rustix::fs::Gid::from_raw(gid),
    );
    Ok(rustix::fs::chownat(
        directory,
        "",
        Some(uid),
        Some(gid),
        AtFlags::EMPTY_PATH,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn paths_of_descriptors_are_known() {
        for (path, number) in [
            ("/dev/stdout", Some(1)),
            ("/dev/fd/7", Some(7)),
            ("/proc/self/fd/12", Some(12)),
            ("/proc/self/fd/1/x", None),
            ("/dev/fd/+1", None),
            ("dev/fd/1", None),
        ] {
            assert_eq!(descriptor(Path::new(path)), number, "{path}");
        }
    }

    #[test]
    fn links_lead_on_and_circles_end() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("real")).unwrap();
        symlink("real", at("link")).unwrap();
        symlink("../link/new.svg", at("real/out.svg")).unwrap();
        symlink("circle", at("circle")).unwrap();
        symlink("/dev/stdout", at("out")).unwrap();
        match find(&at("link/../link/out.svg")).unwrap() {
            Place::New(_, name) => assert_eq!(name, "new.svg"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(find(&at("link")).unwrap(), Place::Directory(_)));
        assert!(matches!(find(&at("out")).unwrap(), Place::Descriptor(1)));
        let error = find(&at("circle")).unwrap_err();
        assert!(error.to_string().contains("ymbolic link"), "{error}");
        let null = find(Path::new("/dev/null")).unwrap();
        assert!(matches!(null, Place::Special(_)));
        assert!(matches!(
            find(Path::new("/proc/self/cwd/no-such-file-here")).unwrap(),
            Place::New(..)
        ));
    }

    #[test]
    fn a_directory_is_looked_at_and_none_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        for (path, is_right) in [
            (dir.path().to_owned(), true),
            (at("new"), true),
            (at("new/er"), false),
            (at("file"), false),
            ("/proc/new".into(), false),
        ] {
            let found = check_directory(&path, 100);
            assert_eq!(found.is_ok(), is_right, "{}: {found:?}", path.display());
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn strangers_links_and_pipes_are_refused() {
        if !rustix::process::geteuid().is_root() {
            return; // only root can make what belongs to others
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("real")).unwrap();
        for (link, target) in [("file", "real/x"), ("folder", "real")] {
            symlink(target, at(link)).unwrap();
            lchown(at(link), Some(65534), Some(65534)).unwrap();
        }
        rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(matches!(find(&at("pipe")).unwrap(), Place::Special(_)));
        lchown(at("pipe"), Some(65534), None).unwrap();
        for path in ["file", "folder/x", "folder", "pipe"] {
            let error = find(&at(path)).unwrap_err();
            assert!(
                matches!(error, PlaceError::Foreign { uid: 65534, .. }),
                "{path}: {error}"
            );
        }
    }
}
