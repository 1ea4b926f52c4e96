//! The order of things: from events as they were read to events as they are written.
//!
//! Every step is a whole pass over the events. Which of them run, and what they are
//! called, is acelyzer's ([`Stage`]); the comments give its numbers.

mod tell;

use super::calibration::{self, Calibration};
use super::config::{Config, Counters, RankAlignment};
use super::energy::{self, KernelPower, PowerStatistics};
use super::frequency;
use super::iterations::{self, Iterations};
use super::messages::Messages;
use super::stages::Stage;
use super::statistics::{self, Statistics};
use super::token_times::{self, TokenTimes};
use super::utilization::{self, CompilerInfo, table};
use super::{
    alignment, alignment_compat, bandwidth, classes, launch_flows, normalize, overlap, power,
    prep_queue, refine, rows, sequence,
};
use crate::export::tables::kernels;
use crate::timeline::{Kinds, Timeline};
use serde_json::Value;
use std::io;

/// A table that belongs beside the trace.
#[derive(Clone, Debug)]
pub struct Table {
    /// What its file's name ends in: `summary` of `out_summary.csv`.
    pub purpose: &'static str,
    /// Extension of its file.
    pub extension: &'static str,
    /// What acelyzer says before the file's name when it is written.
    pub said: &'static str,
    /// Its text.
    pub text: Vec<u8>,
}

