//! The course of the agent, from the configuration to the last window.

mod changes;
mod config_file;
mod control_requests;

use super::args::{AgentArgs, AgentCommand};
use super::governor::{Governor, RecordingLevel};
use super::notify;
use super::outputs::Outputs;
use super::sender::{self, Sender};
use super::status::Counts;
use super::turns::{self, Turns};
use super::{checks, ctl};
use crate::cli::Verbosity;
use crate::cli::record::tables;
use crate::cli::recording::READERS;
use crate::cli::values::{human_bytes, human_duration};
use aiprof_fleet::config::{self, Config, ConfigError, HOST_RULE};
use aiprof_fleet::{identity, shared, status as files};
use aiprof_live::bpf::run_time::RunTimes;
use aiprof_live::clock;
use aiprof_live::config::{ProbeConfig, RecordConfig, WaitConfig};
use aiprof_live::control::{Asked, Reply, Request};
use aiprof_live::device::DeviceOptions;
use aiprof_live::doctor;
use aiprof_live::session::{Keep, ProbeTraps, Session, WindowProfiles};
use aiprof_live::signals::{BlockedSignals, Signals};
use aiprof_record::aggregate::WaitOptions;
use aiprof_system::files::caller;
use aiprof_system::files::private::PrivateDirectory;
use aiprof_system::os::privileges::{self, StillToDo};
use aiprof_system::remote;
use anyhow::{Context as _, Result, bail};
use config_file::ConfigFile;
use control_requests::ControlRequests;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// How often the budget is looked at.
const LOOK: Duration = Duration::from_secs(2);
/// How often the status is written and the configuration's file looked at.
const TELL: Duration = Duration::from_secs(10);
/// Stacks of calls that one CPU walks in a second at most.
const STACK_LIMIT: u32 = 200;
/// Bytes of the ring buffer of calls.
const CALL_RING: u32 = 1 << 20;
/// Label of all that is recorded: it distinguishes this host from others.
const HOST_ID: &str = "host.id";
/// Locked by the agent that uses a state directory.
const LOCK: &str = "agent.lock";
/// The variable that names the host where the configuration does not: containers on many hosts
/// share a configuration, and their own names are not the hosts'.
const HOST: &str = "AIPROF_HOST";

/// Runs the agent until it is stopped, and returns the exit code.
///
/// # Errors
/// The configuration is wrong, or something kept it from recording.
pub(in crate::cli) fn run(args: AgentArgs, verbosity: Verbosity) -> Result<u8> {
    if let Some(AgentCommand::Ctl(args)) = args.command {
        return ctl::run(args, verbosity);
    }
    let config = read(&args.config)?;
    if args.check {
        checks::run(&args, &config)?;
        privileges::require(privileges::effective()?)?;
        describe(&args.config, &config, verbosity);
        return Ok(0);
    }
    let have = privileges::effective()?;
    privileges::require(have)?;
    checks::run(&args, &config)?;
    for missing in privileges::missing(have) {
        tracing::info!("without {}: {}", missing.name, missing.purpose);
    }
    let cannot = || format!("cannot use {} (`state`)", config.state.display());
    let state = PrivateDirectory::at(&config.state).with_context(cannot)?;
    // What two wrote into one spool would be delivered twice.
    let Some(_lock) = state.lock(LOCK).with_context(cannot)? else {
        bail!(
            "another agent already uses {} (`state`)",
            config.state.display()
        );
    };
    shared::prepare(&config).with_context(cannot)?;
    let outputs = Outputs::open(&config)?;
    outputs.claim();
    let signals = BlockedSignals::block(None).context("cannot prepare for signals")?;
    let sender = sender_for(&args, &config, &signals);
    remote::keep_little_memory();
    remote::start(READERS).context("cannot start the readers")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start asynchronous tasks")?;
    runtime.block_on(async {
        let signals = signals.into_async().context("cannot watch for signals")?;
        let agent = Agent::start(&args, config, outputs, sender).await?;
        agent.run(signals).await
    })
}

