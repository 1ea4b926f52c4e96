//! The order of things: from events as they were read to events as they are written.
//!
//! Every step is a whole pass over the events. Which of them run, and what they are
//! called, is acelyzer's ([`Stage`]); the comments give its numbers.

use super::calibration::{self, Calibration};
use super::config::{Config, OverlapMode};
use super::messages::Messages;
use super::stages::Stage;
use super::utilization::{self, CompilerInfo, UtilizationResults, python, table};
use super::{normalize, overlap, refine, rows};
use crate::calibrate::jobs::{Place, Refusal};
use crate::timeline::{Kinds, Timeline};
use serde_json::Value;

/// A table that belongs beside the trace.
#[derive(Clone, Debug)]
pub struct Table {
    /// What its file's name ends in: `summary` of `out_summary.csv`.
    pub purpose: &'static str,
    /// Extension of its file.
    pub extension: &'static str,
    /// Its text.
    pub text: Vec<u8>,
}

/// What the analyses found besides what they did to the events.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Clocks and jobs.
    pub calibration: Calibration,
    /// Slices that overlapped.
    pub overlap: overlap::Outcome,
    /// Devices, for the trace's header.
    pub devices: Vec<Value>,
    /// Tables.
    pub tables: Vec<Table>,
}

/// Told which step begins: its name, and how many are behind it of how many.
pub type Progress<'p> = &'p mut dyn FnMut(&str, usize, usize);

/// Runs all steps.
pub fn run(
    timeline: &mut Timeline,
    config: &Config,
    compiler: &CompilerInfo,
    messages: &mut Messages,
    progress: Progress<'_>,
) -> Outcome {
    let mut run = Run {
        timeline,
        config,
        compiler,
        messages,
        outcome: Outcome::default(),
        kinds: Kinds::default(),
    };
    let steps: [(&str, Step<'_>); 6] = [
        ("selecting events", Run::select),
        ("calibrating clocks", Run::calibrate),
        ("putting events into order", Run::arrange),
        ("resolving overlaps", Run::resolve_overlaps),
        ("computing utilization", Run::utilization),
        ("naming rows", Run::refine),
    ];
    let all = steps.len();
    for (done, (name, step)) in steps.into_iter().enumerate() {
        progress(name, done, all);
        step(&mut run);
    }
    run.outcome
}

type Step<'r> = fn(&mut Run<'r>);

struct Run<'r> {
    timeline: &'r mut Timeline,
    config: &'r Config,
    compiler: &'r CompilerInfo,
    messages: &'r mut Messages,
    outcome: Outcome,
    kinds: Kinds,
}

