//! Launches as aiprof counts them, against what the driver and the program wrote
//! down: on the virtual Level Zero driver, and on Intel's real one in its capture
//! mode.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use aiprof_tests::aiprof::{Aiprof, Run, binary};
use aiprof_tests::child::Child;
use aiprof_tests::folded::Folded;
use aiprof_tests::level_zero::driver::{Driver, Exports, Machine, NEEDS};
use aiprof_tests::level_zero::module::Module;
use aiprof_tests::level_zero::program::{Account, build_unwind, build_work};
use aiprof_tests::level_zero::real::{self, Product, Recording};
use aiprof_tests::need::{Need, turn};
use aiprof_tests::truth::{Kind, Truth};
use aiprof_tests::workload::Workshop;

/// What these tests need besides a driver.
fn needs(others: &[Need]) -> Vec<Need> {
    [others, &[Need::Root]].concat()
}

/// Runs aiprof on a program with more of an environment.
fn record(aiprof: Aiprof, environment: &[(String, String)], output: &Path) -> anyhow::Result<Run> {
    let mut command = aiprof
        .option("-o")
        .option(output.as_os_str())
        .to_command()?;
    let done = command.envs(environment.iter().cloned()).output()?;
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    let text = std::fs::read_to_string(output).with_context(|| stderr.clone())?;
    Ok(Run {
        status: done.status,
        stdout: String::from_utf8_lossy(&done.stdout).into_owned(),
        stderr,
        folded: Folded::parse(&text)?,
    })
}

/// Launches by the name at the end of their stacks.
fn by_kernel(folded: &Folded) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for line in &folded.lines {
        if let Some(kernel) = line.frames.last().and_then(|f| f.strip_suffix("_[G]")) {
            *out.entry(kernel.to_owned()).or_default() += line.value;
        }
    }
    out
}

/// Whether a name is that of a copy, fill or barrier.
fn is_operation(name: &str) -> bool {
    ["Memcpy", "Memset", "Barrier"]
        .iter()
        .any(|operation| name.starts_with(operation))
}

/// Kernels that the virtual device executed.
fn executed(truth: &Truth) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    let kernels = truth.execs.iter().filter(|e| e.kind == Kind::Kernel);
    for kernel in kernels.filter_map(|e| e.kernel.clone()) {
        *out.entry(kernel).or_default() += 1;
    }
    out
}

#[test]
fn launches_are_what_the_driver_wrote_down() -> anyhow::Result<()> {
    let Some(_turn) = turn("launches_are_what_the_driver_wrote_down", &needs(&NEEDS))? else {
        return Ok(());
    };
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let program = build_work()?;
    for mode in [
        &["basic", "rounds=20"][..],
        &["newer", "rounds=5"],
        &["paths", "rounds=2"],
        &["threads", "launches=50"],
        &["fork", "children=4"],
        &["rate", "rate=5000", "seconds=1"],
    ] {
        let shop = Workshop::new()?;
        let truth = shop.path("truth.json");
        let module = Module::usual().write(&shop.path("module.zebin"))?;
        let module = format!("module={}", module.display());
        let mut arguments = mode.to_vec();
        arguments.push(&module);
        let aiprof = Aiprof::with(["--events", "launches"]).command(&program, &arguments);
        let environment = machine.clone().truth(&truth).environment();
        let run = record(aiprof, &environment, &shop.path("out.folded"))?;
        assert!(run.status.success(), "{mode:?}: {}", run.stderr);
        let truth = Truth::read(&truth)?;
        let mut seen = by_kernel(&run.folded);
        seen.retain(|name, _| !is_operation(name));
        assert_eq!(seen, executed(&truth), "{mode:?}: {}", run.stderr);
        let kernels = run.folded.filter(|line| {
            let last = line.frames.last().map_or("", String::as_str);
            last.ends_with("_[G]") && !is_operation(last)
        });
        let whole = kernels.filter(|line| {
            let first = line.frames.first().map_or("", String::as_str);
            ["_start", "__clone3", "clone3", "__clone"].contains(&first)
        });
        assert!(
            whole.total() * 100 >= kernels.total() * 99,
            "{mode:?}: {} of {} stacks whole: {}",
            whole.total(),
            kernels.total(),
            run.folded.excerpt(5)
        );
    }
    Ok(())
}

