//! What is read of processes, and what the kernel side knows of them.
//!
//! What will be needed is requested early. Answers are mostly there before they are needed. What
//! is not there in time is waited for by `EventCollector::wait_until`, a little, and otherwise
//! applied when it comes.

use super::{CollectError, labels::LabelLookups, lookups::Lookups};
use crate::{
    binaries::Binaries,
    bpf::{Bpf, perf, pool::Pool},
    copied::CopiedText,
    finisher::{Finisher, Missing},
    generated::Generated,
    java::{FoundJava, Javas},
    procfs,
    publish::Publisher,
    reader::{ReadSubject, Reader, ReaderAnswer},
    tables::{MappedCode, ReadAhead, UnwindTables},
};
use aiprof_common::FLAG_FROM_ANCESTOR;
use aiprof_model::{
    process::{FileId, ProcessTable, Region, Runtime},
    profile::{LossKind, Losses},
    wire::{ProcessEvent, ProcessEventKind, ProcessLabels, Sample, StopReason},
};
use aiprof_system::workers::Owner;
use rustc_hash::FxHashSet;
use std::time::Instant;

/// How long a process is remembered after its exit: its last samples are long in the ring by
/// then.
pub(super) const LINGER_NS: u64 = 2_000_000_000;

/// Whether a process and its mappings are known.
pub(super) fn is_complete(processes: &ProcessTable, pid: u32) -> bool {
    processes.get(pid).is_some_and(|process| process.complete)
}

/// What is read of processes. The fields are dropped in this order.
pub(super) struct LiveProcesses {
    pub(super) tables: UnwindTables,
    pub(super) publisher: Publisher,
    pub(super) finisher: Finisher,
    pub(super) generated: Generated,
    pub(super) copied: CopiedText,
    pub(super) javas: Javas,
    pub(super) reader: Reader,
    pub(super) lookups: Lookups,
    /// The table that a walk waits for.
    pub(super) lacking: Option<Missing>,
    /// Who tables were requested for last.
    pub(super) wanted_for: Option<Owner>,
    /// Files that were closed, and were requested again.
    pub(super) reopening: FxHashSet<FileId>,
    /// Files that became known after code of them was sampled.
    pub(super) rebound: FxHashSet<FileId>,
    pub(super) binaries: Binaries,
    pub(super) labels: LabelLookups,
}

impl LiveProcesses {
    /// Nothing is read yet. Unwind tables go into `pool`.
    pub(super) fn new(pool: Pool, ahead: ReadAhead) -> Result<Self, CollectError> {
        Ok(Self {
            tables: UnwindTables::new(pool, ahead),
            publisher: Publisher::default(),
            finisher: Finisher::default(),
            generated: Generated::default(),
            copied: CopiedText::default(),
            javas: Javas::default(),
            reader: Reader::new().map_err(CollectError::Runtime)?,
            lookups: Lookups::default(),
            lacking: None,
            wanted_for: None,
            reopening: FxHashSet::default(),
            rebound: FxHashSet::default(),
            binaries: Binaries::new(),
            labels: LabelLookups::new(),
        })
    }

    /// Requests a process that is not known.
    pub(super) fn request(&mut self, pid: u32, tid: u32, processes: &ProcessTable) {
        if !is_complete(processes, pid) {
            let ask = || self.reader.ask_process(pid, tid);
            self.lookups.request(pid, ask);
        }
    }

    /// Requests processes that run already. They are applied when they come.
    pub(super) fn request_all(&mut self, pids: &[u32], processes: &ProcessTable) {
        for &pid in pids {
            self.request(pid, pid, processes);
            self.lookups.apply_when_read(pid);
        }
    }

    /// Requests what a process event that was just received will need.
    pub(super) fn prefetch(
        &mut self,
        event: &ProcessEvent,
        bpf: &mut Bpf,
        processes: &ProcessTable,
    ) {
        let pid = event.pid;
        match &event.kind {
            ProcessEventKind::Map(map) => self.binaries.prefetch(pid, map, &mut self.reader),
            ProcessEventKind::Exec { .. } | ProcessEventKind::Fork { .. } => {
                if pid != event.tid {
                    return;
                }
                if matches!(event.kind, ProcessEventKind::Exec { .. }) {
                    self.publisher
                        .replaced(pid, bpf, &mut self.tables, processes);
                }
                // Another program, perhaps another user's: what was read is of the old.
                self.binaries.forget_process(pid);
                self.reader.forget(pid);
                self.lookups.replaced(pid);
            }
            _ => {}
        }
    }