/// Reads the configuration with the caller's rights.
fn read(path: &Path) -> Result<Config> {
    let bytes = caller::read(path, config::MAX_BYTES).map_err(|cause| ConfigError::Read {
        path: path.to_owned(),
        cause,
    })?;
    let text = String::from_utf8(bytes)
        .map_err(|_| anyhow::anyhow!("{}: not UTF-8 text", path.display()))?;
    let mut config = Config::parse(path, &text)?;
    if config.host.is_none() {
        config.host = host_of_environment()?;
    }
    Ok(config)
}

/// The name that the environment gives the host.
fn host_of_environment() -> Result<Option<String>> {
    let given = std::env::var(HOST).ok();
    match given.filter(|host| !host.is_empty()) {
        Some(host) if !config::is_host(&host) => bail!("{HOST}: {HOST_RULE}"),
        host => Ok(host),
    }
}

/// Prints what a configuration means.
fn describe(path: &Path, config: &Config, verbosity: Verbosity) {
    let mut lines = vec![
        format!("aiprof: {}: valid", path.display()),
        format!(
            "  {} samples per second and CPU, windows of {}, budget {} % of the CPUs, {} memory",
            config.frequency,
            human_duration(config.window),
            config.budget.cpu * 100.0,
            human_bytes(config.budget.memory.as_u64()),
        ),
    ];
    if config.one_in > 1 {
        lines.push(format!(
            "  records 1 of {} random slots of {}; values are scaled up to match",
            config.one_in,
            human_duration(config.window * turns::WINDOWS),
        ));
    }
    for output in &config.outputs {
        let (name, kind) = (&output.name, output.kind.name);
        lines.push(format!("  {name} ({kind}): {}", output.to.place()));
    }
    if config.outputs.is_empty() {
        lines.push("  no [[output]]: profiles are not written".to_owned());
    }
    verbosity.say(&lines);
}

/// The child that sends, if there is something to send or metrics to serve.
fn sender_for(args: &AgentArgs, config: &Config, signals: &BlockedSignals) -> Option<Sender> {
    let is_sent = config.outputs.iter().any(|output| output.to.is_sent());
    if args.no_send || (!is_sent && config.metrics.listen.is_none()) {
        return None;
    }
    let Some(program) = sender::find() else {
        tracing::info!("metrics are not served: aiprof-send is not installed");
        return None;
    };
    // Links stay as they are: what they lead to may be replaced, as Kubernetes does.
    let path = std::path::absolute(&args.config).unwrap_or_else(|_| args.config.clone());
    Some(Sender::new(program, &path, signals.original_mask()))
}

/// What is recorded at most.
fn asked(config: &Config) -> RecordingLevel {
    RecordingLevel {
        frequency_hz: config.frequency,
        waits: config.record.off_cpu,
        launches: config.record.launches,
    }
}

/// What the session is to record. It can record waits whatever the level is.
fn record_config(config: &Config, host_id: &str, level: RecordingLevel) -> RecordConfig {
    let record = &config.record;
    let mut labels: Vec<(String, String)> = config.labels.clone().into_iter().collect();
    if !host_id.is_empty() {
        labels.push((HOST_ID.to_owned(), host_id.to_owned()));
    }
    let probes = (level.launches || record.devices || record.off_cpu).then(|| {
        let (tables, drivers) = tables();
        ProbeConfig {
            tables: Arc::new(tables),
            drivers: Arc::new(drivers),
            waits: record.devices || record.off_cpu,
            stack_limit: STACK_LIMIT,
            ring_bytes: CALL_RING,
            ..ProbeConfig::default()
        }
    });
    RecordConfig {
        frequency_hz: level.frequency_hz,
        source_lines: record.source_lines,
        labels,
        waits: record.off_cpu.then_some(WaitConfig {
            least_ns: 0,
            options: WaitOptions {
                wall: true,
                wakers: false,
            },
        }),
        devices: DeviceOptions {
            // Profiles of waits have no device samples: other tools may have the sampler.
            xe: record.devices && !record.off_cpu,
            aiu: (level.launches || record.devices) && !record.off_cpu && doctor::has_aiu(),
            ..DeviceOptions::default()
        },
        probes,
        also_launches: level.launches,
        continuous: true,
        ..RecordConfig::default()
    }
}

