//! The machines other than x86-64 on which aiprof runs, without the feature `live`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use object::elf;

use crate::install::{apt_install, may_install};
use crate::proc::{cargo, find_program, run};

/// A machine, by the names that it has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Its name at Linux, qemu and in an .rpm.
    pub(crate) name: &'static str,
    /// Its name in a .deb.
    pub(crate) debian: &'static str,
    /// What rustc calls it.
    pub(crate) target: &'static str,
    /// How its compiler's name begins; also the name of its folder in `/usr`.
    gnu: &'static str,
    /// What its programs have as machine in their ELF header.
    pub(crate) elf: elf::Machine,
}

pub(crate) const MACHINES: [Machine; 3] = [
    Machine {
        name: "s390x",
        debian: "s390x",
        target: "s390x-unknown-linux-gnu",
        gnu: "s390x-linux-gnu",
        elf: elf::EM_S390,
    },
    Machine {
        name: "ppc64le",
        debian: "ppc64el",
        target: "powerpc64le-unknown-linux-gnu",
        gnu: "powerpc64le-linux-gnu",
        elf: elf::EM_PPC64,
    },
    Machine {
        name: "aarch64",
        debian: "arm64",
        target: "aarch64-unknown-linux-gnu",
        gnu: "aarch64-linux-gnu",
        elf: elf::EM_AARCH64,
    },
];

impl Machine {
    /// The machine of a name, which may be Debian's.
    pub(crate) fn of(name: &str) -> Result<&'static Self> {
        let mut all = MACHINES.iter();
        let found = all.find(|machine| [machine.name, machine.debian].contains(&name));
        let names = MACHINES.each_ref().map(|machine| machine.name).join(", ");
        found.with_context(|| format!("no machine is named {name:?}; machines: {names}"))
    }

    /// Its C compiler.
    pub(crate) fn compiler(&self) -> String {
        format!("{}-gcc", self.gnu)
    }

    /// What runs a program of it here.
    pub(crate) fn emulator(&self) -> String {
        format!("qemu-{}", self.name)
    }

    /// Where Debian puts its shared libraries.
    pub(crate) fn libraries(&self) -> PathBuf {
        ["/usr", self.gnu].iter().collect()
    }

    /// Debian's packages that compile C for it.
    fn to_compile(&self) -> Vec<String> {
        vec![
            format!("gcc-{}", self.gnu),
            format!("libc6-dev-{}-cross", self.debian),
        ]
    }

    /// Cargo, for this machine.
    pub(crate) fn cargo(&self, subcommand: &str) -> Command {
        let mut command = cargo();
        command.args([subcommand, "--locked", "--target", self.target]);
        command
    }

    /// What a variable of cargo for this machine is called, such as its `LINKER`.
    pub(crate) fn variable(&self, of: &str) -> String {
        let target = self.target.to_uppercase().replace('-', "_");
        format!("CARGO_TARGET_{target}_{of}")
    }

    /// Gives the Rust compiler the standard library of this machine.
    pub(crate) fn add_target(&self) -> Result<()> {
        run(Command::new("rustup").args(["target", "add", self.target]))
    }
}

/// Makes sure that qemu is there, and compilers for the machines.
pub(crate) fn install_compilers(machines: &[&Machine]) -> Result<()> {
    let lack = |machine: &&&Machine| find_program(&machine.compiler()).is_none();
    let lacking = machines.iter().filter(lack);
    install(
        machines,
        lacking.flat_map(|machine| machine.to_compile()).collect(),
    )
}

/// Makes sure that qemu is there, and shared libraries of the machines.
pub(crate) fn install_libraries(machines: &[&Machine]) -> Result<()> {
    let lacking = machines.iter().filter(|m| !m.libraries().exists());
    let package = |machine: &&Machine| format!("libc6-{}-cross", machine.debian);
    install(machines, lacking.map(package).collect())
}

fn install(machines: &[&Machine], mut lacking: Vec<String>) -> Result<()> {
    let mut emulators = machines.iter().map(|machine| machine.emulator());
    if emulators.any(|name| find_program(&name).is_none()) {
        lacking.push("qemu-user".into());
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = lacking.iter().map(String::as_str).collect();
    if !may_install() {
        bail!(
            "packages are missing; as root on Debian: apt-get install {}",
            names.join(" ")
        );
    }
    apt_install(&names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_the_name_of_debian_too() {
        for machine in &MACHINES {
            assert_eq!(Machine::of(machine.name).unwrap(), machine);
            assert_eq!(Machine::of(machine.debian).unwrap(), machine);
        }
        let error = Machine::of("x86_64").unwrap_err().to_string();
        assert!(error.contains("s390x, ppc64le, aarch64"), "{error}");
        let variable = Machine::of("ppc64el").unwrap().variable("LINKER");
        assert_eq!(
            variable,
            "CARGO_TARGET_POWERPC64LE_UNKNOWN_LINUX_GNU_LINKER"
        );
    }
}
