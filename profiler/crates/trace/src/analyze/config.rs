//! What an analysis shall do, in plain values: made by a command line, read by the
//! pipeline. The defaults are acelyzer 1.3.0's.

use super::limit::EventLimit;
use super::messages::{Level, Messages};
use super::stages::{Profile, StageSet};
use crate::torch::log::TorchLog;
use regex::Regex;
use std::path::PathBuf;

/// Everything that can be chosen about an analysis.
#[derive(Clone, Debug)]
pub struct Config {
    /// Inputs as they were given: paths, patterns for the last part of a path.
    pub inputs: Vec<String>,
    /// The trace that is written; all other outputs take their names from it.
    pub output: PathBuf,
    /// Format of the trace.
    pub format: Format,
    /// Write files for TensorBoard, one per rank.
    pub tensorboard: bool,
    /// Shorten kernel names for aggregation and add the processes of TensorBoard.
    pub refine_names: bool,
    /// Leave names as they are where `refine_names` would shorten them.
    pub keep_names: bool,
    /// Write the trace. Tables are written in either case.
    pub write_trace: bool,
    /// Write the trace after each stage, too.
    pub intermediate: bool,
    /// Unit in which viewers show times.
    pub time_unit: TimeUnit,

    /// Compiler logs, one per rank or one for all, or the inductor cache directory.
    pub compiler_info: Vec<PathBuf>,
    /// The counters that are made.
    pub counters: Counters,
    /// Frequency of the device's cycle counter, MHz.
    pub soc_mhz: f64,
    /// Somebody gave that frequency; else it is a default.
    pub is_given: bool,
    /// Use the frequency that the trace gives, where it gives one; else `soc_mhz`.
    pub is_fitted: bool,
    /// Frequency of the cores, to which ideal cycles refer, MHz.
    pub core_mhz: f64,
    /// What one unit of the charge counter is worth.
    pub power_scale: PowerScale,
    /// No power between two `Cmpt Exec`, from `DmaO` to `DmaI` and from `Cmpt Exec`
    /// to `DmaI`.
    pub power_skip_events: bool,
    /// Statistics of power with and without kernels running.
    pub power_stats: bool,

    /// Events that are dropped at the start, where any of these finds something.
    pub event_filter: Vec<EventFilter>,
    /// Events that are looked at, by number and time.
    pub event_limit: EventLimit,
    /// Phases (`ph` letters) that are written; empty: all.
    pub keep_phases: String,
    /// Drop host events without information of their own (round trips, callbacks).
    pub drop_globals: bool,
    /// Keep `Cmpt Prep` events besides their counter.
    pub keep_prep: bool,
    /// Split device events into their three phases.
    pub split_events: bool,

    /// Move jobs whose device events lie outside of their round trip.
    pub flex_ts_fix: bool,
    /// How clocks of ranks are brought together.
    pub rank_alignment: RankAlignment,
    /// What is done about events of a thread that overlap in part.
    pub overlap: OverlapMode,
    /// Slices that overlap stay on their rows, as nothing is drawn: tables know calls by
    /// their threads.
    pub keeps_rows: bool,
    /// Spare tids for each tid in [`OverlapMode::Tid`]; `None`: no limit.
    pub max_tid_streams: Option<u32>,

    /// What PyTorch's compiler printed.
    pub torch_log: TorchLog,

    /// Find flows between senders and receivers.
    pub flow: bool,
    /// Make an event of each collective, with its bandwidth; needs `flow`.
    pub build_coll_event: bool,
    /// One send and one receive for each sequence number.
    pub comm_summarize_seq: bool,
    /// Kernels of TORCH traces are in the tables too; acelyzer leaves them out.
    pub torch_statistics: bool,
    /// Write statistics tables.
    pub stats: bool,
    /// Write tables and reports beside the trace.
    pub write_tables: bool,
    /// Do what acelyzer does not, too: faults that traces are known for, shares of
    /// communication, further tables.
    pub extended: bool,
    /// Verify the input instead of analysing it.
    pub verify: bool,
    /// Report order violations of counters and go on.
    pub ignore_critical: bool,
    /// Give the timestamps that acelyzer 1.3.0 gives, where they are wrong too.
    pub compat_bugs: bool,
    /// Level of the messages that are reported.
    pub level: Level,
    /// The stages whose effects are wanted; see [`Config::select_stages`].
    pub stages: StageSet,
}

