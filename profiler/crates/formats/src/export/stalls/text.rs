//! The report for a terminal.

use super::names::{attributes, line_name, offset, place_note, syntax, why_text};
use super::{By, StallView, kernel_name, percent, reasons};
use crate::export::ExportError;
use crate::export::text::{fit, grouped, one_line};
use aiprof_model::profile::StallReason;
use aiprof_trace::analyze::device_stalls::{InstructionStalls, KernelStalls, StallReport, meaning};
use std::fmt::Write as _;
use std::io::Write;

/// Writes the report as text.
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
    let samples = |kernel: &KernelStalls| kernel.samples.total();
    let (kernels, hidden) = view.shown(&report.kernels, page.whole, samples);
    page.kernels(&kernels, hidden);
    if view.by != By::Kernel {
        for kernel in &kernels {
            page.kernel(kernel);
        }
    }
    out.write_all(page.text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// The text under construction.
pub(super) struct StallPage<'a> {
    view: &'a StallView<'a>,
    /// All samples.
    pub(super) whole: u64,
    pub(super) text: String,
}

impl<'a> StallPage<'a> {
    pub(super) fn new(view: &'a StallView<'a>, whole: u64) -> Self {
        Self {
            view,
            whole,
            text: String::new(),
        }
    }

    fn width(&self) -> usize {
        self.view.width.max(40)
    }

    pub(super) fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    pub(super) fn heading(&mut self, heading: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let heading = fit(heading, self.width());
        match self.view.color {
            true => self.line(&format!("\x1b[1m{heading}\x1b[0m")),
            false => self.line(&heading),
        }
    }

