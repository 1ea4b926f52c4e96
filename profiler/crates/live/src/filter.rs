//! Which samples are wanted: all, those of chosen processes and their
//! descendants, those of a control group, those of processes by name, user and
//! container.

use super::{
    bpf::MapWriter,
    config::RecordConfig,
    owner, procfs,
    session::{CollectError, cgroup_id},
};
use crate::cgroup;
use aiprof_model::process::ProcessTable;
use aiprof_model::wire::{ProcessEvent, ProcessEventKind, Sample};
use aiprof_record::choice::ProcessChoice;
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::{Duration, Instant};

/// Puts a process where the programs at probes look. One that finds no room there is
/// found by its parents, as long as they live.
fn choose(kernel: &MapWriter, pid: u32) {
    if let Err(error) = kernel.set(&pid, &1u32) {
        tracing::debug!("calls of process {pid} may be missing: {error}");
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
    /// COMMAND's process until its exec, with `--only`: until then it runs the profiler's own
    /// code.
    not_executed: Option<u32>,
    /// Path of the chosen control group below the mount; `None`: all.
    cgroup: Option<(u64, String)>,
    /// By name, user and container.
    choice: ProcessChoice,
    /// Whether containers may be in control groups of version 1 alone, whose processes
    /// must be asked.
    has_v1: bool,
    verdicts: FxHashMap<u64, bool>,
    /// The users of processes, and since when they are known.
    users: FxHashMap<u32, (Option<u32>, Instant)>,
    /// Whether processes are in the group and container, and since when that is known.
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
        let command = config.pids.first().filter(|_| config.only_command);
        Ok(Self {
            pids,
            not_executed: command.copied(),
            cgroup,
            choice: config.choice.clone(),
            has_v1: cgroup::has_version_1(),
            verdicts: FxHashMap::default(),
            users: FxHashMap::default(),
            members: FxHashMap::default(),
            kernel: None,
        })
    }

    /// Gives the chosen processes to the programs at probes, and new ones from now on.
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

    /// Follows forks, and COMMAND's start.
    pub fn note(&mut self, event: &ProcessEvent) {
        // The exec event may be lost: then a mapping shows that the program runs, and after
        // any lost events it is assumed to.
        let is_lost = matches!(event.kind, ProcessEventKind::Lost { .. });
        let starts = matches!(
            event.kind,
            ProcessEventKind::Exec { .. } | ProcessEventKind::Map(_)
        );
        self.not_executed
            .take_if(|pid| is_lost || starts && *pid == event.pid);
        if let ProcessEventKind::Fork { parent } = event.kind
            && event.pid != parent
        {
            self.inherit(event.pid, parent);
        }
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

    /// A new process is its parent's user's: it may have ended before it can be asked.
    fn inherit(&mut self, pid: u32, parent: u32) {
        if self.choice.users.is_empty() {
            return;
        }
        self.user_of(parent);
        match self.users.get(&parent).copied() {
            Some(known) => self.users.insert(pid, known),
            None => self.users.remove(&pid),
        };
    }

    /// A process is gone for good.
    pub fn forget(&mut self, pid: u32) {
        self.drop_pid(pid);
        self.members.remove(&pid);
        self.users.remove(&pid);
    }

    fn drop_pid(&mut self, pid: u32) {
        let was = self.pids.as_mut().is_some_and(|pids| pids.remove(&pid));
        if let Some(kernel) = self.kernel.as_ref().filter(|_| was) {
            kernel.remove(&pid);
        }
    }

    /// Whether a sample belongs to the profile.
    pub fn wants(&mut self, sample: &Sample, processes: &ProcessTable) -> bool {
        let pid = sample.thread.pid;
        self.is_chosen(pid, Some(&sample.thread.comm), processes)
            && match self.asks_processes() {
                true => self.is_member(pid),
                false => self.in_group(sample.cgroup),
            }
    }

    /// Whether calls of a process belong to the profile.
    pub(crate) fn wants_process(&mut self, pid: u32, processes: &ProcessTable) -> bool {
        self.is_chosen(pid, None, processes) && self.is_member(pid)
    }

    /// Whether a process is wanted by its id, name and user; `thread` is the name of one
    /// of its threads.
    fn is_chosen(&mut self, pid: u32, thread: Option<&str>, processes: &ProcessTable) -> bool {
        let is_other = self.pids.as_ref().is_some_and(|pids| !pids.contains(&pid));
        if is_other || self.not_executed == Some(pid) {
            return false;
        }
        if self.choice.is_all() {
            return true;
        }
        // Named as its samples are.
        let name = processes.get(pid).map(|process| process.comm.as_str());
        let name = name.filter(|name| !name.is_empty()).or(thread);
        self.choice.wants_name(name.unwrap_or_default())
            && (self.choice.users.is_empty() || {
                let user = self.user_of(pid);
                self.choice.wants_user(user)
            })
    }

    /// The user of a process; known for a second.
    fn user_of(&mut self, pid: u32) -> Option<u32> {
        let known = self.users.get(&pid).copied();
        if let Some((user, since)) = known
            && since.elapsed() < MEMBER_FOR
        {
            return user;
        }
        // One that has gone meanwhile stays what it was.
        let user = owner::uid_of(pid).or_else(|| known.and_then(|(user, _)| user));
        if self.users.len() >= MAX_CGROUPS {
            self.users.clear();
        }
        self.users.insert(pid, (user, Instant::now()));
        user
    }

    /// Whether a sample's control group does not show the container, so that processes must.
    fn asks_processes(&self) -> bool {
        self.has_v1 && !self.choice.containers.is_empty()
    }

    /// Whether a process is in the chosen control group and container now; known for a
    /// second.
    fn is_member(&mut self, pid: u32) -> bool {
        if self.cgroup.is_none() && self.choice.containers.is_empty() {
            return true;
        }
        if let Some((verdict, since)) = self.members.get(&pid)
            && since.elapsed() < MEMBER_FOR
        {
            return *verdict;
        }
        // One that has gone meanwhile stays what it was.
        let verdict = match cgroup::path_of_process(pid) {
            Some(own) => {
                let chosen = self.cgroup.as_ref();
                chosen.is_none_or(|(_, path)| is_below(path, &own)) && self.has_container(pid, &own)
            }
            None if self.asks_processes() && self.cgroup.is_none() && procfs::exists(pid) => {
                self.has_container(pid, "")
            }
            None => self.members.get(&pid).is_some_and(|(verdict, _)| *verdict),
        };
        if self.members.len() >= MAX_CGROUPS {
            self.members.clear();
        }
        self.members.insert(pid, (verdict, Instant::now()));
        verdict
    }

    /// Whether a process with this path of version 2 is in a chosen container.
    fn has_container(&self, pid: u32, own: &str) -> bool {
        let choice = &self.choice;
        choice.wants_cgroup(own)
            || self.asks_processes()
                && cgroup::paths_of_process(pid)
                    .iter()
                    .any(|path| choice.wants_cgroup(path))
    }

    /// Whether a control group is in the chosen one and of a chosen container.
    fn in_group(&mut self, id: u64) -> bool {
        let (chosen, choice) = (self.cgroup.as_ref(), &self.choice);
        if choice.containers.is_empty() && chosen.is_none_or(|(wanted, _)| id == *wanted) {
            return true;
        }
        if self.verdicts.len() >= MAX_CGROUPS {
            self.verdicts.clear();
        }
        *self.verdicts.entry(id).or_insert_with(|| {
            cgroup::path_of(id).is_some_and(|own| {
                chosen.is_none_or(|(_, path)| is_below(path, &own)) && choice.wants_cgroup(&own)
            })
        })
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

#[cfg(test)]
mod tests {
    use super::is_below;

    #[test]
    fn a_group_is_below_itself_and_those_around_it_only() {
        for own in ["/", "/a", "/a/b", "/a/b/c"] {
            assert!(is_below("/", own), "{own}");
        }
        assert!(is_below("/a/b", "/a/b") && is_below("/a/b", "/a/b/c"));
        for own in ["/a", "/a/bc", "/a/bc/d", "/x/a/b"] {
            assert!(!is_below("/a/b", own), "{own}");
        }
    }
}
