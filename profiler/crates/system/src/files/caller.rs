//! Files that the caller named, opened with the caller's rights.

use super::rights::as_caller;
use std::{
    ffi::OsString,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read as _},
    os::unix::{fs::OpenOptionsExt as _, net::UnixStream},
    path::{Path, PathBuf},
};

/// Opens a file to read it. Does not wait for a writer of a pipe that has none yet
/// unless `path` is such a pipe: see [`open_regular`] where pipes are not wanted.
///
/// # Errors
/// open(2)'s.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    as_caller(|| File::open(path))
}

/// Opens a regular file to read it; never waits, and has no effect on anything
/// else that has this name.
///
/// # Errors
/// open(2)'s, or it is no regular file.
pub fn open_regular(path: impl AsRef<Path>) -> io::Result<File> {
    if_regular(open_at_once(path)?)
}

fn if_regular(file: File) -> io::Result<File> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(file)
}

/// Opens a file, a pipe or a device to read it, and does not wait: neither for a
/// writer, nor, later, for what one may write.
///
/// # Errors
/// open(2)'s.
pub fn open_at_once(path: impl AsRef<Path>) -> io::Result<File> {
    as_caller(|| {
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
    })
}

/// Connects to a socket in the file system.
///
/// # Errors
/// connect(2)'s.
pub fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
    as_caller(|| UnixStream::connect(path))
}

/// [`open_regular`], of a name that is no link.
///
/// # Errors
/// As there, or it is a link.
pub fn open_no_link(path: impl AsRef<Path>) -> io::Result<File> {
    let file = as_caller(|| {
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
    })?;
    if_regular(file)
}

/// The entries of a directory.
///
/// # Errors
/// opendir(3)'s.
pub fn entries(path: impl AsRef<Path>) -> io::Result<fs::ReadDir> {
    as_caller(|| fs::read_dir(path))
}

/// The whole content of a file, of at most `limit` bytes.
///
/// # Errors
/// open(2)'s, or it is larger.
pub fn read(path: impl AsRef<Path>, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = open(path)?;
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!(
            "larger than the limit of {limit} bytes"
        )));
    }
    Ok(bytes)
}

/// [`read`], as text.
///
/// # Errors
/// As there, or it is no UTF-8.
pub fn read_to_string(path: impl AsRef<Path>, limit: u64) -> io::Result<String> {
    String::from_utf8(read(path, limit)?).map_err(io::Error::other)
}

/// What is known of a file; links are followed.
///
/// # Errors
/// stat(2)'s.
pub fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    as_caller(|| fs::metadata(path))
}

/// Whether it is a directory that the caller can see.
pub fn is_dir(path: impl AsRef<Path>) -> bool {
    metadata(path).is_ok_and(|found| found.is_dir())
}

/// Whether it is a regular file that the caller can see.
pub fn is_file(path: impl AsRef<Path>) -> bool {
    metadata(path).is_ok_and(|found| found.is_file())
}

/// Whether the caller can see a file of this name.
pub fn exists(path: impl AsRef<Path>) -> bool {
    metadata(path).is_ok()
}

/// Path, name and kind of each entry of a directory, of at most `limit`.
///
/// # Errors
/// opendir(3)'s.
pub fn read_dir(path: impl AsRef<Path>, limit: usize) -> io::Result<Vec<(PathBuf, OsString)>> {
    as_caller(|| {
        let entries = fs::read_dir(path)?.flatten().take(limit);
        Ok(entries.map(|e| (e.path(), e.file_name())).collect())
    })
}

/// The path without links, from the root.
///
/// # Errors
/// realpath(3)'s.
pub fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    as_caller(|| fs::canonicalize(path))
}

/// A file without a name in the directory for temporary files (`TMPDIR`).
///
/// # Errors
/// The directory cannot be written to.
pub fn scratch() -> io::Result<File> {
    as_caller(tempfile::tempfile)
}
