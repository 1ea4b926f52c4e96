//! `--every`: one file per window, of which the newest are kept.

use super::open_output::OpenOutput;
use super::output::{self, OutputFile};
use super::values;
use aiprof_formats::export::{ExportOptions, FileFormat};
use aiprof_model::profile::Profile;
use aiprof_system::errors::chain;
use aiprof_system::files::directory::Directory;
use aiprof_system::files::place::{self, PlaceError};
use aiprof_system::files::rights;
use anyhow::{Context, Result};
use rustix::fs::FileType;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How far ahead of the clock a window may begin.
const AHEAD: Duration = Duration::from_secs(60);
/// How many seconds later a window's file may pretend to start.
const MAX_LATER: u64 = 5;

/// Writes the files of the windows and deletes old ones.
#[derive(Debug)]
pub(crate) struct WindowFiles {
    directory: PathBuf,
    format: &'static FileFormat,
    options: ExportOptions,
    keep: Option<u32>,
    /// The part of a window that the files have, as in their names; empty: all.
    part: &'static str,
    /// Windows that could not be written.
    failures: u64,
}

impl WindowFiles {
    /// Checks whether [`WindowFiles::open`] can use a directory, and whether `room` bytes fit into
    /// it. Makes nothing.
    ///
    /// # Errors
    /// What is wrong with the directory.
    pub(crate) fn check(directory: &Path, room: usize) -> Result<(), PlaceError> {
        place::check_directory(directory, room)
    }

    /// Creates the directory where there is none, and checks that files can be
    /// written to it.
    ///
    /// # Errors
    /// What is wrong with the directory.
    pub(crate) fn open(
        directory: &Path,
        format: &'static FileFormat,
        options: ExportOptions,
        keep: Option<u32>,
    ) -> Result<Self> {
        let files = Self {
            directory: directory.to_owned(),
            format,
            options,
            keep,
            part: "",
            failures: 0,
        };
        // Dropped at once: it only shows that the directory is writable.
        files.create(&output::open_directory(directory)?, SystemTime::now())?;
        Ok(files)
    }

    /// The same for a part of the windows: their files lie beside the others, and have this
    /// in their names, as in `off_cpu-`.
    pub(crate) fn of(self, part: &'static str) -> Self {
        Self { part, ..self }
    }

    /// Writes the file of a window. A failure is reported and counted, and does
    /// not end the recording: a full disk may have room again later.
    pub(crate) fn write(&mut self, profile: &Profile) {
        if let Err(error) = self.try_write(profile) {
            self.failures += 1;
            tracing::error!("{}", chain(&*error));
        }
    }

    /// Windows that could not be written.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// Writes the file of a window, and deletes those that are too old; gives its bytes.
    ///
    /// # Errors
    /// It could not be written, and none was deleted; or one could not be deleted.
    pub(crate) fn try_write(&self, profile: &Profile) -> Result<u64> {
        let start = match profile.meta.start_unix_ns {
            0 => SystemTime::now(),
            ns => UNIX_EPOCH + Duration::from_nanos(ns),
        };
        // Each time anew: an always-on recording may outlive its directory.
        let directory = output::find_directory(&self.directory)?;
        let (file, name) = self.create(&directory, start)?;
        let format = self.format;
        OpenOutput { file, format }.write_profile(profile, &self.options)?;
        // Only now: the last good files are worth more than this one.
        let bytes = directory
            .stat_of(OsStr::new(&name))
            .map(|stat| stat.st_size);
        if let Some(keep) = self.keep {
            self.prune(&directory, usize::try_from(keep).unwrap_or(usize::MAX))?;
        }
        Ok(bytes.map_or(0, |bytes| u64::try_from(bytes).unwrap_or(0)))
    }

    /// Begins the file of a window that starts at this time. Two may start in the same second: the
    /// name then has a time up to a few seconds later, so that neither is lost.
    fn create(&self, directory: &Directory, start: SystemTime) -> Result<(OutputFile, String)> {
        let name = |later| self.name(start + Duration::from_secs(later));
        let is_free = |name: &String| directory.stat_of(OsStr::new(name)).is_err();
        let name = (0..MAX_LATER).map(name).find(is_free);
        let name = name.unwrap_or_else(|| self.name(start));
        let path = self.directory.join(&name);
        let file = OutputFile::create_in(directory, OsStr::new(&name), &path)?;
        Ok((file, name))
    }

    /// The name of the file of a window that starts then.
    fn name(&self, start: SystemTime) -> String {
        let (part, time) = (self.part, values::timestamp(start));
        format!("aiprof-{part}{time}.{}", self.format.extension())
    }

