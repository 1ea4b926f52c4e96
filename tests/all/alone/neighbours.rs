//! Other tools beside a recording: they work as without it, and the kernel has
//! nothing to complain of.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aiprof_tests::aiprof::Aiprof;
use aiprof_tests::child::Child;
use aiprof_tests::monitor::perf_events_of;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::Workshop;

/// Runs of each tool. `AIPROF_TESTS_RUNS` sets another number.
const RUNS: usize = 3;

fn runs() -> usize {
    let set = std::env::var("AIPROF_TESTS_RUNS").ok();
    set.and_then(|n| n.parse().ok()).unwrap_or(RUNS)
}

/// What the kernel complained of so far.
fn complaints() -> anyhow::Result<Vec<String>> {
    let output = Command::new("dmesg").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let bad = |line: &&str| {
        [
            "uprobe",
            "WARNING",
            "BUG",
            "hung task",
            "ref_ctr",
            "trace_uprobe",
        ]
        .iter()
        .any(|word| line.contains(word))
    };
    Ok(text.lines().filter(bad).map(str::to_owned).collect())
}

/// A recording that runs until it is dropped.
fn recording(out: &Path) -> anyhow::Result<Child> {
    let mut command = Aiprof::with(["--events", "launches", "-d", "600"])
        .option("-o")
        .option(out)
        .to_command()?;
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = Child::start(&mut command)?;
    let end = Instant::now() + Duration::from_secs(30);
    while perf_events_of(child.pid()) == 0 {
        anyhow::ensure!(Instant::now() < end, "the recording does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(child)
}

/// Runs a command often beside a recording. It must succeed each time.
fn beside(name: &str, tool: &'static str, args: &[&str]) -> anyhow::Result<()> {
    skip_unless!(name, &[Need::Root, Need::Tool(tool)]);
    let shop = Workshop::new()?;
    let before = complaints()?;
    let _recording = recording(&shop.path("beside.folded"))?;
    for run in 0..runs() {
        let output = Command::new(tool)
            .args(args)
            .current_dir(shop.path(""))
            .stdin(Stdio::null())
            .output()?;
        anyhow::ensure!(
            output.status.success(),
            "run {run} of {tool}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let after = complaints()?;
    anyhow::ensure!(after == before, "the kernel log:\n{}", after.join("\n"));
    Ok(())
}

#[test]
fn perf_record_on_the_whole_machine() -> anyhow::Result<()> {
    // Programs start meanwhile: it is their mappings that it aborted on.
    let load = "for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done; sleep 0.2";
    let args = ["record", "-a", "-o", "perf.data", "--", "sh", "-c", load];
    beside("perf_record_on_the_whole_machine", "perf", &args)
}

#[test]
fn bpftrace_with_probes_on_a_library() -> anyhow::Result<()> {
    let script = "uprobe:libc:malloc { @n = count(); } interval:ms:300 { exit(); }";
    beside(
        "bpftrace_with_probes_on_a_library",
        "bpftrace",
        &["-e", script],
    )
}

#[test]
fn a_second_aiprof() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let before = complaints()?;
    let _recording = recording(&shop.path("beside.folded"))?;
    for run in 0..runs() {
        let output = Aiprof::with(["-o"])
            .option(shop.path("second.folded"))
            .command("sleep", &["0.3"])
            .to_command()?
            .output()?;
        anyhow::ensure!(
            output.status.success(),
            "run {run}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let after = complaints()?;
    anyhow::ensure!(after == before, "the kernel log:\n{}", after.join("\n"));
    Ok(())
}
