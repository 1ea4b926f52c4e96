//! What costs time, by seconds: findings with their cost, where they are and what to try.
//!
//! Costs are wall time that could be won at most, each as if only it were mended. They
//! overlap and are not to be added.

mod collectives;
mod compile;
mod copies;
pub(crate) mod device;
pub(crate) mod host;
mod idle;
mod kernels;
mod loader;
mod rules;
mod stalls;
mod traces;

use crate::analyze::device_busy;
use crate::analyze::pipeline::Outcome;
use crate::analyze::report::{self, Active, Input, Report};
use crate::device_time::DeviceTime;
use crate::finding::{Finding, Measure, SeenAt};
use crate::work::{SharedWork, WorkIndex};
use aiprof_model::timeline::{Event, Id, NONE, Ph, Time, Timeline};
use host::HostRows;
use rustc_hash::FxHashMap;

/// What findings are made of.
struct Scene<'t> {
    /// The events, calibrated and aligned.
    timeline: &'t Timeline,
    /// What the analyses found.
    outcome: &'t Outcome,
    index: &'t WorkIndex,
    devices: Vec<DeviceTime<'t>>,
    host: HostRows,
    /// Names of processes and groups of rows of recordings.
    groups: FxHashMap<Id, String>,
    /// The first event.
    first: Time,
    /// From the first event to the last, microseconds.
    elapsed_us: f64,
}

/// What of a report takes long, and may not be wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// What plots show.
    pub plots: bool,
    /// Findings of what wastes time.
    pub waste: bool,
}

/// What an analysis found, with its findings.
pub fn report(
    timeline: &Timeline,
    outcome: &Outcome,
    inputs: Vec<Input>,
    wanted: Wanted,
    shared: &SharedWork,
) -> Report {
    let mut report = report::make(timeline, outcome, inputs, wanted.plots);
    let mut costs = Vec::new();
    if wanted.waste {
        (costs, report.active) = find(timeline, outcome, shared, report.elapsed_us);
    }
    report.findings = traces::find(&report, costs);
    report
}

/// Looks for waste, and at how busy devices are.
fn find(
    timeline: &Timeline,
    outcome: &Outcome,
    shared: &SharedWork,
    elapsed_us: f64,
) -> (Vec<Finding>, Vec<Active>) {
    let index = shared.work_index(timeline);
    let scene = Scene {
        timeline,
        outcome,
        devices: DeviceTime::of_all(&index.ranks),
        host: HostRows::new(timeline, index),
        index,
        groups: groups(timeline),
        first: timeline.earliest(),
        elapsed_us,
    };
    let mut findings = Vec::new();
    for search in &rules::SEARCHES {
        (search.find)(&scene, &mut findings);
    }
    let active = device_busy::rows(timeline, &scene.devices);
    (findings, active)
}

impl Scene<'_> {
    /// An event's rank, as the index of work has it.
    fn rank(&self, event: &Event) -> u32 {
        match self.timeline.rank(event) {
            NONE => 0,
            rank => rank,
        }
    }

    /// A device's name for people.
    fn device(&self, device: &DeviceTime<'_>) -> String {
        let several = self.index.ranks.len() > 1;
        let name = match device.device.number {
            Id::Number(number) if several => format!("device {number}"),
            Id::Number(number) => match self.groups.get(&device.device.number) {
                Some(name) => name.clone(),
                None => format!("device {number}"),
            },
            Id::Token(text) => self.timeline.name(text).trim_matches('"').to_owned(),
        };
        let host = self.timeline.identity.host_name(device.device.host);
        let host = host.map_or(String::new(), |host| format!(" on {host}"));
        match (several, &device.ranks[..]) {
            (false, _) => name + &host,
            (true, [_] | []) => format!("{name} of rank {}{host}", device.rank.rank),
            (true, [front @ .., last]) => {
                let front: Vec<String> = front.iter().map(u32::to_string).collect();
                format!("{name} of ranks {} and {last}{host}", front.join(", "))
            }
        }
    }

    /// Since the first event, microseconds.
    fn since(&self, time: Time) -> f64 {
        (time - self.first).micros()
    }

    /// Where something is seen on a device.
    fn at(&self, device: &DeviceTime<'_>, stretch: Option<(Time, Time)>, us: f64) -> SeenAt {
        SeenAt {
            rank: Some(device.rank.rank),
            device: Some(self.device(device)),
            start_us: stretch.map(|(from, _)| self.since(from)),
            end_us: stretch.map(|(_, to)| self.since(to)),
            cost_ns: Some(rules::ns(us)),
            ..SeenAt::default()
        }
    }
}

/// Names of groups of rows, where aiprof recorded them: of others a device's number is one.
fn groups(timeline: &Timeline) -> FxHashMap<Id, String> {
    if !timeline.jobs.iter().any(|job| job.is_recording) {
        return FxHashMap::default();
    }
    let names = timeline
        .events
        .iter()
        .filter(|event| event.ph == Ph::Metadata && timeline.name(event.name) == "process_name");
    let names = names.filter_map(|event| {
        let name = timeline.arg(event, "name")?;
        Some((timeline.pid(event), name.trim_matches('"').to_owned()))
    });
    names.collect()
}

/// Lines of evidence, places or names of one finding.
const LINES: usize = 8;

/// Cuts a list of lines, and adds how many are left out.
fn cut(lines: Vec<String>) -> Vec<String> {
    cut_to(LINES, lines)
}

/// The same to another number of lines.
fn cut_to(most: usize, mut lines: Vec<String>) -> Vec<String> {
    if lines.len() > most {
        let more = lines.len() - most;
        lines.truncate(most);
        lines.push(format!("and {more} more"));
    }
    lines
}

fn measure(name: &'static str, value: f64, unit: &'static str) -> Measure {
    Measure { name, value, unit }
}

/// Characters of a name in a sentence.
const NAME: usize = 80;

/// A name that fits a sentence.
pub(crate) fn short(name: &str) -> String {
    let cut: String = name.chars().take(NAME).collect();
    match cut.len() < name.len() {
        true => cut + "[..]",
        false => cut,
    }
}

/// `3 times`.
fn times(count: u64, what: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {what}{ending}")
}

/// Part of a whole, percent.
fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 {
        part / whole * 100.0
    } else {
        0.0
    }
}

#[cfg(test)]
mod generated;
#[cfg(test)]
mod rank_tests;
#[cfg(test)]
mod tests;
