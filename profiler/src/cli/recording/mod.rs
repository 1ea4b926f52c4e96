//! `aiprof COMMAND`: the course of a recording, from the first check to the exit
//! code.

mod end;
mod output;
mod requests;

use super::closing::WindowTotals;
use super::command;
use super::control;
use super::destination::OutputPlace;
use super::log;
use super::ready::Readiness;
use super::record::{RecordArgs, RecordingPlan};
use super::stop::{self, Ended, Stop};
use super::values::{grouped, human_duration, plural};
use super::{EXIT_FAILURE, Verbosity, launching, rank_join, screen};
use aiprof_formats::import::kineto_ops::read_ops;
use aiprof_live::config::RecordConfig;
use aiprof_live::control::{RecordState, Reply, Request};
use aiprof_live::device::DeviceOptions;
use aiprof_live::doctor;
use aiprof_live::job::{self, JobPart, RankJob, Recorder};
use aiprof_live::launch::{Exit, Held, LaunchOptions};
use aiprof_live::session::{Keep, Progress, Session};
use aiprof_live::signals::BlockedSignals;
use aiprof_live::torch::{TorchDaemon, TorchGuard, TorchReports};
use aiprof_model::profile::Profile;
use aiprof_record::kernel_choice::KernelsLeftOut;
use aiprof_system::errors::chain;
use aiprof_system::os::privileges::{self, StillToDo};
use aiprof_system::remote;
use anyhow::{Context, Result};
use output::RecordingOutput;
pub(super) use output::Taker;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// What the processes of readers do.
pub(super) const READERS: remote::ProcessWork = remote::ProcessWork {
    kinds: [
        aiprof_live::reader::serve,
        aiprof_symbols::symbolize::serve,
        aiprof_live::inspect::serve,
    ],
    say: log::relay,
};

/// Records COMMAND and its children for somebody who takes their events in the end, and
/// returns the exit code. The plan is one of a trace.
///
/// # Errors
/// Whatever kept the recording or its result from being made.
pub(super) fn run_for(plan: RecordingPlan, taker: Taker, verbosity: Verbosity) -> Result<u8> {
    require_privileges(&plan)?;
    record(plan, Some(taker), None, verbosity)
}

/// Whether COMMAND can be recorded at all.
fn require_privileges(plan: &RecordingPlan) -> Result<()> {
    command::check(&plan.command)?;
    let have = privileges::effective()?;
    privileges::require(have)?;
    for missing in privileges::missing(have) {
        tracing::debug!("without {}: {}", missing.name, missing.purpose);
    }
    Ok(())
}

/// Records with these options and returns the exit code.
///
/// # Errors
/// Whatever kept the recording or its result from being made.
pub(crate) fn run(args: RecordArgs, verbosity: Verbosity) -> Result<u8> {
    let plan = RecordingPlan::new(args, doctor::has_aiu())?;
    require_privileges(&plan)?;
    let job = plan.shared.as_deref().and_then(RankJob::of_this_process);
    let recorder = match job.map(job::take_part) {
        None => None,
        Some(Ok(JobPart::Recorder(recorder))) => Some(recorder),
        Some(Ok(JobPart::Joined(joined))) => return rank_join::run(&plan, joined, verbosity),
        Some(Ok(JobPart::Alone(why))) => {
            tracing::warn!("recording this rank separately from the other ranks: {why}");
            None
        }
        Some(Err(error)) => {
            tracing::debug!("recording this rank separately: cannot find other ranks: {error}");
            None
        }
    };
    record(plan, None, recorder, verbosity)
}

