//! The order of things: from events as they were read to events as they are written.
//!
//! Every step is a whole pass over the events. An [`AnalysisConfig`] selects which of them run.

mod tell;

use super::calibration::{self, Calibration};
use super::config::{AnalysisConfig, Compatibility, OverlapMode};
use super::device_stalls::TimedStalls;
use super::energy::{self, KernelPower, PowerStatistics};
use super::frequency;
use super::iterations::{self, Iterations, Period};
use super::messages::{Level, Messages};
use super::statistics::{self, Statistics};
use super::token_times::{self, TokenTimes};
use super::utilization::{self, CompilerInfo};
use super::{
    alignment, alignment_compat, all_reduce_bandwidth, bandwidth, checks, classes, clip,
    collectives, comm_summary, exchanges, flows, identity, job_shifts_compat, launch_flows,
    leftovers_compat, memory_counters, message_arrows, normalize, overlap, overlap_share, power,
    prep_queue, refine, rows, sequence, split,
};
use crate::mpi::MpiTraffic;
use crate::mpi::clocks::{self, ClockReport};
use crate::torch::compile::CompileReport;
use aiprof_model::parallel;
use aiprof_model::timeline::{Kinds, Timeline};
use aiprof_system::memory;
use serde_json::Value;
use std::collections::BTreeMap;

/// Tables that belong beside the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// Time and ideal time by category: [`Outcome::categories`].
    Categories,
    /// Active time of ranks: [`Outcome::collectives`].
    Ranks,
    /// Statistics of kernels: [`Outcome::statistics`].
    Kernels,
    /// What acelyzer does not have: power of kernels, iterations, tokens.
    Further,
}

/// What the analyses found besides what they did to the events.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Frequencies by single kernels.
    pub frequency: frequency::FrequencyReport,
    /// Clocks and jobs.
    pub calibration: Calibration,
    /// Ranks, brought together.
    pub alignment: Option<alignment::AlignmentReport>,
    /// Messages and collectives of MPI.
    pub mpi: MpiTraffic,
    /// Clocks of files, brought together by these.
    pub clocks: Option<ClockReport>,
    /// Slices that overlapped.
    pub overlap: overlap::OverlapReport,
    /// Kernels out of order by their counters.
    pub sequence: sequence::SequenceReport,
    /// What repeats.
    pub iterations: Vec<Iterations>,
    /// Times of tokens, by the compiler's tables or else by iterations.
    pub tokens: Vec<TokenTimes>,
    /// Power between readings of the charge counter.
    pub power: Option<power::PowerReport>,
    /// Power with and without kernels.
    pub power_statistics: Option<PowerStatistics>,
    /// Power of kernels.
    pub kernel_power: Vec<KernelPower>,
    /// Time and ideal time of kernels by category.
    pub categories: Vec<utilization::CategoryRow>,
    /// Utilization of ranks.
    pub utilization: BTreeMap<i64, utilization::RankSum>,
    /// Transfers.
    pub transfers: bandwidth::TransferReport,
    /// Known faults of traces that were found; `None`: they were not looked for.
    pub checks: Option<checks::FaultReport>,
    /// How much ranks compute while they communicate.
    pub shares: Vec<overlap_share::Share>,
    /// Collective operations.
    pub collectives: collectives::CollectiveReport,
    /// All-reduces, where no spans are made of them.
    pub all_reduces: Vec<all_reduce_bandwidth::AllReduce>,
    /// Directions between ranks in which messages arrive before they are sent.
    pub reversed: Vec<flows::Reversed>,
    /// Slices by class.
    pub classes: classes::ClassReport,
    /// Kernels.
    pub statistics: Statistics,
    /// What `torch.compile` did.
    pub compiled: CompileReport,
    /// Kernels whose stalls were sampled, with their times.
    pub stalls: Vec<TimedStalls>,
    /// Devices, for the trace's header.
    pub devices: Vec<Value>,
    /// Tables.
    pub tables: Vec<Tables>,
    /// The trace cannot be used; a message gives the reason.
    pub is_fatal: bool,
}

/// Called when a step begins, with the events as they are, the step's name, the number of
/// steps done, and the number of all steps.
pub type Progress<'p> = &'p mut dyn FnMut(&Timeline, &str, usize, usize);

/// How many steps there are.
pub const STEPS: usize = 10;

