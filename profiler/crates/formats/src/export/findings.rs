//! Findings as JSON, for programs.

use aiprof_trace::analyze::report::{Finding, Report};
use serde::Serialize;
use std::io::{self, Write};

/// What is written.
#[derive(Serialize)]
struct Findings<'r> {
    version: &'r str,
    inputs: Vec<&'r str>,
    /// From the first event to the last, microseconds.
    elapsed_us: f64,
    findings: &'r [Finding],
}

/// Writes the findings of a report, the most expensive first.
///
/// # Errors
/// As `out`.
pub fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let all = Findings {
        version: report.version,
        inputs: report
            .inputs
            .iter()
            .map(|input| input.path.as_str())
            .collect(),
        elapsed_us: report.elapsed_us,
        findings: &report.findings,
    };
    serde_json::to_writer_pretty(&mut *out, &all)?;
    writeln!(out)
}