fn record(
    mut plan: RecordingPlan,
    taker: Option<Taker>,
    recorder: Option<Recorder>,
    verbosity: Verbosity,
) -> Result<u8> {
    // Before the fork: COMMAND must not inherit it.
    let ready = Readiness::new(plan.steering.ready_fd)?;
    let targets = stop::open_targets(&plan.config.pids)?;
    let only_command = plan.only_command || taker.is_some();
    let output = match taker {
        Some(taker) => RecordingOutput::Taken(Box::new(taker)),
        None => RecordingOutput::open(&plan, verbosity.is_quiet())?,
    };
    // Signals first, then the fork, then the runtime: the command must inherit
    // neither threads nor a blocked mask, and no signal may find us unprepared.
    let signals = BlockedSignals::block(plan.steering.window.map(|_| libc::SIGUSR2))
        .context("cannot prepare for signals")?;
    let mut options = launching::options(&plan, &signals)?;
    let torch = prepare_torch(&plan, &mut options)?;
    let held = match plan.command.as_slice() {
        [] => None,
        command => Some(launching::hold(command, &options)?),
    };
    if let (Some(held), true) = (&held, only_command) {
        plan.config.pids = vec![held.pid()];
        plan.config.only_command = true;
    }
    remote::keep_little_memory();
    remote::start(READERS).context("cannot start the readers")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start asynchronous tasks")?;
    let roots = match &held {
        Some(held) => vec![held.pid()],
        None => plan.config.pids.clone(),
    };
    let torch = torch.map(|torch| torch.start(roots)).transpose()?;
    // Programs are answered until the very end.
    let (guard, reports) = torch.unzip();
    let recording = RunningRecording {
        plan: &plan,
        command: 0,
        reports,
        ready,
        quiet: verbosity.is_quiet(),
        output,
        totals: WindowTotals::default(),
        left_out: KernelsLeftOut {
            none_left: true,
            ..KernelsLeftOut::default()
        },
    };
    let result = runtime.block_on(recording.run(signals, held, targets, recorder));
    screen::clear_progress();
    if let (Some(guard), Ok(code)) = (guard, &result)
        && let Some(text) = torch_advice(&guard, *code)
    {
        screen::say(text);
    }
    result
}

/// What to do about operators that were not recorded, or that cost a program its end. `code`:
/// exit code of the recording.
fn torch_advice(guard: &TorchGuard, code: u8) -> Option<&'static str> {
    let crashed = [libc::SIGSEGV, libc::SIGABRT].map(|signal| Exit::Signal(signal).code());
    if !guard.was_asked() {
        Some(
            "aiprof: no PyTorch operators were recorded: no program asked whether to record. \
             PyTorch before 2.0 and builds without Kineto cannot ask. Others ask one second after \
             they were loaded; with -p, only if they were started with KINETO_USE_DAEMON=1.",
        )
    } else if crashed.contains(&code) && guard.has_ended_program() {
        Some(
            "aiprof: COMMAND crashed while PyTorch recorded its operators, which can be the cause: \
             try a longer run, or omit --torch-ops",
        )
    } else {
        None
    }
}

/// Takes the place of the daemon that COMMAND's PyTorch asks: it must be there before
/// COMMAND starts.
fn prepare_torch(plan: &RecordingPlan, options: &mut LaunchOptions) -> Result<Option<TorchDaemon>> {
    let Some(torch) = plan.torch else {
        return Ok(None);
    };
    let daemon = TorchDaemon::prepare(torch, user_of(plan), |file, clock, thread| {
        Ok(read_ops(file, clock, thread)?)
    })?;
    options.environment.extend(daemon.environment());
    Ok(Some(daemon))
}

/// The user and group that COMMAND runs as.
fn user_of(plan: &RecordingPlan) -> (u32, u32) {
    match &plan.as_user {
        Some(user) => (user.uid, user.gid),
        None => (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
    }
}

struct RunningRecording<'a> {
    plan: &'a RecordingPlan,
    /// COMMAND's process, 0 if there is none.
    command: u32,
    /// Reports of PyTorch's operators, until the session takes them.
    reports: Option<TorchReports>,
    ready: Readiness,
    quiet: bool,
    output: RecordingOutput,
    totals: WindowTotals,
    left_out: KernelsLeftOut,
}

