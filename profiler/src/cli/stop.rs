//! When a recording, or a window of it, ends.

use aiprof_live::control::{Asked, Control, Reply, Request};
use aiprof_live::job::Others;
use aiprof_live::launch::{Exit, LaunchError, Running};
use aiprof_live::readable;
use aiprof_live::signals::{Received, Signals};
use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags};
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// Why [`Stop::next`] resolved.
#[derive(Debug)]
pub(crate) enum Ended {
    /// A window is full; the recording goes on.
    Window,
    /// It is time to write the last seconds, or a signal asks for them.
    Dump,
    /// Somebody asks for something, and waits for [`Stop::answer`].
    Asked(Asked),
    /// The command ended.
    Command(Exit),
    /// The command was never executed.
    NotLaunched(LaunchError),
    /// Time is up, somebody asked for the end, or there is nothing left to record.
    Recording,
}

/// Everything that ends a recording.
#[derive(Debug)]
pub(crate) struct Stop {
    signals: Signals,
    command: Option<Running>,
    deadline: Option<Instant>,
    window: Option<tokio::time::Interval>,
    /// When to write the last seconds.
    dump: Option<Instant>,
    targets: Vec<AsyncFd<OwnedFd>>,
    /// Ranks of the same job, which have their commands in this recording.
    others: Option<Others>,
    control: Option<Control>,
    /// Who waits for the output to be whole.
    stoppers: Vec<Asked>,
    /// The own command has ended, and theirs are waited for.
    only_others: bool,
    signalled: bool,
}

impl Stop {
    /// Ends on signals.
    pub(crate) fn new(signals: Signals) -> Self {
        Self {
            signals,
            command: None,
            deadline: None,
            window: None,
            dump: None,
            targets: Vec::new(),
            others: None,
            control: None,
            stoppers: Vec::new(),
            only_others: false,
            signalled: false,
        }
    }

    /// Also ends when this time has passed since then.
    pub(crate) fn after(&mut self, duration: Option<Duration>, since: std::time::Instant) {
        self.deadline = duration.and_then(|d| Instant::from_std(since).checked_add(d));
    }

    /// Also ends with a command, to which signals are passed on.
    pub(crate) fn with_command(mut self, command: Option<Running>) -> Self {
        self.command = command;
        self
    }

    /// Also resolves at the end of each window of this length.
    pub(crate) fn with_windows(mut self, every: Duration) -> Self {
        let mut window = tokio::time::interval_at(Instant::now() + every, every);
        // A window that took long to write must not be followed by short ones.
        window.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.window = Some(window);
        self
    }

    /// Also resolves at this time, to write the last seconds.
    pub(crate) fn dump_at(&mut self, due: Option<Instant>) {
        self.dump = due;
    }

    /// Also ends when all these processes have ended.
    ///
    /// # Errors
    /// The runtime's reactor refused a descriptor.
    pub(crate) fn with_targets(mut self, targets: Vec<OwnedFd>) -> Result<Self> {
        for pidfd in targets {
            self.targets.push(readable::watch(pidfd)?);
        }
        Ok(self)
    }

    /// Lets other ranks of the job join.
    pub(crate) fn with_others(mut self, others: Option<Others>) -> Self {
        self.others = others;
        self
    }

    /// Also lets others steer it.
    pub(crate) fn with_control(mut self, control: Option<Control>) -> Self {
        self.control = control;
        self
    }

    /// Answers a request.
    pub(crate) fn answer(&mut self, asked: Asked, answer: &Reply) {
        if let Some(control) = &mut self.control {
            control.answer(asked, answer);
        }
    }

    /// Whether somebody still waits for the answer to a request.
    pub(crate) fn has(&self, asked: Asked) -> bool {
        self.control
            .as_ref()
            .is_some_and(|control| control.has(asked))
    }