    /// A paragraph, broken at spaces; its lines begin at a column, but the first one
    /// with `first`.
    pub(super) fn paragraph(&mut self, first: &str, column: usize, paragraph: &str) {
        let mut line = format!("{first:<column$}");
        let mut is_empty = true;
        for word in one_line(paragraph).split_whitespace() {
            let room = self.width().saturating_sub(line.chars().count());
            if !is_empty && word.chars().count() + 1 > room {
                self.line(&line);
                line = " ".repeat(column);
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
        self.line(&line);
    }

    pub(super) fn opening(&mut self, report: &StallReport) {
        self.heading(&one_line(&report.title));
        let stalled = percent(report.samples.stalled(), self.whole);
        let count = report.kernels.len() as u64;
        let kernels = if count == 1 { "kernel" } else { "kernels" };
        self.paragraph(
            "",
            0,
            &format!(
                "{} samples of {} {kernels}, {stalled:.1}% of them stalled: {}",
                grouped(self.whole),
                grouped(count),
                reasons(&report.samples, StallReason::ALL.len()),
            ),
        );
        for note in &report.notes {
            self.paragraph("*", 2, note);
        }
    }

    /// A part of all samples.
    fn share(&self, count: u64) -> String {
        let percent = percent(count, self.whole);
        let share = format!("{percent:5.1}%");
        match percent {
            p if self.view.color && p >= 10.0 => format!("\x1b[31m{share}\x1b[0m"),
            p if self.view.color && p >= 1.0 => format!("\x1b[33m{share}\x1b[0m"),
            _ => share,
        }
    }

    fn rest(&mut self, hidden: usize, what: &str) {
        if hidden > 0 {
            self.line(&format!("  ... and {} more {what}", grouped(hidden as u64)));
        }
    }

    fn kernels(&mut self, kernels: &[&KernelStalls], hidden: usize) {
        self.heading("Kernels");
        self.line("   share     samples  stalled  most              kernel");
        for kernel in kernels {
            let total = kernel.samples.total();
            let main = kernel.samples.main_stall();
            let main = main.map_or(String::new(), |(reason, count)| {
                format!("{:<10}{:5.1}%", reason.name(), percent(count, total))
            });
            let row = format!(
                "  {}  {:>10}   {:5.1}%  {main:<16}  {}",
                self.share(total),
                grouped(total),
                percent(kernel.samples.stalled(), total),
                fit(
                    &kernel_name(kernel),
                    self.width().saturating_sub(49).max(16)
                ),
            );
            self.line(&row);
        }
        self.rest(hidden, "kernels");
    }

    pub(super) fn kernel_head(&mut self, kernel: &KernelStalls) {
        self.heading(&kernel_name(kernel));
        let mut about = vec![one_line(&kernel.device)];
        about.extend(attributes(kernel));
        if let Ok(code) = &kernel.code {
            about.push(format!("code from {}", one_line(&code.origin)));
        }
        about.retain(|text| !text.is_empty());
        self.paragraph("", 2, &about.join(", "));
        match &kernel.code {
            Ok(code) if !code.note.is_empty() => self.paragraph("  *", 4, &code.note),
            Ok(_) => {}
            Err(missing) => self.paragraph("  *", 4, missing),
        }
        if kernel.astray > 0 {
            let astray = format!(
                "{} samples are at offsets without an instruction; the code may be from another \
                 build",
                grouped(kernel.astray)
            );
            self.paragraph("  *", 4, &astray);
        }
        for hint in &kernel.hints {
            self.paragraph("  >", 4, hint);
        }
    }

    fn kernel(&mut self, kernel: &KernelStalls) {
        self.kernel_head(kernel);
        let has_lines = kernel.lines.iter().any(|line| !line.place.is_empty());
        match self.view.by {
            By::Kernel => {}
            By::Line => self.lines(kernel),
            By::Instruction => {
                if has_lines {
                    self.lines(kernel);
                }
                self.instructions(kernel);
            }
            By::Reason => self.by_reason(kernel),
        }
    }

    fn lines(&mut self, kernel: &KernelStalls) {
        let (lines, hidden) = self
            .view
            .shown(&kernel.lines, self.whole, |l| l.samples.total());
        self.line("");
        self.line("   share     samples  line");
        for line in lines {
            let total = line.samples.total();
            let name = match line_name(&line.place) {
                name if name.is_empty() => "[line not known]".to_owned(),
                name => name,
            };
            let first = format!("  {}  {:>10}  ", self.share(total), grouped(total));
            let note = match place_note(&line.place) {
                note if note.is_empty() => String::new(),
                note => format!(" {note}"),
            };
            let text = format!("{name}{note}: {}", reasons(&line.samples, 3));
            self.row(&first, &text);
            if let Some(frame) = line.place.last()
                && let Some(source) = (self.view.source)(&frame.file, frame.line)
            {
                let room = self.width().saturating_sub(24);
                let source = fit(one_line(&source).trim(), room);
                self.line(&format!("{}| {source}", " ".repeat(22)));
            }
        }
        self.rest(hidden, "lines");
    }

    /// A row whose last column is broken into lines; `first` may have colours in it.
    fn row(&mut self, first: &str, text: &str) {
        const COLUMN: usize = 22;
        let start = self.text.len();
        self.paragraph("", COLUMN, text);
        self.text.replace_range(start..start + COLUMN, first);
    }

    fn instructions(&mut self, kernel: &KernelStalls) {
        let samples = |i: &InstructionStalls| i.samples.total();
        let (shown, hidden) = self.view.shown(&kernel.instructions, self.whole, samples);
        self.line("");
        self.line("   share     samples  instruction");
        for stalled in shown {
            let total = stalled.samples.total();
            self.instruction(kernel, stalled, total);
            for (reason, count, why) in &stalled.why {
                let first = format!("{:>24}{} {}: ", "", reason.name(), grouped(*count));
                self.paragraph(&first, 26, &why_text(kernel, why));
            }
            if stalled.why.is_empty() {
                for (reason, count) in stalled.samples.reasons() {
                    let first = format!("{:>24}{} {}: ", "", reason.name(), grouped(count));
                    self.paragraph(&first, 26, meaning(reason));
                }
            }
        }
        self.rest(hidden, "instructions");
    }

    fn instruction(&mut self, kernel: &KernelStalls, stalled: &InstructionStalls, count: u64) {
        let first = format!("  {}  {:>10}  ", self.share(count), grouped(count));
        let line = match line_name(&stalled.place) {
            line if line.is_empty() => String::new(),
            line => format!("  {line}"),
        };
        let text = format!("{} {}{line}", offset(stalled), syntax(kernel, stalled));
        self.row(&first, &text);
    }

    /// For each reason its instructions.
    fn by_reason(&mut self, kernel: &KernelStalls) {
        for (reason, count) in kernel.samples.reasons() {
            let of_reason = |i: &InstructionStalls| i.samples.of(reason);
            let with = kernel.instructions.iter().filter(|i| of_reason(i) > 0);
            let with: Vec<InstructionStalls> = with.cloned().collect();
            let (shown, hidden) = self.view.shown(&with, self.whole, of_reason);
            self.line("");
            let head = format!("{} {}: {}", reason.name(), grouped(count), meaning(reason));
            self.paragraph("", 2, &head);
            for stalled in shown {
                self.instruction(kernel, stalled, of_reason(stalled));
                let own = stalled.why.iter().find(|(of, ..)| *of == reason);
                if let Some((.., why)) = own {
                    self.paragraph("", 24, &why_text(kernel, why));
                }
            }
            self.rest(hidden, "instructions");
        }
    }
}

/// A bar of at most `most` characters.
pub(super) fn bar(count: u64, whole: u64, most: usize) -> String {
    let length = percent(count, whole) / 100.0 * most as f64;
    let mut bar = String::new();
    let _ = write!(bar, "{}", "#".repeat(length.ceil() as usize));
    bar
}
