//! The session's part in labels: what is found out of the processes that are sampled.

use super::{CollectError, Session};
use crate::{bpf::perf, cgroup, config::RecordConfig, owner, users::Users};
use aiprof_model::{
    labels::{self, CgroupLabels},
    wire::{Event, ProcessLabels},
};
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Most programs that are remembered to have been looked at.
const MAX_LOOKED: usize = 512;
/// After how long a program's user is looked at once more: daemons change theirs after
/// they have started.
const AGAIN: Duration = Duration::from_secs(1);

/// What was looked at.
#[derive(Debug, Default)]
pub(super) struct Labels {
    users: Users,
    /// Whether control groups of version 1 name containers and units too.
    has_v1: bool,
    /// When each program's labels were looked at, by the number of their set; `None`:
    /// not again.
    looked: FxHashMap<u64, Option<Instant>>,
    /// The programs whose environments were asked for, by process.
    asked: FxHashMap<u32, u64>,
}

impl Labels {
    pub(super) fn new() -> Self {
        Self {
            users: Users::read(),
            has_v1: cgroup::has_version_1(),
            ..Self::default()
        }
    }

    /// Whether a program is to be looked at now, and whether for the first time.
    fn is_due(&mut self, set: u64) -> Option<bool> {
        if self.looked.len() >= MAX_LOOKED {
            self.looked.clear();
        }
        match self.looked.get_mut(&set) {
            None => {
                self.looked.insert(set, Some(Instant::now()));
                Some(true)
            }
            Some(at) => {
                at.filter(|at| at.elapsed() >= AGAIN)?;
                *at = None;
                Some(false)
            }
        }
    }

    /// What is known without asking: the user, and where version 2 does not tell it the
    /// container, pod and unit.
    fn of_process(&self, pid: u32, uid: u32) -> Vec<(String, String)> {
        let mut found = vec![
            (labels::UID.to_owned(), uid.to_string()),
            (labels::USER.to_owned(), self.users.name(uid)),
        ];
        let paths = match self.has_v1 {
            true => cgroup::paths_of_process(pid),
            false => Vec::new(),
        };
        for path in &paths {
            let on_path = CgroupLabels::of(path);
            let pairs = [
                (labels::CONTAINER, on_path.container),
                (labels::POD, on_path.pod),
                (labels::UNIT, on_path.unit),
            ];
            let known = pairs
                .into_iter()
                .filter_map(|(key, value)| Some((key, value?)));
            found.extend(known.map(|(key, value)| (key.to_owned(), value.to_owned())));
        }
        found
    }
}

impl Session {
    /// Records the labels of the recording as a whole.
    pub(super) fn label_recording(&mut self, config: &RecordConfig) -> Result<(), CollectError> {
        if config.labels.is_empty() {
            return Ok(());
        }
        self.record(&Event::Labels(ProcessLabels {
            time_ns: perf::monotonic_ns(),
            pid: 0,
            labels: config.labels.clone(),
        }))
        .map(drop)
    }

    /// Finds out the labels of a process that belongs to the recording, unless they are
    /// known. Of processes that are not known only the kernel's threads are labelled:
    /// with that they become known.
    pub(super) fn label(
        &mut self,
        pid: u32,
        time_ns: u64,
        is_kernel_thread: bool,
    ) -> Result<(), CollectError> {
        let process = self.events.processes.get(pid);
        let set = process.map(|process| process.labels.id);
        // Process 0, the idle task, is nobody's.
        if pid == 0 || set.is_none() && !is_kernel_thread {
            return Ok(());
        }
        let due = set.map_or(Some(false), |set| self.labels.is_due(set));
        let Some(first) = due else {
            return Ok(());
        };
        // Of a process that has ended, what was known when its events came.
        let known = || Some(self.reader.owner(pid).uid).filter(|uid| *uid != u32::MAX);
        let Some(uid) = owner::uid_of(pid).or_else(known) else {
            return Ok(());
        };
        let labels = self.labels.of_process(pid, uid);
        self.record(&Event::Labels(ProcessLabels {
            time_ns,
            pid,
            labels,
        }))?;
        // What is in the environment is in the memory of the process.
        let set = set.filter(|_| first && owner::may_have(uid));
        if let Some(set) = set
            && self.reader.ask_environment(pid)
        {
            if self.labels.asked.len() >= MAX_LOOKED {
                self.labels.asked.clear();
            }
            self.labels.asked.insert(pid, set);
        }
        Ok(())
    }

    /// Takes in what a process's environment says, if that is still the program that was
    /// asked for.
    pub(super) fn environment_read(&mut self, pid: u32, labels: Vec<(String, String)>) {
        let asked = self.labels.asked.remove(&pid);
        let process = self.events.processes.get(pid);
        let now = process.map(|process| process.labels.id);
        if asked.is_none() || asked != now || labels.is_empty() {
            return;
        }
        let event = Event::Labels(ProcessLabels {
            time_ns: perf::monotonic_ns(),
            pid,
            labels,
        });
        if let Err(error) = self.record(&event) {
            tracing::warn!("the rank of process {pid} is not recorded: {error}");
        }
    }
}
