//! Files that profiles are read from, whatever wrote them.

use super::usage_error;
use aiprof_formats::export::Format;
use aiprof_formats::import::capture::{self, ReplayOptions};
use aiprof_formats::import::stall_profile::profile_of;
use aiprof_formats::import::{iaprof, unitrace_csv};
use aiprof_model::profile::{LossKind, Profile, Values};
use aiprof_system::files::caller;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Recordings of other tools that have no events, only counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// iaprof's interchange text.
    Iaprof,
    /// unitrace's table of stalls.
    UnitraceCsv,
}

impl Foreign {
    /// What a file is, by its first bytes; `None`: none of these. So is a pipe: what is
    /// read of it cannot be read again.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let file = caller::open_regular(path).ok()?;
        let mut input = BufReader::new(file);
        let head = input.fill_buf().ok()?;
        if iaprof::is_iaprof(head) {
            Some(Self::Iaprof)
        } else if unitrace_csv::is_stall_csv(head) {
            Some(Self::UnitraceCsv)
        } else {
            None
        }
    }

    fn read(self, input: &mut dyn BufRead) -> Result<Profile> {
        match self {
            Self::Iaprof => Ok(iaprof::read(input)?),
            Self::UnitraceCsv => {
                let stalls = unitrace_csv::read(input)?;
                let mut profile = profile_of(&stalls.table);
                let losses = &mut profile.losses;
                losses.add(LossKind::DeviceUndecodable, stalls.skipped);
                Ok(profile)
            }
        }
    }
}

/// Whether a file is of folded stacks, by its name, and by its first bytes no recording.
pub(crate) fn is_folded(path: &Path) -> bool {
    if Format::from_extension(path) != Some(Format::Folded) || Foreign::of(path).is_some() {
        return false;
    }
    let Ok(file) = caller::open_regular(path) else {
        return false;
    };
    let mut input = BufReader::new(file);
    let is_capture = |head: &[u8]| head.starts_with(&capture::MAGIC[..7]);
    input.fill_buf().is_ok_and(|head| !is_capture(head))
}

/// Whether the samples of a profile have no times: unitrace tells none, iaprof only
/// where it can read the device's counters.
pub(crate) fn tells_no_times(profile: &Profile) -> bool {
    let is_of_samples = profile.values == Values::CpuTime;
    is_of_samples && profile.total_count() > 0 && profile.total_time_ns() == 0
}

/// Reads a profile from a capture, or from a recording of another tool.
///
/// # Errors
/// The file cannot be read, or the options do not fit it.
pub(crate) fn profile(path: &Path, options: &ReplayOptions) -> Result<Profile> {
    let Some(foreign) = Foreign::of(path) else {
        return Ok(capture::replay(path, options)?);
    };
    if options.launches.is_some() {
        return Err(usage_error(
            "--events needs a capture: this file has no calls and no launches",
        ));
    }
    let context = || format!("cannot read {}", path.display());
    let file = caller::open(path).with_context(context)?;
    foreign
        .read(&mut BufReader::new(file))
        .with_context(context)
}
