//! `cargo xtask test`: everything that can be tested on this machine.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lexopt::prelude::*;

use crate::counts::{Counts, Reader};
use crate::fuzz;
use crate::install::{ensure, try_ensure};
use crate::packages::Group;
use crate::proc::{cargo, display, find_program, is_root, root, run, target_dir};

pub(crate) const HELP: &str = "
Installs what the tests need (as root on Debian; else prints the command), then
runs the unit and golden tests, the end-to-end tests against the release build,
and a few seconds of each fuzz target. FILTER selects tests by name, as for
`cargo test`; `fuzz` selects the fuzz targets.

The end-to-end tests profile real programs and need root: run it as root, or
let it ask sudo for the test programs alone. A test that cannot run prints
`skipped: NAME: REASON` and counts as skipped, never as passed. The last line is
`N passed, N failed, N skipped`; the exit status is 0 when nothing failed.

Kernels other than this one: `cargo xtask vm-test`.
";

/// Suites of the `tests` crate that only read files: nothing is profiled and no time
/// is judged, so their tests may run at once.
const TOGETHER: &[&str] = &[
    "analyze_bad_input",
    "analyze_parity",
    "analyze_truth",
    "house",
    "hta",
    "kineto_traces",
    "torch_tables",
    "unsafe_inventory",
];

/// How long each fuzz target runs here.
const FUZZ_SECONDS: u64 = 5;

/// One part of the run, for the table.
struct Phase {
    name: &'static str,
    counts: Counts,
    took: Duration,
}

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let mut args = lexopt::Parser::from_args(args);
    let mut filter = None;
    while let Some(arg) = args.next()? {
        match arg {
            Value(text) if filter.is_none() => filter = Some(text.string()?),
            _ => return Err(arg.unexpected().into()),
        }
    }
    ensure(&[Group::Build])?;
    let equipped = try_ensure(&[Group::Test])?;
    if !equipped {
        eprintln!("xtask: going on; tests that need them will be skipped");
    }
    mount_tracefs();
    let mut phases = vec![phase("unit", || unit(filter.as_deref()))?];
    phases.push(phase("end to end", || end_to_end(filter.as_deref()))?);
    if filter.as_deref().is_none_or(|f| f.contains("fuzz")) {
        phases.push(phase("fuzz", || fuzz::smoke(FUZZ_SECONDS))?);
    }
    refuse_nothing(&mut phases, filter.as_deref());
    Ok(report(phases))
}

fn phase(name: &'static str, work: impl FnOnce() -> Result<Counts>) -> Result<Phase> {
    let start = Instant::now();
    let counts = work()?;
    Ok(Phase {
        name,
        counts,
        took: start.elapsed(),
    })
}

/// A run in which nothing ran says nothing: that is a failure, by phase when
/// everything was asked for, else in all.
fn refuse_nothing(phases: &mut [Phase], filter: Option<&str>) {
    let nothing = |phase: &&mut Phase| phase.counts.is_empty();
    match filter {
        None => phases.iter_mut().filter(nothing).for_each(|phase| {
            phase.counts.fail(format!("{}: no test ran", phase.name));
        }),
        Some(filter) => {
            if phases.iter().all(|phase| phase.counts.is_empty()) {
                phases[0].counts.fail(format!("no test matches {filter:?}"));
            }
        }
    }
}

/// Some tests set probes through tracefs, which containers leave unmounted.
fn mount_tracefs() {
    let at = "/sys/kernel/tracing";
    if !is_root() || Path::new(at).join("events").is_dir() {
        return;
    }
    if let Err(error) = run(Command::new("mount").args(["-t", "tracefs", "tracefs", at])) {
        eprintln!("xtask: {error:#}; tests that need it will be skipped");
    }
}

/// Everything but the end-to-end crate; needs no root.
fn unit(filter: Option<&str>) -> Result<Counts> {
    let mut command = cargo();
    command.args([
        "test",
        "--workspace",
        "--exclude",
        "aiprof-tests",
        "--no-fail-fast",
    ]);
    count(
        "unit tests",
        command.arg("--").args(["--show-output"]).args(filter),
    )
}

/// The `tests` crate against the release build, as root where that can be had.
fn end_to_end(filter: Option<&str>) -> Result<Counts> {
    if let Err(error) = run(cargo().args(["build", "--release", "--package", "aiprof"])) {
        let mut counts = Counts::default();
        counts.fail(format!("end-to-end tests: {error:#}"));
        return Ok(counts);
    }
    let tests = |which: &[String], threads: Option<&str>| {
        let mut command = cargo();
        command.args(["test", "--package", "aiprof-tests", "--no-fail-fast"]);
        command.args(which);
        command.env("AIPROF_BIN", target_dir().join("release/aiprof"));
        // The tests of aiprof-send have built it. By itself it would be built once more, with
        // other features of what it depends on.
        let sender = target_dir().join("debug/aiprof-send");
        if sender.is_file() {
            command.env("AIPROF_SEND", sender);
        }
        if let Some((name, runner)) = runner() {
            command.env(name, runner);
        }
        command.args(["--", "--show-output", "--include-ignored"]);
        command.args(threads).args(filter);
        count("end-to-end tests", &mut command)
    };
    // One at a time: they profile the whole machine, and each other.
    let one = Some("--test-threads=1");
    let mut counts = tests(&["--doc".into()], one)?;
    let (together, alone): (Vec<_>, Vec<_>) = suites()?
        .into_iter()
        .partition(|suite| TOGETHER.contains(&suite.as_str()));
    let chosen = |suites: Vec<String>| suites.into_iter().flat_map(|s| ["--test".into(), s]);
    counts.add(tests(&chosen(together).collect::<Vec<_>>(), None)?);
    let own = ["--lib".into(), "--bins".into()].into_iter();
    counts.add(tests(&own.chain(chosen(alone)).collect::<Vec<_>>(), one)?);
    Ok(counts)
}