    /// Requests what a sample that was just received will need.
    pub(super) fn prefetch_sample(&mut self, sample: &Sample, processes: &ProcessTable) {
        let pid = sample.thread.pid;
        if sample.stop == StopReason::PageAbsent {
            let owner = self.reader.owner(pid);
            self.tables.miss(sample.miss_dir, sample.miss_page, owner);
        }
        if !sample.user.is_empty() {
            self.request(pid, sample.thread.tid, processes);
        }
    }

    /// A process event was recorded. If its mappings `changed`, the kernel side is given them;
    /// with `only_published` only if it has the old ones.
    pub(super) fn recorded(
        &mut self,
        event: &ProcessEvent,
        changed: bool,
        only_published: bool,
        processes: &ProcessTable,
    ) {
        let pid = event.pid;
        self.lookups.is_here(pid);
        match &event.kind {
            ProcessEventKind::Exec { .. } if pid == event.tid => {
                self.publisher.execd(pid);
                self.generated.forget(pid);
                self.copied.forget(pid);
                self.javas.forget(pid);
            }
            ProcessEventKind::Map(map) if Region::of(&map.file) == Region::Anonymous => {
                let end = map.start.saturating_add(map.len);
                self.generated.mapped(pid, &(map.start..end));
            }
            ProcessEventKind::Map(map)
                if Runtime::of_path(&map.file.path) == Some(Runtime::Java) =>
            {
                self.javas.starts(pid, Instant::now());
            }
            ProcessEventKind::Lost { .. } => self.lookups.lost(event.time_ns),
            ProcessEventKind::Exit if pid == event.tid => {
                self.copied.forget(pid);
                self.publisher.retire(pid, processes);
                self.binaries.forget_process(pid);
                self.reader.forget(pid);
            }
            _ => {}
        }
        if changed && (!only_published || self.publisher.has(pid)) {
            self.publisher.changed(pid);
        }
    }

    /// A process was sampled: what the sample shows of it.
    pub(super) fn sampled(&mut self, sample: &mut Sample, processes: &mut ProcessTable) {
        let pid = sample.thread.pid;
        if let Some(process) = processes.get_mut(pid)
            && process.exited_ns.is_some_and(|exit| exit < sample.time_ns)
        {
            // Sampled after its main thread's exit: other threads live on.
            process.exited_ns = None;
            process.headless = true;
            self.publisher.changed(pid);
        }
        let is_from_ancestor = sample.flags & FLAG_FROM_ANCESTOR != 0;
        if is_from_ancestor || sample.stop == StopReason::NoProcess {
            self.publisher.changed(pid);
        }
        if is_from_ancestor
            && let Some(process) = processes.get(pid)
            && process.space.id != sample.space
            && processes.shares(pid, sample.space)
        {
            sample.space = process.space.id;
        }
    }

    /// Brings the kernel side up to date. Returns whether any process was published.
    pub(super) fn publish(&mut self, bpf: &mut Bpf, processes: &ProcessTable) -> bool {
        self.publisher.publish(
            bpf,
            &mut self.tables,
            processes,
            &MappedCode {
                binaries: &self.binaries,
                generated: &self.generated,
                javas: &self.javas,
            },
            &mut self.reader,
        )
    }

    /// Applies what was read. Returns the labels that were found, which the caller must record.
    #[must_use]
    pub(super) fn apply_answers(&mut self, processes: &mut ProcessTable) -> Vec<ProcessLabels> {
        let mut labelled = Vec::new();
        for answer in self.reader.answers() {
            match answer {
                ReaderAnswer::File { pid, map, found } => {
                    let bound = self.binaries.found(pid, &map, found, &mut self.reader);
                    self.rebind(&bound, processes);
                }
                ReaderAnswer::Process {
                    pid,
                    comm,
                    maps,
                    found,
                } => {
                    for (index, found) in found {
                        if let Some(map) = maps.get(index) {
                            let bound = self.binaries.found(pid, map, found, &mut self.reader);
                            self.rebind(&bound, processes);
                        }
                    }
                    if !self.lookups.read(pid, comm, maps) {
                        self.request(pid, pid, processes);
                    }
                }
                ReaderAnswer::Copied { pid, maps } => {
                    self.copied.came(pid, maps, Instant::now());
                }
                ReaderAnswer::Labels { pid, labels } => {
                    labelled.extend(self.labels.found(pid, labels, processes));
                }
                ReaderAnswer::Java { pid, found } => {
                    if self.javas.came(pid, found, Instant::now()) {
                        processes.renew(pid);
                        self.publisher.changed(pid);
                    }
                }
                ReaderAnswer::Tables { id, pages } => self.store_tables(id, &pages),
                ReaderAnswer::Late(ReadSubject::Java(pid)) => {
                    self.javas.came(pid, FoundJava::NotReady, Instant::now());
                }
                ReaderAnswer::Late(ReadSubject::Copied(pid)) => {
                    self.copied.came(pid, Vec::new(), Instant::now());
                }
                ReaderAnswer::Late(ReadSubject::Labels(_)) => {}
                ReaderAnswer::Late(ReadSubject::File(pid, place)) => self.binaries.late(pid, place),
                ReaderAnswer::Late(ReadSubject::Process(pid)) => self.lookups.failed(pid),
                ReaderAnswer::Late(ReadSubject::Tables(id, owner, pages)) => {
                    self.tables.requests.unread(id, owner, &pages);
                }
            }
        }
        labelled
    }

