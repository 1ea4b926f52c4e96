//! `bench sampler`: every profiler on the same workload, in turns.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::bpf::{Runs, Stats, map_ids, map_memory};
use super::report::{mib, publish, table};
use super::tools::{self, Build, Tool};
use super::watch::{
    Family, Group, Guard, Memory, MemoryWatch, Quiet, median, perf_rings, signal, wait,
};
use super::{Options, compile, cpus, stacks};

/// What the workload's two builds are called, and so their processes.
const USUAL: &str = "deep";
const FRAME_POINTERS: &str = "deep-fp";

/// How long a profiler may take to begin, and to finish.
const PATIENCE: Duration = Duration::from_secs(180);

/// How often a round that others disturbed is run again.
const ATTEMPTS: usize = 4;

/// The workload's share of the CPUs below which a round is disturbed.
const UNDISTURBED: f64 = 0.93;

/// What one round found.
struct Round {
    /// Nanoseconds of BPF per sample; none without BPF.
    bpf: Option<f64>,
    /// CPU seconds while recording, per second of recording.
    cpu_recording: f64,
    /// CPU seconds from start to result.
    cpu: f64,
    memory: Memory,
    maps: u64,
    rings: u64,
    complete: f64,
    recording: u64,
    /// From the signal that ends the recording to the result.
    finish: f64,
    /// Share of the CPUs that the workload got.
    share: f64,
}

pub(super) fn main(options: &Options) -> Result<()> {
    let dir = super::work_dir("sampler")?;
    let programs = build(&dir)?;
    // lightswitch reads debugfs.
    crate::test::mount_tracing();
    let (tools, mut failed) = tools::all(&super::build_aiprof()?, &dir, options.peers)?;
    let _stats = Stats::enable()?;
    let mut quiet = Quiet::new(options.wait);
    let mut rounds: Vec<Vec<Round>> = tools.iter().map(|_| Vec::new()).collect();
    for round in 1..=options.rounds {
        for (tool, found) in tools.iter().zip(&mut rounds) {
            eprintln!("xtask: round {round} of {}: {}", options.rounds, tool.name);
            match undisturbed(tool, &programs, options.seconds, &mut quiet) {
                Ok(round) => {
                    eprintln!(
                        "xtask: {}",
                        row(tool, std::slice::from_ref(&round)).join(" | ")
                    );
                    found.push(round);
                }
                // One tool that fails is not to cost the others' figures.
                Err(error) => {
                    eprintln!("xtask: {}: {error:#}", tool.name);
                    failed.push(format!("{}: {error:#}", tool.name));
                }
            }
        }
    }
    let command = options.command("sampler");
    publish(
        "sampler",
        &command,
        &body(&tools, &rounds, &failed, options),
        options.write,
    )
}

/// Both builds of the workload.
struct Programs {
    usual: PathBuf,
    frame_pointers: PathBuf,
}

fn build(dir: &Path) -> Result<Programs> {
    let programs = Programs {
        usual: dir.join(USUAL),
        frame_pointers: dir.join(FRAME_POINTERS),
    };
    let source = include_str!("deep.c");
    compile(source, &programs.usual, &["-O2", "-fomit-frame-pointer"])?;
    let flags = [
        "-O2",
        "-DFRAME_POINTERS",
        "-fno-omit-frame-pointer",
        "-mno-omit-leaf-frame-pointer",
    ];
    compile(source, &programs.frame_pointers, &flags)?;
    Ok(programs)
}

fn undisturbed(tool: &Tool, programs: &Programs, seconds: u64, quiet: &mut Quiet) -> Result<Round> {
    let mut best: Option<Round> = None;
    for _ in 0..ATTEMPTS {
        quiet.wait();
        let found = round(tool, programs, seconds)?;
        let share = found.share;
        if best.as_ref().is_none_or(|b| b.share < share) {
            best = Some(found);
        }
        if share >= UNDISTURBED || !quiet.may_wait() {
            break;
        }
        eprintln!(
            "xtask: repeating the round: the workload got only {:.0} % of the CPUs",
            share * 100.0
        );
    }
    best.context("no round was measured")
}

