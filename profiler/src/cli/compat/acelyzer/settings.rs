//! The options as acelyzer keeps them, under its names: the namespace that it writes
//! into `otherData.Settings` of a trace.

use super::super::options::OptionRow;
use super::argparse::{self, display, repr};
use super::help::OPTIONS;
use aiprof_trace::analyze::limit::EventLimit;
use serde::Serialize;
use serde_json::{Map, Value};

/// The options in acelyzer's order; serialized, the value of `Settings`. Without any option, most
/// are off or empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct AcelyzerSettings {
    pub(super) counter: CounterList,
    pub(super) compiler_info: Option<String>,
    pub(super) loglevel: i64,
    pub(super) event_filter: String,
    #[serde(serialize_with = "event_limit")]
    pub(super) event_limit: EventLimit,
    pub(super) filter: String,
    pub(super) format: String,
    /// MHz: of the counter, of the cores.
    pub(super) freq: [f64; 2],
    /// `--freq` was given.
    #[serde(skip)]
    pub(super) is_freq_given: bool,
    pub(super) flow: bool,
    pub(super) freq_scaling: f64,
    pub(super) input: Option<String>,
    pub(super) intermediate: bool,
    pub(super) skip_events: bool,
    pub(super) drop_globals: bool,
    pub(super) skip_mpsync: bool,
    pub(super) overlap: String,
    pub(super) max_tid_streams: i64,
    pub(super) profile: String,
    pub(super) output: String,
    pub(super) build_coll_event: bool,
    pub(super) mp_sync_v2: bool,
    pub(super) split_events: bool,
    pub(super) stats: bool,
    pub(super) sync_to_dev: bool,
    pub(super) verification_mode: bool,
    pub(super) autopilot_data: String,
    pub(super) keep_prep: bool,
    pub(super) keep_names: bool,
    pub(super) tb_refinement: bool,
    pub(super) tb: bool,
    pub(super) save_to_file: bool,
    pub(super) flex_ts_fix: bool,
    pub(super) disable_input_warnings: bool,
    pub(super) comm_summarize_seq: bool,
    pub(super) power_stats: bool,
    pub(super) time_unit: String,
    pub(super) ignore_crit: bool,
    pub(super) version: bool,
    /// Ours; written only where it was given.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) compat_bugs: bool,
    /// Ours; written only where it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) power_scale: Option<String>,
}

/// `-C`: acelyzer's default is a text, what was given a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum CounterList {
    Default(&'static str),
    Given(Vec<String>),
}

impl Default for CounterList {
    fn default() -> Self {
        Self::Given(Vec::new())
    }
}

impl CounterList {
    /// Whether the counter is wanted.
    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Default(all) => all.split(' ').any(|one| one == name),
            Self::Given(list) => list.iter().any(|one| one == name),
        }
    }
}

fn event_limit<S: serde::Serializer>(limit: &EventLimit, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeStruct as _;
    let mut out = serializer.serialize_struct("event_limit", 5)?;
    out.serialize_field("skip", &limit.skip)?;
    out.serialize_field("count", &limit.count)?;
    out.serialize_field("ts_start", &limit.ts_start)?;
    out.serialize_field("ts_end", &limit.ts_end)?;
    out.serialize_field("no_count_types", &limit.no_count_types)?;
    out.end()
}

/// How a command line ends without a run.
#[derive(Debug, PartialEq)]
pub(super) enum AcelyzerExit {
    /// `--help`.
    Help,
    /// argparse's message; exit code 2.
    Usage(String),
    /// What acelyzer prints; exit code 1.
    Fatal(String),
}

/// The options, and what acelyzer prints before it starts.
#[derive(Debug, PartialEq)]
pub(super) struct Given {
    pub(super) settings: AcelyzerSettings,
    pub(super) hint: Option<String>,
}

/// Values as the options give them, before they are completed.
struct Draft {
    settings: AcelyzerSettings,
    freq: String,
    output: Option<String>,
    profile: Option<String>,
    /// `-i` or `--version`, whichever came first: they exclude each other.
    first: Option<&'static OptionRow>,
    help: bool,
}

/// Reads a command line, without the program's name.
///
/// # Errors
/// See [`AcelyzerExit`].
pub(super) fn parse(args: &[String]) -> Result<Given, AcelyzerExit> {
    let mut draft = Draft::new();
    let extras = argparse::parse(&OPTIONS, args, |option, values| {
        // An error in front of --help is an error; one behind it is not reached.
        match draft.help {
            true => Ok(()),
            false => draft.apply(option, values),
        }
    });
    if draft.help {
        return Err(AcelyzerExit::Help);
    }
    let extras = extras.map_err(AcelyzerExit::Usage)?;
    if draft.first.is_none() {
        let text = "one of the arguments -i/--input --version is required";
        return Err(AcelyzerExit::Usage(text.to_owned()));
    }
    if !extras.is_empty() {
        let text = format!("unrecognized arguments: {}", extras.join(" "));
        return Err(AcelyzerExit::Usage(text));
    }
    draft.finish()
}

