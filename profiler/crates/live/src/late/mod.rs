//! Names of kernels that were created before the recording began.
//!
//! No probe saw their creation. A thread of its own searches the memory of programs that were
//! already running. It looks for the names that their device images declare, and for the way from
//! kernel handles to names (see [`inspect`]). It searches once ahead, because a launch may be the
//! last thing that a program does. It searches again as soon as a kernel is launched whose name is
//! not known. The way depends only on the driver's build, so the way that one process taught serves
//! for all others. A kernel whose name is not certain stays unnamed.
//!
//! What was read is true of the time of reading. A handle may have meant another kernel when it was
//! launched. So everything that happened up to the reading is taken in before a name is given. A
//! handle that was destroyed or created in between gets no name.
//!
//! [`inspect`]: super::inspect

mod program;
mod worker;

use super::{inspect::path::NamePath, owner};
use aiprof_model::wire::KernelNamed;
use aiprof_record::correlate::{KernelEvent, KernelStep};
use program::LateProgram;
use rustc_hash::{FxHashMap, FxHashSet};
use std::{
    sync::mpsc::{Receiver, Sender},
    time::{Duration, Instant},
};
use worker::{LateAnswer, LateWanted, SearchAnswer, SearchRequest, WantedNames};

/// Most processes followed.
const MAX_PROCESSES: usize = 1024;
/// Most processes looked at ahead.
const MAX_AHEAD: usize = 64;

/// A build of a driver: a hash of the builds of a process's probed libraries.
pub(crate) type Build = u64;

/// Follows kernels and finds the names of those it did not see created.
#[derive(Default)]
pub(crate) struct LateKernels {
    programs: FxHashMap<u32, LateProgram>,
    paths: FxHashMap<Build, NamePath>,
    /// What was read before all that happened until then is known.
    held: Vec<SearchAnswer>,
    ready: Vec<KernelNamed>,
    ahead: FxHashSet<u32>,
    /// Those of them that are being looked at.
    looked_at: FxHashSet<u32>,
    worker: Option<(Sender<SearchRequest>, Receiver<SearchAnswer>)>,
}

impl LateKernels {
    /// Looks at a program that runs already. `files`: the paths of its probed
    /// libraries.
    pub(crate) fn look_ahead(&mut self, pid: u32, build: Build, files: Vec<String>) {
        if self.ahead.len() < MAX_AHEAD && self.has_room(pid) && self.ahead.insert(pid) {
            self.programs.entry(pid).or_default();
            self.looked_at.insert(pid);
            self.ask(SearchRequest {
                pid,
                build,
                wanted: LateWanted::Ahead(files),
            });
        }
    }

    /// Whether names of a process's kernels are being looked for.
    pub(crate) fn is_searching(&self, pid: u32) -> bool {
        let program = self.programs.get(&pid);
        self.looked_at.contains(&pid) || program.is_some_and(LateProgram::is_waited_for)
    }

    /// Something happened to a kernel.
    pub(crate) fn kernel(&mut self, event: &KernelEvent) {
        let is_end = event.step == KernelStep::Destroyed;
        if !self.has_room(event.pid) || is_end && !self.programs.contains_key(&event.pid) {
            return;
        }
        let program = self.programs.entry(event.pid).or_default();
        match &event.step {
            KernelStep::Created { name, .. } => program.created(event.handle, name.as_deref()),
            KernelStep::Destroyed => program.destroyed(event.handle),
            KernelStep::Launched => {
                let Some((name, path)) = program.launched(event.handle, event.time_ns) else {
                    return;
                };
                if let Some((build, path)) = path {
                    self.paths.entry(build).or_insert(path);
                }
                self.ready.push(KernelNamed {
                    time_ns: event.time_ns,
                    pid: event.pid,
                    kernel: event.handle,
                    name,
                });
            }
            KernelStep::Located { .. } => {}
        }
    }

    /// Names known at once of kernels launched since the last call.
    pub(crate) fn take_ready(&mut self) -> Vec<KernelNamed> {
        std::mem::take(&mut self.ready)
    }

    /// The process has ended, or has become another program. Gives names that one
    /// more kernel might have proved wrong, but none came.
    pub(crate) fn forget(&mut self, pid: u32, now_ns: u64) -> Vec<KernelNamed> {
        let mut found = Vec::new();
        self.looked_at.remove(&pid);
        if let Some(mut program) = self.programs.remove(&pid) {
            program.believe(pid, now_ns, &mut found);
        }
        found
    }

    fn has_room(&self, pid: u32) -> bool {
        self.programs.len() < MAX_PROCESSES || self.programs.contains_key(&pid)
    }

