//! `aiprof acelyzer`: acelyzer 1.3.0's command line, word for word.
//!
//! `argparse` reads it as Python's argparse does. `settings` keeps it under acelyzer's names, which
//! also go into the output. `convert` makes the plan of an analysis of it; acelyzer's stages
//! (`stages`) decide which steps the plan has.

mod argparse;
mod console;
mod convert;
mod help;
mod settings;
mod stages;
#[cfg(any(test, feature = "testing"))]
mod testing;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "testing"))]
pub use stages::testing::fuzz_profile;
#[cfg(any(test, feature = "testing"))]
pub use testing::fuzz_acelyzer;

use crate::cli::analysis::{self, Analysis};
use crate::cli::analysis_plan::{AnalysisPlan, Format};
use crate::cli::memory::MemoryArgs;
use crate::cli::sibling_files::WrittenFiles;
use crate::cli::wanted_tables::WantedTables;
use crate::cli::{EXIT_FAILURE, EXIT_USAGE, screen};
use aiprof_model::timeline::Stretch;
use aiprof_model::visible;
use aiprof_system::errors::chain;
use aiprof_trace::analyze::messages::{Level, Messages};
use anyhow::Result;
use argparse::repr;
use console::Console;
use serde_json::json;
use settings::{AcelyzerExit, AcelyzerSettings, Given};
use std::ffi::OsString;
use std::io::Write as _;

/// The name under which aiprof behaves as acelyzer.
pub(in crate::cli) const NAME: &str = "acelyzer";
/// The release whose command line, files and formats these are.
const VERSION: &str = "1.3.0";
/// Exit code: a format that cannot be written.
const EXIT_FORMAT: u8 = 255;
/// By this acelyzer and others know a trace that it wrote.
const APPLICATION: &str = "Acelyzer: Trace Post-Processing Tool";

/// Runs acelyzer's command line (without its name) and returns the exit code.
///
/// # Errors
/// An output cannot be made. Wrong usage is reported here and is no error.
pub(in crate::cli) fn run(args: &[OsString]) -> Result<u8> {
    let mut words = Vec::with_capacity(args.len());
    for arg in args {
        match arg.to_str() {
            Some(word) => words.push(word.to_owned()),
            None => return Ok(usage(&format!("not UTF-8: {}", arg.display()))),
        }
    }
    let Given { settings, hint } = match settings::parse(&words) {
        Ok(given) => given,
        Err(AcelyzerExit::Help) => {
            let text = help::help(screen::width());
            std::io::stdout().write_all(text.as_bytes())?;
            return Ok(0);
        }
        Err(AcelyzerExit::Usage(message)) => return Ok(usage(&message)),
        Err(AcelyzerExit::Fatal(text)) => {
            Console::stdout(Level::Info).plain(&text);
            return Ok(EXIT_FAILURE);
        }
    };
    MemoryArgs::default().apply()?;
    start(&settings, hint.as_deref())
}

/// Shows argparse's message; returns its exit code.
fn usage(message: &str) -> u8 {
    let usage = help::usage(screen::width());
    // Nothing helps if stderr is closed.
    let _ = writeln!(
        std::io::stderr(),
        "{usage}{NAME}: error: {}",
        visible::message(message)
    );
    EXIT_USAGE
}

fn start(settings: &AcelyzerSettings, hint: Option<&str>) -> Result<u8> {
    let level = Level::from_number(settings.loglevel).unwrap_or(Level::Info);
    let mut console = Console::stdout(level);
    if let Some(hint) = hint {
        console.plain(hint);
    }
    if settings.version {
        console.plain(VERSION);
        return Ok(0);
    }
    console.log(Level::Info, "Starting Test parser");
    let mut messages = Messages::new(level);
    let checked = convert::check(settings, &mut messages);
    console.show(&messages);
    if let Err(text) = checked {
        if !text.is_empty() {
            console.plain(&text);
        }
        return Ok(EXIT_FAILURE);
    }
    let mut messages = Messages::new(level);
    match convert::plan(settings, &mut messages) {
        Ok(plan) => execute(&plan, settings, messages, console),
        Err(text) => {
            console.log(Level::Error, &text);
            Ok(EXIT_FAILURE)
        }
    }
}

/// Runs the analysis. `about` are the messages on the stages; acelyzer prints them
/// after those of the inputs.
fn execute(
    plan: &AnalysisPlan,
    settings: &AcelyzerSettings,
    about: Messages,
    mut console: Console<std::io::Stdout>,
) -> Result<u8> {
    let level = plan.level;
    let files = analysis::files(&plan.inputs);
    let names: Vec<String> = files
        .iter()
        .map(|path| repr(&path.to_string_lossy()))
        .collect();
    console.log(
        Level::Info,
        &format!("Reading files: [{}]", names.join(", ")),
    );
    console.log(Level::Info, &format!("Ingesting {} files.", files.len()));
    if files.is_empty() {
        console.log(Level::Error, "No input files found.");
        return Ok(EXIT_FAILURE);
    }
    if !plan.verify && !plan.tensorboard && !matches!(plan.format, Format::Json | Format::Pddf) {
        let text = "Unrecognized export format. Available options: json or pddf \
                    (and unsupported: proto)";
        console.log(Level::Error, text);
        return Ok(EXIT_FORMAT);
    }
    console.show(&about);
    let mut messages = Messages::new(level);
    let mut show = |text: &str| screen::set_progress(text);
    let mut analysis = Analysis {
        config: plan,
        other: json!({
            "Application": APPLICATION,
            "CmdLine": std::env::args().collect::<Vec<_>>().join(" "),
            "Settings": settings,
        }),
        messages: &mut messages,
        progress: screen::has_progress().then_some(&mut show as &mut dyn FnMut(&str)),
        kept: Stretch::ALL,
        inputs: Vec::new(),
        stalls: Vec::new(),
        lost: std::collections::BTreeMap::new(),
        written: WrittenFiles::default(),
        tables: WantedTables::default(),
        is_damaged: false,
    };
    // The exit code, and how many events were written.
    let result = match plan.verify {
        true => analysis.verify(&files).map(|failed| (u8::from(failed), 0)),
        false => analysis.run(&files).map(|report| (0, report.events)),
    };
    screen::clear_progress();
    console.show(&messages);
    let (code, events) = match result {
        Ok(done) => done,
        // If a file cannot be read, a message was already shown.
        Err(error) => {
            if !messages.iter().any(|message| message.level == Level::Error) {
                console.log(Level::Error, &chain(&*error));
            }
            return Ok(EXIT_FAILURE);
        }
    };
    console.log(Level::Info, &format!("Finishing ... Return code= {code}"));
    console.log(Level::Info, &format!("Exported events:  {events}"));
    Ok(code)
}
