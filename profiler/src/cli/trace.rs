//! `aiprof trace`: the calls of accelerator runtimes and drivers, as they happen.

use super::command;
use super::input::{self, ProfileCommand};
use super::output::OutputFile;
use super::stop::{self, Ended, Stop};
use super::values::{self, grouped};
use super::{EXIT_FAILURE, Verbosity, is_broken_pipe, record, screen};
use aiprof_formats::export::trace::{CallFilter, TraceOptions, Tracer};
use aiprof_formats::import::open::Contents;
use aiprof_live::clock;
use aiprof_live::config::{MIN_FREQUENCY_HZ, ProbeConfig, RecordConfig};
use aiprof_live::launch::{Credentials, Exit, Held, LaunchOptions};
use aiprof_live::session::{Keep, Session};
use aiprof_live::signals::BlockedSignals;
use aiprof_model::probes::CallKind;
use aiprof_model::process::ProcessTable;
use aiprof_model::profile::{LossKind, Losses};
use aiprof_model::wire::Event;
use aiprof_record::capture;
use aiprof_record::correlate::{Counts, Tracked};
use aiprof_record::recording::{Recording, RecordingSink};
use aiprof_system::os::privileges::{self, StillToDo};
use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueHint};
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Options of `aiprof trace`.
#[derive(Debug, Args)]
#[command(override_usage = "aiprof trace [OPTIONS] [--] [COMMAND [ARGS]...]")]
pub(crate) struct TraceArgs {
    /// Write to FILE, which appears when it is complete; default: stdout
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,

    /// Only this process and the children it starts (repeatable)
    #[arg(short, long, value_name = "PID", value_delimiter = ',',
          value_parser = values::parse_pid)]
    pid: Vec<u32>,

    /// Only processes in this cgroup (v2) and the cgroups below it
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    cgroup: Option<PathBuf>,

    /// Trace the whole machine, not only COMMAND and the children it starts
    #[arg(long, requires = "command", conflicts_with_all = ["pid", "cgroup"])]
    all: bool,

    /// End after this time: 30, 30s, 2m, 1h
    #[arg(short, long, value_parser = values::parse_duration)]
    duration: Option<Duration>,

    /// Only APIs or probe tables with this name, such as 'level*' or xe (repeatable)
    #[arg(long, value_name = "GLOB")]
    api: Vec<String>,

    /// Only functions with this name, such as '*Append*' (repeatable)
    #[arg(long, value_name = "GLOB")]
    function: Vec<String>,

    /// Only calls of these kinds: launch,copy,synchronize,...
    #[arg(long, value_name = "KINDS", value_delimiter = ',',
          value_parser = PossibleValuesParser::new(CallKind::NAMED.iter().map(|(name, _)| *name)))]
    kind: Vec<String>,

    /// Only calls that took at least this long: 500ns, 10us, 1ms, 2s
    #[arg(long, value_name = "TIME", value_parser = values::parse_span)]
    min_duration: Option<u64>,

    /// Only calls that failed
    #[arg(long)]
    failed: bool,

    /// Also print calls inside other calls: indented, before the outer call, because they end first
    #[arg(long)]
    nested: bool,

    /// Leave out arguments
    #[arg(long)]
    no_args: bool,

    /// Print the time of day (UTC) instead of seconds since the start
    #[arg(long)]
    absolute: bool,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,

    /// Print only a table at the end: calls, errors and times of each function
    #[arg(short = 'c', long)]
    summary_only: bool,

    /// Print the calls, and the table of -c at the end
    #[arg(short = 'C', long)]
    summary: bool,

    /// Print the calls of a capture, which `aiprof -o FILE.aiprof` writes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["pid", "cgroup", "duration", "as_user", "command"])]
    from: Option<PathBuf>,

    /// Let programs choose when their calls are traced; see `aiprof --help`
    #[arg(long, conflicts_with = "from")]
    conditional_collection: bool,

    /// Run COMMAND as the user who called sudo, in that user's HOME, not as root
    #[arg(long, requires = "command")]
    as_user: bool,

    /// Program to trace with its children, until it ends; or a capture, as with --from
    #[arg(value_name = "COMMAND", trailing_var_arg = true,
          value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

