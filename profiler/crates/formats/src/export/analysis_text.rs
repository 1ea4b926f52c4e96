//! A report of an analysis for the terminal.

use aiprof_model::visible;
use aiprof_trace::analyze::report::{Report, Weight};
use std::io::{self, Write};

/// Kernels that are listed for each rank.
const KERNELS: usize = 15;
/// Length of a line of a finding, characters; longer ones are cut.
const LINE: usize = 1000;
/// Length of a kernel's name, characters; longer ones are cut.
const NAME: usize = 60;

/// Writes what was found, the most important first, then the tables.
///
/// # Errors
/// As `out`.
pub fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    for input in &report.inputs {
        let (path, events, dialect) = (&input.path, input.events, input.dialect);
        let path = plain(path);
        let made_up = if input.is_synthetic {
            ", synthetic"
        } else {
            ""
        };
        writeln!(out, "{path}: {events} events ({dialect}{made_up})")?;
    }
    writeln!(out, "Total time: {:.3} ms\n", report.elapsed_us / 1000.0)?;
    findings(report, out)?;
    active(report, out)?;
    communication(report, out)?;
    kernels(report, out)?;
    untimed(report, out)?;
    iterations(report, out)
}

/// Findings: what costs time by its cost, each with what to try, then what else there is.
fn findings(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let costs = report.findings.iter().any(|one| one.cost_ns.is_some());
    if costs {
        writeln!(
            out,
            "Costs: the most time that each finding can save (costs overlap and do not add up):"
        )?;
    }
    let mut has_costs = costs;
    for finding in &report.findings {
        if has_costs && finding.cost_ns.is_none() {
            has_costs = false;
            writeln!(out, "\nAbout the traces:")?;
        }
        let mark = match finding.weight {
            Weight::Error => "!!",
            Weight::Warning => " !",
            Weight::Note => "  ",
        };
        let text = plain(&finding.text);
        match finding.cost_ns {
            Some(ns) => writeln!(out, "{mark} {:>9.3} s  {text}", ns as f64 / 1e9)?,
            None => writeln!(out, "{mark} {text}")?,
        }
        for line in &finding.evidence {
            writeln!(out, "     {}", plain(line))?;
        }
        if let Some(advice) = finding.advice {
            writeln!(out, "     Try: {advice}")?;
        }
    }
    Ok(())
}

fn active(report: &Report, out: &mut impl Write) -> io::Result<()> {
    if report.active.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n rank   busy %      busy ms   elapsed ms")?;
    for row in &report.active {
        writeln!(
            out,
            "{:>5} {:>8.2} {:>12.3} {:>12.3}",
            row.rank,
            row.busy_percent,
            row.busy_us / 1000.0,
            row.elapsed_us / 1000.0
        )?;
    }
    Ok(())
}

/// What devices do besides computing.
fn communication(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let rows = &report.details.communication;
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n rank   compute ms   communication ms   hidden %    copies ms   hidden %"
    )?;
    let percent = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.2}"));
    for row in rows {
        writeln!(
            out,
            "{:>5} {:>12.3} {:>18.3} {:>10} {:>12.3} {:>10}",
            row.rank,
            row.compute_us / 1000.0,
            row.communication_us / 1000.0,
            percent(row.overlap_percent),
            row.copy_us / 1000.0,
            percent(row.copy_overlap_percent)
        )?;
    }
    Ok(())
}

fn kernels(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let has_power = report.kernels.iter().any(|kernel| kernel.joules.is_some());
    for kernels in report.kernels.chunk_by(|a, b| a.rank == b.rank) {
        let Some(first) = kernels.first() else {
            continue;
        };
        let power = if has_power { "   watts    joules" } else { "" };
        writeln!(
            out,
            "\nrank {}: {} kernels, {} calls\n     %     total ms    calls      mean us    median us       max us{power}  name",
            first.rank,
            kernels.len(),
            kernels
                .iter()
                .map(|kernel| kernel.lengths.calls)
                .sum::<usize>()
        )?;
        for kernel in kernels.iter().take(KERNELS) {
            let lengths = &kernel.lengths;
            write!(
                out,
                "{:>6.2} {:>12.3} {:>8} {:>12.3} {:>12.3} {:>12.3}",
                kernel.percent,
                lengths.total_us / 1000.0,
                lengths.calls,
                lengths.mean_us,
                lengths.median_us,
                lengths.max_us
            )?;
            if has_power {
                let number = |value: Option<f64>, digits: usize| {
                    value.map_or("-".to_owned(), |v| format!("{v:.digits$}"))
                };
                write!(
                    out,
                    " {:>7} {:>9}",
                    number(kernel.mean_watts, 1),
                    number(kernel.joules, 4)
                )?;
            }
            writeln!(out, "  {}", shown(&kernel.name))?;
        }
        if kernels.len() > KERNELS {
            writeln!(out, "       and {} more", kernels.len() - KERNELS)?;
        }
    }
    Ok(())
}

/// Launches whose devices report no times.
fn untimed(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let rows = &report.details.untimed_launches;
    if rows.is_empty() {
        return Ok(());
    }
    let all: u64 = rows.iter().map(|row| row.launches).sum();
    writeln!(
        out,
        "\n{all} launches without device times\n rank  launches    within ms  name"
    )?;
    for row in rows.iter().take(KERNELS) {
        writeln!(
            out,
            "{:>5} {:>9} {:>12.3}  {}",
            row.rank.map_or("-".to_owned(), |rank| rank.to_string()),
            row.launches,
            row.within_us / 1000.0,
            shown(&row.name)
        )?;
    }
    if rows.len() > KERNELS {
        writeln!(out, "       and {} more", rows.len() - KERNELS)?;
    }
    Ok(())
}

/// A text in one line, without what could move the cursor or turn text around.
fn plain(text: &str) -> String {
    let text = visible::one_line(text);
    let mut shown: String = text.chars().take(LINE + 1).collect();
    if shown.chars().count() > LINE {
        shown.pop();
        shown.push_str("[..]");
    }
    shown
}

/// A name that fits a table.
fn shown(name: &str) -> String {
    let name = plain(name);
    let cut: String = name.chars().take(NAME).collect();
    match name.chars().count() > NAME {
        true => cut + "[..]",
        false => cut,
    }
}

fn iterations(report: &Report, out: &mut impl Write) -> io::Result<()> {
    if !report.iterations.is_empty() {
        writeln!(out)?;
    }
    for one in &report.iterations {
        writeln!(
            out,
            "rank {}: {} iterations of {} kernels, one every {:.3} ms",
            one.rank,
            one.count,
            one.kernels_each,
            one.mean_us / 1000.0
        )?;
    }
    Ok(())
}
