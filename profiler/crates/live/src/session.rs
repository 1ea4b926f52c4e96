//! A recording, from attaching to the finished profile: owns the programs, the
//! rings, the tables and the naming thread; nothing else does.

mod calls;
mod continuous;
mod devices;
mod dump;
mod events;
mod known;
mod labels;
mod ops;
mod pace;
mod pausing;
mod places;
mod reading;
mod result;
mod starting;
mod triggers;
mod waits;
mod window;

use labels::MetAs;
use pace::{Pace, START_TICK};

pub use continuous::{Cost, ProbeTraps, WindowProfiles};
pub use devices::AiuUse;
pub use known::KnownProcess;
pub use triggers::Fired;
pub use window::DumpExtent;

use super::{
    binaries::Binaries,
    bpf::{
        Bpf, BpfError, BpfOptions, CHOSEN, CallOptions, SAMPLES, WaitSettings,
        perf::{self, Clock},
        ring::{Drained, Ring},
    },
    busy, cgroup, clock,
    conditional::Conditional,
    config::{Event as EventKind, RecordConfig},
    cpu::{CpuSet, period_of},
    device::{DeviceError, DeviceSamplers},
    driver::{DriverPlan, DriverProbes},
    filter::Filter,
    finisher::Finisher,
    generated::Generated,
    java::Javas,
    names::NameService,
    places::KernelPlaces,
    procfs,
    publish::Publisher,
    readable,
    reader::Reader,
    runtime::{RuntimeProbes, Tally},
    tables::{ReadAhead, Tables},
    torch::TorchReports,
};
use aiprof_model::{
    probes::table::Switch,
    process::{Region, Runtime},
    profile::{Losses, Meta, Profile},
    timeline::recorded::Recorded,
    wire::{self, Event, ProcessEvent, ProcessEventKind, PythonPieces, Record, Sample},
};
use aiprof_record::capture::CaptureWriter;
use aiprof_record::correlate::Counts;
use aiprof_record::store::Store;
use aiprof_record::timeline::{Builder, CommandDetail};
use aiprof_symbols::symbolize::SymbolizeOptions;
use aiprof_system::{files::kernel, os::privileges, remote};
use rustc_hash::FxHashSet;
use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Write},
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// Why a recording could not start, run or end.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// Something this machine or build cannot do.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The eBPF side.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// No perf event could be opened.
    #[error("cannot open a perf event: {} ({})", .0, perf_remedy(.0))]
    PerfEvent(io::Error),
    /// The programs that record waits could not be attached.
    #[error("cannot record waits: {0} (the Linux kernel needs BTF: CONFIG_DEBUG_INFO_BTF)")]
    Waits(io::Error),
    /// A control group given does not exist.
    #[error("{path}: not a control group")]
    Cgroup {
        /// The path.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The readers' own machinery.
    #[error("cannot run the readers: {0}")]
    Runtime(io::Error),
    /// A device cannot be sampled as was asked.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A device given does not exist.
    #[error("--admit-device: {0}")]
    StandIn(io::Error),
    /// The capture could not be written.
    #[error("cannot write the capture: {0}")]
    Capture(io::Error),
    /// The events of a trace could not be kept.
    #[error("cannot store the events of the trace: {0}")]
    Timeline(io::Error),
}

/// How far a running recording is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Samples recorded.
    pub samples: u64,
    /// Samples lost.
    pub lost: u64,
    /// Time since sampling began.
    pub elapsed: Duration,
    /// Processes seen.
    pub processes: usize,
}

/// What the profiler itself used.
#[derive(Clone, Copy, Debug, Default)]
pub struct SelfUsage {
    /// CPU time of the profiler's process, user and system.
    pub cpu: Duration,
    /// Peak anonymous and shared resident memory of the profiler, in bytes.
    pub peak_rss_bytes: u64,
    /// Locked memory of all BPF maps and perf rings, in bytes.
    pub bpf_memory_bytes: u64,
}

/// A finished recording.
#[derive(Debug)]
pub struct Finished {
    /// The symbolized profile since the last window.
    pub profile: Profile,
    /// What the profiler itself used.
    pub usage: SelfUsage,
    /// How long it was paused, which no length of it counts.
    pub paused: Duration,
    /// What of the runtimes was probed, if anything was to be.
    pub probes: Option<Tally>,
    /// How AIUs were used.
    pub aiu: AiuUse,
    /// Why devices were not sampled, or not well, and what to do.
    pub device_problems: Vec<String>,
    /// How many calls there were.
    pub calls: Counts,
    /// What was lost of calls, if the profile does not add them up.
    pub lost_calls: Losses,
    /// What happened when, if [`Keep::Timeline`] was asked for.
    pub timeline: Option<(Recorded, Store)>,
}

