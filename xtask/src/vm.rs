//! `cargo xtask vm-test`: aiprof on kernels other than this machine's.
//!
//! Debian's kernel packages, an initramfs made here, qemu without hardware
//! virtualisation, and the serial console as the only channel.

mod console;
mod devices;
mod drivers;
mod initramfs;
mod kernel;
mod modules;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::counts::Counts;
use crate::install::{ensure, try_ensure};
use crate::packages::Group;
use crate::proc::{find_program, root, run, target_dir};
use initramfs::Initramfs;
use modules::Module;

pub(crate) const HELP: &str = "
Boots Debian's 6.1 and 6.12 kernels in parallel under qemu, without KVM. In each it
runs `aiprof doctor`, `aiprof COMMAND`, and a recording of the whole machine with a
program that has a stack of exactly 100 calls. At least 99 % of the samples of that
program must have the whole stack.

Programs in the machine also make real DRM, CUSE and VFIO ioctls: on vgem, on character
devices that they provide, and on an emulated PCI device behind an emulated IOMMU.
profiler/tests/drivers compares the ioctls that aiprof recorded with the programs' own
logs. apt-get downloads packages to target/vm, which also has the console output of each
kernel. The last line is `N passed, N failed, N skipped`.

  --kernel 6.1|6.12|all   kernel to boot (default: all)
  --bpf-object FILE       run aiprof with this eBPF object instead of its own

AIPROF_BIN is the program to test. If it is not set, the tests' program is built.
";

/// The kernel series that are booted.
const SERIES: &[&str] = &["6.1", "6.12"];

/// From power on to the last line. Emulation takes one and a half minutes on two cores;
/// a shared machine may take several times that.
const LIMIT: Duration = Duration::from_secs(600);

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let mut args = lexopt::Parser::from_args(args);
    let (mut kernel, mut object) = (None, None);
    while let Some(arg) = args.next()? {
        match arg {
            Long("kernel") => kernel = Some(args.value()?.string()?),
            Long("bpf-object") => object = Some(PathBuf::from(args.value()?)),
            _ => return Err(arg.unexpected().into()),
        }
    }
    let series = select(kernel.as_deref())?;
    let counts = if can_run()? {
        test_all(&series, object.as_deref())?
    } else {
        skip_all(&series)
    };
    println!();
    Ok(counts.report())
}

fn select(choice: Option<&str>) -> Result<Vec<&'static str>> {
    match choice {
        None | Some("all") => Ok(SERIES.to_vec()),
        Some(name) => match SERIES.iter().find(|series| **series == name) {
            Some(series) => Ok(vec![series]),
            None => bail!("--kernel {name:?}: must be {} or all", SERIES.join(", ")),
        },
    }
}

/// Both kernels, for `cargo xtask test --all`.
pub(crate) fn test() -> Result<Counts> {
    match can_run()? {
        true => test_all(SERIES, None),
        false => Ok(skip_all(SERIES)),
    }
}

fn can_run() -> Result<bool> {
    ensure(&[Group::Build])?;
    Ok(try_ensure(&[Group::Vm])? && find_program("apt-get").is_some())
}

fn skip_all(series: &[&str]) -> Counts {
    let mut counts = Counts::default();
    series
        .iter()
        .for_each(|name| counts.skip(format!("vm {name}: needs qemu, busybox and apt-get")));
    counts
}

fn test_all(series: &[&str], object: Option<&Path>) -> Result<Counts> {
    let work = target_dir().join("vm");
    fs::create_dir_all(&work)?;
    let base = pack(&work, object)?;
    let mut counts = Counts::default();
    let mut machines = Vec::new();
    for name in series {
        match Machine::new(&work, name, base.clone()) {
            Ok(machine) => machines.push(machine),
            Err(error) => fail(name, &error, &mut counts),
        }
    }
    // Each takes one core.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    for machines in machines.chunks_mut(cores) {
        for (name, console) in boot(machines) {
            match console {
                Ok(console) => {
                    counts.add(console::judge(name, &console));
                    counts.add(devices::judge(name, &console));
                    counts.add(drivers::judge(name, &console));
                }
                Err(error) => fail(name, &error, &mut counts),
            }
        }
    }
    Ok(counts)
}

fn fail(series: &str, error: &anyhow::Error, counts: &mut Counts) {
    println!("vm {series}: FAILED: {error:#}");
    counts.fail(format!("vm {series}"));
}

/// The programs of xtask/vm.
const PROGRAMS: &[&str] = &[
    "workload",
    "vgem_work",
    "cuse_device",
    "ioctl_work",
    "vfio_work",
];

