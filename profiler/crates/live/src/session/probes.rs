//! What is attached to programs and to the kernel beside the sampling: probes on runtimes and
//! drivers, the programs that record waits, and what programs report of themselves.
//!
//! Probes are attached while sampling runs already: libraries are looked for, and the kernel
//! verifies programs at length.

use super::{
    CollectError,
    processes::{LiveProcesses, is_complete},
    queue::EventQueue,
    waits::Waits,
};
use crate::{
    bpf::{Bpf, CALLS, Programs, perf, probe::BpfLink, ring::RingReader},
    closing,
    conditional::Conditional,
    config::{ProbeConfig, RecordConfig},
    driver::{DriverPlan, DriverProbes},
    inspect::guard,
    runtime::{CALL_PROGRAMS, RuntimeProbes, Tally},
    torch::{TorchNews, TorchReports},
};
use aiprof_model::{
    probes::table::Switch,
    process::ProcessTable,
    profile::{LossKind, Losses},
    wire::{Event, KernelNamed, Ops, OpsNews, ProcessEvent, ProcessEventKind},
};
use std::{
    os::fd::BorrowedFd,
    sync::mpsc::{Receiver, TryRecvError, sync_channel},
    thread,
    time::{Duration, Instant},
};

/// How long the processes with probed libraries are waited for, once these are probed.
const USERS: Duration = Duration::from_millis(400);

/// What is attached. The fields are dropped in this order.
#[derive(Default)]
pub(super) struct Probes {
    /// The probes on runtimes.
    pub(super) runtime: Option<RuntimeProbes>,
    /// The ring of calls.
    pub(super) ring: Option<RingReader>,
    drivers: DriverProbes,
    pub(super) waits: Waits,
    /// What of both is still being attached.
    starting: Option<Starting>,
    /// Reports of operators, if programs are asked for them.
    pub(super) torch: Option<TorchReports>,
    /// Which programs want their calls recorded, if they are asked.
    pub(super) conditional: Option<Conditional>,
}

/// What is still to be attached.
#[derive(Debug)]
struct Starting {
    /// Observed once its programs are loaded.
    drivers: Option<(DriverPlan, Receiver<()>)>,
    /// Hangs up when libraries that are loaded later can be probed at once; `None`: that
    /// is not waited for.
    calls: Option<Receiver<()>>,
    first_spec: u32,
    /// Processes whose mappings are waited for, and until when.
    users: Option<(Vec<u32>, Instant)>,
}

impl Probes {
    /// Nothing is attached yet.
    pub(super) fn new(config: &RecordConfig) -> Self {
        let asks = |probes: &&ProbeConfig| probes.switches.contains(&Switch::ConditionalCollection);
        let conditional = config.probes.as_ref().filter(asks);
        Self {
            conditional: conditional.map(|_| Conditional::default()),
            ..Self::default()
        }
    }

    /// Begins to attach to the runtimes and drivers that are there.
    /// [`Probes::settle_start`] goes on with it.
    pub(super) fn start(
        &mut self,
        bpf: &Bpf,
        wanted: &ProbeConfig,
        drivers: DriverPlan,
    ) -> Result<(), CollectError> {
        let ring = bpf.ring(CALLS)?;
        self.runtime = Some(RuntimeProbes::start(bpf, wanted)?);
        self.ring = Some(ring);
        let drivers = (!drivers.is_empty()).then(|| {
            let loaded = load_ahead(bpf.programs(), drivers.programs());
            (drivers, loaded)
        });
        let calls = load_ahead(bpf.programs(), CALL_PROGRAMS.to_vec());
        self.starting = Some(Starting {
            drivers,
            calls: wanted.late_libraries.then_some(calls),
            first_spec: wanted.specs(),
            users: None,
        });
        Ok(())
    }

    /// Whether something is still being attached, or files are read for that.
    pub(super) fn is_attaching(&mut self) -> bool {
        let is_attaching = |probes: &mut RuntimeProbes| probes.is_attaching();
        self.is_starting() || self.runtime.as_mut().is_some_and(is_attaching)
    }

    /// Whether what is there at the start is still being attached to.
    pub(super) fn is_starting(&self) -> bool {
        self.starting.is_some()
    }

    /// Whether something about a process is looked for in its memory.
    pub(super) fn is_searching(&self, pid: u32) -> bool {
        let probes = self.runtime.as_ref();
        probes.is_some_and(|probes| probes.is_searching(pid))
    }

    /// Goes on with what is being attached; `true`: all of it is.
    pub(super) fn settle_start(
        &mut self,
        bpf: &Bpf,
        processes: &mut LiveProcesses,
        table: &ProcessTable,
    ) -> Result<bool, CollectError> {
        let Some(mut starting) = self.starting.take() else {
            return Ok(true);
        };
        let is_settled = self.go_on(&mut starting, bpf, processes, table)?;
        if !is_settled {
            self.starting = Some(starting);
        }
        Ok(is_settled)
    }

