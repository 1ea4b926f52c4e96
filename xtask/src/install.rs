//! Seeing what is missing before cargo trips over it, and installing it where
//! that is ours to do: as root on Debian. Elsewhere the exact line is printed.

use std::process::Command;

use anyhow::{Result, bail};

use crate::packages::{Group, Manager, Package, is_debian, missing, os_release};
use crate::proc::{is_root, run};

/// Makes sure that the packages of `groups` are there: installs them, or fails
/// with the line that installs them.
pub(crate) fn ensure(groups: &[Group]) -> Result<()> {
    let lacking = missing(groups);
    if lacking.is_empty() {
        return Ok(());
    }
    if !may_install() {
        bail!("{}", advice(&lacking, Manager::of(&os_release())));
    }
    explain(&lacking);
    apt_install(&lacking.iter().map(|p| p.apt).collect::<Vec<_>>())?;
    let still = missing(groups);
    if !still.is_empty() {
        bail!("{}", advice(&still, Some(Manager::Apt)));
    }
    Ok(())
}

/// As [`ensure`], for tests that can do without: false, after a word about
/// what is missing, when it neither is there nor may be installed.
pub(crate) fn try_ensure(groups: &[Group]) -> Result<bool> {
    let lacking = missing(groups);
    if lacking.is_empty() || may_install() {
        return ensure(groups).map(|()| true);
    }
    eprintln!("xtask: {}", advice(&lacking, Manager::of(&os_release())));
    Ok(false)
}

/// Whether this task may install packages by itself.
pub(crate) fn may_install() -> bool {
    is_root() && is_debian(&os_release())
}

/// Installs Debian packages by name. The lists are refreshed first: a fresh
/// image has none, and an old one names versions the mirror has dropped.
pub(crate) fn apt_install(names: &[&str]) -> Result<()> {
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        // Another apt may be running: wait for it instead of failing.
        command.args(["-q", "-o", "DPkg::Lock::Timeout=600"]);
        command
    };
    // Stale lists may still do, so the install decides.
    if let Err(error) = run(apt().arg("update")) {
        eprintln!("xtask: {error:#}; continuing with the present package lists");
    }
    run(apt()
        .args(["install", "-y", "--no-install-recommends"])
        .args(names))
}

fn explain(packages: &[Package]) {
    eprintln!("xtask: installing missing packages:");
    for package in packages {
        eprintln!("  {:<18} {}", package.apt, package.why);
    }
}

/// What is missing, why it is needed, and the line that installs it.
fn advice(packages: &[Package], manager: Option<Manager>) -> String {
    let mut text = String::from("packages missing on this machine:\n");
    for package in packages {
        text += &format!("  {:<18} {}\n", package.apt, package.why);
    }
    match manager {
        Some(manager) => text += &format!("install with:\n  sudo {}", manager.line(packages)),
        None => {
            text +=
                "install them with your distribution's package manager (these are Debian's names)"
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::PACKAGES;

    #[test]
    fn advice_names_the_need_and_the_line() {
        let cc: Vec<_> = PACKAGES
            .iter()
            .filter(|p| p.apt == "gcc")
            .copied()
            .collect();
        let text = advice(&cc, Some(Manager::Dnf));
        assert!(text.contains("compiles the bundled zstd"), "{text}");
        assert!(text.ends_with("  sudo dnf install -y gcc"), "{text}");
        assert!(!advice(&cc, None).contains("sudo"));
    }
}
