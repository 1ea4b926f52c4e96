//! The parts of a report that only some traces have: utilization, where the compiler's
//! ideal times are known; communication, where there are several ranks; faults.

pub use super::checks::Evidence;
use super::flows::Reversed;
use super::pipeline::Outcome;
use super::statistics::Rows;
use super::untimed;
pub use super::untimed::Untimed;
use aiprof_model::timeline::{Event, Id, Ph, Timeline};
use rustc_hash::FxHashMap;
use serde::Serialize;

/// Kernels of a category on a rank.
#[derive(Clone, Debug, Serialize)]
pub struct Category {
    /// Rank.
    pub rank: i64,
    /// `TTFT` (prefill), `ITL` (decoding) or `UNKN`.
    pub phase: &'static str,
    /// Category, or `Total`.
    pub name: String,
    /// Time of its kernels, microseconds.
    pub time_us: f64,
    /// In percent of all kernels of the rank and phase.
    pub time_percent: f64,
    /// Their calls.
    pub calls: u64,
    /// What they would take at best, as the compiler has it, microseconds.
    pub ideal_us: f64,
    /// That in percent of the time; `None`: they took none.
    pub utilization_percent: Option<f64>,
}

/// Utilization of a rank.
#[derive(Clone, Debug, Serialize)]
pub struct Utilization {
    /// Rank.
    pub rank: i64,
    /// Mean of the kernels with any, weighted by time, percent.
    pub mean_percent: f64,
    /// Time of these, microseconds.
    pub matmul_us: f64,
    /// Time of the others, microseconds.
    pub other_us: f64,
}

/// Computation and communication of a rank.
#[derive(Clone, Debug, Serialize)]
pub struct Communication {
    /// Rank.
    pub rank: u32,
    /// Kernels run that are no part of a collective, microseconds.
    pub compute_us: f64,
    /// Collectives go on, microseconds.
    pub communication_us: f64,
    /// Both at once, microseconds.
    pub overlap_us: f64,
    /// That in percent of communication; `None`: there is none.
    pub overlap_percent: Option<f64>,
    /// Copies between host and device go on, microseconds.
    pub copy_us: f64,
    /// Copies behind kernels, percent of copies.
    pub copy_overlap_percent: Option<f64>,
}

/// A rank's part of a collective.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// Rank.
    pub rank: u32,
    /// Begin, microseconds since the first event of the trace.
    pub start_us: f64,
    /// How long it took it.
    pub elapsed_us: f64,
}

/// A collective operation.
#[derive(Clone, Debug, Serialize)]
pub struct Collective {
    /// Its group.
    pub group: String,
    /// `chain`, `tree`, `ring` or `other`.
    pub algorithm: String,
    /// Begin on the first rank, microseconds since the first event of the trace.
    pub start_us: f64,
    /// Until the end on the last rank, microseconds.
    pub elapsed_us: f64,
    /// Bytes of its largest message; `None`: not known.
    pub bytes: Option<i64>,
    /// All bytes by all the time.
    pub gigabytes_per_second: Option<f64>,
    /// Ranks.
    pub parts: Vec<Part>,
}

/// A fault that traces have been seen with.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    /// Which.
    pub fault: String,
    /// Events with it.
    pub count: u64,
    /// The first of them.
    pub evidence: Vec<Evidence>,
}

/// All of these.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Details {
    /// Categories by rank and phase.
    pub categories: Vec<Category>,
    /// Utilization by rank.
    pub utilization: Vec<Utilization>,
    /// Communication by rank.
    pub communication: Vec<Communication>,
    /// Collectives in the order of time.
    pub collectives: Vec<Collective>,
    /// Messages that arrive before they are sent.
    pub reversed: Vec<Reversed>,
    /// Faults that were found.
    pub faults: Vec<Fault>,
    /// Launches without device times, of recordings.
    pub untimed_launches: Vec<Untimed>,
    /// Which devices were taken for one or for several, where their numbers do not show it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices_assumed: Vec<String>,
    /// Launches of kernels, where no trace has a record of a device.
    pub unrecorded_launches: u64,
}

