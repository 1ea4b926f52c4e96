//! From acelyzer's names to aiprof's, with its checks.

use super::settings::{AcelyzerSettings, CounterList};
use super::stages::{self, AcelyzerStage as Stage, StageSet};
use crate::cli::analysis_plan::{AnalysisPlan, Format, IntermediateTrace};
use aiprof_model::kernel_classes::KernelClasses;
use aiprof_system::files::caller;
use aiprof_trace::analyze::config::{
    AnalysisConfig, Compatibility, EventFilter, FilterError, OptionalSteps, OverlapMode,
    PowerScale, PowerSource, TraceCounters,
};
use aiprof_trace::analyze::messages::{Level, Messages};
use std::path::{Path, PathBuf};

/// Largest profile that is read, bytes.
const MAX_PROFILE: u64 = 1 << 20;

/// Checks the options as acelyzer does before it reads anything.
///
/// # Errors
/// The text that it prints before it exits with 1; empty if a message of level error has already
/// shown it.
pub(super) fn check(settings: &AcelyzerSettings, messages: &mut Messages) -> Result<(), String> {
    if settings.freq_scaling.abs() > 1e-9 || settings.freq_scaling.is_nan() {
        return Err("ERROR: Use of obsolete cmdline '--freq_scaling'. \
                    Use '--freq=<soc>:<core>' instead!"
            .to_owned());
    }
    let is_usable = |mhz: f64| mhz > 0.0 && mhz.is_finite();
    if !settings.freq.into_iter().all(is_usable) {
        return Err(
            "Frequency settings are required to be a positive non-zero float value.".to_owned(),
        );
    }
    let counter = &settings.counter;
    if counter.has("power_ts3") && counter.has("power_ts4") {
        messages.error(
            "",
            format_args!("power_ts3 and power_ts4 are mutually exclusive"),
        );
        return Err(String::new());
    }
    if counter.has("rcu_util") {
        check_compiler_info(settings.compiler_info.as_deref(), messages);
    }
    if settings.verification_mode {
        let profile = &settings.profile;
        messages.info(
            "",
            format_args!("Running VERIFICATION MODE! Using stage profile:  {profile}"),
        );
    }
    Ok(())
}

fn check_compiler_info(info: Option<&str>, messages: &mut Messages) {
    let Some(info) = info else {
        messages.warn(
            "",
            format_args!(
                "rcu_util counter requested but no compiler log/inductor spyre directory path \
                 provided. No utilization will be plotted."
            ),
        );
        return;
    };
    for missing in info.split(',').filter(|path| !caller::exists(path)) {
        messages.warn(
            "",
            format_args!(
                "Invalid directory path provided. No utilization will be plotted. ({missing})"
            ),
        );
    }
}

/// Makes a plan of checked options. Reads the profile, if it is a file.
///
/// # Errors
/// The filter or the profile cannot be used: one line for stderr.
pub(super) fn plan(
    settings: &AcelyzerSettings,
    messages: &mut Messages,
) -> Result<AnalysisPlan, String> {
    let event_filter = event_filter(&settings.event_filter, messages)?;
    let stages = selected(settings, messages)?;
    Ok(AnalysisPlan {
        analysis: AnalysisConfig {
            event_filter,
            ..analysis(settings, &stages)
        },
        inputs: inputs(settings.input.as_deref().unwrap_or_default()),
        compiler_info: match &settings.compiler_info {
            Some(paths) => paths.split(',').map(PathBuf::from).collect(),
            None => Vec::new(),
        },
        classes: KernelClasses::default(),
        verify: settings.verification_mode,
        output: PathBuf::from(&settings.output),
        format: format(&settings.format),
        tensorboard: settings.tb,
        write_trace: settings.save_to_file,
        write_tables: true,
        intermediate: match settings.intermediate {
            true => intermediate(&settings.output, &stages),
            false => Vec::new(),
        },
        shows_ms: settings.time_unit == "ms",
        level: Level::from_number(settings.loglevel).unwrap_or(Level::Info),
    })
}

/// The stages that run: those of the profile that the options ask for.
pub(super) fn selected(
    settings: &AcelyzerSettings,
    messages: &mut Messages,
) -> Result<StageSet, String> {
    let profile = profile(&settings.profile)
        .map_err(|reason| format!("profile {}: {reason}", settings.profile))?;
    Ok(stages::register(&profile, settings, messages))
}

