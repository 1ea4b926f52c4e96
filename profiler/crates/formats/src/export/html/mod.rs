//! A report as one page: everything is in the one file, nothing is loaded, and it
//! works from a disk. Without scripts everything but the plots can be read; with them
//! tables can be sorted and chosen from and plots can be zoomed.
//!
//! What comes from traces is text wherever it stands (`escape`). Should that fail,
//! the page's policy still runs no script but its own, which it knows by their digest.

mod escape;
mod plots;
pub mod roofline;
mod sections;
pub mod stalls;
mod table;

use aiprof_tables::report as tables;
use aiprof_trace::analyze::report::{Finding, Report, Weight};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::io::{self, Write};
use table::{grouped, number, time};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Findings that are shown.
const FINDINGS: usize = 300;
/// Names of files in the page's title.
const NAMES: usize = 3;

/// A part of the page.
struct Section {
    /// What links lead to.
    id: &'static str,
    title: &'static str,
    body: String,
}

/// Writes a report as a page.
///
/// # Errors
/// As `out`.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let sections = sections(report);
    let title = escape::text(&title(report));
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"generator\" content=\"aiprof {}\">\n\
         <title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n",
        policy(),
        escape::text(report.version),
    )?;
    write_head(report, out)?;
    out.write_all(b"<div class=\"page\">\n<nav aria-label=\"Sections\"><ul>\n")?;
    for Section { id, title, .. } in &sections {
        writeln!(out, "<li><a href=\"#{id}\">{title}</a></li>")?;
    }
    out.write_all(b"</ul></nav>\n<main id=\"main\">\n")?;
    for Section { id, title, body } in &sections {
        writeln!(
            out,
            "<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n\
             <h2 id=\"{id}-title\">{title}</h2>\n{body}</section>"
        )?;
    }
    write!(
        out,
        "</main>\n</div>\n<footer>Written by aiprof {}. Times are in microseconds (\u{b5}s) of the \
         trace\u{2019}s own clock unless stated otherwise; \u{2013}: unknown.</footer>\n\
         <script type=\"application/json\" id=\"data\">{}</script>\n\
         <script>{SCRIPT}</script>\n</body>\n</html>\n",
        escape::text(report.version),
        plots::data(report),
    )
}

/// What a browser may do for this page: draw it, and run its one script.
fn policy() -> String {
    format!(
        "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; \
         form-action 'none'",
        digest(STYLE),
        digest(SCRIPT)
    )
}

/// What distinguishes the begins of pages without scripts.
struct PlainPage<'a> {
    /// What the page is of, as it is given.
    title: &'a str,
    /// What kind of page it is, for the window's title.
    kind: &'a str,
    /// Its heading, as it is given.
    heading: &'a str,
    /// Style beside [`STYLE`].
    style: &'a str,
}

impl PlainPage<'_> {
    /// Writes all up to the end of the header.
    fn begin(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { kind, style, .. } = self;
        let (title, heading) = (escape::text(self.title), escape::text(self.heading));
        write!(
            out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
             style-src {} {}; base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta name=\"generator\" content=\"aiprof {}\">\n\
             <title>{title} \u{2013} {kind}</title>\n\
             <style>{STYLE}</style>\n<style>{style}</style>\n</head>\n<body>\n\
             <a class=\"skip\" href=\"#main\">Skip to content</a>\n<header>\n\
             <div><h1>{heading}</h1>\n<p class=\"names\"><bdi>{title}</bdi></p></div>\n</header>\n",
            digest(STYLE),
            digest(style),
            env!("CARGO_PKG_VERSION"),
        )
    }
}

/// As a policy names a script or style (Content Security Policy Level 3, 2.3.1).
fn digest(of: &str) -> String {
    let digest = Sha256::digest(of.as_bytes());
    format!("'sha256-{}'", base64(&digest))
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for letter in 0..4 {
            let index = (bits >> (18 - 6 * letter) & 63) as usize;
            let letter = match letter <= chunk.len() {
                true => LETTERS.get(index).copied().unwrap_or(b'='),
                false => b'=',
            };
            out.push(char::from(letter));
        }
    }
    out
}

fn title(report: &Report) -> String {
    let names = report.inputs.iter().take(NAMES);
    let names = names.map(|input| input.path.rsplit('/').next().unwrap_or(&input.path));
    let names: Vec<&str> = names.collect();
    let names = names.join(", ");
    match report.inputs.len().saturating_sub(NAMES) {
        0 => format!("{names} \u{2013} aiprof"),
        more => format!("{names} and {more} more \u{2013} aiprof"),
    }
}

