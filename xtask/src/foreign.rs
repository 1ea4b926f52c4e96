//! `cargo xtask foreign`: what reads and analyses runs where the accelerators are, also on machines
//! that are not x86-64, and gives the same results there.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use lexopt::prelude::*;

use crate::counts::{Counts, count};
use crate::install::ensure;
use crate::machine::{MACHINES, Machine, install_compilers};
use crate::packages::Group;
use crate::proc::{cargo, root, run, target_dir};
use crate::test::{Done, Options, nextest, table, timed};

pub(crate) const HELP: &str = "
Builds aiprof without the feature `live` for s390x (big-endian), ppc64le and aarch64, or only for
the machines that you name. It uses Debian's cross compilers, and runs the tests under qemu's user
emulation. Each machine has four suites:

  units      the unit tests of the crates that need no libbpf, and those of outputs
  acelyzer   `aiprof acelyzer` writes what acelyzer writes
  kineto     traces of PyTorch
  reports    reports of a capture equal those of this machine's aiprof, byte for byte

A suite that fails, or a machine that aiprof does not build for, keeps no other from running. The
table at the end has all of them. It takes about an hour on two CPUs and needs no root. rustup adds
the targets to the toolchain. The builds are in target/foreign (about 2 GB for each machine).
";

/// Crates whose unit tests are run.
const CRATES: [&str; 10] = [
    "aiprof-common",
    "aiprof-fleet",
    "aiprof-system",
    "aiprof-model",
    "aiprof-symbols",
    "aiprof-record",
    "aiprof-trace",
    "aiprof-tables",
    "aiprof-formats",
    "aiprof",
];

/// Tests of how long something takes, which emulation takes ten times as long for.
const TIMED: [&str; 1] = ["a_hundred_thousand_instructions_take_seconds"];

/// The end-to-end tests that are run with another machine's aiprof.
const ACELYZER: &str = "test(/^files::analyze_parity::/)";
const KINETO: &str = "test(/^files::kineto_traces::/)";

/// Programs that need no shared libraries. With them, qemu would look for all files in the folder
/// of that machine's libc first: also for the root directory.
const STATIC: &str = "-C target-feature=+crt-static";

/// A capture whose bytes never change.
const CAPTURE: &str = "profiler/crates/record/tests/data/capture/v3.aiprof";

/// The extensions of what reports of it are written to.
const REPORTS: [&str; 7] = ["folded", "svg", "pb.gz", "json", "pftrace", "html", "txt"];

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    Ok(test_on(&parse(args)?)?.report())
}

/// The machines that a command line names; all if none.
fn parse(args: Vec<String>) -> Result<Vec<&'static Machine>> {
    let mut args = lexopt::Parser::from_args(args);
    let mut machines = Vec::new();
    while let Some(arg) = args.next()? {
        match arg {
            Value(name) => machines.push(Machine::of(&name.string()?)?),
            _ => return Err(arg.unexpected().into()),
        }
    }
    Ok(match machines.is_empty() {
        true => MACHINES.iter().collect(),
        false => machines,
    })
}

/// Builds and tests for all machines; counts the tests.
pub(crate) fn test() -> Result<Counts> {
    test_on(&MACHINES.each_ref())
}

fn test_on(machines: &[&Machine]) -> Result<Counts> {
    ensure(&[Group::Build])?;
    install_compilers(machines)?;
    let ours = aiprof_of_this_machine()?;
    let done = machines.iter().flat_map(|machine| suites(machine, &ours));
    Ok(table(&done.collect::<Vec<_>>()))
}

/// Builds for a machine and runs its suites, each whether or not those before it passed.
fn suites(machine: &Machine, ours: &Path) -> Vec<Done> {
    let of = |suite: &str, run: &dyn Fn() -> Result<Counts>| {
        let mut done = timed(&format!("{} {suite}", machine.name), run);
        done.counts.prefix(machine.name);
        done
    };
    let built = of("build", &|| {
        build(machine)?;
        let mut counts = Counts::default();
        counts.pass();
        Ok(counts)
    });
    if built.counts.failed > 0 {
        return vec![built];
    }
    vec![
        built,
        of("units", &|| units(machine)),
        of("acelyzer", &|| end_to_end(ACELYZER, &script(machine)?)),
        of("kineto", &|| end_to_end(KINETO, &script(machine)?)),
        of("reports", &|| compare_reports(ours, &script(machine)?)),
    ]
}

