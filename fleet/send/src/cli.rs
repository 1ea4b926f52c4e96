//! The command line.

use clap::Parser;
use std::path::PathBuf;

/// Exit code of what did not work; wrong usage is 2.
pub(crate) const FAILURE: u8 = 1;

const HELP: &str = "\
Examples:
  aiprof-send --config /etc/aiprof/agent.toml --check
      Says of each output whether its server can be reached and knows the credentials, or
      whether its lake can be written to.
  aiprof-send --config /etc/aiprof/agent.toml --once
      Delivers what waits, each body tried once, and ends.
  aiprof-send --config /etc/aiprof/agent.toml
      Delivers until it gets SIGTERM. `aiprof agent` starts it so.

Signals:
  SIGHUP            Reads the configuration anew, and tries at once what failed. A broken one
                    changes nothing.
  SIGTERM, SIGINT   Ends, after the requests under way, in 3 s at most. So does the end of
                    a pipe as stdin: the agent has ended.

What it delivers are the files in STATE/spool/OUTPUT, oldest first. A file is deleted when the
server has it, refused it for good, or it is too old; all are counted in STATE/sender/sender.json and in
the metrics (docs/agent-metrics.md). Everything else is tried again, 1 s to 5 min later.

Proxies are those of HTTP_PROXY, HTTPS_PROXY and NO_PROXY.

It opens no files but these, and starts nothing; started by root it becomes the user nobody. What
the configuration names (tokens, keys, certificates) is read by its keeper, a process without
network that stays the user it was started by.

Exit codes: 0 all well; 1 something failed (--check, --once: of any output); 2 wrong usage; 75 it is
to be started anew: the configuration has another lake, or what names of hosts are looked up with
was replaced.";

/// Deliver what `aiprof agent` has recorded, and serve its metrics.
#[derive(Debug, Parser)]
#[command(name = "aiprof-send", version, after_help = HELP)]
pub(crate) struct Args {
    /// The configuration of the agent.
    #[arg(long, value_name = "FILE", default_value = "/etc/aiprof/agent.toml")]
    pub(crate) config: PathBuf,
    /// Check the configuration and reach each server; deliver nothing.
    #[arg(long, conflicts_with = "once")]
    pub(crate) check: bool,
    /// With --check: ask no server, and print what is wrong only. `aiprof agent --check` does it
    /// so.
    #[arg(long, requires = "check")]
    pub(crate) offline: bool,
    /// Deliver what waits now, then end.
    #[arg(long)]
    pub(crate) once: bool,
    /// Be the keeper: read what the configuration names, for who asks on stdin.
    #[arg(long, hide = true)]
    pub(crate) keeper: bool,
    /// Say more.
    #[arg(short, long)]
    pub(crate) verbose: bool,
}