/// The agent while it records.
struct Agent {
    file: ConfigFile,
    /// A service of its own delivers.
    is_sent_by_others: bool,
    config: Config,
    overrides: LevelOverrides,
    /// The warning that the budget cannot be kept was given.
    has_warned: bool,
    turns: Turns,
    /// Nothing is recorded until its turn comes.
    waits_for_slot: bool,
    /// Somebody has paused it.
    is_paused: bool,
    /// Distinguishes the host from others; empty: nothing does.
    host_id: String,
    outputs: Outputs,
    sender: Option<Sender>,
    session: Session,
    governor: Governor,
    counts: Counts,
    requests: ControlRequests,
    /// Keeps the kernel counting how long programs run.
    _run_times: Option<RunTimes>,
}

/// What is recorded otherwise than the configuration has it.
#[derive(Clone, Copy, Debug, Default)]
struct LevelOverrides {
    /// Samples per second and CPU that somebody asked for.
    rate: Option<u32>,
    /// Launches could not be recorded again.
    has_no_launches: bool,
}

impl LevelOverrides {
    fn apply(self, asked: RecordingLevel) -> RecordingLevel {
        RecordingLevel {
            frequency_hz: self.rate.unwrap_or(asked.frequency_hz),
            launches: asked.launches && !self.has_no_launches,
            ..asked
        }
    }
}

/// How a window was recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    /// What was asked for.
    pub(super) asked: RecordingLevel,
    pub(super) level: RecordingLevel,
    /// How many notches it was turned down.
    pub(super) step: u32,
    /// How often it counts.
    pub(super) weight: u64,
}

/// What the agent is woken by.
enum Woken {
    Look,
    Window,
    Tell,
    End,
    Reload,
    Asked(Asked),
}

/// When the agent is woken.
struct Wakes {
    look: Interval,
    window: Interval,
    tell: Interval,
}

impl Wakes {
    fn new(window: Duration) -> Self {
        let every = |length| {
            let mut every = tokio::time::interval_at(Instant::now() + length, length);
            every.set_missed_tick_behavior(MissedTickBehavior::Delay);
            every
        };
        Self {
            look: every(LOOK),
            window: every(window),
            tell: every(TELL),
        }
    }
}

impl Agent {
    async fn start(
        args: &AgentArgs,
        config: Config,
        outputs: Outputs,
        sender: Option<Sender>,
    ) -> Result<Self> {
        let requests = ControlRequests::open(&config)?;
        let run_times = RunTimes::start();
        if let Err(error) = &run_times {
            tracing::warn!(
                "the time of eBPF programs is not in the budget, because the kernel does not \
                 measure it ({error}): start with CAP_SYS_ADMIN, or set sysctl \
                 kernel.bpf_stats_enabled=1"
            );
        }
        let host_id = host_id(&config);
        let wanted = record_config(&config, &host_id, asked(&config));
        // Also without launches: a configuration that is read again may ask for them.
        let traps = ProbeTraps::measure().inspect_err(|error| {
            tracing::debug!("cannot measure the cost of reaching a probe: {error}");
        });
        let mut session = Session::start(&wanted, Keep::Nothing)?;
        session.prepare(std::future::pending()).await?;
        privileges::drop_to_needed(StillToDo {
            write_file: true,
            signal_command: false,
            open_events: true,
            start_sender: sender.is_some(),
        })?;
        let counts = Counts::new(&session, sender.as_ref(), traps.ok());
        let governor = Governor::new(asked(&config), config.budget.cpu, counts.cpus());
        Ok(Self {
            file: ConfigFile::new(&args.config),
            is_sent_by_others: args.no_send,
            turns: turns_of(&config, &host_id, &session),
            waits_for_slot: false,
            is_paused: false,
            config,
            overrides: LevelOverrides::default(),
            has_warned: false,
            host_id,
            outputs,
            sender,
            session,
            governor,
            counts,
            requests,
            _run_times: run_times.ok(),
        })
    }