/// What is kept of single events.
#[derive(Default)]
pub enum Keep {
    /// Nothing.
    #[default]
    Nothing,
    /// All of them, as a capture that is written here.
    Capture(Box<dyn Write + Send>),
    /// What they mean, as a timeline.
    Timeline(Store, CommandDetail),
}

impl std::fmt::Debug for Keep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Capture(_) => "Capture",
            Self::Timeline(..) => "Timeline",
        })
    }
}

/// Pause after a wake-up, so that a storm of events becomes batches.
const BATCH: Duration = Duration::from_millis(4);
/// The same of a recording that never ends.
const CALM_BATCH: Duration = Duration::from_millis(100);
/// Shorter pause, where there is no storm: what woke us is just old enough to be
/// taken in. What a program that has just started calls must find its tables.
const SETTLE: Duration = Duration::from_nanos(IN_FLIGHT_NS + 100_000);
/// Most short pauses that are saved up; there is one more for every [`BATCH`].
const MAX_SHORT: f64 = 8.0;
/// How long one look at the rings may take, where answers are waited for: then it
/// is looked whether to stop.
const LOOK: Duration = Duration::from_millis(200);
/// Most looks at the end, each at what came during the one before.
const LAST_LOOKS: usize = 4;
/// How long what runs at the start is waited for, beside what may be waited at any time.
const FIRST_READS: Duration = Duration::from_millis(800);
/// How often new addresses of Java and JavaScript are given to the naming thread, whose names can be read only while the
/// program runs.
const NAMING_JAVA: Duration = Duration::from_millis(100);
/// How often it is looked whether a Java that was just started has code.
const JAVA_STARTS: Duration = Duration::from_millis(5);
/// How often dead processes are dropped: of short ones there may be thousands in a second.
const FORGETTING: Duration = Duration::from_millis(250);
/// How often it is looked whether CPUs came or went.
const FOLLOW_CPUS: Duration = Duration::from_millis(250);
/// Files known from one window to the next; beyond it, all is learned anew.
const MAX_FILES: usize = 16_384;
/// Files that no process maps whose tables and names are kept for the next that does.
const MAX_UNUSED: usize = 256;
/// How long a record may take from its time stamp to the ring: a sampling
/// program with all its stack pages.
const IN_FLIGHT_NS: u64 = 1_000_000;
/// How long a process is remembered after its exit: its last samples are long
/// in the ring by then.
const LINGER_NS: u64 = 2_000_000_000;
/// Most events held between two looks at the rings; beyond it the oldest go
/// into the profile without waiting for stragglers.
const MAX_PENDING: usize = 1 << 17;
/// Events after which a look at the rings sees whether they are filling up meanwhile.
const BETWEEN_GLANCES: usize = 64;
/// Most times that one look empties them: where that is not enough, the programs are faster
/// than this reader, and what is lost is counted.
const MAX_RELIEFS: usize = 4;
/// Events for which room is kept.
const USUALLY_PENDING: usize = 1024;
/// Most processes remembered that could not be looked at.
const MAX_ABSENT: usize = 4096;
/// A perf event ring may reserve this much in all; divided among the CPUs.
const PROCESS_RING_BYTES: usize = 1 << 20;

/// A running recording.
pub struct Session {
    bpf: Bpf,
    cpus: CpuSet,
    ring: Ring,
    /// The probes on runtimes, and the ring of their calls.
    probes: Option<(RuntimeProbes, Ring)>,
    /// The probes on drivers.
    drivers: DriverProbes,
    waits: waits::Waits,
    /// What of both is still being attached.
    starting: Option<starting::Starting>,
    /// Reports of operators, if programs are asked for them.
    torch: Option<TorchReports>,
    /// Which programs want their calls recorded, if they are asked.
    conditional: Option<Conditional>,
    devices: devices::Devices,
    /// The samplers of devices, while they run.
    samplers: Option<DeviceSamplers>,
    /// Where kernels lie on devices, if any is sampled.
    places: Option<KernelPlaces>,
    /// Where events go that belong to the recording.
    events: events::Events,
    tables: Tables,
    publisher: Publisher,
    finisher: Finisher,
    generated: Generated,
    javas: Javas,
    reader: Reader,
    reading: reading::Reading,
    binaries: Binaries,
    /// Processes that could not be looked at.
    absent: FxHashSet<u32>,
    names: Option<NameService>,
    name_options: SymbolizeOptions,
    named_codes: usize,
    /// The same for those of launches beside CPU samples.
    named_launches: usize,
    /// The same for those of Java.
    named_java: usize,
    filter: Filter,
    labels: labels::Labels,
    /// Code objects whose records are not all here.
    pieces: PythonPieces,
    /// Events that were received and are not in order yet.
    arrived: Vec<Event>,
    /// Events to be taken in, in order.
    pending: VecDeque<Event>,
    meta: Meta,
    started: Instant,
    window_started: Instant,
    last: Timers,
    /// It never ends, and looks less often.
    is_calm: bool,
    pace: Pace,
    pausing: pausing::Pausing,
    known: known::KnownProcesses,
    triggers: triggers::Triggers,
    /// If the last seconds are kept.
    turning: Option<dump::Turning>,
    /// What a CPU sample stands for, as captures have it, nanoseconds.
    sample_ns: u64,
    window_base: Losses,
    window_losses: Losses,
    busy_before: BTreeMap<u32, u64>,
    busy: BTreeMap<u32, u64>,
    samples_in_all: u64,
    undecodable: u64,
    /// Largest of the looks taken four times a second and at the end.
    peak_memory: remote::PeakMemory,
}

