//! The finding of a hot kernel's stall, in recordings of the virtual device: a kernel that
//! stalls at one instruction, and the same without. Its cost is the device's time in the kernel
//! times the part of its samples that the schedule puts there. That time lies between what the
//! driver noted of executions and of waits.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use aiprof_tests::aiprof::binary;
use aiprof_tests::level_zero::module::{Kernel, Module};
use aiprof_tests::level_zero::program::build_paths;
use aiprof_tests::level_zero::real::{self, Instruction};
use aiprof_tests::need::skip_unless;
use aiprof_tests::stall_run::{NEEDS, Recording};
use aiprof_tests::truth::{Kind, Truth};
use aiprof_tests::workload::{Workshop, checked};

/// What a cost may be off by, part of the truth: the device's busy time in windows is by
/// the times of launches and waits.
const TOLERANCE: f64 = 0.05;

/// How long the device was in a kernel, nanoseconds.
struct InKernel {
    /// By its executions.
    exact: f64,
    /// As long as a recording without timestamps can believe: from the submission of each until
    /// the wait for it returned. A machine that takes the CPU away makes it longer.
    most: f64,
}

impl InKernel {
    fn of(truth: &Truth, kernel: &str) -> anyhow::Result<Self> {
        let of_kernel = truth
            .execs
            .iter()
            .filter(|exec| exec.kind == Kind::Kernel && exec.kernel.as_deref() == Some(kernel));
        let (mut exact, mut most) = (0, 0);
        for exec in of_kernel {
            let mut calls = truth.calls.iter().filter(|call| call.pid == exec.pid);
            let submitted = calls
                .find(|call| call.seq == exec.submit)
                .context("no submission")?;
            let waited = calls
                .find(|call| call.function.contains("Synchronize") && call.t1 >= exec.end_ns)
                .context("no wait")?;
            exact += exec.end_ns - exec.start_ns;
            most += waited.t1 - submitted.t0;
        }
        let [exact, most] = [exact, most].map(|ns: u64| ns as f64);
        Ok(Self { exact, most })
    }
}

/// Findings with a cost, and how long the device was in the kernel.
fn run(module: Module, kernel: &str, more: &[&str]) -> anyhow::Result<(Vec<Value>, InKernel)> {
    let shop = Workshop::new()?;
    let recording = Recording::of(module);
    let mode = ["launch", "launches=150", "sync=1", "base=1"];
    // A wait that returns late would count as the device's time.
    let mut program = ["nice", "-n", "-20"].map(str::to_owned).to_vec();
    program.push(build_paths()?.display().to_string());
    program.extend(recording.arguments(&shop, &[&mode[..], more].concat())?);
    recording.record(&shop, &program)?;
    let truth = Truth::read(&shop.path("truth.json"))?;
    let in_kernel = InKernel::of(&truth, kernel)?;
    let mut analyze = Command::new(binary()?);
    analyze.arg("analyze").arg(shop.path("run.aiprof"));
    let report: Value = serde_json::from_str(&checked(analyze.args(["--json", "-q"]))?)?;
    let findings = report["findings"].as_array().context("no findings")?;
    let stalls = findings.iter().filter(|one| one["kind"] == "kernel-stall");
    Ok((stalls.cloned().collect(), in_kernel))
}

#[test]
fn the_stall_of_the_hottest_kernel_is_found_at_its_price() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for (reason, advice) in [("sbid", "token"), ("sync", "barrier")] {
        // 150 of 250 samples have the reason at 0x40.
        let hot = Kernel::new("work", 4_000_000)
            .rate(0x40, reason, 150)
            .rate(0x40, "pipe", 20)
            .rate(0x80, "dist", 40)
            .rate(0xc0, "active", 40);
        let (found, ns) = run(Module::new(vec![hot]), "work", &[])?;
        let told = serde_json::to_string_pretty(&found)?;
        let [one] = &found[..] else {
            anyhow::bail!("not one: {told}");
        };
        let [exact, most] = [ns.exact, ns.most].map(|ns| ns * 150.0 / 250.0);
        let cost = one["cost_ns"].as_f64().context("a cost")?;
        println!("{reason}: {cost:.0} ns, true are {exact:.0} to {most:.0}");
        ensure!(
            (exact * (1.0 - TOLERANCE)..=most * (1.0 + TOLERANCE)).contains(&cost),
            "{cost} ns, true are {exact} to {most}: {told}"
        );
        ensure!(one["subject"] == "work at 0x40", "{told}");
        ensure!(one["evidence"][0].to_string().contains("0x40"), "{told}");
        ensure!(one["advice"].to_string().contains(advice), "{told}");
        let percent = one["threshold"]["percent"].to_string();
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/findings.md");
        let docs = std::fs::read_to_string(docs)?;
        let mut rows = docs
            .lines()
            .filter(|line| line.starts_with("| `kernel-stall` |"));
        let percent = percent.trim_end_matches(".0");
        ensure!(
            rows.any(|row| row.contains(&format!("| {percent} % |"))),
            "{percent}"
        );
    }
    Ok(())
}

