//! `cargo xtask bench`: measurements, some beside other profilers.

mod agent;
mod analyze;
mod bpf;
mod device;
mod finish;
mod layers;
mod memory;
mod probes;
mod processes;
mod report;
mod sampler;
mod stacks;
mod start;
mod tools;
mod unwind;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::install::ensure;
use crate::packages::Group;
use crate::proc::{capture, cargo, is_root, run, target_dir};

pub(crate) const HELP: &str = "
Measures a release build. All benchmarks except the last three need root:

  sampler            compares aiprof with perf and bpftrace on the same workload,
                     one after the other: BPF time per sample, complete stacks,
                     CPU, memory, bytes written, time to the result
  finish             time from the end of the command to the finished flame graph
  memory             100 processes of 10 large programs: aiprof's memory
  processes          2,000 short processes, and 50 containers of one image:
                     aiprof's CPU time, memory and stacks
  start              CPU and wall time to the first sample, on an idle machine and
                     with 16 busy processes, and perf's wall time
  probes             cost of a probed call, compared with bpftrace on the same
                     function; launches per second without a loss
  agent              cost of `aiprof agent` on a busy machine, by its own CPU time
                     and by the throughput of a workload
  churn              memory of the agent while 10,000 programs start and end
  layers             cost of launches through Level Zero's loader and a driver,
                     and losses at high rates
  analyze            compares `aiprof acelyzer` with acelyzer and with a plain copy
                     of the same generated traces: time, memory, growth
  device             stall records of devices that are decoded and summed per second
  unwind-table FILE  rows, bytes and build time of the unwind tables of FILE

  --rounds N    number of rounds; medians are reported (3)
  --seconds N   sampler, memory, probes, layers: length of each recording
                (10, 60, 3, 3); agent: length of each half of a pair (55);
                churn: length of the simulated day (1440)
  --peers       sampler, agent: also measure lightswitch; cargo installs it,
                which takes minutes
  --beside FILE processes: an earlier aiprof to compare with
  --events N    analyze: events in a file (1,000,000); acelyzer gets a tenth
  --full        analyze: give acelyzer all events (10 minutes), and measure
                growth up to ten times as many events (15 GB of disk)
  --programs DIR  analyze, agent, churn, processes, start, probes, layers: use
                the aiprof (and aiu-trace, json-copy) in DIR instead of building it
  --write       also replace the result in docs/benchmarks.md

  --wait N      seconds to wait in total for a quiet machine (600)

A round in which other programs used much CPU time is repeated while waiting time is
left. The results show how much the rounds were disturbed.
";

/// What was asked for.
#[derive(Clone)]
struct Options {
    rounds: u64,
    seconds: u64,
    /// What was given for it.
    asked_seconds: Option<u64>,
    /// For a quiet machine, over all rounds.
    wait: Duration,
    peers: bool,
    events: Option<u64>,
    full: bool,
    /// Where the programs are, if they are not to be built.
    programs: Option<PathBuf>,
    write: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rounds: 3,
            seconds: 0,
            asked_seconds: None,
            wait: Duration::from_secs(600),
            peers: false,
            events: None,
            full: false,
            programs: None,
            write: false,
        }
    }
}

impl Options {
    /// The command that repeats a measurement.
    fn command(&self, what: &str) -> String {
        let flag = |name: &str, given| {
            if given {
                format!(" --{name}")
            } else {
                String::new()
            }
        };
        let number = |name: &str, given: Option<u64>| {
            given.map_or_else(String::new, |n| format!(" --{name} {n}"))
        };
        format!(
            "cargo xtask bench {what}{}{}{}{}{}",
            flag("peers", self.peers),
            flag("full", self.full),
            number("rounds", Some(self.rounds)),
            number("seconds", self.asked_seconds),
            number("events", self.events),
        )
    }
}

/// A whole command line of this task.
struct CommandLine {
    options: Options,
    /// An earlier aiprof to compare with.
    beside: Option<PathBuf>,
    what: Option<String>,
    file: Option<String>,
}