struct Timers {
    progress: Instant,
    naming: Instant,
    naming_java: Instant,
    forgetting: Instant,
    cleanup: Instant,
    cpus: Instant,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Loads the sampler and starts it; sampling runs when this returns. [`Session::prepare`]
    /// attaches the rest.
    ///
    /// # Errors
    /// Whatever kept it from loading or attaching.
    pub fn start(config: &RecordConfig, keep: Keep) -> Result<Self, CollectError> {
        let frequency_hz = config.frequency_hz.max(1);
        let period_ns = period_of(frequency_hz);
        let clock = match config.event {
            EventKind::CpuClock => Clock::CpuClock { period_ns },
            // A cycle is no fixed time: see `Aggregator::new`.
            EventKind::Cycles => Clock::Cycles {
                frequency_hz: frequency_hz.into(),
            },
        };
        let sample_ns = match config.event {
            EventKind::CpuClock => period_ns,
            EventKind::Cycles => 0,
        };
        let drivers = driver_plan(config)?;
        let options = BpfOptions {
            waits: config.waits.map(|waits| WaitSettings {
                period_ns: u32::try_from(period_ns).unwrap_or(u32::MAX),
                least_us: u32::try_from(waits.least_ns / 1000).unwrap_or(u32::MAX),
            }),
            include_idle: config.include_idle,
            kernel_stacks: config.kernel_stacks,
            ..call_options(config, &drivers)?
        };
        let bpf = Bpf::load(&options, config.bpf_object.as_deref())?;
        let ring = bpf.ring(SAMPLES)?;
        let ahead = match config.probes {
            Some(_) if !config.calm => ReadAhead::Files,
            _ => ReadAhead::Neighbours,
        };
        let tables = Tables::new(bpf.pool()?, ahead);
        let meta = describe(config, period_ns);
        let is_kept = !matches!(keep, Keep::Nothing) || config.window.is_some();
        let (mut capture, mut timeline) = (None, None);
        match keep {
            Keep::Nothing => {}
            Keep::Capture(out) => {
                let writer = CaptureWriter::new(out, &meta, sample_ns);
                capture = Some(writer.map_err(CollectError::Capture)?);
            }
            Keep::Timeline(store, detail) => {
                let wakers = config.waits.is_some_and(|waits| waits.options.wakers);
                let builder = Builder::new(period_ns, store).with_wakers(wakers);
                let builder = builder.with_commands(detail);
                timeline = Some(Box::new(builder));
            }
        }
        // Process events first: no process may start unseen before a sample of it.
        let mut cpus = CpuSet::new(clock, config.include_idle, PROCESS_RING_BYTES);
        perf::allow_many_files();
        cpus.open_rings().map_err(CollectError::PerfEvent)?;
        // After the rings: no child of a chosen process may be forked unseen.
        let mut filter = Filter::new(config)?;
        if config.probes.is_some() && !config.pids.is_empty() {
            filter.confine(bpf.writer(CHOSEN)?);
        }
        aiprof_system::os::scheduling::prefer_this_thread();
        let busy_before = busy::busy_ns();
        let now = Instant::now();
        let name_options = SymbolizeOptions {
            inlines: config.inlines,
            source_lines: config.source_lines,
            ..SymbolizeOptions::default()
        };
        let mut session = Self {
            bpf,
            cpus,
            ring,
            probes: None,
            drivers: DriverProbes::default(),
            starting: None,
            waits: waits::Waits::default(),
            torch: None,
            conditional: config
                .probes
                .as_ref()
                .filter(|probes| probes.switches.contains(&Switch::ConditionalCollection))
                .map(|_| Conditional::default()),
            devices: devices::Devices::new(config, is_kept),
            samplers: None,
            places: config.devices.is_on().then(KernelPlaces::default),
            events: events::Events::new(
                starting::aggregate(config, sample_ns),
                capture,
                timeline,
                config.python_c_frames,
            ),
            tables,
            publisher: Publisher::default(),
            finisher: Finisher::default(),
            generated: Generated::default(),
            javas: Javas::default(),
            reader: Reader::new().map_err(CollectError::Runtime)?,
            reading: reading::Reading::default(),
            binaries: Binaries::new(),
            absent: FxHashSet::default(),
            names: None,
            name_options,
            named_codes: 0,
            named_launches: 0,
            named_java: 0,
            filter,
            labels: labels::Labels::new(),
            pieces: PythonPieces::default(),
            arrived: Vec::new(),
            pending: VecDeque::new(),
            meta,
            started: now,
            window_started: now,
            last: Timers {
                progress: now,
                naming: now,
                naming_java: now,
                forgetting: now,
                cleanup: now,
                cpus: now,
            },
            is_calm: config.calm,
            pace: match config.calm {
                true => Pace::CALM,
                false => Pace::QUICK,
            },
            pausing: pausing::Pausing::default(),
            known: known::KnownProcesses::default(),
            triggers: triggers::Triggers::new(&config.triggers, config.window.is_none()),
            turning: config.window.map(dump::Turning::new),
            sample_ns,
            window_base: Losses::default(),
            window_losses: Losses::default(),
            busy_before,
            busy: BTreeMap::new(),
            samples_in_all: 0,
            undecodable: 0,
            peak_memory: remote::PeakMemory::default(),
        };
        if config.also_launches && config.probes.is_some() {
            session.events.launches = Some(Box::new(starting::launches(config)));
        }
        if let Some(length) = config.window {
            let length_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
            let last = window::LastSeconds::new(length_ns, perf::monotonic_ns());
            session.events.last_seconds = Some(last);
        }
        if config.devices.is_on() {
            session.samplers = Some(DeviceSamplers::start(&config.devices)?);
        }
        session.label_recording(config)?;
        session.meet_running()?;
        if config.start_paused {
            session.stop_recording()?;
        }
        session
            .cpus
            .start_sampling(session.bpf.sampler()?.as_fd())
            .map_err(CollectError::PerfEvent)?;
        session.started = Instant::now();
        session.window_started = session.started;
        session.reader.lend(FIRST_READS);
        session.start_probes(config, drivers)?;
        session.start_waits(config)?;
        session.tell_of_devices(false)?;
        tracing::debug!(
            "sampling for {} ms; it began after {} ms",
            session.started.elapsed().as_millis(),
            (session.started - now).as_millis()
        );
        Ok(session)
    }

