//! `bench probes`: what a probed call costs, and how many can be recorded.
//!
//! The library has two functions of CUDA's driver that do nothing; aiprof's own table determines
//! what is read of them. The program takes the time around batches of calls: it pays for the whole
//! probe, of which the kernel may count only a part. Launches through two layers: `bench layers`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use super::report::{publish, table};
use super::watch::{Quiet, median};
use super::{Options, compile};
use crate::install::{apt_install, may_install};
use crate::proc::{capture, find_program, run};

/// Calls below main, where the launches are: 30 frames with the C library's.
const DEPTH: &str = "27";
/// Batches of each function in a run.
const BATCHES: &str = "100";
/// Options for a stack with every launch: without the limiter.
const EVERY_STACK: [&str; 4] = ["--events", "launches", "--call-stacks", "1000000"];
/// With and without a stack.
const LAUNCH: &str = "cuLaunchKernel";
const EVENT: &str = "cuEventRecord";

/// Both builds of the program, and where their library lies.
struct Programs {
    dir: PathBuf,
    usual: PathBuf,
    frame_pointers: PathBuf,
}

/// ns per call of a function.
type Costs = BTreeMap<String, f64>;

pub(super) fn main(options: &Options) -> Result<()> {
    let dir = super::work_dir("probes")?;
    let programs = build(&dir)?;
    let aiprof = super::aiprof_of(options)?;
    let bpftrace = bpftrace()?;
    let mut quiet = Quiet::new(options.wait);
    let mut found: BTreeMap<&str, Vec<Costs>> = BTreeMap::new();
    for round in 1..=options.rounds {
        eprintln!("xtask: round {round} of {}", options.rounds);
        quiet.wait();
        let plain = programs.cost(&mut Command::new(&programs.usual))?;
        found.entry("none").or_default().push(plain);
        quiet.wait();
        let probed = programs.cost(&mut programs.under(&aiprof, &EVERY_STACK))?;
        found.entry("aiprof").or_default().push(probed);
        quiet.wait();
        let mut exact = EVERY_STACK;
        exact[1] = "time-in-call";
        let exact = programs.cost(&mut programs.under(&aiprof, &exact))?;
        found.entry("exact").or_default().push(exact);
        if let Some(bpftrace) = &bpftrace {
            quiet.wait();
            let traced = programs.cost(&mut programs.under_bpftrace(bpftrace))?;
            found.entry("bpftrace").or_default().push(traced);
        }
    }
    let same = highest_rate(&programs, &aiprof, options, false, &mut quiet)?;
    let fresh = highest_rate(&programs, &aiprof, options, true, &mut quiet)?;
    let command = options.command("probes");
    let body = body(&found, &[same, fresh], options, bpftrace.as_deref());
    publish("probes", &command, &body, options.write)
}

fn build(dir: &Path) -> Result<Programs> {
    let source = include_str!("probed.c");
    let library = dir.join("libcuda.so.1");
    compile(source, &library, &["-O2", "-DLIBRARY", "-shared", "-fPIC"])?;
    let programs = Programs {
        dir: dir.to_path_buf(),
        usual: dir.join("probed"),
        frame_pointers: dir.join("probed-fp"),
    };
    let link = |program: &Path, flag: &str| {
        let object = program.with_extension("o");
        compile(source, &object, &["-O2", "-c", flag])?;
        let mut cc = Command::new("cc");
        cc.arg(&object).arg(&library).arg("-Wl,-rpath,$ORIGIN");
        run(cc.arg("-o").arg(program))
    };
    link(&programs.usual, "-fomit-frame-pointer")?;
    link(&programs.frame_pointers, "-fno-omit-frame-pointer")?;
    Ok(programs)
}

impl Programs {
    /// The program of the usual build below aiprof, which writes into this folder.
    fn under(&self, aiprof: &Path, options: &[&str]) -> Command {
        let mut command = Command::new(aiprof);
        command
            .args(options)
            .arg("-o")
            .arg(self.dir.join("out.folded"));
        command.arg("--").arg(&self.usual);
        command
    }

    /// The same probes by bpftrace: the arguments that aiprof reads, and for
    /// launches the user stack.
    fn under_bpftrace(&self, bpftrace: &Path) -> Command {
        let library = self.dir.join("libcuda.so.1");
        let library = library.display();
        let script = format!(
            "uprobe:{library}:{LAUNCH} {{ @l[pid, tid, arg0, arg1, arg2, arg3, ustack] = count(); }} \
             uprobe:{library}:{EVENT} {{ @e[pid, tid, arg0, arg1] = count(); }}"
        );
        let mut command = Command::new(bpftrace);
        command.env("BPFTRACE_MAP_KEYS_MAX", "65536");
        command
            .args(["-q", "-o"])
            .arg(self.dir.join("bpftrace.txt"));
        command.args(["-e", &script, "-c"]);
        command.arg(format!(
            "{} cost {DEPTH} {BATCHES}",
            self.frame_pointers.display()
        ));
        command
    }

    /// Medians of the costs of a call that the program prints.
    fn cost(&self, command: &mut Command) -> Result<Costs> {
        if command.get_args().all(|arg| arg != "-c") {
            command.args(["cost", DEPTH, BATCHES]);
        }
        let output = finish(command)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut batches: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for line in text.lines() {
            if let Some((function, ns)) = line.split_once(' ')
                && let Ok(ns) = ns.parse()
            {
                batches.entry(function.to_owned()).or_default().push(ns);
            }
        }
        if batches.len() != 2 {
            bail!("{command:?} printed no costs: {text}");
        }
        let medians = batches.into_iter();
        Ok(medians.map(|(name, ns)| (name, median(ns))).collect())
    }
}

