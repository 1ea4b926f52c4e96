//! A recording, from attaching to the finished profile.
//!
//! `EventCollector` owns what a recording is made of, and each part owns what belongs together:
//!
//! * `KernelSampling`: the eBPF programs, the sampling events and their rings;
//! * `Probes`: what is attached to runtimes, drivers and waits;
//! * `Devices`: what devices report;
//! * `Events`: where events go;
//! * `LiveProcesses`: what is read of processes, and what the kernel side knows of it;
//! * `Naming`: the threads that find names.
//!
//! Its methods are the path of an event from the first of them to the sinks. [`Session`] runs it,
//! and makes `Windows` of what was recorded.

mod changes;
mod code;
mod collector;
mod cost;
mod devices;
mod dump;
mod end;
mod events;
mod known;
mod labels;
mod last_seconds;
mod lookups;
mod naming;
mod pace;
mod pausing;
mod probes;
mod processes;
mod queue;
mod sampling;
mod start;
mod triggers;
mod waits;
mod windows;

pub use cost::{Cost, ProbeTraps};
pub use devices::AiuUse;
pub use known::{KnownProcess, KnownProcesses};
pub use last_seconds::DumpExtent;
pub(crate) use start::cgroup_id;
pub use triggers::{Fired, Triggers};
pub use windows::WindowProfiles;

use crate::{
    bpf::{BpfError, perf},
    closing,
    device::DeviceError,
    inspect::guard,
    procfs, readable,
    runtime::Tally,
};
use aiprof_common::COUNT_RING_DROPS;
use aiprof_model::{
    profile::{Losses, Profile},
    timeline::recorded::Recorded,
};
use aiprof_record::{
    correlate::Counts, recording::RecordingSink, store::Store, timeline::CommandDetail,
};
use aiprof_system::{files::kernel, os::privileges, remote};
use collector::EventCollector;
use pace::{Batches, JAVA_STARTS, Pace, SETTLE, START_TICK};
use processes::LINGER_NS;
use std::{
    io::{self, Write},
    time::{Duration, Instant},
};
use windows::Windows;

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

/// A running recording.
pub struct Session {
    collector: EventCollector,
    windows: Windows,
    pace: Pace,
    /// Largest of the looks taken four times a second and at the end.
    peak_memory: remote::PeakMemory,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("meta", &self.windows.meta)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// When sampling began.
    pub fn started(&self) -> Instant {
        self.windows.started
    }

    /// Gives every event that belongs to the recording to `watcher` too, from here
    /// on: what was recorded before is not repeated.
    pub fn on_events(&mut self, watcher: Box<dyn RecordingSink>) {
        self.collector.events.watcher = Some(watcher);
    }

    /// Records, and attaches to runtimes and drivers meanwhile; ends when all that is
    /// there is probed, or when `stop` resolves.
    ///
    /// # Errors
    /// As [`Session::run`]; or something cannot be probed as was asked.
    pub async fn prepare(&mut self, stop: impl Future<Output = ()>) -> Result<(), CollectError> {
        if !self.collector.probes.is_starting() {
            return Ok(());
        }
        self.serve(stop, |_| {}, true).await?;
        let took = self.started().elapsed().as_millis();
        tracing::debug!("all probes were attached {took} ms after sampling began");
        Ok(())
    }

    /// Runs the readers until `stop` resolves, or until there is something in
    /// [`Session::triggers`] or [`Session::known`]; calls `on_progress` about four
    /// times a second.
    ///
    /// # Errors
    /// Whatever kept the readers from running.
    pub async fn run(
        &mut self,
        stop: impl Future<Output = ()>,
        mut on_progress: impl FnMut(&Progress),
    ) -> Result<(), CollectError> {
        let collector = &mut self.collector;
        collector.devices.start_counters();
        collector.probes.run(&collector.events.recording.processes);
        self.serve(stop, &mut on_progress, false).await
    }

