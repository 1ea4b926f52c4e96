//! What an analysis found, in one structure: written as JSON beside the trace, drawn as a
//! page, and printed on the terminal.
//!
//! Times are microseconds of the trace's own clock; a number that is not known is
//! `null`.

pub use super::alignment::Cycle;
use super::calibration::RankClock;
use super::device_busy;
use super::energy::KernelPower;
use super::pipeline::Outcome;
use super::plots;
pub use super::plots::Series;
use super::report_details::{self, Details};
use super::statistics::{KernelRow, Spread};
pub use crate::finding::{Finding, FindingKind, Measure, SeenAt, Threshold, Weight};
use crate::torch::compile::CompileReport;
use aiprof_model::calibrate::jobs::{JobPosition, Refusal};
use aiprof_model::timeline::{Dialect, Id, Job, Ph, Timeline};
use rustc_hash::FxHashMap;
use serde::Serialize;

/// A file that was read.
#[derive(Clone, Debug, Serialize)]
pub struct Input {
    /// Its path as given.
    pub path: String,
    /// `flex`, `torch` or `perfetto`.
    pub dialect: &'static str,
    /// Rank that the file gives; `None`: its events give it.
    pub rank: Option<u32>,
    /// Events in it.
    pub events: usize,
    /// The file is marked as made up.
    pub is_synthetic: bool,
    /// What was wrong with it, in words with byte offsets.
    pub problems: Vec<String>,
}

/// A job that was not where it belongs.
#[derive(Clone, Debug, Serialize)]
pub struct JobShift {
    /// Its file.
    pub path: String,
    /// Rank.
    pub rank: u32,
    /// `moved`, `bounded` (moved to the middle of the bounds) or `refused`.
    pub state: &'static str,
    /// By how much it was moved, microseconds.
    pub by_us: Option<f64>,
    /// The true shift is within this of it.
    pub error_us: Option<f64>,
    /// At least this would be right.
    pub least_us: Option<f64>,
    /// At most.
    pub most_us: Option<f64>,
    /// Why it was left.
    pub reason: Option<&'static str>,
}

/// A rank's clock against the first rank's.
#[derive(Clone, Debug, Serialize)]
pub struct RankShift {
    /// Rank.
    pub rank: u32,
    /// What was added to its times, microseconds; `None`: no message leads to it.
    pub us: Option<f64>,
    /// The true shift is at least this; `None`: not bounded.
    pub least_us: Option<f64>,
    /// And at most this.
    pub most_us: Option<f64>,
}

/// How ranks were brought together.
#[derive(Clone, Debug, Serialize)]
pub struct Ranks {
    /// Every rank.
    pub shifts: Vec<RankShift>,
    /// Ways around.
    pub cycles: Vec<Cycle>,
    /// Messages that were used.
    pub messages: usize,
    /// By how much some message must arrive before it was sent, microseconds.
    pub contradiction_us: f64,
    /// Messages received before they were sent, before and after.
    pub reversed: (usize, usize),
}

/// Lengths of calls.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Lengths {
    /// How many.
    pub calls: usize,
    /// All together, microseconds.
    pub total_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub median_us: f64,
    /// Least.
    pub min_us: f64,
    /// Most.
    pub max_us: f64,
    /// Standard deviation.
    pub deviation_us: f64,
}

impl Lengths {
    fn of(spread: &Spread) -> Self {
        Self {
            calls: spread.calls,
            total_us: spread.total,
            mean_us: spread.mean,
            median_us: spread.median,
            min_us: spread.min,
            max_us: spread.max,
            deviation_us: spread.deviation,
        }
    }
}

/// A kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Kernel {
    /// Rank.
    pub rank: u32,
    /// Number or name of the device.
    pub device: String,
    /// Name; of FLEX's kernels with numbers folded.
    pub name: String,
    /// Part of its device's kernel time.
    pub percent: f64,
    /// Its calls.
    pub lengths: Lengths,
    /// Mean power while it ran, watts.
    pub mean_watts: Option<f64>,
    /// Its energy, joules.
    pub joules: Option<f64>,
    /// Its ideal time, as the compiler has it, in percent of its time.
    pub utilization_percent: Option<f64>,
}

/// How busy a device was.
#[derive(Clone, Debug, Serialize)]
pub struct Active {
    /// Rank.
    pub rank: u32,
    /// Ranks that use the same device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_ranks: Vec<u32>,
    /// Number or name of the device.
    pub device: String,
    /// Time of all kernels together, microseconds.
    pub kernel_us: f64,
    /// Time in which at least one operation ran: a kernel, copy or fill.
    pub busy_us: f64,
    /// From the first one's begin to the last one's end, in each file of its process.
    pub elapsed_us: f64,
    /// Busy in percent of that.
    pub busy_percent: f64,
}