fn parse(args: Vec<String>) -> Result<CommandLine, lexopt::Error> {
    let mut args = lexopt::Parser::from_args(args);
    let mut options = Options::default();
    let (mut beside, mut what, mut file) = (None, None, None);
    while let Some(arg) = args.next()? {
        match arg {
            Long("rounds") => options.rounds = args.value()?.parse::<u64>()?.max(1),
            Long("seconds") => options.asked_seconds = Some(args.value()?.parse()?),
            Long("wait") => options.wait = Duration::from_secs(args.value()?.parse()?),
            Long("peers") => options.peers = true,
            Long("events") => options.events = Some(args.value()?.parse()?),
            Long("full") => options.full = true,
            Long("programs") => options.programs = Some(args.value()?.into()),
            Long("beside") => beside = Some(args.value()?.into()),
            Long("write") => options.write = true,
            Value(text) if what.is_none() => what = Some(text.string()?),
            Value(text) if file.is_none() => file = Some(text.string()?),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(CommandLine {
        options,
        beside,
        what,
        file,
    })
}

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let CommandLine {
        options,
        beside,
        what,
        file,
    } = parse(args)?;
    let options = |default: u64| Options {
        seconds: options.asked_seconds.unwrap_or(default).max(2),
        ..options.clone()
    };
    match (what.as_deref(), file.as_deref()) {
        (Some("sampler"), None) => as_root().and_then(|()| sampler::main(&options(10))),
        (Some("finish"), None) => as_root().and_then(|()| finish::main(&options(30))),
        (Some("memory"), None) => as_root().and_then(|()| memory::main(&options(60))),
        (Some("processes"), None) => {
            as_root().and_then(|()| processes::main(&options(0), beside.as_deref()))
        }
        (Some("agent"), None) => as_root().and_then(|()| agent::main(&options(55))),
        (Some("churn"), None) => as_root().and_then(|()| agent::churn(&options(1440))),
        (Some("layers"), None) => as_root().and_then(|()| layers::main(&options(3))),
        (Some("start"), None) => as_root().and_then(|()| start::main(&options(0))),
        (Some("probes"), None) => as_root().and_then(|()| probes::main(&options(3))),
        (Some("analyze"), None) => analyze::main(&options(0)),
        (Some("device"), None) => device::main(&options(0)),
        (Some("unwind-table"), Some(file)) => unwind::main(&options(0), file),
        (Some("unwind-table"), None) => bail!("unwind-table needs a FILE"),
        (Some(other), _) => bail!("no benchmark is named {other:?}; see `cargo xtask help bench`"),
        (None, _) => bail!("name a benchmark; see `cargo xtask help bench`"),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn as_root() -> Result<()> {
    if is_root() {
        return Ok(());
    }
    bail!("this benchmark needs root: sudo -E env \"PATH=$PATH\" cargo xtask bench ...")
}

/// Builds aiprof as it is shipped.
fn build_aiprof() -> Result<PathBuf> {
    ensure(&[Group::Build])?;
    run(cargo().args(["build", "--release", "--package", "aiprof"]))?;
    Ok(target_dir().join("release/aiprof"))
}

/// The aiprof to measure: the one that is there, or a new build.
fn aiprof_of(options: &Options) -> Result<PathBuf> {
    match &options.programs {
        Some(dir) => {
            let file = dir.join("aiprof");
            fs::canonicalize(&file).with_context(|| file.display().to_string())
        }
        None => build_aiprof(),
    }
}

/// A folder for a bench's programs and results.
fn work_dir(name: &str) -> Result<PathBuf> {
    let dir = target_dir().join("bench").join(name);
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    Ok(dir)
}

/// Compiles a C source with the system's compiler.
fn compile(source: &str, to: &Path, flags: &[&str]) -> Result<()> {
    let file = to.with_extension("c");
    fs::write(&file, source).with_context(|| file.display().to_string())?;
    run(Command::new("cc")
        .args(flags)
        .arg("-o")
        .args([to, file.as_path()]))
}

/// The system's C compiler, as it calls itself.
fn compiler() -> String {
    let text = capture(Command::new("cc").arg("--version")).unwrap_or_default();
    text.lines().next().unwrap_or("cc").to_string()
}

/// How many CPUs there are to keep busy.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
