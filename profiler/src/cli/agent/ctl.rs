//! `aiprof agent ctl`: steers the agent of this machine.

use crate::cli::record::RecordArgs;
use crate::cli::{Verbosity, ctl, recording, usage_error};
use aiprof_collect::control::{self, Request};
use aiprof_fleet::config::FREQUENCY;
use aiprof_system::os::privileges;
use anyhow::{Context as _, Result};
use clap::{Args, Subcommand, value_parser};

/// Options of `aiprof agent ctl`.
#[derive(Debug, Args)]
pub(super) struct AgentCtlArgs {
    /// What the agent is called: `control.name` of its configuration
    #[arg(long, value_name = "NAME", default_value = "agent")]
    name: String,

    #[command(subcommand)]
    action: Action,
}

/// What the agent is asked for.
#[derive(Debug, Subcommand)]
enum Action {
    /// Show what it records, and what that costs
    Status,
    /// Record nothing until resumed
    Pause,
    /// Go on
    Resume,
    /// Sample each CPU so often a second, until its configuration is read again
    ///
    /// The budget stays what it is: what costs more is turned down again.
    Rate {
        /// Samples per second and CPU
        #[arg(value_parser = value_parser!(u32)
              .range(i64::from(*FREQUENCY.start())..=i64::from(*FREQUENCY.end())))]
        hz: u32,
    },
    /// End the window now: its profile goes to all outputs
    Snapshot,
    /// Profile a process at full rate, beside the agent, which goes on
    ///
    /// Takes the options of `aiprof record`, so that it writes flame graphs, traces and
    /// captures: aiprof agent ctl profile -p PID -d 30 -o flame.svg
    Profile(Box<RecordArgs>),
}

/// Does what is asked for, and gives the exit code.
///
/// # Errors
/// No agent runs, or it refuses.
pub(super) fn run(args: AgentCtlArgs, verbosity: Verbosity) -> Result<u8> {
    let name = args.name;
    if !control::is_name(&name) {
        return Err(usage_error(format!("{name} is no name of an agent")));
    }
    let request = match args.action {
        Action::Profile(record) => {
            if !record.has_an_end() {
                return Err(usage_error(
                    "which process (-p PID), or for how long (-d 30)?".to_owned(),
                ));
            }
            return recording::run(*record, verbosity);
        }
        Action::Status => Request::Status,
        Action::Pause => Request::Pause,
        Action::Resume => Request::Resume,
        Action::Rate { hz } => Request::Rate(hz),
        Action::Snapshot => Request::Dump,
    };
    privileges::drop_file_capabilities()?;
    let status =
        ctl::ask(&name, request).with_context(|| match rustix::process::getuid().is_root() {
            true => "the agent cannot be asked (--name is its `control.name`)",
            false => "the agent cannot be asked (as its user, or root: `sudo aiprof agent ctl`)",
        })?;
    match request {
        Request::Status => ctl::print(&[(name, status)])?,
        _ => verbosity.say(&[format!("aiprof: {}", status.what)]),
    }
    Ok(0)
}