/// What these stages do, in aiprof's words.
fn analysis(settings: &AcelyzerSettings, stages: &StageSet) -> AnalysisConfig {
    let has = |stage| stages.contains(&stage);
    let has_host_times = has(Stage::CycleCountToWallclock);
    AnalysisConfig {
        compatibility: match settings.compat_bugs {
            true => Compatibility::AcelyzerBugs {
                second_alignment: settings.mp_sync_v2,
            },
            false => Compatibility::Acelyzer,
        },
        event_limit: settings.event_limit.clone(),
        keep_phases: match has(Stage::ProcessingFilter) {
            true => settings.filter.clone(),
            false => String::new(),
        },
        drop_globals: has(Stage::DropGlobalEvents),
        keep_prep: settings.keep_prep,
        split_events: has(Stage::TriplePhasedEvents),
        soc_mhz: settings.freq[0],
        is_given: settings.is_freq_given,
        is_fitted: false,
        core_mhz: settings.freq[1],
        move_jobs: has(Stage::FrequencyAlignApply),
        align_ranks: has(Stage::MpSyncTightV1) || has(Stage::MpTsCalibrationV2),
        overlap: overlap(&settings.overlap),
        keeps_rows: !has(Stage::DetectPartialOverlapEvents),
        spare_rows: max_tid_streams(settings.max_tid_streams),
        counters: counters(&settings.counter, stages),
        power_scale: power_scale(settings.power_scale.as_deref(), settings.compat_bugs),
        power_skip_events: settings.skip_events,
        power_statistics: has(Stage::AnalyzePowerStatistics),
        flows: has(Stage::FlowPrepareEventData) && has(Stage::FlowExtraction),
        collective_spans: settings.build_coll_event,
        join_messages: has(Stage::CommunicationApply),
        statistics: has(Stage::CalculateStats),
        shorten_names: has(Stage::TbRefinementIntrusive) && !settings.keep_names,
        steps: OptionalSteps {
            convert_times: has(Stage::TightenHtsByInstrType),
            split_names: has(Stage::RemoveIdsFromName),
            number_threads: has(Stage::MapTidToRange),
            join_host_rows: has(Stage::RecombineCpuEvents),
            check_order: has(Stage::AssertSequenceBeforeOverlap),
            link_launches: has(Stage::LaunchFlowCollect) && has(Stage::LaunchFlowCreateMissing),
            classify: has(Stage::EventCategorizer),
            find_iterations: has(Stage::CollectIterationStats),
            place_rows: has(Stage::TbRefinementLightweight),
            sum_ranks: has(Stage::CalculateStatsV2),
            count_periods: has(Stage::NormalizePhase2),
            drop_device_times: has(Stage::CleanupCopyOfDeviceTs) || !has_host_times,
            drop_host_times: has(Stage::CycleCountConversionCleanup) || !has_host_times,
        },
        ..AnalysisConfig::default()
    }
}

/// A file for each stage, as acelyzer names and numbers them.
fn intermediate(output: &str, stages: &StageSet) -> Vec<IntermediateTrace> {
    let numbered = stages.iter().enumerate();
    let of = |(number, stage): (usize, &Stage)| IntermediateTrace {
        path: PathBuf::from(format!("{output}_{number:02}_{}", stage.name())),
        after: stage.steps(),
    };
    numbered.map(of).collect()
}

/// The inputs of `-i`: separated by commas or blanks.
fn inputs(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| c == ',' || c.is_whitespace());
    let parts = parts.filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

fn format(text: &str) -> Format {
    match text {
        "pddf" => Format::Pddf,
        "protobuf" => Format::Protobuf,
        "text" => Format::Text,
        _ => Format::Json,
    }
}

fn overlap(text: &str) -> OverlapMode {
    match text {
        "drop" => OverlapMode::Drop,
        "async" => OverlapMode::Async,
        "warn" => OverlapMode::Count,
        "shift" => OverlapMode::Shift,
        _ => OverlapMode::SpareRow,
    }
}

fn counters(given: &CounterList, stages: &StageSet) -> TraceCounters {
    let has = |stage| stages.contains(&stage);
    let source = match given.has("power_ts4") {
        true => PowerSource::Ts4,
        false => PowerSource::Ts3,
    };
    // Charge is read at a counter value, of which the host time must be known.
    let has_times = has(Stage::CycleCountToWallclock);
    let has_power = has_times && has(Stage::ExtractPowerEvent) && has(Stage::ComputePower);
    TraceCounters {
        power: has_power.then_some(source),
        collectives: has(Stage::MpCalcBw) || has(Stage::MpCalcBwV2),
        transfers: has(Stage::ComputeBandwidth),
        memory: false,
        preparations: has(Stage::QueueingCounter),
        // Without fingerprints no table is a job's.
        utilization: has(Stage::UtilizationFingerprints) && has(Stage::ComputeUtilization),
    }
}

fn power_scale(text: Option<&str>, compat_bugs: bool) -> PowerScale {
    match text {
        None if compat_bugs => PowerScale::Fixed(1.0),
        None => PowerScale::Auto,
        Some(text) => super::argparse::float(text).map_or(PowerScale::Auto, PowerScale::Fixed),
    }
}

/// −1 is no limit; fewer than one acelyzer takes as one.
fn max_tid_streams(given: i64) -> Option<u32> {
    match given {
        -1 => None,
        _ => Some(u32::try_from(given.max(1)).unwrap_or(u32::MAX)),
    }
}

fn event_filter(text: &str, messages: &mut Messages) -> Result<Vec<EventFilter>, String> {
    let mut filters = Vec::new();
    if text.trim().is_empty() {
        return Ok(filters);
    }
    for item in text.split(',') {
        match EventFilter::parse(item) {
            Ok(filter) => filters.push(filter),
            Err(skipped @ FilterError::NotAPair(_)) => {
                messages.warn("FLTR", format_args!("{skipped}"));
            }
            Err(wrong) => return Err(wrong.to_string()),
        }
    }
    let enabled: Vec<_> = filters
        .iter()
        .map(|f| format!("{}:{}", f.path.join("."), f.regex))
        .collect();
    messages.info(
        "FLTR",
        format_args!(
            "FLTR: Event filtering is active. {} filters enabled: {}",
            enabled.len(),
            enabled.join(",")
        ),
    );
    Ok(filters)
}

/// A profile: a file, else one that is built in.
fn profile(name: &str) -> Result<StageSet, String> {
    let path = Path::new(name);
    match caller::metadata(path) {
        Ok(about) if about.is_file() => {
            if about.len() > MAX_PROFILE {
                return Err("too large for a profile".to_owned());
            }
            let text = caller::read_to_string(path, MAX_PROFILE).map_err(|e| e.to_string())?;
            stages::parse(&text)
        }
        _ => stages::built_in(name).ok_or_else(|| {
            "no such file, nor one of default, everything, torch_minimal and verification"
                .to_owned()
        }),
    }
}
