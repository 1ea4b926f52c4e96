//! The tables of a page. Each gives nothing where there is nothing to show.

use super::escape;
use super::table::{Cell, HtmlTable, ROWS, grouped, number, signed};
use aiprof_trace::analyze::report::{Kernel, Report};
use std::fmt::Write as _;

/// How busy ranks were.
pub(super) fn active(report: &Report) -> Option<String> {
    if report.active.is_empty() {
        return None;
    }
    let table = HtmlTable {
        label: "How busy each rank was",
        heads: &[
            (true, "Rank", "rank"),
            (
                true,
                "Busy %",
                "share of the time between its first and its last kernel",
            ),
            (true, "Busy ms", "time in which at least one kernel ran"),
            (
                true,
                "Kernels ms",
                "sum of the times of all kernels, also of those that overlap",
            ),
            (
                true,
                "Elapsed ms",
                "from the begin of the first kernel to the end of the last",
            ),
        ],
        has_filter: false,
    };
    let rows = report.active.iter().map(|row| {
        vec![
            row.rank.into(),
            Cell::Percent(row.busy_percent),
            Cell::number(row.busy_us / 1e3, 3),
            Cell::number(row.kernel_us / 1e3, 3),
            Cell::number(row.elapsed_us / 1e3, 3),
        ]
    });
    let mut out = String::new();
    table.write(rows.collect(), &mut out);
    Some(out)
}

