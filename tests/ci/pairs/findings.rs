//! Findings: programs with one planted problem each, and the same without it. The problem is
//! the first finding, and costs what the program loses by it; nothing is found in the twins.
//!
//! A problem costs what the device lost by the driver's log (virtual CUDA driver, real recordings).
//! In traces that a simulation made (`findings/planted.py`, *synthetic*), it costs how much longer
//! the simulation takes than its twin.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use aiprof_tests::aiprof::binary;
use aiprof_tests::cuda::{Cuda, Work};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked, source_path};

/// What a finding may be off by: part of the truth.
const TOLERANCE: f64 = 0.15;
/// What `cuda_waste sync` prepares while its device idles.
const PREPARED_NS: f64 = 300e6;

/// Problems that `planted.py` makes.
const PLANTED: [&str; 13] = [
    "dataloader-stall",
    "launch-starved",
    "synchronous-wait",
    "short-kernels",
    "copy-not-overlapped",
    "pageable-copy",
    "communication-not-hidden",
    "throttling",
    "spills",
    "late-rank",
    "prep-queue-starved",
    "recompilation",
    "graph-breaks",
];

/// What is found in traces.
fn findings(inputs: &[PathBuf]) -> anyhow::Result<Vec<Value>> {
    let mut command = Command::new(binary()?);
    let text = checked(command.arg("analyze").args(inputs).args(["--json", "-q"]))?;
    let mut report: Value = serde_json::from_str(&text)?;
    match report["findings"].take() {
        Value::Array(findings) => Ok(findings),
        other => anyhow::bail!("no findings: {other}"),
    }
}

fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?;
    let mut files: Vec<_> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<anyhow::Result<_>>()?;
    files.sort();
    Ok(files)
}

/// The first finding is the problem, at its price and with what belongs to a finding.
fn judge(kind: &str, truth_ns: f64, tolerance: f64, found: &[Value]) -> anyhow::Result<()> {
    let first = found.first().context("nothing was found")?;
    let told = serde_json::to_string_pretty(found)?;
    ensure!(first["kind"] == kind, "not {kind}: {told}");
    let cost = first["cost_ns"].as_f64().context("a cost")?;
    let off = (cost - truth_ns).abs() / truth_ns;
    println!(
        "{kind}: {:.3} of {:.3} ms, {:.1} % off: {}",
        cost / 1e6,
        truth_ns / 1e6,
        off * 100.0,
        first["text"]
    );
    match kind {
        // All of the kernel's time is the most that spills can cost.
        "spills" => ensure!(cost >= truth_ns, "{told}"),
        _ => ensure!(off <= tolerance, "{truth_ns} ns: {told}"),
    }
    for key in ["numbers", "places", "evidence"] {
        ensure!(
            first[key].as_array().is_some_and(|list| !list.is_empty()),
            "{key}: {told}"
        );
    }
    for key in ["text", "cost_is", "advice", "subject"] {
        ensure!(
            first[key].as_str().is_some_and(|text| !text.is_empty()),
            "{key}: {told}"
        );
    }
    let percent = first["threshold"]["percent"]
        .as_f64()
        .context("a threshold")?;
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/findings.md");
    let docs = std::fs::read_to_string(docs)?;
    let row = docs
        .lines()
        .find(|line| line.starts_with(&format!("| `{kind}` |")));
    ensure!(
        row.is_some_and(|row| row.contains(&format!("| {percent} % |"))),
        "docs: {row:?}"
    );
    // The most expensive first.
    let costs: Vec<u64> = found
        .iter()
        .map(|one| one["cost_ns"].as_u64().unwrap_or(0))
        .collect();
    ensure!(costs.is_sorted_by(|a, b| a >= b), "{told}");
    Ok(())
}

fn clean(kind: &str, found: &[Value]) -> anyhow::Result<()> {
    let costly: Vec<&Value> = found
        .iter()
        .filter(|one| !one["cost_ns"].is_null())
        .collect();
    ensure!(
        costly.is_empty(),
        "{kind}, clean: {}",
        serde_json::to_string_pretty(&costly)?
    );
    Ok(())
}

