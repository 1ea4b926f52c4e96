//! Annotated disassembly: all of a kernel's instructions with their samples, source
//! lines between them, and marks at what others wait for.

use super::names::{instruction, line_name, offset, place_note, syntax};
use super::text::{StallPage, bar};
use super::{StallView, percent};
use crate::export::ExportError;
use crate::export::text::{fit, grouped, one_line};
use aiprof_model::profile::StallReason;
use aiprof_symbols::symbolize::device::isa::Flow;
use aiprof_trace::analyze::device_stalls::{
    InstructionStalls, KernelStalls, SourcePlace, StallReport,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// Longest bar.
const BAR: usize = 10;

/// Writes the listings of the report's kernels.
///
/// # Errors
/// [`ExportError::Io`] when `out` fails.
pub fn write(
    report: &StallReport,
    view: &StallView<'_>,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut page = StallPage::new(view, report.samples.total());
    page.opening(report);
    page.line(
        "\nShares are of the kernel's samples. > marks instructions that others wait for, <- shows \
         what\nan instruction waits for, @ marks branch targets.",
    );
    let samples = |kernel: &KernelStalls| kernel.samples.total();
    let (kernels, hidden) = view.shown(&report.kernels, page.whole, samples);
    for kernel in kernels {
        page.kernel_head(kernel);
        page.line("");
        listing(&mut page, kernel, view);
        // A kernel at a time: listings are long.
        out.write_all(page.text.as_bytes())?;
        page.text.clear();
    }
    if hidden > 0 {
        page.line(&format!(
            "\n... and {} more kernels",
            grouped(hidden as u64)
        ));
    }
    out.write_all(page.text.as_bytes())?;
    out.flush()?;
    Ok(())
}

fn listing(page: &mut StallPage<'_>, kernel: &KernelStalls, view: &StallView<'_>) {
    let total = kernel.samples.total();
    let most = kernel.instructions.iter().map(|i| i.samples.total()).max();
    let scale = (total, most.unwrap_or(0));
    page.line("     offset     samples   share              instruction");
    let by_index: BTreeMap<usize, &InstructionStalls> = kernel
        .instructions
        .iter()
        .filter_map(|i| Some((i.index?, i)))
        .collect();
    let waited = waited_for(kernel);
    let code = kernel.code.as_ref().ok();
    let all = code.map_or(&[][..], |c| c.decoded.instructions.as_slice());
    let entries = targets(kernel);
    let mut line = String::new();
    for (index, found) in all.iter().enumerate() {
        let here = kernel.place(index);
        let own = source_line(&here, view);
        if !here.is_empty() && own != line {
            page.line(&own);
            line = own;
        }
        let mark = if waited.contains(&index) { '>' } else { ' ' };
        let entry = if entries.contains(&found.offset) {
            '@'
        } else {
            ' '
        };
        let at = format!("{:#x}", found.offset);
        let stalled = by_index.get(&index);
        let counted = stalled.map_or(String::new(), |stalled| samples(stalled, scale));
        let after = stalled.map_or(String::new(), |stalled| after(kernel, stalled));
        let text = instruction(found);
        page.line(&format!(
            " {mark}{entry}{at:>8}  {counted:<30}  {text}{after}"
        ));
    }
    for stalled in kernel.instructions.iter().filter(|i| i.index.is_none()) {
        let (at, counted) = (offset(stalled), samples(stalled, scale));
        let text = syntax(kernel, stalled);
        page.line(&format!(
            "   {at:>8}  {counted:<30}  {text}{}",
            counts(stalled)
        ));
    }
}

/// Samples, their share of `total`, and a bar that is longest for `most`.
fn samples(stalled: &InstructionStalls, (total, most): (u64, u64)) -> String {
    let count = stalled.samples.total();
    let share = percent(count, total);
    format!(
        "{:>10}  {share:5.1}% {:<BAR$}",
        grouped(count),
        bar(count, most, BAR)
    )
}

/// Reasons and what is waited for: `  // sbid 3,390 active 10 <- 0x200`.
fn after(kernel: &KernelStalls, stalled: &InstructionStalls) -> String {
    let mut text = counts(stalled);
    let producers: BTreeSet<u32> = stalled
        .why
        .iter()
        .flat_map(|(_, _, why)| &why.producers)
        .filter_map(|p| Some(kernel.instruction(p.instruction)?.offset))
        .collect();
    for (i, offset) in producers.iter().enumerate() {
        text.push_str(if i == 0 { " <- " } else { ", " });
        text.push_str(&format!("{offset:#x}"));
    }
    text
}

fn counts(stalled: &InstructionStalls) -> String {
    let all = stalled.samples.reasons();
    let all: Vec<String> = all
        .iter()
        .map(|(reason, count)| format!("{} {}", reason.name(), grouped(*count)))
        .collect();
    format!("  // {}", all.join(" "))
}

fn source_line(place: &SourcePlace, view: &StallView<'_>) -> String {
    let mut line = line_name(place);
    if line.is_empty() {
        line = "[line not known]".to_owned();
    }
    let note = place_note(place);
    let mut text = format!(
        "   // {line}{}{note}",
        if note.is_empty() { "" } else { " " }
    );
    let frame = place.last().filter(|frame| frame.line > 0);
    if let Some(source) = frame.and_then(|frame| (view.source)(&frame.file, frame.line)) {
        text.push_str(&format!(": {}", fit(one_line(&source).trim(), 120)));
    }
    text
}

/// Instructions that stalled ones wait for.
fn waited_for(kernel: &KernelStalls) -> BTreeSet<usize> {
    let why = kernel.instructions.iter().flat_map(|i| &i.why);
    let why = why.filter(|(reason, ..)| *reason != StallReason::Active);
    why.flat_map(|(_, _, why)| &why.producers)
        .map(|p| p.instruction)
        .collect()
}

/// Offsets that branches lead to.
pub(in crate::export) fn targets(kernel: &KernelStalls) -> BTreeSet<u32> {
    let code = kernel.code.as_ref().ok();
    let all = code.map_or(&[][..], |c| c.decoded.instructions.as_slice());
    let mut found = BTreeSet::new();
    for instruction in all {
        match &instruction.flow {
            Flow::Jump { target }
            | Flow::Call {
                target: Some(target),
            } => {
                found.insert(*target);
            }
            Flow::Branch { targets } => found.extend(targets),
            _ => {}
        }
    }
    found
}
