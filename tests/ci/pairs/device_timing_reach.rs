//! `--device-timing` where COMMAND, or what it starts, cannot load the helper: no program
//! loses its devices. The system's Level Zero loader, on the virtual driver; a file system of
//! the test's own on /var/cache, in a mount namespace of its own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::binary;
use aiprof_tests::attack::{STRANGER, Yard};
use aiprof_tests::level_zero::driver::{Driver, Exports, Machine, NEEDS};
use aiprof_tests::level_zero::module::{Kernel, Module};
use aiprof_tests::level_zero::program::build_timing;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::trace::Trace;
use aiprof_tests::truth::{Kind, Truth};

/// A tick of the driver's clock, ns, rounded up.
const TICK: u64 = 53;
/// Where root's helpers are.
const PLACE: &str = "/var/cache/aiprof";
/// What aiprof prints where COMMAND runs without the helper.
const WITHOUT: &str = "aiprof: COMMAND runs without the helper ";

/// How the program finds the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By its path in `ZE_ENABLE_ALT_DRIVERS`.
    List,
    /// By its name, in a folder of `LD_LIBRARY_PATH`.
    Search,
}

/// A case.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Options of the file system on /var/cache.
    mount: &'static str,
    /// What is done there before aiprof starts.
    before: &'static str,
    /// Whether COMMAND is another user's.
    as_user: bool,
    /// What starts the program.
    wrapper: &'static [&'static str],
    /// Whether the program is timed.
    is_timed: bool,
    /// What aiprof prints of the reason; empty: nothing is missing.
    reason: &'static str,
}

/// COMMAND can load the helper.
const USUAL: Case = Case {
    mount: "mode=755",
    before: "",
    as_user: false,
    wrapper: &[],
    is_timed: true,
    reason: "",
};
const CASES: [Case; 7] = [
    USUAL,
    Case {
        as_user: true,
        ..USUAL
    },
    Case {
        as_user: true,
        before: "umask 077 &&",
        ..USUAL
    },
    Case {
        as_user: true,
        before: "mkdir -m 700 /var/cache/aiprof &&",
        is_timed: false,
        reason: "which it cannot load (Permission denied (os error 13)): device times",
        ..USUAL
    },
    Case {
        mount: "mode=755,noexec",
        is_timed: false,
        reason: "must be on a file system that is not mounted noexec",
        ..USUAL
    },
    Case {
        wrapper: &[
            "unshare",
            "--mount",
            "sh",
            "-c",
            "mount -t tmpfs none /var/cache && exec \"$@\"",
            "sh",
        ],
        is_timed: false,
        ..USUAL
    },
    // As sudo does it.
    Case {
        before: "mkdir -m 700 /var/cache/aiprof &&",
        wrapper: &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"],
        is_timed: false,
        ..USUAL
    },
];

/// Where every user can reach the program, its driver and its module.
struct Bench {
    yard: Yard,
    machine: Machine,
    folder: PathBuf,
}

impl Bench {
    fn new() -> anyhow::Result<Self> {
        let yard = Yard::new()?;
        let driver = Driver::build(Exports::TablesOnly)?;
        let folder = yard.path("driver");
        std::fs::create_dir(&folder)?;
        let name = driver.path().file_name().context("a file")?;
        std::fs::copy(driver.path(), folder.join(name))?;
        std::fs::copy(build_timing()?, yard.path("program"))?;
        Module::new(vec![Kernel::new("saxpy", 20_000)]).write(&yard.path("module.zebin"))?;
        for name in ["driver", "program"] {
            std::fs::set_permissions(yard.path(name), Permissions::from_mode(0o755))?;
        }
        Ok(Self {
            yard,
            machine: Machine::new(&driver),
            folder,
        })
    }

    /// Where the program may write, empty.
    fn results(&self) -> anyhow::Result<PathBuf> {
        let results = self.yard.path("results");
        if results.exists() {
            std::fs::remove_dir_all(&results)?;
        }
        std::fs::create_dir(&results)?;
        std::fs::set_permissions(&results, Permissions::from_mode(0o777))?;
        Ok(results)
    }