/// What repeats on a rank.
#[derive(Clone, Debug, Serialize)]
pub struct Iterations {
    /// Rank.
    pub rank: u32,
    /// Number or name of the device; `None`: not known.
    pub device: Option<String>,
    /// Kernels of one iteration.
    pub kernels_each: usize,
    /// How many there are.
    pub count: usize,
    /// From begin to begin, microseconds.
    pub mean_us: f64,
}

/// Times of tokens, by the compiler's tables or else by iterations.
#[derive(Clone, Debug, Serialize)]
pub struct Tokens {
    /// Rank.
    pub rank: u32,
    /// Tokens.
    pub tokens: usize,
    /// To the first.
    pub first_us: Option<Lengths>,
    /// Between two.
    pub between_us: Option<Lengths>,
}

/// Power.
#[derive(Clone, Debug, Serialize)]
pub struct Power {
    /// What a unit of charge was taken for, as a factor on 12 V x charge / 512 / µs.
    pub factor: f64,
    /// Readings of the charge counter.
    pub readings: usize,
    /// Times between readings that give no possible power.
    pub bad: usize,
    /// Mean while kernels ran, watts.
    pub mean_with_kernels: Option<f64>,
    /// Mean while none ran, watts.
    pub mean_without_kernels: Option<f64>,
}

/// All of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Version of aiprof.
    pub version: &'static str,
    /// Files.
    pub inputs: Vec<Input>,
    /// Events that were written.
    pub events: usize,
    /// From the first event's begin to the last one's end, microseconds.
    pub elapsed_us: f64,
    /// Clocks of devices.
    pub clocks: Vec<RankClock>,
    /// Jobs out of place.
    pub jobs: Vec<JobShift>,
    /// Ranks brought together.
    pub ranks: Option<Ranks>,
    /// Kernels, the most time first within a rank.
    pub kernels: Vec<Kernel>,
    /// Devices.
    pub active: Vec<Active>,
    /// What repeats.
    pub iterations: Vec<Iterations>,
    /// Tokens.
    pub tokens: Vec<Tokens>,
    /// Power.
    pub power: Option<Power>,
    /// Slices that overlapped in part and were resolved.
    pub overlaps: u64,
    /// What only some traces have.
    #[serde(flatten)]
    pub details: Details,
    /// Lines for plots.
    pub series: Vec<Series>,
    /// Further lines, that were left out.
    pub series_left_out: usize,
    /// Findings, the most important first.
    pub findings: Vec<Finding>,
    /// What `torch.compile` did.
    #[serde(skip_serializing_if = "CompileReport::is_empty")]
    pub compiled: CompileReport,
}

impl Report {
    /// Whether a rank has several devices, so that only both show what a row is of.
    pub fn has_several_devices(&self) -> bool {
        let active = self.active.iter().map(|row| (row.rank, &row.device));
        let kernels = self.kernels.iter().map(|row| (row.rank, &row.device));
        let mut first: FxHashMap<u32, &String> = FxHashMap::default();
        let mut all = active.chain(kernels);
        all.any(|(rank, device)| *first.entry(rank).or_insert(device) != device)
    }
}

/// Puts it together, without findings and busy times of devices: `findings::report` has them.
/// Lines for plots take long, and may not be wanted.
pub(crate) fn make(
    timeline: &Timeline,
    outcome: &Outcome,
    inputs: Vec<Input>,
    has_plots: bool,
) -> Report {
    let plots = match has_plots {
        true => plots::gather(timeline),
        false => plots::Plots::default(),
    };
    Report {
        version: env!("CARGO_PKG_VERSION"),
        inputs,
        events: timeline.events.len(),
        elapsed_us: elapsed(timeline),
        clocks: outcome.calibration.clocks.clone(),
        jobs: jobs(timeline, outcome),
        ranks: ranks(outcome),
        kernels: kernels(timeline, outcome),
        active: Vec::new(),
        iterations: iterations(timeline, outcome),
        tokens: tokens(outcome),
        power: power(outcome),
        overlaps: outcome.overlap.resolved,
        details: report_details::details(timeline, outcome),
        series: plots.series,
        series_left_out: plots.left_out,
        findings: Vec::new(),
        compiled: outcome.compiled.clone(),
    }
}

/// What wrote a file, in reports.
pub fn writer_of(job: &Job) -> &'static str {
    match job.dialect {
        _ if job.is_recording => "aiprof",
        _ if !job.writer.is_empty() => job.writer,
        Dialect::Flex => "flex",
        Dialect::Torch => "torch",
        Dialect::Plain => "host",
    }
}

fn elapsed(timeline: &Timeline) -> f64 {
    let timed = timeline.events.iter().filter(|e| e.ph != Ph::Metadata);
    let (first, last) = timed.fold((f64::MAX, f64::MIN), |(first, last), event| {
        (first.min(event.ts()), last.max(event.end_us()))
    });
    (last - first).max(0.0)
}

