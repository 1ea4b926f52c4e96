//! The probes of a recording: what the session knows of them.

use super::{
    attach::{self, Attacher, Report, Tally},
    discover::{ALTERNATIVE_DRIVERS, is_loader},
    handed_out::{Handed, HandedOut},
    kernel::Programs,
    look::{Look, Looker, Seen, What},
    opener::{self, FileLocation, Gate, Opener},
    opening::{Discovery, Purpose},
    plan::Use,
    worker::{self, Job, Worker},
};
use crate::{
    bpf::{Bpf, BpfError, PROBE_COUNTS, THREADS, probe::Link},
    config::ProbeConfig,
    inspect::guard,
    late::{Build, LateKernels},
    owner,
    procfs::map_event,
};
use aiprof_common::ProbeCounts;
use aiprof_model::{
    probes::table::{CheckedTable, Exits},
    process::{FileId, ProcessTable, Region},
    profile::{LossKind, Losses},
    wire::{Event, FileKey, KernelNamed, MapEvent},
};
use aiprof_record::correlate::{CallView, DataView, KernelEvent};
use aiprof_system::workers::{Owner, Ticket};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
    os::fd::BorrowedFd,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Most functions remembered that were handed out.
const MAX_GIVEN: usize = 65_536;
/// A file can have most of a table's functions only if it has at least this number.
const MOST_OF: usize = 8;
/// Most mapped files remembered.
const MAX_MAPPED: usize = 4096;
/// Room for functions that no table names one by one.
const SPARE_SPECS: u32 = 1024;
/// Most functions in all.
const MAX_SPECS: u32 = 8192;

/// Most processes whose owners are remembered.
const MAX_OWNERS: usize = 16_384;

/// How long the end of a recording waits for the last search of kernel names.
const LAST_SEARCH: Duration = Duration::from_secs(2);

/// What the kernel side counted at one probe or at all, see [`ProbeCounts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallCounts {
    /// Entries seen, those whose record was lost included.
    pub calls: u64,
    /// Records lost because the ring was full.
    pub lost: u64,
    /// Stacks the limiter left out.
    pub stacks_limited: u64,
    /// Stacks left out for want of scratch memory.
    pub stacks_busy: u64,
    /// Data records lost because the ring was full.
    pub data_lost: u64,
    /// Calls whose exit cannot be recognised.
    pub untracked: u64,
    /// Values and data of other users that were not in memory.
    pub absent: u64,
    /// Calls whose data the caller may not have.
    pub withheld: u64,
}

/// Where the attaching is done.
pub(super) enum Stage {
    /// Here, at once: nothing runs yet.
    Here(Box<Attacher>),
    /// On a thread of its own.
    There(Worker),
    /// Not any more.
    Over,
}

/// The probes of a recording.
pub(crate) struct RuntimeProbes {
    pub(super) config: ProbeConfig,
    pub(super) exits: Exits,
    pub(super) stage: Stage,
    pub(super) started: bool,
    /// What the start is about, while it lasts.
    pub(super) discovery: Option<Discovery>,
    pub(super) report: Arc<Mutex<Report>>,
    pub(super) opener: Opener,
    /// The threads that began to read before the recording ran.
    pub(super) starting: Option<Opener>,
    /// What the files are for that are being opened.
    pub(super) purposes: FxHashMap<Ticket, Purpose>,
    /// Libraries of other users, to be attached to once the recording runs.
    pub(super) deferred: Vec<Job>,
    /// Owners of processes met.
    pub(super) owners: FxHashMap<u32, Owner>,
    pub(super) handed_out: HandedOut,
    pub(super) late: LateKernels,
    /// Drivers that the environment names to Level Zero's loader, by path or file name.
    pub(super) alternatives: BTreeSet<String>,
    /// Files that processes have mapped, and that were offered then.
    pub(super) mapped: FxHashSet<(Owner, FileKey)>,
    /// Functions handed out before, by their offsets in files; those that another
    /// user's process was handed, by that process.
    pub(super) given: FxHashSet<(Option<u32>, FileId, u64)>,
    /// Files that no table names and that have most functions of a table, likewise.
    pub(super) accepted: FxHashSet<(Option<u32>, FileId)>,
    pub(super) looker: Looker,
    /// Processes that had probed libraries when the recording started.
    pub(super) users: BTreeSet<u32>,
    /// Functions described so far.
    pub(super) probes: u32,
    /// Files and functions that could not be looked at.
    pub(super) refused: u64,
    /// Searches that were not done, for the caller may not have what they find.
    pub(super) withheld: u64,
}