pub(super) fn details(timeline: &Timeline, outcome: &Outcome) -> Details {
    Details {
        categories: categories(outcome),
        utilization: utilization(outcome),
        communication: communication(outcome),
        collectives: collectives(timeline, outcome),
        reversed: outcome.reversed.clone(),
        faults: faults(outcome),
        untimed_launches: untimed::find(timeline),
        devices_assumed: timeline.identity.assumed.clone(),
        unrecorded_launches: untimed::unrecorded(timeline),
    }
}

fn percent(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole * 100.0)
}

fn categories(outcome: &Outcome) -> Vec<Category> {
    let rows = outcome.categories.iter();
    rows.map(|row| Category {
        rank: row.rank,
        phase: row.phase,
        name: row.category.clone(),
        time_us: row.time_us,
        time_percent: percent(row.time_us, row.total_us).unwrap_or(0.0),
        calls: row.calls,
        ideal_us: row.ideal_us,
        utilization_percent: percent(row.ideal_us, row.time_us),
    })
    .collect()
}

fn utilization(outcome: &Outcome) -> Vec<Utilization> {
    let sums = outcome.utilization.iter();
    sums.map(|(rank, sum)| Utilization {
        rank: *rank,
        mean_percent: sum.mean_percent,
        matmul_us: sum.matmul_us,
        other_us: sum.other_us,
    })
    .collect()
}

fn communication(outcome: &Outcome) -> Vec<Communication> {
    let shares = outcome.shares.iter();
    shares
        .filter(|share| share.communication_us > 0.0 || share.copy_us > 0.0)
        .map(|share| Communication {
            rank: share.rank,
            compute_us: share.compute_us,
            communication_us: share.communication_us,
            overlap_us: share.overlap_us,
            overlap_percent: share.overlap_percent(),
            copy_us: share.copy_us,
            copy_overlap_percent: share.copy_overlap_percent(),
        })
        .collect()
}

fn collectives(timeline: &Timeline, outcome: &Outcome) -> Vec<Collective> {
    let timed = timeline.events.iter().filter(|e| e.ph != Ph::Metadata);
    let first = timed.map(|e| e.ts()).fold(f64::MAX, f64::min);
    let found = outcome.collectives.collectives.iter();
    found
        .map(|one| Collective {
            group: timeline.name(one.group).to_owned(),
            algorithm: one.algorithm.to_string(),
            start_us: one.start_us - first,
            elapsed_us: one.end_us - one.start_us,
            bytes: (one.bytes >= 0).then_some(one.bytes),
            gigabytes_per_second: one.gigabytes_per_second,
            parts: one
                .spans
                .iter()
                .map(|span| Part {
                    rank: span.rank,
                    start_us: span.start_us - first,
                    elapsed_us: span.end_us - span.start_us,
                })
                .collect(),
        })
        .collect()
}

fn faults(outcome: &Outcome) -> Vec<Fault> {
    let found = outcome.checks.iter().flat_map(|checks| &checks.found);
    found
        .filter(|found| found.count > 0)
        .map(|found| Fault {
            fault: found.fault.to_string(),
            count: found.count,
            evidence: found.evidence.clone(),
        })
        .collect()
}

/// Utilization of kernels, percent, by row group and folded name, as their events have
/// it; for none of them without the compiler's ideal times.
pub(super) fn kernel_utilization(
    timeline: &Timeline,
    outcome: &Outcome,
) -> FxHashMap<(Id, String), f64> {
    if outcome.categories.is_empty() {
        return FxHashMap::default();
    }
    let mut rows = Rows::default();
    let mut sums: Vec<(Id, f64, f64)> = Vec::new();
    let slices = timeline.events.iter().filter(|e| e.is_slice());
    for event in slices {
        let Some(share) = active(timeline, event) else {
            continue;
        };
        let row = rows.of(timeline, event);
        if row >= sums.len() {
            sums.resize(row + 1, (timeline.pid(event), 0.0, 0.0));
        }
        if let Some((_, time, ideal)) = sums.get_mut(row) {
            *time += event.dur();
            *ideal += share * event.dur();
        }
    }
    let sums = sums.into_iter().enumerate();
    sums.filter_map(|(row, (pid, time, ideal))| {
        Some(((pid, rows.name(row).to_owned()), percent(ideal, time)?))
    })
    .collect()
}

fn active(timeline: &Timeline, event: &Event) -> Option<f64> {
    timeline.arg(event, "pt_active")?.trim().parse().ok()
}
