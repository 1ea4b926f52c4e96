//! Random schedules: durations from 2 us to 2 s, several queues, threads and processes, forks, late
//! timestamps, no waits. aiprof's profiles are compared with what the virtual driver wrote down.
//! Each follows from its number, so that it can be run again.

use anyhow::{Context as _, ensure};

use aiprof_tests::level_zero::module::{Kernel, Module, REASONS};
use aiprof_tests::need::skip_unless;
use aiprof_tests::stall_run::{NEEDS, Outcome, Recording, Stream};
use aiprof_tests::stall_truth::{Verdict, busy_ns};

/// Device time of a run, about.
const BUSY_NS: u64 = 1_500_000_000;
/// A device that was busy for so long can be asked for how long it was.
const LONG_NS: u64 = 300_000_000;
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
fn check(seed: u64) -> anyhow::Result<f64> {
    let schedule = Schedule::of(seed);
    let mode = schedule.mode.join(" ");
    let modules = &schedule.recording.modules;
    let text = modules.first().map(Module::text).unwrap_or_default();
    println!("{seed}: {mode} {:?}\n{text}", schedule.recording.stream);
    let outcome = schedule.run()?;
    let verdict = outcome.sound()?;
    let bounded = Verdict::new(&outcome.expected, &outcome.bounded);
    let gts = schedule.recording.gts;
    let (worst, ratio) = (
        verdict.worst(),
        outcome.device_ns()? as f64 / busy_ns(&outcome.truth, gts) as f64,
    );
    println!(
        "=> {seed}: worst {worst:.2} points, median width {:.2}, time {ratio:.4}, {verdict}",
        bounded.median_width()
    );
    // When bare records were taken is known only as well as a busy machine reads them.
    let is_framed = schedule.recording.stream == Stream::Framed;
    let most = if is_framed { 0 } else { verdict.written / 20 };
    ensure!(verdict.unattributed <= most, "{verdict}");
    // Without timestamps the end of a launch is that of the wait for it.
    let is_timed = mode.contains(" events=1");
    if is_framed && is_timed && busy_ns(&outcome.truth, gts) > LONG_NS {
        ensure!((0.98..1.02).contains(&ratio), "device time {ratio}");
    }
    Ok(worst)
}

/// `AIPROF_SCHEDULES=FIRST..END` runs others, and goes on after one that fails.
#[test]
fn schedules_that_nobody_chose() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    // Timestamps that are a program's last act, bare records, three processes.
    let asked = std::env::var("AIPROF_SCHEDULES").unwrap_or_else(|_| "23..26".to_owned());
    let (first, end) = asked.split_once("..").context("AIPROF_SCHEDULES")?;
    let (mut failed, mut points) = (Vec::new(), Vec::new());
    for seed in first.parse()?..end.parse()? {
        match check(seed) {
            Ok(worst) => points.push(worst),
            Err(error) => failed.push(format!("{seed}: {error:#}")),
        }
    }
    points.sort_by(f64::total_cmp);
    let near = points.iter().filter(|&&points| points <= 2.0).count();
    println!("{near} of {} within 2 points: {points:.2?}", points.len());
    ensure!(failed.is_empty(), "{failed:#?}");
    Ok(())
}
