//! Processes, their executable mappings, and the files those map; pure.
//!
//! Fed with [`ProcessEvent`]s in time order, it answers what an address of a
//! process meant at that time. Forks share their parent's mappings until one of
//! them changes, so a storm of short processes costs little.

mod files;
mod lines;
mod python;
mod runtime;

pub use files::{FileId, FileTable, NARROW_VDSO, Region, name_in_memory, without_mark};
pub use python::{ProcessPython, ScriptFunction, ScriptTable};
pub use runtime::{Generated, Runtime, is_jitdump};

use crate::labels::{self, LabelSet};
use crate::wire::{
    MapEvent, ProcessEvent, ProcessEventKind, ProcessLabels, PythonCode, PythonFound,
};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::rc::Rc;

/// Most mappings kept of one process; the kernel's own limit on mappings of
/// any kind is 65,530 (vm.max_map_count).
const MAX_MAPS: usize = 16_384;
/// Most processes known at a time: the largest pid the kernel gives out.
const MAX_PROCESSES: usize = 1 << 22;

/// An executable mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind.
    pub end: u64,
    /// Offset in the file of the first byte.
    pub file_offset: u64,
    /// What is mapped.
    pub file: FileId,
}

/// The executable mappings of one or more processes.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// Identity of the image: new at every exec, shared with forks.
    pub id: u32,
    /// Identity of the content: new at every change.
    pub version: u64,
    /// Sorted by start, not overlapping.
    pub maps: Vec<Mapping>,
    /// Whose the code without a file is.
    pub generated: Generated,
}

impl Space {
    /// The mapping that holds an address.
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        let after = self.maps.partition_point(|m| m.start <= address);
        self.maps
            .get(after.checked_sub(1)?)
            .filter(|m| address < m.end)
    }

    /// Whether it is of a program of 32 bits: nothing in it has a larger address.
    pub fn is_narrow(&self) -> bool {
        let last = self.maps.last();
        last.is_some_and(|last| last.end <= 1 << 32)
    }

    /// Adds a mapping in place of whatever it overlaps.
    fn insert(&mut self, new: Mapping) {
        let first = self.maps.partition_point(|m| m.end <= new.start);
        let last = self.maps.partition_point(|m| m.start < new.end);
        let mut pieces = Vec::with_capacity(3);
        for old in self.maps.get(first..last.max(first)).unwrap_or_default() {
            if old.start < new.start {
                pieces.push(Mapping {
                    end: new.start,
                    ..*old
                });
            }
        }
        pieces.push(new);
        for old in self.maps.get(first..last.max(first)).unwrap_or_default() {
            if old.end > new.end {
                let cut = new.end - old.start;
                pieces.push(Mapping {
                    start: new.end,
                    file_offset: old.file_offset + cut,
                    ..*old
                });
            }
        }
        self.maps.splice(first..last.max(first), pieces);
        self.maps.truncate(MAX_MAPS);
    }
}

/// A process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Name of its main thread.
    pub comm: String,
    /// Its executable mappings.
    pub space: Rc<Space>,
    /// Process id of the parent, 0 if not known.
    pub parent: u32,
    /// When its main thread exited.
    pub exited_ns: Option<u64>,
    /// Forked, and never exec'd since.
    pub is_fork: bool,
    /// Whether all of its mappings are known: false if only later ones were seen.
    pub complete: bool,
    /// Whether it forked processes, which may share its mappings.
    pub has_forked: bool,
    /// Its main thread exited and others live on: no event marks its end.
    pub headless: bool,
    /// Its Python.
    pub python: Rc<ProcessPython>,
    /// Its labels: a set of its own for every program that it executes.
    pub labels: Rc<LabelSet>,
}

/// All known processes.
#[derive(Default)]
pub struct ProcessTable {
    /// Apart from the table, which has room for several times as many as there are at most:
    /// thousands of short ones linger for a moment.
    processes: FxHashMap<u32, Box<Process>>,
    /// The mapped files.
    pub files: FileTable,
    /// Whether the frames of Python's interpreter itself are shown beside those of the
    /// functions that it runs.
    pub python_c_frames: bool,
    next_space: u32,
    next_version: u64,
    next_labels: u64,
    /// Labels of all that is recorded.
    pub recording_labels: LabelSet,
    /// Labels that processes share, the latest first.
    shared_labels: VecDeque<Rc<Vec<(String, String)>>>,
}

impl ProcessTable {
    /// A table that knows nothing. `python_c_frames`: see the field.
    pub fn new(python_c_frames: bool) -> Self {
        Self {
            python_c_frames,
            ..Self::default()
        }
    }