impl RuntimeProbes {
    /// Begins to attach to the libraries that are there: installed ones, those of running
    /// processes, those of the command that will be started. [`RuntimeProbes::settle`]
    /// goes on with it.
    ///
    /// # Errors
    /// The programs are missing; that a library cannot be probed is no error.
    pub(crate) fn start(bpf: &Bpf, config: &ProbeConfig) -> Result<Self, BpfError> {
        guard::set_ending(false);
        let exits = match (config.exact_call_times, config.waits) {
            (true, _) => Exits::All,
            (false, true) => Exits::Waits,
            (false, false) => Exits::Needed,
        };
        let kernel = Box::new(Programs::of(bpf)?);
        let attacher = Attacher::new(kernel, config.specs());
        let mut probes = Self {
            config: config.clone(),
            exits,
            report: attacher.report(),
            stage: Stage::Here(Box::new(attacher)),
            started: false,
            discovery: None,
            opener: Opener::new(Arc::default()),
            starting: None,
            purposes: FxHashMap::default(),
            deferred: Vec::new(),
            owners: FxHashMap::default(),
            handed_out: HandedOut::default(),
            late: LateKernels::default(),
            alternatives: BTreeSet::new(),
            mapped: FxHashSet::default(),
            given: FxHashSet::default(),
            accepted: FxHashSet::default(),
            looker: Looker::new(),
            users: BTreeSet::new(),
            probes: 0,
            refused: 0,
            withheld: 0,
        };
        // A thread with the privileges that this one has now.
        probes.start_worker();
        probes.discover();
        Ok(probes)
    }

    /// Has memory of a process read, if the caller may have it.
    fn look(&mut self, look: Look) {
        if self.may_look(look.pid) {
            self.looker.look(look);
        }
    }

    /// Whose a process is.
    fn owner(&mut self, pid: u32) -> Owner {
        if self.owners.len() >= MAX_OWNERS {
            self.owners.clear();
        }
        *self
            .owners
            .entry(pid)
            .or_insert_with(|| owner::owner_of(pid))
    }

    /// Whether the caller may have what is in the memory of a process; if not, that
    /// is counted.
    pub(crate) fn may_look(&mut self, pid: u32) -> bool {
        let may = rustix::process::getuid().is_root() || {
            let owner = self.owner(pid);
            owner::may_have(owner.uid)
        };
        self.withheld += u64::from(!may);
        may
    }

