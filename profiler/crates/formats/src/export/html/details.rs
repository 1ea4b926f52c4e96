//! Tables of what only some traces have: categories, communication, faults.

use super::escape;
use super::table::{Cell, HtmlTable, ROWS, grouped};
use aiprof_analysis::analyze::report::Report;
use std::fmt::Write as _;

/// Utilization by category and rank.
pub(super) fn categories(report: &Report) -> Option<String> {
    let details = &report.details;
    if details.categories.is_empty() && details.utilization.is_empty() {
        return None;
    }
    let mut out = String::from(
        "<p>Ideal times are the compiler\u{2019}s. Utilization is the ideal time in percent of \
         the real one; more than 100 % means that times, or the match of kernels, are wrong.</p>\n",
    );
    if !details.utilization.is_empty() {
        let table = HtmlTable {
            label: "Utilization of ranks",
            heads: &[
                (true, "Rank", "rank"),
                (
                    true,
                    "Utilization %",
                    "mean of kernels with any, weighted by time",
                ),
                (true, "With ms", "time of kernels with utilization"),
                (true, "Without ms", "time of the others"),
            ],
            has_filter: false,
        };
        let rows = details.utilization.iter().map(|row| {
            vec![
                Cell::Number(Some(row.rank as f64), 0),
                Cell::Percent(row.mean_percent),
                Cell::number(row.matmul_us / 1e3, 3),
                Cell::number(row.other_us / 1e3, 3),
            ]
        });
        table.write(rows.collect(), &mut out);
        out.push_str("<h3>By category</h3>\n");
    }
    let table = HtmlTable {
        label: "Utilization by category",
        heads: &[
            (true, "Rank", "rank"),
            (
                false,
                "Phase",
                "TTFT: prefill, ITL: decoding, UNKN: the log does not say",
            ),
            (false, "Category", "as the compiler names it"),
            (true, "Time %", "part of the kernels of its rank and phase"),
            (true, "Time ms", "time of its kernels"),
            (true, "Calls", "calls of its kernels"),
            (true, "Ideal ms", "what they would take at best"),
            (true, "Utilization %", "ideal time in percent of the time"),
        ],
        has_filter: false,
    };
    let rows = details.categories.iter().map(|row| {
        vec![
            Cell::Number(Some(row.rank as f64), 0),
            Cell::text(row.phase),
            Cell::text(&row.name),
            Cell::Percent(row.time_percent),
            Cell::number(row.time_us / 1e3, 3),
            row.calls.into(),
            Cell::number(row.ideal_us / 1e3, 3),
            Cell::Number(row.utilization_percent, 2),
        ]
    });
    table.write(rows.collect(), &mut out);
    Some(out)
}

/// Computation against communication, and collectives.
pub(super) fn communication(report: &Report) -> Option<String> {
    let details = &report.details;
    let mut out = String::new();
    if !details.communication.is_empty() {
        let table = HtmlTable {
            label: "Computation and communication by rank",
            heads: &[
                (true, "Rank", "rank"),
                (
                    true,
                    "Compute ms",
                    "kernels run that are no part of a collective",
                ),
                (true, "Collectives ms", "collectives go on"),
                (true, "Both ms", "both at once"),
                (
                    true,
                    "Hidden %",
                    "part of collectives during which kernels run",
                ),
                (true, "Copies ms", "copies or fills of device memory go on"),
                (
                    true,
                    "Copies hidden %",
                    "part of copies during which kernels run",
                ),
            ],
            has_filter: false,
        };
        let rows = details.communication.iter().map(|row| {
            vec![
                row.rank.into(),
                Cell::number(row.compute_us / 1e3, 3),
                Cell::number(row.communication_us / 1e3, 3),
                Cell::number(row.overlap_us / 1e3, 3),
                Cell::Number(row.overlap_percent, 2),
                Cell::number(row.copy_us / 1e3, 3),
                Cell::Number(row.copy_overlap_percent, 2),
            ]
        });
        table.write(rows.collect(), &mut out);
    }
    collectives(report, &mut out);
    (!out.is_empty()).then_some(out)
}

