//! What a host puts into a lake in a day, and what that costs: synthetic windows.
//!
//! `cargo run --release --manifest-path fleet/Cargo.toml --example host_day [DIRECTORY]`
//!
//! 1,440 windows of 60 s with 450 samples each, of 4,000 stacks of 8 to 59 frames; rolled up
//! each hour, and compacted after the day. Each step is a process of its own, so that its
//! memory and CPU time are its alone.

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
const MINUTE: u64 = 60_000_000_000;
const SAMPLES: usize = 450;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let place = tempfile::tempdir()?;
            all(place.path())
        }
        [directory] => all(Path::new(directory)),
        [directory, "fill"] => fill(Path::new(directory)),
        [directory, "roll-up", hour] => roll_up(Path::new(directory), hour.parse()?),
        [directory, "compact"] => compact(Path::new(directory)),
        _ => anyhow::bail!("host_day [DIRECTORY]"),
    }
}

fn all(directory: &Path) -> Result<()> {
    println!("synthetic: 1,440 windows of 60 s, {SAMPLES} samples each, 4,000 stacks");
    let step = |arguments: &[&str]| -> Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        let status = command.arg(directory).args(arguments).status()?;
        anyhow::ensure!(status.success(), "{arguments:?}: {status}");
        Ok(())
    };
    step(&["fill"])?;
    // One hour alone, and the others.
    step(&["roll-up", "1"])?;
    step(&["roll-up", "24"])?;
    step(&["compact"])
}

fn queue(directory: &Path) -> Result<Queue> {
    Ok(Queue::open(&directory.join("spool"), "lake")?)
}

fn lake(directory: &Path) -> Result<Lake> {
    let config = config::Lake::at(directory.join("lake").display().to_string());
    Ok(Lake::open(&config, "5f3b1c0e9a7d4e21", "web-1")?)
}

fn fill(directory: &Path) -> Result<()> {
    let queue = queue(directory)?;
    let programs = Programs::new(1, 12, 4000);
    let mut random = Random(7);
    let bytes = synthetic::spool(&queue, (&programs, &mut random), BEGIN, 1440, SAMPLES)?;
    println!("spool: {bytes} bytes of pprof");
    Ok(())
}

fn run<T>(future: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(future))
}

fn roll_up(directory: &Path, hours: u64) -> Result<()> {
    let (lake, queue) = (lake(directory)?, queue(directory)?);
    let now = BEGIN + hours * HOUR_NS + 20 * MINUTE;
    let before = peak()?;
    let done = run(lake.roll_up(&queue, now))??;
    println!(
        "roll-up of {} windows: {} samples, {} rows, {} files of {} bytes ({:.1} a row); \
         peak {} KiB (before: {before}), CPU {} ms",
        done.bodies,
        done.samples,
        done.rows,
        done.files,
        done.bytes,
        done.bytes as f64 / done.rows.max(1) as f64,
        peak()?,
        cpu_ms()?
    );
    Ok(())
}

fn compact(directory: &Path) -> Result<()> {
    let lake = lake(directory)?;
    let done = run(lake.compact(&CompactOptions::default(), BEGIN + 26 * HOUR_NS))??;
    println!(
        "compaction: {} files of {} bytes became {} of {} bytes ({:.1} a row); peak {} KiB, \
         CPU {} ms",
        done.merged,
        done.merged_bytes,
        done.files,
        done.bytes,
        done.bytes as f64 / done.rows.max(1) as f64,
        peak()?,
        cpu_ms()?
    );
    Ok(())
}

/// Largest resident memory so far, KiB.
fn peak() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.context("VmHWM")?.parse()?)
}

/// CPU time so far.
fn cpu_ms() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    let number = text.split_whitespace().next().context("schedstat")?;
    Ok(number.parse::<u64>()? / 1_000_000)
}
