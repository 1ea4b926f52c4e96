//! Where results go: files that appear whole or not at all, or stdout.

use super::stdout;
use aiprof_formats::export::ExportError;
use aiprof_system::files::caller;
use aiprof_system::files::directory::{Directory, Temporary};
use aiprof_system::files::place::{self, Place, PlaceError, Special};
use aiprof_system::files::rights;
use anyhow::{Context, Result, bail};
use rustix::fs::Stat;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Where results go that go to stdout.
pub(crate) const STDOUT: &str = "/dev/stdout";

/// Refuses to overwrite files that are read, whatever they are called.
///
/// # Errors
/// The output path is one of these files.
pub(crate) fn keep_inputs<'a>(
    read: impl IntoIterator<Item = &'a Path>,
    written: impl IntoIterator<Item = &'a Path>,
) -> Result<()> {
    let file = |path: &Path| {
        caller::canonicalize(path)
            .ok()
            .filter(|p| caller::is_file(p))
    };
    let read: Vec<_> = read
        .into_iter()
        .filter_map(|path| Some((path, file(path)?)))
        .collect();
    for place in written.into_iter().filter_map(file) {
        if let Some((path, _)) = read.iter().find(|(_, read)| *read == place) {
            bail!(
                "{} is an input and would be overwritten: name another file with -o",
                path.display()
            );
        }
    }
    Ok(())
}

/// A file being written. It takes its name only in [`OutputFile::commit`]; dropped
/// before that, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    /// Whether it is stdout because no other place was named.
    is_stdout: bool,
    writer: BufWriter<File>,
    /// The file beside its place; `None` for a device or a pipe, which cannot be
    /// replaced by renaming and is written directly.
    beside: Option<Beside>,
}

/// A file in the directory of its place, and the name that it will have.
#[derive(Debug)]
struct Beside {
    directory: Directory,
    temporary: Temporary,
    name: OsString,
}

impl OutputFile {
    /// Opens what `-o` names: a file; without it, or with `-`, stdout.
    ///
    /// # Errors
    /// As [`OutputFile::create`]; stdout is closed.
    pub(crate) fn open(output: Option<&Path>) -> Result<Self> {
        match output {
            Some(path) if path != Path::new("-") => Self::create(path),
            _ => Ok(Self {
                is_stdout: true,
                ..Self::inherited(1, Path::new(STDOUT))?
            }),
        }
    }

