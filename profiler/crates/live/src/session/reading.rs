//! The session's part in what is read of other processes: it asks early, waits
//! little, and takes in what comes.

use super::{CollectError, MAX_ABSENT, MAX_PENDING, Session};
use crate::{
    bpf::perf,
    finisher::Missing,
    generated::{self, Want},
    java::FoundJava,
    procfs,
    reader::{Answer, Asked, Code, Table},
    tables::Known,
};
use aiprof_common::PAGE_SIZE;
use aiprof_model::{
    process::{FileId, Mapping, Region, Runtime},
    wire::{Event, FileKey, MapEvent, ProcessEvent, ProcessEventKind, Sample, StopReason},
};
use aiprof_symbols::unwind::address_of;
use aiprof_system::workers::Owner;
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::{Duration, Instant};

/// Most processes met before the sampling starts, besides those that were chosen.
const MAX_RUNNING: usize = 16;
/// How long they and their tables are waited for.
const BEFORE: Duration = Duration::from_millis(400);
/// The same on a slow or busy machine, where they are being read and need only a CPU for it.
const BEFORE_AT_MOST: Duration = Duration::from_secs(2);
/// How often the file of a mapping is read that changes meanwhile.
const READINGS: usize = 3;
/// Most processes asked for and not yet needed.
const MAX_MET: usize = 4096;

/// What is being read.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Processes that were asked for, and when.
    asked: FxHashMap<u32, u64>,
    /// Those that nothing waits for any more: taken in when they come.
    late: FxHashSet<u32>,
    /// Name and mappings of those that came.
    met: FxHashMap<u32, (String, Vec<MapEvent>)>,
    /// The table that a walk waits for.
    lacking: Option<Missing>,
    /// Who tables were asked for last.
    wanted_for: Option<Owner>,
    /// Files that were closed, and are asked for again.
    reopening: FxHashSet<FileId>,
    /// Files that became known after code of them was sampled.
    pub(super) rebound: FxHashSet<FileId>,
    /// When process events were lost last.
    lost_ns: u64,
}

impl Reading {
    /// Whether no answer about a process is to come.
    pub(super) fn has_given_up(&self, pid: u32) -> bool {
        !self.asked.contains_key(&pid) && !self.met.contains_key(&pid)
    }

    /// Process events before `time_ns` were lost: what was read of a process before that may
    /// be of the program that it ran before.
    pub(super) fn lost(&mut self, time_ns: u64) {
        self.met.clear();
        self.lost_ns = time_ns;
    }

    /// Forgets what came and was not needed.
    pub(super) fn tidy(&mut self) {
        self.met.clear();
        self.reopening.clear();
        // Also those whose answer got lost: they may be asked for again.
        self.asked.clear();
        self.late.clear();
    }
}

impl Session {
    /// Gets to know the processes that run right now, before they are sampled: else their
    /// first stacks would be cut. Others are asked for when they are sampled first.
    pub(super) fn meet_running(&mut self) -> Result<(), CollectError> {
        let own = std::process::id();
        let mut pids = self.filter.chosen();
        pids.extend(procfs::running(MAX_RUNNING));
        pids.retain(|pid| *pid != own);
        self.meet_all(&pids);
        let begun = Instant::now();
        self.settle_reads(begun);
        self.meet_late()?;
        self.publish();
        self.settle_reads(begun);
        Ok(())
    }

    /// Waits for what was asked, where nothing is sampled yet.
    fn settle_reads(&mut self, begun: Instant) {
        loop {
            let most = match self.reader.is_working() {
                true => BEFORE_AT_MOST,
                false => BEFORE,
            };
            if !self.reader.wait_until(begun + most) {
                break;
            }
            self.take_answers();
        }
        self.take_answers();
    }

    /// Asks for processes that run already. They are taken in when they come.
    pub(super) fn meet_all(&mut self, pids: &[u32]) {
        for &pid in pids {
            self.ask_process(pid, pid);
            if !self.reading.has_given_up(pid) {
                self.reading.late.insert(pid);
            }
        }
    }