    /// When sampling began.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Records, and attaches to runtimes and drivers meanwhile; ends when all that is
    /// there is probed, or when `stop` resolves.
    ///
    /// # Errors
    /// As [`Session::run`]; or something cannot be probed as was asked.
    pub async fn prepare(&mut self, stop: impl Future<Output = ()>) -> Result<(), CollectError> {
        if self.starting.is_none() {
            return Ok(());
        }
        self.serve(stop, |_| {}, true).await?;
        let took = self.started.elapsed().as_millis();
        tracing::debug!("all probes were attached {took} ms after sampling began");
        Ok(())
    }

    /// Runs the readers until `stop` resolves, or until there is something for
    /// [`Session::fired`] or [`Session::take_known`]; calls `on_progress` about four
    /// times a second.
    ///
    /// # Errors
    /// Whatever kept the readers from running.
    pub async fn run(
        &mut self,
        stop: impl Future<Output = ()>,
        mut on_progress: impl FnMut(&Progress),
    ) -> Result<(), CollectError> {
        self.start_counters();
        if let Some((probes, _)) = &mut self.probes {
            probes.started();
            probes.look_ahead(&self.events.recording.processes);
        }
        self.serve(stop, &mut on_progress, false).await
    }

    /// Reads the rings until `stop` resolves, or until everything is attached if `until_ready`.
    async fn serve(
        &mut self,
        stop: impl Future<Output = ()>,
        mut on_progress: impl FnMut(&Progress),
        until_ready: bool,
    ) -> Result<(), CollectError> {
        let probes = self.probes.as_ref();
        let calls = probes.map(|(_, ring)| ring.fd());
        let found = probes.and_then(|(probes, _)| probes.fd());
        let calls = calls.into_iter().chain(found);
        let rings = calls.chain([self.ring.fd(), self.reader.fd()]);
        let epoll = self.cpus.poller(rings).map_err(CollectError::Runtime)?;
        let readable = readable::watch(epoll).map_err(CollectError::Runtime)?;
        let every = match (until_ready, self.probes.is_some()) {
            (true, _) => START_TICK,
            (false, true) => self.pace.probing_tick,
            (false, false) => self.pace.tick,
        };
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tokio::pin!(stop);
        let (mut more, mut looked, mut short) = (false, Instant::now(), MAX_SHORT);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                ready = readable.readable() => {
                    ready.map_err(CollectError::Runtime)?.clear_ready();
                    perf::settle(readable.get_ref());
                    short += looked.elapsed().as_secs_f64() / BATCH.as_secs_f64();
                    short = short.min(MAX_SHORT);
                    looked = Instant::now();
                    // What was asked for is needed, and is no storm.
                    let probes = self.probes.as_ref();
                    let has_found = probes.is_some_and(|(probes, _)| probes.has_found());
                    if self.is_calm {
                        // Nothing may wake it, as tokio's sleep would let the rings do.
                        std::thread::sleep(CALM_BATCH);
                    } else if !self.reader.has_answers() && !has_found {
                        // Not tokio's sleep, which counts in milliseconds.
                        std::thread::sleep(if short >= 1.0 { SETTLE } else { BATCH });
                        short = (short - 1.0).max(0.0);
                    }
                }
                _ = tick.tick() => {}
                () = std::future::ready(()), if more => {}
                // A call that was too young to be taken may be one to be acted upon.
                () = tokio::time::sleep(SETTLE), if self.has_young_calls() => {}
                () = tokio::time::sleep(JAVA_STARTS), if self.javas.is_any_starting() => {}
            }
            more = self.drain(false)?;
            self.follow_triggers()?;
            self.housekeeping()?;
            if self.settle_start()? && until_ready {
                break;
            }
            self.look_for_known();
            if !until_ready && (self.triggers.have_fired() || self.has_known()) {
                break;
            }
            if self.last.progress.elapsed() >= self.pace.progress {
                self.last.progress = Instant::now();
                self.peak_memory.look();
                on_progress(&self.progress());
            }
        }
        Ok(())
    }

    /// Whether calls that may have to be acted upon were too young to be taken in.
    fn has_young_calls(&self) -> bool {
        let Some((probes, _)) = &self.probes else {
            return false;
        };
        let is_young =
            |event: &Event| matches!(event, Event::Call(call) if probes.hands_out(call.probe));
        self.pending.iter().any(is_young)
    }

    /// Reads the rings, and asks for what the events need. Gives whether there is
    /// more to read at once.
    fn receive(&mut self) -> bool {
        self.receive_processes();
        let known = self.arrived.len();
        let mut undecodable = 0;
        let (arrived, finisher) = (&mut self.arrived, &mut self.finisher);
        let pieces = &mut self.pieces;
        let mut receive = |record: &[u8]| undecodable += receive(record, arrived, finisher, pieces);
        let mut read = self.ring.drain(&mut receive);
        if let Some((_, ring)) = &mut self.probes {
            let Drained { more, damaged } = ring.drain(&mut receive);
            read.more |= more;
            undecodable += u64::from(damaged);
        }
        self.undecodable += undecodable + u64::from(read.damaged);
        self.foresee(known);
        read.more
    }

    /// Whether a ring is filling up while there is room for its events here.
    fn is_filling(&self) -> bool {
        let probes = self.probes.as_ref().map(|(_, ring)| ring);
        let is_filling = probes.is_some_and(Ring::is_half_full) || self.ring.is_half_full();
        is_filling && self.pending.len() + self.arrived.len() < MAX_PENDING
    }

    /// Reads the rings of process events, and asks for what the events need.
    fn receive_processes(&mut self) {
        let known = self.arrived.len();
        for ring in self.cpus.rings() {
            self.undecodable += ring.drain(|event| self.arrived.push(Event::Process(event)));
        }
        self.foresee(known);
    }

    /// Reads the rings and takes in, in time order, everything that happened
    /// before the look began: a later event may still be on its way. `all`:
    /// nothing more will come. Gives whether there is more to read at once.
    fn drain(&mut self, all: bool) -> Result<bool, CollectError> {
        let begun = Instant::now();
        let horizon = perf::monotonic_ns().saturating_sub(IN_FLIGHT_NS);
        let mut more = self.receive();
        self.pending.extend(self.arrived.drain(..));
        if let Some(samplers) = &self.samplers {
            self.pending.extend(samplers.events());
        }
        self.tell_of_probes();
        self.pending.make_contiguous().sort_by_key(Event::time_ns);
        let take_all = all || self.pending.len() > MAX_PENDING;
        let (mut taken, mut reliefs) = (0_usize, 0);
        while let Some(event) = self.pending.front() {
            if !take_all && event.time_ns() > horizon {
                break;
            }
            taken += 1;
            let may_glance = taken.is_multiple_of(BETWEEN_GLANCES) && reliefs < MAX_RELIEFS;
            if may_glance && self.is_filling() {
                // What it finds happened later and is taken in at the next look.
                self.receive();
                reliefs += 1;
            }
            if let Some(event) = self.pending.pop_front() {
                self.take(event)?;
            }
            if !all && begun.elapsed() > LOOK {
                more = true;
                break;
            }
        }
        self.take_answers();
        self.meet_late()?;
        if !all {
            self.publish();
            self.await_tables();
            self.tables.maintain();
            self.name_late_kernels(Some(horizon))?;
            self.place_kernels(Some(horizon))?;
        }
        Ok(more || !self.arrived.is_empty())
    }

    fn take(&mut self, event: Event) -> Result<(), CollectError> {
        match event {
            Event::Process(event) => self.take_process(event),
            Event::Sample(sample) => self.take_sample(sample),
            Event::CallStack(stack) => self.take_call_stack(stack),
            Event::Call(call) => self.take_call(call),
            Event::CallData(data) => self.take_call_data(data),
            Event::Trace(trace) => self.take_trace(trace),
            Event::Wait(wait) => self.take_wait(wait),
            Event::Probe(_)
            | Event::ProbedFile(_)
            | Event::KernelNamed(_)
            | Event::TracePoint(_)
            | Event::Clock(_)
            | Event::DeviceStream(_)
            | Event::Pause(_)
            | Event::KernelPlaced(_)
            | Event::DeviceCode(_)
            | Event::PythonFound(_)
            | Event::PythonStack(_)
            | Event::Labels(_)
            | Event::Ops(_) => self.record(&event).map(drop),
            Event::Stalls(window) => {
                // The device is sampled in pauses too.
                if self.pausing.covers(window.from_ns, window.to_ns) {
                    return Ok(());
                }
                self.record(&Event::Stalls(window)).map(drop)
            }
            Event::Counter(counter) => self.record(&Event::Counter(counter)).map(drop),
            Event::PythonCode(code) => {
                if self
                    .filter
                    .wants_process(code.pid, &self.events.recording.processes)
                {
                    self.record(&Event::PythonCode(code))?;
                }
                Ok(())
            }
        }
    }

    fn take_process(&mut self, mut event: ProcessEvent) -> Result<(), CollectError> {
        match &mut event.kind {
            ProcessEventKind::Map(map) => self.identify(event.pid, map),
            ProcessEventKind::Snapshot { maps, .. } => {
                for map in maps {
                    self.identify_read(event.pid, map);
                }
            }
            _ => {}
        }
        self.late_processes(&event)?;
        let event = Event::Process(event);
        let changed = self.record(&event)?;
        let Event::Process(event) = event else {
            return Ok(());
        };
        self.absent.remove(&event.pid);
        self.filter.note(&event);
        self.note_for_known(&event);
        if let Some(conditional) = &mut self.conditional {
            conditional.process(&event);
        }
        match &event.kind {
            ProcessEventKind::Exec { .. } if event.pid == event.tid => {
                self.publisher.execd(event.pid);
                self.generated.forget(event.pid);
                self.javas.forget(event.pid);
            }
            ProcessEventKind::Map(map) if Region::of(&map.file) == Region::Anonymous => {
                let end = map.start.saturating_add(map.len);
                self.generated.mapped(event.pid, &(map.start..end));
            }
            ProcessEventKind::Map(map)
                if Runtime::of_path(&map.file.path) == Some(Runtime::Java) =>
            {
                self.javas.starts(event.pid, Instant::now());
            }
            ProcessEventKind::Snapshot { maps, .. } => {
                if let Some((probes, _)) = &mut self.probes {
                    maps.iter().for_each(|map| probes.mapped(event.pid, map));
                }
            }
            ProcessEventKind::Lost { .. } => {
                self.reading.lost(event.time_ns);
                self.absent.clear();
            }
            ProcessEventKind::Exit if event.pid == event.tid => {
                self.publisher
                    .retire(event.pid, &self.events.recording.processes);
                self.binaries.forget_process(event.pid);
                self.reader.forget(event.pid);
            }
            _ => {}
        }
        // In a recording that never ends, most processes are never sampled.
        if changed && (!self.is_calm || self.publisher.has(event.pid)) {
            self.publisher.changed(event.pid);
        }
        if let Some((probes, _)) = &mut self.probes {
            match event.kind {
                ProcessEventKind::Exit => probes.thread_exited(event.pid, event.tid, &self.bpf),
                ProcessEventKind::Exec { .. } => probes.executed(event.pid),
                _ => {}
            }
        }
        Ok(())
    }

    fn take_sample(&mut self, mut sample: Sample) -> Result<(), CollectError> {
        if !self.meet(&mut sample)? {
            return Ok(());
        }
        self.record(&Event::Sample(sample)).map(drop)
    }

    /// Gets to know the process of a sample, and finishes its stack. `false`: it
    /// does not belong to the recording.
    fn meet(&mut self, sample: &mut Sample) -> Result<bool, CollectError> {
        let pid = sample.thread.pid;
        let known = self
            .events
            .recording
            .processes
            .get(pid)
            .is_some_and(|p| p.complete);
        if !known && !sample.user.is_empty() {
            self.first_sight(pid, sample.thread.tid, sample.time_ns)?;
        }
        if let Some(process) = self.events.recording.processes.get_mut(pid)
            && process.exited_ns.is_some_and(|exit| exit < sample.time_ns)
        {
            // Sampled after its main thread's exit: other threads live on.
            process.exited_ns = None;
            process.headless = true;
            self.publisher.changed(pid);
        }
        if sample.flags & aiprof_common::FLAG_FROM_ANCESTOR != 0
            || sample.stop == wire::StopReason::NoProcess
        {
            self.publisher.changed(pid);
        }
        if sample.flags & aiprof_common::FLAG_FROM_ANCESTOR != 0
            && let Some(process) = self.events.recording.processes.get(pid)
            && process.space.id != sample.space
            && self.events.recording.processes.shares(pid, sample.space)
        {
            sample.space = process.space.id;
        }
        if !self.filter.wants(sample, &self.events.recording.processes) {
            return Ok(false);
        }
        let about = match sample.stop {
            wire::StopReason::KernelThread => MetAs::KernelThread,
            _ => MetAs::Process,
        };
        self.label(pid, sample.time_ns, about)?;
        self.finish_walk(sample);
        self.read_java(sample);
        self.read_generated(sample);
        Ok(true)
    }

    fn housekeeping(&mut self) -> Result<(), CollectError> {
        self.turn();
        self.tell_of_devices(false)?;
        self.take_ops()?;
        self.read_starting_java();
        // Whoever names is to have the privileges of a running recording, and no more.
        if self.last.naming.elapsed() >= self.pace.naming && self.starting.is_none() {
            self.last.naming = Instant::now();
            self.last.naming_java = Instant::now();
            self.ask_again();
            self.request_names(false);
        } else if self.last.naming_java.elapsed() >= NAMING_JAVA
            && (self.javas.any() || self.tables.has_v8())
        {
            self.last.naming_java = Instant::now();
            self.request_java_names();
        }
        if self.last.forgetting.elapsed() >= FORGETTING {
            self.last.forgetting = Instant::now();
            let horizon = perf::monotonic_ns().saturating_sub(LINGER_NS);
            let processes = &mut self.events.recording.processes;
            for pid in processes.remove_exited_before(horizon, procfs::has_other_threads) {
                self.filter.forget(pid);
            }
        }
        if self.last.cleanup.elapsed() >= self.pace.cleanup {
            self.last.cleanup = Instant::now();
            self.absent.clear();
            self.reading.tidy();
            // A burst may have been of a hundred thousand events.
            self.pending
                .shrink_to(2 * self.pending.len() + USUALLY_PENDING);
            self.arrived.shrink_to(USUALLY_PENDING);
            // Samples that wait longer are taken in without their pages.
            let horizon = perf::monotonic_ns().saturating_sub(5 * LINGER_NS);
            self.finisher.forget_before(horizon);
            let processes = &self.events.recording.processes;
            let lives = |pid| processes.get(pid).is_some();
            self.binaries.keep_processes(lives);
            self.generated.keep_processes(lives);
            self.javas.keep_processes(lives);
            self.binaries.release_deleted(processes);
            self.tables.forget_unused(false);
            self.follow_headless();
            if let Some((probes, _)) = &mut self.probes {
                probes.maintain();
            }
        }
        let unseen = self.last.cpus.elapsed();
        if unseen >= FOLLOW_CPUS {
            self.last.cpus = Instant::now();
            let sampler = self.bpf.sampler()?;
            let came = self.cpus.follow_hotplug(sampler.as_fd(), unseen);
            if came.map_err(CollectError::PerfEvent)? {
                // What began there meanwhile is not known. It is taken in after what happened
                // before, of which an exec would make a process known again.
                self.arrived.push(Event::Process(ProcessEvent {
                    time_ns: perf::monotonic_ns(),
                    pid: 0,
                    tid: 0,
                    kind: ProcessEventKind::Lost { count: 0 },
                }));
            }
        }
        Ok(())
    }

    /// Drops processes whose main thread exited earlier and whose last thread has gone since: no
    /// event reports that.
    fn follow_headless(&mut self) {
        let gone: Vec<u32> = self
            .events
            .recording
            .processes
            .iter()
            .filter(|(pid, p)| p.headless && !procfs::exists(*pid))
            .map(|(pid, _)| pid)
            .collect();
        for pid in gone {
            self.publisher.retire(pid, &self.events.recording.processes);
            self.events.recording.processes.remove(pid);
            self.filter.forget(pid);
        }
    }
}

