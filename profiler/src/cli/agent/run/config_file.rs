//! The file of the configuration.

use super::read;
use aiprof_fleet::config::Config;
use aiprof_system::files::caller;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The file of the configuration, and the state of it that was read last.
pub(super) struct ConfigFile {
    path: PathBuf,
    /// When it was changed last, if known.
    changed: Option<SystemTime>,
}

impl ConfigFile {
    /// One whose content was read just before.
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            changed: modified(path),
        }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it was changed since it was read.
    pub(super) fn has_changed(&self) -> bool {
        let changed = modified(&self.path);
        changed.is_some() && changed != self.changed
    }

    /// Reads it again.
    ///
    /// # Errors
    /// It cannot be read, or is wrong.
    pub(super) fn read(&mut self) -> Result<Config> {
        self.changed = modified(&self.path);
        read(&self.path)
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    caller::metadata(path).ok()?.modified().ok()
}