    /// Brings the kernel side up to date, and has the tables read that it wants.
    pub(super) fn publish(&mut self) {
        let published = self.publisher.publish(
            &mut self.bpf,
            &mut self.tables,
            &self.events.recording.processes,
            &Known {
                binaries: &self.binaries,
                generated: &self.generated,
                javas: &self.javas,
            },
            &mut self.reader,
        );
        for mut found in self.publisher.take_pythons() {
            found.time_ns = perf::monotonic_ns();
            if let Err(error) = self.record(&Event::PythonFound(found)) {
                tracing::warn!("cannot record a Python interpreter: {error}");
            }
        }
        if published {
            // What exec'd before it was published is withdrawn: that exec is in a ring.
            self.receive_processes();
        }
        self.read_tables();
    }

    /// Asks for what the events that were just received will need, from the event
    /// `first` on.
    pub(super) fn foresee(&mut self, first: usize) {
        let arrived = std::mem::take(&mut self.arrived);
        for event in &arrived[first..] {
            match event {
                Event::Process(event) => self.foresee_process(event),
                Event::Sample(sample) => self.foresee_sample(sample),
                Event::CallStack(stack) => self.foresee_sample(&stack.sample),
                Event::Call(call) => self.ask_process(call.pid, call.tid),
                _ => {}
            }
        }
        self.arrived = arrived;
        self.read_tables();
    }

    fn foresee_process(&mut self, event: &ProcessEvent) {
        match &event.kind {
            ProcessEventKind::Map(map) => {
                self.binaries.foresee(event.pid, map, &mut self.reader);
                // Probes do not wait for what happened before.
                if let Some((probes, _)) = &mut self.probes {
                    probes.mapped(event.pid, map);
                }
            }
            ProcessEventKind::Exec { .. } | ProcessEventKind::Fork { .. } => {
                if event.pid != event.tid {
                    return;
                }
                if matches!(event.kind, ProcessEventKind::Exec { .. }) {
                    self.publisher.replaced(
                        event.pid,
                        &mut self.bpf,
                        &mut self.tables,
                        &self.events.recording.processes,
                    );
                }
                // Another program, perhaps another user's: what was read is of the old.
                self.binaries.forget_process(event.pid);
                self.reader.forget(event.pid);
                self.reading.met.remove(&event.pid);
                self.reading.late.remove(&event.pid);
            }
            _ => {}
        }
    }

    fn foresee_sample(&mut self, sample: &Sample) {
        if sample.stop == StopReason::PageAbsent {
            let owner = self.reader.owner(sample.thread.pid);
            self.tables.miss(sample.miss_dir, sample.miss_page, owner);
        }
        if !sample.user.is_empty() {
            self.ask_process(sample.thread.pid, sample.thread.tid);
        }
    }

    /// Asks for a process that is not known.
    fn ask_process(&mut self, pid: u32, tid: u32) {
        let reading = &mut self.reading;
        let known = self
            .events
            .recording
            .processes
            .get(pid)
            .is_some_and(|p| p.complete);
        if known || !reading.has_given_up(pid) || self.absent.contains(&pid) {
            return;
        }
        let now = perf::monotonic_ns();
        if reading.met.len() < MAX_MET && self.reader.ask_process(pid, tid) {
            reading.asked.insert(pid, now);
        }
    }

    /// Takes in a process that ran before the recording did, or whose events were
    /// lost. What is not known in time is taken in when it comes.
    pub(super) fn first_sight(
        &mut self,
        pid: u32,
        tid: u32,
        time_ns: u64,
    ) -> Result<(), CollectError> {
        if self.absent.contains(&pid) {
            return Ok(());
        }
        self.ask_process(pid, tid);
        let owner = self.reader.owner(pid);
        self.until(owner, |session| !session.reading.asked.contains_key(&pid));
        if let Some((comm, maps)) = self.reading.met.remove(&pid)
            && !maps.is_empty()
        {
            return self.snapshot(pid, time_ns, comm, maps);
        }
        if self.reading.asked.contains_key(&pid) {
            self.reading.late.insert(pid);
        }
        if self.absent.len() >= MAX_ABSENT {
            self.absent.clear();
        }
        self.absent.insert(pid);
        Ok(())
    }

    fn snapshot(
        &mut self,
        pid: u32,
        time_ns: u64,
        comm: String,
        maps: Vec<MapEvent>,
    ) -> Result<(), CollectError> {
        if maps.is_empty() {
            return Ok(());
        }
        self.take_process(ProcessEvent {
            time_ns,
            pid,
            tid: pid,
            kind: ProcessEventKind::Snapshot { comm, maps },
        })
    }