/// Code that the compiler made: the line is the compiler's, and the finding names what is waited
/// for.
#[test]
fn the_line_of_compiled_code_is_named() -> anyhow::Result<()> {
    let needs = [&NEEDS[..], &real::NEEDS].concat();
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let built = real::compile_listed(&shop, "ai.cl", real::Product::Pvc)?;
    let mut schedule = String::new();
    let mut hot = None;
    for (kernel, listing) in &built.listings {
        // An instruction that computes, in the middle of the first kernel, which takes four times
        // as long.
        let is_hot = hot.is_none();
        let ns = if is_hot { 4_000_000 } else { 1_000_000 };
        schedule += &format!("kernel {kernel} ns={ns}\n");
        let computes = |one: &&Instruction| {
            let is_late = ["mad", "mul", "add", "dpas"].contains(&&*one.mnemonic);
            one.line.is_some() && is_late
        };
        let computing: Vec<_> = listing.iter().filter(computes).collect();
        let chosen = computing.get(computing.len() / 2).filter(|_| is_hot);
        for one in listing {
            let count = match chosen {
                Some(chosen) if chosen.offset == one.offset => 2000,
                _ => 1,
            };
            schedule += &format!("stall {kernel} {:#x} sbid {count}\n", one.offset);
        }
        if let Some(chosen) = chosen {
            hot = Some((kernel.clone(), chosen.offset, chosen.line.unwrap_or(0)));
        }
    }
    let (kernel, offset, line) = hot.context("no instruction computes")?;
    let module = format!("module={}", built.zebin.display());
    let program = [
        "launch",
        "paths=3",
        "kernels=path",
        "launches=150",
        "base=1",
        "sync=1",
    ];
    let paths = build_paths()?.display().to_string();
    let program = [&[&*paths][..], &program, &[&module]].concat();
    let program: Vec<String> = program.into_iter().map(str::to_owned).collect();
    Recording::compiled(&shop, &schedule)?.record(&shop, &program)?;
    let mut analyze = Command::new(binary()?);
    analyze.arg("analyze").arg(shop.path("run.aiprof"));
    let report: Value = serde_json::from_str(&checked(analyze.args(["--json", "-q"]))?)?;
    let findings = report["findings"].as_array().context("no findings")?;
    let one = findings.iter().find(|one| one["kind"] == "kernel-stall");
    let one = one.with_context(|| report.to_string())?;
    ensure!(
        one["subject"] == format!("{kernel} at ai.cl:{line}"),
        "{one:#}"
    );
    let evidence = one["evidence"].as_array().context("no evidence")?;
    ensure!(
        evidence[0]
            .to_string()
            .contains(&format!("most of them at {offset:#x} ")),
        "{one:#}"
    );
    ensure!(evidence[1].to_string().contains("wait"), "{one:#}");
    Ok(())
}

/// The same kernel, whose stalls are spread over twenty instructions; and one that hardly
/// stalls.
#[test]
fn even_and_busy_kernels_have_no_finding() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mut even = Kernel::new("work", 4_000_000);
    for at in 1..=20 {
        even = even.rate(at * 16, "sbid", 12);
    }
    let busy = Kernel::new("work", 4_000_000)
        .rate(0x40, "active", 220)
        .rate(0x80, "sbid", 30);
    for kernel in [even, busy] {
        let (found, _) = run(Module::new(vec![kernel]), "work", &[])?;
        ensure!(found.is_empty(), "{found:?}");
    }
    Ok(())
}
