//! `cargo xtask foreign`: what reads and analyses runs where the accelerators are,
//! also on machines that are not x86-64 and count bytes the other way round.

use std::process::{Command, ExitCode};

use anyhow::{Result, bail};

use crate::counts::{Counts, count};
use crate::install::{apt_install, ensure, may_install};
use crate::packages::Group;
use crate::proc::{cargo, find_program, root, run};

pub(crate) const HELP: &str = "
Builds record, trace, tables, formats and the crates that they use for s390x, with Debian's cross
compiler, and runs the unit tests of these two under qemu's user emulation. These
crates need neither libbpf nor root. It takes about ten minutes. rustup adds the target
to the toolchain, and the build is in target/foreign.
";

/// The machine that IBM's accelerators are in; big-endian.
const TARGET: &str = "s390x-unknown-linux-gnu";

/// Debian's cross compiler with that machine's libc, and what runs its programs: the
/// package, and a program of it.
const PACKAGES: [(&str, &str); 3] = [
    ("gcc-s390x-linux-gnu", "s390x-linux-gnu-gcc"),
    ("libc6-dev-s390x-cross", "s390x-linux-gnu-gcc"),
    ("qemu-user", "qemu-s390x"),
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

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let mut args = lexopt::Parser::from_args(args);
    if let Some(arg) = args.next()? {
        bail!(arg.unexpected());
    }
    Ok(test()?.report())
}

/// Builds and runs the tests; counts them.
pub(crate) fn test() -> Result<Counts> {
    ensure(&[Group::Build])?;
    let is_missing = |(_, program): &(&str, &str)| find_program(program).is_none();
    if PACKAGES.iter().any(is_missing) {
        let names = PACKAGES.map(|(name, _)| name);
        if !may_install() {
            bail!(
                "packages are missing; as root on Debian: apt-get install {}",
                names.join(" ")
            );
        }
        apt_install(&names)?;
    }
    run(Command::new("rustup").args(["target", "add", TARGET]))?;
    let mut command = cargo();
    command.args(["test", "--lib", "--locked", "--target", TARGET]);
    command
        .arg("--target-dir")
        .arg(root().join("target/foreign"));
    for name in CRATES {
        command.args(["-p", name]);
    }
    command.arg("--");
    for name in TIMED {
        command.args(["--skip", name]);
    }
    command
        .env(
            "CARGO_TARGET_S390X_UNKNOWN_LINUX_GNU_LINKER",
            "s390x-linux-gnu-gcc",
        )
        .env(
            "CARGO_TARGET_S390X_UNKNOWN_LINUX_GNU_RUNNER",
            "qemu-s390x -L /usr/s390x-linux-gnu",
        );
    count("s390x", &mut command)
}
