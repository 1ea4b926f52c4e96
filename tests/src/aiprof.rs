//! Finds, builds and runs the binary under test.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;

use anyhow::Context as _;
use tempfile::TempDir;

use crate::folded::Folded;
use crate::oracle;

/// Findings of the idle time of one device, which they share out.
pub const IDLE_FINDINGS: [&str; 7] = [
    "launch-starved",
    "synchronous-wait",
    "short-kernels",
    "dataloader-stall",
    "profiler-overhead",
    "prep-queue-starved",
    "device-idle",
];

/// The binary under test: `AIPROF_BIN`, which `cargo xtask test` sets, else what is built as
/// it builds it.
///
/// # Errors
/// When the build fails.
pub fn binary() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("AIPROF_BIN") {
        return Ok(path.into());
    }
    let workspace = ["--workspace", "--bins", "--tests"];
    build("aiprof", "", &workspace)
}

/// `aiprof-send`, which tests of the agent need: the program that `AIPROF_SEND` names, else
/// what is built.
///
/// # Errors
/// When the build fails.
pub fn sender() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("AIPROF_SEND") {
        return Ok(path.into());
    }
    build(
        "aiprof-send",
        "fleet",
        &["--workspace", "--bins", "--tests"],
    )
}

/// Builds a program of the workspace in `folder`; once for each process.
fn build(program: &str, folder: &str, what: &[&str]) -> anyhow::Result<PathBuf> {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().map_err(|e| anyhow::anyhow!("{e}"))?;
    if let Some(path) = built.get(program) {
        return Ok(path.clone());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = root.parent().context("the tests lie in the workspace")?;
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root.join("target"), |dir| root.join(dir));
    let target = target.join(folder);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--profile", "tests"]);
    command.args(what).arg("--target-dir").arg(&target);
    let manifest = root.join(folder).join("Cargo.toml");
    command.arg("--manifest-path").arg(manifest);
    // Where .cargo/config.toml is.
    crate::workload::checked(command.current_dir(root))?;
    let path = target.join("tests").join(program);
    built.insert(program.to_owned(), path.clone());
    Ok(path)
}

/// One run of aiprof, to be.
#[derive(Debug)]
pub struct Aiprof {
    options: Vec<OsString>,
    command: Vec<OsString>,
    /// The command waits until it is known, by `workloads/known.h`.
    is_waited_for: bool,
}

/// A finished run that wrote a folded profile.
#[derive(Debug)]
pub struct Run {
    /// Exit status of aiprof.
    pub status: ExitStatus,
    /// What the command wrote to stdout.
    pub stdout: String,
    /// What aiprof and the command wrote to stderr.
    pub stderr: String,
    /// The profile of the whole machine.
    pub folded: Folded,
}

impl Aiprof {
    /// A run at 499 samples a second, in counts: the rate most tests need to
    /// judge 1 % by. Further options are added.
    #[must_use]
    pub fn counting() -> Self {
        Self::with(["-F", "499", "--weight", "samples"])
    }

    /// A run with these options.
    #[must_use]
    pub fn with<S: Into<OsString>>(options: impl IntoIterator<Item = S>) -> Self {
        Self {
            options: options.into_iter().map(Into::into).collect(),
            command: Vec::new(),
            is_waited_for: false,
        }
    }

    /// The command waits until all is known of it, if it includes `workloads/known.h`.
    #[must_use]
    pub fn waited_for(mut self) -> Self {
        self.is_waited_for = true;
        self
    }

