//! Findings: what a report's numbers mean, in words, with what they are by.

mod details;

use super::report::{Clock, Finding, Report, Weight};

/// Share of time that a rank may be idle before it is worth a word, percent.
const IDLE_PERCENT: f64 = 50.0;
/// Deviation from the mean that makes a kernel's calls uneven.
const UNEVEN: f64 = 0.5;
/// Kernels below this share of their rank's time are not worth a word, percent.
const SMALL_PERCENT: f64 = 5.0;
/// Ranks of which each has a line of its own.
const RANKS: usize = 16;
/// Evidence lines of one finding.
const LINES: usize = 8;

/// Looks through a report.
pub(super) fn find(report: &Report) -> Vec<Finding> {
    let mut findings = Vec::new();
    inputs(report, &mut findings);
    without_kernels(report, &mut findings);
    clocks(report, &mut findings);
    jobs(report, &mut findings);
    ranks(report, &mut findings);
    busy(report, &mut findings);
    kernels(report, &mut findings);
    power(report, &mut findings);
    details::find(report, &mut findings);
    findings.sort_by_key(|finding| finding.weight);
    findings
}

fn add(findings: &mut Vec<Finding>, weight: Weight, text: String, evidence: Vec<String>) {
    add_up_to(LINES, findings, weight, text, evidence);
}

