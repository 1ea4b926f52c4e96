//! Findings about the traces themselves: what a report's numbers mean, in words, with what
//! they are by. What costs time is found in the modules beside this one.

mod details;

use super::{LINES, cut_to};
use crate::analyze::calibration::RankClock;
use crate::analyze::report::Report;
use crate::finding::{Finding, FindingKind, Weight, rank};
use crate::findings::rules::time;
use FindingKind as Kind;

/// Deviation from the mean that makes a kernel's calls uneven.
const UNEVEN: f64 = 0.5;
/// Kernels below this share of their rank's time are not worth a word, percent.
const SMALL_PERCENT: f64 = 5.0;
/// Ranks of which each has a line of its own.
const RANKS: usize = 16;

/// Looks through a report; adds to what costs time, and puts all in order.
pub(crate) fn find(report: &Report, costs: Vec<Finding>) -> Vec<Finding> {
    let mut findings = costs;
    inputs(report, &mut findings);
    without_kernels(report, &mut findings);
    clocks(report, &mut findings);
    jobs(report, &mut findings);
    ranks(report, &mut findings);
    kernels(report, &mut findings);
    power(report, &mut findings);
    details::find(report, &mut findings);
    rank(&mut findings);
    findings
}

/// Kind of a finding, how much it matters, and its subject.
type Heading = (Kind, Weight, String);

fn add(findings: &mut Vec<Finding>, heading: Heading, text: String, evidence: Vec<String>) {
    add_up_to(LINES, findings, heading, text, evidence);
}

fn add_up_to(
    lines: usize,
    findings: &mut Vec<Finding>,
    heading: Heading,
    text: String,
    evidence: Vec<String>,
) {
    let (kind, weight, subject) = heading;
    findings.push(Finding {
        kind,
        subject,
        weight,
        text,
        evidence: cut_to(lines, evidence),
        ..Finding::default()
    });
}

fn inputs(report: &Report, findings: &mut Vec<Finding>) {
    let lines = report.inputs.iter().flat_map(|input| {
        let path = &input.path;
        input
            .problems
            .iter()
            .map(move |text| format!("{path}: {text}"))
    });
    let lines: Vec<String> = lines.collect();
    if !lines.is_empty() {
        let all_are = |ends: &[&str]| {
            let is_one = |line: &String| ends.iter().any(|end| line.ends_with(end));
            lines.iter().all(is_one)
        };
        let text = if all_are(&[", kept"]) {
            "Some events in the files are unusual. They were analyzed like all others."
        } else if all_are(&[", kept", ", not recorded"]) {
            "Some calls or device records were not recorded: what they did is missing below."
        } else {
            "Parts of the files could not be used."
        };
        let text = text.to_owned();
        add(
            findings,
            (Kind::InputProblems, Weight::Warning, String::new()),
            text,
            lines,
        );
    }
}

/// Reports that kernels or their times are missing, which is rarely what was wanted.
fn without_kernels(report: &Report, findings: &mut Vec<Finding>) {
    let untimed = report.details.untimed_launches.iter();
    let untimed: u64 = untimed.map(|row| row.launches).sum();
    if untimed > 0 {
        let text = format!(
            "{untimed} launches have no device times. Only the calls between which they ran are \
             known."
        );
        let heading = (Kind::UntimedLaunches, Weight::Note, String::new());
        return add(findings, heading, text, Vec::new());
    }
    if report.inputs.is_empty() || !report.kernels.is_empty() {
        return;
    }
    let launches = report.details.unrecorded_launches;
    let lines = report.inputs.iter().map(|input| {
        let (path, events, dialect) = (&input.path, input.events, input.dialect);
        format!("{path}: {events} events ({dialect})")
    });
    let text = match launches {
        _ if !report.active.is_empty() => {
            "The traces contain copies or fills of memory, but no kernels.".to_owned()
        }
        0 => "The traces contain no kernels.".to_owned(),
        _ => format!(
            "The traces contain {launches} launches, but no record of what a device did. What the \
             kernels took is not known."
        ),
    };
    let heading = (Kind::NoKernels, Weight::Warning, String::new());
    add(findings, heading, text, lines.collect());
    if let Some(finding) = findings.last_mut().filter(|_| launches > 0) {
        finding.advice = Some(
            "Record the device too: in torch with ProfilerActivity.CUDA (or XPU), with aiprof with \
             --device-timing. If you do, the driver lost its records. Check that no other profiler \
             runs, that the process may use CUPTI, and that the profile ended before the program.",
        );
    }
}

