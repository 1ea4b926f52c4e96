//! `aiprof-send`, the agent's child that has the network and no privileges.

use crate::cli::programs;
use aiprof_fleet::shared;
use aiprof_live::readable;
use aiprof_live::signals::OriginalMask;
use aiprof_system::errors::chain;
use aiprof_system::remote;
use anyhow::{Context as _, Result, bail};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags};
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// Its program.
const PROGRAM: &str = "aiprof-send";
/// How long it is waited before one that ended is started again: doubled each time, up to
/// the second.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// One that ran so long starts without delay.
const RAN_WELL: Duration = Duration::from_secs(60);
/// How long it may look at what it needs.
const CHECKING: Duration = Duration::from_secs(30);
/// Most bytes that are read of what it prints then.
const MAX_PRINTED: u64 = 1 << 20;
/// How long it may take to end.
const ENDING: Duration = Duration::from_secs(10);
/// The same when it was killed.
const KILLING: Duration = Duration::from_secs(1);

/// The running child, or when it is started again.
#[derive(Debug)]
pub(super) struct Sender {
    program: PathBuf,
    config: PathBuf,
    mask: OriginalMask,
    running: Option<RunningSender>,
    /// When it is started, if it does not run.
    due: Instant,
    delay: Duration,
    /// CPU time of those that have ended.
    ended: Duration,
}

#[derive(Debug)]
struct RunningSender {
    /// A byte on its stdin has it reload; the end of its stdin ends it, and so does the end of
    /// this process. It is another user's process, which this one may send no signal.
    child: Child,
    pidfd: AsyncFd<OwnedFd>,
    since: Instant,
}

/// Where `aiprof-send` is.
pub(super) fn find() -> Option<PathBuf> {
    programs::find(PROGRAM)
}

/// Has the sender check what keeps it from delivering with a configuration. Returns names of
/// outputs, or keys, and what is wrong.
///
/// # Errors
/// It cannot be started, or does not end in time.
pub(super) async fn check(program: &Path, config: &Path) -> Result<Vec<(String, String)>> {
    let context = || format!("cannot start {}", program.display());
    let mut command = Command::new(program);
    command
        .args(["--check", "--offline", "--config"])
        .arg(config);
    command.stdin(Stdio::null());
    // No pipes: its keeper, which may hang at a file, has them, too.
    let (mut out, mut err) = (scratch()?, scratch()?);
    command.stdout(out.try_clone()?).stderr(err.try_clone()?);
    let mut child = command.spawn().with_context(context)?;
    let pidfd = readable::watch(pidfd_of(&child)?).with_context(context)?;
    if tokio::time::timeout(CHECKING, pidfd.readable())
        .await
        .is_err()
    {
        // It may have ended just now. Where it is another user's process by now, it cannot be
        // killed, and where it hangs in the Linux kernel, it does not end: nothing waits for it.
        let _ = child.kill();
        tokio::spawn(async move {
            drop(pidfd.readable().await);
            let _ = child.wait();
        });
        bail!(
            "checking the configuration took longer than {CHECKING:?}: a file or directory does \
             not respond"
        );
    }
    let status = child.wait().with_context(context)?;
    let said = read(&mut out)?;
    let found = said
        .lines()
        .filter_map(|line| line.split_once(": FAILED: "));
    let found: Vec<_> = found
        .map(|(name, why)| (name.to_owned(), why.to_owned()))
        .collect();
    if found.is_empty() && !status.success() {
        let said = read(&mut err)?;
        bail!("{} --check: {status}: {}", program.display(), said.trim());
    }
    Ok(found)
}

/// A file without a name, for what a child prints.
fn scratch() -> Result<File> {
    let file = rustix::fs::memfd_create(PROGRAM, MemfdFlags::CLOEXEC);
    Ok(file.context("cannot create a temporary file")?.into())
}