    fn go_on(
        &mut self,
        starting: &mut Starting,
        bpf: &Bpf,
        processes: &mut LiveProcesses,
        table: &ProcessTable,
    ) -> Result<bool, CollectError> {
        if let Some((plan, loaded)) = starting.drivers.take() {
            if loaded.try_recv() == Err(TryRecvError::Empty) {
                starting.drivers = Some((plan, loaded));
            } else {
                self.drivers = DriverProbes::start(bpf, plan, starting.first_spec)?;
            }
        }
        let Some(probes) = &mut self.runtime else {
            return Ok(true);
        };
        if !probes.settle() || starting.drivers.is_some() {
            return Ok(false);
        }
        let are_loading = |calls: &Receiver<()>| calls.try_recv() == Err(TryRecvError::Empty);
        if starting.calls.as_ref().is_some_and(are_loading) {
            return Ok(false);
        }
        let Some((users, until)) = &starting.users else {
            // Whoever calls what is probed is to have whole stacks from then on, and the
            // kernels that it has made already are looked for.
            let users: Vec<u32> = probes.users.iter().copied().collect();
            processes.request_all(&users, table);
            let publisher = &mut processes.publisher;
            users.iter().for_each(|pid| publisher.changed(*pid));
            starting.users = Some((users, Instant::now() + USERS));
            return Ok(false);
        };
        let lookups = &processes.lookups;
        let is_read = |pid: &u32| is_complete(table, *pid) || lookups.has_given_up(*pid);
        Ok(users.iter().all(is_read) || Instant::now() >= *until)
    }

    /// The recording runs: what was found before is looked into with the privileges that this
    /// process has now.
    pub(super) fn run(&mut self, table: &ProcessTable) {
        if let Some(probes) = &mut self.runtime {
            probes.started();
            probes.look_ahead(table);
        }
    }