fn finish(command: &mut Command) -> Result<Output> {
    let output = command
        .output()
        .with_context(|| format!("running {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(output)
}

/// The highest rate of launches without a loss.
struct Highest {
    fresh: bool,
    /// Launches a second that the program reached; 0: there is none.
    rate: f64,
    /// The next rate that was tried, and what was lost of it.
    beyond: Option<(f64, u64)>,
}

/// Tries rates, each higher by a quarter, until launches are lost or the program
/// itself makes no more.
fn highest_rate(
    programs: &Programs,
    aiprof: &Path,
    options: &Options,
    fresh: bool,
    quiet: &mut Quiet,
) -> Result<Highest> {
    let mut best = Highest {
        fresh,
        rate: 0.0,
        beyond: None,
    };
    // Fresh stacks: a profile's limit of stacks must not end the measurement of the rate.
    let seconds = if fresh { 1 } else { options.seconds };
    let mut rate = if fresh { 20_000.0 } else { 50_000.0 };
    for _ in 0..24 {
        quiet.wait();
        let (made, lost) = launches(programs, aiprof, rate, seconds, fresh)?;
        let reached = made as f64 / seconds as f64;
        eprintln!("xtask: fresh stacks {fresh}: {reached:.0}/s, {lost} lost");
        if lost > 0 {
            best.beyond = Some((reached, lost));
            break;
        }
        best.rate = best.rate.max(reached);
        if reached < rate * 0.95 {
            break;
        }
        rate *= 1.25;
    }
    Ok(best)
}

/// Launches made, and of these lost or without their stack.
fn launches(
    programs: &Programs,
    aiprof: &Path,
    rate: f64,
    seconds: u64,
    fresh: bool,
) -> Result<(u64, u64)> {
    let mut command = programs.under(aiprof, &EVERY_STACK);
    command.arg("rate").arg(format!("{rate:.0}"));
    command.arg(seconds.to_string());
    command.arg(if fresh { "1" } else { "0" });
    let output = finish(&mut command)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let made = text.trim().strip_prefix("launches ");
    let made: u64 = made.and_then(|n| n.parse().ok()).context("no launches")?;
    let folded = fs::read_to_string(programs.dir.join("out.folded"))?;
    // Whole, from main on.
    let whole = folded.lines().filter(|line| {
        line.starts_with("probed;") && line.contains(";main;") && line.contains(LAUNCH)
    });
    let counts = whole.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    let seen: u64 = counts.sum();
    Ok((made, made.saturating_sub(seen)))
}

pub(super) fn bpftrace() -> Result<Option<PathBuf>> {
    if find_program("bpftrace").is_none() && may_install() {
        apt_install(&["bpftrace"])?;
    }
    Ok(find_program("bpftrace"))
}

fn body(
    found: &BTreeMap<&str, Vec<Costs>>,
    rates: &[Highest],
    options: &Options,
    bpftrace: Option<&Path>,
) -> String {
    let of = |what: &str, function: &str| {
        let runs = found.get(what).into_iter().flatten();
        let values: Vec<f64> = runs
            .filter_map(|costs| costs.get(function).copied())
            .collect();
        (!values.is_empty()).then(|| median(values))
    };
    let cell = |what: &str, function: &str| match (of(what, function), of("none", function)) {
        (Some(ns), Some(_)) if what == "none" => format!("{ns:.0}"),
        (Some(ns), Some(none)) => format!("{:.0}", ns - none),
        _ => "-".into(),
    };
    let row = |name: &str, what: &str| vec![name.into(), cell(what, EVENT), cell(what, LAUNCH)];
    let mut rows = vec![
        row("the call itself", "none"),
        row("aiprof --events launches adds", "aiprof"),
        row("aiprof --events time-in-call adds", "exact"),
    ];
    if bpftrace.is_some() {
        rows.push(row("bpftrace adds", "bpftrace"));
    }
    let head = ["ns per call", "without a stack", "with 30 frames"];
    let mut text = format!(
        "aiprof {}, {}; {}. {} rounds of {BATCHES} batches of 2,000 calls; medians.\n\n{}\n",
        env!("CARGO_PKG_VERSION"),
        version(bpftrace),
        super::compiler(),
        options.rounds,
        table(&head, &rows)
    );
    let row = |highest: &Highest| {
        let stacks = if highest.fresh {
            "a new one each"
        } else {
            "the same"
        };
        let beyond = highest.beyond.map_or_else(
            || "the program makes no more".into(),
            |(rate, lost)| format!("{rate:.0}/s: {lost} lost"),
        );
        vec![stacks.into(), format!("{:.0}", highest.rate), beyond]
    };
    let rows: Vec<_> = rates.iter().map(row).collect();
    let head = [
        "stacks of 30 frames",
        "launches a second, none lost",
        "beyond",
    ];
    text += &table(&head, &rows);
    text
}

pub(super) fn version(bpftrace: Option<&Path>) -> String {
    let asked = bpftrace.map(|path| capture(Command::new(path).arg("--version")));
    match asked {
        Some(Ok(text)) => text.trim().to_string(),
        _ => "no bpftrace".into(),
    }
}
