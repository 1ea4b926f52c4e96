//! The command line: parsed here into plain configuration; nothing below this
//! module knows clap.
//!
//! Without the feature `live`, nothing is recorded here, and what needs no recording remains.

#![cfg_attr(
    not(feature = "live"),
    allow(
        dead_code,
        unused_imports,
        reason = "helpers of the subcommands that record are beside those of the others"
    )
)]

mod advice;
#[cfg(feature = "live")]
mod agent;
mod analysis;
mod analysis_plan;
mod analyze;
mod analyze_recording;
mod capture_input;
mod capture_timeline;
mod categorize;
mod choice;
#[cfg(feature = "live")]
mod closing;
#[cfg(feature = "live")]
mod command;
mod compat;
mod completions;
#[cfg(feature = "live")]
mod control;
#[cfg(feature = "live")]
mod control_args;
#[cfg(feature = "live")]
mod ctl;
mod destination;
mod diff;
mod diff_traces;
#[cfg(feature = "live")]
mod doctor;
#[cfg(feature = "live")]
mod driver_tables;
mod input;
#[cfg(feature = "live")]
mod launching;
mod log;
mod man;
mod memory;
mod open_output;
mod option_rules;
#[cfg(all(test, feature = "live"))]
mod options_page;
mod output;
#[cfg(feature = "live")]
mod probes;
mod profile_out;
mod programs;
#[cfg(feature = "live")]
mod rank_join;
#[cfg(feature = "live")]
mod ready;
#[cfg(feature = "live")]
mod record;
#[cfg(feature = "live")]
mod recording;
mod report;
#[cfg(feature = "live")]
mod ring_dump;
mod roofline;
pub(crate) mod screen;
mod sibling_files;
mod stall_input;
mod stall_sources;
mod stalls;
mod stdout;
#[cfg(feature = "live")]
mod stop;
#[cfg(all(test, feature = "live"))]
mod tests;
mod time_arg;
#[cfg(feature = "live")]
mod trace;
mod values;
mod wanted_tables;
#[cfg(feature = "live")]
mod windows;

pub use advice::advice;
#[cfg(any(test, feature = "testing"))]
pub use compat::{fuzz_acelyzer, fuzz_profile};
pub use output::is_broken_pipe;

#[cfg(feature = "live")]
use aiprof_live::launch::LaunchError;
use aiprof_model::visible;
use aiprof_system::errors::chain;
use aiprof_system::os::privileges::{self, PrivilegeError};
use anyhow::Result;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use compat::acelyzer;
#[cfg(feature = "live")]
use compat::unitrace;
use std::ffi::OsString;
use std::io::Write as _;
use std::sync::OnceLock;

/// Exit code: a result could not be made or written.
pub const EXIT_FAILURE: u8 = 1;
/// Exit code: the command line is wrong.
pub const EXIT_USAGE: u8 = 2;
/// Exit code: the result was written, but an input is damaged and parts of it are missing.
pub const EXIT_DAMAGED: u8 = 3;
/// Exit code: privileges are missing (`EX_NOPERM` of sysexits.h).
pub const EXIT_NO_PRIVILEGE: u8 = 77;

#[cfg(feature = "live")]
const DESCRIPTION: &str = "\
Profiles the whole machine: every CPU, every process, kernel and user stacks. Programs
need not be rebuilt, restarted or preloaded.";

#[cfg(not(feature = "live"))]
const DESCRIPTION: &str = "\
Analyzes and converts recordings and traces. This build records nothing: it lacks the feature
`live`.";

#[cfg(feature = "live")]
const EXAMPLES: &str = "\
sudo aiprof sleep 30 > out.folded       the machine for 30 s, as folded stacks
sudo aiprof -o flame.svg make -j8       a flame graph of the machine while make runs
sudo aiprof --only -o flame.svg make    only make and its children
sudo aiprof -d 10                       10 s, print the hottest functions
sudo aiprof -d 30s -p 1234 -o p.pb.gz   one process and its children, for pprof
sudo aiprof -o t.pftrace sleep 30       a trace for ui.perfetto.dev
sudo aiprof -o x.aiprof sleep 30        a capture; make any output from it later:
     aiprof report x.aiprof -o x.svg
     aiprof analyze x.aiprof            findings and tables about devices
     aiprof diff before.folded after.folded -o diff.svg
