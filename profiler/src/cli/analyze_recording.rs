//! What `aiprof analyze` does, of a recording that was just made or replayed.

use super::analyze;
use super::output::OutputFile;
use super::sibling_files::WrittenFiles;
use aiprof_model::timeline::recorded::Recorded;
use aiprof_record::store::Store;
use aiprof_trace::analyze::report::Report;
use anyhow::Result;
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
) -> Result<WrittenFiles> {
    let found = analyse_recording(recorded, store, path, Some(out))?;
    Ok(found.1)
}

fn analyse_recording(
    recorded: &Recorded,
    store: Store,
    path: &Path,
    out: Option<OutputFile>,
) -> Result<(Report, WrittenFiles)> {
    let mut words: Vec<OsString> = vec!["recording".into()];
    if let Some(out) = &out {
        words.extend(["--tensorboard".into(), "-o".into(), out.path().into()]);
    }
    analyze::run_with(&words, |analysis| {
        let report = analysis.of_recording(recorded, store, path, out)?;
        Ok((report, std::mem::take(&mut analysis.written)))
    })
}