    /// Creates the file, so that what is wrong with the place shows before there is anything to
    /// lose.
    ///
    /// # Errors
    /// The place is a directory, does not exist or is not writable, or another user decides where
    /// it leads. The message includes advice.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        match place::find(path).map_err(|error| explain_way(error, path))? {
            Place::Directory(_) => {
                let example = path.join("profile.svg");
                bail!(
                    "{} is a directory; name a file in it, such as -o {}",
                    path.display(),
                    example.display()
                );
            }
            Place::Descriptor(number) => Self::inherited(number, path),
            Place::Special(special) => Self::special(&special, path),
            Place::New(directory, name) => Self::beside(directory, name, None, path),
            Place::File(directory, name, old) => Self::beside(directory, name, Some(&old), path),
        }
    }

    /// Looks whether [`OutputFile::create`] can make a file, and leaves none. A device or a pipe
    /// is not opened.
    ///
    /// # Errors
    /// As [`OutputFile::create`].
    pub(crate) fn check(path: &Path) -> Result<()> {
        match place::find(path) {
            Ok(Place::Special(_) | Place::Descriptor(_)) => Ok(()),
            _ => Self::create(path).map(drop),
        }
    }

    /// Creates a file of this name in a directory that is open; `path` is for
    /// messages.
    ///
    /// # Errors
    /// As [`OutputFile::create`].
    pub(crate) fn create_in(directory: &Directory, name: &OsStr, path: &Path) -> Result<Self> {
        Self::beside(directory.clone(), name.to_owned(), None, path)
    }

    /// As it is open: it may be a file that others write to as well.
    fn inherited(number: i32, path: &Path) -> Result<Self> {
        if number == 1 {
            stdout::require()?;
        }
        let file = place::inherited(number);
        Ok(Self {
            path: path.to_owned(),
            is_stdout: false,
            writer: BufWriter::new(file.with_context(|| cannot_write(path))?),
            beside: None,
        })
    }

    fn special(special: &Special, path: &Path) -> Result<Self> {
        let shown = path.display();
        let file =
            special.open(|| tracing::warn!("{shown} is a pipe: waiting until a program reads it"));
        Ok(Self {
            path: path.to_owned(),
            is_stdout: false,
            writer: BufWriter::new(file.with_context(|| cannot_write(path))?),
            beside: None,
        })
    }

    fn beside(
        directory: Directory,
        name: OsString,
        old: Option<&Stat>,
        path: &Path,
    ) -> Result<Self> {
        if let Some(old) = old {
            check_replaceable(&directory, old, path)?;
        }
        directory.prune_temporaries(rights::is_own);
        // A file that is replaced keeps its mode; a new one gets the usual one, as
        // does one that a stranger put there.
        let known = old.filter(|old| rights::is_trusted(old.st_uid));
        let mode = known.map_or(0o666, |old| old.st_mode & 0o777);
        let created = directory.create_temporary(mode);
        let (file, temporary) = created.map_err(|error| explain_place(error, path))?;
        give_to_sudo_caller(&file);
        Ok(Self {
            path: path.to_owned(),
            is_stdout: false,
            writer: BufWriter::new(file),
            beside: Some(Beside {
                directory,
                temporary,
                name,
            }),
        })
    }

    /// Where the file will be, as it was named.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is stdout because no other place was named.
    pub(crate) fn is_stdout(&self) -> bool {
        self.is_stdout
    }

    /// That it cannot be written, as the context of an error.
    pub(crate) fn cannot_write(&self) -> String {
        match self.is_stdout {
            true => "cannot write to stdout".to_owned(),
            false => cannot_write(&self.path),
        }
    }

    /// The directory it will be in; none for devices and pipes.
    pub(crate) fn directory(&self) -> Option<&Directory> {
        self.beside.as_ref().map(|beside| &beside.directory)
    }

    /// A second handle to the same open file, for a writer of its own. Use this or
    /// the `Write` implementation, not both.
    ///
    /// # Errors
    /// No more descriptors.
    pub(crate) fn handle(&self) -> io::Result<File> {
        self.writer.get_ref().try_clone()
    }

    /// A line with its path and description, for when it was written; none for devices and pipes.
    pub(crate) fn note(&self, what: &str) -> Option<String> {
        let beside = self.beside.as_ref();
        beside.map(|_| format!("  written to {}: {what}", self.path.display()))
    }

    /// Completes the file and gives it its name.
    ///
    /// # Errors
    /// The last bytes could not be written, or the renaming failed; nothing is
    /// left behind then.
    pub(crate) fn commit(mut self) -> Result<()> {
        let flushed = self.writer.flush();
        flushed.with_context(|| self.cannot_write())?;
        if let Some(beside) = self.beside.take() {
            let renamed = beside.temporary.rename(&beside.name);
            renamed.with_context(|| format!("cannot create {}", self.path.display()))?;
        }
        Ok(())
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Reports at once what renaming would find in the end: in a directory like /tmp, an ordinary user
/// cannot replace the file of another.
fn check_replaceable(directory: &Directory, old: &Stat, path: &Path) -> Result<()> {
    let user = rustix::process::geteuid();
    let parent = directory.stat().with_context(|| cannot_write(path))?;
    let is_sticky = parent.st_mode & libc::S_ISVTX != 0;
    let is_owner = [old.st_uid, parent.st_uid].contains(&user.as_raw());
    if is_sticky && !is_owner && !user.is_root() {
        let (path, owner) = (path.display(), old.st_uid);
        bail!(
            "{path} belongs to user {owner}, and only that user can replace it in this directory: \
             name another place with -o"
        );
    }
    Ok(())
}

/// The error for a wrong path to a place.
fn explain_way(error: PlaceError, path: &Path) -> anyhow::Error {
    let (way, source) = match error {
        PlaceError::Way { path, source } => (path, source),
        other => return anyhow::Error::new(other).context(cannot_write(path)),
    };
    let way = way.display();
    let advice = match source.kind() {
        io::ErrorKind::NotFound => {
            let directory = directory_of(path);
            format!("create the directory: mkdir -p {}", directory.display())
        }
        io::ErrorKind::NotADirectory => format!("{way} is not a directory"),
        io::ErrorKind::PermissionDenied => {
            format!("no permission to enter {way}; name a place that you may write to with -o")
        }
        _ => "name another place with -o".to_owned(),
    };
    anyhow::Error::new(source).context(format!("cannot create {} ({advice})", path.display()))
}

/// The error for a directory in which nothing can be created.
fn explain_place(error: io::Error, path: &Path) -> anyhow::Error {
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "name a place that you may write to with -o"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space, or name another place with -o"
        }
        // The directory was found: it is one of /proc, or was just deleted.
        io::ErrorKind::NotFound => "its directory cannot hold files; name another place with -o",
        _ => "name another place with -o",
    };
    anyhow::Error::new(error).context(format!("cannot create {} ({advice})", path.display()))
}