impl TraceArgs {
    fn options(&self, origin_ns: u64, unix_ns: u64) -> TraceOptions {
        let kind = |name: &String| {
            let found = CallKind::NAMED.iter().find(|(known, _)| known == name);
            found.map(|(_, kind)| *kind)
        };
        TraceOptions {
            filter: CallFilter {
                apis: self.api.clone(),
                functions: self.function.clone(),
                kinds: self.kind.iter().filter_map(kind).collect(),
                min_duration_ns: self.min_duration.unwrap_or(0),
                failed: self.failed,
            },
            nested: self.nested,
            json: self.json,
            no_args: self.no_args,
            origin_ns,
            unix_ns: self.absolute.then_some(unix_ns),
            summary: self.summary,
            summary_only: self.summary_only,
        }
    }

    /// What concerns a command only must not be asked of a capture.
    fn only_of_a_capture(&self, capture: &Path) -> Result<()> {
        let asked = [
            (!self.pid.is_empty(), "--pid"),
            (self.cgroup.is_some(), "--cgroup"),
            (self.all, "--all"),
            (self.duration.is_some(), "--duration"),
            (self.as_user, "--as-user"),
            (self.conditional_collection, "--conditional-collection"),
        ];
        let Some((_, option)) = asked.iter().find(|(asked, _)| *asked) else {
            return Ok(());
        };
        bail!(
            "{} is a capture: {option} does not apply to it",
            capture.display()
        )
    }

    fn config(&self) -> Result<RecordConfig> {
        let (tables, drivers) = record::tables();
        Ok(RecordConfig {
            // Not what is asked for; as little of it as can be.
            frequency_hz: MIN_FREQUENCY_HZ,
            kernel_stacks: false,
            pids: self.pid.clone(),
            cgroup: self
                .cgroup
                .as_deref()
                .map(record::find_cgroup)
                .transpose()?,
            command: record::display_command(&self.command),
            probes: Some(ProbeConfig {
                tables: Arc::new(tables),
                drivers: Arc::new(drivers),
                exact_call_times: true,
                late_libraries: true,
                stack_limit: 0,
                command: self.command.clone(),
                switches: record::switches(self.conditional_collection),
                ..ProbeConfig::default()
            }),
            ..RecordConfig::default()
        })
    }
}

/// Traces with these options and returns the exit code.
///
/// # Errors
/// Whatever kept the trace from being made or written.
pub(crate) fn run(args: &TraceArgs, verbosity: Verbosity) -> Result<u8> {
    if let Some(from) = &args.from {
        privileges::drop_file_capabilities()?;
        return replay(args, from, verbosity);
    }
    if let [only] = args.command.as_slice()
        && input::is_capture(Path::new(only))
    {
        args.only_of_a_capture(Path::new(only))?;
        privileges::drop_file_capabilities()?;
        return replay(args, Path::new(only), verbosity);
    }
    command::check(&args.command)?;
    let mut config = args.config()?;
    let as_user = record::as_user(args.as_user)?;
    privileges::require(privileges::effective()?)?;
    let targets = stop::open_targets(&config.pids)?;
    let output = OutputFile::open(args.output.as_deref())?;
    // Signals first, then the fork, then the runtime, as in a recording.
    let signals = BlockedSignals::block(None).context("cannot prepare for signals")?;
    let held = held(args, as_user, &signals)?;
    let elsewhere = args.all || args.cgroup.is_some() || !config.pids.is_empty();
    if let (Some(held), false) = (&held, elsewhere) {
        config.pids = vec![held.pid()];
    }
    aiprof_system::remote::start(super::recording::READERS).context("cannot start the readers")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start asynchronous tasks")?;
    let live = Live {
        args,
        config,
        quiet: verbosity.is_quiet(),
        output,
    };
    runtime.block_on(live.run(signals, held, targets))
}