impl Draft {
    fn new() -> Self {
        let settings = AcelyzerSettings {
            counter: CounterList::Default("power_ts4 coll_bw prep_queue rcu_util"),
            loglevel: 2,
            format: "json".to_owned(),
            overlap: "tid".to_owned(),
            max_tid_streams: 5,
            stats: true,
            autopilot_data: "ai_kernel.db".to_owned(),
            tb_refinement: true,
            save_to_file: true,
            disable_input_warnings: true,
            time_unit: "ns".to_owned(),
            ..AcelyzerSettings::default()
        };
        Self {
            settings,
            freq: "1000.0:1100.0".to_owned(),
            output: None,
            profile: None,
            first: None,
            help: false,
        }
    }

    /// Applies an option with its values.
    fn apply(&mut self, option: &'static OptionRow, values: &[&str]) -> Result<(), String> {
        let refuse = |reason: String| format!("argument {}: {reason}", display(option));
        if let "--input" | "--version" = option.long {
            match self.first {
                Some(first) if first.long != option.long => {
                    let first = display(first);
                    return Err(refuse(format!("not allowed with argument {first}")));
                }
                _ => self.first = Some(option),
            }
        }
        match values.first() {
            _ if option.long == "--counter" => {
                let list: Result<_, _> = values.iter().map(|v| choice(option, v)).collect();
                self.settings.counter = CounterList::Given(list.map_err(refuse)?);
                Ok(())
            }
            Some(value) => self.set(option, value).map_err(refuse),
            None => {
                self.switch(option.long);
                Ok(())
            }
        }
    }

    /// Sets an option with a value.
    fn set(&mut self, option: &OptionRow, value: &str) -> Result<(), String> {
        let s = &mut self.settings;
        match option.long {
            "--compiler_info" => s.compiler_info = Some(value.to_owned()),
            "--loglevel" => s.loglevel = log_level(value)?,
            "--event_filter" => value.clone_into(&mut s.event_filter),
            "--event_limit" => s.event_limit = read_event_limit(value)?,
            "--filter" => value.clone_into(&mut s.filter),
            "--format" => s.format = choice(option, value)?,
            "--freq" => {
                value.clone_into(&mut self.freq);
                s.is_freq_given = true;
            }
            "--freq_scaling" => {
                s.freq_scaling = argparse::float(value).ok_or_else(|| invalid("float", value))?;
            }
            "--input" => s.input = Some(value.to_owned()),
            "--overlap" => s.overlap = choice(option, value)?,
            "--max_tid_streams" => s.max_tid_streams = int(value)?,
            "--profile" => self.profile = Some(value.to_owned()),
            "--output" => self.output = Some(value.to_owned()),
            "--autopilot_data" => value.clone_into(&mut s.autopilot_data),
            "--time_unit" => s.time_unit = choice(option, value)?,
            "--power-scale" => s.power_scale = Some(power_scale(value)?),
            other => debug_assert!(false, "{other} has no effect"),
        }
        Ok(())
    }

    /// Sets an option without a value.
    fn switch(&mut self, name: &str) {
        let s = &mut self.settings;
        match name {
            "--help" => self.help = true,
            "--flow" => s.flow = true,
            "--intermediate" => s.intermediate = true,
            "--skip_events" => s.skip_events = true,
            "--drop_globals" => s.drop_globals = true,
            "--no_mp_sync" => s.skip_mpsync = true,
            "--build_coll_event" => s.build_coll_event = true,
            "--use_mp_sync_v2" => s.mp_sync_v2 = true,
            "--split_events" => s.split_events = true,
            "--no_stats" => s.stats = false,
            "--sync_to_dev" => s.sync_to_dev = true,
            "--verify" => s.verification_mode = true,
            "--keep_prep" => s.keep_prep = true,
            "--keep_names" => s.keep_names = true,
            "--disable_tb" => s.tb_refinement = false,
            "--tb" => s.tb = true,
            "--disable_file" => s.save_to_file = false,
            "--flex_ts_fix" => s.flex_ts_fix = true,
            // That is the default, too.
            "--disable_input_warnings" => s.disable_input_warnings = true,
            "--comm_summarize_seq" => s.comm_summarize_seq = true,
            "--power-stats" => s.power_stats = true,
            "--ignore_crit" => s.ignore_crit = true,
            "--version" => s.version = true,
            "--compat-bugs" => s.compat_bugs = true,
            other => debug_assert!(false, "{other} has no effect"),
        }
    }

