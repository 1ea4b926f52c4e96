//! What `aiprof diff` compares of traces, and of recordings with work of devices.

use super::analyze;
use aiprof_tables::Table;
use aiprof_tables::compare::TraceWork;
use aiprof_tables::compare::traces::{self, ComparedTrace};
use aiprof_trace::analyze::report::Finding;
use anyhow::{Context, Result};
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
    let words: [OsString; 2] = ["--".into(), path.into()];
    let found = analyze::run_with(&words, |analysis| analysis.for_comparison(path));
    let (work, report) = found.with_context(|| format!("cannot compare {}", path.display()))?;
    Ok(Analysed {
        work,
        findings: report.findings,
    })
}