    /// The output is whole, or cannot be made: answers those who asked for the end, and takes no
    /// more requests.
    pub(crate) fn end_control(&mut self, answer: &Reply) {
        for asked in std::mem::take(&mut self.stoppers) {
            self.answer(asked, answer);
        }
        self.control = None;
    }

    /// The recording has begun: those that joined start their commands.
    pub(crate) fn begin(&mut self) {
        if let Some(others) = &mut self.others {
            others.begin();
        }
    }

    /// Whether other ranks may have joined, or may yet.
    pub(crate) fn has_others(&self) -> bool {
        self.others.is_some()
    }

    /// How many other ranks have commands that run.
    pub(crate) fn running_others(&self) -> usize {
        self.others.as_ref().map_or(0, |others| others.counts().1)
    }

    /// From now on the recording ends with the commands of the others.
    pub(crate) fn only_others(&mut self) {
        self.only_others = true;
    }

    /// The recording is over: notifies the others. Returns how many there were.
    pub(crate) fn end_others(&mut self) -> usize {
        let Some(others) = self.others.take() else {
            return 0;
        };
        let (came, _) = others.counts();
        others.end();
        came
    }

    /// Waits for the next of these events. Cancel-safe.
    ///
    /// # Errors
    /// A signal could not be read.
    pub(crate) async fn next(&mut self) -> Result<Ended> {
        loop {
            let deadline = self.deadline;
            tokio::select! {
                biased;
                exit = wait_for(self.command.as_ref()), if !self.only_others => return Ok(match exit {
                    Ok(exit) => Ended::Command(exit),
                    Err(error) => Ended::NotLaunched(error),
                }),
                received = self.signals.next() => {
                    let received = received.context("cannot read signals")?;
                    if received.number == libc::SIGUSR2 {
                        return Ok(Ended::Dump);
                    }
                    if self.handle(received) {
                        return Ok(Ended::Recording);
                    }
                }
                () = sleep_until(self.dump) => return Ok(Ended::Dump),
                asked = asked(self.control.as_mut()) => {
                    if asked.request != Request::Stop {
                        return Ok(Ended::Asked(asked));
                    }
                    self.stoppers.push(asked);
                    // As if this process alone was interrupted.
                    let interrupt = Received { number: libc::SIGINT, from_terminal: false };
                    if self.handle(interrupt) {
                        return Ok(Ended::Recording);
                    }
                }
                () = sleep_until(deadline) => return Ok(Ended::Recording),
                () = all_ended(&self.targets) => return Ok(Ended::Recording),
                () = serve(self.others.as_mut(), self.only_others) => return Ok(Ended::Recording),
                () = tick(self.window.as_mut()) => return Ok(Ended::Window),
            }
        }
    }

