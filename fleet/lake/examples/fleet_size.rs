//! What a fleet of agents asks of its backends, from one host to 100,000: docs/sizing.md.
//!
//! `cargo run --release --manifest-path fleet/Cargo.toml --example fleet_size`
//!
//! Windows, files and compactions are made by the agent's own code, of synthetic stacks, and are
//! measured for a few hosts. Each step is a process of its own, so that its memory and CPU time are
//! its alone. When requests come is simulated for all hosts of a fleet.

use aiprof_fleet::config;
use aiprof_fleet::spool::Queue;
use aiprof_fleet_testkit::{self as synthetic, Programs, Random};
use aiprof_lake::time::HOUR_NS;
use aiprof_lake::{CompactOptions, Lake};
use anyhow::{Context as _, Result};
use std::path::Path;
use std::process::Command;

/// 2026-11-26, 0:00.
const BEGIN: u64 = 1_795_651_200_000_000_000;
/// Samples in a window at 19 Hz: two CPUs that are busy for a fifth of the time, sixteen for two
/// fifths.
const SMALL: usize = 450;
const LARGE: usize = 7296;
/// Sizes of fleets.
const FLEETS: [u64; 6] = [1, 10, 100, 1_000, 10_000, 100_000];
/// Seconds that are simulated after an outage.
const SECONDS: usize = 600;
/// Longest wait of aiprof-send before a request is tried again, seconds, of which it takes at
/// least half; and how long the outage was.
const LONGEST_WAIT: f64 = 300.0;
const OUTAGE_WINDOWS: u64 = 60;
/// Turns of ten windows.
const TURNS_OF_AN_HOUR: u64 = 6;
/// What a request takes at its server, seconds.
const REQUEST: f64 = 0.02;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => all(),
        [place, "roll-up", host, hours, samples] => roll_up(
            Path::new(place),
            host.parse()?,
            hours.parse()?,
            samples.parse()?,
        ),
        [place, "compact", hours] => compact(Path::new(place), hours.parse()?),
        _ => anyhow::bail!("fleet_size"),
    }
}

/// What a step reports about itself.
#[derive(Debug, Default)]
struct Step {
    numbers: Vec<f64>,
}

impl Step {
    fn run(place: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let output = command.arg(place).args(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::ensure!(output.status.success(), "{arguments:?}: {said}");
        let numbers = String::from_utf8(output.stdout)?;
        let numbers = numbers.split_whitespace().map(str::parse);
        Ok(Self {
            numbers: numbers.collect::<Result<_, _>>()?,
        })
    }

    fn at(&self, index: usize) -> f64 {
        self.numbers.get(index).copied().unwrap_or(f64::NAN)
    }
}

fn all() -> Result<()> {
    println!("synthetic: windows of 60 s at 19 Hz, 4,000 stacks of 8 to 59 frames\n");
    let mut bodies = Vec::new();
    for (what, samples) in [("small", SMALL), ("large", LARGE)] {
        let place = tempfile::tempdir()?;
        let done = Step::run(place.path(), &["roll-up", "0", "1", &samples.to_string()])?;
        println!(
            "{what} host, {samples} samples a window: {:.1} KB a window in the spool, {:.2} MB an \
             hour in the lake before compaction. A roll-up of an hour: {:.2} s CPU, {:.0} MiB at most",
            done.at(0) / 60e3,
            done.at(1) / 1e6,
            done.at(2),
            done.at(3)
        );
        bodies.push(done.at(0) / 60.0);
    }
    let small = bodies.first().copied().unwrap_or(f64::NAN);
    // An hour of many hosts, as it is merged each hour; and a day of a few.
    let hour = merged(64, 1)?;
    let day = merged(4, 24)?;
    for (what, done) in [
        ("64 small hosts, an hour", &hour),
        ("4 small hosts, a day", &day),
    ] {
        println!(
            "{what}: {:.2} MB became {:.2} MB; {:.2} s CPU, {:.0} MiB at most",
            done.at(0) / 1e6,
            done.at(1) / 1e6,
            done.at(2),
            done.at(3)
        );
    }
    println!();
    // Each row is merged once in its hour, and once more when its day is over.
    let compaction = hour.at(2) / 64.0 * 24.0 + day.at(2) / 4.0;
    println!(
        "| hosts | requests a second: mean | most | most after an hour's outage | bytes a \
         second | sent a day | lake, a day before compaction | after | cores that compact |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for hosts in FLEETS {
        let usual = arrivals(hosts);
        let after = after_outage(hosts);
        let count = hosts as f64;
        println!(
            "| {hosts} | {:.2} | {} | {} | {} | {} | {} | {} | {:.4} |",
            count / 60.0,
            usual,
            after,
            bytes(small * count / 60.0),
            bytes(small * count * 1440.0),
            bytes(day.at(0) / 4.0 * count),
            bytes(day.at(1) / 4.0 * count),
            compaction * count / 86_400.0
        );
    }
    println!();
    turns(small);
    Ok(())
}

/// Fleets whose hosts each record in one of `one_in` turns, by chance, for a day.
fn turns(window_bytes: f64) {
    println!(
        "| hosts | `one_in` | stacks a second | sent a day | hosts that record at once: least | \
         most | error of the CPU time of an hour, 95 % | of the day |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for hosts in FLEETS.into_iter().skip(2) {
        for one_in in [1, 10, 100] {
            if hosts / one_in < 10 {
                continue;
            }
            let mut random = Random(hosts ^ one_in);
            // Busy CPUs of each host: most do little, some all that they can.
            let loads: Vec<f64> = (0..hosts).map(|_| 2.0 * random.unit().powi(4)).collect();
            let truth: f64 = loads.iter().sum();
            let (mut least, mut most, mut squares, mut day) = (u64::MAX, 0, 0.0, 0.0);
            for _ in 0..24 {
                let mut hour = 0.0;
                for _ in 0..TURNS_OF_AN_HOUR {
                    let mut on = 0;
                    for load in &loads {
                        if random.below(one_in as usize) == 0 {
                            hour += load * one_in as f64 / TURNS_OF_AN_HOUR as f64;
                            on += 1;
                        }
                    }
                    (least, most) = (least.min(on), most.max(on));
                }
                squares += (hour / truth - 1.0).powi(2);
                day += hour / truth / 24.0;
            }
            // One day is one draw: its error is that of its hours, which are independent.
            let error = 196.0 * (squares / 24.0_f64).sqrt();
            println!(
                "| {hosts} | {one_in} | {:.0} | {} | {least} | {most} | {error:.2} % | {:.2} % |",
                19.0 * truth / one_in as f64,
                bytes(window_bytes * hosts as f64 * 1440.0 / one_in as f64),
                error / 24.0_f64.sqrt(),
            );
            assert!(100.0 * (day - 1.0).abs() <= error, "{day}: biased");
        }
    }
}

/// Hosts that roll hours up, and a compaction of these: bytes before and after, CPU time, peak.
fn merged(hosts: u64, hours: u64) -> Result<Step> {
    let place = tempfile::tempdir()?;
    for host in 0..hosts {
        let (host, hours) = (host.to_string(), hours.to_string());
        let samples = SMALL.to_string();
        Step::run(place.path(), &["roll-up", &host, &hours, &samples])?;
    }
    Step::run(place.path(), &["compact", &hours.to_string()])
}

fn lake(place: &Path, host: u64) -> Result<Lake> {
    let config = config::Lake::at(place.join("lake").display().to_string());
    let id = format!("{:016x}", Random(host).draw());
    Ok(Lake::open(&config, &id, &format!("web-{host}"))?)
}

fn run<T>(future: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(future))
}

