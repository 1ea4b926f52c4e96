//! Kernels of Intel's real driver (in its capture mode) that aiprof did not see
//! from the beginning: created before it started, or in programs that end at once.

use std::collections::BTreeMap;
use std::io::{BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::binary;
use aiprof_tests::child::LONG;
use aiprof_tests::folded::{Folded, base};
use aiprof_tests::level_zero::program::{Account, build_work};
use aiprof_tests::level_zero::real::{self, Product, Recording};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::States;
use aiprof_tests::workload::Workshop;

fn needs() -> Vec<Need> {
    [&real::NEEDS[..], &[Need::Root]].concat()
}

/// Which of the two ends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Program,
    Recording,
}

/// Launches as aiprof counted them in one process, by kernel.
fn launches(output: &Path, pid: u32) -> anyhow::Result<BTreeMap<String, u64>> {
    let text = std::fs::read_to_string(output).with_context(|| output.display().to_string())?;
    let mut sums = BTreeMap::new();
    for line in Folded::parse(&text)?.of_pid(pid).lines {
        if let [.., mark, leaf] = line.frames.as_slice()
            && mark == "-"
        {
            *sums.entry(base(leaf).to_owned()).or_default() += line.value;
        }
    }
    Ok(sums)
}

/// All launches seen, at least 95 % named, none wrongly.
fn judge(found: &BTreeMap<String, u64>, account: &Account, what: &str) {
    let seen: u64 = found.values().sum();
    assert_eq!(seen, account.total(), "{what}: {found:?}");
    let (unnamed, named): (BTreeMap<_, _>, BTreeMap<_, _>) = found
        .iter()
        .partition(|(name, _)| name.starts_with("[kernel"));
    for (name, n) in &named {
        let truth = account.launches.get(*name).copied().unwrap_or(0);
        assert!(
            **n <= truth,
            "{what}: {name} {n} times, not {truth}: {found:?}"
        );
    }
    let named: u64 = named.values().copied().sum();
    assert!(
        named as f64 >= 0.95 * seen as f64,
        "{what}: {named} of {seen} named; {unnamed:?}"
    );
}

/// Reads lines until one is this.
fn wait_for(line: &str, from: &mut impl std::io::BufRead) -> anyhow::Result<()> {
    let mut got = String::new();
    loop {
        got.clear();
        ensure!(from.read_line(&mut got)? > 0, "no line {line:?}");
        if got.trim_end() == line {
            return Ok(());
        }
    }
}

/// Starts aiprof on a process and waits until it knows its kernels.
fn record(shop: &Workshop, pid: u32, output: &Path) -> anyhow::Result<Child> {
    let (states, output) = (States::new(shop), output.display().to_string());
    let options = ["--events", "launches", "-p", &pid.to_string(), "-o", &output];
    let mut command = states.command(&options, &[])?;
    let aiprof = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
    states.wait_known(pid)?;
    Ok(aiprof)
}

fn interrupt(aiprof: &Child) -> anyhow::Result<()> {
    let done = Command::new("kill")
        .args(["-INT", &aiprof.id().to_string()])
        .status()?;
    ensure!(done.success(), "kill: {done}");
    Ok(())
}

/// A program that waits before it launches.
#[derive(Debug)]
struct Case {
    product: Product,
    recording: Recording,
    mode: &'static [&'static str],
    first: First,
}

/// Runs cases at once, each with a recording of its own process: most of the time
/// their programs wait.
fn at_once(cases: &[Case], check: fn(&Case) -> anyhow::Result<()>) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let started: Vec<_> = cases
            .iter()
            .map(|case| scope.spawn(move || check(case).with_context(|| format!("{case:?}"))))
            .collect();
        for thread in started {
            match thread.join() {
                Ok(result) => result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    })
}

