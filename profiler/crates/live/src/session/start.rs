//! The start of a recording.

use super::{
    CollectError, Keep, Session, collector::EventCollector, devices::Devices, events::Events,
    known::KnownProcesses, naming::Naming, pace::Pace, pausing::Pausing, probes::Probes,
    processes::LiveProcesses, queue::EventQueue, sampling::KernelSampling, windows::Windows,
};
use crate::{
    bpf::{
        Bpf, BpfOptions, CHOSEN, CallOptions, SAMPLES, WaitSettings,
        perf::{self, SamplingClock},
    },
    cgroup, clock,
    config::{RecordConfig, SamplingEvent as EventKind},
    cpu::{CpuSet, period_of},
    device::DeviceSamplers,
    driver::DriverPlan,
    filter::Filter,
    procfs,
    tables::ReadAhead,
};
use aiprof_model::{
    profile::Meta,
    wire::{Event, ProcessLabels},
};
use aiprof_record::{capture::CaptureWriter, store::Store, timeline::Builder};
use aiprof_symbols::symbolize::SymbolizeOptions;
use aiprof_system::{files::kernel, remote::PeakMemory};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// How long what runs at the start is waited for, beside what may be waited at any time.
const FIRST_READS: Duration = Duration::from_millis(800);
/// A perf event ring may reserve this much in all; divided among the CPUs.
const PROCESS_RING_BYTES: usize = 1 << 20;

impl Session {
    /// Loads the sampler and starts it; sampling runs when this returns. [`Session::prepare`]
    /// attaches the rest.
    ///
    /// # Errors
    /// Whatever kept it from loading or attaching.
    pub fn start(config: &RecordConfig, keep: Keep) -> Result<Self, CollectError> {
        let drivers = driver_plan(config)?;
        let (mut collector, mut windows) = load(config, keep, &drivers)?;
        let begun = windows.started;
        if config.devices.is_on() {
            collector.devices.samplers = Some(DeviceSamplers::start(&config.devices)?);
        }
        if !config.labels.is_empty() {
            collector.dispatch(&Event::Labels(ProcessLabels {
                time_ns: perf::monotonic_ns(),
                pid: 0,
                labels: config.labels.clone(),
            }))?;
        }
        collector.resolve_running()?;
        if config.start_paused {
            let keeps_calls = collector.events.triggers.begin_recording();
            let (kernel, queue) = (&mut collector.kernel, &mut collector.queue);
            collector.pausing.begin(kernel, keeps_calls, queue)?;
        }
        collector.kernel.start_sampling()?;
        let started = Instant::now();
        (windows.started, windows.began) = (started, started);
        collector.processes.reader.budgets.lend(FIRST_READS);
        let bpf = &collector.kernel.bpf;
        if let Some(wanted) = &config.probes {
            collector.probes.start(bpf, wanted, drivers)?;
        }
        if config.waits.is_some() {
            collector.probes.waits.attach(bpf)?;
        }
        let counters = collector.devices.counters(&collector.pausing, false);
        collector.dispatch_all(counters)?;
        tracing::debug!(
            "sampling for {} ms; it began after {} ms",
            started.elapsed().as_millis(),
            (started - begun).as_millis()
        );
        Ok(Self {
            collector,
            windows,
            pace: Pace::new(config.continuous, begun),
            peak_memory: PeakMemory::default(),
        })
    }
}

/// Loads the programs and opens the rings. Nothing is sampled yet.
fn load(
    config: &RecordConfig,
    keep: Keep,
    drivers: &DriverPlan,
) -> Result<(EventCollector, Windows), CollectError> {
    let frequency_hz = config.frequency_hz.max(1);
    let period_ns = period_of(frequency_hz);
    let (clock, sample_ns) = match config.event {
        EventKind::CpuClock => (SamplingClock::CpuClock { period_ns }, period_ns),
        // A cycle is no fixed time: see `Aggregator::new`.
        EventKind::Cycles => {
            let frequency_hz = frequency_hz.into();
            (SamplingClock::Cycles { frequency_hz }, 0)
        }
    };
    let options = bpf_options(config, period_ns, drivers)?;
    let bpf = Bpf::load(&options, config.bpf_object.as_deref())?;
    let (ring, pool) = (bpf.ring(SAMPLES)?, bpf.pool()?);
    let meta = describe(config, period_ns);
    let is_kept = !matches!(keep, Keep::Nothing) || config.window.is_some();
    let (capture, timeline) = sinks(config, keep, &meta, sample_ns)?;
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
    let pausing = Pausing::new();
    let now = Instant::now();
    let ahead = match config.probes {
        Some(_) if !config.continuous => ReadAhead::Files,
        _ => ReadAhead::Neighbours,
    };
    let collector = EventCollector {
        kernel: KernelSampling { bpf, cpus, ring },
        probes: Probes::new(config),
        devices: Devices::new(config, is_kept),
        events: Events::new(config, sample_ns, capture, timeline),
        processes: LiveProcesses::new(pool, ahead)?,
        naming: Naming::new(SymbolizeOptions {
            inlines: config.inlines,
            source_lines: config.source_lines,
            ..SymbolizeOptions::default()
        }),
        filter,
        queue: EventQueue::default(),
        pausing,
        known: KnownProcesses::default(),
        is_continuous: config.continuous,
    };
    Ok((collector, Windows::new(config, meta, sample_ns, now)))
}

/// Sizes and switches of the eBPF programs.
fn bpf_options(
    config: &RecordConfig,
    period_ns: u64,
    drivers: &DriverPlan,
) -> Result<BpfOptions, CollectError> {
    let options = BpfOptions {
        waits: config.waits.map(|waits| WaitSettings {
            period_ns: u32::try_from(period_ns).unwrap_or(u32::MAX),
            least_us: u32::try_from(waits.least_ns / 1000).unwrap_or(u32::MAX),
        }),
        include_idle: config.include_idle,
        kernel_stacks: config.kernel_stacks,
        ..BpfOptions::default()
    };
    let Some(probes) = &config.probes else {
        return Ok(options);
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
        ..options
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

/// What keeps single events.
type EventSinks = (Option<CaptureWriter>, Option<Box<Builder<Store>>>);

fn sinks(
    config: &RecordConfig,
    keep: Keep,
    meta: &Meta,
    sample_ns: u64,
) -> Result<EventSinks, CollectError> {
    Ok(match keep {
        Keep::Nothing => (None, None),
        Keep::Capture(out) => {
            let writer = CaptureWriter::new(out, meta, sample_ns);
            (Some(writer.map_err(CollectError::Capture)?), None)
        }
        Keep::Timeline(store, detail) => {
            let wakers = config.waits.is_some_and(|waits| waits.options.wakers);
            let builder = Builder::new(meta.period_ns, store).with_wakers(wakers);
            (None, Some(Box::new(builder.with_commands(detail))))
        }
    })
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
pub(crate) fn cgroup_id(path: &Path) -> Result<u64, CollectError> {
    cgroup::id_of(path).map_err(|source| CollectError::Cgroup {
        path: path.display().to_string(),
        source,
    })
}