    /// Takes in the processes that came after they were needed.
    pub(super) fn meet_late(&mut self) -> Result<(), CollectError> {
        let reading = &mut self.reading;
        let late = reading.late.iter().copied();
        let come: Vec<u32> = late.filter(|pid| reading.met.contains_key(pid)).collect();
        for pid in come {
            self.reading.late.remove(&pid);
            let known = self
                .events
                .recording
                .processes
                .get(pid)
                .is_some_and(|p| p.complete);
            if let (Some((comm, maps)), false) = (self.reading.met.remove(&pid), known) {
                self.absent.remove(&pid);
                self.snapshot(pid, perf::monotonic_ns(), comm, maps)?;
                self.publisher.changed(pid);
            }
        }
        Ok(())
    }

    /// Gives a mapping the key of its file, waiting a little for it.
    pub(super) fn identify(&mut self, pid: u32, map: &mut MapEvent) {
        // What changes while it is read (a program that deletes itself) is read again.
        for _ in 0..READINGS {
            if self.binaries.is_identified(pid, map) {
                break;
            }
            self.binaries.foresee(pid, map, &mut self.reader);
            let owner = self.reader.owner(pid);
            if !self.until(owner, |session| !session.binaries.is_asked(pid, map)) {
                break;
            }
        }
        self.name_mapping(pid, map);
    }

    /// The same for a mapping whose file was read with its process: waits only if the file
    /// has changed since.
    pub(super) fn identify_read(&mut self, pid: u32, map: &mut MapEvent) {
        match self.binaries.has_changed(pid, map) {
            true => self.identify(pid, map),
            false => self.name_mapping(pid, map),
        }
    }

    /// Gives a mapping the key of its file, or one of its own if it is not known.
    fn name_mapping(&mut self, pid: u32, map: &mut MapEvent) {
        let files = &mut self.events.recording.processes.files;
        let owner = || self.reader.owner(pid);
        self.binaries.identify(pid, owner, map, files);
    }

    /// Finishes the stack of a sample, waiting a little for tables that it lacks.
    pub(super) fn finish_walk(&mut self, sample: &mut Sample) {
        let mut last = false;
        let owner = self.reader.owner(sample.thread.pid);
        while let Some(missing) = self.finisher.finish(
            sample,
            owner,
            &self.events.recording.processes,
            (&self.binaries, &self.javas),
            &mut self.tables,
            last,
        ) {
            self.read_tables();
            self.reading.lacking = Some(missing);
            self.until(owner, |session| session.reading.lacking.is_none());
            last = self.reading.lacking.take().is_some();
        }
    }

    /// Asks for the HotSpot of a sample's process, if it has one that is not known.
    pub(super) fn read_java(&mut self, sample: &Sample) {
        let pid = sample.thread.pid;
        let now = Instant::now();
        if !self.javas.is_due(pid, now) {
            return;
        }
        let process = self
            .events
            .recording
            .processes
            .get(pid)
            .filter(|p| p.complete);
        let Some(space) = process.map(|process| &process.space) else {
            return;
        };
        // What else is in the process may have its code between.
        let is_java = space.generated.runtime() == Some(Runtime::Java);
        if !is_java && generated::lacking(sample).next().is_none() {
            return;
        }
        self.ask_java(pid);
    }

    /// Asks for the HotSpots of processes that are about to start.
    pub(super) fn read_starting_java(&mut self) {
        let now = Instant::now();
        for pid in self.javas.due(now) {
            self.ask_java(pid);
            if self.javas.is_due(pid, now) {
                // Its file is not known yet, or what it had mapped is not any more.
                self.javas.asked(pid);
                self.javas.came(pid, FoundJava::NotReady, now);
            }
        }
    }

    fn ask_java(&mut self, pid: u32) {
        let Some(process) = self.events.recording.processes.get(pid) else {
            return;
        };
        let found = process.space.maps.iter().find_map(|map| {
            let binary = self.binaries.get(map.file)?;
            let library = binary.java.as_ref()?;
            let address = address_of(&binary.text, map.file_offset)?;
            Some((library.clone(), map.start.wrapping_sub(address)))
        });
        if let Some((library, bias)) = found
            && self.reader.ask_java(pid, library, bias)
        {
            self.javas.asked(pid);
        }
    }

