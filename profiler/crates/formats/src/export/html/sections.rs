//! The parts of a page with tables. Each gives nothing where there is nothing to show.

use super::escape;
use super::table::{self, ROWS, grouped, number};
use aiprof_tables::report::{self, ReportTable};
use aiprof_trace::analyze::report::{Kernel, Report};
use std::fmt::Write as _;

/// A table alone, after a text.
pub(super) fn alone(text: &str, of: &ReportTable, report: &Report) -> Option<String> {
    let mut out = text.to_owned();
    table::write(&of.of(report)?, false, &mut out);
    Some(out)
}

/// Two tables, the second one below a heading; nothing where both are empty.
fn both(
    first: &ReportTable,
    second: (&str, &ReportTable, usize),
    report: &Report,
) -> Option<String> {
    let (heading, second, most) = second;
    let mut out = alone("", first, report).unwrap_or_default();
    let second = second.first(report, most);
    if !second.rows.is_empty() {
        let _ = writeln!(out, "<h3>{heading}</h3>");
        table::write(&second, false, &mut out);
    }
    (!out.is_empty()).then_some(out)
}

/// Kernels by rank; where there are too many, those that take the most time.
pub(super) fn kernels(report: &Report) -> Option<String> {
    if report.kernels.is_empty() {
        return None;
    }
    let (kept, left_out) = longest(&report.kernels);
    let has_power = kept.iter().any(|kernel| kernel.joules.is_some());
    let has_utilization = kept.iter().any(|k| k.utilization_percent.is_some());
    let mut kernels = report::kernels(kept);
    kernels.keep(|column| match column {
        "Mean W" | "Energy J" => has_power,
        "Utilization %" => has_utilization,
        "Device" => report.has_several_devices(),
        _ => true,
    });
    let mut out = String::new();
    table::write(&kernels, true, &mut out);
    if let Some((count, percent)) = left_out {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            out,
            "<p class=\"cut\">{} more kernels, with {} % of the kernel time, are not on this page. \
             They are the ones with the least time. The tables that are written beside a trace \
             contain all kernels.</p>",
            grouped(count as u64),
            number(percent, 2)
        );
    }
    Some(out)
}

/// The kernels with the most time, in their order; how many others there are, and
/// their part of the time in percent.
fn longest(kernels: &[Kernel]) -> (Vec<&Kernel>, Option<(usize, f64)>) {
    if kernels.len() <= ROWS {
        return (kernels.iter().collect(), None);
    }
    let time = |index: &usize| kernels.get(*index).map_or(0.0, |k| k.lengths.total_us);
    let mut order: Vec<usize> = (0..kernels.len()).collect();
    order.sort_by(|a, b| time(b).total_cmp(&time(a)));
    let all: f64 = order.iter().map(time).sum();
    let rest: f64 = order.iter().skip(ROWS).map(time).sum();
    order.truncate(ROWS);
    order.sort_unstable();
    let kept = order.iter().filter_map(|index| kernels.get(*index));
    let percent = if all > 0.0 { rest / all * 100.0 } else { 0.0 };
    (kept.collect(), Some((kernels.len() - ROWS, percent)))
}

/// Launches whose devices report no times.
pub(super) fn untimed(report: &Report) -> Option<String> {
    let all = report.details.untimed_launches.len();
    if all == 0 {
        return None;
    }
    let mut out = String::from(
        "<p>The device recorded no times for these launches. Each ran between its launch and the \
         end of the wait for it.</p>\n",
    );
    table::write(&report::UNTIMED.first(report, ROWS), all > 10, &mut out);
    in_total(all, ROWS, "kernels", &mut out);
    Some(out)
}

/// Writes how many there are, where it is more than `most`.
fn in_total(count: usize, most: usize, what: &str, out: &mut String) {
    if count > most {
        let _ = writeln!(
            out,
            "<p class=\"cut\">There are {} {what} in total.</p>",
            grouped(count as u64)
        );
    }
}

