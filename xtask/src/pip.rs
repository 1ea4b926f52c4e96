//! Programs of PyPI, in environments that are kept in the build folder.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::install::{apt_install, may_install};
use crate::proc::{find_program, run, target_dir};

/// The folder of programs of an environment `target/FOLDER` that has these packages
/// (`NAME==VERSION`), which are installed if one of `programs` is not there.
pub(crate) fn programs(folder: &str, packages: &[&str], programs: &[&str]) -> Result<PathBuf> {
    let root = target_dir().join(folder);
    let bin = root.join("bin");
    let is_there = || programs.iter().all(|name| bin.join(name).is_file());
    if is_there() {
        return Ok(bin);
    }
    if find_program("python3").is_none() {
        bail!(
            "{} need python3 and its module venv",
            packages.join(" and ")
        );
    }
    let venv = || run(Command::new("python3").args(["-m", "venv"]).arg(&root));
    if let Err(error) = venv() {
        // Debian's python3 has its venv in a package of its own.
        if !may_install() {
            return Err(error).context(
                "the module venv of Python is missing; on Debian: sudo apt-get install \
                 python3-venv",
            );
        }
        apt_install(&["python3-venv"])?;
        venv()?;
    }
    let mut pip = Command::new(bin.join("python"));
    pip.args(["-m", "pip", "install", "-q"]);
    run(pip.args(packages))?;
    match is_there() {
        true => Ok(bin),
        false => bail!(
            "{} do not contain {}",
            packages.join(" and "),
            programs.join(" or ")
        ),
    }
}