    async fn run(mut self, signals: Signals) -> Result<u8> {
        let mut wakes = Wakes::new(self.config.window);
        self.tell();
        notify::ready("recording");
        tracing::info!(
            "recording at {} Hz, windows of {}",
            self.config.frequency,
            human_duration(self.config.window)
        );
        self.take_turns()?;
        loop {
            match self.next(&signals, &mut wakes).await? {
                Woken::Look => {
                    if self.look().await? {
                        wakes.window.reset();
                    }
                    if notify::watchdog().is_some() {
                        notify::alive();
                    }
                }
                Woken::Window => {
                    // What was spent until now is not the window's end.
                    if !self.look().await? {
                        let window = self.session.end_window()?;
                        self.finish_window(window);
                    }
                    self.take_turns()?;
                }
                Woken::Tell => {
                    // What was added up since the window began is most of it.
                    let most = self.config.budget.memory.as_u64();
                    let memory = match remote::may_have_memory(most) {
                        true => self.counts.memory(&self.session, self.sender.as_ref()),
                        false => 0,
                    };
                    if memory > most {
                        match self.waits_for_slot {
                            true => self.forget(memory),
                            false => {
                                let window = self.session.end_window()?;
                                self.finish_window(window);
                                wakes.window.reset();
                            }
                        }
                        // The window may end so each time.
                        self.take_turns()?;
                    }
                    self.tell();
                    self.requests.reopen();
                    if self.file.has_changed() {
                        self.reload(&mut wakes).await?;
                    }
                }
                Woken::Reload => self.reload(&mut wakes).await?,
                Woken::Asked(asked) if asked.request == Request::Stop => {
                    self.requests.stop(asked);
                    break;
                }
                Woken::Asked(asked) => {
                    let ends_window = matches!(asked.request, Request::Dump | Request::Rate(_));
                    let answer = self.obey(asked.request).await;
                    if ends_window && matches!(answer, Reply::Done(_)) {
                        wakes.window.reset();
                        self.take_turns()?;
                    }
                    self.requests.answer(asked, &answer);
                }
                Woken::End => break,
            }
        }
        self.end().await
    }

    /// Records until the agent is to do something.
    async fn next(&mut self, signals: &Signals, wakes: &mut Wakes) -> Result<Woken> {
        let mut woken = None;
        let (sender, requests) = (&mut self.sender, &mut self.requests);
        let until = async {
            woken = Some(loop {
                tokio::select! {
                    biased;
                    received = signals.next() => {
                        let received = received.context("cannot read signals");
                        break received.map(|received| match received.number {
                            libc::SIGHUP => Woken::Reload,
                            _ => Woken::End,
                        });
                    }
                    asked = requests.next() => break Ok(Woken::Asked(asked)),
                    _ = wakes.window.tick() => break Ok(Woken::Window),
                    _ = wakes.look.tick() => break Ok(Woken::Look),
                    _ = wakes.tell.tick() => break Ok(Woken::Tell),
                    () = kept(sender.as_mut()) => {}
                }
            });
        };
        self.session.run(until, |_| {}).await?;
        // Nothing is waited for that could end it otherwise.
        woken.unwrap_or(Ok(Woken::Look))
    }

    /// Looks what it costs, and records less or more; whether a new window has begun.
    async fn look(&mut self) -> Result<bool> {
        let spent = self.counts.spent(&self.session, self.sender.as_ref());
        let before = self.so_far();
        let changed = self.governor.spend(&spent);
        if let Some(level) = changed {
            self.record(before, level).await?;
            tracing::info!(
                "{}: {}",
                match self.governor.step() {
                    0 => "within the budget again, recording everything".to_owned(),
                    step => format!("recording less to stay within the budget (step {step})"),
                },
                level.describe()
            );
        }
        if self.governor.is_at_its_end() && !self.has_warned {
            self.has_warned = true;
            tracing::warn!(
                "the budget of {} % is exceeded even at the lowest step, because reading new \
                 programs and writing windows alone cost more: raise `budget.cpu` \
                 (docs/always-on.md)",
                self.config.budget.cpu * 100.0
            );
        } else if self.governor.step() == 0 {
            self.has_warned = false;
        }
        Ok(changed.is_some())
    }

    /// How it has recorded so far.
    fn so_far(&self) -> Recorded {
        Recorded {
            asked: self.asked(),
            level: self.governor.level(),
            step: self.governor.step(),
            weight: self.turns.weight(),
        }
    }