fn round(tool: &Tool, programs: &Programs, seconds: u64) -> Result<Round> {
    tool.clean();
    let maps_before = map_ids()?;
    let mut child = tool
        .command()?
        .spawn()
        .with_context(|| tool.name.to_string())?;
    let guarded = Guard::new().and_then(|mut g| g.add(&child, false).map(|()| g));
    let memory = MemoryWatch::start(child.id());
    let result = record(tool, &mut child, programs, seconds, &maps_before);
    if result.is_err() {
        // It may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }
    // The child has ended: there is nothing to guard any more.
    drop(guarded?);
    let peak = memory.finish();
    let mut round = result.with_context(|| messages(tool))?;
    round.memory.own = round.memory.own.max(peak.own);
    round.memory.file = round.memory.file.max(peak.file);
    Ok(round)
}

/// The last lines of the tool's log.
fn messages(tool: &Tool) -> String {
    let text = fs::read_to_string(tool.log()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

fn record(
    tool: &Tool,
    child: &mut Child,
    programs: &Programs,
    seconds: u64,
    maps_before: &std::collections::BTreeSet<u32>,
) -> Result<Round> {
    let pid = child.id();
    wait_until_it_records(child)?;
    let (program, name) = match tool.build {
        Build::Usual => (&programs.usual, USUAL),
        Build::FramePointers => (&programs.frame_pointers, FRAME_POINTERS),
    };
    let mut family = Family::of(pid);
    let mut cpu = |what| family.cpu().with_context(|| format!("{what}: gone"));
    let cpu_before = cpu("before the workload")?;
    let mut workload = Group::new()?;
    for _ in 0..cpus() {
        workload.spawn(&mut Command::new(program))?;
    }
    // The first second, in which the tool learns the program, is in every column
    // but the BPF time.
    sleep(Duration::from_secs(1));
    let (runs, used, from) = (Runs::of(pid), workload.cpu(), Instant::now());
    sleep(Duration::from_secs(seconds.saturating_sub(1).max(1)));
    let (runs, used) = (Runs::of(pid).since(runs), workload.cpu() - used);
    let share = used / from.elapsed().as_secs_f64() / cpus() as f64;
    let cpu_recording = (cpu("after the workload")? - cpu_before) / (seconds as f64);
    let (maps, rings) = (map_memory(pid, maps_before)?, perf_rings(pid));

    // Stopped, not ended: tools that look up names at the end still find it.
    workload.signal(libc::SIGSTOP);
    let end = Instant::now();
    signal(child, libc::SIGINT);
    let (_, mut cpu, mut finished) = wait(child, PATIENCE)?;
    let mut memory = Memory::default();
    if let Some(mut second) = tool.second()? {
        let mut second = second.spawn()?;
        let watch = MemoryWatch::start(second.id());
        let (status, more, then) = wait(&mut second, PATIENCE)?;
        memory = watch.finish();
        if !status.success() {
            bail!("the second command failed: {status}");
        }
        cpu += more;
        finished = then;
    }
    let size = fs::metadata(&tool.recording).with_context(|| tool.recording.display().to_string());
    let (complete, _) = stacks::complete_share(&tool.stacks()?, name)
        .context("the result has no sample of the workload")?;
    Ok(Round {
        bpf: (runs.samples > 0).then(|| runs.nanoseconds as f64 / runs.samples as f64),
        cpu_recording,
        cpu,
        memory,
        maps,
        rings,
        complete,
        recording: size?.len(),
        finish: finished.duration_since(end).as_secs_f64(),
        share,
    })
}

/// Waits until samples can be taken. On an idle machine there may be none yet,
/// so open rings will do.
fn wait_until_it_records(child: &mut Child) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if Runs::of(child.id()).samples > 0 || perf_rings(child.id()) > 0 {
            sleep(Duration::from_secs(2));
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            bail!("the profiler ended before it recorded anything: {status}");
        }
        if Instant::now() > deadline {
            bail!("the profiler does not record");
        }
        sleep(Duration::from_millis(100));
    }
}

const HEAD: &[&str] = &[
    "profiler",
    "BPF ns/sample (min-max)",
    "complete stacks",
    "CPU while recording",
    "CPU s in all",
    "anon+shared MiB",
    "file MiB",
    "BPF maps MiB",
    "perf rings MiB",
    "KiB written",
    "end to result",
];

/// `failed`: of each profiler that has no row, or a round less, its name and why.
fn body(tools: &[Tool], rounds: &[Vec<Round>], failed: &[String], options: &Options) -> String {
    let rows: Vec<_> = tools
        .iter()
        .zip(rounds)
        .map(|(tool, rounds)| row(tool, rounds))
        .collect();
    let mut versions: Vec<String> = tools
        .iter()
        .map(|t| match t.version.split_once(char::is_whitespace) {
            Some(_) => t.version.clone(),
            None => format!("{} {}", t.name, t.version),
        })
        .collect();
    versions.dedup();
    format!(
        "{}; {}. {} rounds of {} s in turns; medians. {}\n\n{}{}",
        versions.join(", "),
        super::compiler(),
        options.rounds,
        options.seconds,
        disturbances(rounds),
        table(HEAD, &rows),
        failures(failed)
    )
}

/// What failed and why, as a list below the table.
fn failures(failed: &[String]) -> String {
    let one_line = |text: &String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let items = failed
        .iter()
        .map(|text| format!("\n- failed: {}", one_line(text)));
    items.collect()
}

/// How much others got in the way.
fn disturbances(rounds: &[Vec<Round>]) -> String {
    let shares = || rounds.iter().flatten().map(|round| round.share);
    let disturbed = shares().filter(|&share| share < UNDISTURBED).count();
    let least = shares().fold(1.0, f64::min) * 100.0;
    format!(
        "{disturbed} of {} recordings were disturbed; the workload got {least:.0} % of the CPUs \
         or more.",
        shares().count()
    )
}

fn row(tool: &Tool, rounds: &[Round]) -> Vec<String> {
    if rounds.is_empty() {
        let mut row = vec![tool.name.to_string()];
        row.resize(HEAD.len(), "failed".into());
        return row;
    }
    let middle = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
    let bpf: Vec<f64> = rounds.iter().filter_map(|r| r.bpf).collect();
    let least = bpf.iter().copied().fold(f64::INFINITY, f64::min);
    let most = bpf.iter().copied().fold(0.0, f64::max);
    vec![
        tool.name.to_string(),
        if bpf.is_empty() {
            "-".into()
        } else {
            format!("{:.0} ({least:.0}-{most:.0})", median(bpf))
        },
        format!("{:.2} %", middle(|r| r.complete) * 100.0),
        format!("{:.2} %", middle(|r| r.cpu_recording) * 100.0),
        format!("{:.2}", middle(|r| r.cpu)),
        mib(middle(|r| r.memory.own as f64)),
        mib(middle(|r| r.memory.file as f64)),
        mib(middle(|r| r.maps as f64)),
        mib(middle(|r| r.rings as f64)),
        format!("{:.0}", middle(|r| r.recording as f64) / 1024.0),
        format!("{:.2} s ({})", middle(|r| r.finish), tool.kind),
    ]
}