    /// Files became known after mappings of them were published.
    fn rebind(&mut self, ids: &[FileId], processes: &mut ProcessTable) {
        if ids.is_empty() {
            return;
        }
        self.rebound.extend(ids);
        for pid in processes.touch(|file| ids.contains(&file)) {
            self.publisher.changed(pid);
        }
    }

    /// Whether all is read and published that a known process has mapped.
    pub(super) fn is_all_read(&mut self, pid: u32, processes: &ProcessTable) -> bool {
        let process = processes.get(pid).filter(|process| process.complete);
        let Some(process) = process.filter(|process| process.exited_ns.is_none()) else {
            // It ran before, and was not sampled yet.
            self.request_all(&[pid], processes);
            return false;
        };
        if !self.publisher.is_current(pid, process) {
            self.publisher.changed(pid);
            return false;
        }
        let is_being_read = process.space.maps.iter().any(|map| {
            let key = processes.files.key(map.file);
            let key = key.filter(|key| Region::of(key) == Region::File);
            key.is_some_and(|key| self.binaries.requests.is_being_read(pid, key))
        });
        !is_being_read
            && self
                .publisher
                .lists
                .is_whole(process.space.version, &self.tables)
    }

    /// Drops processes whose main thread exited earlier and whose last thread has gone since: no
    /// event reports that. Returns them.
    pub(super) fn drop_headless(&mut self, processes: &mut ProcessTable) -> Vec<u32> {
        let headless = processes.iter().filter(|(_, process)| process.headless);
        let gone: Vec<u32> = headless
            .map(|(pid, _)| pid)
            .filter(|pid| !procfs::exists(*pid))
            .collect();
        for &pid in &gone {
            self.publisher.retire(pid, processes);
            processes.remove(pid);
        }
        gone
    }

    /// Forgets what came and was not needed, and what nothing refers to.
    pub(super) fn tidy(&mut self, processes: &ProcessTable) {
        self.lookups.clear();
        self.reopening.clear();
        // Samples that wait longer are applied without their pages.
        let horizon = perf::monotonic_ns().saturating_sub(5 * LINGER_NS);
        self.finisher.forget_before(horizon);
        let lives = |pid| processes.get(pid).is_some();
        self.binaries.keep_processes(lives);
        self.generated.keep_processes(lives);
        self.javas.keep_processes(lives);
        self.binaries.release_deleted(processes);
        self.tables.forget_unused(&self.publisher.lists, false);
    }

    /// Forgets all processes and files, here and in the kernel.
    pub(super) fn begin_afresh(&mut self, bpf: &mut Bpf) {
        self.publisher.clear(bpf, &mut self.tables);
        self.tables.forget_unused(&self.publisher.lists, true);
        self.finisher = Finisher::default();
        self.binaries.clear();
        self.generated.clear();
        self.copied.clear();
        self.javas.clear();
        self.reader.begin_afresh();
        self.lookups.begin_afresh();
        self.lacking = None;
        self.wanted_for = None;
        self.reopening.clear();
        self.rebound.clear();
    }

    /// What was lost since the start.
    pub(super) fn losses(&self) -> Losses {
        let mut losses = Losses::default();
        losses.add(LossKind::TablesEvicted, self.tables.evicted);
        losses.add(
            LossKind::FilesUnreadable,
            self.binaries.failed + self.binaries.refused,
        );
        losses.add(LossKind::ReadsLate, self.reader.late);
        losses.add(LossKind::FilesNoUnwindData, self.tables.without_data);
        losses.add(LossKind::TablesRefused, self.tables.refused);
        losses
    }
}
