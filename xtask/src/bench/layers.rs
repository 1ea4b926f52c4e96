//! `bench layers`: launches through two layers, the system's Level Zero loader and the
//! tests' virtual driver, which only counts them. bpftrace probes the same two functions,
//! of a program with frame pointers, and takes the stack once.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::report::{publish, table};
use super::watch::{Quiet, median};
use super::{Options, cpus, probes};
use crate::proc::{capture, root, run};

const LOADER: &str = "/usr/lib/x86_64-linux-gnu/libze_loader.so.1";
const HEADER: &str = "/usr/include/level_zero/ze_api.h";
const LAUNCH: &str = "zeCommandListAppendLaunchKernel";
const BATCHES: &str = "batches=60";
const MODULE: &str = "vze module 1\nkernel tiny ns=500\n";
/// Parts of their time that threads are on a CPU for, percent.
const DUTIES: [&str; 3] = ["duty=50", "duty=70", "duty=100"];

/// The programs, and their driver.
struct Layers<'a> {
    dir: &'a Path,
    aiprof: &'a Path,
    driver: PathBuf,
    usual: PathBuf,
    frame_pointers: PathBuf,
}

pub(super) fn main(options: &Options) -> Result<()> {
    if !Path::new(LOADER).exists() || !Path::new(HEADER).exists() {
        bail!("the Level Zero loader or its headers are missing (Debian: libze1, libze-dev)");
    }
    let dir = super::work_dir("layers")?;
    let aiprof = super::aiprof_of(options)?;
    let bpftrace = probes::bpftrace()?;
    let mut quiet = Quiet::new(options.wait);
    let layers = Layers::build(&dir, &aiprof)?;
    let mut found: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for round in 1..=options.rounds {
        eprintln!("xtask: round {round} of {}", options.rounds);
        for (what, mut command) in layers.commands(bpftrace.as_deref()) {
            quiet.wait();
            let ns = cost(&mut command)?;
            found.entry(what).or_default().push(ns);
        }
    }
    let body = format!(
        "aiprof {}, {}. {} rounds of 60 batches of 2,000 launches; medians of all in turns.\n\n{}\n{}",
        env!("CARGO_PKG_VERSION"),
        probes::version(bpftrace.as_deref()),
        options.rounds,
        costs(&found),
        layers.losses(options, &mut quiet)?
    );
    publish("layers", &options.command("layers"), &body, options.write)
}

