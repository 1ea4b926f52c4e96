//! `aiprof unitrace`: unitrace 2.3's command line and its tables.
//!
//! It is read as unitrace reads it (`settings`). A list of all its options gives those that aiprof
//! has, and why it lacks the others (`options`). COMMAND is recorded as for a trace, and the tables
//! are made from that (`written`).

mod help;
mod live;
mod options;
mod places;
mod settings;
mod written;

use super::record::{Plan, RecordArgs};
use super::recording::{self, Taker};
use super::{EXIT_USAGE, Verbosity, ctl, screen};
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
use places::Places;
use settings::{NoRun, Settings};
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use written::TablesWriter;

/// The name under which aiprof behaves as unitrace.
const NAME: &str = "unitrace";
/// The release whose command line and tables these are.
const VERSION: &str = "2.3.0";
/// Largest file of kernels' names, bytes.
const MAX_NAMES: u64 = 1 << 20;

/// The arguments after unitrace's name, where a command line is one of its: the program
/// is called unitrace, or its first argument is `unitrace`.
pub(crate) fn arguments(args: &[OsString]) -> Option<&[OsString]> {
    let (program, rest) = args.split_first()?;
    let name = Path::new(program).file_name();
    if name.is_some_and(|name| name == NAME) {
        return Some(rest);
    }
    let (first, rest) = rest.split_first()?;
    (first == NAME).then_some(rest)
}

/// Runs unitrace's command line (without its name) and returns the exit code.
///
/// # Errors
/// COMMAND cannot be recorded, or an output cannot be made. Wrong usage is reported here and is no
/// error.
pub(crate) fn run(args: &[OsString]) -> Result<u8> {
    let mut settings = match settings::parse(args) {
        Ok(settings) => settings,
        Err(NoRun::Help) => return say(&help::help()),
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
    let places = Places::new(&settings, rank);
    places.check()?;
    let plan = plan(&settings)?;
    let detail = CommandDetail {
        barriers: true,
        each: settings.timeline,
    };
    let live = (settings.timeline && !settings.has_files() && !settings.only_command)
        .then(|| Rc::new(RefCell::new(LiveLines::new(&settings))));
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
fn plan(settings: &Settings) -> Result<Plan> {
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
    if !settings.chrome {
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
    Plan::new(RecordArgs::from_arg_matches(&matches)?, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unitrace_is_called_by_either_name() {
        let args = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        let found = |line: &str| arguments(&args(line)).map(<[_]>::len);
        assert_eq!(found("/usr/bin/unitrace -h app"), Some(2));
        assert_eq!(found("aiprof unitrace -h app"), Some(2));
        assert_eq!(found("aiprof -- unitrace"), None);
        assert_eq!(found("aiprof trace unitrace"), None);
    }

    #[test]
    fn the_help_has_every_option() {
        let text = help::help();
        for option in options::OPTIONS {
            assert!(text.contains(option.long), "{}", option.long);
        }
        assert!(text.lines().all(|line| line.len() <= 100));
    }
}
