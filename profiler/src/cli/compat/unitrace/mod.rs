//! `aiprof unitrace`: unitrace 2.3's command line and its tables.
//!
//! It is read as unitrace reads it (`settings`). The help lists all its options: those that aiprof
//! has, and why it lacks the others. COMMAND is recorded as for a trace, and the tables are made
//! from that (`written`).

mod live;
mod places;
mod settings;
mod written;

use crate::cli::record::{RecordArgs, RecordingPlan};
use crate::cli::recording::{self, Taker};
use crate::cli::{EXIT_USAGE, Verbosity, ctl, screen};
use aiprof_live::config::MIN_FREQUENCY_HZ;
use aiprof_model::visible;
use aiprof_record::recording::RecordingSink;
use aiprof_record::store::Store;
use aiprof_record::timeline::CommandDetail;
use aiprof_system::files::caller;
use aiprof_tables::unitrace::NameChoice;
use anyhow::{Context, Result};
use clap::{Args as _, FromArgMatches as _};
use live::LiveLines;
use places::OutputPlaces;
use settings::{NoRun, UnitraceSettings};
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use written::TablesWriter;

/// The name under which aiprof behaves as unitrace.
pub(in crate::cli) const NAME: &str = "unitrace";
/// The release whose command line and tables these are.
const VERSION: &str = "2.3.0";
/// Largest file of kernels' names, bytes.
const MAX_NAMES: u64 = 1 << 20;

/// Runs unitrace's command line (without its name) and returns the exit code.
///
/// # Errors
/// COMMAND cannot be recorded, or an output cannot be made. Wrong usage is reported here and is no
/// error.
pub(in crate::cli) fn run(args: &[OsString]) -> Result<u8> {
    let mut settings = match settings::parse(args) {
        Ok(settings) => settings,
        Err(NoRun::Help) => return say(settings::HELP),
        Err(NoRun::Version) => {
            let own = env!("CARGO_PKG_VERSION");
            return say(&format!("{VERSION} (aiprof {own})\n"));
        }
        Err(NoRun::Ask(name, request)) => {
            ctl::ask(&name, request)?;
            return Ok(0);
        }
        Err(NoRun::Usage(message)) => {
            // Nothing helps if stderr is closed.
            let _ = writeln!(
                std::io::stderr(),
                "aiprof unitrace: {}",
                visible::message(&message)
            );
            return Ok(EXIT_USAGE);
        }
    };
    for note in &settings.notes {
        screen::say(&format!("aiprof unitrace: {note}"));
    }
    let rank = places::own_rank();
    if let (Some(wanted), Some(rank)) = (&settings.ranks, &rank)
        && !wanted.iter().any(|one| one.to_string() == *rank)
    {
        return execute(&settings.command);
    }
    let [include, exclude] = std::mem::take(&mut settings.name_files);
    settings
        .commands
        .include
        .extend(names_of(include.as_deref())?);
    settings
        .commands
        .exclude
        .extend(names_of(exclude.as_deref())?);
    let places = OutputPlaces::new(&settings.paths, rank);
    places.check()?;
    let plan = plan(&settings)?;
    let detail = CommandDetail {
        barriers: true,
        each: settings.outputs.timeline,
    };
    let is_live =
        settings.outputs.timeline && !settings.paths.has_files() && !settings.only_command;
    let live = is_live.then(|| Rc::new(RefCell::new(LiveLines::new(&settings))));
    let watcher = live
        .clone()
        .map(|lines| Box::new(live::Watcher(lines)) as Box<dyn RecordingSink>);
    let writer = TablesWriter::new(settings, places, live);
    let taker = Taker {
        store: Store::new(Box::new(caller::scratch)),
        detail,
        take: Box::new(move |recorded, store, pid| writer.write(recorded, store, pid)),
        watcher,
    };
    let quiet = Verbosity {
        verbose: 0,
        quiet: true,
    };
    recording::run_for(plan, taker, quiet)
}

fn say(text: &str) -> Result<u8> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(0)
}

/// Runs COMMAND in this process's place.
fn execute(command: &[OsString]) -> Result<u8> {
    let (program, args) = command.split_first().context("no command to run")?;
    let error = Command::new(program).args(args).exec();
    Err(error).with_context(|| format!("cannot execute {}", program.display()))
}

/// The names of kernels in a file.
fn names_of(path: Option<&Path>) -> Result<Vec<String>> {
    let Some(path) = path else {
        return Ok(Vec::new());
    };
    let failed = || format!("cannot read {}", path.display());
    let mut text = String::new();
    let file = caller::open(path).with_context(failed)?;
    file.take(MAX_NAMES)
        .read_to_string(&mut text)
        .with_context(failed)?;
    Ok(NameChoice::parts(&text))
}

/// How COMMAND is recorded: as for a trace, with as few samples as can be.
fn plan(settings: &UnitraceSettings) -> Result<RecordingPlan> {
    let command = RecordArgs::augment_args(clap::Command::new("record"));
    let rate = MIN_FREQUENCY_HZ.to_string();
    let mut words: Vec<OsString> = [
        "record",
        "--no-devices",
        "--no-join",
        "--no-kernel",
        "-F",
        &rate,
    ]
    .map(OsString::from)
    .to_vec();
    if !settings.outputs.chrome {
        words.extend(["--call-stacks", "0"].map(OsString::from));
    }
    match (&settings.session, settings.start_paused) {
        // A session is steered from outside, and the program is not asked.
        (Some(name), is_paused) => {
            words.push(format!("--control={name}").into());
            words.extend(is_paused.then(|| "--start-paused".into()));
        }
        (None, true) => words.push("--conditional-collection".into()),
        (None, false) => {}
    }
    words.extend(["-o", "unitrace.json", "--"].map(OsString::from));
    words.extend(settings.command.iter().cloned());
    let matches = command.try_get_matches_from(words)?;
    RecordingPlan::new(RecordArgs::from_arg_matches(&matches)?, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_the_help_is_read() {
        assert_eq!(settings::OPTIONS.len(), 53);
        for option in settings::OPTIONS.iter() {
            let words = [option.long, "1", "-h", "app"].map(OsString::from);
            let is_flag = option.value.is_empty();
            let words: Vec<_> = words.into_iter().filter(|w| !is_flag || w != "1").collect();
            let found = settings::parse(&words);
            // An option without an effect of its own ends a debug build here.
            assert!(!option.help.is_empty(), "{option:?} {found:?}");
        }
        assert!(settings::HELP.lines().all(|line| line.len() <= 100));
    }
}
