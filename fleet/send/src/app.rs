//! The program: its signals, its configuration, and one worker for each output.

use crate::board::Board;
use crate::confine::{self, Confined, Looked};
use crate::keeper::Keeper;
use crate::stdin::{AgentRequest, Requests};
use crate::thrift::Thrift;
use crate::watch::Watch;
use crate::worker::{OutputReports, WorkerContext};
use crate::{check, cli, metrics, worker};
use aiprof_fleet::config::{Config, ConfigError, Output};
use aiprof_fleet::spool::Queue;
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// How long an earlier one gets to end.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// How often it is looked whether the configuration, or what the system looks names up with, is
/// another.
const LOOK: Duration = Duration::from_secs(10);

/// Most threads that look up names of hosts or access files of a lake: an output whose look-ups
/// hang has a few of them, as each attempt begins another.
const BLOCKING_THREADS: usize = 32;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramEnd {
    /// All went well.
    Well,
    /// Something did not work.
    Failed,
    /// It must start anew.
    Again,
}

impl ProgramEnd {
    fn of(is_well: bool) -> Self {
        if is_well { Self::Well } else { Self::Failed }
    }
}

/// Runs.
///
/// # Errors
/// The configuration cannot be read, the state directory cannot be used, or the program not be
/// confined.
pub(crate) fn main(args: &cli::Args) -> anyhow::Result<ProgramEnd> {
    // Both before there are threads.
    let keeper = Keeper::start(&args.config)?;
    let (config, text) = read(&args.config, &keeper)?;
    let (confined, looked) = match args.check {
        true => (None, confine::enter_to_check(&config)?),
        false => (Some(confine::enter(&config)?), Looked::default()),
    };
    // One thread, beside those that look up names of hosts.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(Duration::from_secs(2))
        .build()
        .context("cannot start the asynchronous runtime (Tokio)")?;
    let done = runtime.block_on(async {
        match confined {
            None => Ok(ProgramEnd::of(
                check::run(&config, &keeper, &looked, args.offline).await,
            )),
            Some(confined) => deliver(args, (config, text), keeper, confined).await,
        }
    });
    // A look-up that hangs is not waited for.
    runtime.shutdown_background();
    done
}

/// The configuration, and its text.
fn read(path: &Path, keeper: &Keeper) -> Result<(Config, String), ConfigError> {
    let text = keeper.config_text().map_err(|cause| ConfigError::Read {
        path: path.to_owned(),
        cause,
    })?;
    Ok((Config::parse(path, &text)?, text))
}

async fn deliver(
    args: &cli::Args,
    (config, text): (Config, String),
    keeper: Keeper,
    confined: Confined,
) -> anyhow::Result<ProgramEnd> {
    // Before anything else: they must not end it in the middle.
    let mut ends = [
        signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?,
        signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?,
    ];
    let reload = signal(SignalKind::hangup()).context("cannot watch for SIGHUP")?;
    let lock = lock(&config).await?;
    let mut app = App::new(config, args.once, lock, keeper);
    if args.once {
        let [terminate, interrupt] = &mut ends;
        return Ok(tokio::select! {
            all = app.all_done() => ProgramEnd::of(all),
            _ = terminate.recv() => ProgramEnd::Failed,
            _ = interrupt.recv() => ProgramEnd::Failed,
        });
    }
    let metrics = tokio::spawn(metrics::serve(app.board.clone(), app.listen.subscribe()));
    let written = tokio::spawn(app.board.clone().keep_written());
    let (end, why) = serve(&mut app, args, &confined, text, (reload, ends)).await;
    tracing::info!("stopping: {why}");
    app.stop_all().await;
    metrics.abort();
    written.abort();
    if let Err(error) = app.board.write() {
        tracing::warn!("cannot write the status file: {error}");
    }
    Ok(end)
}

