//! Which processes are known: their files are read, their unwind
//! tables are where the sampler finds them, their runtimes are probed.
//!
//! No event shows that a process has everything: it maps libraries whenever it likes. So a process
//! is known when nothing about it is being read or attached to any more, and it has mapped nothing
//! new for a moment.

use super::{probes::Probes, processes::LiveProcesses};
use crate::procfs;
use aiprof_model::{
    process::ProcessTable,
    wire::{ProcessEvent, ProcessEventKind},
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::{Duration, Instant};

/// How long a process must not have mapped code: a program that starts maps its libraries
/// one after the other.
const SETTLED: Duration = Duration::from_millis(100);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(20);
/// Most processes that are looked at.
const MAX_CANDIDATES: usize = 4096;

/// A process that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownProcess {
    /// Its id.
    pub pid: u32,
    /// Whether it is one that [`Session::follow_known`](super::Session::follow_known) is about;
    /// else it was requested.
    pub is_followed: bool,
}

/// The processes that commands wait for, and which of them are known.
#[derive(Debug, Default)]
pub struct KnownProcesses {
    /// Whether children of processes are followed.
    follows: bool,
    /// COMMAND's process; it comes first, unless it has ended.
    command: Option<u32>,
    /// It has not executed COMMAND yet, and is this program.
    is_held: bool,
    /// Processes of interest.
    family: FxHashSet<u32>,
    /// Those of them, and those that were requested, that are not known; since when they
    /// are as they are.
    candidates: FxHashMap<u32, Instant>,
    known: FxHashSet<u32>,
    /// Those that were requested, and are not known.
    requested: FxHashSet<u32>,
    /// Those that were requested, and have ended since `take_ended` was called last.
    ended: Vec<u32>,
    /// Known since `take` was called last.
    fresh: Vec<KnownProcess>,
    looked: Option<Instant>,
}

impl KnownProcesses {
    /// [`KnownProcesses::take`] returns this process too once it is known, or
    /// [`KnownProcesses::take_ended`] if it ends before. `false`: there is none, or too many are
    /// looked at.
    pub fn request(&mut self, pid: u32) -> bool {
        if !procfs::exists(pid) {
            return false;
        }
        self.await_one(pid, Instant::now());
        let is_looked_at = self.candidates.contains_key(&pid);
        if is_looked_at {
            self.requested.insert(pid);
        }
        is_looked_at
    }

