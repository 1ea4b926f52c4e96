//! A report of an analysis for the terminal.

use aiprof_model::visible;
use aiprof_tables::report as tables;
use aiprof_tables::{Cell, Table};
use aiprof_trace::analyze::report::{Kernel, Report, Weight};
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
    for text in &report.details.devices_assumed {
        writeln!(out, "Devices: {}", plain(text))?;
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

/// A table between others; nothing where it has no rows. `heads` is its first line, `shown` the
/// columns below by name, with their widths; names come last and have none.
fn columns(
    table: &Table,
    heads: &str,
    shown: &[(&str, usize)],
    out: &mut impl Write,
) -> io::Result<()> {
    if table.rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "{heads}")?;
    let places = shown.iter().filter_map(|(name, width)| {
        let at = table.columns.iter().position(|one| one.name == *name)?;
        Some((at, table.columns.get(at)?.digits, *width))
    });
    let places: Vec<_> = places.collect();
    for row in &table.rows {
        let cells = places.iter().map(|(at, digits, width)| match row.get(*at) {
            Some(Cell::Text(text)) if *width > 0 => format!("{:>width$}", shown_name(text)),
            Some(Cell::Text(text)) => format!(" {}", shown_name(text)),
            Some(Cell::Count(count)) => format!("{count:>width$}"),
            Some(Cell::Number(number)) => format!("{number:>width$.digits$}"),
            Some(Cell::None) | None => format!("{:>width$}", "-"),
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join(" "))?;
    }
    Ok(())
}

fn active(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let device = report.has_several_devices().then_some(("Device", 6));
    let head = if device.is_some() { " device" } else { "" };
    let mut shown = vec![("Rank", 5)];
    shown.extend(device);
    shown.extend([("Busy %", 8), ("Busy ms", 12), ("Elapsed ms", 12)]);
    columns(
        &tables::ACTIVE.first(report, usize::MAX),
        &format!("\n rank{head}   busy %      busy ms   elapsed ms"),
        &shown,
        out,
    )
}

/// What devices do besides computing.
fn communication(report: &Report, out: &mut impl Write) -> io::Result<()> {
    columns(
        &tables::COMMUNICATION.first(report, usize::MAX),
        "\n rank   compute ms   communication ms   hidden %    copies ms   hidden %",
        &[
            ("Rank", 5),
            ("Compute ms", 12),
            ("Collectives ms", 18),
            ("Hidden %", 10),
            ("Copies ms", 12),
            ("Copies hidden %", 10),
        ],
        out,
    )
}

fn kernels(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let has_power = report.kernels.iter().any(|kernel| kernel.joules.is_some());
    let power = if has_power { "   watts    joules" } else { "" };
    let mut shown = vec![
        ("Time %", 6),
        ("Total ms", 12),
        ("Calls", 8),
        ("Mean \u{b5}s", 12),
        ("Median \u{b5}s", 12),
        ("Max \u{b5}s", 12),
    ];
    if has_power {
        shown.extend([("Mean W", 7), ("Energy J", 9)]);
    }
    shown.push(("Kernel", 0));
    let has_several = report.has_several_devices();
    let of = |kernel: &Kernel| match has_several {
        true => format!("rank {}, device {}", kernel.rank, plain(&kernel.device)),
        false => format!("rank {}", kernel.rank),
    };
    let is_same =
        |a: &Kernel, b: &Kernel| a.rank == b.rank && (a.device == b.device || !has_several);
    for kernels in report.kernels.chunk_by(is_same) {
        let of = kernels.first().map(of).unwrap_or_default();
        let count = kernels.len();
        let calls: usize = kernels.iter().map(|kernel| kernel.lengths.calls).sum();
        let heads = format!(
            "\n{of}: {count} kernels, {calls} calls\n     %     total ms    calls      mean \
             us    median us       max us{power}  name"
        );
        let table = tables::kernels(kernels.iter().take(KERNELS));
        columns(&table, &heads, &shown, out)?;
        more(count, out)?;
    }
    Ok(())
}

/// Launches whose devices report no times.
fn untimed(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let rows = &report.details.untimed_launches;
    let all: u64 = rows.iter().map(|row| row.launches).sum();
    columns(
        &tables::UNTIMED.first(report, KERNELS),
        &format!("\n{all} launches without device times\n rank  launches    within ms  name"),
        &[
            ("Rank", 5),
            ("Launches", 9),
            ("Within ms", 12),
            ("Kernel", 0),
        ],
        out,
    )?;
    more(rows.len(), out)
}

/// How many kernels are left out.
fn more(kernels: usize, out: &mut impl Write) -> io::Result<()> {
    match kernels.checked_sub(KERNELS) {
        None | Some(0) => Ok(()),
        Some(more) => writeln!(out, "       and {more} more"),
    }
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
fn shown_name(name: &str) -> String {
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
    let has_several = report.has_several_devices();
    for one in &report.iterations {
        let device = one.device.as_ref().filter(|_| has_several);
        let device = device.map_or(String::new(), |device| {
            format!(", device {}", plain(device))
        });
        writeln!(
            out,
            "rank {}{device}: {} iterations of {} kernels, one every {:.3} ms",
            one.rank,
            one.count,
            one.kernels_each,
            one.mean_us / 1000.0
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_trace::analyze::report::{Active, Lengths};

    fn text(devices: &[(u32, &str)]) -> String {
        let lengths = Lengths {
            calls: 2,
            total_us: 2_000.0,
            mean_us: 1_000.0,
            median_us: 1_000.0,
            min_us: 1_000.0,
            max_us: 1_000.0,
            deviation_us: 0.0,
        };
        let kernels = devices.iter().map(|(rank, device)| Kernel {
            rank: *rank,
            device: (*device).to_owned(),
            name: "gemm".to_owned(),
            percent: 100.0,
            lengths,
            mean_watts: None,
            joules: None,
            utilization_percent: None,
        });
        let active = devices.iter().map(|(rank, device)| Active {
            rank: *rank,
            other_ranks: Vec::new(),
            device: (*device).to_owned(),
            kernel_us: 2_000.0,
            busy_us: 2_000.0,
            elapsed_us: 8_000.0,
            busy_percent: 25.0,
        });
        let report = Report {
            kernels: kernels.collect(),
            active: active.collect(),
            ..Report::default()
        };
        let mut out = Vec::new();
        write(&report, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn devices_are_named_where_a_rank_has_several() {
        let several = text(&[(0, "0"), (0, "1"), (3, "TPU:2")]);
        for line in [
            " rank device   busy %      busy ms   elapsed ms\n",
            "    0      0    25.00        2.000        8.000\n",
            "    0      1    25.00        2.000        8.000\n",
            "    3  TPU:2    25.00        2.000        8.000\n",
            "\nrank 0, device 0: 1 kernels, 2 calls\n",
            "\nrank 0, device 1: 1 kernels, 2 calls\n",
            "\nrank 3, device TPU:2: 1 kernels, 2 calls\n",
        ] {
            assert!(several.contains(line), "{line}{several}");
        }
        let one_each = text(&[(0, "0"), (1, "1")]);
        for line in [
            " rank   busy %      busy ms   elapsed ms\n",
            "    1    25.00        2.000        8.000\n",
            "\nrank 1: 1 kernels, 2 calls\n",
        ] {
            assert!(one_each.contains(line), "{line}{one_each}");
        }
    }
}
