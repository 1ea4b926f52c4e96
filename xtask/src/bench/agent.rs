//! `bench agent` and `bench churn`. What the agent costs a busy machine, beside lightswitch: by its
//! own count, and by how much more a workload gets done without it. What it holds on to while
//! programs come and go.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::bpf::{Runs, Stats, map_ids, map_memory};
use super::report::{mib, publish, table};
use super::tools;
use super::watch::{Group, Guard, cpu_of, interrupt, own_memory, perf_rings, wait};
use super::{Options, compile, cpus};
use crate::proc::capture;

/// How long a program runs before it is measured: it has met what runs by then.
const WARM: Duration = Duration::from_secs(65);
/// How long the cost of one is counted.
const COUNTED: Duration = Duration::from_secs(120);
/// How long after a change the work is not counted.
const SETTLE: Duration = Duration::from_millis(300);
/// How long anything may take to begin or to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes from the count of one CPU to that of the next; see `spin.c`.
const LINE: u64 = 64;

/// Samples per second and CPU: the default, and enough to make their cost visible.
const HZ: u32 = 19;
const OFTEN_HZ: u32 = 997;

/// What a program has cost.
struct Spent {
    /// CPU seconds of its processes, per second.
    own: f64,
    /// Seconds in its eBPF programs, per second.
    bpf: f64,
    samples: f64,
    memory: u64,
}

impl Spent {
    /// Share of the CPUs.
    fn share(&self) -> f64 {
        (self.own + self.bpf) / cpus() as f64
    }
}

/// Counts what a process costs, and those it has work for it.
fn count(pid: u32, time: Duration) -> Spent {
    let (own, bpf, begun) = (cpu_of(pid), Runs::of(pid), Instant::now());
    sleep(time);
    let (own, bpf) = (cpu_of(pid) - own, Runs::of(pid).since(bpf));
    let seconds = begun.elapsed().as_secs_f64();
    Spent {
        own: own / seconds,
        bpf: bpf.nanoseconds as f64 / 1e9 / seconds,
        samples: bpf.samples as f64 / seconds,
        memory: own_memory(pid),
    }
}

/// An agent that runs in a folder of its own.
struct Agent {
    child: Child,
    _guard: Guard,
    program: PathBuf,
    log: PathBuf,
}

impl Agent {
    fn start(program: &Path, dir: &Path, lines: &str) -> Result<Self> {
        for old in ["state", "files"] {
            match fs::remove_dir_all(dir.join(old)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).context(old);
                }
                _ => {}
            }
        }
        let config = dir.join("agent.toml");
        let text = format!(
            "state = \"{0}/state\"\n{lines}\n[control]\nname = \"bench\"\n[[output]]\n\
             type = \"files\"\ndirectory = \"{0}/files\"\nkeep = 60\n",
            dir.display()
        );
        fs::write(&config, text).with_context(|| config.display().to_string())?;
        let log = dir.join("agent.log");
        let mut guard = Guard::new()?;
        let child = Command::new(program)
            .args(["agent", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).with_context(|| log.display().to_string())?)
            .spawn()
            .with_context(|| program.display().to_string())?;
        guard.add(&child, false)?;
        let mut agent = Self {
            child,
            _guard: guard,
            program: program.to_owned(),
            log,
        };
        let begun = Instant::now();
        while !agent.said()?.contains("recording at") {
            let has_ended = agent.child.try_wait().context("agent")?.is_some();
            ensure!(
                !has_ended && begun.elapsed() < PATIENCE,
                "the agent does not record: {}",
                agent.said()?
            );
            sleep(Duration::from_millis(50));
        }
        Ok(agent)
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn said(&self) -> Result<String> {
        fs::read_to_string(&self.log).with_context(|| self.log.display().to_string())
    }

    fn ask(&self, what: &str) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["agent", "ctl", "--name", "bench", what]);
        capture(&mut command).map(drop)
    }

    fn end(mut self) -> Result<()> {
        interrupt(&self.child);
        let (status, ..) = wait(&mut self.child, PATIENCE)?;
        ensure!(status.success(), "{status}: {}", self.said()?);
        Ok(())
    }
}

/// A workload that counts what it gets done.
struct Spin {
    _group: Group,
    counts: File,
}