fn collectives(report: &Report, out: &mut String) {
    let found = &report.details.collectives;
    if found.is_empty() {
        return;
    }
    out.push_str("<h3>Collectives</h3>\n");
    let table = HtmlTable {
        label: "Collective operations",
        heads: &[
            (true, "Begin ms", "on the first rank, since the first event"),
            (false, "Group", "as the trace names it"),
            (false, "Way", "which way its messages went"),
            (true, "Ranks", "how many take part"),
            (
                true,
                "Takes \u{b5}s",
                "from the first rank's begin to the last one's end",
            ),
            (true, "Bytes", "of its largest message"),
            (true, "GB/s", "all bytes by all the time"),
        ],
        has_filter: false,
    };
    let rows = found.iter().map(|one| {
        vec![
            Cell::number(one.start_us / 1e3, 3),
            Cell::text(&one.group),
            Cell::text(&one.algorithm),
            one.parts.len().into(),
            Cell::number(one.elapsed_us, 3),
            Cell::Number(one.bytes.map(|bytes| bytes as f64), 0),
            Cell::Number(one.gigabytes_per_second, 3),
        ]
    });
    table.write(rows.take(ROWS + 1).collect(), out);
    let left_out = found.len().saturating_sub(ROWS + 1);
    if left_out > 0 {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            out,
            "<p class=\"cut\">In all there are {} collectives.</p>",
            grouped(found.len() as u64)
        );
    }
}

/// Launches whose devices tell no times.
pub(super) fn untimed(report: &Report) -> Option<String> {
    let rows = &report.details.untimed_launches;
    if rows.is_empty() {
        return None;
    }
    let mut out = String::from(
        "<p>The device kept no record of these. Each ran at some time from its launch to the end \
         of the wait for it.</p>\n",
    );
    let table = HtmlTable {
        label: "Launches without device times",
        heads: &[
            (true, "Rank", "rank"),
            (false, "Kernel", "its name"),
            (true, "Launches", "how often it was launched"),
            (true, "Within ms", "all of them ran within so much time"),
        ],
        has_filter: rows.len() > 10,
    };
    let cells = rows.iter().take(ROWS).map(|row| {
        vec![
            Cell::Number(row.rank.map(f64::from), 0),
            Cell::text(&row.name),
            row.launches.into(),
            Cell::number(row.within_us / 1e3, 3),
        ]
    });
    table.write(cells.collect(), &mut out);
    if rows.len() > ROWS {
        let _ = writeln!(
            out,
            "<p class=\"cut\">In all there are {} kernels.</p>",
            grouped(rows.len() as u64)
        );
    }
    Some(out)
}

/// Faults that were found.
pub(super) fn checks(report: &Report) -> Option<String> {
    let faults = &report.details.faults;
    if faults.is_empty() {
        return None;
    }
    let mut out = String::from("<p>As the traces were read, before anything was mended.</p>\n");
    for fault in faults {
        let _ = writeln!(
            out,
            "<h3>{} {}</h3>",
            grouped(fault.count),
            escape::text(&fault.fault)
        );
        let table = HtmlTable {
            label: &fault.fault,
            heads: &[
                (true, "Rank", "rank"),
                (false, "Event", "its name"),
                (true, "Begin \u{b5}s", "as the trace has it"),
                (true, "Takes \u{b5}s", "its length"),
                (true, "By \u{b5}s", "by how much it is wrong"),
                (false, "Against", "what it does not agree with"),
                (false, "File", "where it is"),
            ],
            has_filter: false,
        };
        let rows = fault.evidence.iter().map(|event| {
            vec![
                event.rank.into(),
                Cell::text(&event.name),
                Cell::number(event.ts_us, 3),
                Cell::number(event.dur_us, 3),
                Cell::number(event.by_us, 3),
                Cell::text(&event.against),
                Cell::text(&event.file),
            ]
        });
        table.write(rows.collect(), &mut out);
        let left_out = fault.count.saturating_sub(fault.evidence.len() as u64);
        if left_out > 0 {
            let _ = writeln!(
                out,
                "<p class=\"cut\">{} further ones are counted, not listed.</p>",
                grouped(left_out)
            );
        }
    }
    Some(out)
}