    /// Readable when functions were found that should be probed soon.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.looker.fd()
    }

    /// Whether there are such functions.
    pub(crate) fn has_found(&self) -> bool {
        self.looker.has_seen()
    }

    /// The processes that had probed libraries when the recording started.
    pub(crate) fn users(&self) -> impl Iterator<Item = u32> {
        self.users.iter().copied()
    }

    /// An executable mapping appeared in a process.
    pub(crate) fn mapped(&mut self, pid: u32, map: &MapEvent) {
        let path = &map.file.path;
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        if Region::of(&map.file) != Region::File || !self.is_wanted(path) {
            return;
        }
        // For programs that ran before, it was read. And the thread must start late: one that
        // starts before this process gives up its privileges keeps them.
        if self.started && is_loader(path) {
            self.look(Look {
                pid,
                what: What::Variable(ALTERNATIVE_DRIVERS),
            });
        }
        let owner = self.owner(pid);
        if self.mapped.len() >= MAX_MAPPED {
            self.mapped.clear();
        }
        let known = (owner, map.file.clone());
        if !self.mapped.insert(known.clone()) {
            return;
        }
        tracing::debug!("{path}: mapped by process {pid}");
        let uses = self.uses_of(path);
        let place = FileLocation::Mapped(pid, Box::new(map.clone()));
        self.open(
            owner,
            place,
            path.to_owned(),
            uses,
            Purpose::Mapped(known),
            None,
        );
    }

    /// From here on, jobs are done by threads with the privileges that this one has now.
    pub(crate) fn started(&mut self) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        // Threads of this process as it is now, with fewer privileges.
        let gate: Arc<Mutex<Gate>> = Arc::clone(self.opener.gate());
        let starting = std::mem::replace(&mut self.opener, Opener::new(gate));
        // What was not read in all the time that the start had for it is probed later.
        self.starting = Some(starting);
        self.purposes.clear();
        for job in std::mem::take(&mut self.deferred) {
            self.give(job);
        }
        self.start_worker();
    }

    /// Whether files that processes have mapped are still being read or attached to.
    pub(crate) fn is_attaching(&mut self) -> bool {
        let is_reading =
            self.opener.is_busy() || self.starting.as_ref().is_some_and(Opener::is_busy);
        // What was read is attached to from here on.
        self.take_answers();
        let is_busy = match &self.stage {
            Stage::There(worker) => worker.is_busy(),
            Stage::Here(_) | Stage::Over => false,
        };
        is_reading || is_busy || self.discovery.is_some() || !self.deferred.is_empty()
    }

    /// Whether names of a process's kernels or functions that it was handed are being looked for
    /// in its memory.
    pub(crate) fn is_searching(&self, pid: u32) -> bool {
        self.users.contains(&pid) || self.late.is_searching(pid) || self.handed_out.is_waiting(pid)
    }

    fn start_worker(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Here(attacher) => match Worker::start(attacher) {
                Ok(worker) => Stage::There(worker),
                Err((attacher, error)) => {
                    tracing::warn!("cannot start the thread that attaches probes: {error}");
                    Stage::Here(attacher)
                }
            },
            other => other,
        };
    }

    pub(super) fn give(&mut self, job: Job) {
        if self.started {
            self.start_worker();
        }
        match &mut self.stage {
            Stage::Here(attacher) => worker::run(attacher, job),
            Stage::There(worker) if worker.give(job) => {}
            Stage::There(_) | Stage::Over => self.refused += 1,
        }
    }

    /// A call of a probed function: it may hand out others, or lead to them.
    pub(crate) fn called(&mut self, call: &CallView<'_>, processes: &ProcessTable) {
        if let Some(look) = self.handed_out.behind(call, processes) {
            self.look(look);
        }
        if let Some(handed) = self.handed_out.call(call) {
            self.probe_handed_out(vec![handed], processes);
        }
        self.look_at_tables();
    }

    /// Whether calls of a probe may hand out functions: then they should be taken in soon.
    pub(crate) fn hands_out(&self, probe: u32) -> bool {
        self.handed_out.is_source(probe)
    }

    fn look_at_tables(&mut self) {
        for look in self.handed_out.settled() {
            self.look(look);
        }
    }

    /// Data of a call.
    pub(crate) fn data(&mut self, data: &DataView<'_>) {
        self.handed_out.data(data);
    }

    /// Something happened to a kernel whose process the caller may look into.
    pub(crate) fn kernel(&mut self, event: &KernelEvent) {
        self.late.kernel(event);
    }

    /// A process has ended, or has become another program. Gives the last names of
    /// its kernels.
    pub(crate) fn process_gone(&mut self, pid: u32, time_ns: u64) -> Vec<KernelNamed> {
        self.late.forget(pid, time_ns)
    }

    /// Names of kernels that were just launched, and known already.
    pub(crate) fn kernels_foreseen(&mut self) -> Vec<KernelNamed> {
        self.late.take_ready()
    }

    /// Looks for kernels of the programs that ran before the recording.
    pub(crate) fn look_ahead(&mut self, processes: &ProcessTable) {
        for pid in std::mem::take(&mut self.users) {
            if !self.may_look(pid) {
                continue;
            }
            let mut files = Vec::new();
            let build = driver_build(processes, pid, |path| {
                let wanted = self.is_runtime(path);
                if wanted && !is_loader(path) {
                    files.push(path.to_owned());
                }
                wanted
            });
            self.late.look_ahead(pid, build, files);
        }
    }

    /// Which build of a driver a process has.
    pub(crate) fn build_of(&self, processes: &ProcessTable, pid: u32) -> Build {
        driver_build(processes, pid, |path| self.is_runtime(path))
    }

    /// Names found since the last call of kernels that were created before the
    /// recording. All that happened until `taken_ns` has been taken in; without it
    /// nothing more will come, and searches are waited for.
    pub(crate) fn kernels_named(
        &mut self,
        processes: &ProcessTable,
        taken_ns: Option<u64>,
    ) -> Vec<KernelNamed> {
        let mut late = std::mem::take(&mut self.late);
        let build = |pid| driver_build(processes, pid, |path| self.is_runtime(path));
        let named = match taken_ns {
            Some(taken_ns) => late.maintain(Instant::now(), taken_ns, build),
            None => late.settle(build, LAST_SEARCH),
        };
        self.late = late;
        named
    }

    /// Probes functions by their addresses in processes, those of one file at once.
    ///
    /// An address comes from the memory of a process, which may have anything there. So
    /// most of them must be in the file, unless a table names it: not the odd one in a
    /// library that everybody's programs use.
    fn probe_handed_out(&mut self, handed: Vec<Handed>, processes: &ProcessTable) {
        type Points = Vec<(u64, String)>;
        let mut files: Vec<(Handed, MapEvent, FileId, Points)> = Vec::new();
        let all = handed.len();
        for one in handed {
            let Some((map, id)) = mapping_of(processes, one.pid, one.address) else {
                tracing::debug!(
                    "{}: address {:#x} is in no mapped file",
                    one.symbol,
                    one.address
                );
                continue;
            };
            let offset = one.address - map.start + map.file_offset;
            let function = (offset, one.symbol.clone());
            let same = |(other, known, ..): &&mut (Handed, MapEvent, FileId, Points)| {
                (other.pid, &other.table.name, known.start) == (one.pid, &one.table.name, map.start)
            };
            match files.iter_mut().find(same) {
                Some((.., functions)) => functions.push(function),
                None => files.push((one, map, id, vec![function])),
            }
        }
        for (one, map, id, mut functions) in files {
            // What another user's process reports is believed only for that process.
            let is_trusted = owner::is_trusted(self.owner(one.pid));
            let whose = (!is_trusted).then_some(one.pid);
            if functions.len() >= MOST_OF && functions.len() * 2 >= all {
                self.accepted.insert((whose, id));
            }
            let named = self.layer_of(&one.table, &map.file.path);
            if named.is_none() && !self.accepted.contains(&(whose, id)) {
                let path = &map.file.path;
                tracing::debug!(
                    "{}: in {path}, which is not a library of its probe table",
                    one.symbol
                );
                continue;
            }
            if self.given.len() >= MAX_GIVEN {
                self.given.clear();
            }
            // Every process is handed the same ones.
            functions.retain(|(offset, _)| self.given.insert((whose, id, *offset)));
            if !functions.is_empty() {
                let given = functions.iter().map(|(offset, _)| (whose, id, *offset));
                let purpose = Purpose::HandedOut(given.collect());
                self.probe_functions(one, named, map, purpose, functions);
            }
        }
    }

    /// The layer that a table gives to a file by its name.
    fn layer_of(&self, table: &CheckedTable, path: &str) -> Option<u8> {
        let uses = self.uses_of(path);
        let named = uses.iter().find(|used| used.table.name == table.name);
        named.map(|used| used.layer)
    }

    fn probe_functions(
        &mut self,
        one: Handed,
        named: Option<u8>,
        map: MapEvent,
        purpose: Purpose,
        functions: Vec<(u64, String)>,
    ) {
        let layers = one.table.libraries.iter().map(|l| l.layer);
        let layer = named.unwrap_or_else(|| layers.max().unwrap_or(0));
        let uses = vec![Use {
            table: one.table,
            // Behind the functions that the file exports, which may lead to them.
            layer: layer.saturating_add(1),
            names_only: false,
        }];
        let owner = self.owner(one.pid);
        let path = map.file.path.clone();
        let place = FileLocation::Mapped(one.pid, Box::new(map));
        self.open(owner, place, path, uses, purpose, Some(functions));
    }

    /// Files have other ids from here on.
    pub(crate) fn files_forgotten(&mut self) {
        self.given.clear();
        self.accepted.clear();
    }

    /// A thread has exited: its state in the kernel goes.
    pub(crate) fn thread_exited(&mut self, pid: u32, tid: u32, bpf: &Bpf) {
        bpf.remove(THREADS, &tid);
        if pid == tid {
            self.executed(pid);
        }
    }

    /// A process runs another program, or none any more.
    pub(crate) fn executed(&mut self, pid: u32) {
        self.handed_out.forget(pid);
        self.owners.remove(&pid);
        let mut gate = opener::lock(self.opener.gate());
        if !gate.budgets.give_back(pid) {
            return;
        }
        gate.files.forget(pid);
        drop(gate);
        self.given.retain(|(whose, ..)| *whose != Some(pid));
        self.accepted.retain(|(whose, _)| *whose != Some(pid));
        self.give(Job::Forget(pid));
    }

    /// Gives what was attached since the last call. The caller records it before any call read from
    /// the ring so far.
    pub(crate) fn take_events(&mut self, processes: &ProcessTable, mut sink: impl FnMut(Event)) {
        let mut report = attach::lock(&self.report);
        let (events, stubs) = (
            std::mem::take(&mut report.events),
            std::mem::take(&mut report.stubs),
        );
        drop(report);
        stubs
            .into_iter()
            .for_each(|s| self.handed_out.note_stubs(s));
        for event in events {
            if let Event::Probe(probe) = &event {
                self.probes = self.probes.max(probe.id.saturating_add(1));
                self.handed_out.note(probe, &self.config.tables, self.exits);
            }
            sink(event);
        }
        // Taken in at every turn, so that what is stuck is noticed.
        self.take_answers();
        self.look_at_tables();
        for seen in self.looker.seen() {
            match seen {
                Seen::Functions(handed) => self.probe_handed_out(handed, processes),
                Seen::Variable(list) => self.learn_alternatives(&list, processes),
            }
        }
    }

    /// Other drivers were named in a process; some may be mapped already.
    fn learn_alternatives(&mut self, list: &std::ffi::OsStr, processes: &ProcessTable) {
        let before = self.alternatives.len();
        self.note_alternatives(list);
        if self.alternatives.len() == before {
            return;
        }
        let mut found = Vec::new();
        for (pid, process) in processes.iter() {
            let maps = process.space.maps.iter();
            let wanted = maps.filter_map(|map| {
                let file = processes.files.key(map.file)?;
                self.is_alternative(&file.path)
                    .then(|| map_event(map, file))
            });
            found.extend(wanted.map(|map| (pid, map)));
        }
        for (pid, map) in found {
            self.mapped(pid, &map);
        }
    }

    /// What must be done now and then.
    pub(crate) fn maintain(&mut self) {
        if attach::lock(&self.report).tally.files > 0 {
            self.give(Job::Check);
        }
    }

    /// Detaching took this long.
    pub(crate) fn detached(&self, took: Duration) {
        attach::lock(&self.report).tally.detaching += took;
    }

    /// What was attached so far.
    pub(crate) fn tally(&self) -> Tally {
        let mut tally = attach::lock(&self.report).tally;
        tally.failed += self.refused + self.looker.dropped();
        tally
    }

    /// What was seen at each probe so far; the index is the probe's id.
    fn counts_by_probe(&self, bpf: &Bpf) -> Vec<CallCounts> {
        (0..self.probes)
            .map(|probe| counts_of(bpf, probe))
            .collect()
    }

    /// What was seen at all probes so far.
    pub(crate) fn counts(&self, bpf: &Bpf) -> CallCounts {
        let mut all = CallCounts::default();
        for one in self.counts_by_probe(bpf) {
            all.add(&one);
        }
        all
    }

    /// What was lost so far, here and in the kernel.
    pub(crate) fn losses(&self, bpf: &Bpf) -> Losses {
        let (counts, tally) = (self.counts(bpf), self.tally());
        let mut losses = Losses::default();
        for (kind, count) in [
            (LossKind::CallRingDrops, counts.lost),
            (LossKind::CallDataDrops, counts.data_lost),
            (LossKind::CallStacksLimited, counts.stacks_limited),
            (LossKind::CallStacksBusy, counts.stacks_busy),
            (LossKind::CallsUntracked, counts.untracked),
            (LossKind::CallDataAbsent, counts.absent),
            (LossKind::CallDataWithheld, counts.withheld + self.withheld),
            (
                LossKind::ProbedFilesRefused,
                opener::lock(self.opener.gate()).budgets.refused(),
            ),
            (LossKind::ProbesRefused, tally.refused),
            (LossKind::ProbedFilesFailed, tally.failed),
            (LossKind::ProbedFilesChanged, tally.changed),
        ] {
            losses.add(kind, count);
        }
        losses
    }

    /// Ends the attaching and gives what is attached, for the caller to close.
    pub(crate) fn stop(&mut self) -> Vec<Link> {
        guard::set_ending(true);
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Here(attacher) => attacher.handle().take_links(),
            Stage::There(worker) => worker.end(),
            Stage::Over => Vec::new(),
        }
    }
}