fn folder() -> PathBuf {
    target_dir().join("foreign")
}

/// Has cargo build below [`folder`], without what debuggers and later compilations need, which
/// takes most of the space.
fn lean(mut command: Command) -> Command {
    command.arg("--target-dir").arg(folder());
    command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    command.env("CARGO_INCREMENTAL", "0");
    command
}

/// The aiprof whose reports are compared with.
fn aiprof_of_this_machine() -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--locked", "-p", "aiprof", "--no-default-features"]);
    run(&mut lean(command))?;
    Ok(folder().join("debug/aiprof"))
}

/// The unit tests of a machine. The tests of outputs are a program of their own, with which cargo
/// builds aiprof: everything is built at once, with the same features.
fn unit_tests(machine: &Machine) -> Command {
    let mut command = lean(machine.cargo("test"));
    command
        .env(machine.variable("LINKER"), machine.compiler())
        .env(machine.variable("RUNNER"), machine.emulator())
        .env(machine.variable("RUSTFLAGS"), STATIC);
    for name in CRATES {
        command.args(["-p", name]);
    }
    command.args(["--no-default-features", "--no-fail-fast"]);
    command.args(["--lib", "--test", "export"]);
    command
}

fn units(machine: &Machine) -> Result<Counts> {
    let mut command = unit_tests(machine);
    command.arg("--");
    for name in TIMED {
        command.args(["--skip", name]);
    }
    count("units", &mut command)
}

fn build(machine: &Machine) -> Result<()> {
    machine.add_target()?;
    run(unit_tests(machine).arg("--no-run"))
}

/// Writes a script that starts a machine's aiprof.
fn script(machine: &Machine) -> Result<PathBuf> {
    let program = folder().join(machine.target).join("debug/aiprof");
    let script = folder().join(format!("aiprof-{}", machine.name));
    let (emulator, program) = (machine.emulator(), program.display());
    let text = format!("#!/bin/sh\nexec {emulator} {program} \"$@\"\n");
    std::fs::write(&script, text).with_context(|| script.display().to_string())?;
    run(Command::new("chmod").arg("+x").arg(&script))?;
    Ok(script)
}

/// Tests of this machine that run another's aiprof.
fn end_to_end(tests: &str, aiprof: &Path) -> Result<Counts> {
    let options = Options {
        profile: Some("slow"),
        package: Some("aiprof-tests"),
        binary: Some(aiprof.to_owned()),
        ..Options::default()
    };
    nextest(tests, &options)
}

/// Whether reports of the capture are those that the aiprof of this machine makes.
fn compare_reports(ours: &Path, theirs: &Path) -> Result<Counts> {
    let mut counts = Counts::default();
    for extension in REPORTS {
        match report(ours, extension)? == report(theirs, extension)? {
            true => counts.pass(),
            false => counts.fail(format!("a report as {extension} differs")),
        }
    }
    Ok(counts)
}

/// What an aiprof makes of the capture.
fn report(aiprof: &Path, extension: &str) -> Result<Vec<u8>> {
    let name = aiprof.file_name().context("a program without a name")?;
    let out = folder().join(name).with_extension(extension);
    let mut command = Command::new(aiprof);
    command.current_dir(root()).args(["report", CAPTURE, "-o"]);
    run(command.arg(&out))?;
    std::fs::read(&out).with_context(|| out.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Result<Vec<&'static str>> {
        let args = line.split_whitespace().map(str::to_owned).collect();
        Ok(parse(args)?.iter().map(|machine| machine.name).collect())
    }

    #[test]
    fn all_machines_are_tested_unless_some_are_named() {
        assert_eq!(names("").unwrap(), ["s390x", "ppc64le", "aarch64"]);
        assert_eq!(names("arm64 s390x").unwrap(), ["aarch64", "s390x"]);
        assert!(names("sparc").is_err() && names("--all").is_err());
    }

    /// Each crate of the product is tested, or cannot be: it needs libbpf, or is part of live.
    #[test]
    fn every_crate_without_libbpf_is_tested() {
        let folders = std::fs::read_dir(root().join("profiler/crates")).unwrap();
        for folder in folders.flatten() {
            let name = format!("aiprof-{}", folder.file_name().display());
            let is_left_out = ["aiprof-live", "aiprof-inject", "aiprof-testkit"].contains(&&*name);
            assert_ne!(CRATES.contains(&&*name), is_left_out, "{name}");
        }
    }
}