impl Spin {
    fn start(dir: &Path) -> Result<Self> {
        let program = dir.join("spin");
        compile(
            include_str!("spin.c"),
            &program,
            &["-O2", "-fomit-frame-pointer", "-pthread"],
        )?;
        let counts = dir.join("counts");
        let mut group = Group::new()?;
        group.spawn(Command::new(&program).arg(&counts))?;
        sleep(Duration::from_secs(2));
        Ok(Self {
            _group: group,
            counts: File::open(&counts).with_context(|| counts.display().to_string())?,
        })
    }

    /// Units done so far, of all CPUs.
    fn done(&self) -> Result<u64> {
        let mut sum = 0;
        for cpu in 0..cpus() as u64 {
            let mut bytes = [0; 8];
            self.counts
                .read_exact_at(&mut bytes, cpu * LINE)
                .context("the workload's counts")?;
            sum += u64::from_le_bytes(bytes);
        }
        Ok(sum)
    }

    /// Units a second, for so long.
    fn rate(&self, time: Duration, then: impl FnOnce() -> Result<()>) -> Result<f64> {
        sleep(SETTLE);
        let (before, begun) = (self.done()?, Instant::now());
        sleep(time);
        then()?;
        let done = self.done()? - before;
        Ok(done as f64 / begun.elapsed().as_secs_f64())
    }
}

/// Mean, and half of the interval that holds it with 95 %.
fn interval(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let error = (squares / (n - 1.0).max(1.0) / n).sqrt();
    (mean, student(values.len().saturating_sub(1)) * error)
}

/// The 97.5 % point of Student's t with `degrees` degrees of freedom (Hill 1970, by the expansion
/// of Cornish and Fisher; exact to 1 % from 3 on).
fn student(degrees: usize) -> f64 {
    let (z, n) = (1.959_964_f64, degrees.max(1) as f64);
    z + (z.powi(3) + z) / (4.0 * n)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
        + (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * n.powi(3))
}

pub(super) fn main(options: &Options) -> Result<()> {
    let dir = super::work_dir("agent")?;
    let program = super::aiprof_of(options)?;
    let lightswitch = match options.peers {
        true => Some(tools::lightswitch(&dir, HZ)?),
        false => None,
    };
    let _stats = Stats::enable()?;
    let spin = Spin::start(&dir)?;
    let agent = Agent::start(&program, &dir, "")?;
    sleep(WARM);
    eprintln!(
        "xtask: measuring the agent's cost for {} s",
        COUNTED.as_secs()
    );
    let own = count(agent.pid(), COUNTED);
    let mut rows = vec![cost_row("aiprof agent", &own)];
    let block = Duration::from_secs(options.seconds);
    // The end of a window is work that belongs to what was recorded in it.
    let pairs = Pairs::measure(&agent, &spin, (options.rounds, block), || {
        agent.ask("snapshot")
    })?;
    let said = agent.said()?;
    agent.end()?;
    let often = Agent::start(&program, &dir, &often())?;
    sleep(WARM);
    let fast = Pairs::measure(&often, &spin, (options.rounds, block), || Ok(()))?;
    often.end()?;
    if let Some(tool) = &lightswitch {
        eprintln!("xtask: lightswitch, {} s", (WARM + COUNTED).as_secs());
        let mut child = tool.command()?.spawn().context(tool.name)?;
        let mut guard = Guard::new()?;
        guard.add(&child, false)?;
        sleep(WARM);
        rows.push(cost_row(
            &format!("{}, 19 Hz", tool.version),
            &count(child.id(), COUNTED),
        ));
        interrupt(&child);
        wait(&mut child, PATIENCE)?;
    }
    let turned = said
        .lines()
        .filter(|line| line.contains("recording less to stay within the budget"));
    let scale = f64::from(HZ) / f64::from(OFTEN_HZ);
    let (beyond, half) = interval(&fast.beyond());
    let (beyond, half) = (beyond * scale, half * scale);
    let body = format!(
        "The agent with its defaults ({HZ} Hz, windows of 60 s) writes files while a workload \
         keeps all CPUs busy. Cost: CPU time of all its processes and run time of its eBPF \
         programs during {} s, from second {} on.\n\n{}\nThroughput of the workload while the \
         agent records, compared with while it is paused, in {} pairs of {} s, alternating: **{}**. \
         Each includes the end of one window. While paused, the agent's processes use {:.4} % of the \
         CPUs, which must be added. The agent was reduced {} times.\n\nTo measure smaller \
         differences, the same at {OFTEN_HZ} Hz, without budget and ends of windows: **{}**, of \
         which the clocks count {:.3} %. The clocks do not count the entry into interrupts and the \
         cold caches after them. With {} times fewer samples, at {HZ} Hz, this part is {}. \
         Together with the part that the clocks count at {HZ} Hz: **{} of the CPUs**.\n",
        COUNTED.as_secs(),
        WARM.as_secs(),
        table(
            &[
                "",
                "own CPU ms/s",
                "eBPF ms/s",
                "samples/s",
                "of all CPUs",
                "anon+shared MiB"
            ],
            &rows
        ),
        options.rounds,
        options.seconds,
        less_done(interval(&pairs.losses)),
        100.0 * interval(&pairs.paused).0,
        turned.count(),
        less_done(interval(&fast.losses)),
        100.0 * interval(&fast.counted).0,
        (1.0 / scale).round(),
        range((beyond, half)),
        range((beyond + own.share(), half)),
    );
    publish("agent", &options.command("agent"), &body, options.write)
}

