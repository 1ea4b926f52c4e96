//! Findings of utilization, messages and faults.

use super::{Kind, add};
use crate::analyze::report::Report;
use crate::finding::{Finding, Measure, Weight};
use crate::findings::rules;

/// Kernels and categories with less of their rank's time are not worth a word, percent.
const SMALL_PERCENT: f64 = 5.0;
/// Utilization below this is low, percent.
const LOW_PERCENT: f64 = 50.0;
/// More than all there is; what is above is no rounding, percent.
const IMPOSSIBLE_PERCENT: f64 = 100.5;
/// 106 days, microseconds: a timeline has no times that are further from its origin.
const FAR_US: f64 = 106.0 * 86_400e6;

pub(super) fn find(report: &Report, findings: &mut Vec<Finding>) {
    faults(report, findings);
    reversed(report, findings);
    impossible(report, findings);
    low(report, findings);
}

fn faults(report: &Report, findings: &mut Vec<Finding>) {
    for fault in &report.details.faults {
        let text = format!(
            "Fault in the input trace: {} (events: {}).",
            fault.fault, fault.count
        );
        let lines = fault.evidence.iter().map(|event| {
            let (dur, by) = (amount(event.dur_us), amount(event.by_us));
            let against = match event.against.as_str() {
                "" => String::new(),
                text => format!("; {text}"),
            };
            format!(
                "{} (rank {}) at {:.3} us for {dur}, off by {by}{against}",
                event.name, event.rank, event.ts_us
            )
        });
        let mut lines: Vec<String> = lines.take(super::LINES).collect();
        let left_out = fault.count.saturating_sub(lines.len() as u64);
        if left_out > 0 && !lines.is_empty() {
            lines.push(format!("and {left_out} more"));
        }
        findings.push(Finding {
            kind: Kind::TraceFault,
            subject: fault.fault.clone(),
            // It spoils nothing.
            weight: match fault.fault.ends_with("in the file") {
                true => Weight::Note,
                false => Weight::Warning,
            },
            text,
            evidence: lines,
            ..Finding::default()
        });
    }
}

/// A length in words. Times that are further apart are not known better.
fn amount(us: f64) -> String {
    match us < FAR_US {
        true => format!("{us:.3} us"),
        false => "more than 106 days".to_owned(),
    }
}

fn reversed(report: &Report, findings: &mut Vec<Finding>) {
    let lines = report.details.reversed.iter().map(|one| {
        format!(
            "from rank {} to rank {}: {} messages, up to {:.3} us early",
            one.from, one.to, one.count, one.most_us
        )
    });
    let lines: Vec<String> = lines.collect();
    if !lines.is_empty() {
        let text =
            "Messages arrive before they are sent, so the clocks of ranks disagree.".to_owned();
        add(
            findings,
            (Kind::ReversedMessages, Weight::Warning, String::new()),
            text,
            lines,
        );
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
                "rank {rank}: single calls, the first one {:.3} us after the first event",
                first.0
            ))
        }));
    }
    if !lines.is_empty() {
        let text = "Kernels exceed 100 % utilization. Their times are wrong, or the compiler log \
                    is from another program."
            .to_owned();
        add(
            findings,
            (Kind::ImpossibleUtilization, Weight::Error, String::new()),
            text,
            lines,
        );
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
                "{} (rank {}): {percent:.1} % utilization, {:.1} % of the rank's time",
                kernel.name, kernel.rank, kernel.percent
            );
            (lost, line)
        })
    });
    let mut found: Vec<(f64, String)> = kernels.collect();
    let mut time: f64 = report
        .kernels
        .iter()
        .map(|kernel| kernel.lengths.total_us)
        .sum();
    if found.is_empty() {
        let all = report
            .details
            .categories
            .iter()
            .filter(|row| row.name != "Total");
        time = all.map(|row| row.time_us).sum();
        let rows = report.details.categories.iter();
        let rows = rows.filter(|row| row.name != "Total" && row.time_percent >= SMALL_PERCENT);
        found.extend(rows.filter_map(|row| {
            let percent = row.utilization_percent.filter(|percent| is_low(*percent))?;
            let line = format!(
                "{} (rank {}, {}): {percent:.1} % utilization, {:.1} % of the time",
                row.name, row.rank, row.phase, row.time_percent
            );
            Some((row.time_us - row.ideal_us, line))
        }));
    }
    if found.is_empty() {
        return;
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let lost: f64 = found.iter().map(|(us, _)| us).sum();
    let mut one = Vec::new();
    let text = format!(
        "Kernels with low utilization lose {} of {}. The list begins with the largest loss.",
        rules::time(lost),
        rules::time(time)
    );
    let heading = (Kind::LowUtilization, Weight::Warning, String::new());
    add(
        &mut one,
        heading,
        text,
        found.into_iter().map(|(_, line)| line).collect(),
    );
    for mut finding in one {
        finding.cost_ns = Some(rules::ns(lost));
        finding.numbers = vec![
            Measure {
                name: "lost",
                value: lost / 1e6,
                unit: "s",
            },
            Measure {
                name: "of",
                value: time / 1e6,
                unit: "s",
            },
        ];
        rules::keep(finding, time, findings);
    }
}

#[cfg(test)]
mod tests {
    use super::amount;

    #[test]
    fn what_is_further_than_times_reach_has_no_amount() {
        let day = 86_400e6;
        assert_eq!(amount(0.5), "0.500 us");
        assert_eq!(amount(105.0 * day), "9072000000000.000 us");
        // The longest that a timeline holds: 2^63 picoseconds.
        for us in [(1_u64 << 63) as f64 / 1e6, 1.7e15] {
            assert_eq!(amount(us), "more than 106 days");
        }
    }
}
