//! Findings of utilization, communication and faults.

use super::{RANKS, add, add_up_to};
use crate::analyze::report::{Finding, Report, Weight};
use crate::analyze::report_details::Collective;
use std::collections::BTreeMap;

/// Kernels and categories with less of their rank's time are not worth a word, percent.
const SMALL_PERCENT: f64 = 5.0;
/// Utilization below this is low, percent.
const LOW_PERCENT: f64 = 50.0;
/// More than all there is; what is above is no rounding, percent.
const IMPOSSIBLE_PERCENT: f64 = 100.5;
/// Communication and waiting below this part of the time are not worth a word, percent.
const SOME_PERCENT: f64 = 5.0;
/// Communication of which less is hidden costs time, percent.
const HIDDEN_PERCENT: f64 = 50.0;
/// Collectives that take this many times the median of their like are slow.
const SLOW: f64 = 2.0;
/// Fewest collectives that have a median worth comparing with.
const ALIKE: usize = 5;

pub(super) fn find(report: &Report, findings: &mut Vec<Finding>) {
    faults(report, findings);
    reversed(report, findings);
    impossible(report, findings);
    low(report, findings);
    hidden(report, findings);
    waiting(report, findings);
    slow(report, findings);
}

fn faults(report: &Report, findings: &mut Vec<Finding>) {
    for fault in &report.details.faults {
        let text = format!(
            "Faults in the trace as it was read, {}: {}.",
            fault.fault, fault.count
        );
        let lines = fault.evidence.iter().map(|event| {
            format!(
                "{} (rank {}) at {:.3} us, {:.3} us long, by {:.3} us; {}",
                event.name, event.rank, event.ts_us, event.dur_us, event.by_us, event.against
            )
        });
        let mut lines: Vec<String> = lines.take(super::LINES).collect();
        let left_out = fault.count.saturating_sub(lines.len() as u64);
        if left_out > 0 && !lines.is_empty() {
            lines.push(format!("and {left_out} more"));
        }
        findings.push(Finding {
            // It spoils nothing.
            weight: match fault.fault.ends_with("in the file") {
                true => Weight::Note,
                false => Weight::Warning,
            },
            text,
            evidence: lines,
        });
    }
}

fn reversed(report: &Report, findings: &mut Vec<Finding>) {
    let lines = report.details.reversed.iter().map(|one| {
        format!(
            "from rank {} to rank {}: {} of them, by up to {:.3} us",
            one.from, one.to, one.count, one.most_us
        )
    });
    let lines: Vec<String> = lines.collect();
    if !lines.is_empty() {
        let text = "Messages arrive before they are sent: clocks of ranks are apart.".to_owned();
        add(findings, Weight::Warning, text, lines);
    }
}

/// Kernels that are faster than they can be.
fn impossible(report: &Report, findings: &mut Vec<Finding>) {
    let kernels = report.kernels.iter().filter_map(|kernel| {
        let percent = kernel.utilization_percent?;
        (percent > IMPOSSIBLE_PERCENT).then(|| {
            format!(
                "{} (rank {}): {percent:.1} % in {} calls",
                kernel.name, kernel.rank, kernel.lengths.calls
            )
        })
    });
    let mut lines: Vec<String> = kernels.collect();
    if lines.is_empty() {
        let series = report.series.iter().filter(|s| s.name == "PT Active");
        lines.extend(series.filter_map(|series| {
            let points = || series.points.iter().filter(|p| p.3 > IMPOSSIBLE_PERCENT);
            let first = points().next()?;
            let rank = series.rank.map_or("-".to_owned(), |rank| rank.to_string());
            Some(format!(
                "rank {rank}: single calls, the first {:.3} us after the first event",
                first.0
            ))
        }));
    }
    if !lines.is_empty() {
        let text = "Kernels use more than 100 % of what the device can do: their times are wrong, \
                    or the compiler's log is of another program."
            .to_owned();
        add(findings, Weight::Error, text, lines);
    }
}