/// Delivers until something ends it; what.
async fn serve(
    app: &mut App,
    args: &cli::Args,
    confined: &Confined,
    mut known: String,
    (mut reload, mut ends): (Signal, [Signal; 2]),
) -> (ProgramEnd, &'static str) {
    let [terminate, interrupt] = &mut ends;
    let agent = Requests::new();
    let mut look = tokio::time::interval_at(tokio::time::Instant::now() + LOOK, LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_asked = tokio::select! {
            _ = reload.recv() => true,
            _ = look.tick() => false,
            _ = terminate.recv() => return (ProgramEnd::Well, "SIGTERM"),
            _ = interrupt.recv() => return (ProgramEnd::Well, "SIGINT"),
            request = agent.next() => match request {
                AgentRequest::Reload => true,
                AgentRequest::End => return (ProgramEnd::Well, "stdin was closed"),
            },
        };
        // An agent asks when it has read the configuration itself.
        let is_other = || app.keeper.config_text().is_ok_and(|now| now != known);
        if is_asked || (!agent.has_agent() && is_other()) {
            match read(&args.config, &app.keeper) {
                Err(error) => {
                    tracing::error!("{error}; the previous configuration stays in use");
                }
                Ok((config, _)) if confined.is_too_narrow_for(&config) => {
                    return (
                        ProgramEnd::Again,
                        "the configuration has another lake or `state`, which needs a restart",
                    );
                }
                Ok((config, _)) => app.reload(config, &args.config).await,
            }
            known = app.keeper.config_text().unwrap_or(known);
        }
        if confined.is_outdated() {
            return (
                ProgramEnd::Again,
                "the files that resolve host names were replaced",
            );
        }
        if !app.keeper.answers() {
            return (ProgramEnd::Again, "the keeper ended");
        }
        if app.has_lost_a_worker() {
            return (
                ProgramEnd::Again,
                "the delivery to an output ended unexpectedly",
            );
        }
    }
}

/// The lock of a state directory, held by the one that delivers: two would deliver everything
/// twice.
async fn lock(config: &Config) -> anyhow::Result<File> {
    let path = config.sender_directory();
    // The directory itself: a file might be another user's, who had started it before.
    let file = std::fs::create_dir_all(&path).and_then(|()| File::open(&path));
    let file = file.with_context(|| path.display().to_string())?;
    let started = tokio::time::Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if started.elapsed() < LOCK_WAIT => {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(TryLockError::WouldBlock) => {
                anyhow::bail!(
                    "{}: another aiprof-send already uses this directory",
                    path.display()
                );
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| path.display().to_string());
            }
        }
    }
}

