//! What `aiprof diff` compares of traces, and of recordings with work of devices.

use super::analyze::{AnalyzeArgs, config, kept, silent};
use super::{Verbosity, log};
use aiprof_tables::Table;
use aiprof_tables::compare::TraceWork;
use aiprof_tables::compare::traces::{self, ComparedTrace};
use aiprof_trace::analyze::messages::Messages;
use aiprof_trace::analyze::report::Finding;
use anyhow::{Context, Result};
use clap::{Args as _, FromArgMatches as _};
use std::ffi::OsString;
use std::path::Path;

/// What one of them has.
struct Analysed {
    work: TraceWork,
    findings: Vec<Finding>,
}

impl Analysed {
    fn compared(&self) -> ComparedTrace<'_> {
        ComparedTrace {
            work: &self.work,
            findings: &self.findings,
        }
    }
}

/// The tables of two traces or recordings.
///
/// # Errors
/// One of them cannot be read.
pub(super) fn tables(before: &Path, after: &Path) -> Result<Vec<Table>> {
    let (before, after) = (analyse(before)?, analyse(after)?);
    Ok(traces::compare(before.compared(), after.compared()))
}

/// Analyses with the defaults of `aiprof analyze`.
fn analyse(path: &Path) -> Result<Analysed> {
    let command = AnalyzeArgs::augment_args(clap::Command::new("analyze"));
    let words: [OsString; 3] = ["analyze".into(), "--".into(), path.into()];
    let matches = command.try_get_matches_from(words)?;
    let args = AnalyzeArgs::from_arg_matches(&matches)?;
    let (config, kept) = (config(&args, Verbosity::default())?, kept(&args)?);
    let mut messages = Messages::new(config.level);
    let mut analysis = silent(&config, kept, &mut messages);
    let found = analysis.for_comparison(path);
    log::analysis(&messages);
    let (work, report) = found.with_context(|| format!("cannot compare {}", path.display()))?;
    Ok(Analysed {
        work,
        findings: report.findings,
    })
}