#[test]
fn what_is_planted_in_traces_is_found_first_and_nothing_in_clean_ones() -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    for kind in PLANTED {
        for seed in ["1", "2", "3"] {
            let folder = shop.path(&format!("{kind}-{seed}"));
            let script = source_path("../findings/planted.py");
            let mut make = Command::new("python3");
            let made = checked(make.arg(script).arg(kind).arg(&folder).arg(seed))?;
            let truth: Value = serde_json::from_str(&made)?;
            let truth_us = truth["cost_us"].as_f64().context("a truth")?;
            let found = findings(&files(&folder.join("planted"))?)?;
            judge(kind, truth_us * 1000.0, TOLERANCE, &found)?;
            clean(kind, &findings(&files(&folder.join("clean"))?)?)?;
        }
    }
    Ok(())
}

/// A program for the virtual CUDA driver.
struct Wasteful(Cuda);

/// What a device lost during a run by the driver's own log, ns. That includes what the machine
/// adds: a program whose CPU is taken away launches later, and its device idles meanwhile.
struct Lost {
    /// Gaps of up to 100 us in which nothing ran.
    short: f64,
    /// Longer ones.
    long: f64,
    /// Time in which copies ran and no kernel.
    copies: f64,
}

impl Lost {
    fn new(works: &[Work]) -> Self {
        let all = gaps(works.iter());
        let without_kernels = gaps(works.iter().filter(|work| !work.name.starts_with("Mem")));
        let (short, long): (Vec<u64>, Vec<u64>) = all.iter().partition(|ns| **ns <= 100_000);
        let idle: u64 = all.iter().sum();
        Self {
            short: short.iter().sum::<u64>() as f64,
            long: long.iter().sum::<u64>() as f64,
            copies: (without_kernels.iter().sum::<u64>() - idle) as f64,
        }
    }
}

/// The times between works, from the first to the last.
fn gaps<'a>(works: impl Iterator<Item = &'a Work>) -> Vec<u64> {
    let mut spans: Vec<(u64, u64)> = works.map(|work| (work.start, work.end)).collect();
    spans.sort_unstable();
    let mut gaps = Vec::new();
    let mut until = spans.first().map_or(0, |first| first.0);
    for (start, end) in spans {
        gaps.extend(start.checked_sub(until).filter(|gap| *gap > 0));
        until = until.max(end);
    }
    gaps
}

impl Wasteful {
    fn new() -> anyhow::Result<Self> {
        Ok(Self(Cuda::new("cuda_waste.c", true)?))
    }

    /// Judges the findings of a run and of its twin.
    fn judge(
        &self,
        kind: &str,
        planted: &[&str],
        twin: &[&str],
        place: &str,
    ) -> anyhow::Result<()> {
        let (found, lost) = self.run(planted)?;
        let idle = lost.short + lost.long;
        // What the problem costs, and idle time that it does not cause.
        let (truth, other) = match kind {
            "launch-starved" => (idle, 0.0),
            "synchronous-wait" => (idle, idle - PREPARED_NS),
            "short-kernels" => (lost.short, lost.long),
            "copy-not-overlapped" => (lost.copies, idle),
            other => anyhow::bail!("{other}: which part of the log is its cost?"),
        };
        if other <= truth * TOLERANCE {
            judge(kind, truth, TOLERANCE, &found)?;
            let text = found[0]["text"].as_str().unwrap_or_default();
            ensure!(text.contains(place), "{text}");
        } else {
            // The machine took the CPU away: that time is found too, and may come first.
            let told = serde_json::to_string_pretty(&found)?;
            ensure!(found.iter().any(|one| one["kind"] == kind), "{told}");
            let costs = found.iter().filter(|one| one["kind"] != "copy-not-overlapped");
            let sum: f64 = costs.filter_map(|one| one["cost_ns"].as_f64()).sum();
            println!("{kind}: {sum} of {idle} ns idle, {other} by the machine");
            ensure!((sum - idle).abs() <= idle * TOLERANCE, "{idle} ns: {told}");
        }

        let (found, lost) = self.run(twin)?;
        let idle = (lost.short + lost.long) * (1.0 + TOLERANCE);
        let found: Vec<Value> = found
            .into_iter()
            .filter(|one| one["cost_ns"].as_f64().is_some_and(|cost| cost > idle))
            .collect();
        clean(kind, &found)
    }

