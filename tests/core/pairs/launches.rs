//! Launches as aiprof counts them, against the virtual driver's truth file.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use anyhow::Context as _;
use serde_json::Value;

use aiprof_tests::aiprof::{binary, lost};
use aiprof_tests::child::{Child, LONG};
use aiprof_tests::folded::{Folded, Line, base};
use aiprof_tests::level_zero::driver::{Driver, Exports, LOADER, Machine};
use aiprof_tests::level_zero::module::Module;
use aiprof_tests::level_zero::program::{Account, build_work};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::States;
use aiprof_tests::truth::{Kind, Truth};
use aiprof_tests::workload::Workshop;

const NEEDS: [Need; 4] = [
    Need::Root,
    Need::Tool("c++"),
    Need::Path("/usr/include/level_zero/ze_api.h"),
    Need::Path(LOADER),
];

/// A recorded run of `ze_work`.
struct Run {
    shop: Workshop,
    truth: Truth,
    accounts: Vec<Account>,
    stderr: String,
    output: PathBuf,
}

/// Records `ze_work MODE` with these options into a file of this name.
fn record(options: &[&str], file: &str, mode: &[&str]) -> anyhow::Result<Run> {
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?).truth(&shop.path("truth.json"));
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let output = shop.path(file);
    let mut command = machine.command(&binary()?);
    command.arg("--only").args(options).arg("-o").arg(&output).arg("--");
    command.arg(build_work()?).arg(mode[0]);
    command.arg(format!("module={}", module.display()));
    let done = command.args(&mode[1..]).output()?;
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    anyhow::ensure!(done.status.success(), "{}: {stderr}", done.status);
    Ok(Run {
        truth: Truth::read(&shop.path("truth.json"))?,
        accounts: Account::read(&String::from_utf8_lossy(&done.stdout))?,
        shop,
        stderr,
        output,
    })
}

/// A file of a run, without what other programs launched meanwhile.
fn read(path: &Path, run: &Run) -> anyhow::Result<Folded> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let own = |line: &Line| run.accounts.iter().any(|account| account.pid == line.pid);
    Ok(Folded::parse(&text)?.filter(own))
}

/// The kernel or operation at a line's leaf, if it has one.
fn work(line: &Line) -> Option<&str> {
    let [.., mark, leaf] = line.frames.as_slice() else {
        return None;
    };
    (mark == "-").then(|| base(leaf))
}

/// The function that the program called.
fn function(line: &Line) -> &str {
    let above = if work(line).is_some() { 3 } else { 1 };
    let at = line.frames.len().checked_sub(above);
    at.map_or("", |at| base(&line.frames[at]))
}

/// Values by kernel or operation.
fn by_work(folded: &Folded) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for line in &folded.lines {
        if let Some(work) = work(line) {
            *sums.entry(work.to_owned()).or_default() += line.value;
        }
    }
    sums
}

/// What the device executed, by kernel.
fn executed(truth: &Truth) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for exec in truth.execs.iter().filter(|e| e.kind == Kind::Kernel) {
        let name = exec.kernel.clone().unwrap_or_default();
        *sums.entry(name).or_default() += 1;
    }
    sums
}

/// Those of the sums that are kernels of the module.
fn kernels(sums: &BTreeMap<String, u64>, truth: &Truth) -> BTreeMap<String, u64> {
    let known = executed(truth);
    let kernels = sums.iter().filter(|(name, _)| known.contains_key(*name));
    kernels.map(|(name, n)| (name.clone(), *n)).collect()
}

#[test]
fn every_execution_is_counted_with_its_kernel() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for mode in [
        &["basic", "rounds=20"][..],
        &["newer", "rounds=5"],
        &["threads", "threads=4", "launches=200"],
        &["fork", "children=3", "launches=50"],
    ] {
        let run = record(&["--events", "launches"], "out.folded", mode)?;
        let found = by_work(&read(&run.output, &run)?);
        let expected = executed(&run.truth);
        assert_eq!(
            kernels(&found, &run.truth),
            expected,
            "{mode:?} {}",
            run.stderr
        );
        let unnamed = found.keys().find(|name| name.starts_with("[kernel"));
        assert_eq!(unnamed, None, "{mode:?}: {found:?}");
        let of_kind = |kind: Kind| run.truth.execs.iter().filter(|e| e.kind == kind).count();
        let named = |prefix: &str| {
            let those = found.iter().filter(|(name, _)| name.starts_with(prefix));
            those.map(|(_, n)| *n).sum::<u64>()
        };
        assert_eq!(
            named("Memcpy"),
            of_kind(Kind::Copy) as u64,
            "{mode:?} {found:?}"
        );
        assert_eq!(
            named("Memset"),
            of_kind(Kind::Fill) as u64,
            "{mode:?} {found:?}"
        );
        for cause in ["call", "list", "launch", "handle"] {
            assert_eq!(lost(&run.stderr, cause), 0, "{cause}: {}", run.stderr);
        }
    }
    Ok(())
}