fn jobs(timeline: &Timeline, outcome: &Outcome) -> Vec<JobShift> {
    let jobs = outcome.calibration.jobs.iter();
    jobs.map(|found| {
        let job = timeline.jobs.get(found.job as usize);
        let mut shift = JobShift {
            path: job.map_or(String::new(), |job| job.path.clone()),
            rank: found.rank,
            state: "refused",
            by_us: None,
            error_us: None,
            least_us: None,
            most_us: None,
            reason: None,
        };
        match found.place {
            JobPosition::Right => {}
            JobPosition::Moved(by) => {
                shift.state = "moved";
                shift.by_us = Some(by.value);
                shift.error_us = Some(by.error);
            }
            JobPosition::Bounded(by) => {
                shift.state = "bounded";
                shift.by_us = Some(by.middle());
                shift.error_us = Some((by.most - by.least) / 2.0);
                shift.least_us = Some(by.least);
                shift.most_us = Some(by.most);
                shift.reason = Some("no reference job in this counter epoch");
            }
            JobPosition::Refused(Refusal::Wider) => {
                shift.reason = Some("its device events take longer than its round trip");
            }
            JobPosition::Refused(Refusal::ClockDisagrees) => {
                shift.reason = Some("the device clock also places it outside");
            }
        }
        shift
    })
    .collect()
}

fn ranks(outcome: &Outcome) -> Option<Ranks> {
    let found = outcome.alignment.as_ref()?;
    if found.ranks.is_empty() {
        return None;
    }
    let finite = |us: f64| us.is_finite().then_some(us);
    let shifts = found.ranks.iter().map(|rank| RankShift {
        rank: rank.rank,
        us: rank.shift.map(|shift| shift.us),
        least_us: rank.shift.and_then(|shift| finite(shift.bounds.least)),
        most_us: rank.shift.and_then(|shift| finite(shift.bounds.most)),
    });
    Some(Ranks {
        shifts: shifts.collect(),
        cycles: found.cycles.clone(),
        messages: found.messages,
        contradiction_us: found.contradiction_us,
        reversed: (found.reversed_before, found.reversed_after),
    })
}

fn kernels(timeline: &Timeline, outcome: &Outcome) -> Vec<Kernel> {
    let utilization = report_details::kernel_utilization(timeline, outcome);
    type Key<'a> = (Id, &'a str);
    let power = outcome.kernel_power.iter();
    let power: FxHashMap<Key<'_>, &KernelPower> = power
        .map(|power| ((power.pid, power.name.as_str()), power))
        .collect();
    let rows = outcome.statistics.kernels.iter();
    rows.map(|row: &KernelRow| {
        let power = power.get(&(row.pid, row.name.as_str()));
        Kernel {
            rank: row.rank,
            device: device_busy::name_of(timeline, row.device),
            name: row.name.clone(),
            percent: row.percent,
            lengths: Lengths::of(&row.times),
            mean_watts: power.and_then(|power| power.mean_watts),
            joules: power.and_then(|power| power.mean_watts.map(|_| power.joules)),
            utilization_percent: utilization.get(&(row.pid, row.name.clone())).copied(),
        }
    })
    .collect()
}

fn iterations(timeline: &Timeline, outcome: &Outcome) -> Vec<Iterations> {
    let kernels = outcome.statistics.kernels.iter();
    let devices: FxHashMap<Id, Id> = kernels.map(|row| (row.pid, row.device)).collect();
    let found = outcome.iterations.iter().filter(|one| one.count > 0);
    found
        .map(|one| Iterations {
            rank: one.rank,
            device: devices
                .get(&one.pid)
                .map(|device| device_busy::name_of(timeline, *device)),
            kernels_each: one.sequence.len(),
            count: one.list.len(),
            mean_us: one.mean_us,
        })
        .collect()
}

fn tokens(outcome: &Outcome) -> Vec<Tokens> {
    let found = outcome.tokens.iter();
    found
        .map(|one| Tokens {
            rank: one.rank,
            tokens: one.tokens,
            first_us: one.first_token_us.as_ref().map(Lengths::of),
            between_us: one.between_tokens_us.as_ref().map(Lengths::of),
        })
        .collect()
}

fn power(outcome: &Outcome) -> Option<Power> {
    let found = outcome.power.as_ref()?;
    if found.periods.is_empty() {
        return None;
    }
    let statistics = outcome.power_statistics;
    Some(Power {
        factor: found.factor,
        readings: found.readings,
        bad: found.bad,
        mean_with_kernels: statistics.and_then(|s| s.with_kernels).map(|w| w.mean),
        mean_without_kernels: statistics.and_then(|s| s.without_kernels).map(|w| w.mean),
    })
}