    /// A process by its id.
    pub fn get(&self, pid: u32) -> Option<&Process> {
        self.processes.get(&pid).map(|process| &**process)
    }

    /// A process by its id, to mark.
    pub fn get_mut(&mut self, pid: u32) -> Option<&mut Process> {
        self.processes.get_mut(&pid).map(|process| &mut **process)
    }

    /// All processes by id.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Process)> {
        self.processes
            .iter()
            .map(|(&pid, process)| (pid, &**process))
    }

    /// Processes known.
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Takes an event in. Returns whether the mappings of `event.pid` changed.
    pub fn apply(&mut self, event: &ProcessEvent) -> bool {
        match &event.kind {
            ProcessEventKind::Fork { parent } => self.fork(event.pid, *parent),
            ProcessEventKind::Exec { comm } => {
                let space = self.new_space();
                self.renew_labels(event.pid);
                let process = self.entry(event.pid);
                process.comm.clone_from(comm);
                process.space = Rc::new(space);
                process.python = Rc::default();
                process.is_fork = false;
                process.complete = true;
                process.exited_ns = None;
                true
            }
            ProcessEventKind::Comm { comm } => {
                if event.pid == event.tid
                    && let Some(process) = self.processes.get_mut(&event.pid)
                {
                    process.comm.clone_from(comm);
                }
                false
            }
            ProcessEventKind::Map(map) => self.map(event.pid, map),
            ProcessEventKind::Exit => {
                if event.pid == event.tid
                    && let Some(process) = self.processes.get_mut(&event.pid)
                {
                    process.exited_ns = Some(event.time_ns);
                }
                false
            }
            ProcessEventKind::Snapshot { comm, maps } => {
                self.snapshot(event.pid, comm, maps);
                true
            }
            ProcessEventKind::Throttled => false,
            ProcessEventKind::Lost { .. } => {
                self.processes.values_mut().for_each(|p| p.complete = false);
                false
            }
        }
    }

    /// A table that knows nothing, and gives no number that this one gave.
    pub fn successor(&self) -> Self {
        Self {
            python_c_frames: self.python_c_frames,
            next_space: self.next_space,
            next_version: self.next_version,
            next_labels: self.next_labels,
            recording_labels: self.recording_labels.renewed(0),
            ..Self::default()
        }
    }

    /// Takes in that a process has an interpreter.
    pub fn python_found(&mut self, found: &PythonFound) {
        let python = &mut self.entry(found.pid).python;
        Rc::make_mut(python).interpreter = Some(found.clone());
    }

    /// Takes in a code object of a process.
    pub fn python_code(&mut self, code: &PythonCode) {
        let mut python = std::mem::take(&mut self.entry(code.pid).python);
        Rc::make_mut(&mut python).add(code, &mut self.files.scripts);
        self.entry(code.pid).python = python;
    }

    /// Forgets a process.
    pub fn remove(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// Forgets processes whose main thread exited before `time_ns`; returns their ids.
    /// Those for which `lives_on` returns true become headless instead.
    pub fn remove_exited_before(
        &mut self,
        time_ns: u64,
        lives_on: impl Fn(u32) -> bool,
    ) -> Vec<u32> {
        let gone = |p: &Process| p.exited_ns.is_some_and(|t| t < time_ns);
        let mut pids: Vec<u32> = self
            .processes
            .iter()
            .filter(|(_, p)| gone(p))
            .map(|(&pid, _)| pid)
            .collect();
        pids.retain(|&pid| {
            let headless = lives_on(pid);
            if let (true, Some(process)) = (headless, self.processes.get_mut(&pid)) {
                process.exited_ns = None;
                process.headless = true;
            } else {
                self.processes.remove(&pid);
            }
            !headless
        });
        pids
    }

    /// Whether a process has the mappings of another's space. A fork has them under an id
    /// of its own where its parent's mappings were known only after the fork.
    pub fn shares(&self, pid: u32, space: u32) -> bool {
        let Some(own) = self.processes.get(&pid).map(|p| &p.space) else {
            return false;
        };
        let mut others = self.processes.values().map(|p| &p.space);
        others.any(|other| other.id == space && other.maps == own.maps)
    }

    /// Marks files as known: returns the processes that have one of them mapped, whose
    /// mappings count as changed.
    pub fn touch(&mut self, is_one: impl Fn(FileId) -> bool) -> Vec<u32> {
        let mut pids: Vec<u32> = self
            .processes
            .iter()
            .filter(|(_, process)| process.space.maps.iter().any(|map| is_one(map.file)))
            .map(|(&pid, _)| pid)
            .collect();
        pids.sort_unstable();
        pids.iter().for_each(|&pid| self.renew(pid));
        pids
    }

    /// Marks the mappings of a process as changed, because more is known about them.
    pub fn renew(&mut self, pid: u32) {
        let version = self.new_version();
        if let Some(process) = self.processes.get_mut(&pid) {
            Rc::make_mut(&mut process.space).version = version;
        }
    }

    fn new_version(&mut self) -> u64 {
        self.next_version += 1;
        self.next_version
    }

    fn new_space(&mut self) -> Space {
        // 0 means "no space" on the wire.
        self.next_space = self.next_space.wrapping_add(1).max(1);
        Space {
            id: self.next_space,
            version: self.new_version(),
            maps: Vec::new(),
            generated: Generated::default(),
        }
    }

    fn new_labels(&mut self) -> u64 {
        self.next_labels += 1;
        self.next_labels
    }

    /// Gives a process that executes a program a set of labels of its own, which begins with
    /// those it has, but for what it has open.
    fn renew_labels(&mut self, pid: u32) {
        let id = self.new_labels();
        let process = self.entry(pid);
        let labels = process.labels.renewed(id);
        labels.remove(labels::DEVICE);
        process.labels = Rc::new(labels);
    }

    /// Takes in labels of a process, or of all that is recorded.
    pub fn labelled(&mut self, found: &ProcessLabels) {
        match found.pid {
            0 => self.recording_labels.add(&found.labels),
            pid => {
                let set = Rc::clone(&self.entry(pid).labels);
                set.add(&found.labels);
                set.share(&mut self.shared_labels);
            }
        }
    }

    fn entry(&mut self, pid: u32) -> &mut Process {
        if self.processes.len() >= MAX_PROCESSES {
            self.processes.clear();
        }
        if !self.processes.contains_key(&pid) {
            let space = Rc::new(self.new_space());
            let process = Process {
                space,
                labels: Rc::new(LabelSet::default().renewed(self.new_labels())),
                ..Process::default()
            };
            self.processes.insert(pid, Box::new(process));
        }
        // Present by now: this only looks it up.
        self.processes.entry(pid).or_default()
    }

    fn fork(&mut self, pid: u32, parent: u32) -> bool {
        if pid == parent {
            return false;
        }
        // The records of code objects come a little before the stacks that need them, and
        // so before the fork that the first of them follow.
        let met = self.processes.get(&pid);
        let met = met.filter(|p| !p.complete && p.exited_ns.is_none());
        let met = met.map(|p| Rc::clone(&p.python));
        let labels_id = self.new_labels();
        match self.processes.get_mut(&parent) {
            Some(known) => {
                known.has_forked = true;
                let mut python = Rc::clone(&known.python);
                if let Some(met) = met.filter(|met| !met.is_empty()) {
                    Rc::make_mut(&mut python).join(&met);
                }
                let child = Process {
                    python,
                    labels: Rc::new(known.labels.renewed(labels_id)),
                    parent,
                    exited_ns: None,
                    is_fork: true,
                    has_forked: false,
                    headless: false,
                    ..Process::clone(known)
                };
                self.processes.insert(pid, Box::new(child));
            }
            // Whatever had this id before is gone.
            None => self.remove(pid),
        }
        false
    }

    fn map(&mut self, pid: u32, map: &MapEvent) -> bool {
        let Some(end) = map.start.checked_add(map.len) else {
            return false;
        };
        let file = self.files.intern(&map.file);
        let version = self.new_version();
        let process = self.entry(pid);
        let space = Rc::make_mut(&mut process.space);
        space.version = version;
        space.generated.note(&map.file.path);
        space.insert(Mapping {
            start: map.start,
            end,
            file_offset: map.file_offset,
            file,
        });
        true
    }

    fn snapshot(&mut self, pid: u32, comm: &str, maps: &[MapEvent]) {
        // A new identity even if it was known: an exec may be among the events
        // that were lost.
        let mut space = self.new_space();
        for map in maps {
            let Some(end) = map.start.checked_add(map.len) else {
                continue;
            };
            let file = self.files.intern(&map.file);
            space.generated.note(&map.file.path);
            space.insert(Mapping {
                start: map.start,
                end,
                file_offset: map.file_offset,
                file,
            });
        }
        let process = self.entry(pid);
        comm.clone_into(&mut process.comm);
        process.complete = true;
        // The same files at the same addresses: it is the same image, and samples of
        // it that are on their way stay valid.
        if process.space.maps != space.maps {
            process.space = Rc::new(space);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FileKey;

    fn key(path: &str) -> FileKey {
        FileKey {
            path: path.into(),
            build_id: None,
            device: 1,
            inode: path.bytes().fold(7, |n, byte| n * 31 + u64::from(byte)),
            version: 0,
        }
    }

    fn event(pid: u32, kind: ProcessEventKind) -> ProcessEvent {
        ProcessEvent {
            time_ns: 1,
            pid,
            tid: pid,
            kind,
        }
    }

    fn map(pid: u32, start: u64, len: u64, path: &str) -> ProcessEvent {
        let map = MapEvent {
            start,
            len,
            file_offset: 0,
            file: key(path),
        };
        event(pid, ProcessEventKind::Map(map))
    }

    fn path(table: &ProcessTable, pid: u32, address: u64) -> Option<(String, u64)> {
        let mapping = *table.get(pid)?.space.find(address)?;
        let offset = address - mapping.start + mapping.file_offset;
        Some((table.files.key(mapping.file)?.path.clone(), offset))
    }

    #[test]
    fn later_mappings_replace_earlier_ones_where_they_overlap() {
        let mut table = ProcessTable::default();
        table.apply(&event(1, ProcessEventKind::Exec { comm: "a".into() }));
        table.apply(&map(1, 0x1000, 0x4000, "/old"));
        table.apply(&map(1, 0x2000, 0x1000, "/new"));
        assert_eq!(path(&table, 1, 0x1fff), Some(("/old".into(), 0xfff)));
        assert_eq!(path(&table, 1, 0x2000), Some(("/new".into(), 0)));
        assert_eq!(path(&table, 1, 0x3000), Some(("/old".into(), 0x2000)));
        assert_eq!(path(&table, 1, 0x5000), None);
        assert_eq!(path(&table, 1, 0x0fff), None);
    }

    #[test]
    fn a_fork_shares_until_one_side_changes_and_exec_starts_afresh() {
        let mut table = ProcessTable::default();
        table.apply(&event(1, ProcessEventKind::Exec { comm: "a".into() }));
        table.apply(&map(1, 0x1000, 0x1000, "/a"));
        table.apply(&event(2, ProcessEventKind::Fork { parent: 1 }));
        assert_eq!(
            table.get(1).unwrap().space.version,
            table.get(2).unwrap().space.version
        );
        table.apply(&map(2, 0x8000, 0x1000, "/b"));
        assert_eq!(path(&table, 1, 0x8000), None);
        assert!(path(&table, 2, 0x8000).is_some() && path(&table, 2, 0x1000).is_some());
        assert_eq!(
            table.get(1).unwrap().space.id,
            table.get(2).unwrap().space.id
        );
        table.apply(&event(2, ProcessEventKind::Exec { comm: "b".into() }));
        assert_eq!(path(&table, 2, 0x1000), None);
        assert_ne!(
            table.get(1).unwrap().space.id,
            table.get(2).unwrap().space.id
        );
        assert_eq!(table.get(2).unwrap().comm, "b");
    }

    #[test]
    fn a_fork_of_an_unknown_parent_shares_what_both_turn_out_to_have() {
        let mut table = ProcessTable::default();
        let snapshot = |pid, path: &str| {
            let ProcessEventKind::Map(map) = map(pid, 0x1000, 0x1000, path).kind else {
                unreachable!()
            };
            let comm = "a".to_string();
            let maps = vec![map];
            event(pid, ProcessEventKind::Snapshot { comm, maps })
        };
        table.apply(&event(2, ProcessEventKind::Fork { parent: 1 }));
        table.apply(&event(3, ProcessEventKind::Fork { parent: 1 }));
        table.apply(&snapshot(1, "/a"));
        table.apply(&snapshot(2, "/a"));
        table.apply(&snapshot(3, "/b"));
        let space = table.get(1).unwrap().space.id;
        assert_ne!(table.get(2).unwrap().space.id, space);
        assert!(table.shares(2, space));
        assert!(!table.shares(3, space), "another program since");
        assert!(!table.shares(2, 4711) && !table.shares(9, space));
    }

    #[test]
    fn hostile_mappings_do_not_wrap() {
        let mut table = ProcessTable::default();
        assert!(!table.apply(&map(1, u64::MAX - 10, 100, "/a")));
        table.apply(&map(1, 0, u64::MAX, "/a"));
        table.apply(&map(1, 5, 0, "/b"));
        assert!(path(&table, 1, 77).is_some());
    }
}