fn write_head(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let names = report.inputs.iter().take(NAMES);
    let names: Vec<String> = names
        .map(|input| format!("<bdi>{}</bdi>", escape::text(&input.path)))
        .collect();
    let more = match report.inputs.len().saturating_sub(NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    writeln!(
        out,
        "<a class=\"skip\" href=\"#main\">Skip to content</a>\n<header>\n\
         <div><h1>Trace analysis</h1>\n<p class=\"names\">{}{more}</p></div>\n\
         <button type=\"button\" id=\"theme\" hidden>Dark</button>\n</header>",
        names.join(", ")
    )?;
    let synthetic = report.inputs.iter().filter(|input| input.is_synthetic);
    let (synthetic, all) = (synthetic.count(), report.inputs.len());
    if synthetic > 0 {
        writeln!(
            out,
            "<p class=\"synthetic\" role=\"note\"><strong>Synthetic.</strong> {synthetic} of \
             {all} traces are marked as synthetic: they were generated, not recorded.</p>"
        )?;
    }
    Ok(())
}

fn sections(report: &Report) -> Vec<Section> {
    let section = |id, title, body| Section { id, title, body };
    let mut all = vec![section("findings", "Findings", findings(report))];
    let jobs = "<p>Jobs with device events outside their round trip.</p>\n";
    let alone = |text, table| sections::alone(text, table, report);
    let parts = [
        ("ranks", "Ranks", alone("", &tables::ACTIVE)),
        ("plots", "Over time", plots::body(report)),
        ("kernels", "Kernels", sections::kernels(report)),
        (
            "untimed",
            "Launches without device times",
            sections::untimed(report),
        ),
        ("categories", "Categories", sections::categories(report)),
        ("iterations", "Iterations", sections::iterations(report)),
        (
            "communication",
            "Communication",
            sections::communication(report),
        ),
        ("clocks", "Clocks", alone("", &tables::CLOCKS)),
        ("jobs", "Jobs", alone(jobs, &tables::JOBS)),
        ("alignment", "Alignment", sections::alignment(report)),
        ("checks", "Checks", sections::checks(report)),
        ("inputs", "Inputs", sections::inputs(report)),
    ];
    let parts = parts.into_iter();
    all.extend(parts.filter_map(|(id, title, body)| Some(section(id, title, body?))));
    all
}

fn findings(report: &Report) -> String {
    let mut out = cards(report);
    if report.findings.is_empty() {
        out.push_str("<p>Nothing stands out.</p>\n");
    }
    if report.findings.iter().any(|one| one.cost_ns.is_some()) {
        out.push_str(
            "<p>Findings with a cost come first. A cost is the most time that the finding can \
             save. Costs overlap and do not add up.</p>\n",
        );
    }
    out.push_str("<ul class=\"findings\">\n");
    for finding in report.findings.iter().take(FINDINGS) {
        write_finding(finding, &mut out);
    }
    out.push_str("</ul>\n");
    let left_out = report.findings.len().saturating_sub(FINDINGS);
    if left_out > 0 {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            out,
            "<p class=\"cut\">{left_out} further findings are not on this page.</p>"
        );
    }
    out
}

fn write_finding(finding: &Finding, out: &mut String) {
    let (class, word) = match finding.weight {
        Weight::Error => ("error", "Error"),
        Weight::Warning => ("warning", "Warning"),
        Weight::Note => ("note", "Note"),
    };
    let cost = finding.cost_ns.map_or(String::new(), |ns| {
        let cost = time(ns as f64 / 1000.0);
        format!("<span class=\"weight\">at most {cost}</span> ")
    });
    let _ = write!(
        out,
        "<li class=\"{class}\"><p><span class=\"weight\">{word}</span> {cost}{}</p>",
        escape::text(&finding.text)
    );
    if !finding.evidence.is_empty() {
        out.push_str("<ul class=\"evidence\">");
        for line in &finding.evidence {
            let _ = write!(out, "<li>{}</li>", escape::text(line));
        }
        out.push_str("</ul>");
    }
    if let Some(advice) = finding.advice {
        let _ = write!(out, "<p class=\"advice\">Try: {}</p>", escape::text(advice));
    }
    out.push_str("</li>\n");
}

/// The trace in a few numbers.
fn cards(report: &Report) -> String {
    let calls: usize = report.kernels.iter().map(|k| k.lengths.calls).sum();
    let count = |count: usize| grouped(count as u64);
    let read: usize = report.inputs.iter().map(|input| input.events).sum();
    let mut cards = vec![
        ("length", time(report.elapsed_us)),
        ("events read", count(read)),
    ];
    if !report.active.is_empty() {
        let busy = report.active.iter().map(|row| row.busy_percent);
        let busy = busy.sum::<f64>() / report.active.len() as f64;
        cards.push(("devices with work", count(report.active.len())));
        cards.push(("kernel calls", count(calls)));
        cards.push(("devices busy", format!("{} %", number(busy, 1))));
    }
    if let Some(watts) = report.power.as_ref().and_then(|p| p.mean_with_kernels) {
        cards.push(("with kernels", format!("{} W", number(watts, 1))));
    }
    let problems: usize = report.inputs.iter().map(|one| one.problems.len()).sum();
    if problems > 0 {
        cards.push(("problems in files", count(problems)));
    }
    let mut out = String::from("<dl class=\"cards\">\n");
    for (name, value) in cards {
        let _ = writeln!(out, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    out.push_str("</dl>\n");
    out
}

#[cfg(test)]
mod tests;