    /// Has generated code read in which the stack of a sample was cut or its caller
    /// guessed, and once in a while what was read before.
    pub(super) fn read_generated(&mut self, sample: &Sample) {
        for address in generated::lacking(sample) {
            self.read_generated_at(sample, address, Want::Lacking);
        }
        if self.generated.knows(sample.thread.pid)
            && let Some(address) = generated::leaf(sample)
        {
            self.read_generated_at(sample, address, Want::Check);
        }
    }

    fn read_generated_at(&mut self, sample: &Sample, address: u64, want: Want) {
        let pid = sample.thread.pid;
        let process = self
            .events
            .recording
            .processes
            .get(pid)
            .filter(|process| process.complete);
        let space = process.map(|process| &process.space);
        let space = space.filter(|space| sample.space == 0 || sample.space == space.id);
        let Some(&map) = space.and_then(|space| space.find(address)) else {
            return;
        };
        if !self.is_generated(&map) {
            return;
        }
        let owner = self.reader.owner(pid);
        if self.generated.piece(pid, &map).is_none() {
            let files = &mut self.events.recording.processes.files;
            if want == Want::Check || !self.generated.add(pid, owner, &map, files) {
                return;
            }
            self.events.recording.processes.renew(pid);
            self.publisher.changed(pid);
        }
        let now = Instant::now();
        if let Some((id, page)) = self.generated.due(pid, &map, address, want, now) {
            self.tables.read_again(id, page, owner);
        }
    }

    /// Whether a mapping is of code that was generated at run time.
    fn is_generated(&self, map: &Mapping) -> bool {
        let key = self.events.recording.processes.files.key(map.file);
        key.is_some_and(|key| Region::of(key) == Region::Anonymous)
    }

    /// The generated code that pages of a piece are of, and what may reach into them.
    fn code_around(&self, id: FileId, pages: &[u32]) -> Option<Code> {
        /// Bytes before and behind a page.
        const AROUND: u64 = PAGE_SIZE;
        let (pid, range) = self.generated.place(id)?;
        let at = |page: u32| range.start.saturating_add(u64::from(page) * PAGE_SIZE);
        let first = at(*pages.iter().min()?).saturating_sub(AROUND);
        let last = at(*pages.iter().max()?).saturating_add(PAGE_SIZE + AROUND);
        let space = &self.events.recording.processes.get(pid)?.space;
        let near = space
            .maps
            .iter()
            .filter(|map| self.is_generated(map) && map.start < last && first < map.end);
        Some(Code {
            pid,
            text: near.map(|map| map.start..map.end).collect(),
            pages: range,
        })
    }

    /// Waits a little on somebody's account until something is so; `false`: it is
    /// not in time. What comes meanwhile is received, and what it needs asked for.
    fn until(&mut self, owner: Owner, done: impl Fn(&Self) -> bool) -> bool {
        self.take_answers();
        if done(self) {
            return true;
        }
        let mut wait = self.reader.begin_wait(owner);
        if self.reader.is_over(&wait) {
            return false;
        }
        // What is sampled meanwhile is unwound with what is known.
        self.publish();
        while self.arrived.len() < MAX_PENDING && self.reader.wait(&mut wait) {
            self.take_answers();
            if done(self) {
                return true;
            }
            self.receive();
        }
        false
    }

    /// Takes in what was read.
    pub(super) fn take_answers(&mut self) {
        for answer in self.reader.answers() {
            match answer {
                Answer::File { pid, map, found } => {
                    let bound = self.binaries.found(pid, &map, found, &mut self.reader);
                    self.rebind(&bound);
                }
                Answer::Process {
                    pid,
                    comm,
                    maps,
                    found,
                } => {
                    for (index, found) in found {
                        if let Some(map) = maps.get(index) {
                            let bound = self.binaries.found(pid, map, found, &mut self.reader);
                            self.rebind(&bound);
                        }
                    }
                    match self.reading.asked.remove(&pid) {
                        Some(asked_ns) if asked_ns < self.reading.lost_ns => {
                            self.ask_process(pid, pid);
                        }
                        Some(_) => {
                            self.reading.met.insert(pid, (comm, maps));
                        }
                        None => {}
                    }
                }
                Answer::Labels { pid, labels } => self.labels_read(pid, labels),
                Answer::Java { pid, found } => {
                    if self.javas.came(pid, found, Instant::now()) {
                        self.events.recording.processes.renew(pid);
                        self.publisher.changed(pid);
                    }
                }
                Answer::Late(Asked::Java(pid)) => {
                    self.javas.came(pid, FoundJava::NotReady, Instant::now());
                }
                Answer::Late(Asked::Labels(_)) => {}
                Answer::Tables { id, pages } => {
                    for (page, table) in &pages {
                        let before = || self.tables.resident(id, *page);
                        let table = match self.generated.came(id, *page, table, before) {
                            generated::Reading::Valid => table,
                            generated::Reading::Replaced => &Table::NoData,
                        };
                        self.tables.store(id, *page, table);
                        let lacking = Missing {
                            file: id,
                            page: *page,
                        };
                        if self.reading.lacking == Some(lacking) {
                            self.reading.lacking = None;
                            self.finisher.table(id, *page, table);
                        }
                    }
                }
                Answer::Late(Asked::File(pid, place)) => self.binaries.late(pid, place),
                Answer::Late(Asked::Process(pid)) => {
                    self.reading.asked.remove(&pid);
                    self.reading.late.remove(&pid);
                }
                Answer::Late(Asked::Tables(id, owner, pages)) => {
                    self.tables.unread(id, owner, &pages);
                }
            }
        }
    }