/// What was written to such a file.
fn read(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(MAX_PRINTED).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn pidfd_of(child: &Child) -> Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.context("the process has no PID")?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

impl Sender {
    /// One that is started by [`Sender::keep`].
    pub(super) fn new(program: PathBuf, config: &Path, mask: OriginalMask) -> Self {
        Self {
            program,
            config: config.to_owned(),
            mask,
            running: None,
            due: Instant::now(),
            delay: AGAIN.0,
            ended: Duration::ZERO,
        }
    }

    /// Keeps it running. Ends when it was started anew, or could not be. Cancel-safe.
    pub(super) async fn keep(&mut self) {
        if let Some(running) = &mut self.running {
            // An error cannot be waited for: it counts as ended.
            drop(running.pidfd.readable().await);
            self.ended += remote::cpu_time_of(running.child.id());
            let status = running.child.wait();
            let ran = running.since.elapsed();
            self.delay = match ran >= RAN_WELL {
                true => AGAIN.0,
                false => (self.delay * 2).min(AGAIN.1),
            };
            self.due = Instant::now() + self.delay;
            self.running = None;
            let code = status.as_ref().ok().and_then(ExitStatus::code);
            if code == Some(shared::AGAIN.into()) {
                // It prints the reason itself.
                self.delay = AGAIN.0;
                self.due = Instant::now();
            } else {
                let how = status.map_or_else(|error| error.to_string(), |it| it.to_string());
                tracing::error!("{PROGRAM} ended ({how}); restarting it");
            }
        }
        tokio::time::sleep_until(self.due).await;
        match self.start() {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                tracing::error!("{}", chain(&*error));
                self.delay = (self.delay * 2).min(AGAIN.1);
                self.due = Instant::now() + self.delay;
            }
        }
    }

    fn start(&self) -> Result<RunningSender> {
        let context = || format!("cannot start {}", self.program.display());
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(&self.config);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mask = self.mask;
        // SAFETY: sigprocmask is async-signal-safe, and nothing else is done.
        unsafe {
            command.pre_exec(move || {
                mask.restore();
                Ok(())
            })
        };
        let child = command.spawn().with_context(context)?;
        let pidfd = pidfd_of(&child).with_context(context)?;
        if let Some(stdin) = &child.stdin {
            // One that is stopped must not stop this process, too.
            rustix::io::ioctl_fionbio(stdin, true).with_context(context)?;
        }
        Ok(RunningSender {
            child,
            pidfd: readable::watch(pidfd).with_context(context)?,
            since: Instant::now(),
        })
    }

    /// Its process, if it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    /// CPU time that it used, and those before it.
    pub(super) fn cpu_time(&self) -> Duration {
        self.ended + self.pid().map_or(Duration::ZERO, remote::cpu_time_of)
    }

    /// Memory that is its own, bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.pid().map_or(0, remote::memory_bytes_of)
    }

    /// Has it read the configuration again.
    pub(super) fn reload(&mut self) {
        let stdin = self.running.as_mut().and_then(|it| it.child.stdin.as_mut());
        if let Some(stdin) = stdin {
            // It may have ended, which is seen soon; or it has not read an earlier one yet.
            let _ = stdin.write_all(b"\n");
        }
    }

    /// Ends it; what it has not delivered stays in the spool.
    pub(super) async fn end(mut self) {
        let Some(mut running) = self.running.take() else {
            return;
        };
        drop(running.child.stdin.take());
        let mut ended = tokio::time::timeout(ENDING, running.pidfd.readable()).await;
        if ended.is_err() && running.child.kill().is_ok() {
            ended = tokio::time::timeout(KILLING, running.pidfd.readable()).await;
        }
        if ended.is_err() {
            let pid = running.child.id();
            tracing::warn!("{PROGRAM} (PID {pid}) has not exited within {ENDING:?}");
            return;
        }
        drop(ended);
        let _ = running.child.wait();
    }
}