    fn command(&self, case: &Case, way: Way, results: &Path) -> anyhow::Result<Command> {
        let script = format!(
            "mount -t tmpfs -o {} none /var/cache && {} exec \"$@\"",
            case.mount, case.before
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.arg(binary()?).args(["--only", "--device-timing"]);
        if case.as_user {
            command.arg("--as-user");
            let id = STRANGER.to_string();
            command.env("SUDO_UID", &id).env("SUDO_GID", &id);
        }
        command.arg("-o").arg(self.yard.path("t.json")).arg("--");
        let environment = "env > \"$0\" && exec \"$@\"";
        command.args(["sh", "-c", environment]);
        command.arg(results.join("environment")).args(case.wrapper);
        command.arg(self.yard.path("program"));
        command.args(["reused", "rounds=5"]);
        command.arg(format!("module={}", self.yard.path("module.zebin").display()));
        let machine = self.machine.clone().truth(&results.join("truth.json"));
        command.envs(machine.environment());
        match way {
            Way::List => {
                let driver = self.folder.join("libze_intel_gpu.so.1");
                command.env("ZE_ENABLE_ALT_DRIVERS", driver);
            }
            Way::Search => {
                command.env_remove("ZE_ENABLE_ALT_DRIVERS");
                command.env("LD_LIBRARY_PATH", &self.folder);
            }
        }
        Ok(command)
    }

    fn check(&self, case: &Case, way: Way) -> anyhow::Result<()> {
        let results = self.results()?;
        let output = self.command(case, way, &results)?.output()?;
        let stderr = String::from_utf8(output.stderr)?;
        // Each call of the program must succeed, zeInit the first of them.
        ensure!(output.status.success(), "{}\n{stderr}", output.status);
        let truth = Truth::read(&results.join("truth.json"))?;
        let trace = Trace::read(&self.yard.path("t.json"))?;
        let (ran, timed) = exact(&trace, &truth)?;
        ensure!(ran > 0, "nothing ran: {stderr}");
        let expected = if case.is_timed { ran } else { 0 };
        ensure!(timed == expected, "{timed} of {ran} timed: {stderr}");
        let has_helper = case.reason.is_empty();
        ensure!(stderr.contains(WITHOUT) != has_helper, "{stderr}");
        ensure!(stderr.contains(case.reason), "{stderr}");
        let environment = std::fs::read_to_string(results.join("environment"))?;
        ensure!(environment.contains(PLACE) == has_helper, "{environment}");
        Ok(())
    }
}

/// Kernels that ran, and how many of them have a span within a tick.
fn exact(trace: &Trace, truth: &Truth) -> anyhow::Result<(usize, usize)> {
    let begin = trace.start_ns()?;
    let spans = trace.device_spans();
    let kernels = truth.execs.iter().filter(|exec| exec.kind == Kind::Kernel);
    let kernels: Vec<_> = kernels.collect();
    let timed = kernels.iter().filter(|exec| {
        spans.iter().any(|span| {
            exec.start_ns.abs_diff(span.start + begin) <= TICK
                && exec.end_ns.abs_diff(span.end + begin) <= TICK
        })
    });
    Ok((kernels.len(), timed.count()))
}

fn check_all(name: &str, way: Way) -> anyhow::Result<()> {
    let tools = ["unshare", "setpriv", "mount"].map(Need::Tool);
    let needs: Vec<Need> = NEEDS.into_iter().chain(tools).chain([Need::Root]).collect();
    skip_unless!(name, &needs);
    let bench = Bench::new()?;
    for case in CASES {
        bench
            .check(&case, way)
            .with_context(|| format!("{way:?} {case:?}"))?;
    }
    Ok(())
}

#[test]
fn no_driver_of_the_list_is_lost() -> anyhow::Result<()> {
    check_all("no_driver_of_the_list_is_lost", Way::List)
}

#[test]
fn no_driver_of_the_machine_is_lost() -> anyhow::Result<()> {
    check_all("no_driver_of_the_machine_is_lost", Way::Search)
}