/// Runs a mode of `ze_work` that waits, starts aiprof, and lets it go on when aiprof
/// knows it.
fn started_late(case: &Case) -> anyhow::Result<(BTreeMap<String, u64>, Account)> {
    let &Case {
        product,
        recording,
        mode,
        first,
    } = case;
    let shop = Workshop::new()?;
    let module = real::compile(&shop, product)?;
    let mut command = real::command(&build_work()?, product, recording, &shop.path(""));
    command.args(mode);
    command.arg(format!("module={}", module.display()));
    let mut program = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdout = BufReader::new(program.stdout.take().context("stdout")?);
    let mut stdin = program.stdin.take().context("stdin")?;
    wait_for("ready", &mut stdout)?;
    let output = shop.path("out.folded");
    let mut aiprof = record(&shop, program.id(), &output)?;
    writeln!(stdin)?;
    if first == First::Recording {
        wait_for("launched", &mut stdout)?;
        interrupt(&aiprof)?;
        aiprof.wait()?;
    }
    drop(stdin);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest)?;
    ensure!(program.wait()?.success(), "{mode:?} failed: {rest}");
    let begun = Instant::now();
    while aiprof.try_wait()?.is_none() {
        ensure!(begun.elapsed() < LONG, "aiprof outlives the program");
        std::thread::sleep(Duration::from_millis(50));
    }
    let account = Account::read(&rest)?.remove(0);
    Ok((launches(&output, account.pid)?, account))
}

#[test]
fn kernels_older_than_the_recording_are_named() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let mode = &["late", "launches=200", "pause_us=5000"];
    let cases: Vec<_> = [
        (Product::Pvc, Recording::Off),
        (Product::Skl, Recording::Full),
    ]
    .into_iter()
    .flat_map(|(product, recording)| {
        [First::Program, First::Recording].map(|first| Case {
            product,
            recording,
            mode,
            first,
        })
    })
    .collect();
    at_once(&cases, |case| {
        let (found, account) = started_late(case)?;
        judge(&found, &account, &format!("{case:?}"));
        Ok(())
    })
}

#[test]
fn a_handle_used_again_never_has_another_kernels_name() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let mode = &["reuse", "rounds=10"];
    let cases: Vec<_> = [Product::Pvc, Product::Skl]
        .into_iter()
        .flat_map(|product| {
            [First::Program, First::Recording].map(|first| Case {
                product,
                recording: Recording::Off,
                mode,
                first,
            })
        })
        .collect();
    at_once(&cases, |case| {
        let (found, account) = started_late(case)?;
        let same = account.more["same"].as_u64().unwrap_or(0);
        assert!(same > 10, "only {same} handles were used again");
        judge(&found, &account, &format!("{case:?}"));
        Ok(())
    })
}

#[test]
fn a_program_of_a_tenth_of_a_second_has_named_kernels() -> anyhow::Result<()> {
    skip_unless!(&needs());
    for product in [Product::Pvc, Product::Skl] {
        for mode in [
            &["late", "launches=33"][..],
            &["reuse", "rounds=2"],
            &["threads", "threads=4", "launches=5"],
        ] {
            // Several threads are too much for the driver without.
            let recording = match mode[0] {
                "threads" => Recording::Full,
                _ => Recording::Off,
            };
            let shop = Workshop::new()?;
            let module = real::compile(&shop, product)?;
            let output = shop.path("out.folded");
            let mut command = real::command(&binary()?, product, recording, &shop.path(""));
            command.args(["--only", "--events", "launches", "-o"]).arg(&output);
            command.arg("--").arg(build_work()?).args(mode);
            command.arg(format!("module={}", module.display()));
            let done = command.stdin(Stdio::null()).output()?;
            let stderr = String::from_utf8_lossy(&done.stderr);
            ensure!(done.status.success(), "{}: {stderr}", done.status);
            let account = Account::read(&String::from_utf8_lossy(&done.stdout))?.remove(0);
            let found = launches(&output, account.pid)?;
            judge(&found, &account, &format!("{product:?} {mode:?}"));
        }
    }
    Ok(())
}
