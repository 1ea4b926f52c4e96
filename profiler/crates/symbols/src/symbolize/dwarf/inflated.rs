//! Debug sections that were inflated once, kept on disk for later lookups and runs.
//!
//! Distributions compress debug files, and a compressed section cannot be read from its
//! middle: for one name of the C library 10 MiB are inflated. So what was inflated is
//! kept in a directory that only root can write, and pages are read from there.
//!
//! Only root keeps anything, and only from files that are root's own. Others could make a file with
//! the identity of another file, to give that one wrong names. A file is known by device, inode,
//! size and times of its last changes. The directory is bounded; what was not used for longest goes
//! first. Where it cannot be used, sections are inflated each time.

use super::limit::{DwarfError, SectionsError};
use super::sections::Sections;
use crate::elf::{DEBUG_SECTIONS, DebugSection, ElfInfo, Packing};
use aiprof_system::files::directory::Directory;
use aiprof_system::files::others::{self, RootDir, Trust};
use aiprof_system::files::place;
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileTimes};
use std::io::{self, BufWriter, Seek as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

/// Where files are kept.
const DIRECTORY: &str = "/var/cache/aiprof";
/// Begin of a file; another number of sections or layout is another version.
const MAGIC: [u8; 16] = *b"aiprof-debug-1\n\0";
/// Bytes before the sections: the magic, and begin and size of each.
const HEADER: usize = MAGIC.len() + DEBUG_SECTIONS.len() * 16;
/// Least bytes that are worth a file.
const MIN_BYTES: u64 = 256 << 10;
/// Most bytes of a file.
const MAX_BYTES: u64 = 64 << 20;
/// Most bytes and files of the directory.
const MAX_KEPT: u64 = 256 << 20;
const MAX_FILES: usize = 256;

/// The directory of inflated sections.
#[derive(Debug)]
pub(in crate::symbolize) struct Inflated {
    path: PathBuf,
    /// Once something is written: `None` if it cannot be used.
    directory: Option<Option<Directory>>,
}

impl Inflated {
    /// The one of this machine; `None` for all but root.
    pub(in crate::symbolize) fn of_machine() -> Option<Self> {
        let is_root = rustix::process::geteuid().is_root();
        is_root.then(|| Self::at(DIRECTORY.into()))
    }

    /// One at a path.
    pub(super) fn at(path: PathBuf) -> Self {
        Self {
            path,
            directory: None,
        }
    }

    /// The sections of a file, inflated; `None`: there is nothing to gain, or it cannot be
    /// kept.
    pub(super) fn get(
        &mut self,
        file: &File,
        info: &ElfInfo,
        deadline: Instant,
    ) -> Option<(File, ElfInfo)> {
        if info.packed_bytes < MIN_BYTES || !others::is_roots_own(file) {
            return None;
        }
        let name = name_of(file).ok()?;
        let (kept, sections) = match self.open(&name) {
            Some(kept) => kept,
            None => self
                .make(&name, file, info, deadline)
                .inspect_err(|error| tracing::debug!("{}: {error}", self.path.display()))
                .ok()?,
        };
        let mut info = info.clone();
        info.debug = sections;
        info.packed_bytes = 0;
        Some((kept, info))
    }

    fn open(&self, name: &OsStr) -> Option<(File, Vec<DebugSection>)> {
        let trust = Trust {
            uid: 0,
            max_bytes: MAX_BYTES,
        };
        let file = RootDir::of_host()
            .ok()?
            .open(self.path.join(name), trust)
            .ok()?;
        let meta = file.metadata().ok()?;
        // What others may write to was not made here.
        (meta.mode() & 0o022 == 0 && others::is_roots_own(&file)).then_some(())?;
        // What is used stays; where its time cannot be set, it goes by that of its making.
        let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
        let sections = table(&file)?;
        Some((file, sections))
    }

    /// Inflates the sections of a file into a new one, which takes its name when it is
    /// whole.
    fn make(
        &mut self,
        name: &OsStr,
        file: &File,
        info: &ElfInfo,
        deadline: Instant,
    ) -> Result<(File, Vec<DebugSection>), DwarfError> {
        let failed = |error: io::Error| DwarfError::from(SectionsError::Read(error));
        let directory = self
            .directory()
            .ok_or(io::ErrorKind::PermissionDenied.into());
        let directory = directory.map_err(failed)?;
        make_room(&directory, info.packed_bytes);
        let (made, temporary) = directory.create_temporary(0o600).map_err(failed)?;
        let sections =
            Sections::open(std::sync::Arc::new(file.try_clone().map_err(failed)?), info)?;
        sections.allow(deadline);
        write(&sections, &made)
            .map_err(|error| sections.take_failure().unwrap_or(failed(error)))?;
        temporary.rename(name).map_err(failed)?;
        // The one that was opened for writing is locked.
        self.open(name)
            .ok_or(failed(io::ErrorKind::NotFound.into()))
    }

    /// The directory, made where there is none, if only this user can write to it.
    fn directory(&mut self) -> Option<Directory> {
        let path = &self.path;
        let directory = self.directory.get_or_insert_with(|| {
            let made = place::make_directory(path, |_| Ok(())).ok().flatten()?;
            let stat = made.stat().ok()?;
            let own = stat.st_uid == rustix::process::geteuid().as_raw();
            if !own || stat.st_mode & 0o022 != 0 {
                tracing::debug!(
                    "{}: not used, because other users can write to it",
                    path.display()
                );
                return None;
            }
            made.prune_temporaries(|uid| uid == stat.st_uid);
            Some(made)
        });
        directory.clone()
    }
}

/// What a file is known by.
fn name_of(file: &File) -> io::Result<OsString> {
    let meta = file.metadata()?;
    Ok(format!(
        "{:x}-{:x}-{:x}-{:x}.{:x}-{:x}.{:x}",
        meta.dev(),
        meta.ino(),
        meta.size(),
        meta.mtime(),
        meta.mtime_nsec(),
        meta.ctime(),
        meta.ctime_nsec()
    )
    .into())
}

/// Deletes files until there is room for one more.
fn make_room(directory: &Directory, bytes: u64) {
    let names = directory.names().unwrap_or_default();
    let stat = |name: OsString| {
        let stat = directory.stat_of(&name).ok()?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        Some(((stat.st_mtime, stat.st_mtime_nsec), size, name))
    };
    let mut files: Vec<_> = names.into_iter().filter_map(stat).collect();
    files.sort_unstable();
    let mut sum: u64 = files.iter().map(|(_, size, _)| size).sum();
    let mut count = files.len();
    for (_, size, name) in files {
        if sum.saturating_add(bytes) <= MAX_KEPT && count < MAX_FILES {
            return;
        }
        if directory.unlink(&name).is_ok() {
            sum -= size;
            count -= 1;
        }
    }
}

/// Writes all sections, and then where they are.
fn write(sections: &Sections, file: &File) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(64 << 10, file);
    let mut header = vec![0; HEADER];
    out.write_all(&header)?;
    let mut at = HEADER as u64;
    for (index, name) in DEBUG_SECTIONS.iter().enumerate() {
        let section = sections.get(name);
        let place = MAGIC.len() + index * 16;
        let fields = [at, section.size() as u64].map(u64::to_ne_bytes);
        if let Some(entry) = header.get_mut(place..place + 16) {
            entry.copy_from_slice(fields.as_flattened());
        }
        let mut done = 0;
        while done < section.size() {
            let bytes = section.tail(done, sections.access());
            let bytes = bytes.filter(|bytes| !bytes.is_empty());
            let bytes = bytes.ok_or(io::ErrorKind::UnexpectedEof)?;
            out.write_all(bytes)?;
            done += bytes.len();
        }
        at += section.size() as u64;
    }
    header
        .get_mut(..MAGIC.len())
        .unwrap_or_default()
        .copy_from_slice(&MAGIC);
    out.rewind()?;
    out.write_all(&header)?;
    out.flush()
}

/// Where the sections of a file are that was made here.
fn table(file: &File) -> Option<Vec<DebugSection>> {
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0).ok()?;
    let (magic, entries) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return None;
    }
    let length = file.metadata().ok()?.len();
    let word = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..at + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    let named = DEBUG_SECTIONS.iter().zip(entries.chunks_exact(16));
    let section = |(name, entry): (&&'static str, &[u8])| {
        let (offset, size) = (word(entry, 0)?, word(entry, 8)?);
        (offset.checked_add(size)? <= length).then_some(DebugSection {
            name,
            offset,
            size,
            packing: Packing::None,
        })
    };
    // One that is cut off: all is made anew.
    let sections: Vec<_> = named.map(section).collect::<Option<_>>()?;
    let is_there = |section: &DebugSection| section.size > 0;
    Some(sections.into_iter().filter(is_there).collect())
}

#[cfg(test)]
#[path = "inflated_tests.rs"]
mod tests;
