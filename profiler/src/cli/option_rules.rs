//! What options need of each other and of what is written, as a table.
//!
//! clap checks what concerns options alone (`conflicts_with`, `requires`). Here is what depends on
//! the format, on COMMAND or on what is recorded.

use super::usage_error;
use aiprof_formats::export::formats::ProfilePart;
use aiprof_formats::export::{FileFormat, FormatSource};
use anyhow::Result;

/// There is a COMMAND.
pub(crate) const COMMAND: &str = "COMMAND";
/// Waits are recorded or shown.
pub(crate) const WAITS: &str = "--off-cpu and --wall";
/// Calls and kernels are recorded.
pub(crate) const PROBES: &str = "probes";
/// The samples count something else than time.
pub(crate) const CYCLES: &str = "--event cycles";
/// aiprof has its privileges from its file.
pub(crate) const FILE_CAPABILITIES: &str = "file capabilities";
/// Single events are kept.
pub(crate) const EVENTS_KEPT: &str = "events kept";
/// A timeline is written.
pub(crate) const TRACE: &str = "trace";
/// A trace is made of a capture, which has its waits.
pub(crate) const TRACE_OF_CAPTURE: &str = "trace of a capture";
/// The format is a capture.
const CAPTURE: &str = "capture";
/// The format has events, not only what they add up to.
const EVENT_FORMAT: &str = "format of events";
/// A recording becomes a page of findings.
pub(crate) const FINDINGS: &str = "findings";
/// The format has frames that options choose and order.
const FRAMES: &str = "frames";
/// The format has source lines anyway.
const SOURCE_LINES: &str = "source lines";
/// The format has only device samples.
const STALLS: &str = "stalls";
/// The format leaves out processes that launched no work.
const CHOSEN_PROCESSES: &str = "chosen processes";

/// How options and what else holds relate.
enum Relation {
    /// One of these must hold.
    Requires,
    /// None of these may hold.
    Excludes,
}

/// A rule about options, and about what holds: other options that were given, and the constants
/// above.
struct OptionRule {
    options: &'static [&'static str],
    relation: Relation,
    others: &'static [&'static str],
    /// The error, behind the option.
    why: &'static str,
}

/// Rows of a table of rules: options, relation, what else, the error behind the option.
macro_rules! rules {
    ($([$($option:expr),+] $relation:ident [$($other:expr),+] $why:literal;)+) => {
        &[$(OptionRule {
            options: &[$($option),+],
            relation: Relation::$relation,
            others: &[$($other),+],
            why: $why,
        }),+]
    };
}

/// The rules; of several that are broken, the first is reported.
const RULES: &[OptionRule] = rules! {
    ["--inverted", "--by-stall", "--by"] Requires [FRAMES]
        "applies only to folded stacks and flame graphs: use -o FILE.folded or FILE.svg, or \
         --format";
    ["--lines"] Excludes [SOURCE_LINES]
        "applies only to folded stacks and flame graphs: this format always contains source lines";
    ["--lines"] Requires [FRAMES]
        "applies only to folded stacks and flame graphs: use -o FILE.folded or FILE.svg, or \
         --format";
    ["--all-processes"] Requires [CHOSEN_PROCESSES]
        "applies only to flame graphs, folded stacks, pprof and OTLP: other formats always \
         contain all processes";
    ["--cpu-only"] Excludes [STALLS]
        "cannot be used with this format, which contains only device samples";
    ["--device-only", "--cpu-only"] Excludes [EVENT_FORMAT]
        "applies only to profiles: traces and captures always contain all samples";
    ["--bpf-object"] Excludes [FILE_CAPABILITIES]
        "cannot be used if the aiprof file itself has capabilities: run it as root";
    ["--only"] Requires [COMMAND]
        "needs a COMMAND to record: put it after the options, as in `aiprof --only -o flame.svg \
         -- make -j8`; for a process that is already running, use -p PID";
    ["--aiu-timing"] Requires [COMMAND]
        "needs a COMMAND, because it sets environment variables: a program that is already \
         running must enable its activity records itself";
    ["--torch-ops"] Requires [COMMAND, "--pid"]
        "needs a COMMAND, or -p PID of a program that was started with KINETO_USE_DAEMON=1";
    ["--torch-ops"] Excludes ["--every"]
        "cannot be used with --every: PyTorch reports operators after a window has ended, when \
         its profile may already be written";
    ["--torch-ops"] Excludes ["--events"]
        "cannot be used with --events: only traces and profiles of CPU time show operators";
    ["--device-timing", "--ranges"] Requires [COMMAND]
        "needs a COMMAND to load a helper into: a program that is already running cannot be \
         changed";
    ["--ranges"] Requires [EVENTS_KEPT]
        "applies only to traces and captures, because a profile has no ranges: add -o \
         trace.json.gz or -o x.aiprof";
    ["--events"] Excludes [TRACE]
        "applies only to profiles: a trace always has launches and samples";
    ["--wakers"] Requires [WAITS, TRACE_OF_CAPTURE]
        "needs --off-cpu or --wall";
    ["--min-wait"] Requires [WAITS]
        "needs --off-cpu or --wall";
    [WAITS] Excludes [FINDINGS]
        "apply only to profiles, captures and traces: a page of findings shows no waits";
    [WAITS] Excludes [CYCLES]
        "measure time, and --event cycles counts cycles: use only one of them";
    ["--events"] Excludes ["--replay-device"]
        "counts launches, and --replay-device adds device samples: use only one of them, or write \
         a capture and run `aiprof report` on it twice";
    ["--conditional-collection"] Requires [PROBES]
        "applies only to launches, which this recording does not contain: add --events, or write \
         a trace or a capture";
    ["--include-kernels", "--exclude-kernels"] Excludes [CAPTURE]
        ": a capture contains all kernels: use the option with aiprof report, or write a profile";
    ["--include-kernels", "--exclude-kernels"] Excludes [TRACE]
        ": a trace contains all kernels: the option applies only to profiles, such as -o FILE.svg";
    ["--trigger"] Requires [PROBES]
        "needs calls and kernels, which --no-devices turns off: add --events, or write a trace or \
         a capture";
    ["--start-paused"] Excludes ["--window"]
        "cannot be used with --window, which always records: omit --start-paused";
    ["--include-kernels", "--exclude-kernels"] Requires [PROBES]
        "selects launches and device samples, and with --no-devices a profile of CPU time has \
         neither: leave out --no-devices, or add --events";
};

