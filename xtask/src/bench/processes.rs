//! `bench processes`: what many short processes, and many containers of one image, cost
//! aiprof, beside an earlier aiprof.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::report::{mib, publish, table};
use super::stacks::{folded, is_whole};
use super::watch::{Guard, MemoryWatch, Quiet, median, wait};
use super::{Options, compile};
use crate::proc::capture;

/// How many processes run one after the other, and calls of some 50 us in each.
const SHORT: usize = 2000;
const SHORT_CALLS: usize = 50;

/// How many containers run at once, and calls in each.
const CONTAINERS: usize = 50;
const CONTAINER_CALLS: usize = 5000;

/// Samples a second of each CPU.
const RATE: &str = "997";

/// What one recording found.
struct Found {
    wall: f64,
    cpu: f64,
    /// Bytes of anonymous and shared memory.
    memory: u64,
    samples: u64,
    whole: u64,
    /// aiprof's line about its unwind tables.
    tables: String,
}

/// What runs while aiprof records.
struct Load {
    name: &'static str,
    /// The processes' name.
    comm: &'static str,
    script: String,
}

pub(super) fn main(options: &Options, beside: Option<&Path>) -> Result<()> {
    let dir = super::work_dir("processes")?;
    let built = options.programs.as_ref().map(|dir| dir.join("aiprof"));
    let mut programs = vec![built.map_or_else(super::build_aiprof, Ok)?];
    programs.extend(beside.map(Path::to_path_buf));
    let overlays = Overlays::mount(&dir.join("containers"))?;
    let loads = [short(&dir)?, contained(&overlays)?];
    let mut quiet = Quiet::new(options.wait);
    let mut rows = Vec::new();
    for load in &loads {
        let mut found: Vec<Vec<Found>> = programs.iter().map(|_| Vec::new()).collect();
        for round in 1..=options.rounds {
            for (program, found) in programs.iter().zip(&mut found) {
                eprintln!("xtask: {}: round {round} of {}", load.name, options.rounds);
                quiet.wait();
                found.push(record(program, load, &dir)?);
            }
        }
        for (program, found) in programs.iter().zip(&found) {
            rows.push(row(load, program == &programs[0], found));
        }
    }
    let mut body = format!(
        "{SHORT} processes, one after the other; {CONTAINERS} containers on overlays of one \
         image, at once. {RATE} Hz. {} rounds in turns; medians.\n\n",
        options.rounds
    );
    if let Some(beside) = beside {
        let version = capture(Command::new(beside).arg("--version"))?;
        writeln!(body, "Beside it: {}.\n", version.trim())?;
    }
    let head = [
        "load, program",
        "wall s",
        "CPU s",
        "of one CPU",
        "anon+shared MiB",
        "samples",
        "whole stacks",
        "unwind tables",
    ];
    body += &table(&head, &rows);
    publish("processes", &command(options), &body, options.write)
}

fn command(options: &Options) -> String {
    options.command("processes") + " --beside FILE"
}

fn build(to: &Path, flags: &[&str]) -> Result<()> {
    let mut all = vec!["-O2", "-fomit-frame-pointer", "-DTIMES"];
    all.extend(flags);
    compile(include_str!("deep.c"), to, &all)
}

fn short(dir: &Path) -> Result<Load> {
    let program = dir.join("deep-short");
    build(&program, &[])?;
    let program = program.display();
    Ok(Load {
        name: "short processes",
        comm: "deep-short",
        script: format!(
            "i=0; while [ $i -lt {SHORT} ]; do '{program}' {SHORT_CALLS}; i=$((i+1)); done"
        ),
    })
}

fn contained(overlays: &Overlays) -> Result<Load> {
    build(&overlays.image().join("deep-within"), &["-static"])?;
    let mut script = String::new();
    for root in &overlays.roots {
        let program = root.join("deep-within");
        write!(script, "'{}' {CONTAINER_CALLS} & ", program.display())?;
    }
    Ok(Load {
        name: "containers",
        comm: "deep-within",
        script: script + "wait",
    })
}