impl Run<'_> {
    fn has(&self, stage: Stage) -> bool {
        self.config.stages.has(stage)
    }

    /// 3: normalize, first phase.
    fn select(&mut self) {
        let config = self.config;
        normalize::select(self.timeline, &config.event_limit, &config.event_filter);
        self.kinds = Kinds::new(self.timeline);
    }

    /// 4 to 7, 11 and 12: frequency, jobs, wraps, times.
    fn calibrate(&mut self) {
        let options = calibration::Options {
            mhz: self.config.soc_mhz,
            is_fitted: self.config.is_fitted,
            moves_jobs: self.has(Stage::FrequencyAlignApply),
            converts: self.has(Stage::TightenHtsByInstrType),
        };
        self.outcome.calibration = calibration::run(self.timeline, options);
        self.tell_calibration();
        if self.has(Stage::MapTidToRange) {
            rows::number_threads(self.timeline);
        }
    }

    /// 16 to 18: rows and order.
    fn arrange(&mut self) {
        if self.has(Stage::DropGlobalEvents) {
            normalize::drop_globals(self.timeline, &self.kinds);
        }
        if self.has(Stage::RecombineCpuEvents) {
            rows::join_host_rows(self.timeline, &self.kinds);
        }
        normalize::sort(self.timeline);
    }

    /// 20 and 21.
    fn resolve_overlaps(&mut self) {
        if !self.has(Stage::DetectPartialOverlapEvents) {
            return;
        }
        let config = self.config;
        let outcome = overlap::resolve(self.timeline, config.overlap, config.max_tid_streams);
        if outcome.resolved > 0 {
            let count = outcome.resolved;
            let text = format_args!("Partial-overlap slices resolved: {count}");
            self.messages.warn("POD", text);
        }
        if outcome.beyond > 0 {
            let streams = config.max_tid_streams.unwrap_or(0);
            self.messages.warn(
                "POD",
                format_args!(
                    "POD: insufficient dynamic range for tid-based overlap resolution ({streams}): \
                     {} slices got further rows",
                    outcome.beyond
                ),
            );
        }
        if outcome.left > 0 && config.overlap == OverlapMode::Shift {
            let count = outcome.left;
            let text = format_args!("Overlaps that exceed the threshold of 0.005 us: {count}");
            self.messages.warn("POD", text);
        }
        self.outcome.overlap = outcome;
    }

    /// 27 and 32: ideal cycles against time.
    fn utilization(&mut self) {
        if !self.has(Stage::ComputeUtilization) {
            return;
        }
        let results = utilization::events::run(
            self.timeline,
            &self.kinds,
            self.compiler,
            self.config.core_mhz,
            self.messages,
        );
        if self.has(Stage::CalculateStats) {
            self.tell_utilization(&results);
        }
        let rows: Vec<_> = results.categories.into_iter().flatten().collect();
        if rows.is_empty() {
            return;
        }
        type Write =
            fn(&[utilization::CategoryRow], &mut dyn std::io::Write) -> std::io::Result<()>;
        let kinds: [(&str, Write); 2] = [("csv", table::write_csv), ("txt", table::write_text)];
        for (extension, write) in kinds {
            let mut text = Vec::new();
            // Writing to memory cannot fail.
            let _ = write(&rows, &mut text);
            self.outcome.tables.push(Table {
                purpose: "categories",
                extension,
                text,
            });
        }
    }

    /// acelyzer's line about each rank.
    fn tell_utilization(&mut self, results: &UtilizationResults) {
        for (rank, sum) in &results.sums {
            let (matmul, other) = (sum.matmul_us, sum.other_us);
            let all = matmul + other;
            let share = |part: f64| if all > 0.0 { part / all } else { 0.0 };
            let shown = |value: f64, digits| python::repr(python::round(value, digits));
            self.messages.info(
                "UTL",
                format_args!(
                    "UTL: pid={rank}: avg_mm_util={}, avg_util={}, t_mm={}, t_sf={}, \
                     ratio_mm/sf={}:{}",
                    shown(sum.mean_percent, 3),
                    shown(sum.mean_percent * share(matmul), 3),
                    python::repr(matmul),
                    python::repr(other),
                    shown(share(matmul) * 100.0, 2),
                    shown(share(other) * 100.0, 2),
                ),
            );
        }
    }

    /// 38 to 41: what is left, and where it stands.
    fn refine(&mut self) {
        if self.has(Stage::ProcessingFilter) {
            let phases = &self.config.keep_phases;
            self.timeline
                .events
                .retain(|event| phases.contains(event.ph.letter()));
        }
        // Names may have been added since.
        self.kinds = Kinds::new(self.timeline);
        if self.has(Stage::TbRefinementIntrusive) && !self.config.keep_names {
            refine::shorten_names(self.timeline, &self.kinds);
        }
        if self.has(Stage::TbRefinementLightweight) {
            self.outcome.devices = refine::place(self.timeline, &self.kinds);
        }
        normalize::sort(self.timeline);
    }

    fn tell_calibration(&mut self) {
        let found = &self.outcome.calibration;
        let messages = &mut *self.messages;
        if found.long > 0 {
            let count = found.long;
            messages.warn(
                "OVC",
                format_args!(
                    "OVC: Detected {count} event(s) with long duration and thus potential \
                     undetected overflow in TSx counter."
                ),
            );
        }
        for clock in &found.clocks {
            let off = (clock.mhz - self.config.soc_mhz).abs();
            if off > 0.1 && off > clock.mhz_error && !self.config.is_fitted {
                messages.warn(
                    "FREQ",
                    format_args!(
                        "FREQ: Recommendation: to minimize event time drift between CPU and \
                         Accelerator, use: --freq={:.3} (rank {}, within {:.6} MHz)",
                        clock.mhz, clock.rank, clock.mhz_error
                    ),
                );
            }
        }
        for rank in &found.unknown {
            messages.warn(
                "FREQ",
                format_args!("FREQ: too few events to tell the clock of rank {rank}"),
            );
        }
        for job in &found.jobs {
            let name = self.timeline.jobs.get(job.job as usize);
            let name = name.map_or("", |job| job.name.as_str());
            let (rank, text) = (job.rank, describe(&job.place));
            messages.warn(
                "FREQ",
                format_args!(
                    "FREQ: job: {name} (rank {rank}) has AIU events outside of corresponding \
                     CPU range: {text}"
                ),
            );
        }
    }
}

fn describe(place: &Place) -> String {
    match place {
        Place::Right => "in place".to_owned(),
        Place::Moved { by_us, error_us } => {
            format!("moved by {by_us:.3} us, which is right within {error_us:.3} us")
        }
        Place::Bounded { least_us, most_us } => format!(
            "to be moved by something between {least_us:.3} and {most_us:.3} us; no other job \
             of the same counter epoch is in place to tell by, so it was left"
        ),
        Place::Refused(Refusal::Wider) => {
            "they take longer than it. Will not attempt to adjust timestamps.".to_owned()
        }
        Place::Refused(Refusal::ClockDisagrees) => {
            "the device's clock places them outside too. Will not attempt to adjust timestamps."
                .to_owned()
        }
    }
}
