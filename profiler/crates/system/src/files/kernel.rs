//! What the kernel itself shows: /proc, /sys, /dev. Opened with all rights there
//! are, for paths that this program makes up, never for such as a user named.

use rustix::fs::{Mode, OFlags};
use std::{
    ffi::OsString,
    fs::{self, File, Metadata},
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// Most bytes read of one such file by [`read`].
const MAX_BYTES: u64 = 8 << 20;

/// What most of them hold, all of it.
const USUAL_BYTES: usize = 4096;

/// Opens one to read it.
///
/// # Errors
/// open(2)'s.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    File::open(path)
}

/// /dev/null, to read and write.
///
/// # Errors
/// open(2)'s.
pub(crate) fn open_null() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}

/// Opens the regular file that a link of /proc leads to, as /proc/PID/exe; never waits
/// for a pipe.
///
/// # Errors
/// open(2)'s, or it is none.
pub fn open_regular(path: impl AsRef<Path>) -> io::Result<File> {
    super::others::regular(place(path)?)
}

/// Opens one as a place only (`O_PATH`): its file is not opened for reading, which may
/// block or have effects. Links are followed.
///
/// # Errors
/// open(2)'s.
pub fn place(path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path.as_ref(), flags, Mode::empty())?)
}

/// The content, of at most 8 MiB.
///
/// # Errors
/// open(2)'s and read(2)'s.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    // The kernel gives no size, and makes such text anew for small reads.
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The whole content of one whose size only the kernel decides, as of its BTF.
///
/// # Errors
/// open(2)'s and read(2)'s.
pub fn read_whole(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    fs::read(path)
}

/// Opens the node of a device, to ask and to read it.
///
/// # Errors
/// open(2)'s.
pub fn open_device(node: impl AsRef<Path>) -> io::Result<File> {
    File::options().read(true).write(true).open(node)
}

/// Whether the caller's real user could read it, by access(2).
pub fn is_readable(path: impl AsRef<Path>) -> bool {
    rustix::fs::access(path.as_ref(), rustix::fs::Access::READ_OK).is_ok()
}

/// The content as text; what is no UTF-8 is replaced.
///
/// # Errors
/// As [`read`].
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(match String::from_utf8(read(path)?) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

/// Where a link leads.
///
/// # Errors
/// readlink(2)'s.
pub fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    fs::read_link(path)
}

/// What is known of one; links are followed.
///
/// # Errors
/// stat(2)'s.
pub fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    fs::metadata(path)
}

/// Whether there is one of this name.
pub fn exists(path: impl AsRef<Path>) -> bool {
    metadata(path).is_ok()
}

/// Paths and names in a directory.
///
/// # Errors
/// opendir(3)'s.
pub fn read_dir(path: impl AsRef<Path>) -> io::Result<Vec<(PathBuf, OsString)>> {
    let entries = fs::read_dir(path)?.flatten();
    Ok(entries.map(|e| (e.path(), e.file_name())).collect())
}

/// The path without links.
///
/// # Errors
/// realpath(3)'s.
pub fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    fs::canonicalize(path)
}
