//! What an analysis shall do, in plain values: made by a command line, read by the pipeline. What
//! is read and written, and where, is not part of it.

use super::limit::EventLimit;
use crate::torch::log::TorchLog;
use regex::Regex;

/// Everything that can be chosen about an analysis. The defaults are those of `aiprof analyze`,
/// without counters.
#[derive(Clone, Debug)]
pub struct AnalysisConfig {
    /// How far the results are those of acelyzer.
    pub compatibility: Compatibility,

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

    /// Frequency of the device's cycle counter, MHz.
    pub soc_mhz: f64,
    /// Somebody gave that frequency; else it is a default.
    pub is_given: bool,
    /// Use the frequency that the trace gives, where it gives one; else `soc_mhz`.
    pub is_fitted: bool,
    /// Frequency of the cores, to which ideal cycles refer, MHz.
    pub core_mhz: f64,
    /// Move jobs whose device events lie outside of their round trip.
    pub move_jobs: bool,
    /// Bring the clocks of ranks together.
    pub align_ranks: bool,

    /// What is done about events of a thread that overlap in part.
    pub overlap: OverlapMode,
    /// Slices that overlap stay on their rows, as nothing is drawn: tables know calls by
    /// their threads.
    pub keeps_rows: bool,
    /// Spare rows for each row in [`OverlapMode::SpareRow`]; `None`: no limit.
    pub spare_rows: Option<u32>,

    /// The counters that are made.
    pub counters: TraceCounters,
    /// What one unit of the charge counter is worth.
    pub power_scale: PowerScale,
    /// No power between two `Cmpt Exec`, from `DmaO` to `DmaI` and from `Cmpt Exec`
    /// to `DmaI`.
    pub power_skip_events: bool,
    /// Statistics of power with and without kernels running.
    pub power_statistics: bool,

    /// Find flows between senders and receivers.
    pub flows: bool,
    /// Make an event of each collective, with its bandwidth; needs `flows`.
    pub collective_spans: bool,
    /// One send and one receive for each sequence number.
    pub join_messages: bool,
    /// What PyTorch's compiler printed.
    pub torch_log: TorchLog,
    /// Statistics of kernels.
    pub statistics: bool,
    /// Shorten names of kernels, so that more of them are equal.
    pub shorten_names: bool,
    /// Somebody sees the events: what is only added to be shown is made.
    pub shows_events: bool,
    /// What else is done.
    pub steps: OptionalSteps,
}

impl Default for AnalysisConfig {
    fn default() -> Self {
        Self {
            compatibility: Compatibility::Own,
            event_filter: Vec::new(),
            event_limit: EventLimit::default(),
            keep_phases: String::new(),
            drop_globals: false,
            keep_prep: true,
            split_events: false,
            soc_mhz: 1000.0,
            is_given: false,
            is_fitted: true,
            core_mhz: 1100.0,
            move_jobs: true,
            align_ranks: true,
            overlap: OverlapMode::SpareRow,
            keeps_rows: false,
            spare_rows: Some(64),
            counters: TraceCounters::default(),
            power_scale: PowerScale::Auto,
            power_skip_events: false,
            power_statistics: true,
            flows: true,
            collective_spans: true,
            join_messages: false,
            torch_log: TorchLog::default(),
            statistics: true,
            shorten_names: false,
            shows_events: true,
            steps: OptionalSteps::default(),
        }
    }
}

/// How far the results are those of acelyzer 1.3.0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compatibility {
    /// aiprof's own results. They include what acelyzer does not look for: faults that traces are
    /// known for, shares of communication, further tables.
    #[default]
    Own,
    /// acelyzer's results, rules and messages; its mistakes are corrected.
    Acelyzer,
    /// acelyzer's results with its mistakes.
    AcelyzerBugs {
        /// Ranks are aligned in acelyzer's second way.
        second_alignment: bool,
    },
}

impl Compatibility {
    /// Whether the results are aiprof's own.
    pub fn is_own(self) -> bool {
        self == Self::Own
    }

    /// Whether the results have acelyzer's mistakes.
    pub fn has_bugs(self) -> bool {
        matches!(self, Self::AcelyzerBugs { .. })
    }
}

/// Steps that are left out only where somebody asks for acelyzer's results with fewer steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionalSteps {
    /// Device events get the times of their counters.
    pub convert_times: bool,
    /// Numbers of requests go from names to arguments, with [`OverlapMode::Async`].
    pub split_names: bool,
    /// Threads get numbers with room for spare rows between them.
    pub number_threads: bool,
    /// Host events go on one row.
    pub join_host_rows: bool,
    /// Kernels are compared with their order on the device.
    pub check_order: bool,
    /// Arrows go from launches to kernels.
    pub link_launches: bool,
    /// Slices get classes.
    pub classify: bool,
    /// Kernels that repeat are iterations.
    pub find_iterations: bool,
    /// Events get the processes of a device and its host.
    pub place_rows: bool,
    /// Active time of ranks becomes a table.
    pub sum_ranks: bool,
    /// Events show how often their counters had wrapped before.
    pub count_periods: bool,
    /// Times of counters, microseconds since the counter's zero, are not shown.
    pub drop_device_times: bool,
    /// Nor are those on the host's clock.
    pub drop_host_times: bool,
}

impl Default for OptionalSteps {
    fn default() -> Self {
        Self {
            convert_times: true,
            split_names: true,
            number_threads: true,
            join_host_rows: true,
            check_order: true,
            link_launches: true,
            classify: true,
            find_iterations: true,
            place_rows: true,
            sum_ranks: true,
            count_periods: true,
            drop_device_times: true,
            drop_host_times: true,
        }
    }
}

/// What is done about events of one thread that overlap in part, which viewers
/// cannot show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverlapMode {
    /// The later event is dropped.
    Drop,
    /// The later event moves to a spare row.
    #[default]
    SpareRow,
    /// The later event becomes a pair of asynchronous events.
    Async,
    /// It is counted, nothing else.
    Count,
    /// The later event starts later where that is a matter of nanoseconds.
    Shift,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceCounters {
    /// Power, and by which counter value.
    pub power: Option<PowerSource>,
    /// Bandwidth of collectives.
    pub collectives: bool,
    /// Bandwidth of data transfers.
    pub transfers: bool,
    /// Allocated memory.
    pub memory: bool,
    /// Number of pending `Cmpt Prep`.
    pub preparations: bool,
    /// Utilization of the processing tensors, from ideal cycles.
    pub utilization: bool,
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
}