/// The first option that was given.
pub(crate) fn first_given(
    options: impl IntoIterator<Item = (&'static str, bool)>,
) -> Option<&'static str> {
    let mut options = options.into_iter();
    options
        .find(|(_, is_given)| *is_given)
        .map(|(option, _)| option)
}

/// What holds of a command line: options that were given, and what follows from them.
#[derive(Debug, Default)]
pub(crate) struct Holding(Vec<&'static str>);

impl Holding {
    /// What holds because of the format.
    pub(crate) fn of_format(format: &FileFormat) -> Self {
        let shows = format.shows();
        let is_capture = matches!(format.source, FormatSource::Capture);
        Self::default().with([
            (FRAMES, shows == Some(ProfilePart::Stacks)),
            (STALLS, shows == Some(ProfilePart::Stalls)),
            (
                CHOSEN_PROCESSES,
                shows.is_some_and(ProfilePart::leaves_out_processes),
            ),
            (SOURCE_LINES, format.has_source_lines),
            (CAPTURE, is_capture),
            (EVENT_FORMAT, is_capture || format.is_trace()),
        ])
    }

    /// Adds those that hold.
    pub(crate) fn with(mut self, more: impl IntoIterator<Item = (&'static str, bool)>) -> Self {
        let held = more.into_iter().filter(|(_, holds)| *holds);
        self.0.extend(held.map(|(name, _)| name));
        self
    }

    /// Checks the rules.
    ///
    /// # Errors
    /// A usage error: the first rule that is broken.
    pub(crate) fn check(&self) -> Result<()> {
        let has = |name: &&str| self.0.contains(name);
        for rule in RULES {
            let Some(option) = rule.options.iter().find(|option| has(option)) else {
                continue;
            };
            let holds = rule.others.iter().any(has);
            if holds == matches!(rule.relation, Relation::Excludes) {
                let space = if rule.why.starts_with(':') { "" } else { " " };
                return Err(usage_error(format!("{option}{space}{}", rule.why)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_formats::export::formats::{FOLDED, PPROF};

    #[test]
    fn the_first_broken_rule_is_reported_with_its_option() {
        let error = |format, options: &[&'static str]| {
            let options = options.iter().map(|option| (*option, true));
            let checked = Holding::of_format(format).with(options).check();
            checked.err().map(|error| error.to_string())
        };
        let text = error(&PPROF, &["--by", "--lines"]).unwrap();
        assert!(
            text.contains("--by applies only to folded stacks"),
            "{text}"
        );
        let text = error(&PPROF, &["--lines"]).unwrap();
        assert!(text.contains("always contains source lines"), "{text}");
        assert_eq!(error(&FOLDED, &["--by", "--lines"]), None);
        let text = error(&PPROF, &["--exclude-kernels"]).unwrap();
        assert!(
            text.contains("--exclude-kernels selects launches"),
            "{text}"
        );
        assert_eq!(error(&PPROF, &["--exclude-kernels", PROBES]), None);
    }
}