impl Default for Config {
    fn default() -> Self {
        let mut config = Self {
            inputs: Vec::new(),
            output: PathBuf::from("processed_trace.pt.trace.json"),
            format: Format::Json,
            tensorboard: false,
            refine_names: true,
            keep_names: false,
            write_trace: true,
            intermediate: false,
            time_unit: TimeUnit::Nanoseconds,
            compiler_info: Vec::new(),
            counters: Counters::default(),
            soc_mhz: 1000.0,
            is_given: false,
            is_fitted: false,
            core_mhz: 1100.0,
            power_scale: PowerScale::default(),
            power_skip_events: false,
            power_stats: false,
            event_filter: Vec::new(),
            event_limit: EventLimit::default(),
            keep_phases: String::new(),
            drop_globals: false,
            keep_prep: false,
            split_events: false,
            flex_ts_fix: false,
            rank_alignment: RankAlignment::Default,
            overlap: OverlapMode::Tid,
            keeps_rows: false,
            max_tid_streams: Some(5),
            torch_log: TorchLog::default(),
            flow: false,
            build_coll_event: false,
            comm_summarize_seq: false,
            torch_statistics: true,
            stats: true,
            write_tables: true,
            extended: false,
            verify: false,
            ignore_critical: false,
            compat_bugs: false,
            level: Level::Info,
            stages: StageSet::default(),
        };
        if let Some(profile) = Profile::builtin("default") {
            config.select_stages(&profile, &mut Messages::new(Level::Error));
        }
        config
    }
}

impl Config {
    /// Sets [`Config::stages`] from a profile and the other fields; called last.
    pub fn select_stages(&mut self, profile: &Profile, messages: &mut Messages) {
        self.stages = profile.register(self, messages);
    }

    /// Whether anybody sees the events: what is only added to be shown is not made else.
    /// acelyzer counts it in either case.
    pub(crate) fn shows_events(&self) -> bool {
        let is_written = self.write_trace && self.format != Format::Html;
        is_written || self.intermediate || !self.extended
    }
}

/// Format of the trace that is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Chrome trace events.
    #[default]
    Json,
    /// A text table of the events.
    Pddf,
    /// Perfetto's protobuf. acelyzer 1.3.0 names it and refuses it.
    Protobuf,
    /// Text; for the report of a verification only.
    Text,
    /// No trace, but the report as a page. aiprof's own.
    Html,
}

impl Format {
    /// Whether acelyzer writes traces in it.
    pub fn is_trace(self) -> bool {
        matches!(self, Self::Json | Self::Pddf)
    }
}

/// `displayTimeUnit` of Chrome traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeUnit {
    /// `ms`
    Milliseconds,
    /// `ns`
    #[default]
    Nanoseconds,
}

impl TimeUnit {
    /// As it is written in a trace.
    pub fn word(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Nanoseconds => "ns",
        }
    }
}

/// What is done about events of one thread that overlap in part, which viewers
/// cannot show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverlapMode {
    /// The later event is dropped.
    Drop,
    /// The later event moves to another tid.
    #[default]
    Tid,
    /// The later event becomes a pair of asynchronous events.
    Async,
    /// It is counted, nothing else.
    Warn,
    /// The later event starts later where that is a matter of nanoseconds.
    Shift,
}

/// How clocks of ranks are brought together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankAlignment {
    /// They stay as they are (`-M`).
    Off,
    /// By the messages between them.
    #[default]
    Default,
    /// acelyzer's second way (`-S`).
    V2,
}

/// Counter value of an event at which its charge was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerSource {
    /// TS3; watts are charge per cycle.
    Ts3,
    /// TS4; watts are charge per time.
    Ts4,
}

/// The counters that are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Power, and by which counter value.
    pub power: Option<PowerSource>,
    /// Bandwidth of collectives.
    pub coll_bw: bool,
    /// Bandwidth of data transfers.
    pub bandwidth: bool,
    /// Number of pending `Cmpt Prep`.
    pub prep_queue: bool,
    /// Utilization of the processing tensors, from ideal cycles.
    pub rcu_util: bool,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            power: Some(PowerSource::Ts4),
            coll_bw: true,
            bandwidth: false,
            prep_queue: true,
            rcu_util: true,
        }
    }
}

