//! `aiprof ctl`: steers recordings that run.

use super::usage_error;
use super::values::{grouped, human_duration};
use aiprof_collect::control::{self, Reply, Request, Status};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use std::io::Write as _;
use std::time::Duration;

/// Options of `aiprof ctl`.
#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    /// What to do
    #[arg(value_enum)]
    action: Action,

    /// Which recording: the NAME of its --control, or its process; without: the only one
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

/// What a recording is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Show all recordings, or one
    Status,
    /// Record nothing until resumed; what was in flight is finished
    Pause,
    /// Go on
    Resume,
    /// Write what --window keeps of the last seconds
    Dump,
    /// End the recording, as Ctrl-C does; returns when its output is whole
    Stop,
}

impl Action {
    fn request(self) -> Request {
        match self {
            Self::Status => Request::Status,
            Self::Pause => Request::Pause,
            Self::Resume => Request::Resume,
            Self::Dump => Request::Dump,
            Self::Stop => Request::Stop,
        }
    }
}

/// Asks, and shows what is answered. The exit code is 0 if it is done.
///
/// # Errors
/// There is no such recording, or it did not do it.
pub(crate) fn run(args: &CtlArgs) -> Result<()> {
    if args.name.is_none() && args.action == Action::Status {
        return show_all();
    }
    let name = match &args.name {
        Some(name) if control::is_name(name) => name.clone(),
        Some(name) => return Err(usage_error(format!("{name} is no name of a recording"))),
        None => only_one()?,
    };
    let status = ask(&name, args.action.request())?;
    match args.action {
        Action::Status => print(&[(name, status)]),
        _ => Ok(()),
    }
}

/// Asks a recording.
///
/// # Errors
/// It is not there, or refuses.
pub(super) fn ask(name: &str, request: Request) -> Result<Status> {
    match control::ask(name, request)? {
        Reply::Done(status) => Ok(*status),
        Reply::Refused(why) => bail!("{name} did not {}: {why}", request.word()),
    }
}

/// The recording that is meant where none is named.
fn only_one() -> Result<String> {
    let mut names = control::running()?;
    match (names.pop(), names.is_empty()) {
        (Some(name), true) => Ok(name),
        (None, _) => bail!(
            "no recording of this user can be steered: start one with --control (those of \
             sudo are root's: `sudo aiprof ctl`)"
        ),
        (Some(last), false) => bail!(
            "there are several recordings, name one of them: {} {last}",
            names.join(" ")
        ),
    }
}

fn show_all() -> Result<()> {
    let mut all = Vec::new();
    for name in control::running()? {
        match ask(&name, Request::Status) {
            Ok(status) => all.push((name, status)),
            // It has just ended.
            Err(error) => tracing::debug!("{error:#}"),
        }
    }
    print(&all)
}

pub(super) fn print(all: &[(String, Status)]) -> Result<()> {
    let mut rows = vec![
        [
            "NAME", "PID", "STATE", "RECORDED", "PAUSED", "SAMPLES", "LOST", "DUMPS", "WHAT",
        ]
        .map(str::to_owned),
    ];
    for (name, status) in all {
        let time = |ns| human_duration(Duration::from_nanos(ns));
        rows.push([
            name.clone(),
            status.pid.to_string(),
            if status.paused { "paused" } else { "recording" }.to_owned(),
            time(status.recorded_ns),
            time(status.paused_ns),
            grouped(status.samples),
            grouped(status.lost),
            grouped(status.dumps),
            status.what.clone(),
        ]);
    }
    let mut text = String::new();
    for row in &rows {
        for (at, cell) in row.iter().enumerate() {
            let width = rows.iter().filter_map(|row| row.get(at)).map(String::len);
            let width = width.max().unwrap_or(0);
            match at + 1 == row.len() {
                true => text.push_str(cell),
                false => text.push_str(&format!("{cell:<width$}  ")),
            }
        }
        text.push('\n');
    }
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to stdout")
}