fn directory_of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Results of `sudo aiprof` belong to the user who called it. Only for a file that
/// was just created.
fn give_to_sudo_caller(file: &File) {
    if let Some((uid, gid)) = rights::sudo_caller()
        && let Err(error) = std::os::unix::fs::fchown(file, Some(uid), Some(gid))
    {
        tracing::warn!("cannot give the output file to the user who called sudo: {error}");
    }
}

/// Opens a directory for results that is there.
///
/// # Errors
/// It is not, or cannot be entered.
pub(crate) fn find_directory(path: &Path) -> Result<Directory> {
    match place::find(path).map_err(|error| explain_way(error, path))? {
        Place::Directory(directory) => Ok(directory),
        _ => bail!("{} is no longer a directory", path.display()),
    }
}

/// Opens a directory for results, and creates it where there is none.
///
/// # Errors
/// It cannot be created, or something else has that name.
pub(crate) fn open_directory(path: &Path) -> Result<Directory> {
    let give = |made: &Directory| {
        if let Some((uid, gid)) = rights::sudo_caller()
            && let Err(error) = place::give_directory(made, uid, gid)
        {
            tracing::warn!(
                "cannot give {} to the user who called sudo: {error}",
                path.display()
            );
        }
        Ok(())
    };
    let opened = place::make_directory(path, give).map_err(|error| explain_way(error, path))?;
    opened.with_context(|| format!("{} is a file, but a directory is needed", path.display()))
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
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

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
    fn what_a_stranger_planted_is_left_alone() {
        if !rustix::process::geteuid().is_root() {
            return; // only root can make what belongs to others
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("secret"), "old").unwrap();
        std::os::unix::fs::symlink("secret", at("link.svg")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe.svg"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        for name in ["link.svg", "pipe.svg"] {
            std::os::unix::fs::lchown(at(name), Some(65534), Some(65534)).unwrap();
            let error = format!("{:#}", OutputFile::create(&at(name)).unwrap_err());
            assert!(error.contains("belongs to user 65534"), "{error}");
        }
        // A file is replaced, and not with the mode that the stranger chose.
        std::fs::write(at("a.svg"), "planted").unwrap();
        std::os::unix::fs::chown(at("a.svg"), Some(65534), None).unwrap();
        std::fs::set_permissions(at("a.svg"), std::fs::Permissions::from_mode(0o602)).unwrap();
        std::fs::hard_link(at("a.svg"), at("kept")).unwrap();
        OutputFile::create(&at("a.svg")).unwrap().commit().unwrap();
        let made = std::fs::metadata(at("a.svg")).unwrap();
        assert_eq!((made.uid(), made.len(), made.mode() & 0o002), (0, 0, 0));
        assert_eq!(std::fs::read(at("kept")).unwrap(), b"planted");
        assert_eq!(std::fs::read(at("secret")).unwrap(), b"old");
    }

    #[test]
    fn a_pipe_is_written_and_inherited_descriptors_too() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        let reader = {
            let pipe = pipe.clone();
            std::thread::spawn(move || std::fs::read(pipe).unwrap())
        };
        // With or without a reader yet: it waits for one.
        let mut file = OutputFile::create(&pipe).unwrap();
        file.write_all(b"main 1\n").unwrap();
        file.commit().unwrap();
        assert_eq!(reader.join().unwrap(), b"main 1\n");
        OutputFile::create(Path::new("/dev/null"))
            .unwrap()
            .commit()
            .unwrap();
        // This process's own descriptors are not the caller's.
        let own = File::open("/dev/null").unwrap();
        let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&own));
        assert!(OutputFile::create(Path::new(&path)).is_err());
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
        let in_proc = message(Path::new("/proc/x.svg"));
        assert!(in_proc.contains("cannot hold files"), "{in_proc}");
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