/// Starts a program that waits, then aiprof, then lets the program go on.
fn record_late(command: &mut Command, output: &Path) -> anyhow::Result<(Account, Folded, String)> {
    let piped = |command: &mut Command| -> anyhow::Result<Child> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Child::start(command.stderr(Stdio::piped()))
    };
    let mut program = piped(command)?;
    anyhow::ensure!(program.read_line()?.contains("ready"), "not ready");
    let pid = program.pid().to_string();
    let mut aiprof = Command::new(binary()?);
    aiprof.args(["--events", "launches", "-p", &pid, "-o"]);
    let mut aiprof = piped(aiprof.arg(output))?;
    // Attaching takes well below a second.
    std::thread::sleep(Duration::from_secs(5));
    program.write_line("go")?;
    let account = Account::read(&program.output()?)?.remove(0);
    let status = aiprof.wait(Duration::from_secs(60))?;
    let stderr = aiprof.stderr()?;
    anyhow::ensure!(status.success(), "{status}: {stderr}");
    let folded = Folded::parse(&std::fs::read_to_string(output)?)?;
    Ok((account, folded, stderr))
}

/// All launches are there, at least 95 % have their names, and no name is wrong.
fn check_late(account: &Account, folded: &Folded, stderr: &str) {
    let seen = by_kernel(folded);
    assert_eq!(seen.values().sum::<u64>(), account.total(), "{stderr}");
    let named: u64 = seen
        .iter()
        .filter(|(name, _)| !name.starts_with("[kernel created before attach"))
        .map(|(_, n)| n)
        .sum();
    assert!(named * 100 >= account.total() * 95, "{seen:?}: {stderr}");
    for (name, n) in seen.iter().filter(|(name, _)| !name.starts_with('[')) {
        let right = account.launches.get(name).copied().unwrap_or(0);
        assert!(*n <= right, "{name}: {n} of {right}");
    }
}

#[test]
fn kernels_of_a_running_program_on_the_real_driver_have_their_names() -> anyhow::Result<()> {
    let name = "kernels_of_a_running_program_on_the_real_driver_have_their_names";
    let Some(_turn) = turn(name, &needs(&real::NEEDS))? else {
        return Ok(());
    };
    let program = build_work()?;
    for product in [Product::Skl, Product::Pvc] {
        let shop = Workshop::new()?;
        let module = real::compile(&shop, product)?;
        let mut command = real::command(&program, product, Recording::Full, &shop.path(""));
        command.args(["late", "real=1", "launches=400"]);
        command.arg(format!("module={}", module.display()));
        let (account, folded, stderr) = record_late(&mut command, &shop.path("out.folded"))?;
        check_late(&account, &folded, &stderr);
    }
    Ok(())
}

#[test]
fn the_real_driver_counts_the_same() -> anyhow::Result<()> {
    let Some(_turn) = turn("the_real_driver_counts_the_same", &needs(&real::NEEDS))? else {
        return Ok(());
    };
    let program = build_work()?;
    let shop = Workshop::new()?;
    let module = real::compile(&shop, Product::Skl)?;
    let module = format!("module={}", module.display());
    let mode = ["rate", "real=1", "rate=500", "seconds=3", &module];
    let aiprof = Aiprof::with(["--events", "launches"]).command(&program, &mode);
    let environment = real::environment(Product::Skl, Recording::Off);
    let run = record(aiprof, &environment, &shop.path("out.folded"))?;
    assert!(run.status.success(), "{}", run.stderr);
    let account = &Account::read(&run.stdout)?[0];
    check_late(account, &run.folded, &run.stderr);
    Ok(())
}

#[test]
fn programs_leave_probed_calls_as_ever() -> anyhow::Result<()> {
    let Some(_turn) = turn("programs_leave_probed_calls_as_ever", &needs(&NEEDS))? else {
        return Ok(());
    };
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let program = build_unwind()?;
    for action in ["throw", "longjmp", "backtrace", "cancel", "return"] {
        let shop = Workshop::new()?;
        let module = Module::usual().write(&shop.path("module.zebin"))?;
        let what = format!("what={action}");
        let module = format!("module={}", module.display());
        let arguments = [what.as_str(), "rounds=3", &module];
        // As exact as can be: every exit is probed.
        for events in ["launches", "time-in-call"] {
            let truth = shop.path(&format!("{events}.json"));
            let machine = machine.clone().truth(&truth);
            let plain = machine.command(&program).args(arguments).output()?;
            let expected = Account::read(&String::from_utf8_lossy(&plain.stdout))?;
            std::fs::remove_file(&truth)?;
            let aiprof = Aiprof::with(["--events", events]).command(&program, &arguments);
            let output = shop.path("out.folded");
            let run = record(aiprof, &machine.environment(), &output)?;
            assert_eq!(run.status.code(), plain.status.code(), "{}", run.stderr);
            let got = Account::read(&run.stdout)?;
            assert_eq!(got[0].calls, expected[0].calls, "{action}");
            assert_eq!(got[0].launches, expected[0].launches, "{action}");
            let hooked = Truth::read(&truth)?
                .calls
                .iter()
                .filter(|c| c.hooked == 1)
                .count();
            assert_eq!(
                hooked as u64,
                got[0].calls.values().sum::<u64>(),
                "{action}"
            );
        }
    }
    Ok(())
}
