//! Who is in a recording: processes and threads, by the names and labels they had last.

use crate::aggregate::NameSource;
use aiprof_model::{
    labels::{self, LabelSet},
    process::ProcessTable,
    timeline::recorded::ProcessRow,
    wire::{Event, ProcessEvent, ProcessEventKind},
};
use rustc_hash::FxHashMap;
use std::{collections::BTreeMap, rc::Rc};

/// Most threads that are named.
const MAX_THREADS: usize = 1 << 17;
/// Most threads alive whose names are remembered: all that the kernel can have.
const MAX_ALIVE: usize = 1 << 22;

/// Follows processes and threads.
#[derive(Debug, Default)]
pub(super) struct ProcessTracks {
    /// Names of the threads alive, by id.
    alive: FxHashMap<u32, Box<str>>,
    /// Names of threads with something to show, by process and thread.
    pub(super) threads: BTreeMap<(u32, u32), Box<str>>,
    /// Their processes.
    pub(super) processes: BTreeMap<u32, ProcessRow>,
    /// Labels of processes, and their control groups: 0 where it is not known.
    places: FxHashMap<u32, (Rc<LabelSet>, u64)>,
    /// Names of processes at their first submission, also of those without a track.
    submitters: FxHashMap<u32, Box<str>>,
}

impl ProcessTracks {
    /// Takes an event in.
    pub(super) fn event(&mut self, processes: &ProcessTable, event: &Event) {
        match event {
            Event::Process(event) => self.process(event),
            Event::Sample(sample) => {
                let thread = &sample.thread;
                self.placed(processes, thread.pid, sample.cgroup);
                self.seen(thread.pid, thread.tid, Some(&thread.comm));
            }
            Event::CallStack(stack) => {
                let thread = &stack.sample.thread;
                self.placed(processes, thread.pid, stack.sample.cgroup);
                self.rename(thread.tid, &thread.comm);
            }
            Event::Trace(trace) if !self.submitters.contains_key(&trace.pid) => {
                let name = self.alive.get(&trace.pid);
                if let Some(name) = name.filter(|_| self.submitters.len() < MAX_THREADS) {
                    self.submitters.insert(trace.pid, name.clone());
                }
            }
            _ => {}
        }
    }

    /// A thread has made a call.
    pub(super) fn called(&mut self, pid: u32, tid: u32) {
        if let Some(process) = self.seen(pid, tid, None) {
            process.has_calls = true;
        }
    }

    /// A thread has waited.
    pub(super) fn waited(&mut self, processes: &ProcessTable, pid: u32, tid: u32) {
        self.placed(processes, pid, 0);
        self.seen(pid, tid, None);
    }

    /// A thread has a range.
    pub(super) fn marked(&mut self, pid: u32, tid: u32) {
        self.seen(pid, tid, None);
    }

    /// Remembers the labels of a process: they may become known later.
    fn placed(&mut self, processes: &ProcessTable, pid: u32, cgroup: u64) {
        let Some(process) = processes.get(pid) else {
            return;
        };
        let is_full = self.places.len() >= MAX_THREADS;
        match self.places.get_mut(&pid) {
            Some((set, known)) => {
                if set.id != process.labels.id {
                    *set = Rc::clone(&process.labels);
                }
                if cgroup != 0 {
                    *known = cgroup;
                }
            }
            None if is_full => {}
            None => {
                let place = (Rc::clone(&process.labels), cgroup);
                self.places.insert(pid, place);
            }
        }
    }

    /// Gives the processes with tracks their labels.
    pub(super) fn label(&mut self, names: &dyn NameSource, processes: &ProcessTable) {
        let of_recording = processes.recording_labels.to_vec();
        // Also of those with calls alone, of which no stack was recorded.
        let shown: Vec<u32> = self.processes.keys().copied().collect();
        for pid in shown {
            self.placed(processes, pid, 0);
        }
        for (pid, process) in &mut self.processes {
            let place = self.places.get(pid);
            let cgroup = place.and_then(|(_, cgroup)| names.cgroup(*cgroup));
            let own = place.map(|(set, _)| set.to_vec()).unwrap_or_default();
            process.labels = labels::shown(cgroup, &own, &of_recording);
        }
    }

    /// The name of a process with tracks; `process` if it has none.
    pub(super) fn process_name(&self, pid: u32) -> &str {
        let process = self.processes.get(&pid);
        let name = process.map(|process| &*process.name);
        name.filter(|name| !name.is_empty()).unwrap_or("process")
    }

    /// The name of a process that submitted work, or ended it.
    pub(super) fn submitter(&self, pid: u32) -> &str {
        let process = self.processes.get(&pid).map(|process| &process.name);
        let name = process.filter(|name| !name.is_empty());
        let name = name.or_else(|| self.submitters.get(&pid));
        name.map_or("submission", |name| name)
    }

    /// The name of a thread with tracks.
    pub(super) fn thread_name(&self, pid: u32, tid: u32) -> Option<&str> {
        self.threads.get(&(pid, tid)).map(|name| &**name)
    }

    fn process(&mut self, event: &ProcessEvent) {
        match &event.kind {
            ProcessEventKind::Exec { comm } | ProcessEventKind::Snapshot { comm, .. } => {
                self.rename(event.pid, comm);
            }
            ProcessEventKind::Comm { comm } => self.rename(event.tid, comm),
            ProcessEventKind::Fork { parent } => {
                if let Some(name) = self.alive.get(parent).cloned() {
                    self.rename(event.tid, &name);
                }
            }
            ProcessEventKind::Exit => drop(self.alive.remove(&event.tid)),
            _ => {}
        }
    }

    fn rename(&mut self, tid: u32, name: &str) {
        if self.alive.get(&tid).is_some_and(|known| **known == *name) {
            return;
        }
        if self.alive.len() < MAX_ALIVE || self.alive.contains_key(&tid) {
            self.alive.insert(tid, name.into());
        }
    }

    /// A thread that has something to show, with its name and its process's as they are
    /// now; `None` if there are too many.
    fn seen(&mut self, pid: u32, tid: u32, name: Option<&str>) -> Option<&mut ProcessRow> {
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&(pid, tid)) {
            return None;
        }
        let own = name.or_else(|| self.alive.get(&tid).map(|name| &**name));
        let of_process = self.alive.get(&pid).map(|name| &**name);
        set(self.threads.entry((pid, tid)).or_default(), own, of_process);
        let process = self.processes.entry(pid).or_default();
        // If a process's main thread is unknown, any name is better than none.
        set(&mut process.name, of_process, own);
        Some(process)
    }
}

/// Sets a name to `best`, or to `other` if it has none and there is no better.
fn set(name: &mut Box<str>, best: Option<&str>, other: Option<&str>) {
    let other = other.filter(|_| name.is_empty());
    if let Some(new) = best.or(other).filter(|new| **new != **name) {
        *name = new.into();
    }
}