/// Kernels by rank; where there are too many, those that take the most time.
pub(super) fn kernels(report: &Report) -> Option<String> {
    if report.kernels.is_empty() {
        return None;
    }
    let (kept, left_out) = longest(&report.kernels);
    let has_power = kept.iter().any(|kernel| kernel.joules.is_some());
    let has_utilization = kept.iter().any(|k| k.utilization_percent.is_some());
    let mut heads = vec![
        (true, "Rank", "rank"),
        (false, "Kernel", "name; running numbers are replaced by [N]"),
        (true, "Time %", "share of its rank's kernel time"),
        (true, "Total ms", "time of all calls"),
        (true, "Calls", "number of calls"),
        (true, "Mean \u{b5}s", "mean length of a call"),
        (true, "Median \u{b5}s", "half of the calls are shorter"),
        (true, "Max \u{b5}s", "longest call"),
    ];
    if has_power {
        heads.push((true, "Mean W", "power while it ran"));
        heads.push((true, "Energy J", "energy of all calls whose power is known"));
    }
    if has_utilization {
        heads.push((
            true,
            "Utilization %",
            "ideal time in percent of the measured time",
        ));
    }
    heads.push((true, "Min \u{b5}s", "shortest call"));
    heads.push((
        true,
        "Deviation \u{b5}s",
        "standard deviation of the calls' lengths",
    ));
    let table = HtmlTable {
        label: "Kernels of all ranks",
        heads: &heads,
        has_filter: true,
    };
    let rows = kept.iter().map(|kernel| {
        let lengths = &kernel.lengths;
        let mut row = vec![
            kernel.rank.into(),
            Cell::text(&kernel.name),
            Cell::Percent(kernel.percent),
            Cell::number(lengths.total_us / 1e3, 3),
            lengths.calls.into(),
            Cell::number(lengths.mean_us, 3),
            Cell::number(lengths.median_us, 3),
            Cell::number(lengths.max_us, 3),
        ];
        if has_power {
            row.push(Cell::Number(kernel.mean_watts, 1));
            row.push(Cell::Number(kernel.joules, 4));
        }
        if has_utilization {
            row.push(Cell::Number(kernel.utilization_percent, 1));
        }
        row.push(Cell::number(lengths.min_us, 3));
        row.push(Cell::number(lengths.deviation_us, 3));
        row
    });
    let mut out = String::new();
    table.write(rows.collect(), &mut out);
    if let Some((count, percent)) = left_out {
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

/// What repeats, and times of tokens.
pub(super) fn iterations(report: &Report) -> Option<String> {
    let mut out = String::new();
    if !report.iterations.is_empty() {
        let table = HtmlTable {
            label: "Iterations of each rank",
            heads: &[
                (true, "Rank", "rank"),
                (true, "Iterations", "number of iterations"),
                (true, "Kernels each", "kernels in one iteration"),
                (true, "Mean ms", "mean time from one begin to the next"),
            ],
            has_filter: false,
        };
        let rows = report.iterations.iter().map(|one| {
            vec![
                one.rank.into(),
                one.count.into(),
                one.kernels_each.into(),
                Cell::number(one.mean_us / 1e3, 3),
            ]
        });
        table.write(rows.collect(), &mut out);
    }
    if !report.tokens.is_empty() {
        out.push_str("<h3>Tokens</h3>\n");
        let table = HtmlTable {
            label: "Token times by rank",
            heads: &[
                (true, "Rank", "rank"),
                (true, "Tokens", "number of tokens"),
                (true, "First ms", "time to the first token, median"),
                (
                    true,
                    "Between ms",
                    "time from one token to the next, median",
                ),
                (
                    true,
                    "Between, most ms",
                    "longest time from one token to the next",
                ),
            ],
            has_filter: false,
        };
        let rows = report.tokens.iter().map(|one| {
            let median = |of: Option<f64>| Cell::Number(of.map(|us| us / 1e3), 3);
            vec![
                one.rank.into(),
                one.tokens.into(),
                median(one.first_us.map(|times| times.median_us)),
                median(one.between_us.map(|times| times.median_us)),
                median(one.between_us.map(|times| times.max_us)),
            ]
        });
        table.write(rows.collect(), &mut out);
    }
    (!out.is_empty()).then_some(out)
}

/// Clocks of devices.
pub(super) fn clocks(report: &Report) -> Option<String> {
    if report.clocks.is_empty() {
        return None;
    }
    let table = HtmlTable {
        label: "Clocks of devices",
        heads: &[
            (true, "Rank", "rank"),
            (true, "MHz", "ticks per microsecond"),
            (
                true,
                "Within MHz",
                "largest possible error of the frequency",
            ),
            (true, "Events", "events that the clock fit uses"),
            (
                true,
                "Late \u{b5}s",
                "median residual: how late the host's times typically are",
            ),
            (
                true,
                "Within \u{b5}s",
                "largest possible error of times from this clock",
            ),
            (true, "Restarts", "how often the clock was set or restarted"),
            (true, "Bends", "how often its frequency changed"),
            (
                true,
                "Guessed",
                "gaps in which the number of counter wraps is a guess",
            ),
        ],
        has_filter: false,
    };
    let rows = report.clocks.iter().map(|clock| {
        vec![
            clock.rank.into(),
            Cell::number(clock.mhz, 6),
            Cell::number(clock.mhz_error, 6),
            clock.anchors.into(),
            Cell::number(clock.scatter_us, 3),
            Cell::number(clock.offset_error_us, 3),
            clock.steps.into(),
            clock.bends.into(),
            clock.guessed.into(),
        ]
    });
    let mut out = String::new();
    table.write(rows.collect(), &mut out);
    Some(out)
}

/// Jobs that were not where they belong.
pub(super) fn jobs(report: &Report) -> Option<String> {
    if report.jobs.is_empty() {
        return None;
    }
    let table = HtmlTable {
        label: "Jobs with device events outside their round trip",
        heads: &[
            (true, "Rank", "rank"),
            (false, "Job", "its file"),
            (
                false,
                "What was done",
                "moved, bounded (not moved; the shift is known only roughly) or refused (not \
                 moved)",
            ),
            (true, "By \u{b5}s", "how far it was moved"),
            (
                true,
                "Within \u{b5}s",
                "largest possible error of the shift",
            ),
            (true, "At least \u{b5}s", "smallest possible shift"),
            (true, "At most \u{b5}s", "largest possible shift"),
            (false, "Why", "why it was not moved"),
        ],
        has_filter: false,
    };
    let rows = report.jobs.iter().map(|job| {
        vec![
            job.rank.into(),
            Cell::text(&job.path),
            Cell::text(job.state),
            Cell::Number(job.by_us, 3),
            Cell::Number(job.error_us, 3),
            Cell::Number(job.least_us, 3),
            Cell::Number(job.most_us, 3),
            Cell::text(job.reason.unwrap_or_default()),
        ]
    });
    let mut out = String::from("<p>Jobs with device events outside their round trip.</p>\n");
    table.write(rows.collect(), &mut out);
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
    let table = HtmlTable {
        label: "Shifts of ranks",
        heads: &[
            (true, "Rank", "rank"),
            (
                true,
                "Shift \u{b5}s",
                "what was added to its times; \u{2013}: no messages connect it to the others",
            ),
            (true, "At least \u{b5}s", "smallest possible shift"),
            (true, "At most \u{b5}s", "largest possible shift"),
        ],
        has_filter: false,
    };
    let rows = ranks.shifts.iter().map(|shift| {
        vec![
            shift.rank.into(),
            Cell::Number(shift.us, 3),
            Cell::Number(shift.least_us, 3),
            Cell::Number(shift.most_us, 3),
        ]
    });
    table.write(rows.collect(), &mut out);
    cycles(report, &mut out);
    Some(out)
}

fn cycles(report: &Report, out: &mut String) {
    let cycles = report.ranks.iter().flat_map(|ranks| &ranks.cycles);
    let rows: Vec<Vec<Cell>> = cycles
        .map(|cycle| {
            let ranks = cycle.ranks.iter().chain(cycle.ranks.first());
            let way: Vec<String> = ranks.map(u32::to_string).collect();
            let closure = signed(cycle.closure_us, 3);
            let way = Cell::text(way.join(" \u{2192} "));
            match cycle.closure_us.is_finite() {
                true => vec![way, Cell::number(cycle.closure_us, 3)],
                false => vec![way, Cell::text(closure)],
            }
        })
        .collect();
    if rows.is_empty() {
        return;
    }
    out.push_str(
        "<h3>Cycles of messages</h3>\n<p>The closure of a cycle of ranks is the total time of the \
         fastest messages once around it. Shifting clocks does not change the closure. It is the \
         largest possible error between the clocks of these ranks. If it is below 0, a clock is \
         wrong.</p>\n",
    );
    let table = HtmlTable {
        label: "Closure of cycles of messages",
        heads: &[
            (false, "Ranks", "in the order of the messages"),
            (
                true,
                "Closure \u{b5}s",
                "total time of the fastest messages",
            ),
        ],
        has_filter: false,
    };
    table.write(rows, out);
}

/// Files.
pub(super) fn inputs(report: &Report) -> Option<String> {
    if report.inputs.is_empty() {
        return None;
    }
    let table = HtmlTable {
        label: "Files that were read",
        heads: &[
            (false, "File", "path as given"),
            (false, "Kind", "kind of trace"),
            (
                true,
                "Rank",
                "rank that the file states; \u{2013}: its events state it",
            ),
            (true, "Events", "number of events"),
            (
                false,
                "Synthetic",
                "whether the file is marked as synthetic",
            ),
            (
                true,
                "Problems",
                "number of problems; they are listed below",
            ),
        ],
        has_filter: false,
    };
    let rows = report.inputs.iter().map(|input| {
        vec![
            Cell::text(&input.path),
            Cell::text(input.dialect),
            Cell::Number(input.rank.map(f64::from), 0),
            input.events.into(),
            Cell::text(if input.is_synthetic {
                "yes, synthetic"
            } else {
                "not marked"
            }),
            super::problems(input).into(),
        ]
    });
    let mut out = String::new();
    table.write(rows.collect(), &mut out);
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
