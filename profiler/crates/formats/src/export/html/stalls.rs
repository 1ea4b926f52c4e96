//! Stalls of device kernels as one page, without scripts: kernels, lines, instructions
//! and why they stall, and the disassembly with links to what is waited for.

mod listing;

use super::table::{self, cut};
use super::{PlainPage, escape};
use crate::export::ExportError;
use crate::export::stalls::{
    StallView, attributes, kernel_name, line_name, offset, percent, place_note, reasons, role_name,
    syntax,
};
use crate::export::text::{fit, grouped, one_line};
use aiprof_model::profile::StallReason;
use aiprof_tables::Table;
use aiprof_trace::analyze::device_stalls::{
    InstructionStalls, KernelStalls, Producer, StallReport, Tally, Why, meaning,
};
use std::fmt::Write as _;
use std::io::Write;

const OWN_STYLE: &str = include_str!("stalls.css");
/// Most instructions of a listing.
const LISTED: usize = 20_000;
/// Most instructions of all listings together.
const ALL_LISTED: usize = 60_000;

/// Writes the page; `open`: the disassembly is unfolded.
///
/// # Errors
/// [`ExportError::Io`] when `out` fails.
pub fn write(
    report: &StallReport,
    view: &StallView<'_>,
    open: bool,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let whole = report.samples.total();
    let (kernels, hidden) = view.shown(&report.kernels, whole, |k| k.samples.total());
    let page = PlainPage {
        title: &report.title,
        kind: "device stalls",
        heading: "Device stalls",
        style: OWN_STYLE,
    };
    page.begin(out)?;
    out.write_all(
        b"<div class=\"page\">\n<nav aria-label=\"Kernels\"><ul>\n<li><a href=\"#all\">All</a></li>\n",
    )?;
    for (number, kernel) in kernels.iter().enumerate() {
        let name = escape::text(&fit(&kernel_name(kernel), 60));
        writeln!(out, "<li><a href=\"#k{number}\">{name}</a></li>")?;
    }
    out.write_all(b"</ul></nav>\n<main id=\"main\">\n")?;
    out.write_all(overview(report, &kernels, hidden).as_bytes())?;
    let mut left = ALL_LISTED;
    for (number, kernel) in kernels.into_iter().enumerate() {
        let section = KernelSection {
            kernel,
            number,
            view,
            whole,
        };
        out.write_all(section.write(open, &mut left).as_bytes())?;
    }
    write!(
        out,
        "</main>\n</div>\n<footer>Written by aiprof {}. Shares are of all samples unless stated \
         otherwise.</footer>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    )?;
    out.flush()?;
    Ok(())
}

fn overview(report: &StallReport, kernels: &[&KernelStalls], hidden: usize) -> String {
    let whole = report.samples.total();
    let mut out = String::from(
        "<section id=\"all\" aria-labelledby=\"all-title\">\n<h2 id=\"all-title\">All kernels</h2>\n",
    );
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        out,
        "<dl class=\"cards\">\n<div><dt>samples</dt><dd>{}</dd></div>\n\
         <div><dt>stalled</dt><dd>{:.1} %</dd></div>\n<div><dt>kernels</dt><dd>{}</dd></div>\n</dl>",
        grouped(whole),
        percent(report.samples.stalled(), whole),
        grouped(report.kernels.len() as u64),
    );
    for note in &report.notes {
        let _ = writeln!(out, "<p class=\"how\">{}</p>", escape::text(note));
    }
    stack(&report.samples, &mut out);
    const COLUMNS: &str = "
        name kernel: demangled name
        name device: sampled device
        bar share: share of all samples, in percent
        0 samples: number of samples
        1 stalled: share of its samples in which no instruction was issued, in percent
        name reasons: the most frequent reasons";
    let row = |kernel: &&KernelStalls| {
        let total = kernel.samples.total();
        vec![
            kernel_name(kernel).into(),
            kernel.device.as_str().into(),
            percent(total, whole).into(),
            total.into(),
            percent(kernel.samples.stalled(), total).into(),
            reasons(&kernel.samples, 3).into(),
        ]
    };
    let table = Table::described("Kernels", COLUMNS, kernels.iter().map(row));
    table::write(&table, false, &mut out);
    cut(hidden, "kernels", &mut out);
    out.push_str("</section>\n");
    out
}

