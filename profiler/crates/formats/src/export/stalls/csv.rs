//! Tables for programs, as RFC 4180 has them: a row for each instruction, line or
//! kernel, a column for each reason.

use super::names::{offset, syntax, why_text};
use super::{By, StallView};
use crate::export::ExportError;
use aiprof_model::csv::field;
use aiprof_model::profile::StallReason;
use aiprof_trace::analyze::device_stalls::{
    InstructionStalls, KernelStalls, SourcePlace, StallReport, Tally,
};
use std::io::Write;

/// Writes the tables of all kernels as one.
///
/// # Errors
/// [`ExportError::Io`] when `out` fails.
pub fn write(
    report: &StallReport,
    view: &StallView<'_>,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let own: &[&str] = match view.by {
        By::Kernel => &[],
        By::Line => &["file", "line", "function", "inlined at"],
        By::Instruction | By::Reason => {
            &["offset", "instruction", "file", "line", "why", "waits for"]
        }
    };
    let reasons = StallReason::ALL.map(StallReason::name);
    let head = ["device", "kernel"]
        .iter()
        .chain(own)
        .chain(&["samples"])
        .chain(&reasons);
    row(out, head.map(|name| (*name).to_owned()))?;
    let whole = report.samples.total();
    let (kernels, _) = view.shown(&report.kernels, whole, |k| k.samples.total());
    for kernel in kernels {
        for (own, samples) in rows(kernel, view, whole) {
            let names = [kernel.device.clone(), kernel.name.clone()];
            let counts = std::iter::once(samples.total()).chain(samples.counts);
            let counts = counts.map(|count| count.to_string());
            row(out, names.into_iter().chain(own).chain(counts))?;
        }
    }
    out.flush()?;
    Ok(())
}

fn rows(kernel: &KernelStalls, view: &StallView<'_>, whole: u64) -> Vec<(Vec<String>, Tally)> {
    match view.by {
        By::Kernel => vec![(Vec::new(), kernel.samples)],
        By::Line => {
            let (lines, _) = view.shown(&kernel.lines, whole, |l| l.samples.total());
            lines
                .into_iter()
                .map(|line| (line_cells(&line.place), line.samples))
                .collect()
        }
        By::Instruction | By::Reason => {
            let (all, _) = view.shown(&kernel.instructions, whole, |i| i.samples.total());
            all.into_iter()
                .map(|i| (instruction_cells(kernel, i), i.samples))
                .collect()
        }
    }
}

fn file_and_line(place: &SourcePlace) -> [String; 2] {
    let last = place.last().filter(|frame| frame.line > 0);
    last.map_or_else(Default::default, |frame| {
        [frame.file.clone(), frame.line.to_string()]
    })
}

fn line_cells(place: &SourcePlace) -> Vec<String> {
    let mut cells = file_and_line(place).to_vec();
    cells.push(
        place
            .last()
            .map_or(String::new(), |frame| frame.function.clone()),
    );
    let outer = place.len().saturating_sub(1);
    let calls: Vec<String> = place
        .iter()
        .take(outer)
        .map(|frame| format!("{}:{}", frame.file, frame.line))
        .collect();
    cells.push(calls.join(" "));
    cells
}

fn instruction_cells(kernel: &KernelStalls, stalled: &InstructionStalls) -> Vec<String> {
    let [file, line] = file_and_line(&stalled.place);
    let why: Vec<String> = stalled
        .why
        .iter()
        .map(|(reason, _, why)| format!("{}: {}", reason.name(), why_text(kernel, why)))
        .collect();
    let producers = stalled.why.iter().flat_map(|(_, _, why)| &why.producers);
    let mut offsets: Vec<u32> = producers
        .filter_map(|p| Some(kernel.instruction(p.instruction)?.offset))
        .collect();
    offsets.sort_unstable();
    offsets.dedup();
    let offsets: Vec<String> = offsets
        .iter()
        .map(|offset| format!("{offset:#x}"))
        .collect();
    vec![
        offset(stalled),
        syntax(kernel, stalled),
        file,
        line,
        why.join("\n"),
        offsets.join(" "),
    ]
}

fn row(out: &mut dyn Write, cells: impl Iterator<Item = String>) -> std::io::Result<()> {
    let cells: Vec<String> = cells.map(|cell| field(&cell).into_owned()).collect();
    write!(out, "{}\r\n", cells.join(","))
}
