//! `aiprof COMMAND`: the course of a recording, from the first check to the exit
//! code.

use super::closing::Totals;
use super::command;
use super::control;
use super::destination::OutputPlace;
use super::log;
use super::open_output::OpenOutput;
use super::profile_out;
use super::ready::Readiness;
use super::record::{Plan, RecordArgs};
use super::ring_dump::{DumpFiles, DumpStyle};
use super::stop::{self, Ended, Stop};
use super::values::{grouped, human_duration, plural};
use super::windows::WindowFiles;
use super::{EXIT_FAILURE, Verbosity, choice, is_broken_pipe, launching, rank_join, screen};
use aiprof_formats::export::FormatSource;
use aiprof_formats::import::kineto_ops::read_ops;
use aiprof_live::config::RecordConfig;
use aiprof_live::control::{Asked, RecordState, Reply, Request};
use aiprof_live::device::DeviceOptions;
use aiprof_live::doctor;
use aiprof_live::job::{self, JobPart, RankJob, Recorder};
use aiprof_live::launch::{Exit, Held, LaunchOptions};
use aiprof_live::runtime::Tally;
use aiprof_live::session::{AiuUse, CollectError, Finished, Keep, KnownProcess, Progress, Session};
use aiprof_live::signals::BlockedSignals;
use aiprof_live::torch::{TorchDaemon, TorchReports};
use aiprof_model::profile::Profile;
use aiprof_model::timeline::recorded::Recorded;
use aiprof_record::aiu::timing;
use aiprof_record::kernel_choice::KernelsLeftOut;
use aiprof_record::recording::RecordingSink;
use aiprof_record::store::Store;
use aiprof_record::timeline::CommandDetail;
use aiprof_system::errors::chain;
use aiprof_system::files::caller;
use aiprof_system::os::privileges::{self, StillToDo};
use aiprof_system::remote;
use anyhow::{Context, Result};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// What the processes of readers do.
pub(super) const READERS: remote::Work = remote::Work {
    kinds: [
        aiprof_live::reader::serve,
        aiprof_symbols::symbolize::serve,
        aiprof_live::inspect::serve,
    ],
    say: log::relay,
};

/// What becomes of the events of COMMAND and its children, once it has ended.
pub(super) struct Taker {
    /// Where the events wait.
    pub(super) store: Store,
    /// What of devices' commands there is among them.
    pub(super) detail: CommandDetail,
    /// Gets them, and COMMAND's process.
    pub(super) take: Box<dyn FnOnce(Recorded, Store, u32) -> Result<()>>,
    /// Gets each event as it happens.
    pub(super) watcher: Option<Box<dyn RecordingSink>>,
}

impl std::fmt::Debug for Taker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taker").finish_non_exhaustive()
    }
}

/// Records COMMAND and its children for somebody who takes their events in the end, and
/// returns the exit code. The plan is one of a trace.
///
/// # Errors
/// Whatever kept the recording or its result from being made.
pub(super) fn run_for(plan: Plan, taker: Taker, verbosity: Verbosity) -> Result<u8> {
    require_privileges(&plan)?;
    record(plan, Some(taker), None, verbosity)
}

/// Whether COMMAND can be recorded at all.
fn require_privileges(plan: &Plan) -> Result<()> {
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
    let plan = Plan::new(args, doctor::has_aiu())?;
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
    mut plan: Plan,
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
    let recording = Recording {
        plan: &plan,
        command: 0,
        reports,
        ready,
        quiet: verbosity.is_quiet(),
        output,
        totals: Totals::default(),
        left_out: KernelsLeftOut {
            none_left: true,
            ..KernelsLeftOut::default()
        },
    };
    let result = runtime.block_on(recording.run(signals, held, targets, recorder));
    screen::clear_progress();
    let crashed = [libc::SIGSEGV, libc::SIGABRT].map(|signal| Exit::Signal(signal).code());
    if result.as_ref().is_ok_and(|code| crashed.contains(code))
        && guard.is_some_and(|guard| guard.has_ended_program())
    {
        screen::say(
            "aiprof: COMMAND crashed while PyTorch recorded its operators, which can be the cause: \
             try a longer run, or omit --torch-ops",
        );
    }
    result
}