/// What mends it that no perf event can be opened.
fn perf_remedy(error: &io::Error) -> String {
    let refused = error.raw_os_error() == Some(libc::EACCES);
    if kernel::metadata("/sys/devices").is_err() {
        return "/sys is not mounted: run mount -t sysfs sysfs /sys".into();
    }
    if error.raw_os_error() == Some(libc::ENOENT) {
        return "no PMU: this machine has no hardware counters, like most virtual machines; leave \
                out --event cycles to sample by CPU time"
            .into();
    }
    match privileges::strict_perf().filter(|_| refused) {
        Some(value) => format!(
            "kernel.perf_event_paranoid is {value}, so kernels of Debian and Ubuntu require \
             CAP_SYS_ADMIN: run aiprof as root, or run sudo sysctl kernel.perf_event_paranoid=2"
        ),
        None => "run `aiprof doctor` to see what is missing".into(),
    }
}

/// What the programs at probes need.
fn call_options(config: &RecordConfig, drivers: &DriverPlan) -> Result<BpfOptions, CollectError> {
    let Some(probes) = &config.probes else {
        return Ok(BpfOptions::default());
    };
    Ok(BpfOptions {
        named_files: drivers.named_files(),
        chosen_only: !config.pids.is_empty(),
        cgroup: config.cgroup.as_deref().map(cgroup_id).transpose()?,
        calls: Some(CallOptions {
            ring_bytes: probes.ring_bytes,
            probes: probes.specs() + drivers.specs(),
            stack_limit: probes.stack_limit,
        }),
        ..BpfOptions::default()
    })
}