    /// Files became known after mappings of them were published.
    fn rebind(&mut self, ids: &[FileId]) {
        if ids.is_empty() {
            return;
        }
        self.reading.rebound.extend(ids);
        for pid in self
            .events
            .recording
            .processes
            .touch(|file| ids.contains(&file))
        {
            self.publisher.changed(pid);
        }
    }

    /// Waits a moment for the tables of programs that have just started: they may not
    /// run for long, and what they call soon is to have whole stacks.
    pub(super) fn await_tables(&mut self) {
        let Some(owner) = self.reading.wanted_for.take() else {
            return;
        };
        let mut wait = self.reader.begin_short_wait(owner);
        while self.tables.is_read_for(owner) && self.reader.wait(&mut wait) {
            self.take_answers();
        }
    }

    /// Asks for the tables that are wanted.
    fn read_tables(&mut self) {
        for wanted in self.tables.take_wanted() {
            let (id, owner) = (wanted.id, wanted.owner);
            if let Some(code) = self.code_around(id, &wanted.pages) {
                if !self.reader.ask_generated(&wanted, code) {
                    self.tables.unread(id, owner, &wanted.pages);
                }
                continue;
            }
            let key = self.events.recording.processes.files.key(id);
            let path = key.map_or("", |key| key.path.as_str());
            let file = self.binaries.opened(id);
            if file.is_some_and(|file| self.reader.ask_tables(&wanted, path, file)) {
                self.reading.wanted_for = Some(owner);
            } else {
                // Does nothing unless it was closed.
                self.reopen(id);
                self.tables.unread(id, owner, &wanted.pages);
            }
        }
    }

    /// Asks for a file that was closed, where a process still has it mapped.
    pub(super) fn reopen(&mut self, id: FileId) {
        if !self.binaries.is_closed(id) || !self.reading.reopening.insert(id) {
            return;
        }
        let Some(key) = self.events.recording.processes.files.key(id) else {
            return;
        };
        if Region::of(key) != Region::File {
            return;
        }
        let user = self
            .events
            .recording
            .processes
            .iter()
            .find_map(|(pid, process)| {
                let maps = &process.space.maps;
                let map = maps.iter().find(|map| map.file == id)?;
                process.exited_ns.is_none().then_some((pid, *map))
            });
        if let Some((pid, map)) = user {
            let map = event_of(map, key);
            self.binaries.reopen(pid, &map, &mut self.reader);
        }
    }

    /// Asks once more for files that did not come in time: the machine may have been
    /// busy.
    pub(super) fn ask_again(&mut self) {
        for (pid, place) in self.binaries.take_late() {
            let Some(process) = self.events.recording.processes.get(pid) else {
                continue;
            };
            let files = &self.events.recording.processes.files;
            let mut maps = process.space.maps.iter().filter_map(|map| {
                let key = files.key(map.file)?;
                ((key.device, key.inode) == place).then(|| event_of(*map, key))
            });
            if let Some(map) = maps.next() {
                self.binaries.ask_again(pid, &map, &mut self.reader);
            }
        }
    }
}

/// A mapping as it was recorded.
fn event_of(map: Mapping, file: &FileKey) -> MapEvent {
    MapEvent {
        start: map.start,
        len: map.end - map.start,
        file_offset: map.file_offset,
        file: file.clone(),
    }
}
