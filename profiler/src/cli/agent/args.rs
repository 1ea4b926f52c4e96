//! The command line of `aiprof agent`.

use super::ctl::AgentCtlArgs;
use aiprof_fleet::config::OUTPUTS;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// The configuration's default path.
const CONFIG: &str = "/etc/aiprof/agent.toml";

const EXAMPLE: &str = "\
Example of a configuration:
  frequency = 19
  window = \"60s\"
  [budget]
  cpu = \"0.1%\"
  [[output]]
  type = \"files\"
  directory = \"/var/lib/aiprof/files\"
  keep = 1440
  [[output]]
  type = \"otlp\"
  url = \"https://collector:4318/v1development/profiles\"

SIGHUP reloads it. docs/always-on.md explains all keys.";

/// What stands below the options: the types of outputs, and an example.
fn after_help() -> String {
    let kinds = OUTPUTS.iter();
    let kinds = kinds.map(|kind| format!("  {:<11}{}\n", kind.name, kind.help));
    let kinds: String = kinds.collect();
    format!("Types of outputs:\n{kinds}\n{EXAMPLE}")
}

/// Options of `aiprof agent`.
#[derive(Debug, Args)]
#[command(
    after_help = after_help(),
    override_usage = "aiprof agent [--config FILE] [--check] [--no-send]\n       aiprof agent ctl COMMAND",
    args_conflicts_with_subcommands = true
)]
pub(crate) struct AgentArgs {
    /// Configuration file, in TOML
    #[arg(long, value_name = "FILE", default_value = CONFIG, value_hint = ValueHint::FilePath)]
    pub(super) config: PathBuf,

    /// Check the configuration, print what it means, and exit
    ///
    /// Prints one line for each problem, with the key and what to write instead. Contacts no
    /// server. Exits with 0 if the configuration is valid.
    #[arg(long)]
    pub(super) check: bool,

    /// Do not start aiprof-send, because it runs as a separate service
    #[arg(long)]
    pub(super) no_send: bool,

    #[command(subcommand)]
    pub(super) command: Option<AgentCommand>,
}

/// What else there is to do with an agent.
#[derive(Debug, Subcommand)]
pub(super) enum AgentCommand {
    /// Control the running agent, or make a separate recording while it runs
    Ctl(AgentCtlArgs),
}

impl AgentArgs {
    /// Whether this process becomes the agent.
    pub(crate) fn records(&self) -> bool {
        self.command.is_none() && !self.check
    }
}
