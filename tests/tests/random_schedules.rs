//! Schedules that nobody chose: durations from 2 us to 2 s, several queues, threads and
//! processes, forks, late timestamps, no waits. What aiprof says of them is judged by what
//! the virtual driver wrote down. Each follows from its number, so that it can be run again.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};

use aiprof_tests::level_zero::module::{Kernel, Module, REASONS};
use aiprof_tests::need::turn;
use aiprof_tests::stall_run::{NEEDS, Outcome, Recording, Stream};
use aiprof_tests::stall_truth::Verdict;

/// Device time of a run, about.
const BUSY_NS: u64 = 1_500_000_000;
/// Names of kernels.
const NAMES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

/// Numbers that follow from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// From 2 us to 2 s, each decade as often.
    fn duration(&mut self) -> u64 {
        let decades = self.below(6001) as f64 / 1000.0;
        (2000.0 * 10f64.powf(decades)) as u64
    }
}

/// A run: how it is recorded, and what the program does.
struct Schedule {
    recording: Recording,
    mode: Vec<String>,
}

impl Schedule {
    fn of(seed: u64) -> Self {
        let mut random = Random(seed);
        let kernels: Vec<Kernel> = NAMES[..1 + random.below(4) as usize]
            .iter()
            .map(|name| kernel(name, &mut random))
            .collect();
        let turns = kernels.iter().flat_map(|k| &k.turns);
        let (n, sum) = turns.fold((0, 0), |(n, sum), ns| (n + 1, sum + ns));
        let threads = random.one_of(&[1, 1, 1, 2, 3]);
        let processes = random.one_of(&[1, 1, 1, 2, 3]);
        let forks = if processes == 1 {
            random.one_of(&[0, 0, 1, 2])
        } else {
            0
        };
        let launches = BUSY_NS / (sum / n) / threads / (processes + forks);
        let mut mode = vec!["launch".to_owned(), "base=1".to_owned()];
        let mut set = |key: &str, value: u64| mode.push(format!("{key}={value}"));
        set("launches", launches.clamp(6, 4000));
        set("threads", threads);
        set("processes", processes);
        set("forks", forks);
        set("paths", 1 + random.below(7));
        set("queues", random.one_of(&[1, 1, 2, 4]));
        set("block", random.one_of(&[1, 1, 1, 7, 40]));
        set("sync", random.one_of(&[0, 0, 1, 3, 10, 100]));
        set("events", random.below(2));
        set("read_us", random.one_of(&[0, 0, 300, 20_000]));
        mode.push(format!("plan={}", random.one_of(&["even", "7030", "zipf"])));
        if random.below(2) == 0 {
            mode.push("kernels=path".to_owned());
        }
        let mut recording = Recording::of(Module::new(kernels));
        if random.below(3) == 0 {
            recording.stream = Stream::Raw(random.one_of(&["xe2", "pvc", "xe3p"]));
        }
        Self { recording, mode }
    }

    fn run(&self) -> anyhow::Result<Outcome> {
        let mode: Vec<&str> = self.mode.iter().map(String::as_str).collect();
        self.recording.run(&mode)
    }
}

/// A kernel with one to four durations, one of them in all launches or in turn.
fn kernel(name: &str, random: &mut Random) -> Kernel {
    let turns: Vec<u64> = (0..random.one_of(&[1, 1, 2, 4]))
        .map(|_| random.duration())
        .collect();
    let mut kernel = Kernel::new(name, turns[0]).turns(&turns);
    for i in 0..1 + random.below(3) as u32 {
        let reason = random.one_of(&REASONS);
        kernel = kernel.rate(0x40 + 0x40 * i, reason, 1 + random.below(200) as u32);
    }
    kernel
}

/// Runs a schedule: what holds of any.
fn check(seed: u64, seen: &mut BTreeMap<&str, u64>) -> anyhow::Result<()> {
    let schedule = Schedule::of(seed);
    let mode = schedule.mode.join(" ");
    println!(
        "{seed}: {mode} {:?}\n{}",
        schedule.recording.stream,
        schedule.recording.modules[0].text()
    );
    let outcome = schedule.run().with_context(|| format!("{seed}: {mode}"))?;
    let verdict = outcome.sound().with_context(|| format!("{seed}: {mode}"))?;
    let bounded = Verdict::new(&outcome.expected, &outcome.bounded);
    let (worst, width) = (verdict.worst(), bounded.median_width());
    let ratio = outcome.time_ratio(schedule.recording.gts)?;
    println!(
        "=> {seed}: worst {worst:.2} points, median width {width:.2}, time {ratio:.4}, \
         unattributed {:.3} %, {} samples",
        100.0 * verdict.unattributed as f64 / verdict.written as f64,
        verdict.written,
    );
    *seen
        .entry(if worst <= 2.0 { "near" } else { "far" })
        .or_default() += 1;
    ensure!(verdict.unattributed == 0, "{seed}: {mode}: {verdict}");
    Ok(())
}

/// `AIPROF_SCHEDULES=FIRST..END` runs others, and goes on after one that fails.
#[test]
fn schedules_that_nobody_chose() -> anyhow::Result<()> {
    let Some(_turn) = turn("schedules_that_nobody_chose", &NEEDS)? else {
        return Ok(());
    };
    let asked = std::env::var("AIPROF_SCHEDULES").unwrap_or_else(|_| "1..4".to_owned());
    let (first, end) = asked.split_once("..").context("AIPROF_SCHEDULES")?;
    let (mut failed, mut seen) = (Vec::new(), BTreeMap::new());
    for seed in first.parse()?..end.parse()? {
        if let Err(error) = check(seed, &mut seen) {
            println!("=> {seed}: FAILED {error:#}");
            failed.push(format!("{error:#}"));
        }
    }
    println!("{seen:?}, {} failed", failed.len());
    ensure!(failed.is_empty(), "{failed:#?}");
    Ok(())
}