impl<'a> Layers<'a> {
    fn build(dir: &'a Path, aiprof: &'a Path) -> Result<Self> {
        let layers = Self {
            dir,
            aiprof,
            driver: dir.join("libze_intel_gpu.so.1"),
            usual: dir.join("layers"),
            frame_pointers: dir.join("layers-fp"),
        };
        fs::write(dir.join("module"), MODULE).context("writing the module")?;
        let sources = root().join("tests/virtual/level-zero");
        let mut units: Vec<PathBuf> = fs::read_dir(&sources)
            .with_context(|| sources.display().to_string())?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "cpp"))
            .collect();
        units.sort();
        let mut driver = cxx(&layers.driver);
        driver.args(["-shared", "-fPIC", "-fomit-frame-pointer", "-Wl,-Bsymbolic"]);
        run(driver.args(["-Wl,-z,nodelete"]).args(units))?;
        let source = dir.join("layers.cpp");
        fs::write(&source, include_str!("layers.cpp")).context("writing a program")?;
        for (program, flag) in [
            (&layers.usual, "-fomit-frame-pointer"),
            (&layers.frame_pointers, "-fno-omit-frame-pointer"),
        ] {
            let mut program = cxx(program);
            program.args([flag, "-fno-optimize-sibling-calls", "-I"]);
            program.arg(root().join("tests/workloads")).arg(&source);
            run(program.arg("-lze_loader"))?;
        }
        Ok(layers)
    }

    fn environment<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("ZE_ENABLE_ALT_DRIVERS", &self.driver);
        command.env("VZE_NULL", "1").current_dir(self.dir)
    }

    /// What is measured in turns.
    fn commands(&self, bpftrace: Option<&Path>) -> Vec<(&'static str, Command)> {
        let mut all = vec![("none", self.plain(&self.usual))];
        let stacks = ["--call-stacks", "1000000"];
        let launches = [&["--events", "launches"][..], &stacks].concat();
        all.push(("launches", self.under(&launches, "out.folded")));
        all.push(("capture", self.under(&stacks, "out.aiprof")));
        all.push(("trace", self.under(&["trace"], "out.txt")));
        let Some(bpftrace) = bpftrace else { return all };
        let (loader, driver) = (LOADER, self.driver.display());
        let key = "pid, tid, arg0, arg1, arg2, arg3";
        let entries = format!(
            "uprobe:{loader}:{LAUNCH} {{ @l[{key}, ustack] = count(); }} \
             uprobe:{driver}:{LAUNCH} {{ @d[{key}] = count(); }}"
        );
        let end = format!(" uretprobe:{loader}:{LAUNCH} {{ @e[pid, tid, retval] = count(); }}");
        let program = format!(
            "{} cost module=module {BATCHES}",
            self.frame_pointers.display()
        );
        for (what, script) in [
            ("bpftrace", entries.clone()),
            ("and the end", entries + &end),
        ] {
            let mut command = Command::new(bpftrace);
            command.env("BPFTRACE_MAP_KEYS_MAX", "65536");
            command.args(["-q", "-o", "bpftrace.txt", "-e", &script, "-c", &program]);
            self.environment(&mut command);
            all.push((what, command));
        }
        all
    }

    fn plain(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        self.environment(&mut command);
        command.args(["cost", "module=module", BATCHES]);
        command
    }

    fn under(&self, options: &[&str], output: &str) -> Command {
        let mut command = Command::new(self.aiprof);
        self.environment(&mut command).args(options);
        command.args(["-o", output, "--"]).arg(&self.usual);
        command.args(["cost", "module=module", BATCHES]);
        command
    }

    /// Launches of one thread for each CPU, how many were lost, and how many reported as lost.
    fn losses(&self, options: &Options, quiet: &mut Quiet) -> Result<String> {
        let mut rows = Vec::new();
        for duty in DUTIES {
            quiet.wait();
            let mut command = Command::new(self.aiprof);
            self.environment(&mut command);
            command.args(["--events", "launches", "-o", "rate.folded", "--"]);
            command
                .arg(&self.usual)
                .args(["rate", "module=module", duty]);
            command.arg(format!("threads={}", cpus()));
            let output = command
                .arg(format!("seconds={}", options.seconds))
                .output()?;
            let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
            let mut words = stdout.split_whitespace();
            let (Some(Ok(made)), Some(Ok(used))) = (
                words.next().map(str::parse::<u64>),
                words.next().map(str::parse::<f64>),
            ) else {
                bail!("{command:?} printed no launches: {stdout}{stderr}");
            };
            let folded = fs::read_to_string(self.dir.join("rate.folded"))?;
            let launches = folded.lines().filter(|line| line.contains(LAUNCH));
            let counts = launches.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
            let lost = made.saturating_sub(counts.sum());
            rows.push(vec![
                format!("{:.0} %", 100.0 * used / cpus() as f64),
                format!("{:.0}", made as f64 / options.seconds as f64),
                lost.to_string(),
                told(&stderr).to_string(),
            ]);
        }
        let head = [
            "CPUs for program and probes",
            "launches a second",
            "lost",
            "calls reported lost",
        ];
        Ok(table(&head, &rows))
    }
}

/// Calls that aiprof reports as lost: a launch is one in each layer.
fn told(stderr: &str) -> u64 {
    let line = stderr.lines().find(|line| line.contains("calls dropped"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.map_or(0, |n| n.replace(',', "").parse().unwrap_or(0))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn cxx(output: &Path) -> Command {
    let mut command = Command::new("c++");
    command
        .args(["-std=c++17", "-O2", "-pthread", "-o"])
        .arg(output);
    command
}

/// Median of the costs of a launch that a program prints, ns.
fn cost(command: &mut Command) -> Result<f64> {
    let output = capture(command)?;
    let batches: Vec<f64> = output.lines().filter_map(|l| l.parse().ok()).collect();
    if batches.is_empty() {
        bail!("{command:?} printed no costs: {output}");
    }
    Ok(median(batches))
}

fn costs(found: &BTreeMap<&str, Vec<f64>>) -> String {
    let of = |what: &str| found.get(what).cloned().map(median);
    let none = of("none").unwrap_or(0.0);
    let added = |what: &str| of(what).map(|ns| ns - none);
    let ratio = |what: &str, to: &str| match added(what).zip(added(to)) {
        Some((ns, other)) => format!("{:.2}", ns / other),
        None => "-".into(),
    };
    let cell = |ns: Option<f64>| ns.map_or_else(|| "-".into(), |ns| format!("{ns:.0}"));
    let row = |name: &str, what: &str, to: &str| {
        let ratio = if to.is_empty() {
            String::new()
        } else {
            ratio(what, to)
        };
        vec![name.into(), cell(added(what)), ratio]
    };
    let rows = [
        vec!["the launch itself".into(), cell(of("none")), String::new()],
        row("aiprof --events launches adds", "launches", "bpftrace"),
        row("a plain capture adds", "capture", "bpftrace"),
        row("bpftrace adds", "bpftrace", ""),
        row("aiprof trace adds, with ends", "trace", "and the end"),
        row("bpftrace adds, with the outer end", "and the end", ""),
    ];
    let head = ["a launch through two layers", "ns", "by bpftrace's"];
    table(&head, &rows)
}