fn add_up_to(
    lines: usize,
    findings: &mut Vec<Finding>,
    weight: Weight,
    text: String,
    mut evidence: Vec<String>,
) {
    if evidence.len() > lines {
        let more = evidence.len() - lines;
        evidence.truncate(lines);
        evidence.push(format!("and {more} more"));
    }
    findings.push(Finding {
        weight,
        text,
        evidence,
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
        let is_whole = lines.iter().all(|line| line.ends_with(", kept"));
        let text = match is_whole {
            true => "Some events in the files are odd; they were kept.".to_owned(),
            false => "Not everything in the files could be used.".to_owned(),
        };
        add(findings, Weight::Warning, text, lines);
    }
}

/// Nothing to tell about, which is rarely what was wanted.
fn without_kernels(report: &Report, findings: &mut Vec<Finding>) {
    let untimed = report.details.untimed_launches.iter();
    let untimed: u64 = untimed.map(|row| row.launches).sum();
    if untimed > 0 {
        let text = format!(
            "Devices kept no times of {untimed} launches: only between which calls they ran is \
             known."
        );
        return add(findings, Weight::Note, text, Vec::new());
    }
    if report.inputs.is_empty() || !report.active.is_empty() {
        return;
    }
    let lines = report.inputs.iter().map(|input| {
        let (path, events, dialect) = (&input.path, input.events, input.dialect);
        format!("{path}: {events} events ({dialect})")
    });
    let text = "There are no kernels in the traces.".to_owned();
    add(findings, Weight::Warning, text, lines.collect());
}

fn clocks(report: &Report, findings: &mut Vec<Finding>) {
    for clock in &report.clocks {
        let (rank, steps, guessed) = (clock.rank, clock.steps, clock.guessed);
        if steps > 0 {
            let text =
                format!("The device clock of rank {rank} was set or restarted {steps} times.");
            add(findings, Weight::Warning, text, vec![certainty(clock)]);
        }
        if clock.bends > 0 {
            let text = format!(
                "The device clock of rank {rank} changed its frequency {} times, between {:.6} \
                 and {:.6} MHz: each part has its own.",
                clock.bends, clock.least_mhz, clock.most_mhz
            );
            add(findings, Weight::Warning, text, vec![certainty(clock)]);
        }
        if guessed > 0 {
            let text = format!(
                "Rank {rank} was quiet {guessed} times for longer than its counter tells: the \
                 number of wraps there is a guess."
            );
            add(findings, Weight::Warning, text, vec![certainty(clock)]);
        }
    }
    let mhz = || report.clocks.iter().map(|clock| clock.mhz);
    let (least, most) = (
        mhz().fold(f64::MAX, f64::min),
        mhz().fold(f64::MIN, f64::max),
    );
    let text = match report.clocks.as_slice() {
        [] => return,
        [clock] => format!(
            "The device of rank {} counts at {:.3} MHz.",
            clock.rank, clock.mhz
        ),
        clocks => format!(
            "The devices of {} ranks count at {least:.3} to {most:.3} MHz.",
            clocks.len()
        ),
    };
    let lines = report.clocks.iter().map(|clock| match report.clocks.len() {
        1 => certainty(clock),
        _ => format!("rank {}: {}", clock.rank, certainty(clock)),
    });
    add_up_to(RANKS, findings, Weight::Note, text, lines.collect());
}

fn certainty(clock: &Clock) -> String {
    format!(
        "{:.6} MHz, within {:.6}, by {} events that are {:.3} us late as a rule; times within \
         {:.3} us if the earliest notes are on time",
        clock.mhz, clock.mhz_error, clock.anchors, clock.scatter_us, clock.offset_error_us
    )
}

fn jobs(report: &Report, findings: &mut Vec<Finding>) {
    for (state, weight, what) in [
        (
            "moved",
            Weight::Warning,
            "lay outside of their round trip and were moved",
        ),
        (
            "bounded",
            Weight::Error,
            "lay outside of their round trip and were moved to the middle of what is possible",
        ),
        (
            "refused",
            Weight::Error,
            "lie outside of their round trip and were left there",
        ),
    ] {
        let jobs = report.jobs.iter().filter(|job| job.state == state);
        let lines = jobs.map(|job| {
            let (path, rank) = (&job.path, job.rank);
            match (job.by_us, job.error_us, job.least_us, job.most_us) {
                (Some(by), Some(error), _, _) => {
                    format!("{path} (rank {rank}): by {by:.3} us, within {error:.3} us")
                }
                (_, _, Some(least), Some(most)) => format!(
                    "{path} (rank {rank}): by something between {least:.3} and {most:.3} us"
                ),
                _ => format!("{path} (rank {rank}): {}", job.reason.unwrap_or_default()),
            }
        });
        let lines: Vec<String> = lines.collect();
        if !lines.is_empty() {
            let text = format!("The device events of {} jobs {what}.", lines.len());
            add(findings, weight, text, lines);
        }
    }
}

fn ranks(report: &Report, findings: &mut Vec<Finding>) {
    let Some(ranks) = &report.ranks else { return };
    let lines = ranks.shifts.iter().map(|shift| match shift.us {
        Some(us) => format!(
            "rank {}: {us:+.3} us, certainly between {} and {}",
            shift.rank,
            shift
                .least_us
                .map_or("any".to_owned(), |us| format!("{us:+.3}")),
            shift
                .most_us
                .map_or("any".to_owned(), |us| format!("{us:+.3}"))
        ),
        None => format!("rank {}: no message leads to it, it was left", shift.rank),
    });
    let lines: Vec<String> = lines.collect();
    if ranks.contradiction_us > 0.0 {
        let text = format!(
            "Messages between ranks contradict each other by {:.3} us: some times are wrong.",
            ranks.contradiction_us
        );
        add(findings, Weight::Warning, text, lines.clone());
    }
    let lost = ranks.shifts.iter().filter(|shift| shift.us.is_none());
    let lost: Vec<String> = lost
        .map(|shift| format!("rank {}: no message leads to it, it was left", shift.rank))
        .collect();
    if !lost.is_empty() {
        let text = "Some ranks exchange no messages with the others.".to_owned();
        add(findings, Weight::Warning, text, lost);
    }
    let moved = ranks.shifts.iter().filter_map(|shift| shift.us);
    let most = moved.map(f64::abs).fold(0.0, f64::max);
    let text = format!(
        "The clocks of {} ranks were brought together by {} messages; they were up to {most:.3} \
         us apart.",
        ranks.shifts.len(),
        ranks.messages
    );
    add_up_to(RANKS, findings, Weight::Note, text, lines);
}

fn busy(report: &Report, findings: &mut Vec<Finding>) {
    let idle: Vec<_> = report
        .active
        .iter()
        .filter(|active| 100.0 - active.busy_percent > IDLE_PERCENT && active.elapsed_us > 0.0)
        .collect();
    let text = match idle.as_slice() {
        [] => return,
        [one] => format!(
            "The device of rank {} ran no kernel for {:.1} % of the time between its first and \
             its last.",
            one.rank,
            100.0 - one.busy_percent
        ),
        more => format!(
            "The devices of {} ranks ran no kernel for most of the time between their first and \
             their last.",
            more.len()
        ),
    };
    let lines = idle.iter().map(|active| {
        format!(
            "rank {}: busy {:.3} of {:.3} us, idle {:.1} %",
            active.rank,
            active.busy_us,
            active.elapsed_us,
            100.0 - active.busy_percent
        )
    });
    add_up_to(RANKS, findings, Weight::Warning, text, lines.collect());
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
        let text = "Some kernels take very different times from call to call.".to_owned();
        add(findings, Weight::Note, text, lines);
    }
}

fn power(report: &Report, findings: &mut Vec<Finding>) {
    let Some(power) = &report.power else { return };
    if power.bad > 0 {
        let text = format!(
            "{} of the times between charge readings give more power than a device can take.",
            power.bad
        );
        let line = format!(
            "with a factor of {}; --power-scale sets another",
            power.factor
        );
        add(findings, Weight::Warning, text, vec![line]);
    }
    if let (Some(with), Some(without)) = (power.mean_with_kernels, power.mean_without_kernels) {
        let text = format!(
            "Devices take {with:.1} W while kernels run and {without:.1} W while none does."
        );
        let line = format!("{} readings, factor {}", power.readings, power.factor);
        add(findings, Weight::Note, text, vec![line]);
    }
}

#[cfg(test)]
mod tests;