    /// Begins a turn, or ends it, where it is time to. A window has ended just before.
    fn take_turns(&mut self) -> Result<()> {
        let waits = !self.turns.has(clock::unix_ns());
        if waits == self.waits_for_slot {
            return Ok(());
        }
        if waits {
            self.session.pause()?;
            tracing::info!("not recording until this host's next slot");
        }
        // What lies between turns is no window.
        self.session.end_window()?;
        self.waits_for_slot = waits;
        if !waits {
            if !self.is_paused {
                self.session.begin()?;
            }
            self.governor.meets_what_runs();
            self.counts.begin_turn();
            tracing::info!("this host's slot begins, recording");
        }
        self.tell();
        Ok(())
    }

    fn finish_window(&mut self, window: WindowProfiles) {
        self.finish_window_of(window, self.so_far());
    }

    /// Writes a window that was recorded so.
    fn finish_window_of(&mut self, mut window: WindowProfiles, recorded: Recorded) {
        if self.waits_for_slot {
            return;
        }
        if let Some(host) = &self.config.host {
            let profiles = window.profiles_mut();
            profiles.for_each(|profile| profile.meta.host.clone_from(host));
        }
        // What it has cost until now; the rest is the next one's.
        let spent = self.counts.spent(&self.session, self.sender.as_ref());
        self.governor.spend_at_end(&spent, self.config.window);
        self.counts.window(&mut window, recorded);
        let profiles = window.profiles_mut();
        profiles.for_each(|profile| profile.weigh(recorded.weight));
        self.outputs.write(&window);
        let memory = self.counts.memory(&self.session, self.sender.as_ref());
        let spent = self.counts.spent(&self.session, self.sender.as_ref());
        self.governor.spend_at_end(&spent, self.config.window);
        let line = self.counts.line(&window, recorded.level);
        drop(window);
        if memory > self.config.budget.memory.as_u64() {
            self.forget(memory);
        }
        tracing::info!("{line}");
        notify::status(&line);
        self.tell();
    }

    /// Gives back memory, which is more than its budget.
    fn forget(&mut self, memory: u64) {
        tracing::warn!(
            "memory use of {} exceeds the budget, so cached data of processes was dropped",
            human_bytes(memory)
        );
        self.session.forget_programs();
    }

    /// What is recorded at most.
    fn asked(&self) -> RecordingLevel {
        self.overrides.apply(asked(&self.config))
    }

    /// Writes how it is.
    fn tell(&mut self) {
        let mut status = self.counts.status(&self.config, &self.governor);
        status.host = host(&self.config, &self.session).to_owned();
        status.host_id.clone_from(&self.host_id);
        status.paused = self.is_paused;
        status.waits_for_slot = self.waits_for_slot;
        if self.session.is_paused() {
            status.recording.clear();
        }
        status.outputs = self.outputs.status();
        if let Err(error) = files::write_shared(&self.config.state, files::AGENT_FILE, &status) {
            tracing::warn!("cannot write the status file: {error}");
        }
    }

    /// Writes the last window and ends.
    async fn end(mut self) -> Result<u8> {
        notify::stopping();
        let window = self.session.end_window()?;
        self.finish_window(window);
        self.requests.end();
        if let Some(sender) = self.sender.take() {
            sender.end().await;
        }
        self.session.finish()?;
        Ok(0)
    }
}

async fn kept(sender: Option<&mut Sender>) {
    match sender {
        Some(sender) => sender.keep().await,
        None => std::future::pending().await,
    }
}

fn turns_of(config: &Config, host_id: &str, session: &Session) -> Turns {
    let host = match host_id {
        "" => host(config, session),
        host_id => host_id,
    };
    Turns::new(config.one_in, config.window, host)
}

/// What the host is called.
fn host<'a>(config: &'a Config, session: &'a Session) -> &'a str {
    config.host.as_deref().unwrap_or_else(|| session.host())
}

/// Distinguishes the host from others; empty: nothing does.
fn host_id(config: &Config) -> String {
    let id = config.host_id.clone().or_else(identity::of_this_host);
    id.unwrap_or_default()
}
