//! `aiprof COMMAND`: the course of a recording, from the first check to the exit
//! code.

use super::advice::refuse_mistyped;
use super::closing::Totals;
use super::destination::Destination;
use super::output::OutputFile;
use super::profile_out;
use super::record::{Plan, RecordArgs};
use super::stop::{self, Ended, Stop};
use super::trace_out::TraceOut;
use super::values::{grouped, human_duration, plural};
use super::windows::WindowFiles;
use super::{EXIT_FAILURE, Verbosity, choice, is_broken_pipe, joined, screen};
use aiprof_analysis::aiu::timing;
use aiprof_analysis::kernel_choice::KernelsLeftOut;
use aiprof_collect::config::RecordConfig;
use aiprof_collect::device::DeviceOptions;
use aiprof_collect::doctor;
use aiprof_collect::job::{self, JobPart, RankJob, Recorder};
use aiprof_collect::launch::{Exit, Held, LaunchOptions};
use aiprof_collect::runtime::Tally;
use aiprof_collect::session::{AiuUse, CollectError, Finished, Keep, Progress, Session};
use aiprof_collect::signals::BlockedSignals;
use aiprof_formats::export::Format;
use aiprof_model::profile::Profile;
use aiprof_system::os::privileges::{self, StillToDo};
use aiprof_system::remote;
use anyhow::{Context, Result};
use std::io::BufWriter;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// What the processes of readers do.
pub(super) const READERS: remote::Work = remote::Work {
    kinds: [
        aiprof_collect::reader::serve,
        aiprof_symbols::symbolize::serve,
        aiprof_collect::inspect::serve,
    ],
    say: screen::say,
};