fn clocks(report: &Report, findings: &mut Vec<Finding>) {
    for clock in &report.clocks {
        let (rank, steps, guessed) = (clock.rank, clock.steps, clock.guessed);
        let heading = |what: &str| {
            (
                Kind::Clocks,
                Weight::Warning,
                format!("rank {rank}, {what}"),
            )
        };
        if steps > 0 {
            let text =
                format!("The device clock of rank {rank} was set or restarted {steps} times.");
            add(findings, heading("steps"), text, vec![certainty(clock)]);
        }
        if clock.bends > 0 {
            let digits = digits(clock);
            let text = format!(
                "The device clock of rank {rank} changed its frequency {} times, between \
                 {:.digits$} and {:.digits$} MHz. Each part is fitted separately.",
                clock.bends, clock.least_mhz, clock.most_mhz
            );
            add(findings, heading("bends"), text, vec![certainty(clock)]);
        }
        if guessed > 0 {
            let text = format!(
                "Rank {rank} had {guessed} gaps without events that were longer than its counter \
                 period. The number of counter wraps in these gaps is a guess."
            );
            add(findings, heading("guesses"), text, vec![certainty(clock)]);
        }
    }
    let mhz = || report.clocks.iter().map(|clock| clock.mhz);
    let (least, most) = (
        mhz().fold(f64::MAX, f64::min),
        mhz().fold(f64::MIN, f64::max),
    );
    let text = match report.clocks.as_slice() {
        [] => return,
        [clock] => {
            let digits = digits(clock);
            format!(
                "The device counter of rank {} runs at {:.digits$} MHz.",
                clock.rank, clock.mhz
            )
        }
        clocks => format!(
            "The device counters of {} ranks run at {least:.3} to {most:.3} MHz.",
            clocks.len()
        ),
    };
    let lines = report.clocks.iter().map(|clock| match report.clocks.len() {
        1 => certainty(clock),
        _ => format!("rank {}: {}", clock.rank, certainty(clock)),
    });
    add_up_to(
        RANKS,
        findings,
        (Kind::Clocks, Weight::Note, String::new()),
        text,
        lines.collect(),
    );
}

fn certainty(clock: &RankClock) -> String {
    let digits = digits(clock);
    format!(
        "{:.digits$} MHz +- {:.digits$} ({} events, median residual {}; time error <= {})",
        clock.mhz,
        clock.mhz_error,
        clock.anchors,
        short_time(clock.scatter_us),
        short_time(clock.offset_error_us)
    )
}

/// Decimals of a clock's frequency: down to the first digit of its error bound.
fn digits(clock: &RankClock) -> usize {
    let digits = -clock.mhz_error.log10().floor();
    digits.clamp(0.0, 6.0) as usize
}

/// `67 ns`, `1.5 us`.
fn short_time(us: f64) -> String {
    match us < 1.0 {
        true => format!("{:.0} ns", us * 1000.0),
        false => time(us),
    }
}

fn jobs(report: &Report, findings: &mut Vec<Finding>) {
    for (state, weight, what) in [
        (
            "moved",
            Weight::Warning,
            "were outside their round trip and were moved",
        ),
        (
            "bounded",
            Weight::Error,
            "were outside their round trip and were moved to the middle of the possible range",
        ),
        (
            "refused",
            Weight::Error,
            "are outside their round trip and were not moved",
        ),
    ] {
        let jobs = report.jobs.iter().filter(|job| job.state == state);
        let lines = jobs.map(|job| {
            let (path, rank) = (&job.path, job.rank);
            match (job.by_us, job.error_us, job.least_us, job.most_us) {
                (Some(by), Some(error), _, _) => {
                    format!("{path} (rank {rank}): moved by {by:.3} us +- {error:.3}")
                }
                (_, _, Some(least), Some(most)) => {
                    format!(
                        "{path} (rank {rank}): the shift is between {least:.3} and {most:.3} us"
                    )
                }
                _ => format!("{path} (rank {rank}): {}", job.reason.unwrap_or_default()),
            }
        });
        let lines: Vec<String> = lines.collect();
        if !lines.is_empty() {
            let text = format!("The device events of {} jobs {what}.", lines.len());
            let heading = (Kind::JobsMoved, weight, state.to_owned());
            add(findings, heading, text, lines);
        }
    }
}

