//! Storms of short processes: no crash, no growth, every loss counted, names.

use std::process::Stdio;

use aiprof_tests::aiprof::{Aiprof, lost, truth};
use aiprof_tests::chain::check_share;
use aiprof_tests::child::Child;
use aiprof_tests::folded::{Folded, Line};
use aiprof_tests::monitor::{Monitor, Reading};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::Workshop;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];

/// What aiprof may add while the last 70 % of a storm are recorded, in bytes for each sample of
/// that part. Samples of as many processes are kept, and nothing else may take room.
const GROWTH: u64 = 600;

/// Checks that memory does not grow once it is warm, except for `samples` samples.
fn check_growth(readings: &[Reading], samples: u64) -> anyhow::Result<()> {
    let first = readings.first().map(|r| r.memory_kib);
    let most = readings.iter().map(|r| r.memory_kib).max();
    let (Some(first), Some(most)) = (first, most) else {
        anyhow::bail!("aiprof was gone");
    };
    println!("{first} to {most} KiB, {samples} samples");
    anyhow::ensure!(
        most <= first + samples * GROWTH / 1024,
        "aiprof grew from {first} to {most} KiB by {samples} samples: {readings:?}"
    );
    Ok(())
}

/// Records a storm and returns the profile by counts.
fn record(args: &[&str]) -> anyhow::Result<Folded> {
    let shop = Workshop::new()?;
    let storm = shop.build("storm.c", "storm", &[])?;
    let brief = shop.build("brief.c", "brief", &[])?;
    let brief = brief.to_string_lossy();
    let out = shop.path("out.folded");
    let mut all = args.to_vec();
    all.push(&brief);
    let mut command = Aiprof::counting()
        .option("-o")
        .option(&out)
        .command(storm, &all)
        .to_command()?;
    let log = std::fs::File::create(shop.path("stderr"))?;
    let mut aiprof = Child::start(command.stdout(Stdio::piped()).stderr(log))?;
    aiprof.read_line()?;
    // From when 30 % are over until all are: memory of the time after it is another matter.
    let warm = aiprof.read_line()?;
    anyhow::ensure!(warm == "warm\n", "{warm}");
    let monitor = Monitor::start(aiprof.pid());
    let cpu = aiprof.read_line();
    let readings = monitor.finish()?;
    aiprof.output()?;
    let stderr = std::fs::read_to_string(shop.path("stderr"))?;
    let folded = Folded::parse(&std::fs::read_to_string(&out)?)?;
    check_growth(&readings, folded.total() * 7 / 10)?;
    check_accounts(&folded, &stderr, truth(&cpu?, "cpu_ns")?)?;
    Ok(folded)
}

/// All samples are in the profile or counted as lost. Together, those of the storm stand for the
/// CPU time that the kernel counted for it, by nanoseconds. (`/proc/stat` goes by ticks, which a
/// storm that is paced by timers meets or misses.)
fn check_accounts(folded: &Folded, stderr: &str, cpu_ns: f64) -> anyhow::Result<()> {
    let lost = lost(stderr, "samples dropped") + lost(stderr, "samples refused");
    let storm = folded.filter(|line| ["storm", "brief"].contains(&line.comm.as_str()));
    let seen_ns = ((storm.total() + lost) * (1_000_000_000 / 499)) as f64;
    println!("samples are {:.3} of the CPU time", seen_ns / cpu_ns);
    anyhow::ensure!(
        seen_ns >= 0.85 * cpu_ns,
        "{} samples and {lost} lost ones are {seen_ns} ns of {cpu_ns} ns of CPU time:\n{stderr}",
        storm.total()
    );
    Ok(())
}

/// Whether a sample was taken in user mode.
fn in_user(line: &Line) -> bool {
    !line.in_kernel() && !line.user().is_empty()
}

/// Whether its leaf has a name.
fn is_named(line: &Line) -> bool {
    line.frames
        .last()
        .is_some_and(|leaf| !leaf.starts_with('['))
}

fn check_names(folded: &Folded, comms: &[&str], least: u64) -> anyhow::Result<()> {
    let storm = folded.filter(|l| comms.contains(&l.comm.as_str()) && in_user(l));
    check_share("user-space samples named", &storm, least, 0.95, is_named)
}

#[test]
fn fork_and_exit_5000_a_second() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let folded = record(&["fork", "50000", "5000"])?;
    check_names(&folded, &["storm"], 300)?;
    anyhow::ensure!(
        folded
            .lines
            .iter()
            .any(|l| l.comm == "storm" && l.has("child_work")),
        "no sample in the children:\n{}",
        folded.excerpt(10)
    );
    Ok(())
}

#[test]
fn fork_exec_and_exit_at_full_rate() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let folded = record(&["exec", "4000", "0"])?;
    check_names(&folded, &["storm", "brief"], 300)?;
    anyhow::ensure!(
        folded
            .lines
            .iter()
            .any(|l| l.comm == "brief" && l.has("brief_work")),
        "no sample in the executed programs:\n{}",
        folded.of_comm("brief").excerpt(10)
    );
    Ok(())
}