/// What to observe of drivers.
fn driver_plan(config: &RecordConfig) -> Result<DriverPlan, CollectError> {
    match &config.probes {
        Some(probes) => {
            DriverPlan::new(&probes.drivers, &probes.stand_ins).map_err(CollectError::StandIn)
        }
        None => Ok(DriverPlan::default()),
    }
}

/// Takes in a record of a ring; gives how many could not be decoded.
fn receive(
    record: &[u8],
    arrived: &mut Vec<Event>,
    finisher: &mut Finisher,
    pieces: &mut PythonPieces,
) -> u64 {
    match wire::decode(record) {
        Ok(Record::Sample(sample)) => arrived.push(Event::Sample(sample)),
        Ok(Record::StackPage {
            cpu,
            time_ns,
            address,
            data,
        }) => finisher.page(cpu, time_ns, address, data),
        Ok(Record::Call(call)) => arrived.push(Event::Call(call)),
        Ok(Record::CallData(data)) => arrived.push(Event::CallData(data)),
        Ok(Record::CallStack(stack)) => arrived.push(Event::CallStack(stack)),
        Ok(Record::Trace(trace)) => arrived.push(Event::Trace(trace)),
        Ok(Record::Wait(wait)) => arrived.push(Event::Wait(wait)),
        Ok(Record::Python(record)) => {
            arrived.extend(pieces.take(record).map(Event::PythonCode));
        }
        Err(error) => {
            tracing::debug!("cannot decode a record: {error}");
            return 1;
        }
    }
    0
}

