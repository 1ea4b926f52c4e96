//! The command line.

use clap::Parser;
use std::path::PathBuf;

/// Exit code of what did not work; wrong usage is 2.
pub(crate) const FAILURE: u8 = 1;

const HELP: &str = "\
Examples:
  aiprof-send --config /etc/aiprof/agent.toml --check
      Checks for each output that its server is reachable and accepts the credentials, or
      that its lake is writable. Prints one line for each.
  aiprof-send --config /etc/aiprof/agent.toml --once
      Tries to send each waiting profile once, and exits.
  aiprof-send --config /etc/aiprof/agent.toml
      Sends profiles until SIGTERM. `aiprof agent` starts it this way.

Signals:
  SIGHUP            Reloads the configuration, and retries at once what failed. An invalid
                    configuration changes nothing.
  SIGTERM, SIGINT   Exits within 3 s, when the current requests have ended.
If stdin is a pipe, such as from the agent, a byte has the effect of SIGHUP, and its end that of
SIGTERM.

aiprof-send sends the files in STATE/spool/OUTPUT, oldest first. It deletes a file that the server
accepted, that the server refused for good, or that is too old. It counts these in
STATE/sender/sender.json and in the metrics (docs/agent-metrics.md). It retries everything else
after 1 s to 5 min.

Proxies: HTTP_PROXY, HTTPS_PROXY and NO_PROXY.

aiprof-send opens no other files and starts no programs. If root starts it, it becomes the user
nobody. Its keeper, a process without network, stays the user that started it. The keeper reads the
files that the configuration names: tokens, keys and certificates.

Exit codes:
  0   success
  1   something failed (--check, --once: at least one output)
  2   wrong usage
  75  restart needed: the configuration has another lake or `state`, the files that resolve host
      names were replaced, or the keeper ended";

/// Send the profiles that `aiprof agent` recorded, and serve its metrics
#[derive(Debug, Parser)]
#[command(name = "aiprof-send", version, after_help = HELP)]
pub(crate) struct Args {
    /// Configuration file of the agent
    #[arg(long, value_name = "FILE", default_value = "/etc/aiprof/agent.toml")]
    pub(crate) config: PathBuf,
    /// Check the configuration and contact each server, without sending profiles
    #[arg(long, conflicts_with = "once")]
    pub(crate) check: bool,
    /// With --check: contact no server, and print only problems
    ///
    /// `aiprof agent --check` runs this.
    #[arg(long, requires = "check")]
    pub(crate) offline: bool,
    /// Send the profiles that wait now, then exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Run as the keeper, which reads the files that the configuration names
    #[arg(long, hide = true)]
    pub(crate) keeper: bool,
    /// Log more details
    #[arg(short, long)]
    pub(crate) verbose: bool,
}