sudo aiprof --every 60s --keep 60 -o /var/lib/aiprof    a profile each minute
sudo aiprof trace python train.py       each call to an accelerator runtime
     aiprof doctor                      what works on this machine";

#[cfg(not(feature = "live"))]
const EXAMPLES: &str = "\
aiprof analyze trace.json           findings and tables about devices
aiprof report x.aiprof -o x.svg     any output from a capture
aiprof diff before.folded after.folded -o diff.svg";

#[cfg(feature = "live")]
const EXIT_STATUS: &str = "\
the exit status of COMMAND, or 0 without COMMAND; 128+N if signal N killed COMMAND;
127 if COMMAND was not found, 126 if it could not be executed
1   a result could not be made or written, or a check of --verify failed
2   the command line is wrong
3   only `aiprof analyze`: the result was written, but lacks damaged parts of an input
77  privileges are missing";

#[cfg(not(feature = "live"))]
const EXIT_STATUS: &str = "\
0   the result was written
1   a result could not be made or written, or a check of --verify failed
2   the command line is wrong
3   only `aiprof analyze`: the result was written, but lacks damaged parts of an input";

#[cfg(feature = "live")]
const NOTES: Option<&str> = Some(
    "\
Options come before COMMAND; everything after COMMAND belongs to it. If COMMAND has the
name of a subcommand, put -- before it, as in `aiprof -- report`.

Ctrl-C reaches COMMAND as usual; a second Ctrl-C ends the recording. The profile is written
in both cases. If the profile goes to stdout, the output of COMMAND goes to stderr.",
);

#[cfg(not(feature = "live"))]
const NOTES: Option<&str> = None;

/// Where a user finds more.
#[cfg(feature = "live")]
const MORE: &str = "`aiprof --help` explains each option; `aiprof doctor` checks this machine.";

#[cfg(not(feature = "live"))]
const MORE: &str = "`aiprof SUBCOMMAND --help` explains each option.";

/// Why nothing is recorded by a build that only reads what was recorded elsewhere.
#[cfg(not(feature = "live"))]
const NO_RECORDER: &str = "this build of aiprof records nothing: it lacks the feature `live`, \
                           which needs Linux on x86-64. `aiprof --help` lists what it does";

/// What `--help` opens with.
fn opening() -> String {
    format!("{DESCRIPTION}\n\nExamples:\n{}", indented(EXAMPLES))
}

/// What aiprof prints where it is given nothing to do.
fn how_to_start() -> String {
    format!("{}\n\n{MORE}\n", opening())
}

/// What `--help` ends with.
fn ending() -> String {
    let notes = NOTES.map(|notes| format!("\n\n{notes}"));
    let notes = notes.unwrap_or_default();
    format!("Exit status:\n{}{notes}", indented(EXIT_STATUS))
}

fn indented(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}

#[cfg(feature = "live")]
const USAGE: &str = "aiprof [OPTIONS] [--] COMMAND [ARGS]...\n       \
                     aiprof [OPTIONS] -d DURATION\n       \
                     aiprof SUBCOMMAND ...";
#[cfg(not(feature = "live"))]
const USAGE: &str = "aiprof SUBCOMMAND ...";

/// The command line of aiprof.
#[derive(Debug, Parser)]
#[command(
    name = "aiprof",
    version,
    about = "System-wide profiler for Linux machines with AI accelerators",
    before_long_help = opening(),
    after_long_help = ending(),
    after_help = "`aiprof --help` has examples and explains each option.",
    override_usage = USAGE,
    max_term_width = 100
)]
struct Cli {
    // First: a heading in the recording's options would also hold for what follows them.
    #[command(flatten)]
    verbosity: Verbosity,

