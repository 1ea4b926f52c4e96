//! A rank of a job whose recording another rank makes: it only runs its command.

use super::launching;
use super::record::RecordingPlan;
use super::stop::{Ended, Stop};
use super::{Verbosity, screen};
use aiprof_live::job::{Joined, News};
use aiprof_live::launch::Exit;
use aiprof_live::signals::BlockedSignals;
use aiprof_system::os::privileges;
use anyhow::{Context as _, Result};
use rustix::thread::CapabilitySet;

/// Runs the command and returns its exit code.
///
/// # Errors
/// The command cannot be started.
pub(super) fn run(plan: &RecordingPlan, joined: Joined, verbosity: Verbosity) -> Result<u8> {
    let is_quiet = verbosity.is_quiet();
    let say = |line: &str| {
        if !is_quiet {
            screen::say(line);
        }
    };
    say(&format!(
        "aiprof: this rank is recorded by {} (use --no-join to record it separately)",
        joined.recorder()
    ));
    let signals = BlockedSignals::block(None).context("cannot prepare for signals")?;
    let held = launching::hold(&plan.command, &launching::options(plan, &signals)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start asynchronous tasks")?;
    runtime.block_on(async {
        let signals = signals.into_async().context("cannot watch for signals")?;
        // Its command may be another user's.
        privileges::drop_to(CapabilitySet::KILL)?;
        let mut stop = Stop::new(signals).with_command(Some(held.release()?));
        let mut news = std::pin::pin!(joined.news());
        let mut is_known = false;
        let ended = loop {
            tokio::select! {
                biased;
                ended = stop.next() => break ended?,
                news = &mut news, if !is_known => {
                    is_known = true;
                    if matches!(news, Ok(News::Died) | Err(_)) {
                        say(
                            "aiprof: the process that recorded this rank has ended early: the \
                             command continues without recording",
                        );
                    }
                }
            }
        };
        let exit = match ended {
            Ended::Command(exit) => Some(exit),
            Ended::NotLaunched(error) => return Err(error.into()),
            Ended::Window | Ended::Dump | Ended::Asked(_) | Ended::Recording => {
                stop.command_exit().await?
            }
        };
        // It was asked to end, and the command is left running.
        Ok(exit.unwrap_or(Exit::Signal(libc::SIGINT)).code())
    })
}