/// What one unit of the charge counter is worth, as a factor on acelyzer 1.3.0's
/// `12 V * charge / 512 / µs`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PowerScale {
    /// This factor. 1 is acelyzer 1.0.2 to 1.3.0; 0.00537 was 1.0.0.
    Fixed(f64),
    /// Whichever of the known factors gives possible watts; it is named.
    Auto,
}

impl Default for PowerScale {
    fn default() -> Self {
        Self::Fixed(1.0)
    }
}

/// Drops events: those in which the attribute contains a match.
#[derive(Clone, Debug)]
pub struct EventFilter {
    /// The attribute: `["name"]`, `["args", "Type"]`.
    pub path: Vec<String>,
    /// Searched in the attribute's text.
    pub regex: Regex,
}

/// Why an item of a filter cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// Not `attribute:regex`.
    #[error("FLTR: key:regex pattern not found in event filter. Skipping {0}")]
    NotAPair(String),
    /// The expression is wrong, or of a kind that is not known here.
    #[error("event filter '{pattern}': {reason}")]
    Regex {
        /// The expression as it was given.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl EventFilter {
    /// Reads `attribute.path:regex`.
    ///
    /// The expression is one of Python's, less look-around and back references, which
    /// have no bounded running time.
    ///
    /// # Errors
    /// See [`FilterError`].
    pub fn parse(item: &str) -> Result<Self, FilterError> {
        let mut parts = item.split(':');
        let (Some(path), Some(pattern), None) = (parts.next(), parts.next(), parts.next()) else {
            return Err(FilterError::NotAPair(item.to_owned()));
        };
        let regex = Regex::new(&without_python_end(pattern)).map_err(|error| {
            // The last line names the error; those above draw where it is.
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default();
            FilterError::Regex {
                pattern: pattern.to_owned(),
                reason: reason.trim_start_matches("error: ").to_owned(),
            }
        })?;
        Ok(Self {
            path: path.split('.').map(str::to_owned).collect(),
            regex,
        })
    }
}

/// Python's `\Z`, the end of the text, as the regex crate writes it.
fn without_python_end(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut escaped = false;
    for c in pattern.chars() {
        out.push(if escaped && c == 'Z' { 'z' } else { c });
        escaped = c == '\\' && !escaped;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::stages::Stage;

    #[test]
    fn filters_search_as_python_does() {
        let filter = EventFilter::parse("args.Type:XYZ\\Z").unwrap();
        assert_eq!(filter.path, ["args", "Type"]);
        assert!(filter.regex.is_match("aXYZ") && !filter.regex.is_match("XYZa"));
        let literal = EventFilter::parse(r"name:a\\Z").unwrap();
        assert!(literal.regex.is_match(r"a\Zb"));
    }

    #[test]
    fn what_a_filter_cannot_be_is_said() {
        let text = |item| EventFilter::parse(item).unwrap_err().to_string();
        assert_eq!(
            text("a:b:c"),
            "FLTR: key:regex pattern not found in event filter. Skipping a:b:c"
        );
        assert!(
            text("name:(").contains("unclosed group"),
            "{}",
            text("name:(")
        );
        assert!(
            text("name:a(?!b)").contains("look-around"),
            "{}",
            text("name:a(?!b)")
        );
    }

    #[test]
    fn the_default_runs_what_acelyzer_runs_by_default() {
        let stages = Config::default().stages;
        // Options off: no flows, no compiler log, no job shifts, one alignment.
        for off in [
            Stage::FlowExtraction,
            Stage::ComputeUtilization,
            Stage::FrequencyAlignApply,
            Stage::MpTsCalibrationV2,
            Stage::ComputeBandwidth,
            Stage::VerifySort,
        ] {
            assert!(!stages.has(off), "{off:?}");
        }
        for on in [
            Stage::NormalizePhase1,
            Stage::MpSyncTightV1,
            Stage::ComputePower,
            Stage::MpCalcBw,
            Stage::SortFinal,
        ] {
            assert!(stages.has(on), "{on:?}");
        }
    }
}
