//! `cargo xtask run`: from a fresh clone to a profile in one command.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::install::ensure;
use crate::packages::Group;
use crate::proc::{cargo, display, find_program, is_root, run, target_dir};

pub(crate) const HELP: &str = "
Checks that the build tools are installed, builds aiprof and runs it with ARGS, through
sudo if you are not root. The exit status is aiprof's. For example:

  cargo xtask run -- -o flame.svg sleep 10

  --debug   make a debug build instead of a release build
";

pub(crate) fn main(mut args: Vec<String>) -> Result<ExitCode> {
    let program_args = match args.iter().position(|arg| arg == "--") {
        Some(dashes) => args.split_off(dashes).split_off(1),
        None => Vec::new(),
    };
    let debug = is_debug(args).context("put aiprof's arguments after `--`")?;
    ensure(&[Group::Build])?;
    let aiprof = build(debug)?;
    let mut command = elevated(aiprof.as_ref(), is_root())?;
    command.args(program_args);
    // Replaces this process: signals and the exit status need no forwarding.
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", display(&command)))
}

/// Whether a debug build is asked for.
fn is_debug(args: Vec<String>) -> Result<bool, lexopt::Error> {
    let mut args = lexopt::Parser::from_args(args);
    let mut debug = false;
    while let Some(arg) = args.next()? {
        match arg {
            Long("debug") => debug = true,
            Long("release") => {}
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(debug)
}

fn build(debug: bool) -> Result<std::path::PathBuf> {
    let mut command = cargo();
    command.args(["build", "--package", "aiprof"]);
    if !debug {
        command.arg("--release");
    }
    run(&mut command)?;
    Ok(target_dir().join(if debug {
        "debug/aiprof"
    } else {
        "release/aiprof"
    }))
}

/// The command that runs `program` as root. sudo resets PATH, on which the
/// profiled command is looked for, so it is handed over.
fn elevated(program: &Path, root: bool) -> Result<Command> {
    if root {
        return Ok(Command::new(program));
    }
    if find_program("sudo").is_none() {
        bail!(
            "profiling needs root, and sudo is not installed; run as root: {} ...",
            program.display()
        );
    }
    let mut command = Command::new("sudo");
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .args(["-E", "env", &format!("PATH={path}")])
        .arg(program);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_needs_no_sudo() {
        let command = elevated(Path::new("/x/aiprof"), true).unwrap();
        assert_eq!(display(&command), "/x/aiprof");
    }

    #[test]
    fn arguments_must_follow_the_dashes() {
        let error = main(vec!["-o".into(), "flame.svg".into()]).unwrap_err();
        assert!(format!("{error:#}").contains("after `--`"), "{error:#}");
    }
}