impl ProbeConfig {
    /// Room for functions on the kernel side.
    pub(crate) fn specs(&self) -> u32 {
        let named: usize = self.tables.iter().map(|t| t.names().count()).sum();
        let named = u32::try_from(named).unwrap_or(u32::MAX);
        named.saturating_add(SPARE_SPECS).min(MAX_SPECS)
    }
}

impl CallCounts {
    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.lost += other.lost;
        self.stacks_limited += other.stacks_limited;
        self.stacks_busy += other.stacks_busy;
        self.data_lost += other.data_lost;
        self.untracked += other.untracked;
        self.absent += other.absent;
        self.withheld += other.withheld;
    }
}

/// One probe's counts, over all CPUs.
fn counts_of(bpf: &Bpf, probe: u32) -> CallCounts {
    let mut sum = CallCounts::default();
    for cpu in bpf.per_cpu::<ProbeCounts>(PROBE_COUNTS, probe) {
        sum.add(&CallCounts {
            calls: cpu.calls,
            lost: cpu.lost,
            stacks_limited: cpu.stacks_limited,
            stacks_busy: cpu.stacks_busy,
            data_lost: cpu.data_lost,
            untracked: cpu.untracked,
            absent: cpu.absent,
            withheld: cpu.withheld,
        });
    }
    sum
}

/// The mapping of a file that an address of a process is in.
fn mapping_of(processes: &ProcessTable, pid: u32, address: u64) -> Option<(MapEvent, FileId)> {
    let mapping = processes.get(pid)?.space.find(address)?;
    let file = processes.files.key(mapping.file)?;
    (Region::of(file) == Region::File).then(|| (map_event(mapping, file), mapping.file))
}

/// Identifies the builds of probed libraries that a process has: the layout of their objects
/// depends on them.
fn driver_build(processes: &ProcessTable, pid: u32, mut wanted: impl FnMut(&str) -> bool) -> Build {
    let mut hash = FxHasher::default();
    let maps = processes.get(pid).map(|p| &p.space.maps);
    for map in maps.into_iter().flatten() {
        let Some(key) = processes.files.key(map.file) else {
            continue;
        };
        if wanted(&key.path) {
            match &key.build_id {
                Some(id) => id.hash(&mut hash),
                None => (key.device, key.inode, key.version).hash(&mut hash),
            }
        }
    }
    hash.finish()
}