    /// Records a run; gives what is found, and what the device lost.
    fn run(&self, words: &[&str]) -> anyhow::Result<(Vec<Value>, Lost)> {
        let out = self.0.shop.path("run.aiprof").display().to_string();
        let options = ["-q", "--device-timing", "-o", &out];
        let script = source_path("cuda_waste.py").display().to_string();
        let program = self.0.program.display().to_string();
        let words = match words {
            ["python", rest @ ..] => [&["python3", &script[..]], rest].concat(),
            words => [&[&program[..]], words].concat(),
        };
        let mut command = self.0.command(Some(&options), &words)?;
        command.env("VCUDA_LAUNCH_NS", "20000");
        checked(&mut command)?;
        Ok((findings(&[out.into()])?, Lost::new(&self.0.truth()?)))
    }
}

#[test]
fn what_is_planted_in_programs_is_found_first_and_nothing_in_clean_ones() -> anyhow::Result<()> {
    let needs = [Need::Root, Need::Tool("cc"), Need::Tool("python3")];
    skip_unless!(&needs);
    let cuda = Wasteful::new()?;
    for (kind, planted, twin, place) in [
        (
            "launch-starved",
            &["starved"][..],
            &["starved-clean"][..],
            "next_batch",
        ),
        (
            "synchronous-wait",
            &["sync"],
            &["sync-clean"],
            "cuStreamSynchronize",
        ),
        ("short-kernels", &["short"], &["short-clean"], "train_4"),
        ("copy-not-overlapped", &["copy"], &["copy-clean"], "Memcpy"),
        (
            "launch-starved",
            &["python"],
            &["python", "clean"],
            "next_batch",
        ),
    ] {
        cuda.judge(kind, planted, twin, place)?;
    }
    Ok(())
}

/// Kineto's own trace of ResNet-50 of 2021, whose loader has one process.
#[test]
fn the_loader_of_a_real_trace_costs_what_a_count_of_microseconds_says() -> anyhow::Result<()> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR"));
    let trace = data.join("data/kineto/resnet50_loader.json.gz");
    let mut count = Command::new("python3");
    count.arg(data.join("findings/loader_idle.py")).arg(&trace);
    let truth_us: f64 = checked(&mut count)?.trim().parse()?;
    judge(
        "dataloader-stall",
        truth_us * 1000.0,
        0.02,
        &findings(&[trace])?,
    )
}

/// The report and the page have the same findings as the terminal, in the same order.
#[test]
fn text_page_and_json_say_the_same() -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    let folder = shop.path("t");
    let script = source_path("../findings/planted.py");
    checked(
        Command::new("python3")
            .arg(script)
            .arg("launch-starved")
            .arg(&folder),
    )?;
    let inputs = files(&folder.join("planted"))?;
    let found = findings(&inputs)?;
    let out = shop.path("o.json");
    let mut analyze = Command::new(binary()?);
    let text = checked(
        analyze
            .arg("analyze")
            .args(&inputs)
            .arg("-o")
            .arg(&out)
            .arg("-q"),
    )?;
    let page = std::fs::read_to_string(shop.path("o_report.html"))?;
    let report: Value = serde_json::from_slice(&std::fs::read(shop.path("o_report.json"))?)?;
    ensure!(
        report["findings"] == Value::Array(found.clone()),
        "{report}"
    );
    let mut at = 0;
    for one in &found {
        let said = one["text"].as_str().context("a text")?;
        let behind = text[at..]
            .find(said)
            .with_context(|| format!("{said}: {text}"))?;
        at += behind + said.len();
        ensure!(page.contains(said), "not on the page: {said}");
        if let Some(advice) = one["advice"].as_str() {
            ensure!(text.contains(advice) && page.contains(advice), "{advice}");
        }
    }
    // What came and went, by kind and subject.
    let clean = files(&folder.join("clean"))?;
    let mut diff = Command::new(binary()?);
    let table = checked(
        diff.arg("diff")
            .args(&inputs)
            .args(&clean)
            .args(["--format", "json"]),
    )?;
    let tables: Value = serde_json::from_str(&table)?;
    let all = tables.as_array().context("tables")?;
    let rows = all
        .iter()
        .find(|table| table["name"] == "findings")
        .context("findings")?;
    let gone = &rows["rows"][0];
    ensure!(
        gone["verdict"] == "gone" && gone["kind"] == "launch-starved",
        "{rows}"
    );
    ensure!(
        gone["cost_before"]
            .as_f64()
            .is_some_and(|us| us > 200_000.0),
        "{rows}"
    );
    Ok(())
}