    /// The processes of [`KnownProcesses::request`] that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.ended)
    }

    /// Whether a process is known, and lives.
    pub fn contains(&self, pid: u32) -> bool {
        self.known.contains(&pid)
    }

    /// The processes that have become known since the last call, in that order, each of them once.
    /// For a known process:
    ///
    /// * all files that it had mapped as code were read, if they could be;
    /// * the kernel side has its mappings and all unwind tables that were asked for;
    /// * the functions of runtimes in these files are probed, where probes were asked for;
    /// * no names of its kernels are being looked for;
    /// * it had mapped no more code for a tenth of a second.
    ///
    /// What it maps later is read then.
    pub fn take(&mut self) -> Vec<KnownProcess> {
        std::mem::take(&mut self.fresh)
    }

    /// Whether there is something to take.
    pub(super) fn has_news(&self) -> bool {
        !self.fresh.is_empty() || !self.ended.is_empty()
    }

    /// Looks which processes are known now.
    pub(super) fn look(
        &mut self,
        probes: &mut Probes,
        processes: &mut LiveProcesses,
        table: &ProcessTable,
    ) {
        let settled = self.settled(Instant::now());
        if settled.is_empty() || probes.is_attaching() {
            return;
        }
        for pid in settled {
            if !self.waits_for_command(pid)
                && processes.is_all_read(pid, table)
                && !probes.is_searching(pid)
            {
                self.found(pid);
            }
        }
    }

    /// A process event was recorded.
    pub(super) fn recorded(&mut self, event: &ProcessEvent) {
        if self.follows || !self.candidates.is_empty() || !self.known.is_empty() {
            self.note(event, Instant::now());
        }
    }

    /// Follows COMMAND, if there is one, these processes, and the children of all.
    pub(super) fn follow(&mut self, command: Option<u32>, others: &[u32], now: Instant) {
        self.follows = true;
        self.command = command;
        self.is_held = command.is_some();
        self.family.extend(command);
        for &pid in others {
            self.family.insert(pid);
            self.await_one(pid, now);
        }
    }

    /// Somebody wants to know it of this process.
    fn await_one(&mut self, pid: u32, now: Instant) {
        let is_held = self.is_held && self.command == Some(pid);
        if !is_held && !self.known.contains(&pid) && self.candidates.len() < MAX_CANDIDATES {
            self.candidates.entry(pid).or_insert(now);
        }
    }

    /// Something happened to a process.
    fn note(&mut self, event: &ProcessEvent, now: Instant) {
        let pid = event.pid;
        match &event.kind {
            ProcessEventKind::Fork { parent } if pid != *parent => {
                self.gone(pid);
                if self.family.contains(parent) {
                    self.family.insert(pid);
                    self.await_one(pid, now);
                }
            }
            ProcessEventKind::Exec { .. } => {
                if self.command == Some(pid) && std::mem::take(&mut self.is_held) {
                    self.await_one(pid, now);
                }
                self.changed(pid, now);
            }
            ProcessEventKind::Map(_) | ProcessEventKind::Snapshot { .. } => self.changed(pid, now),
            ProcessEventKind::Exit if pid == event.tid => self.gone(pid),
            _ => {}
        }
    }

    fn changed(&mut self, pid: u32, now: Instant) {
        if let Some(since) = self.candidates.get_mut(&pid) {
            *since = now;
        }
    }

    /// A process has ended: its number is another's from here on.
    fn gone(&mut self, pid: u32) {
        self.family.remove(&pid);
        self.candidates.remove(&pid);
        self.known.remove(&pid);
        if self.requested.remove(&pid) {
            self.ended.push(pid);
        }
        if self.command == Some(pid) {
            self.command = None;
        }
    }

    /// Those that have not changed for a while, COMMAND first; empty: it is too early to
    /// look again.
    fn settled(&mut self, now: Instant) -> Vec<u32> {
        let is_early = |looked: Instant| now.saturating_duration_since(looked) < LOOK;
        if self.candidates.is_empty() || self.looked.is_some_and(is_early) {
            return Vec::new();
        }
        self.looked = Some(now);
        let is_old = |since: &Instant| now.saturating_duration_since(*since) >= SETTLED;
        let old = self.candidates.iter().filter(|(_, since)| is_old(since));
        let mut settled: Vec<u32> = old.map(|(pid, _)| *pid).collect();
        settled.sort_unstable_by_key(|pid| (self.command != Some(*pid), *pid));
        settled
    }

    /// Whether a process must wait until COMMAND is known.
    fn waits_for_command(&self, pid: u32) -> bool {
        let command = self.command.filter(|command| *command != pid);
        command.is_some_and(|command| self.family.contains(&pid) && !self.known.contains(&command))
    }

    /// A process is known.
    fn found(&mut self, pid: u32) {
        self.candidates.remove(&pid);
        self.requested.remove(&pid);
        if self.known.insert(pid) {
            let is_followed = self.family.contains(&pid);
            self.fresh.push(KnownProcess { pid, is_followed });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(pid: u32, kind: ProcessEventKind) -> ProcessEvent {
        ProcessEvent {
            time_ns: 0,
            pid,
            tid: pid,
            kind,
        }
    }

    fn fork(pid: u32, parent: u32) -> ProcessEvent {
        event(pid, ProcessEventKind::Fork { parent })
    }

    fn exec(pid: u32) -> ProcessEvent {
        event(pid, ProcessEventKind::Exec { comm: "x".into() })
    }

    #[test]
    fn command_counts_from_its_exec_and_comes_first() {
        let mut known = KnownProcesses::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        known.follow(Some(100), &[], start);
        // Before its exec it is this program, whoever asks.
        known.await_one(100, start);
        assert!(known.settled(at(500)).is_empty());
        known.note(&exec(100), at(600));
        known.note(&fork(50, 100), at(610));
        known.note(&fork(51, 7), at(610));
        assert!(known.settled(at(650)).is_empty());
        assert_eq!(known.settled(at(800)), [100, 50]);
        // Not so soon again.
        assert!(known.settled(at(810)).is_empty());
        assert!(known.waits_for_command(50) && !known.waits_for_command(100));
        // What was asked for by others does not wait.
        assert!(!known.waits_for_command(51));
        known.found(100);
        assert!(!known.waits_for_command(50));
        known.found(50);
        known.found(51);
        let fresh = known.fresh.iter().map(|one| (one.pid, one.is_followed));
        assert!(fresh.eq([(100, true), (50, true), (51, false)]));
        // Once only.
        known.await_one(100, at(900));
        known.note(&exec(100), at(900));
        assert!(known.settled(at(2000)).is_empty());
    }

    #[test]
    fn what_maps_code_is_not_known_yet_and_who_has_ended_never() {
        let mut known = KnownProcesses::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        known.follow(Some(1), &[2], start);
        known.note(&exec(1), start);
        let snapshot = ProcessEventKind::Snapshot {
            comm: String::new(),
            maps: Vec::new(),
        };
        known.note(&event(2, snapshot), at(80));
        assert_eq!(known.settled(at(120)), [1]);
        assert_eq!(known.settled(at(200)), [1, 2]);
        // COMMAND has ended: its children wait no longer.
        known.note(&fork(3, 1), at(200));
        assert!(known.waits_for_command(3));
        known.note(&event(1, ProcessEventKind::Exit), at(210));
        assert!(!known.waits_for_command(3));
        assert_eq!(known.settled(at(400)), [2, 3]);
        known.found(3);
        // Another process of this number is not of interest, and not known.
        known.note(&fork(3, 77), at(500));
        assert!(!known.known.contains(&3) && !known.family.contains(&3));
    }
}