    /// Whether a file's name is exactly one that [`WindowFiles::name`] makes.
    fn is_own(&self, name: &str) -> bool {
        let time = name
            .strip_prefix("aiprof-")
            .and_then(|rest| rest.strip_prefix(self.part))
            .and_then(|rest| rest.strip_suffix(self.format.extension()))
            .and_then(|rest| rest.strip_suffix("Z."));
        time.and_then(|time| time.split_once('T'))
            .is_some_and(|(date, time)| {
                let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
                date.len() == 8 && time.len() == 6 && digits(date) && digits(time)
            })
    }

    /// Deletes all but the newest `keep` files of this format: only files, and only
    /// such as are ours.
    fn prune(&self, directory: &Directory, keep: usize) -> Result<()> {
        let context = || format!("cannot delete old files in {}", self.directory.display());
        let is_window = |name: &OsStr| {
            name.to_str().is_some_and(|name| self.is_own(name))
                && directory.stat_of(name).is_ok_and(|stat| {
                    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                        && rights::is_own(stat.st_uid)
                })
        };
        let mut own = directory.names().with_context(context)?;
        own.retain(|name| is_window(name));
        // Names sort by time. Those later than now are of a clock that was wrong, and the
        // first to go: else nothing newer would ever be kept.
        let now = OsString::from(self.name(SystemTime::now() + AHEAD));
        own.sort_by(|a, b| (*a <= now, a).cmp(&(*b <= now, b)));
        let surplus = own.len().saturating_sub(keep);
        for name in own.iter().take(surplus) {
            directory.unlink(name).with_context(context)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_formats::export::formats::{FOLDED, SVG};

    #[test]
    fn only_the_oldest_own_files_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let foreign = [
            "aiprof-20250101T000000Z.svg",
            "aiprof-20250101T000000Z.folded.bak",
            "aiprof-20250101T0000Z.folded",
            "aiprof-2025010XT000000Z.folded",
            "notes.folded",
        ];
        let own = [
            "aiprof-20250101T000000Z.folded",
            "aiprof-20250101T000100Z.folded",
            "aiprof-20251231T235959Z.folded",
        ];
        for name in foreign.iter().chain(&own) {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let mut files =
            WindowFiles::open(dir.path(), &FOLDED, ExportOptions::default(), Some(2)).unwrap();
        let mut profile = Profile::default();
        profile.meta.start_unix_ns = 1_767_225_660_000_000_000; // 2026-01-01 00:01:00 UTC
        files.write(&profile);
        assert_eq!(files.failures(), 0);
        for name in foreign {
            assert!(dir.path().join(name).exists(), "{name} was deleted");
        }
        for (name, kept) in [
            (own[0], false),
            (own[1], false),
            (own[2], true),
            ("aiprof-20260101T000100Z.folded", true),
        ] {
            assert_eq!(dir.path().join(name).exists(), kept, "{name}");
        }
    }

    #[test]
    fn a_window_that_fails_takes_no_older_one_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let keep = Some(1);
        let mut files =
            WindowFiles::open(dir.path(), &FOLDED, ExportOptions::default(), keep).unwrap();
        let old = dir.path().join("aiprof-20250101T000000Z.folded");
        std::fs::write(&old, "good").unwrap();
        let link = dir.path().join("aiprof-20240101T000000Z.folded");
        std::os::unix::fs::symlink("x", &link).unwrap();
        let mut profile = Profile::default();
        // The place is taken by a directory, up to the last name that is tried.
        profile.meta.start_unix_ns = 1_767_225_660_000_000_000;
        for second in 0..MAX_LATER {
            let name = format!("aiprof-20260101T00010{second}Z.folded");
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        files.write(&profile);
        assert_eq!(files.failures(), 1);
        assert!(old.exists());
        profile.meta.start_unix_ns += 60_000_000_000;
        files.write(&profile);
        assert_eq!(files.failures(), 1);
        assert!(!old.exists() && link.is_symlink());
    }

    #[test]
    fn windows_of_the_same_second_are_both_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut files =
            WindowFiles::open(dir.path(), &FOLDED, ExportOptions::default(), None).unwrap();
        let mut profile = Profile::default();
        profile.meta.start_unix_ns = 1_767_225_660_000_000_000;
        files.write(&profile);
        profile.meta.start_unix_ns += 999_999_999;
        files.write(&profile);
        for name in [
            "aiprof-20260101T000100Z.folded",
            "aiprof-20260101T000101Z.folded",
        ] {
            assert!(dir.path().join(name).exists(), "{name}");
        }
    }

    #[test]
    fn a_window_that_cannot_be_written_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("new");
        let mut files = WindowFiles::open(&place, &FOLDED, ExportOptions::default(), None).unwrap();
        std::fs::remove_dir(&place).unwrap();
        files.write(&Profile::default());
        assert_eq!(files.failures(), 1);
    }

    #[test]
    fn a_directory_that_cannot_be_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        for place in ["file", "file/sub", "no/parent"] {
            let result = WindowFiles::open(
                &dir.path().join(place),
                &SVG,
                ExportOptions::default(),
                None,
            );
            assert!(result.is_err(), "{place}");
        }
    }
}