/// Whether an aiprof-send delivers from the state directory.
pub(crate) fn is_locked(config: &Config) -> bool {
    let file = File::open(config.sender_directory());
    file.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

struct RunningOutput {
    output: Output,
    stop: watch::Sender<bool>,
    hurry: Arc<Notify>,
    task: JoinHandle<worker::WorkerEnd>,
}

struct App {
    config: Config,
    once: bool,
    board: Board,
    keeper: Keeper,
    watch: Arc<Watch>,
    thrift: Arc<Thrift>,
    listen: watch::Sender<Option<std::net::SocketAddr>>,
    workers: BTreeMap<String, RunningOutput>,
    // Released at the end.
    _lock: File,
}

impl App {
    fn new(config: Config, once: bool, lock: File, keeper: Keeper) -> Self {
        let watch = Arc::new(Watch::new());
        tokio::spawn(Arc::clone(&watch).run());
        let mut app = Self {
            board: Board::new(&config),
            listen: watch::Sender::new(config.metrics.listen),
            keeper,
            watch,
            thrift: Arc::new(Thrift::new(&config)),
            workers: BTreeMap::new(),
            config,
            once,
            _lock: lock,
        };
        app.start_all();
        app
    }

    /// Starts workers for outputs that have none.
    fn start_all(&mut self) {
        let outputs = self.config.outputs.iter();
        let outputs: Vec<_> = outputs
            .filter(|output| output.to.is_sent())
            .cloned()
            .collect();
        let names: Vec<_> = outputs.iter().map(|output| output.name.clone()).collect();
        self.board.retain(&names);
        self.warn_of_others(&names);
        for output in outputs {
            if self.workers.contains_key(&output.name) {
                continue;
            }
            let (stop, stopped) = watch::channel(false);
            let hurry = Arc::new(Notify::new());
            let context = WorkerContext {
                output: output.clone(),
                spool: self.config.spool_directory(),
                board: self.board.clone(),
                keeper: self.keeper.clone(),
                watch: Arc::clone(&self.watch),
                thrift: Arc::clone(&self.thrift),
                stop: stopped,
                once: self.once,
                report: OutputReports::default(),
                wake: Arc::default(),
                hurry: Arc::clone(&hurry),
            };
            let task = tokio::spawn(worker::run(context));
            let running = RunningOutput {
                output: output.clone(),
                stop,
                hurry,
                task,
            };
            self.workers.insert(output.name, running);
        }
    }

    /// Names what is in the spool and of no output any more: it stays, as no output sends it.
    fn warn_of_others(&self, names: &[String]) {
        let spool = self.config.spool_directory();
        let Ok(entries) = std::fs::read_dir(&spool) else {
            return;
        };
        for entry in entries.flatten().take(100) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if names.contains(&name) || !entry.path().is_dir() {
                continue;
            }
            let bodies = Queue::open(&spool, &name).and_then(|queue| queue.bodies());
            if bodies.is_ok_and(|bodies| !bodies.is_empty()) {
                let directory = entry.path();
                tracing::warn!(
                    "{}: these profiles belong to no configured output; they are kept",
                    directory.display()
                );
            }
        }
    }

    /// Waits until all have ended by themselves; whether all was delivered.
    async fn all_done(&mut self) -> bool {
        let mut all = true;
        for running in std::mem::take(&mut self.workers).into_values() {
            all &= running.task.await.is_ok_and(|end| end.all);
        }
        if let Err(error) = self.board.write() {
            tracing::warn!("cannot write the status file: {error}");
        }
        all
    }

    /// Whether a worker ended without being asked to.
    fn has_lost_a_worker(&self) -> bool {
        let mut workers = self.workers.iter();
        let lost = workers.find(|(_, running)| running.task.is_finished());
        if let Some((name, _)) = lost {
            tracing::error!("output {name}: its delivery ended unexpectedly");
        }
        lost.is_some()
    }

    async fn stop_all(&mut self) {
        stop(std::mem::take(&mut self.workers).into_values().collect()).await;
    }

    /// Takes a configuration that was read anew. Outputs that are the same go on.
    async fn reload(&mut self, config: Config, path: &Path) {
        let is_same = |running: &RunningOutput| config.outputs.contains(&running.output);
        let workers = std::mem::take(&mut self.workers);
        let (same, others): (BTreeMap<_, _>, BTreeMap<_, _>) = workers
            .into_iter()
            .partition(|(_, running)| is_same(running));
        self.workers = same;
        // Who reloads may have mended what failed.
        for running in self.workers.values() {
            running.hurry.notify_waiters();
        }
        // Before others take their place: a body is with one of them at a time.
        stop(others.into_values().collect()).await;
        self.board.set_config(&config);
        self.thrift.set_config(&config);
        self.listen.send_if_modified(|listen| {
            let changed = *listen != config.metrics.listen;
            *listen = config.metrics.listen;
            changed
        });
        self.config = config;
        self.start_all();
        tracing::info!("{}: reloaded", path.display());
    }
}

/// Asks workers to stop, and waits for it.
async fn stop(workers: Vec<RunningOutput>) {
    for running in &workers {
        let _ = running.stop.send(true);
    }
    for running in workers {
        let _ = running.task.await;
    }
}