    /// Reads the rings until `stop` resolves, or until everything is attached if `until_ready`.
    async fn serve(
        &mut self,
        stop: impl Future<Output = ()>,
        mut on_progress: impl FnMut(&Progress),
        until_ready: bool,
    ) -> Result<(), CollectError> {
        let collector = &mut self.collector;
        let others = [collector.kernel.ring.fd(), collector.processes.reader.fd()];
        let others = collector.probes.descriptors().chain(others);
        let epoll = collector.kernel.cpus.poller(others);
        let epoll = epoll.map_err(CollectError::Runtime)?;
        let readable = readable::watch(epoll).map_err(CollectError::Runtime)?;
        let every = match (until_ready, collector.probes.runtime.is_some()) {
            (true, _) => START_TICK,
            (false, true) => self.pace.probing_tick,
            (false, false) => self.pace.tick,
        };
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tokio::pin!(stop);
        let (mut more, mut batches) = (false, Batches::new());
        loop {
            let collector = &mut self.collector;
            tokio::select! {
                biased;
                () = &mut stop => break,
                ready = readable.readable() => {
                    ready.map_err(CollectError::Runtime)?.clear_ready();
                    perf::settle(readable.get_ref());
                    // What was requested is needed, and is no storm.
                    let is_needed = collector.processes.reader.has_answers()
                        || collector.probes.has_found();
                    batches.pause(collector.is_continuous, is_needed);
                }
                _ = tick.tick() => {}
                () = std::future::ready(()), if more => {}
                // A call that was too young to be applied may be one to be acted upon.
                () = tokio::time::sleep(SETTLE),
                    if collector.probes.has_young_calls(&collector.queue) => {}
                () = tokio::time::sleep(JAVA_STARTS),
                    if collector.processes.javas.is_any_starting()
                        || collector.processes.copied.is_any_soon() => {}
            }
            more = collector.collect(false)?;
            let triggers = &collector.events.triggers;
            if triggers.have_fired() && triggers.begin_recording() {
                self.resume()?;
            }
            self.housekeeping()?;
            if is_done(&mut self.collector, until_ready)? {
                break;
            }
            if self.pace.progress.is_due() {
                self.peak_memory.look();
                on_progress(&self.progress());
            }
        }
        Ok(())
    }

    /// Does what must be done again and again.
    fn housekeeping(&mut self) -> Result<(), CollectError> {
        let (collector, pace) = (&mut self.collector, &mut self.pace);
        self.windows.turn(collector);
        let counters = collector.devices.counters(&collector.pausing, false);
        collector.dispatch_all(counters)?;
        let ops = collector.probes.ops(false);
        collector.dispatch_wanted(ops)?;
        let table = &mut collector.events.recording.processes;
        collector.processes.request_starting_java(table);
        collector.processes.request_copied();
        // Whoever names is to have the privileges of a running recording, and no more.
        let may_name = !collector.probes.is_starting();
        let has_java =
            collector.processes.javas.any() || collector.processes.publisher.lists.has_v8();
        if may_name && pace.naming.is_due() {
            pace.naming_java.restart();
            collector.processes.request_late_files(table);
            let (bpf, events) = (&collector.kernel.bpf, &collector.events);
            let processes = &mut collector.processes;
            collector.naming.request(bpf, processes, events, false);
        } else if has_java && pace.naming_java.is_due() {
            let (processes, events) = (&collector.processes, &collector.events);
            collector.naming.request_java(processes, events);
        }
        let table = &mut collector.events.recording.processes;
        if pace.forgetting.is_due() {
            let horizon = perf::monotonic_ns().saturating_sub(LINGER_NS);
            for pid in table.remove_exited_before(horizon, procfs::has_other_threads) {
                collector.filter.forget(pid);
            }
        }
        if pace.cleanup.is_due() {
            collector.queue.shrink();
            collector.processes.tidy(table);
            for pid in collector.processes.drop_headless(table) {
                collector.filter.forget(pid);
            }
            collector.probes.maintain();
        }
        if let Some(unseen) = pace.cpus.due() {
            collector.kernel.follow_cpus(unseen, &mut collector.queue)?;
        }
        Ok(())
    }