impl RunningRecording<'_> {
    async fn run(
        mut self,
        signals: BlockedSignals,
        held: Option<Held>,
        targets: Vec<OwnedFd>,
        recorder: Option<Recorder>,
    ) -> Result<u8> {
        let signals = signals.into_async().context("cannot watch for signals")?;
        let told = format!(
            "process {}, which writes {}",
            std::process::id(),
            self.plan.destination.place()
        );
        let others = recorder.and_then(|recorder| {
            let listening = recorder.listen(&told);
            let alone = |error: &_| {
                tracing::warn!(
                    "cannot record the other ranks of the job in this recording: {error}"
                )
            };
            listening.inspect_err(alone).ok()
        });
        let control = control::open(&self.plan.steering)?;
        let command = held.as_ref().map_or(0, Held::pid);
        let mut session = self.start()?;
        if let RecordingOutput::Taken(taker) = &mut self.output
            && let Some(watcher) = taker.watcher.take()
        {
            session.on_events(watcher);
        }
        self.command = command;
        if self.ready.prints() {
            session.follow_known(held.as_ref().map(Held::pid));
        }
        if let Some(reports) = self.reports.take() {
            session.with_torch(reports);
        }
        // With a command, it decides when to end; the processes are only a filter.
        let targets = if held.is_none() { targets } else { Vec::new() };
        let mut stop = Stop::new(signals)
            .with_targets(targets)?
            .with_others(others);
        // From the first sample on, or from when calls are seen.
        let is_sampled = self.plan.config.launches.is_none();
        if held.is_none() && is_sampled {
            stop.after(self.plan.duration, session.started());
        }
        let is_over = self.prepare(&mut session, &mut stop).await?;
        privileges::drop_to_needed(StillToDo {
            write_file: self.plan.destination.writes_files(),
            signal_command: held.is_some(),
            ..StillToDo::default()
        })?;
        if is_over {
            screen::clear_progress();
            let never_ran = held.is_some();
            let written = self.conclude(session, 0)?;
            return Ok(match (written, never_ran) {
                (false, _) => EXIT_FAILURE,
                (true, true) => Exit::Signal(libc::SIGINT).code(),
                (true, false) => 0,
            });
        }
        // No request can be waiting yet, so the returned list is not used.
        self.ready.reach(RecordState::Attached);
        let command = held.map(Held::release).transpose()?;
        stop.begin();
        self.announce(command.is_some());
        if let Some(control) = &control {
            self.say(&control::hint(control, session.is_paused()));
        }
        if command.is_some() || !is_sampled {
            stop.after(self.plan.duration, Instant::now());
        }
        let mut stop = stop.with_command(command).with_control(control);
        if let OutputPlace::Windows { every, .. } = self.plan.destination.place {
            stop = stop.with_windows(every);
        }
        let exit = self.record(&mut session, &mut stop).await?;
        screen::clear_progress();
        let over = Reply::Refused("the recording ended first".to_owned());
        let late = self.ready.take(|_| true);
        late.into_iter().for_each(|asked| stop.answer(asked, &over));
        let ranks = stop.end_others();
        let result = self.conclude(session, ranks);
        stop.end_control(&match &result {
            Ok(true) => Reply::Done(Box::default()),
            Ok(false) => Reply::Refused("a file could not be written".to_owned()),
            Err(error) => Reply::Refused(chain(&**error)),
        });
        // The command's end is waited for even if the result could not be written.
        let exit = match exit {
            Some(exit) => Some(exit),
            None => self.outlived_by_command(&mut stop).await?,
        };
        let written = result?;
        Ok(match exit {
            _ if !written => EXIT_FAILURE,
            Some(exit) => exit.code(),
            None if self.plan.command.is_empty() => 0,
            // It was asked to end, and the command is left running.
            None => Exit::Signal(libc::SIGINT).code(),
        })
    }

    /// Records until everything needed is attached. Returns `true` if the recording ended before.
    async fn prepare(&self, session: &mut Session, stop: &mut Stop) -> Result<bool> {
        let mut ended = None;
        let until = async { ended = Some(stop.next().await) };
        let prepared = session.prepare(until).await;
        prepared.map_err(|error| self.output.explain(error))?;
        Ok(ended.transpose()?.is_some())
    }

    /// Begins to record. If accelerators that were not asked for cannot be recorded, records the
    /// rest.
    fn start(&mut self) -> Result<Session> {
        let keep = self.output.keep()?;
        let error = match Session::start(&self.plan.config, keep) {
            Ok(session) => return Ok(session),
            Err(error) => error,
        };
        if !self.plan.is_unasked {
            return Err(self.output.explain(error));
        }
        let config = RecordConfig {
            probes: None,
            devices: DeviceOptions {
                xe: false,
                ..DeviceOptions::default()
            },
            ..self.plan.config.clone()
        };
        let session =
            Session::start(&config, Keep::Nothing).map_err(|error| self.output.explain(error))?;
        tracing::warn!("accelerators are not recorded: {error}");
        Ok(session)
    }

    /// The recording is over; the command, if any, is not.
    async fn outlived_by_command(&self, stop: &mut Stop) -> Result<Option<Exit>> {
        if !self.plan.command.is_empty() {
            self.say("aiprof: waiting for COMMAND to end (press Ctrl-C twice to leave it running)");
        }
        stop.command_exit().await
    }

    fn announce(&self, has_command: bool) {
        if let OutputPlace::Windows {
            directory,
            every,
            keep,
        } = &self.plan.destination.place
        {
            let kept = match keep {
                Some(n) => format!("keeping the newest {n}"),
                None => "keeping all (use --keep N to keep the newest N)".to_owned(),
            };
            self.say(&format!(
                "aiprof: writing a file every {} to {}, {kept}",
                human_duration(*every),
                directory.display()
            ));
        }
        let open_ended = !has_command && self.plan.duration.is_none();
        if open_ended {
            let what = match self.plan.config.pids.as_slice() {
                [] => "recording",
                _ => "recording until the processes of -p end, or",
            };
            self.say(&format!("aiprof: {what} until Ctrl-C"));
        }
    }

    /// Records until the end; windows are written on the way.
    async fn record(&mut self, session: &mut Session, stop: &mut Stop) -> Result<Option<Exit>> {
        let progress = !self.quiet && screen::has_progress();
        let mut own = None;
        loop {
            self.look_how_far(session, stop);
            let mut ended = None;
            if let RecordingOutput::Dumps(files) = &self.output {
                stop.dump_at(files.due());
            }
            let until = async { ended = Some(stop.next().await) };
            let ready = &mut self.ready;
            session
                .run(until, |now| {
                    ready.flush();
                    if progress {
                        screen::set_progress(&progress_line(now));
                    }
                })
                .await
                .map_err(|error| self.output.explain(error))?;
            match ended.transpose()? {
                Some(Ended::Window) => {
                    let mut profile = session.window()?;
                    self.keep_kernels(&mut profile);
                    self.window(&profile);
                }
                Some(Ended::Asked(asked)) => {
                    if let Request::Wait(state) = asked.request {
                        self.await_state(asked, state, session, stop);
                        continue;
                    }
                    let what = self.what();
                    let answer = control::answer(session, asked.request, self.dumps(), &what);
                    stop.answer(asked, &answer);
                }
                Some(Ended::Dump) => {
                    if let Some(files) = self.dumps() {
                        match files.due() {
                            Some(_) => files.write_due(session),
                            None => files.write(session),
                        }
                    }
                }
                Some(Ended::Command(exit)) => {
                    own = Some(exit);
                    if !stop.has_others() {
                        return Ok(own);
                    }
                    stop.only_others();
                    self.await_others(stop.running_others());
                }
                Some(Ended::NotLaunched(error)) => return Err(error.into()),
                Some(Ended::Recording) => return Ok(own),
                // Something happened that was waited for.
                None => self.fired(session),
            }
        }
    }

    /// The own command has ended; those of other ranks have not.
    fn await_others(&self, running: usize) {
        if running > 0 {
            let (n, s) = (grouped(running as u64), plural(running));
            self.say(&format!(
                "aiprof: recording until the commands of {n} other rank{s} end, or until Ctrl-C"
            ));
        }
    }

    fn window(&mut self, profile: &Profile) {
        self.totals.add(profile);
        if let RecordingOutput::Windows(files) = &mut self.output {
            files.write(profile);
        }
    }

    fn say(&self, line: &str) {
        if !self.quiet {
            screen::say(line);
        }
    }
}

fn progress_line(now: &Progress) -> String {
    format!(
        "{}  {} samples  {} lost  {} processes",
        human_duration(now.elapsed),
        grouped(now.samples),
        grouped(now.lost),
        grouped(now.processes as u64)
    )
}