    fn finish(self) -> Result<Given, AcelyzerExit> {
        let mut settings = self.settings;
        settings.output = self.output.unwrap_or_else(|| {
            let name = match (settings.verification_mode, settings.tb_refinement) {
                (true, _) => "report.json",
                (false, true) => "processed_trace.pt.trace.json",
                (false, false) => "processed_trace.json",
            };
            name.to_owned()
        });
        let default_profile = if settings.tb {
            "torch_minimal.json"
        } else {
            "default.json"
        };
        settings.profile = match self.profile {
            _ if settings.verification_mode => "verification.json".to_owned(),
            Some(profile) if profile != "not_set" => profile,
            _ => default_profile.to_owned(),
        };
        let hint = frequencies(&self.freq, &mut settings.freq)?;
        Ok(Given { settings, hint })
    }
}

/// Sets both frequencies; returns acelyzer's hint where one is left to the default.
fn frequencies(text: &str, freq: &mut [f64; 2]) -> Result<Option<String>, AcelyzerExit> {
    let hint = format!(
        "HINT: --freq only specified SoC freqency {text}. Using default core freq 1100.0. \
         You may specify both by using: --freq=<soc>:<core>"
    );
    let mut parts = text.split(':');
    let soc = parts.next().and_then(argparse::float);
    let core = parts.next().map(argparse::float);
    let fatal = |text: &str| {
        let hint = if core.is_none() {
            format!("{hint}\n")
        } else {
            String::new()
        };
        AcelyzerExit::Fatal(format!("{hint}{text}"))
    };
    match (soc, core.unwrap_or(Some(1100.0))) {
        (Some(soc), Some(core)) => *freq = [soc, core],
        _ => return Err(fatal("ERROR: Frequency setting requires float values.")),
    }
    Ok(core.is_none().then_some(hint))
}

fn invalid(kind: &str, value: &str) -> String {
    format!("invalid {kind} value: {}", repr(value))
}

fn int(value: &str) -> Result<i64, String> {
    argparse::int(value).ok_or_else(|| invalid("int", value))
}

fn log_level(value: &str) -> Result<i64, String> {
    match int(value)? {
        level @ 0..=4 => Ok(level),
        other => Err(format!(
            "invalid choice: {other} (choose from 0, 1, 2, 3, 4)"
        )),
    }
}

/// One of the values that there are to choose from.
fn choice(option: &OptionRow, value: &str) -> Result<String, String> {
    if option.choices().any(|choice| choice == value) {
        return Ok(value.to_owned());
    }
    let all: Vec<_> = option.choices().map(repr).collect();
    let all = all.join(", ");
    Err(format!(
        "invalid choice: {} (choose from {all})",
        repr(value)
    ))
}

fn power_scale(value: &str) -> Result<String, String> {
    let is_usable = |scale: f64| scale.is_finite() && scale > 0.0;
    if value == "auto" || argparse::float(value).is_some_and(is_usable) {
        return Ok(value.to_owned());
    }
    let value = repr(value);
    Err(format!(
        "invalid value: {value} (a positive number or 'auto')"
    ))
}

/// The JSON of `--event_limit`. acelyzer only names its function; the reason in
/// brackets is ours.
fn read_event_limit(text: &str) -> Result<EventLimit, String> {
    let refuse = |reason: String| {
        let text = repr(text);
        format!("invalid _parse_event_limit_type value: {text} ({reason})")
    };
    let data: Value = serde_json::from_str(text).map_err(|e| refuse(e.to_string()))?;
    let Value::Object(map) = data else {
        return Err(refuse("expected a JSON object".to_owned()));
    };
    limit_of(&map).map_err(refuse)
}

fn limit_of(map: &Map<String, Value>) -> Result<EventLimit, String> {
    let mut limit = EventLimit::default();
    for (key, value) in map {
        let wrong = |kind: &str| format!("{key} must be {kind}");
        let integer = || whole(value).ok_or_else(|| wrong("an integer"));
        let number = || value.as_f64().ok_or_else(|| wrong("a number"));
        match key.as_str() {
            "skip" => limit.skip = integer()?,
            "count" => limit.count = integer()?,
            "ts_start" => limit.ts_start = number()?,
            "ts_end" => limit.ts_end = number()?,
            "no_count_types" => {
                let text = value.as_str().ok_or_else(|| wrong("a text of phases"))?;
                text.clone_into(&mut limit.no_count_types);
            }
            _ => {
                return Err(format!(
                    "unknown key {key}; use skip, count, ts_start, ts_end or no_count_types"
                ));
            }
        }
    }
    Ok(limit)
}

/// An integer, also one that is written as `1e6` or is beyond 64 bits.
fn whole(value: &Value) -> Option<i64> {
    let float = || value.as_f64().filter(|f| f.fract() == 0.0);
    // Casts of floats saturate.
    value.as_i64().or_else(|| float().map(|f| f as i64))
}