    /// What is readable when there is something to be done.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let found = self.runtime.as_ref();
        let found = found.and_then(|probes| probes.memory.looker.fd());
        self.ring
            .as_ref()
            .map(RingReader::fd)
            .into_iter()
            .chain(found)
    }

    /// Whether functions were found that should be probed soon.
    pub(super) fn has_found(&self) -> bool {
        let probes = self.runtime.as_ref();
        probes.is_some_and(|probes| probes.memory.looker.has_seen())
    }

    /// Whether calls may have to be acted upon that were too young to be applied.
    pub(super) fn has_young_calls(&self, queue: &EventQueue) -> bool {
        let probes = self.runtime.as_ref();
        probes.is_some_and(|probes| queue.has_call(|probe| probes.hands_out(probe)))
    }

    /// Queues what was attached. Before the calls just read: a description is given before its
    /// function is attached to, and has no time.
    pub(super) fn add_events(&mut self, table: &ProcessTable, queue: &mut EventQueue) {
        if let Some(probes) = &mut self.runtime {
            probes.take_events(table, |event| queue.pending.push_back(event));
            queue.pending.extend(self.drivers.take_events());
        }
    }

    /// A process event was recorded.
    pub(super) fn recorded(&mut self, event: &ProcessEvent, bpf: &Bpf) {
        if let Some(conditional) = &mut self.conditional {
            conditional.process(event);
        }
        let Some(probes) = &mut self.runtime else {
            return;
        };
        match &event.kind {
            ProcessEventKind::Snapshot { maps, .. } => {
                maps.iter().for_each(|map| probes.mapped(event.pid, map));
            }
            ProcessEventKind::Exit => probes.thread_exited(event.pid, event.tid, bpf),
            ProcessEventKind::Exec { .. } => probes.executed(event.pid),
            _ => {}
        }
    }

    /// Forgets the kernels of a process that ended or became another program, and returns their
    /// last names. To be called before the event is recorded: later they are of no use.
    pub(super) fn process_gone(&mut self, event: &ProcessEvent) -> Vec<(u32, Event)> {
        let is_gone = match event.kind {
            ProcessEventKind::Exec { .. } => true,
            ProcessEventKind::Exit => event.pid == event.tid,
            _ => false,
        };
        let probes = self.runtime.as_mut().filter(|_| is_gone);
        named(probes.map(|probes| probes.late.forget(event.pid, event.time_ns)))
    }

    /// Names of kernels older than the recording. All that happened until `applied_ns` has been
    /// applied, or all.
    pub(super) fn kernels_named(
        &mut self,
        table: &ProcessTable,
        applied_ns: Option<u64>,
    ) -> Vec<(u32, Event)> {
        let probes = self.runtime.as_mut();
        named(probes.map(|probes| probes.kernels_named(table, applied_ns)))
    }

    /// Names of kernels that were just launched, and known already.
    pub(super) fn kernels_foreseen(&mut self) -> Vec<(u32, Event)> {
        let probes = self.runtime.as_mut();
        named(probes.map(|probes| probes.late.take_ready()))
    }

    /// Whether a tracepoint is hit by whoever submits work.
    pub(super) fn begins(&self, point: u32) -> bool {
        self.drivers.begins(point)
    }

    /// What programs have reported of their operators. `last`: waits for the windows that are
    /// under way.
    pub(super) fn ops(&mut self, last: bool) -> Vec<(u32, Event)> {
        let news: Vec<TorchNews> = match (&self.torch, last) {
            (None, _) => return Vec::new(),
            (Some(torch), false) => torch.take().collect(),
            (Some(torch), true) => torch.finish(),
        };
        if last {
            self.torch = None;
        }
        news.into_iter().flat_map(ops_of).collect()
    }

    /// Ends the waits and the calls. Returns what should be closed when everything else is.
    pub(super) fn stop(&mut self) -> Vec<BpfLink> {
        // What is attached to every switch and system call ends first.
        let mut left = closing::at_once(self.waits.stop());
        left.extend(self.stop_calls());
        left
    }

    /// Detaches from runtimes and drivers. Returns what should be closed later.
    fn stop_calls(&mut self) -> Vec<BpfLink> {
        let Some(probes) = &mut self.runtime else {
            return Vec::new();
        };
        let links = probes.attaching.stop();
        let begun = Instant::now();
        let mut left = closing::at_once(links);
        probes.attaching.detached(begun.elapsed());
        // Each of these is one the kernel closes on its own.
        left.extend(self.drivers.stop());
        left
    }

    /// Ends the calls for good; waits go on. Returns what should be closed later.
    pub(super) fn drop_calls(&mut self) -> Vec<BpfLink> {
        let links = self.stop_calls();
        guard::set_ending(false);
        self.runtime = None;
        self.ring = None;
        self.starting = None;
        links
    }

    /// Looks after what is attached, from time to time.
    pub(super) fn maintain(&mut self) {
        if let Some(probes) = &mut self.runtime {
            probes.attaching.maintain();
        }
    }

    /// What of the runtimes was probed, if anything was to be; nothing is after that.
    pub(super) fn take_tally(&mut self) -> Option<Tally> {
        let tally = self.runtime.take().map(|probes| probes.tally());
        self.ring = None;
        tally
    }

    /// What was lost since the start.
    pub(super) fn losses(&self, bpf: &Bpf) -> Losses {
        let Some(probes) = &self.runtime else {
            return Losses::default();
        };
        let mut losses = probes.losses(bpf);
        losses.merge(&self.drivers.losses(bpf));
        let paused = self.conditional.as_ref().map_or(0, |c| c.skipped);
        losses.add(LossKind::CallsPaused, paused);
        losses
    }
}

/// Names of kernels as events, with their processes.
fn named(kernels: Option<Vec<KernelNamed>>) -> Vec<(u32, Event)> {
    let kernels = kernels.into_iter().flatten();
    kernels
        .map(|named| (named.pid, Event::KernelNamed(named)))
        .collect()
}

/// What a program reports of its operators, as events with its process.
fn ops_of(news: TorchNews) -> Vec<(u32, Event)> {
    let (pid, news) = match news {
        TorchNews::Asked(pid) => (pid, vec![OpsNews::Asked]),
        TorchNews::Unanswered(pid) => (pid, vec![OpsNews::Unanswered]),
        TorchNews::Unreadable(pid) => (pid, vec![OpsNews::Unreadable]),
        TorchNews::Answered(pid, read) => {
            tracing::debug!("process {pid} reported {} operators", read.spans);
            let parts = read.parts.into_iter().map(OpsNews::Recorded);
            (pid, parts.collect())
        }
    };
    let event = |news| {
        let time_ns = perf::monotonic_ns();
        (pid, Event::Ops(Ops { time_ns, pid, news }))
    };
    news.into_iter().map(event).collect()
}

/// Has programs verified by a thread; it hangs up when they are.
fn load_ahead(programs: Programs, names: Vec<&'static str>) -> Receiver<()> {
    let (end, loaded) = sync_channel(1);
    let load = move || {
        for name in names {
            if let Err(error) = programs.get(name) {
                // Reported again where it is needed.
                tracing::debug!("{name}: {error}");
            }
        }
        drop(end);
    };
    // Without the thread they are loaded where they are needed.
    if let Err(error) = thread::Builder::new()
        .name("aiprof-load".into())
        .spawn(load)
    {
        tracing::debug!("cannot start the thread that loads eBPF programs: {error}");
    }
    loaded
}