/// Where time is lost most: kernels, else categories.
fn low(report: &Report, findings: &mut Vec<Finding>) {
    let is_low = |percent: f64| percent > 0.0 && percent < LOW_PERCENT;
    let kernels = report.kernels.iter().filter_map(|kernel| {
        let percent = kernel.utilization_percent?;
        let lost = kernel.lengths.total_us * (1.0 - percent / 100.0);
        (is_low(percent) && kernel.percent >= SMALL_PERCENT).then(|| {
            let line = format!(
                "{} (rank {}): {percent:.1} % of what is possible, {:.1} % of the rank's time",
                kernel.name, kernel.rank, kernel.percent
            );
            (lost, line)
        })
    });
    let mut found: Vec<(f64, String)> = kernels.collect();
    if found.is_empty() {
        let rows = report.details.categories.iter();
        let rows = rows.filter(|row| row.name != "Total" && row.time_percent >= SMALL_PERCENT);
        found.extend(rows.filter_map(|row| {
            let percent = row.utilization_percent.filter(|percent| is_low(*percent))?;
            let line = format!(
                "{} (rank {}, {}): {percent:.1} % of what is possible, {:.1} % of the time",
                row.name, row.rank, row.phase, row.time_percent
            );
            Some((row.time_us - row.ideal_us, line))
        }));
    }
    if found.is_empty() {
        return;
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let text = "Kernels with much time use little of what the device can do; the ones that lose \
                the most time first."
        .to_owned();
    let lines = found.into_iter().map(|(_, line)| line).collect();
    add(findings, Weight::Warning, text, lines);
}

/// Communication that nothing is done behind.
fn hidden(report: &Report, findings: &mut Vec<Finding>) {
    let mut worst: f64 = 100.0;
    let rows = report.details.communication.iter();
    let lines = rows.filter_map(|row| {
        let percent = row
            .overlap_percent
            .filter(|percent| *percent < HIDDEN_PERCENT)?;
        let time = row.compute_us + row.communication_us - row.overlap_us;
        if row.communication_us < time * SOME_PERCENT / 100.0 {
            return None;
        }
        worst = worst.min(percent);
        Some(format!(
            "rank {}: {percent:.1} % of {:.3} us; {:.3} us of its kernels' {:.3} us are beside it",
            row.rank,
            row.communication_us,
            row.compute_us - row.overlap_us,
            row.compute_us
        ))
    });
    let lines: Vec<String> = lines.collect();
    if !lines.is_empty() {
        let text = format!(
            "Communication is hardly hidden behind kernels: as little as {worst:.1} % of it on one \
             rank."
        );
        add_up_to(RANKS, findings, Weight::Warning, text, lines);
    }
}

/// What a rank waits, and is waited for.
#[derive(Default)]
struct Waits {
    us: f64,
    times: usize,
    last: usize,
}

/// Ranks that wait for others: they come to collectives before the last one does.
fn waiting(report: &Report, findings: &mut Vec<Finding>) {
    let mut ranks: BTreeMap<u32, Waits> = BTreeMap::new();
    for one in report
        .details
        .collectives
        .iter()
        .filter(|one| one.parts.len() > 1)
    {
        let Some(last) = one
            .parts
            .iter()
            .max_by(|a, b| a.start_us.total_cmp(&b.start_us))
        else {
            continue;
        };
        let is_waited_for = one.parts.iter().any(|part| part.start_us < last.start_us);
        for part in &one.parts {
            let waits = ranks.entry(part.rank).or_default();
            waits.times += 1;
            waits.us += last.start_us - part.start_us;
            waits.last += usize::from(is_waited_for && part.rank == last.rank);
        }
    }
    let most = ranks.values().map(|waits| waits.us).fold(0.0, f64::max);
    if most <= report.elapsed_us * SOME_PERCENT / 100.0 || most <= 0.0 {
        return;
    }
    let latest = ranks.iter().max_by_key(|(_, waits)| waits.last);
    let latest = latest.map_or(0, |(rank, _)| *rank);
    let mut rows: Vec<_> = ranks.iter().collect();
    rows.sort_by(|a, b| b.1.us.total_cmp(&a.1.us));
    let lines = rows.iter().map(|(rank, waits)| {
        format!(
            "rank {rank}: {:.3} us before others in {} collectives, the last of all in {}",
            waits.us, waits.times, waits.last
        )
    });
    let text = format!(
        "Ranks wait for each other in collectives, most often for rank {latest}: {:.1} % of the \
         trace on one rank.",
        most / report.elapsed_us * 100.0
    );
    add_up_to(RANKS, findings, Weight::Warning, text, lines.collect());
}

/// Collectives that take much longer than others of their size and ranks.
fn slow(report: &Report, findings: &mut Vec<Finding>) {
    type Like<'a> = (Option<i64>, usize, &'a str);
    let mut alike: BTreeMap<Like<'_>, Vec<&Collective>> = BTreeMap::new();
    for one in &report.details.collectives {
        let like = (one.bytes, one.parts.len(), one.algorithm.as_str());
        alike.entry(like).or_default().push(one);
    }
    let mut found: Vec<(f64, String)> = Vec::new();
    for mut group in alike.into_values().filter(|group| group.len() >= ALIKE) {
        group.sort_by(|a, b| a.elapsed_us.total_cmp(&b.elapsed_us));
        let median = group.get(group.len() / 2).map_or(0.0, |one| one.elapsed_us);
        for one in group.iter().filter(|one| one.elapsed_us > SLOW * median) {
            let bandwidth = one.gigabytes_per_second;
            let bandwidth = bandwidth.map_or(String::new(), |gb| format!(", {gb:.3} GB/s"));
            let line = format!(
                "{} at {:.3} us: {:.3} us{bandwidth}, its like take {median:.3} us",
                one.group, one.start_us, one.elapsed_us
            );
            found.push((one.elapsed_us - median, line));
        }
    }
    if found.is_empty() {
        return;
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let text = format!(
        "{} collectives take more than twice as long as others of their size.",
        found.len()
    );
    let lines = found.into_iter().map(|(_, line)| line).collect();
    add(findings, Weight::Warning, text, lines);
}