    #[cfg(feature = "live")]
    #[command(flatten)]
    record: record::RecordArgs,

    #[command(subcommand)]
    subcommand: Option<Sub>,
}

/// How much is printed on stderr.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Verbosity {
    /// Print more on stderr: missing privileges, unreadable files, unknown functions; -vv: details
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,

    /// Print only errors on stderr
    #[arg(short, long, global = true)]
    quiet: bool,
}

impl Verbosity {
    /// Whether only errors are shown.
    fn is_quiet(self) -> bool {
        self.quiet
    }

    /// Prints lines on stderr, unless only errors are shown.
    fn say<'a>(self, lines: impl IntoIterator<Item = &'a String>) {
        if !self.quiet {
            lines.into_iter().for_each(|line| screen::say(line));
        }
    }

    /// Whether more is shown.
    fn is_verbose(self) -> bool {
        self.verbose > 0
    }
}

#[derive(Debug, Subcommand)]
enum Sub {
    /// Record a profile, like aiprof without a subcommand
    #[cfg(feature = "live")]
    Record(Box<record::RecordArgs>),
    /// Run as an agent: profile continuously within a CPU budget and send profiles
    #[cfg(feature = "live")]
    Agent(agent::AgentArgs),
    /// Convert a capture to another format; needs no privileges
    Report(report::ReportArgs),
    /// Analyze traces of accelerators: findings and tables; aligns clocks of devices and ranks
    Analyze(Box<analyze::AnalyzeArgs>),
    /// Convert kernel categories from INI to the JSON of unitrace's scripts
    Categorize(categorize::CategorizeArgs),
    /// Compare two profiles: which functions take more time, which take less
    Diff(diff::DiffArgs),
    /// Query profiles of many hosts (a lake) or the files of an agent, as aiprof-query does
    #[command(disable_help_flag = true)]
    Query {
        /// aiprof-query's subcommand and options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Show why device kernels stall: source lines, instructions, stall reasons
    Stalls(stalls::StallsArgs),
    /// Show what limits kernels (engines, memory or cache), from metrics of unitrace
    Roofline(roofline::RooflineArgs),
    /// Print the calls of accelerator runtimes and drivers as they happen
    #[cfg(feature = "live")]
    Trace(trace::TraceArgs),
    /// Pause, resume or stop a recording that was started with --control
    #[cfg(feature = "live")]
    Ctl(ctl::CtlArgs),
    /// Check what works on this machine, and how to enable the rest
    #[cfg(feature = "live")]
    Doctor(doctor::DoctorArgs),
    /// List the functions that are probed in accelerator runtimes; check your own tables
    #[cfg(feature = "live")]
    Probes(probes::ProbesArgs),
    /// Analyze AIU traces with acelyzer's command line; see `aiprof acelyzer -h`
    #[command(disable_help_flag = true)]
    Acelyzer {
        /// acelyzer's options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Trace GPUs with unitrace's command line; see `aiprof unitrace --help`
    #[command(disable_help_flag = true)]
    #[cfg(feature = "live")]
    Unitrace {
        /// unitrace's options, and COMMAND
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Print the man page (roff)
    Man,
}

impl Sub {
    /// The subcommand's name where its errors are shown with its usage.
    fn name(&self) -> &'static str {
        match self {
            #[cfg(feature = "live")]
            Self::Record(_) => "record",
            #[cfg(feature = "live")]
            Self::Agent(_) => "agent",
            Self::Report(_) => "report",
            Self::Analyze(_) => "analyze",
            Self::Categorize(_) => "categorize",
            Self::Diff(_) => "diff",
            Self::Query { .. } => "query",
            Self::Stalls(_) => "stalls",
            Self::Roofline(_) => "roofline",
            #[cfg(feature = "live")]
            Self::Trace(_) => "trace",
            #[cfg(feature = "live")]
            Self::Ctl(_) => "ctl",
            #[cfg(feature = "live")]
            Self::Doctor(_) => "doctor",
            #[cfg(feature = "live")]
            Self::Probes(_) => "probes",
            Self::Acelyzer { .. } => "acelyzer",
            #[cfg(feature = "live")]
            Self::Unitrace { .. } => "unitrace",
            Self::Completions(_) => "completions",
            Self::Man => "man",
        }
    }

    /// Whether it needs the capabilities that the program's file may have; the others give them
    /// up first.
    fn keeps_privileges(&self) -> bool {
        match self {
            #[cfg(feature = "live")]
            Self::Record(_)
            | Self::Agent(_)
            | Self::Trace(_)
            | Self::Doctor(_)
            | Self::Unitrace { .. } => true,
            _ => false,
        }
    }

    /// Whether all it does is print.
    fn prints(&self) -> bool {
        match self {
            #[cfg(feature = "live")]
            Self::Doctor(_) | Self::Probes(_) => true,
            Self::Completions(_) | Self::Man => true,
            _ => false,
        }
    }
}

/// Runs the command line `args` (the program's name first) and returns the exit
/// code.
///
/// # Errors
/// Whatever went wrong, for [`exit_code`]; a [`clap::Error`] for wrong usage, and
/// also for `--help` and `--version`.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Result<u8> {
    let done = run_command(args);
    log::sum_up();
    done
}

fn run_command(args: impl IntoIterator<Item = OsString>) -> Result<u8> {
    privileges::refuse_setuid()?;
    let args: Vec<_> = args.into_iter().collect();
    if let Some(args) = compat::arguments(acelyzer::NAME, &args) {
        log::init(Verbosity::default());
        privileges::drop_file_capabilities()?;
        return acelyzer::run(args);
    }
    #[cfg(feature = "live")]
    if let Some(args) = compat::arguments(unitrace::NAME, &args) {
        log::init(Verbosity::default());
        return unitrace::run(args);
    }
    if args.len() < 2 {
        // Nothing can be done about a closed stderr.
        let _ = std::io::stderr().write_all(how_to_start().as_bytes());
        return Ok(EXIT_USAGE);
    }
    let cli = parse(args)?;
    match cli.subcommand {
        #[cfg(feature = "live")]
        Some(Sub::Agent(ref args)) if args.records() => log::init_always(cli.verbosity),
        _ => log::init(cli.verbosity),
    }
    // Set once a process.
    let _ = CALLED.set(cli.subcommand.as_ref().map_or("", Sub::name));
    warn_of_pid_namespace(cli.subcommand.as_ref());
    let Some(subcommand) = cli.subcommand else {
        #[cfg(feature = "live")]
        return recording::run(cli.record, cli.verbosity);
        #[cfg(not(feature = "live"))]
        return Err(usage_error(NO_RECORDER));
    };
    if subcommand.prints() {
        stdout::require()?;
    }
    if !subcommand.keeps_privileges() {
        privileges::drop_file_capabilities()?;
    }
    run_subcommand(subcommand, cli.verbosity)
}

/// Warns where recordings would see processes under other numbers than the user does.
fn warn_of_pid_namespace(subcommand: Option<&Sub>) {
    #[cfg(feature = "live")]
    if matches!(
        subcommand,
        None | Some(Sub::Record(_) | Sub::Trace(_) | Sub::Agent(_))
    ) && let Some(warning) = aiprof_live::doctor::pid_namespace_warning()
    {
        tracing::warn!("{warning}");
    }
    #[cfg(not(feature = "live"))]
    let _ = subcommand;
}

fn run_subcommand(subcommand: Sub, verbosity: Verbosity) -> Result<u8> {
    match subcommand {
        #[cfg(feature = "live")]
        Sub::Record(args) => return recording::run(*args, verbosity),
        #[cfg(feature = "live")]
        Sub::Agent(args) => return agent::run(args, verbosity),
        #[cfg(feature = "live")]
        Sub::Trace(args) => return trace::run(&args, verbosity),
        #[cfg(feature = "live")]
        Sub::Ctl(args) => ctl::run(&args)?,
        #[cfg(feature = "live")]
        Sub::Doctor(args) => return doctor::run(&args),
        #[cfg(feature = "live")]
        Sub::Probes(args) => return probes::run(&args, verbosity),
        #[cfg(feature = "live")]
        Sub::Unitrace { args } => return unitrace::run(&args),
        Sub::Report(args) => report::run(&args, verbosity)?,
        Sub::Analyze(args) => return analyze::run(&args, verbosity),
        Sub::Categorize(args) => categorize::run(&args)?,
        Sub::Diff(args) => diff::run(&args, verbosity)?,
        Sub::Query { args } => return programs::query(&args),
        Sub::Stalls(args) => stalls::run(&args, verbosity)?,
        Sub::Roofline(args) => roofline::run(&args)?,
        Sub::Acelyzer { args } => return acelyzer::run(&args),
        Sub::Completions(args) => completions::run(&args)?,
        Sub::Man => man::run()?,
    }
    Ok(0)
}

/// Shows an error of [`run`] on stderr, or on stdout where it is help that was asked
/// for; without what terminals would obey.
pub fn show_error(error: &anyhow::Error) {
    let is_hostile = |arg: OsString| arg.to_string_lossy().contains(visible::is_unsafe);
    let text = match error.downcast_ref::<clap::Error>() {
        // Usage errors repeat arguments, and those may be names of others' files.
        Some(usage) if std::env::args_os().any(is_hostile) => usage.render().to_string(),
        Some(usage) => {
            // Nothing helps if stderr is closed; nor below.
            let _ = usage.print();
            return;
        }
        None => in_words(error),
    };
    let _ = std::io::stderr().write_all(visible::message(&text).as_bytes());
}

/// An error with its causes, and what to do about it.
fn in_words(error: &anyhow::Error) -> String {
    format!("aiprof: {}{}\n", chain(&**error), advice(error))
}

/// The exit code for an error of [`run`].
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(usage) = error.downcast_ref::<clap::Error>() {
        return u8::try_from(usage.exit_code()).unwrap_or(EXIT_USAGE);
    }
    if let Some(PrivilegeError::Missing { .. }) = error.downcast_ref() {
        return EXIT_NO_PRIVILEGE;
    }
    #[cfg(feature = "live")]
    if let Some(error) = error.downcast_ref::<LaunchError>() {
        return error.exit_code();
    }
    EXIT_FAILURE
}

fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    let matches = command.try_get_matches_from_mut(args)?;
    if let Some((name, _)) = matches.subcommand()
        && let Some(option) = misplaced_option(&command, &matches)
    {
        let message = format!(
            "{option} is before the subcommand '{name}': put it after '{name}', or write \
             `-- {name}` if {name} is the command to profile"
        );
        return Err(command.error(ErrorKind::ArgumentConflict, message));
    }
    Cli::from_arg_matches(&matches)
}

/// An option of the recording that was given before a subcommand, where it would
/// be ignored.
fn misplaced_option(command: &clap::Command, matches: &ArgMatches) -> Option<String> {
    command
        .get_arguments()
        .filter(|arg| !arg.is_global_set())
        .find(|arg| {
            let id = arg.get_id().as_str();
            matches.value_source(id) == Some(ValueSource::CommandLine)
        })
        .map(|arg| match arg.get_long() {
            Some(long) => format!("--{long}"),
            None => arg.get_id().to_string(),
        })
}

/// The subcommand that runs, for the usage of its errors.
static CALLED: OnceLock<&'static str> = OnceLock::new();

/// A usage error with clap's look and exit code, and the usage of the subcommand.
fn usage_error(message: impl std::fmt::Display) -> anyhow::Error {
    let mut command = Cli::command();
    command.build();
    let called = CALLED.get().copied().unwrap_or_default();
    let of = match command.find_subcommand(called) {
        Some(subcommand) => &mut subcommand.clone(),
        None => &mut command,
    };
    of.error(ErrorKind::ArgumentConflict, message).into()
}
