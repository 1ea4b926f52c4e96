//! `--every`: one file per window, of which the newest are kept.

use super::output::{self, OutputFile};
use super::profile_out;
use super::values;
use crate::export::{ExportOptions, Format};
use crate::profile::Profile;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How many seconds later a window's file may pretend to start.
const MAX_LATER: u64 = 5;

/// Writes the files of the windows and deletes old ones.
#[derive(Debug)]
pub(crate) struct WindowFiles {
    directory: PathBuf,
    format: Format,
    options: ExportOptions,
    keep: Option<u32>,
    /// Windows that could not be written.
    failures: u64,
}

impl WindowFiles {
    /// Creates the directory where there is none, and checks that files can be
    /// written to it.
    ///
    /// # Errors
    /// What is wrong with the directory.
    pub(crate) fn open(
        directory: &Path,
        format: Format,
        options: ExportOptions,
        keep: Option<u32>,
    ) -> Result<Self> {
        output::create_directory(directory)?;
        // Dropped at once: it only shows that the directory is writable.
        OutputFile::create(&directory.join(file_name(SystemTime::now(), format)))?;
        Ok(Self {
            directory: directory.to_owned(),
            format,
            options,
            keep,
            failures: 0,
        })
    }

    /// Writes the file of a window. A failure is reported and counted, and does
    /// not end the recording: a full disk may have room again later.
    pub(crate) fn write(&mut self, profile: &Profile) {
        if let Err(error) = self.try_write(profile) {
            self.failures += 1;
            tracing::error!("{error:#}");
        }
    }

    /// Windows that could not be written.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    fn try_write(&self, profile: &Profile) -> Result<()> {
        let start = match profile.meta.start_unix_ns {
            0 => SystemTime::now(),
            ns => UNIX_EPOCH + Duration::from_nanos(ns),
        };
        // Make room first, so that a full disk gets the space of the oldest.
        if let Some(keep) = self.keep {
            self.prune(
                usize::try_from(keep)
                    .unwrap_or(usize::MAX)
                    .saturating_sub(1),
            )?;
        }
        let file = OutputFile::create(&self.free_place(start))?;
        profile_out::write_file(profile, self.format, &self.options, file)
    }

    /// The file of a window that starts at this time, or up to a few seconds later:
    /// two may start in the same second, and neither is to be lost.
    fn free_place(&self, start: SystemTime) -> PathBuf {
        let place = |later| {
            let start = start + Duration::from_secs(later);
            self.directory.join(file_name(start, self.format))
        };
        let free = (0..MAX_LATER).map(place).find(|path| !path.exists());
        free.unwrap_or_else(|| place(0))
    }

    /// Deletes all but the newest `keep` files of this format.
    fn prune(&self, keep: usize) -> Result<()> {
        let context = || format!("cannot clear up {}", self.directory.display());
        let mut own = Vec::new();
        for entry in std::fs::read_dir(&self.directory).with_context(context)? {
            let name = entry.with_context(context)?.file_name();
            if name.to_str().is_some_and(|name| is_own(name, self.format)) {
                own.push(name);
            }
        }
        own.sort(); // names sort by time
        let surplus = own.len().saturating_sub(keep);
        for name in own.into_iter().take(surplus) {
            std::fs::remove_file(self.directory.join(name)).with_context(context)?;
        }
        Ok(())
    }
}

fn file_name(start: SystemTime, format: Format) -> String {
    let time = values::timestamp(start);
    format!("aiprof-{time}.{}", format.extension())
}

/// Whether a file name is exactly one that [`file_name`] makes.
fn is_own(name: &str, format: Format) -> bool {
    let time = name
        .strip_prefix("aiprof-")
        .and_then(|rest| rest.strip_suffix(format.extension()))
        .and_then(|rest| rest.strip_suffix("Z."));
    time.and_then(|time| time.split_once('T'))
        .is_some_and(|(date, time)| {
            let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
            date.len() == 8 && time.len() == 6 && digits(date) && digits(time)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut files = WindowFiles::open(
            dir.path(),
            Format::Folded,
            ExportOptions::default(),
            Some(2),
        )
        .unwrap();
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
    fn windows_of_the_same_second_are_both_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut files =
            WindowFiles::open(dir.path(), Format::Folded, ExportOptions::default(), None).unwrap();
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
        let mut files =
            WindowFiles::open(&place, Format::Folded, ExportOptions::default(), None).unwrap();
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
                Format::Svg,
                ExportOptions::default(),
                None,
            );
            assert!(result.is_err(), "{place}");
        }
    }
}