#[test]
fn a_capture_has_launches_bytes_and_time() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let options = ["--events", "time-in-call"];
    let run = record(&options, "x.aiprof", &["basic", "rounds=20"])?;
    let report = |events: &str| -> anyhow::Result<Folded> {
        let out = run.shop.path(&format!("{events}.folded"));
        let mut command = Command::new(binary()?);
        command
            .arg("report")
            .arg(&run.output)
            .args(["--events", events]);
        let done = command.arg("-o").arg(&out).output()?;
        let stderr = String::from_utf8_lossy(&done.stderr);
        anyhow::ensure!(done.status.success(), "{}: {stderr}", done.status);
        read(&out, &run)
    };
    let launches = by_work(&report("launches")?);
    assert_eq!(kernels(&launches, &run.truth), executed(&run.truth));
    let moved = |folded: &Folded| by_work(folded).values().sum::<u64>();
    let expected: u64 = run.truth.execs.iter().map(|e| e.bytes).sum();
    assert_eq!(moved(&report("bytes")?), expected);
    // The driver's clock in the truth file begins later, and ends earlier, than what is
    // seen at the loader; the program's own clock begins earlier and ends later. Whoever
    // runs in between is in the one and not in the other.
    let mut inside = BTreeMap::new();
    for call in &run.truth.calls {
        *inside.entry(call.function.as_str()).or_insert(0_u64) += call.t1 - call.t0;
    }
    let time = report("time-in-call")?;
    for name in ["zeCommandQueueSynchronize", "zeFenceHostSynchronize"] {
        let lines = time.lines.iter().filter(|line| function(line) == name);
        let found = lines.clone().map(|line| line.value).sum::<u64>() as f64;
        // Each line is rounded to microseconds.
        let rounded = lines.count() as f64;
        let truth = inside.get(name).copied().unwrap_or(0) as f64 / 1000.0;
        assert!(truth > 0.0, "{name} is not called");
        assert!(found >= truth - rounded, "{name}: {found} us of {truth} us");
        let outside = run.accounts[0].more.get(name).and_then(Value::as_f64);
        let outside = outside.context("the program tells no time")? / 1000.0;
        assert!(
            found <= outside + rounded,
            "{name}: {found} us, the program waited {outside} us"
        );
    }
    Ok(())
}

#[test]
fn the_call_path_of_every_launch_is_the_programs() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let run = record(
        &["--events", "launches"],
        "out.folded",
        &["paths", "rounds=40"],
    )?;
    let folded = read(&run.output, &run)?;
    let lines: Vec<&Line> = folded.lines.iter().filter(|l| work(l).is_some()).collect();
    let total: u64 = run.accounts.iter().map(Account::total).sum();
    let launches = lines
        .iter()
        .filter(|l| function(l).contains("AppendLaunch"));
    let whole = launches.clone().filter(|l| !l.is_cut() && l.has("main"));
    let sum = |lines: &mut dyn Iterator<Item = &&Line>| lines.map(|l| l.value).sum::<u64>();
    assert_eq!(sum(&mut launches.clone()), total, "{}", run.stderr);
    let whole = sum(&mut whole.clone());
    assert!(
        whole as f64 >= 0.99 * total as f64,
        "{whole} of {total}\n{}",
        folded.excerpt(12)
    );
    Ok(())
}

#[test]
fn programs_say_what_is_collected() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let sums = |options: &[&str]| -> anyhow::Result<(u64, u64)> {
        let run = record(options, "out.folded", &["paused"])?;
        assert_eq!(run.accounts[0].total(), 53);
        assert_eq!(
            run.truth
                .execs
                .iter()
                .filter(|e| e.kind == Kind::Kernel)
                .count(),
            53
        );
        let found = by_work(&read(&run.output, &run)?);
        let unnamed = found.keys().find(|name| name.starts_with("[kernel"));
        assert_eq!(unnamed, None, "{found:?}");
        let launches = kernels(&found, &run.truth).values().sum();
        Ok((launches, lost(&run.stderr, "paused by their program")))
    };
    let events = ["--events", "launches"];
    assert_eq!(sums(&events)?, (53, 0));
    let (launches, paused) = sums(&[&events[..], &["--conditional-collection"]].concat())?;
    assert_eq!(launches, 7 + 13);
    // The launches, seen at the loader and perhaps in the driver.
    assert!(paused >= 5 + 11 + 17, "{paused}");
    Ok(())
}