/// A bar of the reasons' shares, and what they are.
fn stack(samples: &Tally, out: &mut String) {
    let total = samples.total();
    out.push_str(
        "<svg class=\"stack\" viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
    );
    let mut from = 0.0;
    for (reason, count) in samples.reasons() {
        let width = percent(count, total);
        let _ = write!(
            out,
            "<rect class=\"s{}\" x=\"{from:.3}\" width=\"{width:.3}\" height=\"4\"/>",
            reason as usize
        );
        from += width;
    }
    out.push_str("</svg>\n<ul class=\"reasons\">\n");
    for (reason, count) in samples.reasons() {
        let _ = writeln!(
            out,
            "<li title=\"{}\"><span class=\"swatch s{}\"></span>{} {:.1} % ({})</li>",
            escape::text(meaning(reason)),
            reason as usize,
            reason.name(),
            percent(count, total),
            grouped(count)
        );
    }
    out.push_str("</ul>\n");
}

/// A kernel's part of the page.
struct KernelSection<'a> {
    kernel: &'a KernelStalls,
    number: usize,
    view: &'a StallView<'a>,
    /// All samples of the report.
    whole: u64,
}

impl KernelSection<'_> {
    fn write(&self, open: bool, left: &mut usize) -> String {
        let (kernel, number) = (self.kernel, self.number);
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<section id=\"k{number}\" aria-labelledby=\"k{number}-title\">\n\
             <h2 id=\"k{number}-title\"><bdi>{}</bdi></h2>",
            escape::text(&kernel_name(kernel))
        );
        self.about(&mut out);
        stack(&kernel.samples, &mut out);
        if kernel.lines.iter().any(|line| !line.place.is_empty()) {
            self.lines(&mut out);
        }
        self.instructions(&mut out);
        let count = kernel
            .code
            .as_ref()
            .map_or(0, |code| code.decoded.instructions.len());
        if count > 0 && *left > 0 {
            self.listing(open, count.min(LISTED).min(*left), &mut out);
            *left = left.saturating_sub(count);
        } else if count > 0 {
            out.push_str(
                "<p class=\"cut\">The disassembly is left out because the page would be too \
                 long.</p>\n",
            );
        }
        out.push_str("</section>\n");
        out
    }

    fn about(&self, out: &mut String) {
        let kernel = self.kernel;
        let mut about = vec![kernel.device.clone()];
        about.extend(attributes(kernel));
        let mut notes = Vec::new();
        match &kernel.code {
            Ok(code) => {
                about.push(format!("code from {}", code.origin));
                notes.extend(Some(&code.note).filter(|note| !note.is_empty()));
            }
            Err(missing) => notes.push(missing),
        }
        about.retain(|text| !text.is_empty());
        let _ = writeln!(
            out,
            "<p class=\"names\">{}</p>",
            escape::text(&about.join(", "))
        );
        for note in notes {
            let _ = writeln!(out, "<p class=\"how\">{}</p>", escape::text(note));
        }
        if kernel.astray > 0 {
            let _ = writeln!(
                out,
                "<p class=\"how\">{} samples are at offsets without an instruction. The code may \
                 be from another build.</p>",
                grouped(kernel.astray)
            );
        }
        if !kernel.hints.is_empty() {
            out.push_str("<ul class=\"findings\">\n");
            for hint in &kernel.hints {
                let _ = writeln!(out, "<li class=\"note\"><p>{}</p></li>", escape::text(hint));
            }
            out.push_str("</ul>\n");
        }
    }

    fn lines(&self, out: &mut String) {
        out.push_str("<h3>Lines</h3>\n");
        let samples =
            |line: &aiprof_trace::analyze::device_stalls::LineStalls| line.samples.total();
        let (lines, hidden) = self.view.shown(&self.kernel.lines, self.whole, samples);
        const COLUMNS: &str = "
            bar share: share of the kernel's samples, in percent
            0 samples: number of samples of its instructions
            name line: file and line, and where it is inlined
            name source: source text
            name reasons: the most frequent reasons";
        let total = self.kernel.samples.total();
        let row = |line: &&aiprof_trace::analyze::device_stalls::LineStalls| {
            let last = line.place.last();
            let source = last.and_then(|frame| (self.view.source)(&frame.file, frame.line));
            let name = match line_name(&line.place) {
                name if name.is_empty() => "[line not known]".to_owned(),
                name => format!("{name} {}", place_note(&line.place)),
            };
            vec![
                percent(line.samples.total(), total).into(),
                line.samples.total().into(),
                name.trim().into(),
                one_line(&source.unwrap_or_default()).trim().into(),
                reasons(&line.samples, 3).into(),
            ]
        };
        let table = Table::described("Lines", COLUMNS, lines.iter().map(row));
        table::write(&table, false, out);
        cut(hidden, "lines", out);
    }

    fn instructions(&self, out: &mut String) {
        let kernel = self.kernel;
        let samples = |i: &InstructionStalls| i.samples.total();
        let (shown, hidden) = self.view.shown(&kernel.instructions, self.whole, samples);
        out.push_str(
            "<h3>Instructions</h3>\n<div class=\"scroll\" role=\"region\" \
             aria-label=\"Instructions\" tabindex=\"0\">\n<table><thead><tr>\
             <th scope=\"col\" class=\"n\" title=\"share of the kernel's samples\">share</th>\
             <th scope=\"col\" class=\"n\">samples</th><th scope=\"col\">offset</th>\
             <th scope=\"col\">instruction</th><th scope=\"col\">line</th>\
             <th scope=\"col\">why it stalls</th></tr></thead>\n<tbody>\n",
        );
        for stalled in shown {
            let count = stalled.samples.total();
            let _ = write!(
                out,
                "<tr><td class=\"n\">{:.1} %</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td class=\"code\">{}</td><td>{}</td><td><ul class=\"why\">",
                percent(count, kernel.samples.total()),
                grouped(count),
                self.link(stalled.index, &offset(stalled)),
                escape::text(&syntax(kernel, stalled)),
                escape::text(&line_name(&stalled.place)),
            );
            for (reason, count, why) in &stalled.why {
                self.why(*reason, *count, why, out);
            }
            if stalled.why.is_empty() {
                let _ = write!(
                    out,
                    "<li>{}</li>",
                    escape::text(&reasons(&stalled.samples, 10))
                );
            }
            out.push_str("</ul></td></tr>\n");
        }
        out.push_str("</tbody></table></div>\n");
        cut(hidden, "instructions", out);
    }

    /// A link to an instruction in the listing.
    fn link(&self, index: Option<usize>, text: &str) -> String {
        let text = escape::text(text);
        match index.and_then(|index| self.kernel.instruction(index)) {
            Some(found) => format!(
                "<a href=\"#k{}-{:x}\">{text}</a>",
                self.number, found.offset
            ),
            None => text,
        }
    }

    fn why(&self, reason: StallReason, count: u64, why: &Why, out: &mut String) {
        let _ = write!(
            out,
            "<li><span class=\"swatch s{}\"></span> {} {}: {}",
            reason as usize,
            reason.name(),
            grouped(count),
            escape::text(&why.text)
        );
        for (i, producer) in why.producers.iter().enumerate() {
            out.push_str(if i == 0 { ": " } else { "; " });
            out.push_str(&self.producer(producer));
        }
        if why.more > 0 {
            let _ = write!(out, "; and {} more", why.more);
        }
        if !why.open.is_empty() {
            let _ = write!(out, " ({})", escape::text(&why.open));
        }
        out.push_str("</li>");
    }

    fn producer(&self, producer: &Producer) -> String {
        let Some(found) = self.kernel.instruction(producer.instruction) else {
            return String::new();
        };
        let link = self.link(Some(producer.instruction), &format!("{:#x}", found.offset));
        let way = match (producer.direct, producer.looped) {
            (false, true) => ", in the previous loop iteration",
            (true, true) => ", in this or the previous loop iteration",
            _ => "",
        };
        let line = line_name(&self.kernel.place(producer.instruction));
        let line = if line.is_empty() {
            line
        } else {
            format!(", {line}")
        };
        let name = format!("{} ({}{line})", found.mnemonic, role_name(producer.role));
        format!("{link} {}{way}", escape::text(&name))
    }
}