/// Runs all steps.
pub fn run(
    timeline: &mut Timeline,
    config: &AnalysisConfig,
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
        steps: Vec::new(),
    };
    let steps: [(&str, PipelineStep<'_>); STEPS] = [
        ("selecting events", Run::select),
        ("calibrating clocks", Run::calibrate),
        ("aligning ranks", Run::align),
        ("sorting events", Run::arrange),
        ("resolving overlaps", Run::resolve_overlaps),
        ("computing power and bandwidth", Run::count),
        ("computing utilization", Run::utilization),
        ("classifying events and flows", Run::classify),
        ("computing statistics", Run::summarize),
        ("naming rows", Run::refine),
    ];
    let all = steps.len();
    for (done, (name, step)) in steps.into_iter().enumerate() {
        progress(run.timeline, name, done, all);
        step(&mut run);
        // The caller of the analysis reports the reason.
        run.outcome.is_fatal |= memory::check().is_err();
        if run.outcome.is_fatal {
            break;
        }
    }
    run.outcome
}

/// Puts the events whose times cannot be true back among the others, to be written. Returns the
/// numbers of all events in the order in which they are written.
pub fn restore(timeline: &mut Timeline) -> Vec<u32> {
    timeline.events.append(&mut timeline.aside);
    normalize::order(timeline)
}

type PipelineStep<'r> = fn(&mut Run<'r>);

/// What only looks at the events.
struct Repeats {
    iterations: Vec<Iterations>,
    tokens: Vec<TokenTimes>,
    power: Option<PowerStatistics>,
    kernels: Vec<KernelPower>,
    shares: Vec<overlap_share::Share>,
    said: Messages,
}

struct Run<'r> {
    timeline: &'r mut Timeline,
    config: &'r AnalysisConfig,
    compiler: &'r CompilerInfo,
    messages: &'r mut Messages,
    outcome: Outcome,
    kinds: Kinds,
    /// Steps of the model by the compiler's tables.
    steps: Vec<token_times::Step>,
}

