//! What is read of the code of processes: unwind tables, code that was generated at run time,
//! and the HotSpots of Java.

use super::processes::LiveProcesses;
use crate::{
    finisher::Missing,
    generated::{self, Want},
    java::FoundJava,
    procfs::map_event,
    reader::{GeneratedCode, UnwindPage},
    tables::Wish,
};
use aiprof_common::PAGE_SIZE;
use aiprof_model::{
    process::{FileId, FileTable, Mapping, ProcessTable, Region, Runtime},
    wire::Sample,
};
use aiprof_symbols::unwind::address_of;
use std::time::Instant;

/// Bytes before and behind a page of generated code that may reach into it.
const AROUND: u64 = PAGE_SIZE;

impl LiveProcesses {
    /// Requests the tables that are wanted.
    pub(super) fn read_tables(&mut self, processes: &ProcessTable) {
        for wanted in self.tables.requests.take_wanted() {
            let (id, owner) = (wanted.id, wanted.owner);
            if let Some(code) = self.code_around(id, &wanted.pages, processes) {
                if !self.reader.ask_generated(&wanted, code) {
                    self.tables.requests.unread(id, owner, &wanted.pages);
                }
                continue;
            }
            let key = processes.files.key(id);
            let path = key.map_or("", |key| key.path.as_str());
            let file = self.binaries.opened(id);
            if file.is_some_and(|file| self.reader.ask_tables(&wanted, path, file)) {
                self.wanted_for = Some(owner);
            } else {
                // Does nothing unless it was closed.
                self.reopen(id, processes);
                self.tables.requests.unread(id, owner, &wanted.pages);
            }
        }
    }

    /// Stores tables that were read.
    pub(super) fn store_tables(&mut self, id: FileId, pages: &[(u32, UnwindPage)]) {
        for &(page, ref table) in pages {
            let before = || self.tables.resident(id, page);
            let table = match self.generated.came(id, page, table, before) {
                generated::PageReading::Valid => table,
                generated::PageReading::Replaced => &UnwindPage::NoData,
            };
            self.tables.store(id, page, table);
            if self.lacking == Some(Missing { file: id, page }) {
                self.lacking = None;
                self.finisher.table(id, page, table);
            }
        }
    }

    /// Requests a file that was closed, where a process still has it mapped.
    pub(super) fn reopen(&mut self, id: FileId, processes: &ProcessTable) {
        if !self.binaries.is_closed(id) || !self.reopening.insert(id) {
            return;
        }
        let Some(key) = processes.files.key(id) else {
            return;
        };
        if Region::of(key) != Region::File {
            return;
        }
        let user = processes.iter().find_map(|(pid, process)| {
            let map = process.space.maps.iter().find(|map| map.file == id)?;
            process.exited_ns.is_none().then_some((pid, map))
        });
        if let Some((pid, map)) = user {
            let map = map_event(map, key);
            self.binaries.requests.ask(pid, &map, &mut self.reader);
        }
    }

    /// Requests once more files that did not come in time: the machine may have been busy.
    pub(super) fn request_late_files(&mut self, processes: &ProcessTable) {
        for (pid, place) in self.binaries.requests.take_late() {
            let Some(process) = processes.get(pid) else {
                continue;
            };
            let files = &processes.files;
            let mut maps = process.space.maps.iter().filter_map(|map| {
                let key = files.key(map.file)?;
                ((key.device, key.inode) == place).then(|| map_event(map, key))
            });
            if let Some(map) = maps.next() {
                self.binaries.ask_again(pid, &map, &mut self.reader);
            }
        }
    }

    /// Requests the HotSpot of a sample's process, if it has one that is not known.
    pub(super) fn request_java(&mut self, sample: &Sample, processes: &ProcessTable) {
        let pid = sample.thread.pid;
        if !self.javas.is_due(pid, Instant::now()) {
            return;
        }
        let process = processes.get(pid).filter(|process| process.complete);
        let Some(space) = process.map(|process| &process.space) else {
            return;
        };
        // What else is in the process may have its code between.
        let is_java = space.generated.runtime() == Some(Runtime::Java);
        if is_java || generated::lacking(sample).next().is_some() {
            self.ask_java(pid, processes);
        }
    }

    /// Requests the HotSpots of processes that are about to start.
    pub(super) fn request_starting_java(&mut self, processes: &ProcessTable) {
        let now = Instant::now();
        for pid in self.javas.due(now) {
            self.ask_java(pid, processes);
            if self.javas.is_due(pid, now) {
                // Its file is not known yet, or what it had mapped is not any more.
                self.javas.asked(pid);
                self.javas.came(pid, FoundJava::NotReady, now);
            }
        }
    }

    /// Requests what processes have copied of their text.
    pub(super) fn request_copied(&mut self) {
        let now = Instant::now();
        for pid in self.copied.take_due(now) {
            if !self.reader.ask_copied(pid) {
                self.copied.came(pid, Vec::new(), now);
            }
        }
    }

    fn ask_java(&mut self, pid: u32, processes: &ProcessTable) {
        let Some(process) = processes.get(pid) else {
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
    pub(super) fn read_generated(&mut self, sample: &Sample, processes: &mut ProcessTable) {
        for address in generated::lacking(sample) {
            self.read_generated_at(sample, address, Want::Lacking, processes);
        }
        if self.generated.knows(sample.thread.pid)
            && let Some(address) = generated::leaf(sample)
        {
            self.read_generated_at(sample, address, Want::Check, processes);
        }
    }

    fn read_generated_at(
        &mut self,
        sample: &Sample,
        address: u64,
        want: Want,
        processes: &mut ProcessTable,
    ) {
        let pid = sample.thread.pid;
        let process = processes.get(pid).filter(|process| process.complete);
        let space = process.map(|process| &process.space);
        let space = space.filter(|space| sample.space == 0 || sample.space == space.id);
        let Some(&map) = space.and_then(|space| space.find(address)) else {
            return;
        };
        if !is_generated(&map, &processes.files) {
            return;
        }
        let owner = self.reader.owner(pid);
        if self.generated.piece(pid, &map).is_none() {
            let files = &mut processes.files;
            if want == Want::Check || !self.generated.add(pid, owner, &map, files) {
                return;
            }
            processes.renew(pid);
            self.publisher.changed(pid);
        }
        let now = Instant::now();
        if let Some((id, page)) = self.generated.due(pid, &map, address, want, now) {
            self.tables.requests.ask(id, page, Wish::Slow, owner);
        }
    }

    /// The generated code that pages of a piece are of, and what may reach into them.
    fn code_around(
        &self,
        id: FileId,
        pages: &[u32],
        processes: &ProcessTable,
    ) -> Option<GeneratedCode> {
        let (pid, range) = self.generated.place(id)?;
        let at = |page: u32| range.start.saturating_add(u64::from(page) * PAGE_SIZE);
        let first = at(*pages.iter().min()?).saturating_sub(AROUND);
        let last = at(*pages.iter().max()?).saturating_add(PAGE_SIZE + AROUND);
        let near = processes.get(pid)?.space.maps.iter().filter(|map| {
            is_generated(map, &processes.files) && map.start < last && first < map.end
        });
        Some(GeneratedCode {
            pid,
            text: near.map(|map| map.start..map.end).collect(),
            pages: range,
        })
    }
}

/// Whether a mapping is of code that was generated at run time.
fn is_generated(map: &Mapping, files: &FileTable) -> bool {
    let key = files.key(map.file);
    key.is_some_and(|key| Region::of(key) == Region::Anonymous)
}