/// Utilization by category and rank.
pub(super) fn categories(report: &Report) -> Option<String> {
    let ranks = report::UTILIZATION.of(report);
    if report.details.categories.is_empty() && ranks.is_none() {
        return None;
    }
    let mut out = String::from(
        "<p>Ideal times come from the compiler. Utilization is the ideal time in percent of the \
         measured time. Above 100 %, times are wrong or kernels were matched wrongly.</p>\n",
    );
    if let Some(ranks) = ranks {
        table::write(&ranks, false, &mut out);
        out.push_str("<h3>By category</h3>\n");
    }
    let categories = report::CATEGORIES.first(report, usize::MAX);
    table::write(&categories, false, &mut out);
    Some(out)
}

/// What repeats, and times of tokens.
pub(super) fn iterations(report: &Report) -> Option<String> {
    let tokens = ("Tokens", &report::TOKENS, usize::MAX);
    both(&report::ITERATIONS, tokens, report)
}

/// Computation against communication, and collectives.
pub(super) fn communication(report: &Report) -> Option<String> {
    let collectives = ("Collectives", &report::COLLECTIVES, ROWS + 1);
    let mut out = both(&report::COMMUNICATION, collectives, report)?;
    let all = report.details.collectives.len();
    in_total(all, ROWS + 1, "collectives", &mut out);
    Some(out)
}

/// How ranks were brought together.
pub(super) fn alignment(report: &Report) -> Option<String> {
    let ranks = report.ranks.as_ref()?;
    let (before, after) = ranks.reversed;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<p>{} messages align the clocks of the ranks, because no message arrives before it was \
         sent. Messages that arrived before they were sent: {before} before the alignment, {after} \
         after it.</p>",
        grouped(ranks.messages as u64)
    );
    if ranks.contradiction_us > 0.0 {
        let _ = writeln!(
            out,
            "<p><strong>Messages contradict each other by {} \u{b5}s.</strong></p>",
            number(ranks.contradiction_us, 3)
        );
    }
    let shifts = report::SHIFTS.first(report, usize::MAX);
    table::write(&shifts, false, &mut out);
    let cycles = "<h3>Cycles of messages</h3>\n<p>The closure of a cycle of ranks is the total \
                  time of the fastest messages once around it. Shifting clocks does not change the \
                  closure. It is the largest possible error between the clocks of these ranks. If \
                  it is below 0, a clock is wrong.</p>\n";
    out.extend(alone(cycles, &report::CYCLES, report));
    Some(out)
}

/// Faults that were found.
pub(super) fn checks(report: &Report) -> Option<String> {
    let faults = &report.details.faults;
    if faults.is_empty() {
        return None;
    }
    let mut out =
        String::from("<p>Faults in the traces as they were read, before any correction.</p>\n");
    for fault in faults {
        let _ = writeln!(
            out,
            "<h3>{} {}</h3>",
            grouped(fault.count),
            escape::text(&fault.fault)
        );
        table::write(&report::evidence(fault), false, &mut out);
        let left_out = fault.count.saturating_sub(fault.evidence.len() as u64);
        if left_out > 0 {
            let _ = writeln!(
                out,
                "<p class=\"cut\">{} more are counted but not listed.</p>",
                grouped(left_out)
            );
        }
    }
    Some(out)
}

/// Files, and what was wrong with them.
pub(super) fn inputs(report: &Report) -> Option<String> {
    let mut out = alone("", &report::INPUTS, report)?;
    for input in report.inputs.iter().take(ROWS) {
        if input.problems.is_empty() {
            continue;
        }
        let _ = writeln!(
            out,
            "<h3><bdi>{}</bdi></h3>\n<ul>",
            escape::text(&input.path)
        );
        for problem in &input.problems {
            let _ = writeln!(out, "<li>{}</li>", escape::text(problem));
        }
        out.push_str("</ul>\n");
    }
    Some(out)
}
