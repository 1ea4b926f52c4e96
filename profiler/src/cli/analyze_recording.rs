//! What `aiprof analyze` does, of a recording that was just made or replayed.

use super::analyze::{AnalyzeArgs, config, kept, silent};
use super::output::OutputFile;
use super::sibling_files::Written;
use super::{Verbosity, log};
use aiprof_model::timeline::recorded::Recorded;
use aiprof_record::store::Store;
use aiprof_trace::analyze::messages::Messages;
use aiprof_trace::analyze::report::Report;
use anyhow::Result;
use clap::{Args as _, FromArgMatches as _};
use std::ffi::OsString;
use std::path::Path;

/// What is found in a recording with the defaults of `aiprof analyze`. `path` is its
/// name.
///
/// # Errors
/// It cannot be read.
pub(super) fn of_recording(recorded: &Recorded, store: Store, path: &Path) -> Result<Report> {
    let found = analyse_recording(recorded, store, path, None)?;
    Ok(found.0)
}

/// Writes what `aiprof analyze --tensorboard` writes, of a recording: the trace to `out`,
/// the rest beside it. Gives what was written.
///
/// # Errors
/// The recording cannot be read, or a result not be written.
pub(super) fn tensorboard(
    recorded: &Recorded,
    store: Store,
    path: &Path,
    out: OutputFile,
) -> Result<Written> {
    let found = analyse_recording(recorded, store, path, Some(out))?;
    Ok(found.1)
}

fn analyse_recording(
    recorded: &Recorded,
    store: Store,
    path: &Path,
    out: Option<OutputFile>,
) -> Result<(Report, Written)> {
    let command = AnalyzeArgs::augment_args(clap::Command::new("analyze"));
    let mut words: Vec<OsString> = vec!["analyze".into(), "recording".into()];
    if let Some(out) = &out {
        words.extend(["--tensorboard".into(), "-o".into(), out.path().into()]);
    }
    let matches = command.try_get_matches_from(words)?;
    let args = AnalyzeArgs::from_arg_matches(&matches)?;
    let (config, kept) = (config(&args, Verbosity::default())?, kept(&args)?);
    let mut messages = Messages::new(config.level);
    let mut analysis = silent(&config, kept, &mut messages);
    let report = analysis.of_recording(recorded, store, path, out);
    let written = std::mem::take(&mut analysis.written);
    log::analysis(&messages);
    Ok((report?, written))
}
