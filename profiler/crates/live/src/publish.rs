//! Which processes the kernel side knows, and by which mapping list.
//!
//! A process is published when it exec'd and lived to the next look at the rings, or when it was
//! sampled. A fork is published only when it is sampled, or when the parent that it borrows from
//! changes or exits. So a storm of short processes costs next to nothing.

use super::{
    bpf::Bpf,
    reader::Reader,
    tables::{MappedCode, MappingLists, UnwindTables},
};
use aiprof_model::{
    process::{Process, ProcessTable},
    wire::PythonFound,
};
use rustc_hash::{FxHashMap, FxHashSet};

/// The published processes.
#[derive(Default)]
pub(crate) struct Publisher {
    pub(crate) lists: MappingLists,
    /// Process to (space id, version of the list).
    published: FxHashMap<u32, (u32, u64)>,
    dirty: FxHashSet<u32>,
    retired: FxHashSet<u32>,
    /// Interpreters of processes that were published.
    pythons: Vec<PythonFound>,
    /// How many execs of a process were seen that are not taken in yet.
    replaced: FxHashMap<u32, u32>,
}

impl Publisher {
    /// The mappings of a process changed, or a sample wants it known.
    pub(crate) fn changed(&mut self, pid: u32) {
        self.retired.remove(&pid);
        self.dirty.insert(pid);
    }

    /// Whether a process is published.
    pub(crate) fn has(&self, pid: u32) -> bool {
        self.published.contains_key(&pid)
    }

    /// Whether the kernel side knows a process as it is now.
    pub(crate) fn is_current(&self, pid: u32, process: &Process) -> bool {
        let now = (process.space.id, process.space.version);
        !self.replaced.contains_key(&pid) && self.published.get(&pid) == Some(&now)
    }

    /// A process exited: forks that borrow its list get their own.
    pub(crate) fn retire(&mut self, pid: u32, processes: &ProcessTable) {
        self.dirty.remove(&pid);
        if self.published.contains_key(&pid) {
            self.orphan(pid, processes);
            self.retired.insert(pid);
        }
    }

    /// An exec was seen: until it is taken in, what is known of the process is of the
    /// program before. The kernel side has forgotten that, unless it was published since.
    pub(crate) fn replaced(
        &mut self,
        pid: u32,
        bpf: &mut Bpf,
        tables: &mut UnwindTables,
        processes: &ProcessTable,
    ) {
        *self.replaced.entry(pid).or_default() += 1;
        if self.published.contains_key(&pid) {
            self.orphan(pid, processes);
            self.withdraw(pid, bpf, tables);
        }
    }

    /// An exec is taken in.
    pub(crate) fn execd(&mut self, pid: u32) {
        if let Some(seen) = self.replaced.get_mut(&pid) {
            *seen -= 1;
            if *seen == 0 {
                self.replaced.remove(&pid);
            }
        }
    }

    fn orphan(&mut self, pid: u32, processes: &ProcessTable) {
        if !processes.get(pid).is_some_and(|p| p.has_forked) {
            return;
        }
        for (child, process) in processes.iter() {
            if process.parent == pid && process.is_fork && process.exited_ns.is_none() {
                self.dirty.insert(child);
            }
        }
    }

    /// Brings the kernel side up to date. Gives whether any process was published.
    pub(crate) fn publish(
        &mut self,
        bpf: &mut Bpf,
        tables: &mut UnwindTables,
        processes: &ProcessTable,
        known: &MappedCode<'_>,
        reader: &mut Reader,
    ) -> bool {
        let changed: Vec<u32> = self
            .dirty
            .iter()
            .copied()
            .filter(|pid| self.published.contains_key(pid))
            .collect();
        for pid in changed {
            self.orphan(pid, processes);
        }
        let mut any = false;
        for pid in std::mem::take(&mut self.dirty) {
            if self.replaced.contains_key(&pid) {
                continue;
            }
            let Some(process) = processes.get(pid).filter(|p| p.exited_ns.is_none()) else {
                continue;
            };
            let now = (process.space.id, process.space.version);
            if self.published.get(&pid) == Some(&now) {
                continue;
            }
            let (space, owner) = (&process.space, reader.owner(pid));
            let files = &processes.files;
            let entry = self
                .lists
                .acquire((pid, space), owner, files, known, tables);
            let Some(entry) = entry else {
                // No room: an old entry would be wrong, and room may come.
                self.withdraw(pid, bpf, tables);
                self.dirty.insert(pid);
                continue;
            };
            if let Err(error) = bpf.set_process(pid, entry) {
                tracing::warn!(
                    "process {pid}: cannot pass its mappings to the eBPF programs, so its stacks \
                     are cut: {error}"
                );
                self.lists.release(now.1, &mut tables.pool);
                self.withdraw(pid, bpf, tables);
                continue;
            }
            any = true;
            if let Some(found) = self.lists.python(now.1) {
                self.pythons.push(PythonFound {
                    pid,
                    ..found.clone()
                });
            }
            if let Some((_, old)) = self.published.insert(pid, now) {
                self.lists.release(old, &mut tables.pool);
            }
        }
        for pid in std::mem::take(&mut self.retired) {
            self.withdraw(pid, bpf, tables);
        }
        any
    }

    /// The interpreters of processes that were published since this was asked last.
    pub(crate) fn take_pythons(&mut self) -> Vec<PythonFound> {
        std::mem::take(&mut self.pythons)
    }

    fn withdraw(&mut self, pid: u32, bpf: &mut Bpf, tables: &mut UnwindTables) {
        if let Some((_, version)) = self.published.remove(&pid) {
            bpf.remove_process(pid);
            self.lists.release(version, &mut tables.pool);
        }
    }

    /// Forgets all processes, here and in the kernel.
    pub(crate) fn clear(&mut self, bpf: &mut Bpf, tables: &mut UnwindTables) {
        for (pid, (_, version)) in std::mem::take(&mut self.published) {
            bpf.remove_process(pid);
            self.lists.release(version, &mut tables.pool);
        }
        self.dirty.clear();
        self.retired.clear();
    }
}