/// A program that starts only when the test lets it, under a pid that is known before.
struct Later(process::Child);

impl Later {
    fn new(machine: &Machine, program: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let mut command = machine.command(Path::new("sh"));
        command.args(["-c", "read go; exec \"$0\" \"$@\""]);
        command.arg(program).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Self(command.spawn()?))
    }

    fn go(&mut self) -> anyhow::Result<()> {
        self.0.stdin.as_mut().context("stdin")?.write_all(b"go\n")?;
        Ok(())
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What others call uses up no limit and no room: of the chosen process, and of its
/// children from their first call on, nothing is lost.
#[test]
fn only_what_is_chosen_is_recorded() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let driver = Driver::build(Exports::All)?;
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let module = format!("module={}", module.display());
    let program = build_work()?;
    let noisy = ["threads", &module, "threads=2", "launches=100000000"];
    let mut noise = Later::new(&Machine::new(&driver), &program, &noisy)?;
    noise.go()?;
    for mode in [
        &["threads", "threads=2", "launches=500"][..],
        &["fork", "children=5", "launches=20"],
    ] {
        let truth = shop.path(&format!("{}.json", mode[0]));
        let machine = Machine::new(&driver).truth(&truth);
        let arguments = [&mode[..1], &[module.as_str()], &mode[1..]].concat();
        let mut chosen = Later::new(&machine, &program, &arguments)?;
        let output = shop.path("out.folded");
        let pid = chosen.0.id().to_string();
        let states = States::new(&shop);
        let out = output.display().to_string();
        let options = ["--events", "launches", "-p", &pid, "-o", &out];
        let mut aiprof = Child::start(&mut states.command(&options, &[])?)?;
        states.wait_known(chosen.0.id())?;
        chosen.go()?;
        // It ends with the process.
        let said = aiprof.stderr()?;
        anyhow::ensure!(aiprof.wait(LONG)?.success(), "{said}");
        let mut accounts = String::new();
        let stdout = chosen.0.stdout.as_mut().context("stdout")?;
        stdout.read_to_string(&mut accounts)?;
        let run = Run {
            truth: Truth::read(&truth)?,
            accounts: Account::read(&accounts)?,
            shop: Workshop::new()?,
            stderr: said,
            output: output.clone(),
        };
        let all = Folded::parse(&std::fs::read_to_string(&output)?)?;
        let own = read(&output, &run)?;
        assert_eq!(all.total(), own.total(), "others are in it: {mode:?}");
        let found = kernels(&by_work(&own), &run.truth);
        assert_eq!(found, executed(&run.truth), "{mode:?}: {}", run.stderr);
        assert!(!run.stderr.contains("dropped"), "{mode:?}: {}", run.stderr);
    }
    assert!(
        noise.0.try_wait()?.is_none(),
        "the noise was over too early"
    );
    Ok(())
}

#[test]
fn kernels_are_chosen_by_their_names() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mode = ["basic", "rounds=20"];
    let run = record(&["--events", "launches"], "out.aiprof", &mode)?;
    let all = executed(&run.truth);
    let (name, count) = all.iter().next().context("no kernel")?;
    let quoted = format!("\"{name}\",no such kernel");
    let wants = |other: &str, is_included: bool| other.contains(name) == is_included;
    for (option, is_included) in [("--include-kernels", true), ("--exclude-kernels", false)] {
        let expected: BTreeMap<String, u64> = all
            .iter()
            .filter(|(other, _)| wants(other, is_included))
            .map(|(other, n)| (other.clone(), *n))
            .collect();
        let file = run.shop.path("report.folded");
        let report = Command::new(binary()?)
            .args(["report", "--events", "launches", option, &quoted, "-o"])
            .args([&file, &run.output])
            .output()?;
        let said = String::from_utf8_lossy(&report.stderr).into_owned();
        let found = by_work(&read(&file, &run)?);
        assert_eq!(kernels(&found, &run.truth), expected, "{option}: {said}");
        // Copies go by their names, too.
        let has_copies = found.keys().any(|work| work.starts_with("Memcpy"));
        assert_eq!(has_copies, !is_included, "{found:?}");
        anyhow::ensure!(said.contains("left out (--include-kernels"), "{said}");

        let live = record(
            &["--events", "launches", option, &quoted],
            "x.folded",
            &mode,
        )?;
        let found = by_work(&read(&live.output, &live)?);
        assert_eq!(kernels(&found, &live.truth), expected, "{}", live.stderr);
        anyhow::ensure!(live.stderr.contains("left out"), "{}", live.stderr);
        let own = found.get(name).copied().unwrap_or_default();
        assert_eq!(own, if is_included { *count } else { 0 });
    }
    Ok(())
}
