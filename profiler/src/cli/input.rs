//! Files that profiles are read from, whatever wrote them.

use super::usage_error;
use crate::import::capture::{self, ReplayOptions};
use crate::import::iaprof;
use crate::profile::{Profile, Values};
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Whether a file is a recording of iaprof, by its first bytes. A pipe is none: what is
/// read of it cannot be read again.
pub(crate) fn is_iaprof(path: &Path) -> bool {
    let head = || {
        let file = File::open(path).ok().filter(|file| {
            let metadata = file.metadata();
            metadata.is_ok_and(|metadata| metadata.is_file())
        })?;
        let mut input = BufReader::new(file);
        let head = input.fill_buf().ok()?;
        Some(iaprof::is_iaprof(head))
    };
    head().unwrap_or(false)
}

/// Whether the samples of a profile have no times: iaprof tells them only where it can
/// read the device's counters.
pub(crate) fn tells_no_times(profile: &Profile) -> bool {
    let is_of_samples = profile.values == Values::CpuTime;
    is_of_samples && profile.total_count() > 0 && profile.total_time_ns() == 0
}

/// Reads a profile from a capture, or from a recording of iaprof.
///
/// # Errors
/// The file cannot be read, or the options do not fit it.
pub(crate) fn profile(path: &Path, options: &ReplayOptions) -> Result<Profile> {
    if !is_iaprof(path) {
        return Ok(capture::replay(path, options)?);
    }
    if options.launches.is_some() {
        return Err(usage_error(
            "--events needs a capture: iaprof records no calls and counts no launches",
        ));
    }
    let context = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(context)?;
    iaprof::read(&mut BufReader::new(file)).with_context(context)
}
