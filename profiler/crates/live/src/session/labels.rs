//! Labels of the processes that are sampled.

use super::processes::LiveProcesses;
use crate::{bpf::perf, cgroup, owner};
use aiprof_model::{
    labels::{self, CgroupLabels},
    process::ProcessTable,
    wire::ProcessLabels,
};
use aiprof_system::os::users::Users;
use rustc_hash::FxHashMap;

/// Most programs that are remembered to have been looked at.
const MAX_LOOKED: usize = 512;
/// After how long a program's user is looked at once more: daemons change theirs after
/// they have started.
const AGAIN_NS: u64 = 1_000_000_000;

/// After how long it is looked which device a program has open: once more, and then after
/// twice as long each time.
const DEVICE_AGAIN_NS: u64 = 1_000_000_000;
/// The same after its first call of a runtime or driver, which opens devices.
const DEVICE_AFTER_CALL_NS: u64 = 50_000_000;
/// The longest of these.
const DEVICE_RARELY_NS: u64 = 64_000_000_000;

/// What was looked at.
#[derive(Debug, Default)]
pub(super) struct LabelLookups {
    users: Users,
    /// Whether control groups of version 1 name containers and units too.
    has_v1: bool,
    /// When each program's labels are looked at again, by the number of their set.
    looked: FxHashMap<u64, Looked>,
    /// The programs whose open files and environments were requested, by process.
    requested: FxHashMap<u32, u64>,
}

/// When a program is looked at again, CLOCK_MONOTONIC nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Looked {
    /// Its user, container, pod and unit; `u64::MAX`: not again.
    user_ns: u64,
    /// The device that it has open.
    device_ns: u64,
    /// Until the time after that.
    pause_ns: u64,
    has_called: bool,
}

/// What must be found out about a program now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DueLabels {
    user: bool,
    environment: bool,
    device: bool,
}

impl LabelLookups {
    pub(super) fn new() -> Self {
        Self {
            users: Users::read(),
            has_v1: cgroup::has_version_1(),
            ..Self::default()
        }
    }

    /// What must be found out about a program now. `calls`: it calls a runtime or driver.
    fn due(&mut self, set: u64, now_ns: u64, calls: bool) -> DueLabels {
        if self.looked.len() >= MAX_LOOKED && !self.looked.contains_key(&set) {
            self.looked.clear();
        }
        let mut due = DueLabels::default();
        let known = self.looked.entry(set).or_insert_with(|| {
            due.environment = true;
            Looked {
                user_ns: 0,
                device_ns: 0,
                pause_ns: DEVICE_AGAIN_NS,
                has_called: false,
            }
        });
        if known.user_ns <= now_ns {
            due.user = true;
            known.user_ns = match known.user_ns {
                0 => now_ns.saturating_add(AGAIN_NS),
                _ => u64::MAX,
            };
        }
        if known.device_ns <= now_ns {
            due.device = true;
            known.device_ns = now_ns.saturating_add(known.pause_ns);
            known.pause_ns = (known.pause_ns * 2).min(DEVICE_RARELY_NS);
        }
        if calls && !known.has_called {
            known.has_called = true;
            known.pause_ns = DEVICE_AFTER_CALL_NS;
            known.device_ns = now_ns.saturating_add(DEVICE_AFTER_CALL_NS);
        }
        due
    }

    /// What a process has open and what its environment contains was requested, of the program
    /// with this set of labels.
    fn requested(&mut self, pid: u32, set: u64) {
        if self.requested.len() >= MAX_LOOKED {
            self.requested.clear();
        }
        self.requested.insert(pid, set);
    }

    /// Applies what was read. Returns the labels that are new, which the caller records; none if
    /// the process runs another program than the one that was requested.
    pub(super) fn found(
        &mut self,
        pid: u32,
        mut found: Vec<(String, String)>,
        processes: &ProcessTable,
    ) -> Option<ProcessLabels> {
        let requested = self.requested.remove(&pid);
        let set = &processes.get(pid)?.labels;
        if requested != Some(set.id) {
            return None;
        }
        let known = set.to_vec();
        for (key, value) in &mut found {
            // Had it another one open before, it uses several.
            let other = |(k, v): &(String, String)| k == labels::DEVICE && v != value;
            if key == labels::DEVICE && known.iter().any(other) {
                labels::SEVERAL.clone_into(value);
            }
        }
        found.retain(|label| !known.contains(label));
        (!found.is_empty()).then(|| ProcessLabels {
            time_ns: perf::monotonic_ns(),
            pid,
            labels: found,
        })
    }

    /// What is known without asking: the user, and on machines with control groups of version 1 the
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

/// Why a process is labelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelReason {
    /// It ran, or waited.
    Ran,
    /// A thread of the kernel ran.
    KernelThread,
    /// It calls a runtime or driver.
    Call,
}

impl LiveProcesses {
    /// Finds out the labels of a process that belongs to the recording, unless they are known. If
    /// the process itself is not known, it is labelled only if it is a thread of the kernel: with
    /// that it becomes known. Returns what the caller must record.
    #[must_use]
    pub(super) fn label(
        &mut self,
        pid: u32,
        time_ns: u64,
        reason: LabelReason,
        processes: &ProcessTable,
    ) -> Option<ProcessLabels> {
        let set = processes.get(pid).map(|process| process.labels.id);
        // Process 0, the idle task, has no user.
        let due = match set {
            _ if pid == 0 => return None,
            None if reason != LabelReason::KernelThread => return None,
            None => DueLabels {
                user: true,
                ..DueLabels::default()
            },
            Some(set) => self.labels.due(set, time_ns, reason == LabelReason::Call),
        };
        if due == DueLabels::default() {
            return None;
        }
        // If the process has ended, the owner that was known when its events came.
        let known = || Some(self.reader.owner(pid).uid).filter(|uid| *uid != u32::MAX);
        let uid = owner::uid_of(pid).or_else(known)?;
        // The environment is in the memory of the process. No other user may see it, nor what the
        // process has open.
        let set = set.filter(|_| (due.environment || due.device) && owner::may_have(uid));
        if let Some(set) = set
            && self.reader.ask_labels(pid, due.environment)
        {
            self.labels.requested(pid, set);
        }
        due.user.then(|| ProcessLabels {
            time_ns,
            pid,
            labels: self.labels.of_process(pid, uid),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_program_is_looked_at_again_and_again_but_ever_less_often() {
        let mut labels = LabelLookups::default();
        let all = DueLabels {
            user: true,
            environment: true,
            device: true,
        };
        assert_eq!(labels.due(1, 5, false), all);
        assert_eq!(labels.due(1, 6, false), DueLabels::default());
        let again = DueLabels {
            environment: false,
            ..all
        };
        assert_eq!(labels.due(1, 5 + SECOND, false), again);
        let looks = (0..600).filter(|n| labels.due(1, (n + 2) * SECOND, false).device);
        // After 2, 4, ... 64 seconds, and each 64.
        assert!((10..18).contains(&looks.count()));
        // The first call opens devices, the second does not hurry.
        let now = 1000 * SECOND;
        assert!(labels.due(1, now, true).device);
        assert!(!labels.due(1, now + 1, true).device);
        assert!(labels.due(1, now + DEVICE_AFTER_CALL_NS, true).device);
        assert!(!labels.due(1, now + DEVICE_AFTER_CALL_NS + 1, true).device);
        assert_eq!(labels.due(2, now, true), all);
        for set in 0..10 * MAX_LOOKED as u64 {
            labels.due(set, now, false);
        }
        assert!(labels.looked.len() <= MAX_LOOKED);
    }
}