/// What the analyses found besides what they did to the events.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Frequencies by single kernels.
    pub frequency: frequency::Outcome,
    /// Clocks and jobs.
    pub calibration: Calibration,
    /// Ranks, brought together.
    pub alignment: Option<alignment::Outcome>,
    /// Slices that overlapped.
    pub overlap: overlap::Outcome,
    /// Kernels out of order by their counters.
    pub sequence: sequence::Outcome,
    /// What repeats.
    pub iterations: Vec<Iterations>,
    /// Times of tokens, as iterations tell them.
    pub tokens: Vec<TokenTimes>,
    /// Power between readings of the charge counter.
    pub power: Option<power::Outcome>,
    /// Power with and without kernels.
    pub power_statistics: Option<PowerStatistics>,
    /// Power of kernels.
    pub kernel_power: Vec<KernelPower>,
    /// Transfers.
    pub transfers: bandwidth::Outcome,
    /// Slices by class.
    pub classes: classes::Outcome,
    /// Kernels.
    pub statistics: Statistics,
    /// Devices, for the trace's header.
    pub devices: Vec<Value>,
    /// Tables.
    pub tables: Vec<Table>,
    /// Nothing can be made of the trace, as a message says.
    pub is_fatal: bool,
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
    let steps: [(&str, Step<'_>); 10] = [
        ("selecting events", Run::select),
        ("calibrating clocks", Run::calibrate),
        ("aligning ranks", Run::align),
        ("putting events into order", Run::arrange),
        ("resolving overlaps", Run::resolve_overlaps),
        ("computing power and bandwidth", Run::count),
        ("computing utilization", Run::utilization),
        ("telling classes and flows", Run::classify),
        ("computing statistics", Run::summarize),
        ("naming rows", Run::refine),
    ];
    let all = steps.len();
    for (done, (name, step)) in steps.into_iter().enumerate() {
        progress(name, done, all);
        step(&mut run);
        if run.outcome.is_fatal {
            break;
        }
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

    fn counters(&self) -> Counters {
        self.config.counters
    }

    /// 3: normalize, first phase.
    fn select(&mut self) {
        let config = self.config;
        normalize::select(self.timeline, &config.event_limit, &config.event_filter);
        self.kinds = Kinds::new(self.timeline);
        self.outcome.frequency =
            frequency::run(self.timeline, &self.kinds, config.soc_mhz, self.messages);
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

    /// 14.
    fn align(&mut self) {
        let is_on = self.has(Stage::MpSyncTightV1) || self.has(Stage::MpTsCalibrationV2);
        if !is_on {
            return;
        }
        let level = self.config.level;
        if self.config.compat_bugs {
            let outcome = match self.config.rank_alignment {
                RankAlignment::V2 => alignment_compat::v2(self.timeline, level),
                _ => alignment_compat::tight_v1(self.timeline, level),
            };
            self.outcome.is_fatal = outcome.is_fatal;
            self.messages.append(outcome.said);
            return;
        }
        let mut outcome = alignment::run(self.timeline, level);
        let said = std::mem::replace(&mut outcome.said, Messages::new(level));
        self.messages.append(said);
        self.outcome.alignment = Some(outcome);
    }

    /// 15 to 19: rows and order.
    fn arrange(&mut self) {
        if self.has(Stage::QueueingCounter) {
            let found = prep_queue::run(self.timeline, &self.kinds, self.config.keep_prep);
            if found.dropped > 0 {
                self.timeline.sweep();
            }
        }
        if self.has(Stage::DropGlobalEvents) {
            normalize::drop_globals(self.timeline, &self.kinds);
        }
        if self.has(Stage::RecombineCpuEvents) {
            rows::join_host_rows(self.timeline, &self.kinds);
        }
        normalize::sort(self.timeline);
        if self.has(Stage::AssertSequenceBeforeOverlap) {
            self.outcome.sequence = sequence::run(self.timeline, &self.kinds, self.messages);
        }
    }

    /// 20 and 21.
    fn resolve_overlaps(&mut self) {
        if !self.has(Stage::DetectPartialOverlapEvents) {
            return;
        }
        let config = self.config;
        let outcome = overlap::resolve(self.timeline, config.overlap, config.max_tid_streams);
        self.tell_overlap(&outcome);
        self.outcome.overlap = outcome;
    }

    /// 23 to 26: iterations, power, bandwidth.
    fn count(&mut self) {
        if self.has(Stage::CollectIterationStats) {
            let found = iterations::run(self.timeline, &self.kinds, self.messages);
            let steps = token_times::steps_of_iterations(&found, self.timeline, &self.kinds);
            self.outcome.tokens = token_times::run(&steps);
            self.outcome.iterations = found;
        }
        if let Some(source) = self
            .counters()
            .power
            .filter(|_| self.has(Stage::ComputePower))
        {
            let options = power::Options {
                source,
                scale: self.config.power_scale,
                skip: self.config.power_skip_events,
            };
            let found = power::run(self.timeline, &self.kinds, &options, self.messages);
            if self.has(Stage::AnalyzePowerStatistics) {
                self.outcome.power_statistics =
                    energy::statistics(self.timeline, &self.kinds, &found.periods, self.messages);
            }
            self.outcome.kernel_power = energy::kernels(self.timeline, &self.kinds, &found.periods);
            self.outcome.power = Some(found);
        }
        if self.has(Stage::ComputeBandwidth) {
            self.outcome.transfers = bandwidth::run(self.timeline, &self.kinds, self.messages);
        }
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
                said: match extension {
                    "csv" => "UTL: category table(s) created as CSV: ",
                    _ => "UTL: category table(s) created as TXT: ",
                },
                text,
            });
        }
    }

    /// 33 to 36: order, arrows, classes.
    fn classify(&mut self) {
        normalize::sort(self.timeline);
        if self.has(Stage::LaunchFlowCollect) && self.has(Stage::LaunchFlowCreateMissing) {
            let found = launch_flows::run(self.timeline, self.config.level);
            self.messages.append(found.said);
        }
        if self.has(Stage::EventCategorizer) {
            let compat = self.config.compat_bugs;
            self.outcome.classes = classes::run(self.timeline, &self.kinds, compat);
        }
    }

    /// 37: tables of kernels.
    fn summarize(&mut self) {
        if !self.has(Stage::CalculateStats) {
            return;
        }
        let with_torch = self.config.torch_statistics;
        let found = statistics::run(self.timeline, &self.kinds, with_torch);
        type WriteTable = fn(&mut Vec<u8>, &Timeline, &Statistics) -> io::Result<()>;
        let tables: [(&str, &str, WriteTable); 3] = [
            (
                "summary",
                "SEC statistics summary file created:  ",
                kernels::write_summary,
            ),
            (
                "active",
                "SEC statistics active file created:  ",
                kernels::write_active,
            ),
            (
                "ts_analysis",
                "SEC statistics timestamp analysis file created:  ",
                kernels::write_ts_analysis,
            ),
        ];
        for (purpose, said, write) in tables {
            let mut text = Vec::new();
            // Writing to memory cannot fail.
            let _ = write(&mut text, self.timeline, &found);
            self.outcome.tables.push(Table {
                purpose,
                extension: "csv",
                said,
                text,
            });
        }
        self.outcome.statistics = found;
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
}
