//! What is read in the memory of processes, if the caller may have it.

use super::look::{Look, Looker};
use crate::owner::{self, KnownOwners};

/// The thread that reads it, and whose it is.
pub(crate) struct MemoryAccess {
    pub(super) owners: KnownOwners,
    pub(crate) looker: Looker,
    /// Searches that were not done, for the caller may not have what they find.
    pub(super) withheld: u64,
}

impl MemoryAccess {
    /// Nothing is read yet.
    pub(super) fn new() -> Self {
        Self {
            owners: KnownOwners::default(),
            looker: Looker::new(),
            withheld: 0,
        }
    }

    /// Has memory of a process read, if the caller may have it.
    pub(super) fn look(&mut self, look: Look) {
        if self.may_look(look.pid) {
            self.looker.look(look);
        }
    }

    /// Whether the caller may have what is in the memory of a process; if not, that
    /// is counted.
    pub(crate) fn may_look(&mut self, pid: u32) -> bool {
        let may = rustix::process::getuid().is_root() || {
            let owner = self.owners.of(pid);
            owner::may_have(owner.uid)
        };
        self.withheld += u64::from(!may);
        may
    }
}
