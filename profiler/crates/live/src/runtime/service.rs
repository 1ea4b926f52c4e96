//! The probes of a recording: what the session knows of them.

use super::{
    access::MemoryAccess,
    attach::Tally,
    attaching::Attaching,
    discover::{ALTERNATIVE_DRIVERS, is_loader},
    handed_out::{Handed, HandedOut},
    kernel::Programs,
    look::{Look, SeenInMemory, What},
    opener::{FileLocation, FileWork, OpenAnswer, OpenWork},
    opening::{FileOpening, Purpose},
    plan::Use,
    start::Discovery,
    wanted::{WantedLibraries, driver_build},
    worker::AttachJob,
};
use crate::{
    bpf::{Bpf, BpfError, PROBE_COUNTS, THREADS},
    config::ProbeConfig,
    inspect::guard,
    late::LateKernels,
    owner,
    procfs::map_event,
};
use aiprof_common::ProbeCounts;
use aiprof_model::{
    probes::table::Exits,
    process::{FileId, ProcessTable, Region, without_mark},
    profile::{LossKind, Losses},
    wire::{Event, KernelNamed, MapEvent},
};
use aiprof_record::correlate::{CallView, DataView};
use aiprof_system::workers::{Outcome, Owner};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// A file can have most of a table's functions only if it has at least this number.
const MOST_OF: usize = 8;
/// How long the end of a recording waits for the last search of kernel names.
const LAST_SEARCH: Duration = Duration::from_secs(2);

