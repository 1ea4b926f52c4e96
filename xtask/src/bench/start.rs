//! `bench start`: what it takes until the first sample, by the kernel's own count of
//! runs of the sampling program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Options;
use super::bpf::{Runs, Stats};
use super::report::{publish, table};
use super::watch::{Guard, cpu_of, interrupt, median};
use crate::proc::{capture, find_program};

/// How often it is looked whether there was a sample.
const LOOK: Duration = Duration::from_millis(1);
/// Longest wait for one.
const MOST: Duration = Duration::from_secs(60);
/// Busy processes beside it, in the second half.
const LOAD: usize = 16;

/// What it took until the first sample.
#[derive(Clone, Copy)]
struct Took {
    wall: f64,
    /// CPU time of aiprof and its readers; of perf it is not known.
    cpu: Option<f64>,
}

pub(super) fn main(options: &Options) -> Result<()> {
    let dir = super::work_dir("start")?;
    let built = options.programs.as_ref().map(|dir| dir.join("aiprof"));
    let aiprof = built.map_or_else(super::build_aiprof, Ok)?;
    let _stats = Stats::enable()?;
    let perf = find_program("perf");
    let mut rows = Vec::new();
    for load in [0, LOAD] {
        let _busy = Busy::start(load)?;
        let mut took = [Vec::new(), Vec::new(), Vec::new()];
        // In turns, so that all meet the same machine.
        for _ in 0..options.rounds {
            took[0].push(aiprof_start(&aiprof, &dir.join("out.folded"))?);
            took[1].push(aiprof_start(&aiprof, &dir.join("out.aiprof"))?);
            if perf.is_some() {
                took[2].push(perf_start(&dir.join("perf.data"))?);
            }
        }
        let names = [
            "aiprof -o FILE.folded",
            "aiprof -o FILE.aiprof",
            "perf record -a -g",
        ];
        for (name, took) in names.iter().zip(&took).filter(|(_, took)| !took.is_empty()) {
            rows.push(row(name, load, took));
        }
    }
    let body = table(
        &[
            "profiler",
            "busy processes beside it",
            "CPU ms (most)",
            "wall ms (most)",
        ],
        &rows,
    );
    let body = format!(
        "{} rounds in turns; medians, and the most.\n\n{body}",
        options.rounds
    );
    publish("start", &options.command("start"), &body, options.write)
}

fn row(name: &str, load: usize, took: &[Took]) -> Vec<String> {
    let show = |values: Vec<f64>| {
        let most = values.iter().copied().fold(0.0, f64::max);
        match values.is_empty() {
            true => "-".to_owned(),
            false => format!(
                "{:.0} ({:.0})",
                median(values.into_iter()) * 1e3,
                most * 1e3
            ),
        }
    };
    vec![
        name.to_owned(),
        load.to_string(),
        show(took.iter().filter_map(|took| took.cpu).collect()),
        show(took.iter().map(|took| took.wall).collect()),
    ]
}

/// Processes that do nothing but run.
struct Busy(Vec<Child>);

impl Busy {
    fn start(n: usize) -> Result<Self> {
        let mut busy = Self(Vec::new());
        for _ in 0..n {
            let child = Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .spawn();
            busy.0.push(child.context("sh")?);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only if it has ended, which is the aim.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn aiprof_start(aiprof: &Path, out: &Path) -> Result<Took> {
    let begun = Instant::now();
    let mut child = Command::new(aiprof)
        .args(["-q", "-o"])
        .arg(out)
        .args(["-d", "60"])
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| aiprof.display().to_string())?;
    let mut guard = Guard::new()?;
    guard.add(&child, false)?;
    while Runs::of(child.id()).samples == 0 {
        if begun.elapsed() > MOST || child.try_wait()?.is_some() {
            bail!("{}: no sample", aiprof.display());
        }
        thread::sleep(LOOK);
    }
    let took = Took {
        wall: begun.elapsed().as_secs_f64(),
        cpu: Some(cpu_of(child.id())),
    };
    interrupt(&child);
    child.wait()?;
    Ok(took)
}

/// perf reports when its first sample was only after it has ended.
fn perf_start(out: &Path) -> Result<Took> {
    let begun = uptime()?;
    let status = Command::new("perf")
        .args([
            "record",
            "-q",
            "-a",
            "-g",
            "-F",
            "99",
            "-k",
            "CLOCK_MONOTONIC",
            "-o",
        ])
        .arg(out)
        .args(["--", "sleep", "0.3"])
        .stderr(Stdio::null())
        .status()
        .context("perf")?;
    if !status.success() {
        bail!("perf record: {status}");
    }
    let script = capture(
        Command::new("perf")
            .args(["script", "-F", "time", "-G", "-i"])
            .arg(out),
    )?;
    let first = script
        .lines()
        .find_map(|l| l.trim().trim_end_matches(':').parse::<f64>().ok());
    let first = first.context("perf recorded no sample")?;
    Ok(Took {
        wall: first - begun,
        cpu: None,
    })
}

/// Seconds since the start of the machine, by the monotonic clock if it never slept.
fn uptime() -> Result<f64> {
    let text = fs::read_to_string(PathBuf::from("/proc/uptime"))?;
    let first = text.split(' ').next().and_then(|s| s.parse().ok());
    first.context("/proc/uptime")
}