/// The names of the suites in tests/tests, in order.
fn suites() -> Result<Vec<String>> {
    let folder = root().join("tests/tests");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").is_file() {
            names.extend(path.file_stem().map(|s| s.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// Has cargo start test programs through sudo, so that only they are root and
/// nothing in the target folder becomes root's. None when root already, or when
/// sudo would have to ask and nobody is there to answer.
fn runner() -> Option<(String, OsString)> {
    if is_root() || find_program("sudo").is_none() {
        return None;
    }
    let unasked = Command::new("sudo").args(["-n", "true"]).output();
    if !unasked.is_ok_and(|out| out.status.success()) && !std::io::stdin().is_terminal() {
        return None;
    }
    let triple = fuzz::host_triple().ok()?.to_uppercase().replace('-', "_");
    let path = std::env::var("PATH").unwrap_or_default();
    // cargo splits the runner at spaces, which PATH may not contain then.
    let path = if path.contains(' ') {
        String::new()
    } else {
        format!(" env PATH={path}")
    };
    Some((
        format!("CARGO_TARGET_{triple}_RUNNER"),
        format!("sudo -E{path}").into(),
    ))
}

/// Runs `cargo test`, shows its output as it comes, and counts.
fn count(what: &str, command: &mut Command) -> Result<Counts> {
    let text = display(command);
    eprintln!("+ {text}");
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {text}"))?;
    let mut reader = Reader::default();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        let mut line = Vec::new();
        // Bytes, not lines of UTF-8: a failing test may print anything.
        while stdout.read_until(b'\n', &mut line)? > 0 {
            let shown = String::from_utf8_lossy(&line);
            if reader.line(&shown) {
                print!("{shown}");
            }
            line.clear();
        }
    }
    let status = child.wait()?;
    Ok(reader.finish(what, status.success()))
}

/// Prints the table, the names, and the total on the last line.
fn report(phases: Vec<Phase>) -> ExitCode {
    println!(
        "\n{:<12} {:>7} {:>7} {:>8} {:>8}",
        "", "passed", "failed", "skipped", "seconds"
    );
    let mut total = Counts::default();
    for Phase { name, counts, took } in phases {
        let Counts {
            passed,
            failed,
            skipped,
            ..
        } = counts;
        println!(
            "{name:<12} {passed:>7} {failed:>7} {skipped:>8} {:>8.1}",
            took.as_secs_f64()
        );
        total.add(counts);
    }
    print!("\n{}", total.details());
    println!("{total}");
    if total.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(first: Counts, second: Counts) -> Vec<Phase> {
        let phase = |name, counts| Phase {
            name,
            counts,
            took: Duration::ZERO,
        };
        vec![phase("unit", first), phase("end to end", second)]
    }

    fn one_passed() -> Counts {
        Counts {
            passed: 1,
            ..Counts::default()
        }
    }

    /// Those that run at once are there, and take no turns: a test that does needs the
    /// machine for itself.
    #[test]
    fn suites_that_run_at_once_take_no_turns() {
        let suites = suites().unwrap();
        assert!(suites.iter().any(|name| name == "drivers"), "{suites:?}");
        for name in TOGETHER {
            assert!(suites.iter().any(|suite| suite == name), "no {name}");
            let path = root().join(format!("tests/tests/{name}.rs"));
            let text = fs::read_to_string(path).unwrap();
            assert!(!text.contains("turn("), "{name}");
        }
    }

    #[test]
    fn a_phase_without_tests_fails_a_full_run() {
        let mut phases = two(one_passed(), Counts::default());
        refuse_nothing(&mut phases, None);
        assert_eq!(phases[0].counts.failed, 0);
        assert_eq!(phases[1].counts.failures, ["end to end: no test ran"]);
    }

    #[test]
    fn a_filter_must_match_somewhere() {
        let mut phases = two(one_passed(), Counts::default());
        refuse_nothing(&mut phases, Some("chain"));
        assert!(phases.iter().all(|phase| phase.counts.failed == 0));
        let mut phases = two(Counts::default(), Counts::default());
        refuse_nothing(&mut phases, Some("chian"));
        assert_eq!(phases[0].counts.failed, 1);
    }
}