fn ranks(report: &Report, findings: &mut Vec<Finding>) {
    let Some(ranks) = &report.ranks else { return };
    let lines = ranks.shifts.iter().map(|shift| match shift.us {
        Some(us) => format!(
            "rank {}: {us:+.3} us (at least {}, at most {})",
            shift.rank,
            shift
                .least_us
                .map_or("unknown".to_owned(), |us| format!("{us:+.3}")),
            shift
                .most_us
                .map_or("unknown".to_owned(), |us| format!("{us:+.3}"))
        ),
        None => format!(
            "rank {}: no messages connect it to the others; clock unchanged",
            shift.rank
        ),
    });
    let lines: Vec<String> = lines.collect();
    if ranks.contradiction_us > 0.0 {
        let text = format!(
            "Messages between ranks contradict each other by {:.3} us. Some times are wrong.",
            ranks.contradiction_us
        );
        let heading = (
            Kind::RankClocks,
            Weight::Warning,
            "contradiction".to_owned(),
        );
        add(findings, heading, text, lines.clone());
    }
    let lost = ranks.shifts.iter().filter(|shift| shift.us.is_none());
    let lost: Vec<String> = lost
        .map(|shift| {
            format!(
                "rank {}: no messages connect it to the others; clock unchanged",
                shift.rank
            )
        })
        .collect();
    if !lost.is_empty() {
        let text = "Some ranks exchange no messages with the others.".to_owned();
        let heading = (Kind::RankClocks, Weight::Warning, "lost".to_owned());
        add(findings, heading, text, lost);
    }
    let moved = ranks.shifts.iter().filter_map(|shift| shift.us);
    let most = moved.map(f64::abs).fold(0.0, f64::max);
    let text = format!(
        "The clocks of {} ranks were aligned by {} messages. They were up to {most:.3} us apart.",
        ranks.shifts.len(),
        ranks.messages
    );
    add_up_to(
        RANKS,
        findings,
        (Kind::Clocks, Weight::Note, String::new()),
        text,
        lines,
    );
}

fn kernels(report: &Report, findings: &mut Vec<Finding>) {
    let uneven = report.kernels.iter().filter(|kernel| {
        let lengths = &kernel.lengths;
        kernel.percent >= SMALL_PERCENT
            && lengths.calls > 4
            && lengths.deviation_us > UNEVEN * lengths.mean_us
    });
    let lines: Vec<String> = uneven
        .map(|kernel| {
            let lengths = &kernel.lengths;
            format!(
                "{} (rank {}): {:.3} to {:.3} us, median {:.3}, {} calls",
                kernel.name,
                kernel.rank,
                lengths.min_us,
                lengths.max_us,
                lengths.median_us,
                lengths.calls
            )
        })
        .collect();
    if !lines.is_empty() {
        let text = "Calls of some kernels take very different times.".to_owned();
        add(
            findings,
            (Kind::UnevenKernels, Weight::Note, String::new()),
            text,
            lines,
        );
    }
}

fn power(report: &Report, findings: &mut Vec<Finding>) {
    let Some(power) = &report.power else { return };
    if power.bad > 0 {
        let text = format!(
            "{} intervals between charge readings show more power than a device can draw.",
            power.bad
        );
        let line = format!(
            "charge counter scale {}; use --power-scale to set another",
            power.factor
        );
        let heading = (Kind::Power, Weight::Warning, "impossible".to_owned());
        add(findings, heading, text, vec![line]);
    }
    if let (Some(with), Some(without)) = (power.mean_with_kernels, power.mean_without_kernels) {
        let text =
            format!("Devices draw {with:.1} W while kernels run and {without:.1} W otherwise.");
        let line = format!(
            "{} readings, charge counter scale {}",
            power.readings, power.factor
        );
        add(
            findings,
            (Kind::Power, Weight::Note, String::new()),
            text,
            vec![line],
        );
    }
}

#[cfg(test)]
mod tests;