fn held(
    args: &TraceArgs,
    as_user: Option<Credentials>,
    signals: &BlockedSignals,
) -> Result<Option<Held>> {
    if args.command.is_empty() {
        return Ok(None);
    }
    let options = LaunchOptions {
        as_user,
        stdout_to_stderr: args.output.is_none(),
        mask: Some(signals.original_mask()),
        ..LaunchOptions::default()
    };
    Ok(Some(Held::fork(&args.command, &options)?))
}

/// A writer for the calls.
fn writer(output: &OutputFile) -> Result<Box<dyn Write>> {
    Ok(Box::new(BufWriter::new(output.handle()?)))
}

/// Completes the file; a reader of stdout that has gone wants no more.
fn complete(output: OutputFile, end: io::Result<u64>) -> Result<Option<u64>> {
    match end.with_context(|| output.cannot_write()) {
        Ok(end) => {
            output.commit()?;
            Ok(Some(end))
        }
        Err(error) if is_broken_pipe(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A trace of what happens now.
struct Live<'a> {
    args: &'a TraceArgs,
    config: RecordConfig,
    quiet: bool,
    output: OutputFile,
}

/// The tracer, and what wakes whoever waits for the end if it cannot write.
struct SharedTracer {
    tracer: RefCell<Tracer>,
    failed: Notify,
}

/// What the recording gives to the tracer.
struct Watcher(Rc<SharedTracer>);

impl RecordingSink for Watcher {
    fn found(&mut self, processes: &ProcessTable, found: &Tracked<'_>) {
        self.0.tracer.borrow_mut().found(processes, found);
    }

    fn taken(&mut self, _: &Event) {
        if self.0.tracer.borrow().has_failed() {
            self.0.failed.notify_one();
        }
    }
}

impl Live<'_> {
    async fn run(
        self,
        signals: BlockedSignals,
        held: Option<Held>,
        targets: Vec<OwnedFd>,
    ) -> Result<u8> {
        let signals = signals.into_async().context("cannot watch for signals")?;
        let now = clock::pair();
        let options = self.args.options(now.time_ns, now.unix_ns);
        let shared = Rc::new(SharedTracer {
            tracer: RefCell::new(Tracer::new(options, writer(&self.output)?)),
            failed: Notify::new(),
        });
        let mut session = Session::start(&self.config, Keep::Nothing)?;
        session.on_events(Box::new(Watcher(shared.clone())));
        let targets = if held.is_none() { targets } else { Vec::new() };
        let mut stop = Stop::new(signals).with_targets(targets)?;
        let mut ended = None;
        session
            .prepare(async { ended = Some(stop.next().await) })
            .await?;
        let is_over = ended.transpose()?.is_some();
        privileges::drop_to_needed(StillToDo {
            write_file: self.args.output.is_some(),
            signal_command: held.is_some(),
            ..StillToDo::default()
        })?;
        let has_command = held.is_some();
        let command = match is_over {
            true => None,
            false => held.map(Held::release).transpose()?,
        };
        if !has_command && self.args.duration.is_none() {
            self.say("aiprof: tracing until Ctrl-C");
        }
        stop.after(self.args.duration, Instant::now());
        let mut stop = stop.with_command(command);
        let exit = match is_over {
            true => None,
            false => trace(&mut session, &mut stop, &shared).await?,
        };
        let finished = session.finish()?;
        let end = Rc::into_inner(shared).map(|shared| shared.tracer.into_inner());
        let end = end.context("the trace is still being written")?;
        let quiet = self.quiet;
        let printed = complete(self.output, end.finish())?;
        if let (false, Some(printed)) = (quiet, printed) {
            let mut losses = finished.profile.losses;
            losses.merge(&finished.lost_calls);
            tell(printed, &finished.calls, &losses);
        }
        let exit = match exit {
            Some(exit) => Some(exit),
            None => stop.command_exit().await?,
        };
        Ok(match exit {
            Some(exit) => exit.code(),
            None if !has_command => 0,
            None => Exit::Signal(libc::SIGINT).code(),
        })
    }

    fn say(&self, line: &str) {
        if !self.quiet {
            screen::say(line);
        }
    }
}

/// Runs the session until the trace is to end.
async fn trace(
    session: &mut Session,
    stop: &mut Stop,
    shared: &SharedTracer,
) -> Result<Option<Exit>> {
    loop {
        let mut ended = None;
        let until = async {
            tokio::select! {
                next = stop.next() => ended = Some(next),
                () = shared.failed.notified() => {}
            }
        };
        session
            .run(until, |_| shared.tracer.borrow_mut().flush())
            .await?;
        match ended.transpose()? {
            Some(Ended::Window | Ended::Dump | Ended::Asked(_)) => {}
            Some(Ended::Command(exit)) => return Ok(Some(exit)),
            Some(Ended::NotLaunched(error)) => return Err(error.into()),
            Some(Ended::Recording) | None => return Ok(None),
        }
    }
}

/// Prints the calls of a capture.
fn replay(args: &TraceArgs, from: &Path, verbosity: Verbosity) -> Result<u8> {
    let input = input::open(from)?;
    if input.contents != Contents::Capture {
        return Err(input::refused(from, input.contents, ProfileCommand::Trace));
    }
    drop(input);
    let contents = capture::contents(from, false)?;
    let mut origin_ns = None;
    capture::for_each_event(from, |event| {
        origin_ns = Some(event.time_ns()).filter(|&ns| ns > 0);
        origin_ns.is_none()
    })?;
    let options = args.options(origin_ns.unwrap_or(0), contents.meta.start_unix_ns);
    let output = OutputFile::open(args.output.as_deref())?;
    let mut tracer = Tracer::new(options, writer(&output)?);
    let mut recording = Recording::default();
    let (mut calls, mut last_ns) = (0_u64, 0);
    capture::for_each_event(from, |event| {
        last_ns = event.time_ns().max(last_ns);
        calls += u64::from(matches!(event, Event::Call(_)));
        let taken = recording.apply(&event, &mut [&mut tracer]);
        taken.is_ok() && !tracer.has_failed()
    })?;
    if calls == 0 {
        bail!("{} contains no calls", from.display());
    }
    recording.finish(last_ns, &mut [&mut tracer]);
    let printed = complete(output, tracer.finish())?;
    if let (false, Some(printed)) = (verbosity.is_quiet(), printed) {
        let mut losses = contents.losses.clone();
        losses.merge(&recording.take_losses());
        tell(printed, &recording.tracker().counts(), &losses);
    }
    Ok(if contents.problem.is_some() {
        EXIT_FAILURE
    } else {
        0
    })
}

/// Prints how many calls there were and what was lost.
fn tell(printed: u64, counts: &Counts, losses: &Losses) {
    let printed = match printed {
        n if n == counts.calls => String::new(),
        n => format!(" ({} shown)", grouped(n)),
    };
    screen::say(&format!(
        "aiprof: {} calls{printed}, {} launches",
        grouped(counts.calls),
        grouped(counts.launches)
    ));
    for (kind, n) in losses.iter().filter(|(kind, _)| is_of_calls(*kind)) {
        screen::say(&format!("  {:>10}  {}", grouped(n), kind.label()));
    }
}

/// Whether a loss takes something from a trace: it has no samples and no stacks.
pub(super) fn is_of_calls(kind: LossKind) -> bool {
    !kind.is_cut_stack()
        && !matches!(
            kind,
            LossKind::RingDrops
                | LossKind::FramesUnnamed
                | LossKind::FilesUnreadable
                | LossKind::FilesNoUnwindData
                | LossKind::TablesEvicted
                | LossKind::TablesRefused
                | LossKind::TableFull
                | LossKind::Throttled
                | LossKind::KernelStackFailed
                | LossKind::KernelStackTruncated
                | LossKind::CallStacksLimited
                | LossKind::CallStacksBusy
                | LossKind::CallsUntimed
        )
}
