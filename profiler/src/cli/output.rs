//! Where results go: files that appear whole or not at all, or stdout.

use crate::collect::privileges;
use crate::export::ExportError;
use anyhow::{Context, Result, bail};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Where results go that go to stdout.
pub(crate) const STDOUT: &str = "/dev/stdout";

/// A file being written. It takes its name only in [`OutputFile::commit`]; dropped
/// before that, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    writer: BufWriter<File>,
    /// The file beside its place; `None` for a device or a pipe, which cannot be
    /// replaced by renaming and is written directly.
    temporary: Option<tempfile::TempPath>,
}

impl OutputFile {
    /// Creates the file, so that what is wrong with the place shows before there
    /// is anything to lose.
    ///
    /// # Errors
    /// The place is a directory, does not exist or is not writable; the message
    /// says what to do.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        if path == Path::new(STDOUT) {
            // As it is open: it may be a file that others write to as well.
            let stdout = io::stdout().as_fd().try_clone_to_owned();
            let stdout = stdout.context("cannot write to stdout")?;
            return Ok(Self {
                path: path.to_owned(),
                writer: BufWriter::new(File::from(stdout)),
                temporary: None,
            });
        }
        // The file that a link leads to is replaced, not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let existing = std::fs::metadata(&path).ok();
        if let Some(found) = &existing {
            if found.is_dir() {
                let example = path.join("profile.svg");
                bail!(
                    "{} is a directory; name a file in it, such as -o {}",
                    path.display(),
                    example.display()
                );
            }
            if is_special(found) {
                let file = OpenOptions::new()
                    .write(true)
                    .open(&path)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                return Ok(Self {
                    path,
                    writer: BufWriter::new(file),
                    temporary: None,
                });
            }
        }
        Self::beside(path, existing.as_ref())
    }

    fn beside(path: PathBuf, existing: Option<&Metadata>) -> Result<Self> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        // A file that is replaced keeps its mode; a new one gets the usual one.
        let mode = existing.map_or(0o666, |m| m.permissions().mode() & 0o777);
        // Opened here, because the errors of `tempfile_in` show the temporary name.
        let open = |temporary: &Path| {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(temporary)
        };
        let file = tempfile::Builder::new()
            .prefix(".aiprof-")
            .make_in(directory, open)
            .map_err(|error| explain_place(error, directory, &path))?;
        give_to_sudo_caller(&file);
        let (file, temporary) = file.into_parts();
        Ok(Self {
            path,
            writer: BufWriter::new(file),
            temporary: Some(temporary),
        })
    }

    /// Where the file will be.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A second handle to the same open file, for a writer of its own. Use this or
    /// the `Write` implementation, not both.
    ///
    /// # Errors
    /// No more descriptors.
    pub(crate) fn handle(&self) -> io::Result<File> {
        self.writer.get_ref().try_clone()
    }

    /// Completes the file and gives it its name.
    ///
    /// # Errors
    /// The last bytes could not be written, or the renaming failed; nothing is
    /// left behind then.
    pub(crate) fn commit(mut self) -> Result<()> {
        let path = self.path;
        self.writer
            .flush()
            .with_context(|| format!("cannot write {}", path.display()))?;
        if let Some(temporary) = self.temporary.take() {
            temporary
                .persist(&path)
                .with_context(|| format!("cannot create {}", path.display()))?;
        }
        Ok(())
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

fn is_special(found: &Metadata) -> bool {
    let kind = found.file_type();
    kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket()
}

/// Says what is wrong with a place.
fn explain_place(error: io::Error, directory: &Path, path: &Path) -> anyhow::Error {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => {
            format!("create the directory: mkdir -p {}", directory.display())
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "name a place that you may write to with -o".to_owned()
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space, or name another place with -o".to_owned()
        }
        io::ErrorKind::NotADirectory => format!("{} is not a directory", directory.display()),
        _ => "name another place with -o".to_owned(),
    };
    anyhow::Error::new(error).context(format!("cannot create {} ({advice})", path.display()))
}

/// Results of `sudo aiprof` belong to the user who called it.
fn give_to_sudo_caller(file: &NamedTempFile) {
    if let Some((uid, gid)) = privileges::sudo_caller()
        && let Err(error) = std::os::unix::fs::fchown(file.as_file(), Some(uid), Some(gid))
    {
        tracing::warn!("the output file stays root's: {error}");
    }
}

/// Creates a directory for results where there is none.
///
/// # Errors
/// It cannot be created, or something else has that name.
pub(crate) fn create_directory(path: &Path) -> Result<()> {
    match std::fs::create_dir(path) {
        Ok(()) => {
            if let Some((uid, gid)) = privileges::sudo_caller()
                && let Err(error) = std::os::unix::fs::chown(path, Some(uid), Some(gid))
            {
                tracing::warn!("{} stays root's: {error}", path.display());
            }
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if !path.is_dir() {
                bail!("{} is a file; --every needs a directory", path.display());
            }
            Ok(())
        }
        Err(error) => Err(explain_place(
            error,
            path.parent().unwrap_or(Path::new(".")),
            path,
        )),
    }
}

/// Whether an error comes from a reader that has gone, as `head` does.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = match cause.downcast_ref() {
            Some(ExportError::Io(io)) => Some(io),
            _ => cause.downcast_ref::<io::Error>(),
        };
        io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_whole_on_commit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.folded");
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"main 1\n").unwrap();
        assert!(!path.exists());
        file.commit().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"main 1\n");
        assert_eq!(names(dir.path()), ["a.folded"]);
    }

    #[test]
    fn an_abandoned_file_leaves_the_old_one_and_no_litter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.folded");
        std::fs::write(&path, "old").unwrap();
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        drop(file);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["a.folded"]);
    }

    #[test]
    fn a_replaced_file_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.folded");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        OutputFile::create(&path).unwrap().commit().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn the_target_of_a_link_is_replaced_and_the_link_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let mut file = OutputFile::create(&link).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert_eq!(std::fs::read(&real).unwrap(), b"new");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut file = OutputFile::create(Path::new("/dev/full")).unwrap();
        file.write_all(b"x").unwrap(); // buffered
        let error = file.commit().unwrap_err();
        let cause = error.root_cause().downcast_ref::<io::Error>().unwrap();
        assert_eq!(cause.raw_os_error(), Some(libc::ENOSPC));
        assert!(Path::new("/dev/full").exists());
    }

    #[test]
    fn what_is_wrong_with_the_place_is_said_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let message = |path: &Path| format!("{:#}", OutputFile::create(path).unwrap_err());
        assert!(message(dir.path()).contains("is a directory; name a file in it"));
        let lost = dir.path().join("no/such/a.svg");
        assert!(message(&lost).contains("mkdir -p"), "{}", message(&lost));
        assert!(!message(&lost).contains(".aiprof-"), "{}", message(&lost));
        std::fs::write(dir.path().join("file"), "").unwrap();
        let under_file = message(&dir.path().join("file/a.svg"));
        assert!(under_file.contains("is not a directory"), "{under_file}");
    }

    #[test]
    fn a_reader_that_has_gone_is_recognised_in_any_depth() {
        let gone = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&anyhow::Error::new(gone).context("writing")));
        let gone = ExportError::Io(io::ErrorKind::BrokenPipe.into());
        assert!(is_broken_pipe(&anyhow::Error::new(gone).context("writing")));
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert!(!is_broken_pipe(&full.into()));
    }
}
