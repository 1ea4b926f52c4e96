//! `bench finish`: from the command's end to the finished flame graph.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use super::report::{mib, publish, table};
use super::watch::{Group, Guard, Quiet, median, wait};
use super::{Options, compile, cpus, stacks};

/// What runs on every CPU while aiprof records.
enum Load {
    /// `tree.c`: nearly every sample has a stack of its own. It is part of the
    /// command, and ends with it.
    TreeInCommand,
    /// The same, but it runs on: aiprof finishes on busy CPUs.
    Tree,
    /// The Rust compiler, again and again: large files, many symbols, short
    /// processes; runs on as well.
    Compiler,
}

impl Load {
    fn name(&self) -> &'static str {
        match self {
            Load::TreeInCommand => "call tree, ends with the command",
            Load::Tree => "call tree, runs on",
            Load::Compiler => "rustc, runs on",
        }
    }

    fn start(&self, dir: &Path) -> Result<Group> {
        let mut group = Group::new()?;
        for cpu in 0..cpus() {
            match self {
                Load::TreeInCommand => {}
                Load::Tree => group.spawn(Command::new(dir.join("tree")).arg(cpu.to_string()))?,
                Load::Compiler => group.spawn(&mut compiler(dir, cpu))?,
            }
        }
        Ok(group)
    }

    /// What aiprof runs; it writes the time of its end.
    fn command(&self, dir: &Path, seconds: u64) -> String {
        let end = format!("date +%s%N > '{}'", dir.join("end").display());
        match self {
            Load::TreeInCommand => {
                let tree = dir.join("tree");
                let each = |cpu| format!("'{}' {cpu} & p=\"$p $!\"; ", tree.display());
                let start: String = (0..cpus()).map(each).collect();
                format!("{start}sleep {seconds}; kill $p; {end}")
            }
            Load::Tree | Load::Compiler => format!("sleep {seconds}; {end}"),
        }
    }
}

/// Compiles a generated source in a loop.
fn compiler(dir: &Path, cpu: usize) -> Command {
    let script = "while :; do rustc -O --crate-type lib --emit obj -o \"$2\" \"$1\"; done";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .arg(dir.join("many.rs"))
        .arg(dir.join(format!("many-{cpu}.o")));
    command
}

/// A source that keeps the compiler busy for some seconds.
pub(super) fn rust_source() -> String {
    let function = |n: u32| {
        format!(
            "pub fn f{n}(m: &mut std::collections::BTreeMap<String, [u32; {}]>) -> String {{\n\
             let mut v: Vec<_> = m.iter().map(|(k, a)| format!(\"{{k}}{{:?}}\", a)).collect();\n\
             v.sort(); v.dedup(); m.retain(|k, _| k.len() > {n}); v.join(\"{n}\")\n}}\n",
            n % 60 + 1
        )
    };
    (0..60).map(function).collect()
}

/// What one recording took.
struct Found {
    to_svg: f64,
    to_exit: f64,
    stacks: usize,
    size: u64,
}

pub(super) fn main(options: &Options) -> Result<()> {
    let dir = super::work_dir("finish")?;
    let aiprof = super::build_aiprof()?;
    compile(include_str!("tree.c"), &dir.join("tree"), &["-O2"])?;
    fs::write(dir.join("many.rs"), rust_source())?;
    let loads = [Load::TreeInCommand, Load::Tree, Load::Compiler];
    let mut found: Vec<Vec<Found>> = loads.iter().map(|_| Vec::new()).collect();
    let mut quiet = Quiet::new(options.wait);
    for round in 1..=options.rounds {
        for (load, found) in loads.iter().zip(&mut found) {
            eprintln!(
                "xtask: round {round} of {}: {}",
                options.rounds,
                load.name()
            );
            quiet.wait();
            let one = record(&aiprof, &dir, load)?;
            eprintln!("xtask: {:.3} s to the SVG", one.to_svg);
            found.push(one);
        }
    }
    let rows: Vec<_> = loads.iter().zip(&found).map(|(l, f)| row(l, f)).collect();
    let head = [
        "load on every CPU",
        "distinct stacks",
        "SVG MiB",
        "to finished SVG",
        "least - most",
        "to aiprof's exit",
    ];
    let body = format!(
        "30 s at 99 Hz; {} rounds in turns; medians.\n\n{}",
        options.rounds,
        table(&head, &rows)
    );
    publish("finish", &options.command("finish"), &body, options.write)
}

fn record(aiprof: &Path, dir: &Path, load: &Load) -> Result<Found> {
    let svg = dir.join("x.svg");
    let end = dir.join("end");
    for file in [&svg, &end] {
        // The first round has none.
        let _ = fs::remove_file(file);
    }
    let busy = load.start(dir)?;
    sleep(Duration::from_secs(1));
    let mut child = Command::new(aiprof)
        .args(["-q", "-o"])
        .arg(&svg)
        .args(["sh", "-c", &load.command(dir, 30)])
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start aiprof")?;
    let mut guard = Guard::new()?;
    guard.add(&child, false)?;
    let (status, _, _) = wait(&mut child, Duration::from_secs(120))?;
    let exit = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    drop(busy);
    if !status.success() {
        bail!("aiprof: {status}");
    }
    measure(&svg, &end, exit)
}

fn measure(svg: &PathBuf, end: &PathBuf, exit: f64) -> Result<Found> {
    let nanoseconds: u64 = fs::read_to_string(end)?.trim().parse()?;
    let end = nanoseconds as f64 / 1e9;
    let meta = fs::metadata(svg)?;
    // Renaming a file into its place sets the time of its last status change.
    let there = meta.ctime() as f64 + meta.ctime_nsec() as f64 / 1e9;
    Ok(Found {
        to_svg: there - end,
        to_exit: exit - end,
        stacks: stacks::svg(&fs::read_to_string(svg)?).len(),
        size: meta.len(),
    })
}

fn row(load: &Load, found: &[Found]) -> Vec<String> {
    let middle = |value: fn(&Found) -> f64| median(found.iter().map(value));
    let least = found.iter().map(|f| f.to_svg).fold(f64::INFINITY, f64::min);
    let most = found.iter().map(|f| f.to_svg).fold(0.0, f64::max);
    vec![
        load.name().to_string(),
        format!("{:.0}", middle(|f| f.stacks as f64)),
        mib(middle(|f| f.size as f64)),
        format!("{:.3} s", middle(|f| f.to_svg)),
        format!("{least:.3} - {most:.3} s"),
        format!("{:.3} s", middle(|f| f.to_exit)),
    ]
}