/// The description of a recording that begins now.
fn describe(config: &RecordConfig, period_ns: u64) -> Meta {
    let text = |path: &str| {
        kernel::read_to_string(path).map_or_else(|_| String::new(), |t| t.trim().to_owned())
    };
    Meta {
        title: config.title.clone(),
        host: text("/proc/sys/kernel/hostname"),
        kernel: text("/proc/sys/kernel/osrelease"),
        command: config.command.clone(),
        scope: scope(config),
        start_unix_ns: clock::unix_ns(),
        duration_ns: 0,
        cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        frequency_hz: config.frequency_hz,
        period_ns,
    }
}

/// What is recorded, in words; empty: the whole machine.
fn scope(config: &RecordConfig) -> String {
    let name = |pid: &u32| match procfs::comm(*pid) {
        Ok(comm) => format!("{pid} ({})", comm.trim()),
        Err(_) => pid.to_string(),
    };
    let mut parts = Vec::new();
    match config.pids.as_slice() {
        [] if config.choice.is_all() => {}
        [] => parts.push("processes".to_owned()),
        // Its process has this program's name yet.
        _ if config.only_command => parts.push("COMMAND and its children".to_owned()),
        [pid] => parts.push(format!("process {}", name(pid))),
        [first, rest @ ..] => {
            parts.push(format!("process {} and {} more", name(first), rest.len()))
        }
    }
    if let Some(first) = parts.first_mut().filter(|_| !config.choice.is_all()) {
        *first = format!("{first} {}", config.choice.describe());
    }
    if let Some(cgroup) = &config.cgroup {
        let below = cgroup.strip_prefix(cgroup::root()).unwrap_or(cgroup);
        parts.push(format!("cgroup {}", below.display()));
    }
    parts.join(" in ")
}

/// A control group's id, for the filter.
pub(super) fn cgroup_id(path: &std::path::Path) -> Result<u64, CollectError> {
    cgroup::id_of(path).map_err(|source| CollectError::Cgroup {
        path: path.display().to_string(),
        source,
    })
}