/// Takes the place of the daemon that COMMAND's PyTorch asks: it must be there before
/// COMMAND starts.
fn prepare_torch(plan: &Plan, options: &mut LaunchOptions) -> Result<Option<TorchDaemon>> {
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
fn user_of(plan: &Plan) -> (u32, u32) {
    match &plan.as_user {
        Some(user) => (user.uid, user.gid),
        None => (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
    }
}

/// What a recording becomes, opened.
#[derive(Debug, Default)]
enum RecordingOutput {
    /// One result.
    One(OpenOutput),
    /// A file per window.
    Windows(WindowFiles),
    /// Files of the last seconds.
    Dumps(Box<DumpFiles>),
    /// Nothing that is written here.
    Taken(Box<Taker>),
    /// It has been written.
    #[default]
    Written,
}

impl RecordingOutput {
    fn open(plan: &Plan, quiet: bool) -> Result<Self> {
        let format = plan.destination.format;
        Ok(match &plan.destination.place {
            OutputPlace::Dumps(directory) => {
                let style = DumpStyle {
                    directory: directory.clone(),
                    format,
                    replay: plan.replay,
                    export: plan.export.clone(),
                    kernels: plan.kernels.clone(),
                };
                Self::Dumps(Box::new(DumpFiles::open(style, &plan.steering, quiet)?))
            }
            OutputPlace::Windows {
                directory, keep, ..
            } => {
                let export = plan.export.clone();
                Self::Windows(WindowFiles::open(directory, format, export, *keep)?)
            }
            _ => Self::One(OpenOutput::open(&plan.destination, Path::new("aiprof"))?),
        })
    }

    /// What is kept of single events.
    fn keep(&mut self) -> Result<Keep> {
        Ok(match self {
            Self::Taken(taker) => {
                let empty = Store::new(Box::new(caller::scratch));
                Keep::Timeline(std::mem::replace(&mut taker.store, empty), taker.detail)
            }
            Self::One(out) => match out.source() {
                FormatSource::Profile(_) => Keep::Nothing,
                FormatSource::Capture => Keep::Capture(out.capture_writer()?),
                FormatSource::Timeline(_) | FormatSource::Report(_) | FormatSource::Directory => {
                    Keep::Timeline(out.store()?, CommandDetail::default())
                }
            },
            Self::Windows(_) | Self::Dumps(_) | Self::Written => Keep::Nothing,
        })
    }

    /// An error of the session; one in writing the capture names its file.
    fn explain(&self, error: CollectError) -> anyhow::Error {
        match (self, error) {
            (Self::One(out), CollectError::Capture(error)) if !out.is_stdout() => {
                anyhow::Error::new(error).context(out.cannot_write())
            }
            (_, error) => error.into(),
        }
    }
}

struct Recording<'a> {
    plan: &'a Plan,
    /// COMMAND's process, 0 if there is none.
    command: u32,
    /// Reports of PyTorch's operators, until the session takes them.
    reports: Option<TorchReports>,
    ready: Readiness,
    quiet: bool,
    output: RecordingOutput,
    totals: Totals,
    left_out: KernelsLeftOut,
}

impl Recording<'_> {
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

    /// Answers those who wait for a state that the recording has now reached.
    fn look_how_far(&mut self, session: &mut Session, stop: &mut Stop) {
        let mut done = Vec::new();
        if !session.is_paused() {
            done.extend(self.ready.reach(RecordState::Sampling));
        }
        for KnownProcess { pid, is_followed } in session.known().take() {
            let state = RecordState::Known(pid);
            if is_followed {
                done.extend(self.ready.reach(state));
            } else {
                done.extend(self.ready.take(|wanted| wanted == state));
            }
        }
        if !done.is_empty() {
            let status = self.status(session);
            done.into_iter()
                .for_each(|asked| stop.answer(asked, &status));
        }
        for pid in session.known().take_ended() {
            let ended = Reply::Refused(format!("process {pid} ended first"));
            let late = self.ready.take(|state| state == RecordState::Known(pid));
            late.into_iter()
                .for_each(|asked| stop.answer(asked, &ended));
        }
    }

    /// Somebody waits for a state.
    fn await_state(
        &mut self,
        asked: Asked,
        state: RecordState,
        session: &mut Session,
        stop: &mut Stop,
    ) {
        let is_reached = match state {
            RecordState::Known(pid) => session.known().contains(pid),
            state => self.ready.has(state),
        };
        let refused = match state {
            _ if is_reached => return stop.answer(asked, &self.status(session)),
            RecordState::Known(pid) if !session.known().request(pid) => {
                format!(
                    "process {pid} does not exist, or too many `aiprof ctl` commands are waiting"
                )
            }
            _ if !self.ready.wait(asked, state, |asked| stop.has(asked)) => {
                "too many `aiprof ctl` commands are already waiting".to_owned()
            }
            _ => return,
        };
        stop.answer(asked, &Reply::Refused(refused));
    }

    fn status(&mut self, session: &mut Session) -> Reply {
        let what = self.what();
        control::answer(session, Request::Status, self.dumps(), &what)
    }

    /// Where the last seconds go, if they are kept.
    fn dumps(&mut self) -> Option<&mut DumpFiles> {
        match &mut self.output {
            RecordingOutput::Dumps(files) => Some(files),
            _ => None,
        }
    }

    /// Something happened that was waited for, if anything did.
    fn fired(&mut self, session: &mut Session) {
        let Some(fired) = session.triggers().take() else {
            return;
        };
        match self.dumps() {
            Some(files) => files.fired(fired, session),
            None => self.say(&format!("aiprof: recording: {}", fired.what)),
        }
    }

    /// What is recorded and where to, for who steers it.
    fn what(&self) -> String {
        let config = &self.plan.config;
        let of = match (config.command.as_str(), config.pids.as_slice()) {
            ("", []) => "the machine".to_owned(),
            ("", pids) => format!("processes {pids:?}"),
            (command, _) => command.to_owned(),
        };
        format!("{of}; writes {}", self.plan.destination.place())
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

    /// Leaves out the kernels that are not wanted.
    fn keep_kernels(&mut self, profile: &mut Profile) {
        let out = self.plan.kernels.keep(profile);
        self.left_out.count = self.left_out.count.saturating_add(out.count);
        self.left_out.kernels.extend(out.kernels);
        self.left_out.none_left &= out.none_left;
    }

    fn window(&mut self, profile: &Profile) {
        self.totals.add(profile);
        if let RecordingOutput::Windows(files) = &mut self.output {
            files.write(profile);
        }
    }

    /// Writes the result and prints the summary; false if windows are missing.
    fn conclude(&mut self, mut session: Session, other_ranks: usize) -> Result<bool> {
        let dumps = self.dumps().map(|files| {
            files.end(&mut session);
            (files.written(), files.failures())
        });
        let Finished {
            mut profile,
            usage,
            paused,
            probes,
            aiu,
            device_problems,
            timeline,
            ..
        } = session
            .finish()
            .map_err(|error| self.output.explain(error))?;
        self.keep_kernels(&mut profile);
        self.totals.add(&profile);
        let options = self.plan.export.clone();
        let mut failures = dumps.map_or(0, |(_, failures)| failures);
        let mut notes = Vec::new();
        let format = self.plan.destination.format;
        let shown = profile_out::note_of_processes(&profile, format, &options);
        match std::mem::take(&mut self.output) {
            RecordingOutput::One(out) => {
                notes = self.write(out, &profile, timeline)?;
                if self.plan.destination.is_shown_summary() {
                    self.say(&format!(
                        "for a flame graph: {}",
                        self.flame_graph_command()
                    ));
                }
            }
            RecordingOutput::Taken(taker) => {
                let (recorded, events) = timeline.context("the recording kept no events")?;
                (taker.take)(recorded, events, self.command)?;
            }
            RecordingOutput::Dumps(_) | RecordingOutput::Written => {}
            RecordingOutput::Windows(mut files) => {
                files.write(&profile);
                failures = files.failures();
            }
        }
        let is_shown = self.plan.destination.is_shown_summary();
        let mut lines = self.totals.lines(&usage, is_shown);
        if let (Some((written, _)), Some(first)) = (dumps, lines.first_mut()) {
            // What was added up is what names are wanted of.
            let files = plural(usize::try_from(written).unwrap_or(usize::MAX));
            *first = format!("aiprof: wrote {} window file{files}", grouped(written));
        }
        for line in lines {
            self.say(&line);
        }
        if !paused.is_zero() {
            let paused = human_duration(paused);
            self.say(&format!(
                "  paused for {paused}, excluded from all numbers above"
            ));
        }
        if !self.plan.kernels.is_all() {
            self.say(&format!("  {}", choice::kernels_left_out(&self.left_out)));
        }
        if other_ranks > 0 {
            let (n, s) = (grouped(other_ranks as u64), plural(other_ranks));
            self.say(&format!("  {n} more rank{s} joined this recording"));
        }
        if let Some(line) = probes.and_then(|tally| probe_line(&tally)) {
            self.say(&line);
        }
        if let Some(line) = aiu_line(aiu, !self.plan.command.is_empty(), self.plan.aiu_timing) {
            self.say(&line);
        }
        if let Some(shown) = shown {
            self.say(&format!("  {shown}"));
        }
        for problem in &device_problems {
            self.say(&format!("  device: {problem}"));
        }
        notes.iter().for_each(|note| self.say(note));
        Ok(failures == 0)
    }

    /// Writes the one result; gives a line for each file that was written.
    fn write(
        &mut self,
        out: OpenOutput,
        profile: &Profile,
        timeline: Option<(Recorded, Store)>,
    ) -> Result<Vec<String>> {
        let note = out.note();
        match out.source() {
            // The session wrote it.
            FormatSource::Capture => out.commit()?,
            FormatSource::Profile(_) => {
                let may_be_left = out.is_stdout();
                let written = out.write_profile(profile, &self.plan.export);
                match may_be_left {
                    true => written.or_else(unless_broken_pipe)?,
                    false => written?,
                }
            }
            FormatSource::Timeline(_) | FormatSource::Report(_) | FormatSource::Directory => {
                let (recorded, events) = timeline.context("the recording kept no events")?;
                self.totals.add_losses(&recorded.losses);
                let written = out.write_trace(&recorded, events, Path::new("the recording"));
                let noted = written.map(|(totals, lines)| {
                    self.totals.add_trace(&totals);
                    lines
                });
                return noted.or_else(|error| unless_broken_pipe(error).map(|()| Vec::new()));
            }
        }
        Ok(note.into_iter().collect())
    }

    fn say(&self, line: &str) {
        if !self.quiet {
            screen::say(line);
        }
    }

    fn flame_graph_command(&self) -> String {
        match self.plan.config.command.as_str() {
            "" => "sudo aiprof -o flame.svg -d 10".to_owned(),
            command => format!("sudo aiprof -o flame.svg {command}"),
        }
    }
}

/// A reader that has gone wants no more; the command's exit code still counts.
fn unless_broken_pipe(error: anyhow::Error) -> Result<()> {
    if is_broken_pipe(&error) {
        Ok(())
    } else {
        Err(error)
    }
}

/// What of the runtimes was probed; nothing where there are none.
fn probe_line(tally: &Tally) -> Option<String> {
    let Tally {
        files,
        functions,
        refused,
        ..
    } = *tally;
    (files > 0).then(|| {
        let refused = match refused {
            0 => String::new(),
            n => format!(", {} not possible", grouped(n)),
        };
        let (functions, files) = (grouped(functions), grouped(files));
        format!("  probes: {functions} functions in {files} libraries{refused}")
    })
}

/// What is known of AIU devices, if only because they were called.
fn aiu_line(aiu: AiuUse, has_command: bool, asked: bool) -> Option<String> {
    if aiu.launches == 0 || aiu.records > 0 {
        return None;
    }
    let remedy = match (asked, has_command) {
        (true, _) => "the program enabled none, despite --aiu-timing",
        (false, true) => timing::HINT_COMMAND,
        (false, false) => timing::HINT_RUNNING,
    };
    Some(format!(
        "  AIU: no activity records, so device times are only known to lie between launch and \
         wait calls: {remedy}"
    ))
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
