//! The processes with JIT code.

use super::owner_of;
use crate::owner;
use aiprof_model::process::ProcessTable;
use aiprof_system::{os::process, workers::Owner};
use rustc_hash::FxHashMap;
use std::{os::fd::OwnedFd, rc::Rc, sync::Arc};

/// Most processes with JIT code in a window.
const MAX_JIT: usize = 1 << 16;
/// Most generations of forks whose names are looked for.
const MAX_PARENTS: usize = 4;
/// Most jitdump files held open.
const MAX_DUMPS: usize = 64;

/// A process with JIT code, as it was when its first was seen.
#[derive(Clone)]
pub(super) struct JitProcess {
    pub(super) started: u64,
    pub(super) owner: Owner,
    /// Its effective user.
    pub(super) uid: u32,
    /// Its jitdump file, as it calls it; and open, as soon as it was asked for.
    pub(super) path: Option<Rc<str>>,
    pub(super) dump: Option<Arc<OwnedFd>>,
}

/// The processes with JIT code; `None`: one had ended when its first was seen.
#[derive(Default)]
pub(super) struct JitProcesses(FxHashMap<u32, Option<JitProcess>>);

impl JitProcesses {
    /// A process with JIT code that can be named. `None`: it has ended, and its number may belong
    /// to another process, which must not name what this one ran. What it wrote when it ended is
    /// still read until another process has its number.
    pub(super) fn find(&mut self, pid: u32, processes: &ProcessTable) -> Option<JitProcess> {
        let now = process::start_time(pid);
        if self.0.len() >= MAX_JIT && !self.0.contains_key(&pid) {
            return None;
        }
        let held = self.0.values().flatten();
        let held = held.filter(|process| process.dump.is_some()).count();
        let process = self.0.entry(pid).or_insert_with(|| {
            Some(JitProcess {
                started: now?,
                owner: owner_of(pid)?,
                uid: owner::effective_uid_of(pid)?,
                path: None,
                dump: None,
            })
        });
        let process = process.as_mut()?;
        match now {
            Some(now) if now == process.started => {
                let known = processes.get(pid);
                let path = known.and_then(|known| known.space.generated.dump.clone());
                if process.path.is_none() && held < MAX_DUMPS {
                    process.path = path;
                }
                Some(process.clone())
            }
            Some(_) => None,
            None => Some(process.clone()),
        }
    }

    /// Whether a process has a jitdump file, which records when its code changed.
    pub(super) fn has_dump(&self, pid: u32) -> bool {
        let process = self.0.get(&pid).and_then(Option::as_ref);
        process.is_some_and(|process| process.dump.is_some())
    }

    /// The jitdump file of a process was opened.
    pub(super) fn opened(&mut self, pid: u32, dump: OwnedFd) {
        if let Some(Some(process)) = self.0.get_mut(&pid) {
            process.dump = Some(Arc::new(dump));
        }
    }

    /// Forgets all: by the next window their numbers may belong to others.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The processes that a process was forked from and whose code it still has, the nearest first.
pub(super) fn forked_from(pid: u32, processes: &ProcessTable) -> Vec<u32> {
    let parent = |&pid: &u32| {
        let process = processes.get(pid).filter(|process| process.is_fork)?;
        Some(process.parent).filter(|&parent| parent != 0 && parent != pid)
    };
    let parents = std::iter::successors(parent(&pid), parent);
    parents.take(MAX_PARENTS).collect()
}