/// Records as the options say and returns the exit code.
///
/// # Errors
/// Whatever kept the recording or its result from being made.
pub(crate) fn run(args: RecordArgs, verbosity: Verbosity) -> Result<u8> {
    let plan = Plan::new(args, doctor::has_aiu())?;
    refuse_mistyped(&plan.command)?;
    let have = privileges::effective()?;
    privileges::require(have)?;
    for missing in privileges::missing(have) {
        tracing::debug!("without {}: {}", missing.name, missing.purpose);
    }
    let job = plan.shared.as_deref().and_then(RankJob::of_this_process);
    let recorder = match job.map(job::take_part) {
        None => None,
        Some(Ok(JobPart::Recorder(recorder))) => Some(recorder),
        Some(Ok(JobPart::Joined(joined))) => return joined::run(&plan, joined, verbosity),
        Some(Ok(JobPart::Alone(why))) => {
            tracing::warn!("recording by itself, not with the other ranks of the job: {why}");
            None
        }
        Some(Err(error)) => {
            tracing::debug!("recording by itself, as ranks of a job cannot meet: {error}");
            None
        }
    };
    let targets = stop::open_targets(&plan.config.pids)?;
    let output = Output::open(&plan)?;
    // Signals first, then the fork, then the runtime: the command must inherit
    // neither threads nor a blocked mask, and no signal may find us unprepared.
    let signals = BlockedSignals::block().context("cannot prepare for signals")?;
    let held = match plan.command.as_slice() {
        [] => None,
        command => Some(Held::fork(command, &launch_options(&plan, &signals))?),
    };
    remote::keep_little_memory();
    remote::start(READERS).context("cannot start the readers")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let recording = Recording {
        plan: &plan,
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
    result
}

/// How COMMAND is started.
pub(super) fn launch_options(plan: &Plan, signals: &BlockedSignals) -> LaunchOptions {
    LaunchOptions {
        as_user: plan.as_user.clone(),
        stdout_to_stderr: plan.destination.uses_stdout(),
        mask: Some(signals.original_mask()),
        environment: match plan.aiu_timing {
            true => timing::environment(),
            false => Vec::new(),
        },
    }
}

/// The opened destination.
#[derive(Debug)]
enum Output {
    Summary,
    SummaryFile(OutputFile),
    Stdout(Format),
    File(OutputFile, Format),
    Trace(TraceOut),
    Windows(WindowFiles),
}

impl Output {
    fn open(plan: &Plan) -> Result<Self> {
        Ok(match &plan.destination {
            trace if trace.is_trace() => Self::Trace(TraceOut::open(trace, Path::new("aiprof"))?),
            Destination::Summary | Destination::Directory(_) => Self::Summary,
            Destination::SummaryFile(path) => Self::SummaryFile(OutputFile::create(path)?),
            Destination::Stdout(format) => Self::Stdout(*format),
            Destination::File(path, format) => Self::File(OutputFile::create(path)?, *format),
            Destination::Windows {
                directory,
                format,
                keep,
                ..
            } => Self::Windows(WindowFiles::open(
                directory,
                *format,
                plan.export.clone(),
                *keep,
            )?),
        })
    }

    /// A line that says what is written, if it is one file.
    fn note(&self) -> Option<String> {
        match self {
            Self::SummaryFile(file) => file.note("the summary"),
            Self::File(file, format) => file.note(format.what()),
            Self::Summary | Self::Stdout(_) | Self::Trace(_) | Self::Windows(_) => None,
        }
    }

    /// What is kept of single events.
    fn keep(&self) -> Result<Keep> {
        Ok(match self {
            Self::File(file, Format::Capture) => {
                Keep::Capture(Box::new(BufWriter::new(file.handle()?)))
            }
            Self::Stdout(Format::Capture) => {
                Keep::Capture(Box::new(BufWriter::new(std::io::stdout())))
            }
            Self::Trace(out) => Keep::Timeline(out.store()?),
            _ => Keep::Nothing,
        })
    }

    /// An error of the session; one in writing the capture names its file.
    fn explain(&self, error: CollectError) -> anyhow::Error {
        match (self, error) {
            (Self::File(file, _), CollectError::Capture(error)) => {
                let context = format!("cannot write {}", file.path().display());
                anyhow::Error::new(error).context(context)
            }
            (_, error) => error.into(),
        }
    }
}

struct Recording<'a> {
    plan: &'a Plan,
    quiet: bool,
    output: Output,
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
            let alone = |error: &_| tracing::warn!("other ranks of the job cannot join: {error}");
            listening.inspect_err(alone).ok()
        });
        let mut session = self.start()?;
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
        let command = held.map(Held::release).transpose()?;
        stop.begin();
        self.announce(command.is_some());
        if command.is_some() || !is_sampled {
            stop.after(self.plan.duration, Instant::now());
        }
        let mut stop = stop.with_command(command);
        if let Destination::Windows { every, .. } = self.plan.destination {
            stop = stop.with_windows(every);
        }
        let exit = self.record(&mut session, &mut stop).await?;
        screen::clear_progress();
        let ranks = stop.end_others();
        let result = self.conclude(session, ranks);
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
            // Told to end, and left running.
            None => Exit::Signal(libc::SIGINT).code(),
        })
    }

    /// Records until all is attached that is to be; `true`: until the end.
    async fn prepare(&self, session: &mut Session, stop: &mut Stop) -> Result<bool> {
        let mut ended = None;
        let until = async { ended = Some(stop.next().await) };
        let prepared = session.prepare(until).await;
        prepared.map_err(|error| self.output.explain(error))?;
        Ok(ended.transpose()?.is_some())
    }

    /// Begins to record. What nobody asked for does not keep the rest from it.
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
        tracing::warn!("what accelerators do is not recorded: {error}");
        Ok(session)
    }

    /// The recording is over; the command, if any, is not.
    async fn outlived_by_command(&self, stop: &mut Stop) -> Result<Option<Exit>> {
        if !self.plan.command.is_empty() {
            self.say("aiprof: waiting for the command to end (Ctrl-C twice: leave it running)");
        }
        stop.command_exit().await
    }

    fn announce(&self, has_command: bool) {
        if let Destination::Windows {
            directory,
            every,
            keep,
            ..
        } = &self.plan.destination
        {
            let kept = match keep {
                Some(n) => format!("the newest {n} are kept"),
                None => "all are kept (--keep N: the newest N)".to_owned(),
            };
            self.say(&format!(
                "aiprof: a file every {} in {}, {kept}",
                human_duration(*every),
                directory.display()
            ));
        }
        let open_ended = !has_command && self.plan.duration.is_none();
        if open_ended {
            let what = match self.plan.config.pids.as_slice() {
                [] => "recording",
                _ => "recording while these processes run, or",
            };
            self.say(&format!("aiprof: {what} until Ctrl-C"));
        }
    }

    /// Records until the end; windows are written on the way.
    async fn record(&mut self, session: &mut Session, stop: &mut Stop) -> Result<Option<Exit>> {
        let progress = !self.quiet && screen::has_progress();
        let mut own = None;
        loop {
            let mut ended = None;
            let until = async { ended = Some(stop.next().await) };
            session
                .run(until, |now| {
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
                Some(Ended::Command(exit)) => {
                    own = Some(exit);
                    if !stop.has_others() {
                        return Ok(own);
                    }
                    stop.only_others();
                    self.await_others(stop.running_others());
                }
                Some(Ended::NotLaunched(error)) => return Err(error.into()),
                // None: the session ended by itself.
                Some(Ended::Recording) | None => return Ok(own),
            }
        }
    }

    /// The own command has ended; those of other ranks have not.
    fn await_others(&self, running: usize) {
        if running > 0 {
            let (n, s) = (grouped(running as u64), plural(running));
            self.say(&format!(
                "aiprof: recording until the commands of {n} more rank{s} end, or until Ctrl-C"
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
        if let Output::Windows(files) = &mut self.output {
            files.write(profile);
        }
    }

    /// Writes the result and prints the summary; false if windows are missing.
    fn conclude(&mut self, session: Session, other_ranks: usize) -> Result<bool> {
        let Finished {
            mut profile,
            usage,
            probes,
            aiu,
            device_problems,
            timeline,
        } = session
            .finish()
            .map_err(|error| self.output.explain(error))?;
        self.keep_kernels(&mut profile);
        self.totals.add(&profile);
        let options = self.plan.export.clone();
        let mut failures = 0;
        let mut notes: Vec<String> = self.output.note().into_iter().collect();
        let shown = profile_out::note_of_processes(&profile, &self.plan.destination, &options);
        match std::mem::replace(&mut self.output, Output::Summary) {
            Output::Summary => {
                profile_out::write_summary(&profile, options.shown).or_else(unless_broken_pipe)?;
                self.say(&format!(
                    "for a flame graph: {}",
                    self.flame_graph_command()
                ));
            }
            Output::SummaryFile(file) => {
                profile_out::write_summary_file(&profile, &options, file)?;
            }
            // The session wrote the capture.
            Output::Stdout(Format::Capture) => {}
            Output::File(file, Format::Capture) => file.commit()?,
            Output::Trace(out) => {
                let (recorded, events) = timeline.context("the recording kept no events")?;
                let written = out.write(&recorded, events, Path::new("the recording"));
                let noted = written.map(|(totals, lines)| {
                    self.totals.add_trace(&totals);
                    notes = lines;
                });
                noted.or_else(unless_broken_pipe)?;
            }
            Output::Stdout(format) => {
                let written = profile_out::write_stdout(&profile, format, &options);
                written.or_else(unless_broken_pipe)?;
            }
            Output::File(file, format) => {
                profile_out::write_file(&profile, format, &options, file)?
            }
            Output::Windows(mut files) => {
                files.write(&profile);
                failures = files.failures();
            }
        }
        let is_shown = matches!(self.plan.destination, Destination::Summary);
        for line in self.totals.lines(&usage, is_shown) {
            self.say(&line);
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
        format!("  probes: {functions} functions of {files} libraries{refused}")
    })
}

/// What is known of AIU devices, if only because they were called.
fn aiu_line(aiu: AiuUse, has_command: bool, asked: bool) -> Option<String> {
    if aiu.launches == 0 || aiu.records > 0 {
        return None;
    }
    let remedy = match (asked, has_command) {
        (true, _) => "the program switched none on in spite of --aiu-timing",
        (false, true) => timing::HINT_COMMAND,
        (false, false) => timing::HINT_RUNNING,
    };
    Some(format!(
        "  AIU: no activity records came with the calls, so device times are only known to \
         lie between launch and wait calls: {remedy}"
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