/// Windows of a host, rolled up: bytes in the spool, in the lake, CPU seconds of the roll-up, and
/// its peak of memory, MiB.
fn roll_up(place: &Path, host: u64, hours: u64, samples: usize) -> Result<()> {
    let queue = Queue::open(&place.join("spool"), &format!("host-{host}"))?;
    // The same programs everywhere, as on the hosts of a service.
    let programs = Programs::new(1, 12, 4000);
    let mut random = Random(host);
    let of_host = (&programs, &mut random);
    let bytes = synthetic::spool(&queue, of_host, BEGIN, 60 * hours, samples)?;
    let lake = lake(place, host)?;
    let before = cpu_seconds()?;
    // Longer after the end than any host waits.
    let now = BEGIN + (hours + 2) * HOUR_NS;
    let done = run(lake.roll_up(&queue, now))??;
    anyhow::ensure!(done.bodies == 60 * hours, "{done:?}");
    let used = cpu_seconds()? - before;
    println!("{bytes} {} {used} {}", done.bytes, peak_mib()?);
    Ok(())
}

fn compact(place: &Path, hours: u64) -> Result<()> {
    let lake = lake(place, 0)?;
    // For a whole day, merges what is left of it; else what is merged while the day goes on.
    let now = BEGIN + (hours + 2) * HOUR_NS;
    let done = run(lake.compact(&CompactOptions::default(), now))??;
    anyhow::ensure!(done.files > 0 && done.unreadable == 0, "{done:?}");
    let (before, after) = (done.merged_bytes, done.bytes);
    println!("{before} {after} {} {}", cpu_seconds()?, peak_mib()?);
    Ok(())
}

/// Most requests in a second, of hosts that started at any time: each minute is as the last.
fn arrivals(hosts: u64) -> u32 {
    let mut counts = [0_u32; 60];
    let mut random = Random(hosts);
    for _ in 0..hosts {
        if let Some(count) = counts.get_mut((random.unit() * 60.0) as usize) {
            *count += 1;
        }
    }
    counts.into_iter().max().unwrap_or(0)
}

/// Most requests in a second after an outage of an hour, if the server takes them all. Each host
/// comes back when its wait is over, and sends what waits, one body after the other.
fn after_outage(hosts: u64) -> u32 {
    let mut counts = vec![0_u32; SECONDS];
    let mut random = Random(!hosts);
    for _ in 0..hosts {
        // Where in its wait the host is when the server is back.
        let wait = LONGEST_WAIT * (0.5 + 0.5 * random.unit());
        let back = wait * random.unit();
        for body in 0..OUTAGE_WINDOWS {
            let second = back + body as f64 * REQUEST;
            if let Some(count) = counts.get_mut(second as usize) {
                *count += 1;
            }
        }
    }
    counts.into_iter().max().unwrap_or(0)
}

/// Bytes with a unit.
fn bytes(of: f64) -> String {
    let units = ["B", "KB", "MB", "GB", "TB", "PB"];
    let mut value = of;
    for unit in units {
        if value < 1000.0 {
            return format!("{value:.1} {unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.1} EB")
}

/// Largest resident memory so far.
fn peak_mib() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.context("VmHWM")?.parse::<f64>()? / 1024.0)
}

/// CPU time so far.
fn cpu_seconds() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    let number = text.split_whitespace().next().context("schedstat")?;
    Ok(number.parse::<f64>()? / 1e9)
}
