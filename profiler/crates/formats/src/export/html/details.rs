//! Tables of what only some traces have: categories, communication, faults.

use super::escape;
use super::table::{Cell, HtmlTable, ROWS, grouped};
use aiprof_trace::analyze::report::Report;
use std::fmt::Write as _;

/// Utilization by category and rank.
pub(super) fn categories(report: &Report) -> Option<String> {
    let details = &report.details;
    if details.categories.is_empty() && details.utilization.is_empty() {
        return None;
    }
    let mut out = String::from(
        "<p>Ideal times come from the compiler. Utilization is the ideal time in percent of the \
         measured time. Above 100 %, times are wrong or kernels were matched wrongly.</p>\n",
    );
    if !details.utilization.is_empty() {
        let table = HtmlTable {
            label: "Utilization of ranks",
            heads: &[
                (true, "Rank", "rank"),
                (
                    true,
                    "Utilization %",
                    "mean of the kernels with a known utilization, weighted by time",
                ),
                (
                    true,
                    "With ms",
                    "time of the kernels with a known utilization",
                ),
                (true, "Without ms", "time of all other kernels"),
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
                "TTFT: prefill, ITL: decoding, UNKN: unknown",
            ),
            (false, "Category", "the compiler's name"),
            (
                true,
                "Time %",
                "share of the kernel time of its rank and phase",
            ),
            (true, "Time ms", "time of its kernels"),
            (true, "Calls", "calls of its kernels"),
            (true, "Ideal ms", "ideal time of its kernels"),
            (
                true,
                "Utilization %",
                "ideal time in percent of the measured time",
            ),
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
                    "time in which kernels run that are not part of a collective",
                ),
                (true, "Collectives ms", "time in which collectives run"),
                (true, "Both ms", "time in which both run"),
                (
                    true,
                    "Hidden %",
                    "share of the collective time in which kernels run",
                ),
                (
                    true,
                    "Copies ms",
                    "time in which copies or fills of device memory run",
                ),
                (
                    true,
                    "Copies hidden %",
                    "share of the copy time in which kernels run",
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
            (
                true,
                "Begin ms",
                "begin on the first rank, since the first event",
            ),
            (false, "Group", "name in the trace"),
            (false, "Way", "algorithm of its messages"),
            (true, "Ranks", "number of ranks that take part"),
            (
                true,
                "Takes \u{b5}s",
                "from the begin on the first rank to the end on the last",
            ),
            (true, "Bytes", "size of its largest message"),
            (true, "GB/s", "all bytes divided by the whole time"),
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
            "<p class=\"cut\">There are {} collectives in total.</p>",
            grouped(found.len() as u64)
        );
    }
}

/// Launches whose devices report no times.
pub(super) fn untimed(report: &Report) -> Option<String> {
    let rows = &report.details.untimed_launches;
    if rows.is_empty() {
        return None;
    }
    let mut out = String::from(
        "<p>The device recorded no times for these launches. Each ran between its launch and the \
         end of the wait for it.</p>\n",
    );
    let table = HtmlTable {
        label: "Launches without device times",
        heads: &[
            (true, "Rank", "rank"),
            (false, "Kernel", "its name"),
            (true, "Launches", "number of launches"),
            (
                true,
                "Within ms",
                "the time within which they ran; overlaps count once",
            ),
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
            "<p class=\"cut\">There are {} kernels in total.</p>",
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
    let mut out =
        String::from("<p>Faults in the traces as they were read, before any correction.</p>\n");
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
                (true, "Begin \u{b5}s", "begin in the trace"),
                (true, "Takes \u{b5}s", "its length"),
                (true, "By \u{b5}s", "size of the error"),
                (false, "Against", "what it disagrees with"),
                (false, "File", "file that contains it"),
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
                "<p class=\"cut\">{} more are counted but not listed.</p>",
                grouped(left_out)
            );
        }
    }
    Some(out)
}
