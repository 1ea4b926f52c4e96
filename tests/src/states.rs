//! Recordings that print how far they are (`--ready-fd`), for tests that go on from there.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::aiprof::binary;
use crate::child::LONG;
use crate::workload::Workshop;

/// The variable that sets how a program waits until it is known, see `workloads/known.h`.
pub const UNTIL_KNOWN: &str = "UNTIL_KNOWN";

/// The name of a recording for `--control`, and the value of [`UNTIL_KNOWN`] for its programs.
///
/// # Errors
/// When the binary cannot be built.
pub fn until_known() -> anyhow::Result<(String, String)> {
    let name = format!("test-known-{}", std::process::id());
    let wait = format!("{} ctl status {name} --wait known=", binary()?.display());
    Ok((name, wait))
}

/// aiprof, to be given options and a COMMAND that waits until it is known.
///
/// # Errors
/// When the binary cannot be built.
pub fn waited_for() -> anyhow::Result<Command> {
    let (name, wait) = until_known()?;
    let mut command = Command::new(binary()?);
    command
        .arg(format!("--control={name}"))
        .env(UNTIL_KNOWN, wait);
    Ok(command)
}

/// The states that a recording has printed, in a file.
#[derive(Debug)]
pub struct States {
    file: PathBuf,
}

impl States {
    /// The states of a recording that has not started yet.
    #[must_use]
    pub fn new(shop: &Workshop) -> Self {
        Self::at(shop.path("states"))
    }

    /// The same in a file of this path.
    #[must_use]
    pub fn at(file: PathBuf) -> Self {
        Self { file }
    }

    /// aiprof with these options and a command, if there is one; its process prints states.
    /// Stdin, stdout and stderr are piped.
    ///
    /// # Errors
    /// When the binary cannot be built.
    pub fn command(&self, options: &[&str], command: &[&str]) -> anyhow::Result<Command> {
        // What an earlier recording printed.
        let _ = std::fs::remove_file(&self.file);
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "exec 3>>\"$0\" && exec \"$@\""])
            .arg(&self.file)
            .arg(binary()?)
            .args(["--ready-fd", "3"])
            .args(options);
        if !command.is_empty() {
            shell.arg("--").args(command);
        }
        shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(shell)
    }

    /// All that was printed.
    #[must_use]
    pub fn text(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap_or_default()
    }

    /// Waits until a state is reached.
    ///
    /// # Errors
    /// It takes too long.
    pub fn wait_for(&self, state: &str) -> anyhow::Result<()> {
        self.wait(state, |line| line == state)
    }

    /// Waits until all of a process is known: files, unwind tables, kernels, probes.
    ///
    /// # Errors
    /// It takes too long.
    pub fn wait_known(&self, pid: u32) -> anyhow::Result<()> {
        self.wait_for(&format!("known={pid}"))
    }

    /// The same of COMMAND's process, which is known before its children.
    ///
    /// # Errors
    /// It takes too long.
    pub fn wait_known_command(&self) -> anyhow::Result<()> {
        self.wait("known=", |line| line.starts_with("known="))
    }

    fn wait(&self, what: &str, is_it: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let text = self.text();
            if text.lines().any(&is_it) {
                return Ok(());
            }
            anyhow::ensure!(start.elapsed() < LONG, "no {what} in {text:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