    /// Starts the searches that are due; `build` gives the driver's build of a process. Returns the
    /// names found since the last call in what was read before `taken_ns`: all that happened until
    /// then has been taken in.
    pub(crate) fn maintain(
        &mut self,
        now: Instant,
        taken_ns: u64,
        build: impl Fn(u32) -> Build,
    ) -> Vec<KernelNamed> {
        let mut found = self.take_ready();
        while let Some(answer) = self.answer() {
            self.held.push(answer);
        }
        for answer in std::mem::take(&mut self.held) {
            if answer.read_ns <= taken_ns {
                self.take(answer, taken_ns, &mut found);
            } else {
                self.held.push(answer);
            }
        }
        let paths = &self.paths;
        let due = self.programs.iter().filter_map(|(pid, program)| {
            let may = program.may_search();
            let build = may.then(|| build(*pid))?;
            program
                .is_due(now, paths.contains_key(&build))
                .then_some((*pid, build))
        });
        let due: Vec<(u32, Build)> = due.collect();
        for (pid, build) in due {
            self.search(pid, build);
        }
        found
    }

    /// Kernels launched that have no name yet.
    #[cfg(test)]
    fn unnamed(&self) -> usize {
        self.programs.values().map(LateProgram::unnamed).sum()
    }

    /// Searches a last time and waits for it: the recording ends.
    pub(crate) fn settle(
        &mut self,
        build: impl Fn(u32) -> Build,
        patience: Duration,
    ) -> Vec<KernelNamed> {
        let open = self.programs.iter().filter(|(_, p)| p.may_search());
        let open: Vec<u32> = open.map(|(pid, _)| *pid).collect();
        let waited = self.programs.iter().filter(|(_, p)| p.is_waited_for());
        let pids = open.iter().copied().chain(waited.map(|(pid, _)| *pid));
        let deadline = Instant::now() + owner::patience_with(pids, patience);
        for pid in open {
            self.search(pid, build(pid));
        }
        let mut found = self.take_ready();
        for answer in std::mem::take(&mut self.held) {
            self.take(answer, u64::MAX, &mut found);
        }
        while self.programs.values().any(LateProgram::is_waited_for) {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = match &self.worker {
                Some((_, answers)) => answers.recv_timeout(left).ok(),
                None => None,
            };
            let Some(answer) = answer else { break };
            self.take(answer, u64::MAX, &mut found);
        }
        for (pid, program) in &mut self.programs {
            program.believe(*pid, u64::MAX, &mut found);
        }
        found
    }

    fn answer(&self) -> Option<SearchAnswer> {
        self.worker.as_ref()?.1.try_recv().ok()
    }

    fn take(&mut self, answer: SearchAnswer, now_ns: u64, found: &mut Vec<KernelNamed>) {
        let Some(program) = self.programs.get_mut(&answer.pid) else {
            return;
        };
        let (pid, read_ns) = (answer.pid, answer.read_ns);
        let mut named = |(kernel, name)| {
            found.push(KernelNamed {
                // In the order of events: all up to here has been taken in.
                time_ns: now_ns.min(super::bpf::perf::monotonic_ns()),
                pid,
                kernel,
                name,
            });
        };
        match answer.found {
            LateAnswer::Ahead(classes) => {
                self.looked_at.remove(&answer.pid);
                program.foreseen(answer.build, classes);
                for (kernel, name, path) in program.foreseen_of_launched(read_ns) {
                    self.paths.entry(answer.build).or_insert(path);
                    named((kernel, name));
                }
            }
            LateAnswer::Names(learned) => {
                let sure = learned.is_proven;
                if let Some(path) = learned.path.filter(|_| sure) {
                    self.paths.insert(answer.build, path);
                }
                let names = program.found(learned.names, read_ns, sure);
                names.into_iter().for_each(named);
            }
        }
    }

    fn search(&mut self, pid: u32, build: Build) {
        let path = self.paths.get(&build).cloned();
        let Some(program) = self.programs.get_mut(&pid) else {
            return;
        };
        let (known, unknown) = program.search(path.is_some());
        tracing::debug!(
            "process {pid}: searching for the names of {} kernels",
            unknown.len()
        );
        self.ask(SearchRequest {
            pid,
            build,
            wanted: LateWanted::Names(WantedNames {
                known,
                unknown,
                path,
            }),
        });
    }

    fn ask(&mut self, request: SearchRequest) {
        if self.worker.is_none() {
            self.worker = worker::start()
                .inspect_err(|error| {
                    tracing::warn!(
                        "cannot start the thread that finds names of kernels that were created \
                         before the recording: {error}"
                    )
                })
                .ok();
        }
        let pid = request.pid;
        let sent = match &self.worker {
            Some((requests, _)) => requests.send(request).is_ok(),
            None => false,
        };
        if sent {
            return;
        }
        self.looked_at.remove(&pid);
        if let Some(program) = self.programs.get_mut(&pid) {
            program.give_up();
        }
    }
}

#[cfg(test)]
mod tests;