impl Run<'_> {
    /// Whether the results are aiprof's own.
    fn is_own(&self) -> bool {
        self.config.compatibility.is_own()
    }

    /// Whether no trace was analysed before: its arrows and spans would be in it.
    fn is_first_time(&self) -> bool {
        !self.timeline.jobs.iter().any(|job| job.is_processed)
    }

    /// Which events are looked at, and what is wrong with them.
    fn select(&mut self) {
        let config = self.config;
        normalize::select(self.timeline, &config.event_limit, &config.event_filter);
        self.kinds = Kinds::new(self.timeline);
        if self.is_own() {
            normalize::set_aside(self.timeline, &self.kinds);
        }
        let (is_own, timeline, kinds) = (self.is_own(), &*self.timeline, &self.kinds);
        // Their messages are about the frequency that was given.
        let mut unsaid = Messages::new(Level::Error);
        let messages = match config.is_fitted {
            true => &mut unsaid,
            false => &mut *self.messages,
        };
        // Neither changes anything, so both can run at once.
        let (frequency, found) = parallel::both(
            || frequency::run(timeline, kinds, config.soc_mhz, messages),
            || is_own.then(|| checks::run(timeline, kinds)),
        );
        self.outcome.frequency = frequency;
        self.outcome.checks = found;
        if self.is_own() {
            clip::run(self.timeline, &self.kinds);
        }
    }

    /// Frequency, jobs, wraps, times.
    fn calibrate(&mut self) {
        let config = self.config;
        let is_literal = config.compatibility.has_bugs();
        if config.move_jobs && is_literal {
            job_shifts_compat::run(self.timeline, self.messages);
        }
        let options = calibration::Options {
            mhz: config.soc_mhz,
            is_fitted: config.is_fitted,
            moves_jobs: config.move_jobs && !is_literal,
            keeps_listed: !config.is_fitted && (is_literal || !config.is_given),
            converts: config.steps.convert_times,
        };
        self.outcome.calibration = calibration::run(self.timeline, options);
        self.tell_calibration();
        if config.steps.split_names && config.overlap == OverlapMode::Async {
            split::ids_from_names(self.timeline);
        }
        if config.steps.number_threads {
            rows::number_threads(self.timeline);
        }
        if config.split_events {
            split::phases(self.timeline, &self.kinds);
            self.kinds = Kinds::new(self.timeline);
        }
    }

    /// Clocks of ranks and files.
    fn align(&mut self) {
        if !self.config.align_ranks {
            return;
        }
        let level = self.messages.level();
        if let Compatibility::AcelyzerBugs { second_alignment } = self.config.compatibility {
            let outcome = match second_alignment {
                true => alignment_compat::v2(self.timeline, level),
                false => alignment_compat::tight_v1(self.timeline, level),
            };
            self.outcome.is_fatal = outcome.is_fatal;
            self.messages.append(outcome.said);
            return;
        }
        let mut outcome = alignment::run(self.timeline, level);
        let said = std::mem::replace(&mut outcome.said, Messages::new(level));
        self.messages.append(said);
        self.outcome.alignment = Some(outcome);
        let traffic = MpiTraffic::of(self.timeline);
        if let Some(mut found) = clocks::run(self.timeline, &traffic, level) {
            let said = std::mem::replace(&mut found.said, Messages::new(level));
            self.messages.append(said);
            self.outcome.clocks = Some(found);
        }
    }

    /// Rows and order.
    fn arrange(&mut self) {
        let config = self.config;
        if config.counters.preparations {
            let found = prep_queue::run(self.timeline, &self.kinds, config.keep_prep);
            if found.dropped > 0 {
                self.timeline.sweep();
            }
        }
        if config.drop_globals {
            normalize::drop_globals(self.timeline, &self.kinds);
        }
        if config.steps.join_host_rows {
            rows::join_host_rows(self.timeline, &self.kinds);
        }
        normalize::sort(self.timeline);
        if config.steps.check_order {
            self.outcome.sequence = sequence::run(self.timeline, &self.kinds, self.messages);
        }
    }

    /// Slices that overlap in part.
    fn resolve_overlaps(&mut self) {
        let config = self.config;
        if config.keeps_rows {
            return;
        }
        let (mode, spare) = (config.overlap, config.spare_rows);
        let outcome = overlap::resolve(self.timeline, mode, spare, self.messages);
        if self.is_own() {
            overlap::move_arrows(self.timeline);
        }
        self.tell_overlap(&outcome);
        self.outcome.overlap = outcome;
    }

    /// Power, bandwidth, memory.
    fn count(&mut self) {
        let config = self.config;
        if let Some(source) = config.counters.power {
            let options = power::PowerOptions {
                source,
                scale: config.power_scale,
                skip: config.power_skip_events,
                is_literal: config.compatibility.has_bugs(),
            };
            let found = power::run(self.timeline, &self.kinds, &options, self.messages);
            if !self.is_own() {
                // acelyzer prints it for the step before as well, which has none.
                let text = format_args!("PEC event stats o/i: 0 / 0");
                self.messages.info("PEC", text);
            }
            self.outcome.power = Some(found);
        }
        if config.counters.transfers {
            self.outcome.transfers = bandwidth::run(self.timeline, &self.kinds, self.messages);
        }
        if config.counters.memory {
            memory_counters::run(self.timeline);
        }
    }

    /// Ideal cycles against time.
    fn utilization(&mut self) {
        if !self.config.counters.utilization {
            return;
        }
        let results = utilization::events::run(
            self.timeline,
            &self.kinds,
            self.compiler,
            self.config.core_mhz,
            self.is_own(),
            self.messages,
        );
        if self.config.statistics {
            self.tell_utilization(&results);
        }
        let rows: Vec<_> = results.categories.into_iter().flatten().collect();
        self.outcome.utilization = results.sums;
        self.steps = results.steps;
        if rows.is_empty() {
            return;
        }
        self.outcome.tables.push(Tables::Categories);
        self.outcome.categories = rows;
    }

    /// Order, arrows, classes, collectives.
    fn classify(&mut self) {
        let config = self.config;
        if config.join_messages {
            comm_summary::run(self.timeline, &self.kinds);
            self.timeline.sweep();
            self.kinds = Kinds::new(self.timeline);
        }
        // Counters that were added may stand where they are, slices may not.
        if matches!(config.overlap, OverlapMode::Shift | OverlapMode::Async) {
            normalize::sort(self.timeline);
        }
        if config.steps.link_launches && self.is_first_time() {
            let level = self.messages.level();
            let found = launch_flows::run(self.timeline, config.shows_events, level);
            self.messages.append(found.said);
        }
        if config.steps.classify {
            let has_bugs = config.compatibility.has_bugs();
            self.outcome.classes = classes::run(self.timeline, &self.kinds, has_bugs);
            self.tell_mismatches(has_bugs);
        }
        self.collect();
    }

    /// Messages between ranks, and what they make together.
    fn collect(&mut self) {
        let (config, is_first_time) = (self.config, self.is_first_time());
        let finds_flows = config.flows && is_first_time;
        let mut messages = None;
        if finds_flows {
            let found = flows::run(self.timeline, self.messages.level());
            self.messages.append(found.said);
            self.outcome.reversed = found.reversed;
            messages = Some(found.exchanges);
        }
        if self.is_own() {
            // Again: events are at other times and places now.
            self.outcome.mpi = MpiTraffic::of(self.timeline);
            if finds_flows {
                message_arrows::add(self.timeline, &self.outcome.mpi);
            }
        }
        if config.counters.collectives && !config.collective_spans {
            self.outcome.all_reduces = all_reduce_bandwidth::run(self.timeline, &self.kinds);
        }
        if config.counters.collectives && config.collective_spans && is_first_time {
            let found = messages
                .unwrap_or_else(|| exchanges::find(self.timeline, exchanges::Clocks::Aligned));
            // Sizes have left the names.
            self.kinds = Kinds::new(self.timeline);
            let found = collectives::run(self.timeline, &self.kinds, &found.pairs);
            if config.steps.sum_ranks {
                self.outcome.tables.push(Tables::Ranks);
            }
            self.outcome.collectives = found;
        }
    }

    /// Iterations, energy, tables of kernels.
    fn summarize(&mut self) {
        // Neither changes anything, so both can run at once.
        let this = &*self;
        // acelyzer leaves kernels of Torch's traces out.
        let with_torch = !this.config.compatibility.has_bugs();
        let (kernels, repeats) = parallel::both(
            || {
                this.config
                    .statistics
                    .then(|| statistics::run(this.timeline, &this.kinds, with_torch))
            },
            || this.repeats(),
        );
        if self.is_own() {
            let log = &self.config.torch_log;
            self.outcome.compiled = CompileReport::new(self.timeline, log);
        }
        self.outcome.iterations = repeats.iterations;
        self.outcome.tokens = repeats.tokens;
        self.outcome.power_statistics = repeats.power;
        self.outcome.kernel_power = repeats.kernels;
        self.outcome.shares = repeats.shares;
        self.messages.append(repeats.said);
        if let Some(found) = kernels {
            self.outcome.tables.push(Tables::Kernels);
            self.outcome.statistics = found;
            if self.is_own() {
                self.outcome.tables.push(Tables::Further);
            }
        }
    }

    fn repeats(&self) -> Repeats {
        let mut said = Messages::new(self.messages.level());
        let (is_own, timeline, kinds) = (self.is_own(), &*self.timeline, &self.kinds);
        let (mut iterations, mut tokens) = (Vec::new(), Vec::new());
        if self.config.steps.find_iterations {
            let period = match is_own {
                true => Period::Smallest,
                false => Period::Acelyzer,
            };
            iterations = iterations::run(timeline, kinds, period, &mut said);
            if is_own {
                // The compiler's tables decide; kernels that repeat are a guess.
                tokens = match self.steps.as_slice() {
                    [] => {
                        let steps = token_times::steps_of_iterations(&iterations, timeline, kinds);
                        token_times::run(&steps)
                    }
                    steps => token_times::run(steps),
                };
            }
        }
        let periods = self.outcome.power.as_ref().map(|power| &power.periods);
        // That there is none is worth a word only where it was asked for.
        let statistics = periods
            .filter(|periods| self.config.power_statistics && !(is_own && periods.is_empty()));
        Repeats {
            iterations,
            tokens,
            power: statistics
                .and_then(|periods| energy::statistics(timeline, kinds, periods, &mut said)),
            kernels: match periods.filter(|_| is_own) {
                Some(periods) => energy::kernels(timeline, kinds, periods, &mut said),
                None => Vec::new(),
            },
            shares: match is_own {
                true => overlap_share::run(timeline, kinds),
                false => Vec::new(),
            },
            said,
        }
    }

    /// What is left, and where it stands.
    fn refine(&mut self) {
        let config = self.config;
        if !config.keep_phases.is_empty() {
            let phases = &config.keep_phases;
            self.timeline
                .events
                .retain(|event| phases.contains(event.ph.letter()));
        }
        // Names may have been added since.
        self.kinds = Kinds::new(self.timeline);
        let steps = &config.steps;
        if !(steps.count_periods && steps.drop_device_times && steps.drop_host_times) {
            leftovers_compat::keep(self.timeline, steps);
        }
        if config.shorten_names {
            let all = !self.is_own();
            refine::shorten_names(self.timeline, &self.kinds, all);
        }
        let has_bugs = config.compatibility.has_bugs();
        if config.steps.place_rows {
            self.outcome.devices = refine::place(self.timeline, &self.kinds, has_bugs);
        }
        identity::separate_arrows(self.timeline);
    }
}
