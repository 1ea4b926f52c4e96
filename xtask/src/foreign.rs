//! `cargo xtask foreign`: what reads and analyses runs where the accelerators are, also on machines
//! that are not x86-64, and gives the same results there.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::counts::{Counts, count};
use crate::install::{apt_install, ensure, may_install};
use crate::packages::Group;
use crate::proc::{cargo, find_program, root, run, target_dir};
use crate::test::{self, Options, built, nextest};

pub(crate) const HELP: &str = "
Builds aiprof without the feature `live` for s390x (big-endian), ppc64le and aarch64, with Debian's
cross compilers, and tests it under qemu's user emulation. On each it runs the unit tests of the
crates that need no libbpf, acelyzer's parity cases, and the tests of Kineto traces. Reports of a
capture must equal those that the aiprof of this machine makes, byte for byte. It takes about half
an hour and needs no root. rustup adds the targets to the toolchain, and the builds are in
target/foreign.
";

/// A machine that aiprof is built for.
struct Machine {
    /// Its name at Debian and qemu.
    name: &'static str,
    /// What rustc calls it.
    target: &'static str,
    /// How its compiler's name begins.
    gnu: &'static str,
    /// Debian's packages of its compiler and libc.
    packages: [&'static str; 2],
}

const MACHINES: [Machine; 3] = [
    Machine {
        name: "s390x",
        target: "s390x-unknown-linux-gnu",
        gnu: "s390x-linux-gnu",
        packages: ["gcc-s390x-linux-gnu", "libc6-dev-s390x-cross"],
    },
    Machine {
        name: "ppc64le",
        target: "powerpc64le-unknown-linux-gnu",
        gnu: "powerpc64le-linux-gnu",
        packages: ["gcc-powerpc64le-linux-gnu", "libc6-dev-ppc64el-cross"],
    },
    Machine {
        name: "aarch64",
        target: "aarch64-unknown-linux-gnu",
        gnu: "aarch64-linux-gnu",
        packages: ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
    },
];

/// Crates whose unit tests are run.
const CRATES: [&str; 4] = [
    "aiprof-record",
    "aiprof-trace",
    "aiprof-tables",
    "aiprof-formats",
];

/// Tests of how long something takes, which emulation takes ten times as long for.
const TIMED: [&str; 1] = ["a_hundred_thousand_instructions_take_seconds"];

/// The end-to-end tests that are run with another machine's aiprof.
const END_TO_END: &str = "test(/^files::(analyze_parity|kineto_traces)::/)";

/// Programs that need no shared libraries.
const STATIC: &str = "-C target-feature=+crt-static";

/// A capture whose bytes never change.
const CAPTURE: &str = "profiler/crates/record/tests/data/capture/v3.aiprof";

/// The extensions of what reports of it are written to.
const REPORTS: [&str; 7] = ["folded", "svg", "pb.gz", "json", "pftrace", "html", "txt"];

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let mut args = lexopt::Parser::from_args(args);
    if let Some(arg) = args.next()? {
        bail!(arg.unexpected());
    }
    Ok(test()?.report())
}

/// Builds and tests for all machines; counts the tests.
pub(crate) fn test() -> Result<Counts> {
    ensure(&[Group::Build])?;
    install()?;
    test::build()?;
    let mut counts = Counts::default();
    for machine in &MACHINES {
        run(Command::new("rustup").args(["target", "add", machine.target]))?;
        counts.add(machine.unit_tests()?);
        let aiprof = machine.aiprof()?;
        let options = Options {
            profile: Some("slow"),
            binary: Some(aiprof.clone()),
            ..Options::default()
        };
        counts.add(nextest(END_TO_END, &options)?);
        machine.compare_reports(&aiprof, &mut counts)?;
    }
    Ok(counts)
}

/// Installs the compilers and qemu.
fn install() -> Result<()> {
    let mut missing: Vec<&str> = MACHINES
        .iter()
        .filter(|machine| find_program(&machine.compiler()).is_none())
        .flat_map(|machine| machine.packages)
        .collect();
    if find_program("qemu-s390x").is_none() {
        missing.push("qemu-user");
    }
    if missing.is_empty() {
        return Ok(());
    }
    if !may_install() {
        bail!(
            "packages are missing; as root on Debian: apt-get install {}",
            missing.join(" ")
        );
    }
    apt_install(&missing)
}

impl Machine {
    fn compiler(&self) -> String {
        format!("{}-gcc", self.gnu)
    }

    /// What runs a program of it here.
    fn emulator(&self) -> String {
        format!("qemu-{}", self.name)
    }

    /// Cargo, for this machine.
    fn cargo(&self, subcommand: &str) -> Command {
        let variable = self.target.to_uppercase().replace('-', "_");
        let mut command = cargo();
        command.args([subcommand, "--locked", "--target", self.target]);
        command.arg("--target-dir").arg(folder());
        command
            .env(format!("CARGO_TARGET_{variable}_LINKER"), self.compiler())
            .env(format!("CARGO_TARGET_{variable}_RUNNER"), self.emulator())
            // With shared libraries, qemu would look for all files in the folder of that machine's
            // libc first: also for the root directory.
            .env(format!("CARGO_TARGET_{variable}_RUSTFLAGS"), STATIC);
        command
    }

    fn unit_tests(&self) -> Result<Counts> {
        let mut crates = self.cargo("test");
        crates.arg("--lib");
        for name in CRATES {
            crates.args(["-p", name]);
        }
        let mut aiprof = self.cargo("test");
        aiprof.args([
            "-p",
            "aiprof",
            "--no-default-features",
            "--lib",
            "--test",
            "export",
        ]);
        let mut counts = Counts::default();
        for mut command in [crates, aiprof] {
            command.arg("--");
            for name in TIMED {
                command.args(["--skip", name]);
            }
            counts.add(count(self.name, &mut command)?);
        }
        Ok(counts)
    }

    /// Builds aiprof, and writes a script that starts it.
    fn aiprof(&self) -> Result<PathBuf> {
        let mut command = self.cargo("build");
        command.args(["-p", "aiprof", "--bin", "aiprof", "--no-default-features"]);
        run(&mut command)?;
        let program = folder().join(self.target).join("debug/aiprof");
        let script = folder().join(format!("aiprof-{}", self.name));
        let text = format!(
            "#!/bin/sh\nexec {} {} \"$@\"\n",
            self.emulator(),
            program.display()
        );
        std::fs::write(&script, text).with_context(|| script.display().to_string())?;
        run(Command::new("chmod").arg("+x").arg(&script))?;
        Ok(script)
    }

    /// Whether reports of the capture are those that the aiprof of this machine makes.
    fn compare_reports(&self, aiprof: &Path, counts: &mut Counts) -> Result<()> {
        for extension in REPORTS {
            let ours = report(&built("aiprof"), "host", extension)?;
            let theirs = report(aiprof, self.name, extension)?;
            match ours == theirs {
                true => counts.pass(),
                false => counts.fail(format!("{}: a report as {extension} differs", self.name)),
            }
        }
        Ok(())
    }
}

fn folder() -> PathBuf {
    target_dir().join("foreign")
}

/// What an aiprof makes of the capture.
fn report(aiprof: &Path, name: &str, extension: &str) -> Result<Vec<u8>> {
    let out = folder().join(format!("{name}.{extension}"));
    let mut command = Command::new(aiprof);
    command.current_dir(root()).args(["report", CAPTURE, "-o"]);
    run(command.arg(&out))?;
    std::fs::read(&out).with_context(|| out.display().to_string())
}
