//! Files that only their user may read, not even root: on file systems that the user's program
//! serves (FUSE, AppImages), or that a server keeps from root (NFS).
//!
//! A process with the rights of that user, and no others, copies them into memory. The file system
//! may never answer: to be called only where that may be, see [`crate::remote`].

use super::others;
use crate::os::process;
use rustix::fs::{FileType, MemfdFlags, SealFlags};
use rustix::process::{Gid, Signal, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    os::unix::fs::MetadataExt as _,
};

/// Most groups of a user that are taken over.
const MAX_GROUPS: usize = 64;

/// The rights of a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProcessUser {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl ProcessUser {
    /// Those of a process; `None`: it is gone.
    pub fn of(pid: u32) -> Option<Self> {
        let status = process::status(pid)?;
        Some(Self {
            uid: process::numbers(&status, "Uid:").nth(1)?,
            gid: process::numbers(&status, "Gid:").nth(1)?,
            groups: process::numbers(&status, "Groups:")
                .take(MAX_GROUPS)
                .collect(),
        })
    }
}

/// Which content a file has, as its user sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeenFile {
    /// Inode number.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Time of the last change of content or attributes.
    pub changed: (i64, i64),
}

/// What a user sees of the regular file at a place.
///
/// # Errors
/// It is none, the user may not read it either, or this process may not act for the user.
pub fn look(user: &ProcessUser, place: &OwnedFd) -> io::Result<SeenFile> {
    let words = as_user(user, || {
        let meta = open(place)?.metadata()?;
        Ok([
            meta.ino(),
            meta.size(),
            meta.ctime().cast_unsigned(),
            meta.ctime_nsec().cast_unsigned(),
        ])
    })?;
    let [inode, size, seconds, nanoseconds] = words;
    Ok(SeenFile {
        inode,
        size,
        changed: (seconds.cast_signed(), nanoseconds.cast_signed()),
    })
}

/// A copy of the regular file at a place, in memory, which nothing can change.
///
/// # Errors
/// As [`look`]; the file has more than `max_bytes`; no memory.
pub fn copy(user: &ProcessUser, place: &OwnedFd, max_bytes: u64) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let copy = File::from(rustix::fs::memfd_create("copy", flags)?);
    as_user(user, || {
        let file = open(place)?;
        let mut bytes = file.take(max_bytes.saturating_add(1));
        if io::copy(&mut bytes, &mut &copy)? > max_bytes {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok([0; 4])
    })?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&copy, seals)?;
    Ok(copy)
}

/// Opens the regular file at a place.
fn open(place: &OwnedFd) -> io::Result<File> {
    // Its type first: opening something else may have effects.
    let stat = rustix::fs::fstat(place)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => others::reopen(place),
        _ => Err(io::Error::other("not a regular file")),
    }
}

/// Has a child of this process do something with the rights of a user, and gives what it gives.
fn as_user(user: &ProcessUser, act: impl FnOnce() -> io::Result<[u64; 4]>) -> io::Result<[u64; 4]> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY: the child ends in `answer`; in a process with one thread it is a whole copy.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let act = std::panic::AssertUnwindSafe(|| become_user(user).and_then(|()| act()));
            let result = std::panic::catch_unwind(act);
            answer(
                result.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())),
                write.as_fd(),
            )
        }
        pid => {
            drop(write);
            let mut bytes = Vec::new();
            let got = File::from(read).take(40).read_to_end(&mut bytes);
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                // It has answered, or has ended.
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
            }
            got?;
            let words: Vec<u64> = bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|word| u64::from_ne_bytes(*word))
                .collect();
            match words[..] {
                [0, a, b, c, d] => Ok([a, b, c, d]),
                [error, ..] => Err(io::Error::from_raw_os_error(error as i32)),
                [] => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

/// Ends the child with its answer: an error's number or 0, and four words.
fn answer(result: io::Result<[u64; 4]>, to: BorrowedFd<'_>) -> ! {
    let (error, words) = match result {
        Ok(words) => (0, words),
        Err(error) => (error.raw_os_error().unwrap_or(libc::EIO), [0; 4]),
    };
    let error = u64::from(error.unsigned_abs());
    let mut bytes = error.to_ne_bytes().to_vec();
    words
        .iter()
        .for_each(|word| bytes.extend(word.to_ne_bytes()));
    if let Ok(to) = to.try_clone_to_owned() {
        // Who asked sees that there is no answer.
        let _ = File::from(to).write_all(&bytes);
    }
    // SAFETY: no memory is passed.
    unsafe { libc::_exit(0) }
}

/// Makes this process, which has one thread, one of a user, with no other rights.
fn become_user(user: &ProcessUser) -> io::Result<()> {
    let groups: Vec<Gid> = user.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    if rustix::process::geteuid() != uid {
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none)?;
    // Behind that, which clears it: what waits for the file system ends with who asked.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::kernel;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn files_are_copied_with_the_rights_of_their_user_only() {
        let own = ProcessUser::of(std::process::id()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let text = "x".repeat(100_000);
        std::fs::write(&path, &text).unwrap();
        let place = kernel::place(&path).unwrap();
        let seen = look(&own, &place).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((seen.inode, seen.size), (meta.ino(), 100_000));
        let mut copied = copy(&own, &place, 100_000).unwrap();
        let mut read = String::new();
        io::Seek::rewind(&mut copied).unwrap();
        copied.read_to_string(&mut read).unwrap();
        assert_eq!(read, text);
        assert!(copied.write_all(b"more").is_err());
        let error = copy(&own, &place, 99_999).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        let directory = kernel::place(dir.path()).unwrap();
        assert!(look(&own, &directory).is_err());
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // Root may read it, and this user may not.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let nobody = ProcessUser {
            uid: 65534,
            gid: 65534,
            groups: Vec::new(),
        };
        let error = look(&nobody, &place).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
