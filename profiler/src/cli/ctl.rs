//! `aiprof ctl`: steers recordings that run.

use super::usage_error;
use super::values::{self, grouped, human_duration};
use aiprof_live::control::{self, ControlError, RecordState, Reply, Request, Status};
use aiprof_system::errors::chain;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use std::io::Write as _;
use std::time::{Duration, Instant};

/// How often it is looked whether a recording has begun.
const AGAIN: Duration = Duration::from_millis(50);

/// Options of `aiprof ctl`.
#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    /// Action to perform
    #[arg(value_enum)]
    action: ControlAction,

    /// Recording: NAME of its --control, or its PID; default: the only one that runs
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// With status, wait until the recording has reached STATE
    ///
    /// attached: everything is loaded and attached. sampling: samples are taken, and COMMAND
    /// runs. known=PID: aiprof has read the code of process PID, loaded its unwind tables and
    /// attached its probes.
    ///
    /// The recording may also start later. The exit status is 0 when the state is reached. It is
    /// 1 if the recording ends first or --timeout expires.
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    wait: Option<RecordState>,

    /// With --wait, give up after this time: 500ms, 30s, 2m
    #[arg(long, value_name = "TIME", requires = "wait", default_value = "60s",
          value_parser = values::parse_duration)]
    timeout: Duration,
}

fn parse_state(text: &str) -> Result<RecordState, String> {
    text.parse().map_err(|error: &str| error.to_owned())
}

/// What a recording is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ControlAction {
    /// Show one recording, or all of them
    Status,
    /// Record nothing until resume; calls in progress are still recorded to their end
    Pause,
    /// Continue a paused recording
    Resume,
    /// Write the window that --window keeps
    Dump,
    /// End the recording, like Ctrl-C; returns when its output is complete
    Stop,
}

impl ControlAction {
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
    if let Some(state) = args.wait {
        return wait(args, state);
    }
    if args.name.is_none() && args.action == ControlAction::Status {
        return show_all();
    }
    let name = match &args.name {
        Some(name) if control::is_name(name) => name.clone(),
        Some(name) => {
            return Err(usage_error(format!(
                "{name} is not a valid name of a recording: `aiprof ctl status` lists all \
                 recordings"
            )));
        }
        None => only_one()?,
    };
    let status = ask(&name, args.action.request())?;
    match args.action {
        ControlAction::Status => print(&[(name, status)]),
        _ => Ok(()),
    }
}

/// Waits until a recording has reached a state, and shows it.
fn wait(args: &CtlArgs, state: RecordState) -> Result<()> {
    if args.action != ControlAction::Status {
        return Err(usage_error("--wait works only with `aiprof ctl status`"));
    }
    let until = Instant::now() + args.timeout;
    let after = human_duration(args.timeout);
    loop {
        let name = match &args.name {
            Some(name) if control::is_name(name) => Some(name.clone()),
            Some(name) => {
                return Err(usage_error(format!(
                    "{name} is not a valid name of a recording: `aiprof ctl status` lists all \
                     recordings"
                )));
            }
            None if control::running()?.is_empty() => None,
            None => Some(only_one()?),
        };
        let answer = name.map(|name| {
            let answer = control::ask_until(&name, Request::Wait(state), Some(until));
            (name, answer)
        });
        match answer {
            Some((name, Ok(Reply::Done(status)))) => return print(&[(name, *status)]),
            Some((name, Ok(Reply::Refused(why)))) => bail!("{name} did not reach {state}: {why}"),
            Some((name, Err(ControlError::Died(_)))) => {
                bail!("{name} ended before it reached {state}")
            }
            Some((name, Err(ControlError::Late(_)))) => {
                bail!("{name} did not reach {state} within {after}")
            }
            // It has not begun.
            None | Some((_, Err(ControlError::Nobody(_)))) => {}
            Some((_, Err(error))) => return Err(error.into()),
        }
        if Instant::now() >= until {
            let which = args.name.as_deref().unwrap_or("of this user");
            bail!("no recording {which} was started within {after}");
        }
        std::thread::sleep(AGAIN);
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
            "no controllable recording is running: start one with --control; if you used sudo, \
             use `sudo aiprof ctl`"
        ),
        (Some(last), false) => bail!(
            "several recordings are running: give the name of one of them: {} {last}",
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
            Err(error) => tracing::debug!("{}", chain(&*error)),
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
