//! `aiprof agent ctl`: steers the agent of this machine.

use crate::cli::record::RecordArgs;
use crate::cli::{Verbosity, ctl, recording, usage_error};
use aiprof_fleet::config::FREQUENCY;
use aiprof_live::control::{self, Request};
use aiprof_system::os::privileges;
use anyhow::{Context as _, Result};
use clap::{Args, Subcommand, value_parser};

/// Options of `aiprof agent ctl`.
#[derive(Debug, Args)]
pub(super) struct AgentCtlArgs {
    /// Name of the agent: `control.name` in its configuration
    #[arg(long, value_name = "NAME", default_value = "agent")]
    name: String,

    #[command(subcommand)]
    action: AgentAction,
}

/// What the agent is asked for.
#[derive(Debug, Subcommand)]
enum AgentAction {
    /// Show what the agent records, and what that costs
    Status,
    /// Stop recording until `resume`
    Pause,
    /// Continue recording
    Resume,
    /// Set the sampling frequency until the configuration is reloaded
    ///
    /// The budget stays in force: if the frequency costs more, the agent reduces it again.
    Rate {
        /// Samples per second and CPU
        #[arg(value_parser = value_parser!(u32)
              .range(i64::from(*FREQUENCY.start())..=i64::from(*FREQUENCY.end())))]
        hz: u32,
    },
    /// End the window now, and write its profile to all outputs
    Snapshot,
    /// Profile a process at full rate while the agent continues
    ///
    /// Takes the options of `aiprof record`, so it can write flame graphs, traces and captures.
    /// Example: aiprof agent ctl profile -p PID -d 30 -o flame.svg
    Profile(Box<RecordArgs>),
}

/// Does what is asked for, and gives the exit code.
///
/// # Errors
/// No agent runs, or it refuses.
pub(super) fn run(args: AgentCtlArgs, verbosity: Verbosity) -> Result<u8> {
    let name = args.name;
    if !control::is_name(&name) {
        return Err(usage_error(format!(
            "{name} is not a valid name of an agent: give `control.name` of its configuration"
        )));
    }
    let request = match args.action {
        AgentAction::Profile(record) => {
            if !record.has_an_end() {
                return Err(usage_error(
                    "`profile` needs an end: give a process (-p PID), a duration (-d 30) or a \
                     COMMAND"
                        .to_owned(),
                ));
            }
            return recording::run(*record, verbosity);
        }
        AgentAction::Status => Request::Status,
        AgentAction::Pause => Request::Pause,
        AgentAction::Resume => Request::Resume,
        AgentAction::Rate { hz } => Request::Rate(hz),
        AgentAction::Snapshot => Request::Dump,
    };
    privileges::drop_file_capabilities()?;
    let status =
        ctl::ask(&name, request).with_context(|| match rustix::process::getuid().is_root() {
            true => "cannot reach the agent (--name must be `control.name` of its configuration)",
            false => "cannot reach the agent (run `sudo aiprof agent ctl`, or run it as the agent's user)",
        })?;
    match request {
        Request::Status => ctl::print(&[(name, status)])?,
        _ => verbosity.say(&[format!("aiprof: {}", status.what)]),
    }
    Ok(0)
}
