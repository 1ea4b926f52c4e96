//! The budget of `aiprof agent`: what it may spend, it does not exceed, whatever the machine
//! does.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use aiprof_tests::agent::windows::{Busy, ctl, files, launches, programs, windows};
use aiprof_tests::agent::{Agent, cpu_time};
use aiprof_tests::child::Child;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::Workshop;

#[test]
fn a_budget_is_kept_and_sums_stay_true() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root, Need::Tool("bpftool")]);
    let shop = Workshop::new()?;
    // Such a frequency takes more than twice as much, and the least a tenth of it.
    let budget = 0.002;
    // The end of a window costs the same whatever its length: of a short one most.
    let window = Duration::from_secs(30);
    let lines = format!(
        "window = \"{}s\"\nfrequency = 997\n[budget]\ncpu = \"{}%\"\n{}",
        window.as_secs(),
        budget * 100.0,
        files(&shop)
    );
    let mut agent = Agent::start(&shop, &lines)?;
    // Nothing runs, and nothing is sampled.
    std::thread::sleep(Duration::from_secs(3));
    let busy = Busy::start(2)?;
    agent.await_line("recording less to stay within the budget")?;
    // By the kernel's count, from ten seconds after that on, with one end of a window.
    std::thread::sleep(Duration::from_secs(10));
    let cpus = std::thread::available_parallelism()?.get() as f64;
    let spent = || -> anyhow::Result<Duration> {
        let ns: u64 = programs()?
            .iter()
            .filter(|(name, _)| ["sampler", "name_kernel", "execd"].contains(&name.as_str()))
            .map(|(_, ns)| ns)
            .sum();
        Ok(cpu_time(agent.pid())? + Duration::from_nanos(ns))
    };
    let (from, at) = (spent()?, Instant::now());
    std::thread::sleep(window);
    let used = (spent()? - from).as_secs_f64() / at.elapsed().as_secs_f64() / cpus;
    ensure!(
        used <= budget,
        "{used} of the CPUs, {budget} may be used:\n{}",
        agent.said()?
    );
    let said = agent.end()?;
    let windows = windows(&shop.path("files"))?;
    let periods: Vec<i64> = windows.iter().map(|(_, about)| about.period_ns).collect();
    ensure!(periods.first() < periods.last(), "{periods:?}\n{said}");
    busy.check(&windows).context(said)
}

#[test]
fn launches_are_in_the_budget() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root, Need::Tool("cc")]);
    let shop = Workshop::new()?;
    shop.library(
        "call_storm.c",
        "cuda",
        &["-DRUNTIME", "-Wl,-soname,libcuda.so.1"],
    )?;
    std::os::unix::fs::symlink("libcuda.so", shop.path("libcuda.so.1"))?;
    let program = shop.build("call_storm.c", "call_storm", &["-lcuda"])?;
    let lines = format!("[budget]\ncpu = \"1%\"\n{}", files(&shop));
    let mut agent = Agent::start(&shop, &lines)?;
    let run = |schedule: &[&str]| -> anyhow::Result<Child> {
        let mut command = Command::new(&program);
        command.args(schedule).stdin(Stdio::null());
        Child::start(command.stdout(Stdio::piped()))
    };
    let calls =
        |child: &mut Child| -> anyhow::Result<i64> { Ok(child.read_line()?.trim().parse()?) };
    // The first calls of a new program may come before its library is probed. Between the
    // phases it calls once a second, so that windows can end there.
    let mut calm = run(&["200", "2", "1", "3", "200", "3", "1", "3"])?;
    let first = calls(&mut calm)?;
    ctl(&["snapshot"])?;
    let before = launches(&shop.path("files"))?;
    let rest = calls(&mut calm)?;
    let second = calls(&mut calm)?;
    ctl(&["snapshot"])?;
    let seen = launches(&shop.path("files"))? - before;
    ensure!(
        (second..=second + 2 * rest).contains(&seen) && before <= first + rest,
        "{before} of {first}, {seen} of {second} launches"
    );
    // As many as it can: their probes alone take a third of a CPU.
    let mut storm = run(&["0", "12", "0", "3"])?;
    let said = agent.await_line("recording less to stay within the budget")?;
    let status = agent.status()?;
    let recording = status["recording"].as_array().context("no list")?;
    ensure!(
        recording.iter().all(|what| what != "launches"),
        "{status}\n{said}"
    );
    ensure!(status["frequency_hz"] == 19, "{status}\n{said}");
    calls(&mut storm)?;
    let free = calls(&mut storm)?;
    // Where more may be spent they are recorded again, by another session.
    agent.configure(&lines.replace("1%", "90%"))?;
    agent.signal("HUP")?;
    agent.await_line("configuration reloaded")?;
    let before = launches(&shop.path("files"))?;
    let mut again = run(&["0", "3", "200", "3"])?;
    let probed = calls(&mut again)?;
    let third = calls(&mut again)?;
    agent.end()?;
    let seen = launches(&shop.path("files"))? - before;
    ensure!(
        free > 2 * probed,
        "{free} calls without probes, {probed} with"
    );
    ensure!(
        seen > third && seen <= probed + third,
        "{seen} of {probed} and {third} launches"
    );
    Ok(())
}