    /// Adds an option.
    #[must_use]
    pub fn option(mut self, option: impl Into<OsString>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Sets the command to profile.
    #[must_use]
    pub fn command<S: AsRef<OsStr>>(mut self, program: impl AsRef<OsStr>, args: &[S]) -> Self {
        self.command = vec![program.as_ref().to_owned()];
        self.command
            .extend(args.iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets a command that ends once a process has used `seconds` of CPU time since the command
    /// began, and fails if the process ends before.
    #[must_use]
    pub fn until_used(self, pid: u32, seconds: u64) -> Self {
        // The numbers behind the name in /proc/PID/stat; a tick is a hundredth of a second.
        const USED: &str = "read -r line < /proc/$1/stat || exit 1; set -- $1 $2 ${line##*)}; \
            used=$((${14} + ${15}))";
        let wait = format!(
            "{USED}; end=$(($used + $2 * 100)); \
             while [ $used -lt $end ]; do sleep 0.05; {USED}; done"
        );
        self.command(
            "sh",
            &["-c", &wait, "sh", &pid.to_string(), &seconds.to_string()],
        )
    }

    /// The process to start: stdin closed, stdout and stderr piped.
    ///
    /// # Errors
    /// When the binary cannot be built.
    pub fn to_command(&self) -> anyhow::Result<Command> {
        let mut command = match self.is_waited_for {
            true => crate::states::waited_for()?,
            false => Command::new(binary()?),
        };
        command.args(&self.options);
        if !self.command.is_empty() {
            command.arg("--").args(&self.command);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }

    /// Records into a folded file and reads it. Under `AIPROF_TESTS_CAPTURE=1` it records into a
    /// capture, and reports from that: a test that passes with both shows that both give the same
    /// result. Under `AIPROF_TESTS_ORACLE=perf`, `perf record` does.
    ///
    /// # Errors
    /// When aiprof cannot be run, dies of a signal, or writes no valid profile.
    pub fn record(&self) -> anyhow::Result<Run> {
        if oracle::is_chosen() {
            return oracle::record(&self.command);
        }
        let dir = TempDir::new()?;
        let by_capture = std::env::var_os("AIPROF_TESTS_CAPTURE").is_some();
        let name = if by_capture {
            "out.aiprof"
        } else {
            "out.folded"
        };
        let file = dir.path().join(name);
        let run = Self {
            options: [
                self.options.as_slice(),
                &["-o".into(), file.clone().into_os_string()],
            ]
            .concat(),
            command: self.command.clone(),
            is_waited_for: self.is_waited_for,
        };
        let output = run.to_command()?.output().context("running aiprof")?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::ensure!(
            output.status.signal().is_none(),
            "aiprof died: {}\n{stderr}",
            output.status
        );
        let file = match by_capture {
            true => self.report(&file)?,
            false => file,
        };
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("no profile; {}; stderr:\n{stderr}", output.status))?;
        Ok(Run {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr,
            folded: Folded::parse(&text)?,
        })
    }

    /// Makes the folded file of a capture, with those options that it depends on.
    fn report(&self, capture: &Path) -> anyhow::Result<PathBuf> {
        let file = capture.with_extension("folded");
        let mut command = Command::new(binary()?);
        command.arg("report").arg(capture).arg("-o").arg(&file);
        let mut options = self.options.iter();
        while let Some(option) = options.next() {
            match option.to_str() {
                Some("--weight" | "--events") => {
                    command.arg(option).args(options.next());
                }
                Some("--no-kernel" | "--no-inlines" | "--cpu-only" | "--device-only") => {
                    command.arg(option);
                }
                _ => {}
            }
        }
        crate::workload::checked(&mut command)?;
        Ok(file)
    }

    /// [`Self::record`] of a workload that prints `pid N`: the run, with only
    /// that process left in its profile. The workload must succeed.
    ///
    /// # Errors
    /// As [`Self::record`]; when the command fails or prints no pid.
    pub fn record_one(&self) -> anyhow::Result<Run> {
        let mut run = self.record()?;
        anyhow::ensure!(run.status.success(), "{}\n{}", run.status, run.stderr);
        let pid = run.truth("pid")?;
        run.folded = run.folded.of_pid(pid as u32);
        Ok(run)
    }
}

impl Run {
    /// The number in the line `NAME NUMBER` of the command's output.
    ///
    /// # Errors
    /// When there is no such line.
    pub fn truth(&self, name: &str) -> anyhow::Result<f64> {
        truth(&self.stdout, name)
    }
}

/// What the summary on stderr counts as lost under a cause, as in `1,001  stacks cut: too deep`; 0
/// where the summary does not list the cause.
#[must_use]
pub fn lost(stderr: &str, cause: &str) -> u64 {
    let count = |line: &str| {
        let (count, text) = line.trim().split_once("  ")?;
        let count = count.replace(',', "").parse::<u64>().ok()?;
        // What helps is behind a semicolon.
        let label = text.split("; ").next()?;
        label.contains(cause).then_some(count)
    };
    stderr.lines().filter_map(count).sum()
}

/// The number in the line `NAME NUMBER` of a workload's output.
///
/// # Errors
/// When there is no such line.
pub fn truth(output: &str, name: &str) -> anyhow::Result<f64> {
    output
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
        .with_context(|| format!("the workload printed no {name:?}:\n{output}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_summary() {
        let text = "aiprof: 3,575 samples\n       1,001  stacks cut: too deep\n   2  frames\n";
        assert_eq!(lost(text, "too deep"), 1001);
        assert_eq!(lost(text, "samples"), 0);
    }

    #[test]
    fn reads_a_truth() {
        assert_eq!(truth("pid 7\nten 0.5\n", "ten").unwrap(), 0.5);
        assert!(truth("pid x\n", "pid").is_err());
    }
}