/// What the initramfs of every kernel holds.
fn pack(work: &Path, object: Option<&Path>) -> Result<Initramfs> {
    let sources = root().join("xtask/vm");
    let mut initramfs = Initramfs::new();
    for name in ["init", "devices"] {
        initramfs.file(&format!("/{name}"), 0o755, fs::read(sources.join(name))?);
    }
    for name in PROGRAMS {
        let program = work.join(name);
        run(Command::new("cc")
            .args(["-O2", "-Wall", "-fomit-frame-pointer", "-o"])
            .arg(&program)
            .arg(sources.join(format!("{name}.c"))))?;
        initramfs.program(&format!("/{name}"), &program)?;
    }
    let busybox = find_program("busybox").context("busybox was removed")?;
    initramfs.program("/bin/busybox", &busybox)?;
    initramfs.program("/aiprof", &aiprof()?)?;
    initramfs.program("/drivers", &drivers::build()?)?;
    let mut options = "";
    if let Some(object) = object {
        let data = fs::read(object).with_context(|| format!("cannot read {}", object.display()))?;
        initramfs.file("/aiprof.bpf.o", 0o644, data);
        options = "--bpf-object /aiprof.bpf.o";
    }
    initramfs.file("/options", 0o644, options.into());
    Ok(initramfs)
}

/// Adds a kernel's modules and the order in which to load them.
fn add_modules(initramfs: &mut Initramfs, modules: Vec<Module>) {
    let names: Vec<_> = modules.iter().map(|module| module.name.as_str()).collect();
    initramfs.file("/modules/order", 0o644, names.join("\n").into());
    for module in modules {
        initramfs.file(&format!("/modules/{}.ko", module.name), 0o644, module.data);
    }
}

fn aiprof() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("AIPROF_BIN") {
        return Ok(path.into());
    }
    crate::test::build()?;
    Ok(crate::test::built("aiprof"))
}

/// One thread for both CPUs. With a thread each, qemu 7.2, which Debian 12 has, may translate code
/// while the other CPU writes it, and keep what was there before. Kernels write a breakpoint over
/// code while they change it, as they do each time that something is attached to a tracepoint. A
/// CPU then runs into one that memory no longer holds, and panics. On 6.1 it may instead go back
/// and run into it again, for ever.
const ACCELERATOR: &str = "tcg,thread=single";

/// All that qemu can emulate, except two slow features: a fifth level of page tables, and `rep
/// movsb`. Kernels copy with that if the CPU is fast at it, but qemu goes byte by byte.
const CPU: &str = "max,-erms,-fsrm,-la57";

/// A kernel to boot.
struct Machine<'a> {
    series: &'a str,
    qemu: Command,
    /// What it writes to its console, for a person to read.
    log: PathBuf,
}

impl<'a> Machine<'a> {
    fn new(work: &Path, series: &'a str, mut initramfs: Initramfs) -> Result<Self> {
        let kernel = kernel::fetch(work, series)?;
        add_modules(&mut initramfs, kernel.modules);
        let initrd = work.join(format!("initramfs-{series}.cpio"));
        fs::write(&initrd, initramfs.into_cpio())
            .with_context(|| format!("cannot write {}", initrd.display()))?;
        let mut qemu = Command::new("qemu-system-x86_64");
        // Hardware virtualisation is absent or broken on many build machines.
        qemu.args(["-accel", ACCELERATOR, "-cpu", CPU, "-M", "q35"]);
        qemu.args(["-m", "1024", "-smp", "2", "-nographic", "-no-reboot"]);
        qemu.args(["-nic", "none", "-monitor", "none"]);
        // A PCI device behind an IOMMU, for vfio_work.
        qemu.args(["-device", "intel-iommu", "-device", "edu"]);
        qemu.arg("-kernel").arg(&kernel.image);
        qemu.arg("-initrd").arg(&initrd);
        qemu.args([
            "-append",
            // Interrupts are not remapped: one boot in some panicked over them.
            "console=ttyS0 quiet panic=-1 mitigations=off intel_iommu=on intremap=off",
        ]);
        Ok(Self {
            series,
            qemu,
            log: work.join(format!("console-{series}.log")),
        })
    }

    /// Gives everything that it wrote to its console.
    fn boot(&mut self) -> Result<String> {
        console::record(&mut self.qemu, &self.log, LIMIT)
    }
}

/// Boots kernels at once; what each wrote.
fn boot<'a>(machines: &mut [Machine<'a>]) -> Vec<(&'a str, Result<String>)> {
    thread::scope(|scope| {
        let started: Vec<_> = machines
            .iter_mut()
            .map(|machine| (machine.series, scope.spawn(|| machine.boot())))
            .collect();
        let ended = started.into_iter().map(|(series, thread)| {
            let console = thread.join();
            (series, console.unwrap_or_else(|_| bail!("a panic")))
        });
        ended.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_kernels() {
        assert_eq!(select(None).unwrap(), SERIES);
        assert_eq!(select(Some("all")).unwrap(), SERIES);
        assert_eq!(select(Some("6.1")).unwrap(), ["6.1"]);
        assert!(select(Some("6.2")).is_err());
    }
}
