//! `aiprof doctor`: the report on this machine, as text or JSON.

use super::EXIT_FAILURE;
use aiprof_live::doctor::{self, Check, Report, Status};
use aiprof_model::visible;
use anyhow::{Context, Result};
use clap::Args;
use std::io::{self, BufWriter, Write};

/// Options of `aiprof doctor`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 if aiprof can record CPU profiles with the privileges that \
                        doctor runs with, otherwise 1. Run `sudo aiprof doctor` to check what \
                        `sudo aiprof COMMAND` can do."
)]
pub(crate) struct DoctorArgs {
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the report; the exit code shows whether the main job can run.
///
/// # Errors
/// stdout could not be written.
pub(crate) fn run(args: &DoctorArgs) -> Result<u8> {
    let report = doctor::examine();
    let mut out = BufWriter::new(io::stdout().lock());
    let written = if args.json {
        serde_json::to_string_pretty(&report)
            .map_err(io::Error::from)
            .and_then(|text| writeln!(out, "{}", visible::json(&text)))
    } else {
        let mut text = Vec::new();
        write_text(&report, &mut text).and_then(|()| {
            let text = String::from_utf8_lossy(&text);
            // Paths of runtimes are whatever a program has mapped.
            out.write_all(visible::message(&text).as_bytes())
        })
    };
    written
        .and_then(|()| out.flush())
        .context("cannot write to stdout")?;
    Ok(if report.ready { 0 } else { EXIT_FAILURE })
}

fn write_text(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let (version, kernel, machine) = (report.version, &report.kernel, &report.machine);
    writeln!(out, "aiprof {version} on Linux {kernel} {machine}")?;
    let (mut area, mut remedy) = ("", "");
    for check in &report.checks {
        if check.area != area {
            area = check.area;
            writeln!(out, "\n{area}")?;
        }
        write_check(check, remedy, out)?;
        remedy = &check.remedy;
    }
    write_devices(report, out)?;
    let verdict = if report.ready {
        "aiprof can record on this machine."
    } else {
        "aiprof cannot record on this machine: see the lines with 'no' and '(required)'."
    };
    writeln!(out, "\n{verdict}")
}

/// `above` is the remedy of the check before, which need not be repeated.
fn write_check(check: &Check, above: &str, out: &mut dyn Write) -> io::Result<()> {
    let (word, name) = (check.status.word(), check.name);
    write!(out, "  {word:<4} {name:<26} {}", check.detail)?;
    if check.status != Status::No {
        return writeln!(out);
    }
    let required = if check.required { " (required)" } else { "" };
    let remedy = match check.remedy.as_str() {
        same if same == above => "as above",
        other => other,
    };
    writeln!(out, "{required}")?;
    writeln!(out, "         until it is fixed: {}", check.fallback)?;
    writeln!(out, "         to fix it: {remedy}")
}

fn write_devices(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\naccelerators")?;
    if report.accelerators.is_empty() && report.device_nodes.is_empty() {
        writeln!(out, "  n/a  none found: CPU profiling only")?;
    }
    for found in &report.accelerators {
        let driver = match found.driver.as_str() {
            "" => "no driver",
            driver => driver,
        };
        writeln!(
            out,
            "  yes  {}  {:04x}:{:04x}  {} ({driver})",
            found.address, found.vendor, found.device, found.description
        )?;
    }
    for node in &report.device_nodes {
        let access = if node.accessible {
            ""
        } else {
            " (not accessible)"
        };
        writeln!(out, "  yes  {}{access}", node.path)?;
    }
    writeln!(out, "\nruntimes")?;
    if report.runtimes.is_empty() {
        writeln!(out, "  n/a  none installed, none in use")?;
    }
    for runtime in &report.runtimes {
        let used = match runtime.processes.len() {
            0 => String::new(),
            n => format!(", in use by {n} process{}", if n == 1 { "" } else { "es" }),
        };
        writeln!(out, "  yes  {}: {}{used}", runtime.name, runtime.library)?;
    }
    for note in &report.notes {
        writeln!(out, "\nnote: {note}")?;
    }
    Ok(())
}
