//! The options as acelyzer keeps them, under its names: the namespace that it writes
//! into `otherData.Settings` of a trace.

use super::argparse::{self, Opt, repr};
use super::options::{COUNTERS, FORMATS, Id, OPTIONS, OVERLAPS, TIME_UNITS};
use aiprof_trace::analyze::limit::EventLimit;
use serde::Serialize;
use serde_json::{Map, Value};

/// The options in acelyzer's order; serialized, the value of `Settings`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Settings {
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
pub(super) enum Stop {
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
    pub(super) settings: Settings,
    pub(super) hint: Option<String>,
}

/// Values as the options give them, before they are completed.
struct Draft {
    settings: Settings,
    freq: String,
    output: Option<String>,
    profile: Option<String>,
    /// `-i` or `--version`, whichever came first: they exclude each other.
    first: Option<&'static Opt<Id>>,
    help: bool,
}

/// Reads a command line, without the program's name.
///
/// # Errors
/// See [`Stop`].
pub(super) fn parse(args: &[String]) -> Result<Given, Stop> {
    let mut draft = Draft::new();
    let extras = argparse::parse(OPTIONS, args, |option, values| {
        // An error in front of --help is an error; one behind it is not reached.
        match draft.help {
            true => Ok(()),
            false => draft.take(option, values),
        }
    });
    if draft.help {
        return Err(Stop::Help);
    }
    let extras = extras.map_err(Stop::Usage)?;
    if draft.first.is_none() {
        let text = "one of the arguments -i/--input --version is required";
        return Err(Stop::Usage(text.to_owned()));
    }
    if !extras.is_empty() {
        let text = format!("unrecognized arguments: {}", extras.join(" "));
        return Err(Stop::Usage(text));
    }
    draft.finish()
}

impl Draft {
    fn new() -> Self {
        let settings = Settings {
            counter: CounterList::Default("power_ts4 coll_bw prep_queue rcu_util"),
            compiler_info: None,
            loglevel: 2,
            event_filter: String::new(),
            event_limit: EventLimit::default(),
            filter: String::new(),
            format: "json".to_owned(),
            freq: [1000.0, 1100.0],
            is_freq_given: false,
            flow: false,
            freq_scaling: 0.0,
            input: None,
            intermediate: false,
            skip_events: false,
            drop_globals: false,
            skip_mpsync: false,
            overlap: "tid".to_owned(),
            max_tid_streams: 5,
            profile: String::new(),
            output: String::new(),
            build_coll_event: false,
            mp_sync_v2: false,
            split_events: false,
            stats: true,
            sync_to_dev: false,
            verification_mode: false,
            autopilot_data: "ai_kernel.db".to_owned(),
            keep_prep: false,
            keep_names: false,
            tb_refinement: true,
            tb: false,
            save_to_file: true,
            flex_ts_fix: false,
            disable_input_warnings: true,
            comm_summarize_seq: false,
            power_stats: false,
            time_unit: "ns".to_owned(),
            ignore_crit: false,
            version: false,
            compat_bugs: false,
            power_scale: None,
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

    fn take(&mut self, option: &'static Opt<Id>, values: &[&str]) -> Result<(), String> {
        let refuse = |reason: String| format!("argument {}: {reason}", option.display());
        if let Id::Input | Id::Version = option.id {
            match self.first {
                Some(first) if first.id != option.id => {
                    let first = first.display();
                    return Err(refuse(format!("not allowed with argument {first}")));
                }
                _ => self.first = Some(option),
            }
        }
        match values.first() {
            _ if option.id == Id::Counter => self.counters(values).map_err(refuse),
            Some(value) => self.value(option.id, value).map_err(refuse),
            None => {
                self.flag(option.id);
                Ok(())
            }
        }
    }

    fn counters(&mut self, values: &[&str]) -> Result<(), String> {
        let list: Result<_, _> = values.iter().map(|v| choice(v, COUNTERS)).collect();
        self.settings.counter = CounterList::Given(list?);
        Ok(())
    }

    fn value(&mut self, id: Id, value: &str) -> Result<(), String> {
        let s = &mut self.settings;
        match id {
            Id::CompilerInfo => s.compiler_info = Some(value.to_owned()),
            Id::LogLevel => s.loglevel = log_level(value)?,
            Id::EventFilter => value.clone_into(&mut s.event_filter),
            Id::EventLimit => s.event_limit = read_event_limit(value)?,
            Id::Filter => value.clone_into(&mut s.filter),
            Id::Format => s.format = choice(value, FORMATS)?,
            Id::Freq => {
                value.clone_into(&mut self.freq);
                s.is_freq_given = true;
            }
            Id::FreqScaling => {
                s.freq_scaling = argparse::float(value).ok_or_else(|| invalid("float", value))?;
            }
            Id::Input => s.input = Some(value.to_owned()),
            Id::Overlap => s.overlap = choice(value, OVERLAPS)?,
            Id::MaxTidStreams => s.max_tid_streams = int(value)?,
            Id::Profile => self.profile = Some(value.to_owned()),
            Id::Output => self.output = Some(value.to_owned()),
            Id::AutopilotData => value.clone_into(&mut s.autopilot_data),
            Id::TimeUnit => s.time_unit = choice(value, TIME_UNITS)?,
            Id::PowerScale => s.power_scale = Some(power_scale(value)?),
            _ => {}
        }
        Ok(())
    }

    fn flag(&mut self, id: Id) {
        let s = &mut self.settings;
        match id {
            Id::Help => self.help = true,
            Id::Flow => s.flow = true,
            Id::Intermediate => s.intermediate = true,
            Id::SkipEvents => s.skip_events = true,
            Id::DropGlobals => s.drop_globals = true,
            Id::NoMpSync => s.skip_mpsync = true,
            Id::BuildCollEvent => s.build_coll_event = true,
            Id::MpSyncV2 => s.mp_sync_v2 = true,
            Id::SplitEvents => s.split_events = true,
            Id::NoStats => s.stats = false,
            Id::SyncToDev => s.sync_to_dev = true,
            Id::Verify => s.verification_mode = true,
            Id::KeepPrep => s.keep_prep = true,
            Id::KeepNames => s.keep_names = true,
            Id::DisableTb => s.tb_refinement = false,
            Id::Tb => s.tb = true,
            Id::DisableFile => s.save_to_file = false,
            Id::FlexTsFix => s.flex_ts_fix = true,
            Id::CommSummarizeSeq => s.comm_summarize_seq = true,
            Id::PowerStats => s.power_stats = true,
            Id::IgnoreCrit => s.ignore_crit = true,
            Id::Version => s.version = true,
            Id::CompatBugs => s.compat_bugs = true,
            _ => {}
        }
    }

    fn finish(self) -> Result<Given, Stop> {
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
fn frequencies(text: &str, freq: &mut [f64; 2]) -> Result<Option<String>, Stop> {
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
        Stop::Fatal(format!("{hint}{text}"))
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

fn choice(value: &str, choices: &[&str]) -> Result<String, String> {
    if choices.contains(&value) {
        return Ok(value.to_owned());
    }
    let all: Vec<_> = choices.iter().map(|one| repr(one)).collect();
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
