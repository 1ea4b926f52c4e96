//! A process of a test that never outlives it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// How long anything may take that is not meant to: on a quiet machine it is a fraction of a
/// second.
pub const LONG: Duration = Duration::from_secs(60);

/// A running process, killed when dropped.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts a command; pipe its stdin and stdout to use the methods below.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut process = command
            .spawn()
            .with_context(|| format!("starting {command:?}"))?;
        let stdout = process.stdout.take().map(BufReader::new);
        Ok(Self { process, stdout })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The next line of its stdout.
    ///
    /// # Errors
    /// When stdout is not piped, or ended.
    pub fn read_line(&mut self) -> anyhow::Result<String> {
        let stdout = self.stdout.as_mut().context("stdout is not piped")?;
        let mut line = String::new();
        let n = stdout.read_line(&mut line)?;
        anyhow::ensure!(n > 0, "the process ended without a line");
        Ok(line)
    }

    /// Writes a line to its stdin.
    ///
    /// # Errors
    /// When stdin is not piped, or closed.
    pub fn write_line(&mut self, line: &str) -> anyhow::Result<()> {
        let stdin = self.process.stdin.as_mut().context("stdin is not piped")?;
        writeln!(stdin, "{line}")?;
        Ok(stdin.flush()?)
    }

    /// Waits for its end and returns the rest of its stdout.
    ///
    /// # Errors
    /// When it fails.
    pub fn output(&mut self) -> anyhow::Result<String> {
        let mut text = String::new();
        if let Some(stdout) = self.stdout.as_mut() {
            stdout.read_to_string(&mut text)?;
        }
        let status = self.process.wait()?;
        anyhow::ensure!(status.success(), "{status}:\n{text}");
        Ok(text)
    }

    /// Waits for its end, at most this long.
    ///
    /// # Errors
    /// When it still runs then.
    pub fn wait(&mut self, most: Duration) -> anyhow::Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status);
            }
            anyhow::ensure!(start.elapsed() < most, "still running after {most:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// What it wrote to a piped stderr, to the end.
    ///
    /// # Errors
    /// When stderr is not piped or not readable.
    pub fn stderr(&mut self) -> anyhow::Result<String> {
        let mut text = String::new();
        let stderr = self
            .process
            .stderr
            .as_mut()
            .context("stderr is not piped")?;
        stderr.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Sends it a signal by name (`INT`, `TERM`).
    ///
    /// # Errors
    /// When kill(1) fails.
    pub fn signal(&self, name: &str) -> anyhow::Result<()> {
        let mut kill = Command::new("kill");
        kill.arg("-s").arg(name).arg(self.pid().to_string());
        crate::workload::checked(kill.stdin(Stdio::null())).map(drop)
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        // It may have ended already; either way it is gone afterwards.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// System calls that a process waits in for another: in steps, or for a message of it.
const WAITS: [libc::c_long; 4] = [
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_poll,
    libc::SYS_ppoll,
];

/// Waits until a process itself waits, in a system call of its first thread.
///
/// # Errors
/// It does something else for a minute, or has ended.
pub fn until_it_waits(pid: u32, what: &str) -> anyhow::Result<()> {
    let path = format!("/proc/{pid}/syscall");
    let start = Instant::now();
    loop {
        // "running", or the number of the call and its arguments.
        let text = std::fs::read_to_string(&path).context(what.to_owned())?;
        let number = text.split(' ').next().and_then(|word| word.parse().ok());
        if number.is_some_and(|number| WAITS.contains(&number)) {
            return Ok(());
        }
        anyhow::ensure!(start.elapsed() < LONG, "{what} does not wait: {text}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