/// The configuration for those many: nothing turns them down, and no window ends meanwhile.
fn often() -> String {
    format!("frequency = {OFTEN_HZ}\nwindow = \"1h\"\n[budget]\ncpu = \"50%\"")
}

/// What a workload gets done with an agent that records, and with one that is paused.
#[derive(Default)]
struct Pairs {
    /// Share of the work that is not done because it records, of each pair.
    losses: Vec<f64>,
    /// Share of the CPUs that its clocks count for recording, beyond that for being paused.
    counted: Vec<f64>,
    /// The same for being paused.
    paused: Vec<f64>,
}

impl Pairs {
    /// Measures `rounds` pairs of blocks of a length, with `at_end` at the end of each block. The
    /// order of each pair is the other way round: what drifts cancels out.
    fn measure(
        agent: &Agent,
        spin: &Spin,
        (rounds, block): (u64, Duration),
        at_end: impl Fn() -> Result<()>,
    ) -> Result<Self> {
        let mut all = Self::default();
        for pair in 0..rounds {
            let (mut rates, mut counted) = ([0.0; 2], [0.0; 2]);
            for at in 0..2 {
                let records = (pair + at) % 2 == 0;
                agent.ask(if records { "resume" } else { "pause" })?;
                let pid = agent.pid();
                let (own, bpf, begun) = (cpu_of(pid), Runs::of(pid), Instant::now());
                rates[usize::from(records)] = spin.rate(block, &at_end)?;
                let bpf = Runs::of(pid).since(bpf).nanoseconds as f64 / 1e9;
                let time = begun.elapsed().as_secs_f64() * cpus() as f64;
                counted[usize::from(records)] = (cpu_of(pid) - own + bpf) / time;
            }
            let loss = 1.0 - rates[1] / rates[0];
            eprintln!(
                "xtask: pair {}: throughput {:.4} % lower",
                pair + 1,
                100.0 * loss
            );
            all.losses.push(loss);
            all.counted.push(counted[1] - counted[0]);
            all.paused.push(counted[0]);
        }
        Ok(all)
    }

    /// What is not done and not counted by its clocks, of each pair.
    fn beyond(&self) -> Vec<f64> {
        let both = self.losses.iter().zip(&self.counted);
        both.map(|(loss, counted)| loss - counted).collect()
    }
}

/// A share with the interval that holds it with 95 %.
fn range((mean, half): (f64, f64)) -> String {
    let [mean, least, most] = [mean, mean - half, mean + half].map(|share| 100.0 * share);
    format!("{mean:.3} % ({least:.3} to {most:.3} with 95 % confidence)")
}

fn less_done(loss: (f64, f64)) -> String {
    format!("{} lower", range(loss))
}

fn cost_row(name: &str, spent: &Spent) -> Vec<String> {
    vec![
        name.to_owned(),
        format!("{:.2}", spent.own * 1e3),
        format!("{:.2}", spent.bpf * 1e3),
        format!("{:.1}", spent.samples),
        format!("{:.3} %", 100.0 * spent.share()),
        mib(spent.memory as f64),
    ]
}

/// How many processes come and go.
const PROCESSES: u64 = 10_000;
/// Windows of a day, each of a minute: here they are of a second.
const WINDOWS: u64 = 1440;
/// How long each process is busy, milliseconds.
const BUSY_MS: u64 = 90;

