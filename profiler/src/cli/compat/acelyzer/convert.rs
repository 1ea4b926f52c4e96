//! From acelyzer's names to plain configuration, with its checks.

use super::settings::{AcelyzerSettings, CounterList};
use aiprof_system::files::caller;
use aiprof_trace::analyze::config::{
    Config, Counters, EventFilter, FilterError, Format, OverlapMode, PowerScale, PowerSource,
    RankAlignment, TimeUnit,
};
use aiprof_trace::analyze::messages::{Level, Messages};
use aiprof_trace::analyze::stages::Profile;
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

/// Makes the configuration of checked options. Reads the profile, if it is a file.
///
/// # Errors
/// The filter or the profile cannot be used: one line for stderr.
pub(super) fn config(
    settings: &AcelyzerSettings,
    messages: &mut Messages,
) -> Result<Config, String> {
    let mut config = Config {
        inputs: inputs(settings.input.as_deref().unwrap_or_default()),
        output: PathBuf::from(&settings.output),
        format: format(&settings.format),
        tensorboard: settings.tb,
        refine_names: settings.tb_refinement,
        keep_names: settings.keep_names,
        write_trace: settings.save_to_file,
        intermediate: settings.intermediate,
        time_unit: match settings.time_unit.as_str() {
            "ms" => TimeUnit::Milliseconds,
            _ => TimeUnit::Nanoseconds,
        },
        compiler_info: match &settings.compiler_info {
            Some(paths) => paths.split(',').map(PathBuf::from).collect(),
            None => Vec::new(),
        },
        counters: counters(&settings.counter),
        soc_mhz: settings.freq[0],
        is_given: settings.is_freq_given,
        core_mhz: settings.freq[1],
        power_scale: power_scale(settings.power_scale.as_deref(), settings.compat_bugs),
        power_skip_events: settings.skip_events,
        power_stats: settings.power_stats,
        event_filter: event_filter(&settings.event_filter, messages)?,
        event_limit: settings.event_limit.clone(),
        keep_phases: settings.filter.clone(),
        drop_globals: settings.drop_globals,
        keep_prep: settings.keep_prep,
        split_events: settings.split_events,
        flex_ts_fix: settings.flex_ts_fix,
        rank_alignment: match (settings.skip_mpsync, settings.mp_sync_v2) {
            (true, _) => RankAlignment::Off,
            (false, true) => RankAlignment::V2,
            (false, false) => RankAlignment::Default,
        },
        overlap: overlap(&settings.overlap),
        max_tid_streams: max_tid_streams(settings.max_tid_streams),
        flow: settings.flow,
        build_coll_event: settings.build_coll_event,
        comm_summarize_seq: settings.comm_summarize_seq,
        torch_statistics: !settings.compat_bugs,
        stats: settings.stats,
        verify: settings.verification_mode,
        ignore_critical: settings.ignore_crit,
        compat_bugs: settings.compat_bugs,
        level: Level::from_number(settings.loglevel).unwrap_or(Level::Info),
        ..Config::default()
    };
    let profile = profile(&settings.profile)
        .map_err(|reason| format!("profile {}: {reason}", settings.profile))?;
    config.select_stages(&profile, messages);
    Ok(config)
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
        "warn" => OverlapMode::Warn,
        "shift" => OverlapMode::Shift,
        _ => OverlapMode::Tid,
    }
}

fn counters(given: &CounterList) -> Counters {
    let power = if given.has("power_ts4") {
        Some(PowerSource::Ts4)
    } else if given.has("power_ts3") {
        Some(PowerSource::Ts3)
    } else {
        None
    };
    Counters {
        power,
        coll_bw: given.has("coll_bw"),
        bandwidth: given.has("bandwidth"),
        prep_queue: given.has("prep_queue"),
        rcu_util: given.has("rcu_util"),
    }
}

fn power_scale(text: Option<&str>, compat_bugs: bool) -> PowerScale {
    match text {
        None if compat_bugs => PowerScale::default(),
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
fn profile(name: &str) -> Result<Profile, String> {
    let path = Path::new(name);
    match caller::metadata(path) {
        Ok(about) if about.is_file() => {
            if about.len() > MAX_PROFILE {
                return Err("too large for a profile".to_owned());
            }
            let text = caller::read_to_string(path, MAX_PROFILE).map_err(|e| e.to_string())?;
            Profile::parse(&text).map_err(|e| e.to_string())
        }
        _ => Profile::builtin(name).ok_or_else(|| {
            "no such file, nor one of default, everything, torch_minimal and verification"
                .to_owned()
        }),
    }
}
