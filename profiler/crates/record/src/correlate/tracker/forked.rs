//! Processes that were forked: they have what their parents had.
//!
//! A forked process has its parent's memory, so the handles in it mean what they meant,
//! and its parent's open devices, so kernels lie where they lay. Most children use none
//! of it. So a child only remembers its parent, and gets copies with its first call, or
//! when its parent ends before.

use super::{
    handles::{Handles, Room},
    state::{KernelChange, TrackerState},
};
use aiprof_model::profile::LossKind;
use rustc_hash::FxHashMap;

/// A child that has copied nothing yet.
#[derive(Clone, Copy, Debug)]
struct Child {
    parent: u32,
    forked_ns: u64,
}

/// Who was forked by whom.
#[derive(Debug, Default)]
pub(super) struct Forked {
    /// Those that have copied nothing yet.
    children: FxHashMap<u32, Child>,
    /// Those that have, by their parents: kernels may be placed later.
    heirs: FxHashMap<u32, Vec<u32>>,
}

impl Forked {
    pub(super) fn heirs(&self, parent: u32) -> impl Iterator<Item = u32> {
        self.heirs.get(&parent).into_iter().flatten().copied()
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.children.is_empty() && self.heirs.is_empty()
    }
}

impl TrackerState {
    /// A process was forked.
    pub(super) fn fork(&mut self, parent: u32, child: u32, forked_ns: u64) {
        // What the parent has not copied yet is its own parent's.
        let parent = match self.forked.children.get(&parent) {
            Some(other) => other.parent,
            None => parent,
        };
        let fits = self.forked.children.len() < self.limits.processes;
        if fits && self.processes.contains_key(&parent) {
            let child_of = Child { parent, forked_ns };
            self.forked.children.insert(child, child_of);
        }
    }

    /// A process makes a call: it needs what its parent had.
    pub(super) fn inherit(&mut self, pid: u32) {
        let Some(child) = self.forked.children.remove(&pid) else {
            return;
        };
        let full = self.processes.len() >= self.limits.processes;
        let Some(parent) = self.processes.get(&child.parent).filter(|_| !full) else {
            return self.losses.add(LossKind::HandlesRefused, 1);
        };
        let Some(own) = parent.copied(pid, child.forked_ns, &mut self.room) else {
            return self.losses.add(LossKind::HandlesRefused, 1);
        };
        self.processes.insert(pid, own);
        self.forked.heirs.entry(child.parent).or_default().push(pid);
        let inherited = KernelChange::Inherited(child.parent, pid, child.forked_ns);
        self.kernels.changes.push(inherited);
    }

    /// A process ends: its children get now what they have not copied yet.
    pub(super) fn disinherit(&mut self, pid: u32) {
        self.forked.children.remove(&pid);
        let own = self.forked.children.iter();
        let own = own.filter(|(_, child)| child.parent == pid);
        let mut children: Vec<u32> = own.map(|(&child, _)| child).collect();
        children.sort_unstable();
        for child in children {
            self.inherit(child);
        }
        self.forked.heirs.remove(&pid);
        self.forked.heirs.retain(|_, heirs| {
            heirs.retain(|&heir| heir != pid);
            !heirs.is_empty()
        });
    }
}

impl Handles {
    /// A copy for a process that was forked then, if there is room.
    fn copied(&self, pid: u32, forked_ns: u64, room: &mut Room) -> Option<Self> {
        let mut copy = self.clone();
        copy.forget_since(forked_ns);
        copy.lists.each(|list| {
            for entry in &mut list.entries {
                entry.launch.by.pid = pid;
            }
        });
        copy.occupy(room).then_some(copy)
    }
}