pub(super) fn churn(options: &Options) -> Result<()> {
    let dir = super::work_dir("churn")?;
    let program = super::aiprof_of(options)?;
    let (churn, busy) = (dir.join("churn"), dir.join("busy"));
    compile(include_str!("churn.c"), &churn, &["-O2"])?;
    compile(
        include_str!("busy.c"),
        &busy,
        &["-O2", "-fomit-frame-pointer"],
    )?;
    let place = dir.join("programs");
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    let maps_before = map_ids()?;
    // It is not the budget that is tried here.
    let agent = Agent::start(
        &program,
        &dir,
        "window = \"1s\"\nfrequency = 99\n[budget]\ncpu = \"50%\"",
    )?;
    let processes = PROCESSES * options.seconds / WINDOWS;
    let each_ms = 1000 * options.seconds / processes;
    let mut guard = Guard::new()?;
    let mut child = Command::new(&churn)
        .args([&busy, &place])
        .args([processes, each_ms, BUSY_MS].map(|n| n.to_string()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("churn")?;
    guard.add(&child, false)?;
    let begun = Instant::now();
    let mut seen: Vec<(f64, u64, u64)> = Vec::new();
    while child.try_wait().context("churn")?.is_none() {
        sleep(Duration::from_secs(5));
        let pid = agent.pid();
        let maps = map_memory(pid, &maps_before)? + perf_rings(pid);
        let own = own_memory(pid);
        seen.push((begun.elapsed().as_secs_f64(), own, maps));
        eprint!(
            "\rxtask: {:.0} s of {}: {} MiB, maps {} MiB ",
            begun.elapsed().as_secs_f64(),
            options.seconds,
            mib(own as f64),
            mib(maps as f64)
        );
    }
    eprintln!();
    let mut text = String::new();
    let mut out = child
        .stdout
        .take()
        .context("cannot read the output of churn")?;
    out.read_to_string(&mut text).context("churn")?;
    let wall = begun.elapsed().as_secs_f64();
    ensure!(
        text.trim() == processes.to_string(),
        "churn ended early: {text}"
    );
    let said = agent.said()?;
    agent.end()?;
    let windows = said.matches("window of").count();
    if seen.len() < 10 {
        bail!("too short: --seconds must be at least 60");
    }
    let part = |from: usize, to: usize| {
        let some = seen.get(seen.len() * from / 10..seen.len() * to / 10);
        some.unwrap_or_default()
    };
    let most = |some: &[(f64, u64, u64)]| {
        let (own, maps) = (
            some.iter().map(|s| s.1).max(),
            some.iter().map(|s| s.2).max(),
        );
        (own.unwrap_or(0) as f64, maps.unwrap_or(0) as f64)
    };
    let rows: Vec<Vec<String>> = [
        ("first tenth", 0, 1),
        ("second", 1, 2),
        ("middle", 4, 6),
        ("last", 9, 10),
        ("all", 0, 10),
    ]
    .into_iter()
    .map(|(name, from, to)| {
        let (own, maps) = most(part(from, to));
        vec![name.to_owned(), mib(own), mib(maps)]
    })
    .collect();
    let body = format!(
        "A day in {wall:.0} s: {windows} windows of one second stand for windows of one minute. \
         {processes} processes, each from its own file, started and ended. Each was busy for \
         {BUSY_MS} ms, a quarter of them in a child. 99 Hz, without a limit on CPU \
         time.\n\n{}\nThe agent exceeded its memory budget {} times.\n",
        table(
            &[
                "part of the day",
                "most anon+shared MiB",
                "most eBPF maps and rings MiB"
            ],
            &rows
        ),
        said.matches("exceeds the budget, so cached").count(),
    );
    publish("churn", &options.command("churn"), &body, options.write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_tables() {
        for (degrees, expected) in [(3, 3.182), (9, 2.262), (29, 2.045), (1000, 1.962)] {
            let found = student(degrees);
            assert!((found / expected - 1.0).abs() < 0.012, "{degrees}: {found}");
        }
        let (mean, half) = interval(&[1.0, 2.0, 3.0, 4.0]);
        assert!((mean - 2.5).abs() < 1e-9);
        // The standard error is 0.645.
        assert!((half / (3.182 * 0.645) - 1.0).abs() < 0.02, "{half}");
    }
}