/// The probes of a recording.
pub(crate) struct RuntimeProbes {
    pub(crate) wanted: WantedLibraries,
    exits: Exits,
    pub(crate) attaching: Attaching,
    pub(super) opening: FileOpening,
    /// What the start is about, while it lasts.
    pub(super) discovery: Option<Discovery>,
    pub(crate) memory: MemoryAccess,
    handed_out: HandedOut,
    pub(crate) late: LateKernels,
    /// Processes that had probed libraries when the recording started.
    pub(crate) users: BTreeSet<u32>,
    /// Functions described so far.
    probes: u32,
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
        let mut probes = Self {
            wanted: WantedLibraries::new(config.clone()),
            exits,
            attaching: Attaching::start(kernel, config.specs()),
            opening: FileOpening::new(),
            discovery: None,
            memory: MemoryAccess::new(),
            handed_out: HandedOut::default(),
            late: LateKernels::default(),
            users: BTreeSet::new(),
            probes: 0,
        };
        probes.discover();
        Ok(probes)
    }

    /// An executable mapping appeared in a process.
    pub(crate) fn mapped(&mut self, pid: u32, map: &MapEvent) {
        let path = without_mark(&map.file.path);
        if Region::of(&map.file) != Region::File || !self.wanted.is_wanted(path) {
            return;
        }
        // For programs that ran before, it was read. And the thread must start late: one that
        // starts before this process gives up its privileges keeps them.
        if self.attaching.is_running && is_loader(path) {
            self.memory.look(Look {
                pid,
                what: What::Variable(ALTERNATIVE_DRIVERS),
            });
        }
        let owner = self.memory.owners.of(pid);
        let known = (owner, map.file.clone());
        if !self.opening.offered.is_new(&known) {
            return;
        }
        tracing::debug!("{path}: mapped by process {pid}");
        let uses = self.wanted.uses_of(path);
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
        if !self.attaching.is_running {
            self.opening.run();
            self.attaching.run();
        }
    }

    /// Whether files that processes have mapped are still being read or attached to.
    pub(crate) fn is_attaching(&mut self) -> bool {
        let is_reading = self.opening.is_busy();
        // What was read is attached to from here on.
        self.take_answers();
        is_reading || self.attaching.is_busy() || self.discovery.is_some()
    }

    /// Whether names of a process's kernels or functions that it was handed are being looked for
    /// in its memory.
    pub(crate) fn is_searching(&self, pid: u32) -> bool {
        self.users.contains(&pid) || self.late.is_searching(pid) || self.handed_out.is_waiting(pid)
    }

    /// Has a file read, and probed.
    pub(super) fn open(
        &mut self,
        owner: Owner,
        place: FileLocation,
        path: String,
        uses: Vec<Use>,
        purpose: Purpose,
        functions: Option<Vec<(u64, String)>>,
    ) {
        let work = OpenWork::File(Box::new(FileWork {
            owner,
            place,
            path,
            uses,
            exits: self.exits,
            functions,
            attach: self.attaching.jobs(),
        }));
        self.opening.give(owner, work, purpose);
    }

    /// Takes in what was opened.
    pub(super) fn take_answers(&mut self) {
        for (purpose, outcome) in self.opening.answers() {
            match outcome {
                Outcome::Done(OpenAnswer::Done) => {}
                Outcome::Done(OpenAnswer::Maps(pid, maps, drivers)) => {
                    if let Some(list) = drivers {
                        self.wanted.note_alternatives(&list);
                    }
                    if let Some(discovery) = &mut self.discovery {
                        discovery.found.push((pid, maps));
                    }
                }
                Outcome::Done(OpenAnswer::Ready(owner, job)) => self.attaching.ready(owner, job),
                Outcome::Done(OpenAnswer::Failed(losses)) => self.opening.failed(purpose, losses),
                Outcome::Stuck | Outcome::Failed => self.opening.failed(purpose, 1),
            }
        }
    }

    /// A call of a probed function: it may hand out others, or lead to them.
    pub(crate) fn called(&mut self, call: &CallView<'_>, processes: &ProcessTable) {
        if let Some(look) = self.handed_out.behind(call, processes) {
            self.memory.look(look);
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
            self.memory.look(look);
        }
    }

    /// Data of a call.
    pub(crate) fn data(&mut self, data: &DataView<'_>) {
        self.handed_out.data(data);
    }

    /// Looks for kernels of the programs that ran before the recording.
    pub(crate) fn look_ahead(&mut self, processes: &ProcessTable) {
        for pid in std::mem::take(&mut self.users) {
            if !self.memory.may_look(pid) {
                continue;
            }
            let mut files = Vec::new();
            let build = driver_build(processes, pid, |path| {
                let wanted = self.wanted.is_runtime(path);
                if wanted && !is_loader(path) {
                    files.push(path.to_owned());
                }
                wanted
            });
            self.late.look_ahead(pid, build, files);
        }
    }

    /// Names found since the last call of kernels that were created before the
    /// recording. All that happened until `taken_ns` has been taken in; without it
    /// nothing more will come, and searches are waited for.
    pub(crate) fn kernels_named(
        &mut self,
        processes: &ProcessTable,
        taken_ns: Option<u64>,
    ) -> Vec<KernelNamed> {
        let build = |pid| self.wanted.build_of(processes, pid);
        match taken_ns {
            Some(taken_ns) => self.late.maintain(Instant::now(), taken_ns, build),
            None => self.late.settle(build, LAST_SEARCH),
        }
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
            let is_trusted = owner::is_trusted(self.memory.owners.of(one.pid));
            let whose = (!is_trusted).then_some(one.pid);
            if functions.len() >= MOST_OF && functions.len() * 2 >= all {
                self.opening.offered.accepted.insert((whose, id));
            }
            let named = self.wanted.layer_of(&one.table, &map.file.path);
            if named.is_none() && !self.opening.offered.accepted.contains(&(whose, id)) {
                let path = &map.file.path;
                tracing::debug!(
                    "{}: in {path}, which is not a library of its probe table",
                    one.symbol
                );
                continue;
            }
            self.opening.offered.retain_new(whose, id, &mut functions);
            if !functions.is_empty() {
                let given = functions.iter().map(|(offset, _)| (whose, id, *offset));
                let purpose = Purpose::HandedOut(given.collect());
                self.probe_functions(one, named, map, purpose, functions);
            }
        }
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
        let owner = self.memory.owners.of(one.pid);
        let path = map.file.path.clone();
        let place = FileLocation::Mapped(one.pid, Box::new(map));
        self.open(owner, place, path, uses, purpose, Some(functions));
    }

    /// Files have other ids from here on.
    pub(crate) fn files_forgotten(&mut self) {
        self.opening.offered.files_forgotten();
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
        self.memory.owners.forget(pid);
        let mut gate = self.opening.gate();
        if !gate.budgets.give_back(pid) {
            return;
        }
        gate.files.forget(pid);
        drop(gate);
        self.opening.offered.executed(pid);
        self.attaching.give(AttachJob::Forget(pid));
    }

    /// Gives what was attached since the last call. The caller records it before any call read from
    /// the ring so far.
    pub(crate) fn take_events(&mut self, processes: &ProcessTable, mut sink: impl FnMut(Event)) {
        let report = self.attaching.take_report();
        let stubs = report.stubs.into_iter();
        stubs.for_each(|s| self.handed_out.note_stubs(s));
        for event in report.events {
            if let Event::Probe(probe) = &event {
                self.probes = self.probes.max(probe.id.saturating_add(1));
                let tables = &self.wanted.config.tables;
                self.handed_out.note(probe, tables, self.exits);
            }
            sink(event);
        }
        // Taken in at every turn, so that what is stuck is noticed.
        self.take_answers();
        self.look_at_tables();
        for seen in self.memory.looker.seen() {
            match seen {
                SeenInMemory::Functions(handed) => self.probe_handed_out(handed, processes),
                SeenInMemory::Variable(list) => self.learn_alternatives(&list, processes),
            }
        }
    }

    /// Other drivers were named in a process; some may be mapped already.
    fn learn_alternatives(&mut self, list: &std::ffi::OsStr, processes: &ProcessTable) {
        if !self.wanted.note_alternatives(list) {
            return;
        }
        let mut found = Vec::new();
        for (pid, process) in processes.iter() {
            let maps = process.space.maps.iter();
            let wanted = maps.filter_map(|map| {
                let file = processes.files.key(map.file)?;
                self.wanted
                    .is_alternative(&file.path)
                    .then(|| map_event(map, file))
            });
            found.extend(wanted.map(|map| (pid, map)));
        }
        for (pid, map) in found {
            self.mapped(pid, &map);
        }
    }

    /// What was attached so far.
    pub(crate) fn tally(&self) -> Tally {
        let mut tally = self.attaching.tally();
        tally.failed +=
            self.opening.refused + self.attaching.refused + self.memory.looker.dropped();
        tally
    }

    /// What was lost so far, here and in the kernel.
    pub(crate) fn losses(&self, bpf: &Bpf) -> Losses {
        let (counts, tally) = (counts_of(bpf, self.probes), self.tally());
        let mut losses = Losses::default();
        for (kind, count) in [
            (LossKind::CallRingDrops, counts.lost),
            (LossKind::CallDataDrops, counts.data_lost),
            (LossKind::CallStacksLimited, counts.stacks_limited),
            (LossKind::CallStacksBusy, counts.stacks_busy),
            (LossKind::CallsUntracked, counts.untracked),
            (LossKind::CallDataAbsent, counts.absent),
            (
                LossKind::CallDataWithheld,
                counts.withheld + self.memory.withheld,
            ),
            (
                LossKind::ProbedFilesRefused,
                self.opening.gate().budgets.refused(),
            ),
            (LossKind::ProbesRefused, tally.refused),
            (LossKind::ProbedFilesFailed, tally.failed),
            (LossKind::ProbedFilesChanged, tally.changed),
        ] {
            losses.add(kind, count);
        }
        losses
    }
}

/// What was seen at the first `probes` probes, over all CPUs.
fn counts_of(bpf: &Bpf, probes: u32) -> ProbeCounts {
    let mut sum = ProbeCounts::default();
    for one in (0..probes).flat_map(|probe| bpf.per_cpu::<ProbeCounts>(PROBE_COUNTS, probe)) {
        sum.calls += one.calls;
        sum.lost += one.lost;
        sum.stacks_limited += one.stacks_limited;
        sum.stacks_busy += one.stacks_busy;
        sum.data_lost += one.data_lost;
        sum.untracked += one.untracked;
        sum.absent += one.absent;
        sum.withheld += one.withheld;
    }
    sum
}

/// The mapping of a file that an address of a process is in.
fn mapping_of(processes: &ProcessTable, pid: u32, address: u64) -> Option<(MapEvent, FileId)> {
    let mapping = processes.get(pid)?.space.find(address)?;
    let file = processes.files.key(mapping.file)?;
    (Region::of(file) == Region::File).then(|| (map_event(mapping, file), mapping.file))
}