fn record(program: &Path, load: &Load, dir: &Path) -> Result<Found> {
    let out = dir.join("out.folded");
    let started = Instant::now();
    let mut child = Command::new(program)
        .args(["-v", "-F", RATE, "--weight", "samples", "-o"])
        .arg(&out)
        .args(["sh", "-c", &load.script])
        .stdin(Stdio::null())
        .stderr(fs::File::create(dir.join("out.log"))?)
        .spawn()
        .with_context(|| program.display().to_string())?;
    let mut guard = Guard::new()?;
    guard.add(&child, false)?;
    let memory = MemoryWatch::start(child.id());
    let (status, cpu, ended) = wait(&mut child, Duration::from_secs(300))?;
    let memory = memory.finish();
    let log = fs::read_to_string(dir.join("out.log"))?;
    if !status.success() {
        bail!("{}: {status}\n{log}", program.display());
    }
    let text = fs::read_to_string(&out).with_context(|| out.display().to_string())?;
    let (mut samples, mut whole) = (0, 0);
    for stack in folded(&text) {
        // The shell's child is called so before it is the program.
        if stack.frames.first().is_some_and(|f| f == load.comm) {
            samples += stack.weight;
            if is_whole(&stack.frames) {
                whole += stack.weight;
            }
        }
    }
    let tables = log.lines().find_map(|l| l.split_once("unwind tables: "));
    Ok(Found {
        wall: (ended - started).as_secs_f64(),
        cpu,
        memory: memory.own,
        samples,
        whole,
        tables: tables.map_or_else(|| "-".into(), |(_, rest)| rest.to_string()),
    })
}

fn row(load: &Load, own: bool, found: &[Found]) -> Vec<String> {
    let middle = |value: &dyn Fn(&Found) -> f64| median(found.iter().map(value));
    let program = if own { "aiprof" } else { "the one beside it" };
    let share = |f: &Found| f.whole as f64 / f.samples.max(1) as f64 * 100.0;
    vec![
        format!("{}, {program}", load.name),
        format!("{:.1}", middle(&|f| f.wall)),
        format!("{:.2}", middle(&|f| f.cpu)),
        format!("{:.0} %", middle(&|f| f.cpu / f.wall * 100.0)),
        mib(middle(&|f| f.memory as f64)),
        format!("{:.0}", middle(&|f| f.samples as f64)),
        format!("{:.2} %", middle(&share)),
        found.last().map_or_else(String::new, |f| f.tables.clone()),
    ]
}

/// Overlays of one image; unmounted when dropped.
struct Overlays {
    dir: PathBuf,
    roots: Vec<PathBuf>,
}

impl Overlays {
    fn mount(dir: &Path) -> Result<Self> {
        let mut overlays = Self {
            dir: dir.to_path_buf(),
            roots: Vec::new(),
        };
        fs::create_dir_all(overlays.image())?;
        for n in 0..CONTAINERS {
            let part = |name: &str| dir.join(format!("{n}-{name}"));
            for name in ["upper", "work", "root"] {
                fs::create_dir_all(part(name))?;
            }
            let options = format!(
                "lowerdir={},upperdir={},workdir={}",
                overlays.image().display(),
                part("upper").display(),
                part("work").display()
            );
            let mut mount = Command::new("mount");
            mount.args(["-t", "overlay", "overlay", "-o", &options]);
            let status = mount.arg(part("root")).status()?;
            if !status.success() {
                bail!("mount -t overlay: {status}");
            }
            overlays.roots.push(part("root"));
        }
        Ok(overlays)
    }

    fn image(&self) -> PathBuf {
        self.dir.join("image")
    }
}

impl Drop for Overlays {
    fn drop(&mut self) {
        for root in &self.roots {
            // What stays mounted is seen, and harms nothing.
            let _ = Command::new("umount").arg("-l").arg(root).status();
        }
    }
}