    /// After the recording: waits for a command that still runs, passing signals on. `None` if
    /// there is none, or if it did not end after two signals.
    ///
    /// # Errors
    /// A signal could not be read.
    pub(crate) async fn command_exit(&mut self) -> Result<Option<Exit>> {
        let Some(command) = &self.command else {
            return Ok(None);
        };
        let mut signals = 0;
        loop {
            tokio::select! {
                biased;
                exit = command.wait() => return Ok(Some(exit?)),
                received = self.signals.next() => {
                    let received = received.context("cannot read signals")?;
                    if is_for_command(received) {
                        command.signal(received.number);
                    }
                    signals += 1;
                    if signals == 2 {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Acts on a signal; true if it ends the recording.
    fn handle(&mut self, received: Received) -> bool {
        let has_command = self.command.is_some() && !self.only_others;
        let action = decide(received, has_command, self.signalled);
        self.signalled = true;
        if action.forward
            && let Some(command) = &self.command
        {
            command.signal(received.number);
        }
        action.end
    }
}

/// What to do about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SignalAction {
    forward: bool,
    end: bool,
}

/// Whether the command may not have got a signal itself. A terminal's signals go to both. But when
/// a terminal is gone, only the leader of its session is sure to get SIGHUP: this process may be
/// that.
fn is_for_command(received: Received) -> bool {
    !received.from_terminal || received.number == libc::SIGHUP
}

/// A signal that the command did not get is passed on; it is left to decide. SIGINT sent to this
/// process alone, and any second signal, end the recording even if the command goes on.
fn decide(received: Received, has_command: bool, signalled_before: bool) -> SignalAction {
    if !has_command {
        return SignalAction {
            forward: false,
            end: true,
        };
    }
    let is_interrupt = !received.from_terminal && received.number == libc::SIGINT;
    SignalAction {
        forward: is_for_command(received),
        end: signalled_before || is_interrupt,
    }
}

/// Descriptors that turn readable when these processes end.
///
/// # Errors
/// One of them does not exist.
pub(crate) fn open_targets(pids: &[u32]) -> Result<Vec<OwnedFd>> {
    let open = |&pid: &u32| {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let raw = raw.with_context(|| format!("{pid} is not a PID"))?;
        rustix::process::pidfd_open(raw, PidfdFlags::empty())
            .with_context(|| format!("cannot profile process {pid}"))
    };
    pids.iter().map(open).collect()
}

async fn wait_for(command: Option<&Running>) -> Result<Exit, LaunchError> {
    match command {
        Some(command) => command.wait().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn tick(window: Option<&mut tokio::time::Interval>) {
    match window {
        Some(window) => drop(window.tick().await),
        None => std::future::pending().await,
    }
}

async fn asked(control: Option<&mut Control>) -> Asked {
    match control {
        Some(control) => control.next().await,
        None => std::future::pending().await,
    }
}

async fn serve(others: Option<&mut Others>, until_ended: bool) {
    match others {
        Some(others) => others.serve(until_ended).await,
        None => std::future::pending().await,
    }
}

async fn all_ended(targets: &[AsyncFd<OwnedFd>]) {
    if targets.is_empty() {
        std::future::pending::<()>().await;
    }
    for target in targets {
        // An error cannot be waited for: treat the process as ended.
        drop(target.readable().await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_forwarded_once_and_end_the_recording_when_meant_to() {
        let (int, term) = (libc::SIGINT, libc::SIGTERM);
        // (signal, from the terminal, a command, signalled before), (forward, end)
        for (case, (forward, end)) in [
            ((int, true, true, false), (false, false)),
            ((int, true, true, true), (false, true)),
            ((int, false, true, false), (true, true)),
            ((term, false, true, false), (true, false)),
            ((term, false, true, true), (true, true)),
            ((libc::SIGQUIT, true, true, false), (false, false)),
            ((libc::SIGHUP, true, true, false), (true, false)),
            ((int, true, false, false), (false, true)),
            ((term, false, false, false), (false, true)),
        ] {
            let (number, from_terminal, command, before) = case;
            let received = Received {
                number,
                from_terminal,
            };
            let action = decide(received, command, before);
            assert_eq!(action, SignalAction { forward, end }, "{case:?}");
        }
    }

    #[test]
    fn a_process_that_does_not_exist_is_named() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let error = format!("{:#}", open_targets(&[child.id()]).unwrap_err());
        assert!(error.contains(&child.id().to_string()), "{error}");
        assert!(open_targets(&[u32::MAX]).is_err());
    }

    #[tokio::test]
    async fn a_recording_ends_with_the_last_of_its_processes() {
        let mut children: Vec<_> = ["0.02", "0.2"]
            .map(|time| {
                std::process::Command::new("sleep")
                    .arg(time)
                    .spawn()
                    .unwrap()
            })
            .into();
        let pids: Vec<_> = children.iter().map(std::process::Child::id).collect();
        let targets: Vec<_> = open_targets(&pids)
            .unwrap()
            .into_iter()
            .map(|fd| readable::watch(fd).unwrap())
            .collect();
        let begin = Instant::now();
        all_ended(&targets).await;
        assert!(begin.elapsed() >= Duration::from_millis(100));
        for child in &mut children {
            child.wait().unwrap();
        }
    }
}
