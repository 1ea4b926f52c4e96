//! Which samples are wanted: all, those of chosen processes and their
//! descendants, those of a control group.

use super::{
    bpf::MapWriter,
    config::RecordConfig,
    procfs,
    session::{CollectError, cgroup_id},
};
use crate::cgroup;
use aiprof_model::wire::{ProcessEvent, ProcessEventKind, Sample};
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::{Duration, Instant};

/// Puts a process where the programs at probes look. One that finds no room there is
/// found by its parents, as long as they live.
fn choose(kernel: &MapWriter, pid: u32) {
    if let Err(error) = kernel.set(&pid, &1u32) {
        tracing::debug!("calls of process {pid} are perhaps not recorded: {error}");
    }
}

/// Most control groups whose verdict is remembered.
const MAX_CGROUPS: usize = 65_536;
/// How long a process is taken to be in a control group once it was looked at.
const MEMBER_FOR: Duration = Duration::from_secs(1);

/// The choice.
pub struct Filter {
    /// Chosen processes and their descendants; `None`: all.
    pids: Option<FxHashSet<u32>>,
    /// Path of the chosen control group below the mount; `None`: all.
    cgroup: Option<(u64, String)>,
    verdicts: FxHashMap<u64, bool>,
    /// Whether processes are in it, and since when that is known.
    members: FxHashMap<u32, (bool, Instant)>,
    /// Where the programs at probes look the chosen processes up.
    kernel: Option<MapWriter>,
}

impl Filter {
    /// From the configuration; descendants that run already are included.
    ///
    /// # Errors
    /// The control group does not exist.
    pub fn new(config: &RecordConfig) -> Result<Self, CollectError> {
        let cgroup = match &config.cgroup {
            Some(path) => {
                let id = cgroup_id(path)?;
                let name = cgroup::path_of(id).ok_or_else(|| {
                    CollectError::Unsupported(format!(
                        "{}: not in a mounted cgroup v2 hierarchy",
                        path.display()
                    ))
                })?;
                Some((id, name))
            }
            None => None,
        };
        let pids = (!config.pids.is_empty()).then(|| descendants(&config.pids));
        Ok(Self {
            pids,
            cgroup,
            verdicts: FxHashMap::default(),
            members: FxHashMap::default(),
            kernel: None,
        })
    }

    /// Tells the programs at probes of the chosen processes, from now on.
    pub(crate) fn confine(&mut self, kernel: MapWriter) {
        for &pid in self.pids.iter().flatten() {
            choose(&kernel, pid);
        }
        self.kernel = Some(kernel);
    }

    /// The chosen processes; empty: all.
    pub fn chosen(&self) -> Vec<u32> {
        self.pids.iter().flatten().copied().collect()
    }

    /// Follows forks.
    pub fn note(&mut self, event: &ProcessEvent) {
        if let (Some(pids), ProcessEventKind::Fork { parent }) = (&mut self.pids, &event.kind) {
            if pids.contains(parent) {
                pids.insert(event.pid);
                if let Some(kernel) = &self.kernel {
                    choose(kernel, event.pid);
                }
            } else {
                // A new process under the id of a chosen one that has gone.
                self.drop_pid(event.pid);
            }
        }
    }

    /// A process is gone for good.
    pub fn forget(&mut self, pid: u32) {
        self.drop_pid(pid);
        self.members.remove(&pid);
    }

    fn drop_pid(&mut self, pid: u32) {
        let was = self.pids.as_mut().is_some_and(|pids| pids.remove(&pid));
        if let Some(kernel) = self.kernel.as_ref().filter(|_| was) {
            kernel.remove(&pid);
        }
    }

    /// Whether a sample belongs to the profile.
    pub fn wants(&mut self, sample: &Sample) -> bool {
        self.pids
            .as_ref()
            .is_none_or(|pids| pids.contains(&sample.thread.pid))
            && self.in_cgroup(sample.cgroup)
    }

    /// Whether calls of a process belong to the profile.
    pub(crate) fn wants_process(&mut self, pid: u32) -> bool {
        self.pids.as_ref().is_none_or(|pids| pids.contains(&pid)) && self.is_member(pid)
    }

    /// Whether a process is in the chosen control group now; known for a second.
    fn is_member(&mut self, pid: u32) -> bool {
        let Some((_, path)) = &self.cgroup else {
            return true;
        };
        if let Some((verdict, since)) = self.members.get(&pid)
            && since.elapsed() < MEMBER_FOR
        {
            return *verdict;
        }
        // One that has gone meanwhile stays what it was.
        let verdict = match cgroup::path_of_process(pid) {
            Some(own) => is_below(path, &own),
            None => self.members.get(&pid).is_some_and(|(verdict, _)| *verdict),
        };
        if self.members.len() >= MAX_CGROUPS {
            self.members.clear();
        }
        self.members.insert(pid, (verdict, Instant::now()));
        verdict
    }

    fn in_cgroup(&mut self, id: u64) -> bool {
        let Some((wanted, path)) = &self.cgroup else {
            return true;
        };
        if id == *wanted {
            return true;
        }
        if self.verdicts.len() >= MAX_CGROUPS {
            self.verdicts.clear();
        }
        *self
            .verdicts
            .entry(id)
            .or_insert_with(|| cgroup::path_of(id).is_some_and(|own| is_below(path, &own)))
    }
}

/// Whether a control group is `path` or one below it.
fn is_below(path: &str, own: &str) -> bool {
    let below = |rest: &str| rest.is_empty() || rest.starts_with('/');
    path == "/" || own.strip_prefix(path).is_some_and(below)
}

/// The processes and all that descend from them now.
fn descendants(pids: &[u32]) -> FxHashSet<u32> {
    let mut found: FxHashSet<u32> = pids.iter().copied().collect();
    let processes = procfs::processes();
    loop {
        let before = found.len();
        for process in &processes {
            if found.contains(&process.parent) {
                found.insert(process.pid);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}