    /// The symbolized profile since the start or the last call.
    ///
    /// # Errors
    /// Whatever kept the profile from being made.
    pub fn window(&mut self) -> Result<Profile, CollectError> {
        let (collector, windows) = (&mut self.collector, &mut self.windows);
        collector.collect(false)?;
        let profile = windows.build(collector);
        windows.forget(collector);
        Ok(profile)
    }

    /// The profiles of what was recorded since the start or the last call.
    ///
    /// # Errors
    /// Whatever kept them from being made.
    pub fn end_window(&mut self) -> Result<WindowProfiles, CollectError> {
        let (collector, windows) = (&mut self.collector, &mut self.windows);
        collector.collect(false)?;
        let window = windows.build_parts(collector);
        windows.forget(collector);
        Ok(window)
    }

    /// Writes what is kept of the last seconds, as a capture. The recording goes on, and
    /// what was written can be written again.
    ///
    /// # Errors
    /// Nothing is kept, or it cannot be written.
    pub fn dump(&mut self, out: Box<dyn Write + Send>) -> Result<DumpExtent, CollectError> {
        // On a busy machine the last seconds may still wait to be read.
        self.catch_up()?;
        self.windows.dump(&mut self.collector, out)
    }

    /// Detaches everything and returns the rest.
    ///
    /// # Errors
    /// Whatever kept the profile from being made.
    pub fn finish(mut self) -> Result<Finished, CollectError> {
        let (collector, windows) = (&mut self.collector, &mut self.windows);
        let (links, paused, device_problems) = end::detach(collector)?;
        end::collect_last(collector)?;
        let events = &mut collector.events;
        events.finish(perf::monotonic_ns());
        let calls = events.recording.tracker().counts();
        let lost_calls = events.lost_calls();
        events.aggregate.settle_devices(true);
        if events.forget_watched() {
            collector.naming.restart(false);
        }
        let profile = windows.build(collector);
        let timeline = end::write_kept(collector, windows, &profile.meta, &lost_calls)?;
        let (pages, shared, bytes) = self.collector.processes.tables.pages.extent();
        tracing::info!("unwind tables: {pages} pages, {shared} more shared, {bytes} bytes");
        self.peak_memory.look();
        let usage = SelfUsage {
            cpu: remote::cpu_clock(libc::CLOCK_PROCESS_CPUTIME_ID) + remote::cpu_time(),
            peak_rss_bytes: self.peak_memory.bytes(),
            bpf_memory_bytes: self.collector.kernel.memory_bytes(),
        };
        let probes = self.collector.probes.take_tally();
        let aiu = self.collector.devices.used;
        // Whoever closes the rest must not keep alive what this process has.
        drop(self);
        closing::in_background(links);
        // Another recording of this process may go on.
        guard::set_ending(false);
        Ok(Finished {
            profile,
            usage,
            paused,
            probes,
            aiu,
            device_problems,
            calls,
            lost_calls,
            timeline,
        })
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let collector = &self.collector;
        Progress {
            samples: match collector.events.triggers.begin_recording() {
                true => 0,
                false => self.windows.samples(collector),
            },
            lost: collector.kernel.bpf.count(COUNT_RING_DROPS),
            elapsed: self.started().elapsed(),
            processes: collector.events.recording.processes.len(),
        }
    }
}

/// Whether all is attached if `until_ready`, else whether there is something in
/// [`Session::triggers`] or [`Session::known`].
fn is_done(collector: &mut EventCollector, until_ready: bool) -> Result<bool, CollectError> {
    let EventCollector {
        kernel,
        probes,
        events,
        processes,
        known,
        ..
    } = collector;
    let table = &events.recording.processes;
    let is_ready = probes.settle_start(&kernel.bpf, processes, table)?;
    if is_ready && until_ready {
        return Ok(true);
    }
    known.look(probes, processes, table);
    Ok(!until_ready && (events.triggers.have_fired() || known.has_news()))
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
