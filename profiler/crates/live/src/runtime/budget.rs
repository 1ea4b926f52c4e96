//! How much each user, and each container of root's, may have probed.
//!
//! A probe costs everybody: the kernel takes tens of milliseconds to attach to and
//! to leave a library, one after the other. Whoever loads six hundred copies of a
//! runtime must not use up what others need.

use aiprof_system::workers::Owner;
use rustc_hash::{FxHashMap, FxHashSet};

/// Most files of one owner: one accelerator stack has eight or so.
const FILES: u32 = 64;
/// Most functions of one owner.
pub(super) const FUNCTIONS: u32 = 16_384;
/// Most files of all owners.
const ALL_FILES: u32 = 256;
/// Most functions of all owners.
const ALL_FUNCTIONS: u32 = 65_536;
/// Most files of one owner that are read, whether or not they have functions to probe.
const LOOKED: u32 = 2048;
/// Most files of all owners that are read.
const ALL_LOOKED: u32 = 8192;
/// How many times as much root's own files may take in all: no other user can use that up.
const ROOTS: u32 = 2;

/// What is used.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    looked: u32,
    files: u32,
    functions: u32,
}

/// What one owner may use.
const OF_OWNER: Used = Used {
    looked: LOOKED,
    files: FILES,
    functions: FUNCTIONS,
};
/// What all may use.
const OF_ALL: Used = Used {
    looked: ALL_LOOKED,
    files: ALL_FILES,
    functions: ALL_FUNCTIONS,
};
/// What all may use where the last one is root.
const OF_ROOT: Used = Used {
    looked: ROOTS * ALL_LOOKED,
    files: ROOTS * ALL_FILES,
    functions: ROOTS * ALL_FUNCTIONS,
};

impl Used {
    /// A file with this number of functions to probe.
    fn of(functions: usize, is_new: bool) -> Self {
        Self {
            looked: u32::from(is_new),
            files: u32::from(is_new && functions > 0),
            functions: u32::try_from(functions).unwrap_or(u32::MAX),
        }
    }

    fn plus(self, more: Self) -> Self {
        Self {
            looked: self.looked.saturating_add(more.looked),
            files: self.files.saturating_add(more.files),
            functions: self.functions.saturating_add(more.functions),
        }
    }

    fn minus(self, less: Self) -> Self {
        Self {
            looked: self.looked.saturating_sub(less.looked),
            files: self.files.saturating_sub(less.files),
            functions: self.functions.saturating_sub(less.functions),
        }
    }

    fn is_within(self, most: Self) -> bool {
        self.looked <= most.looked && self.files <= most.files && self.functions <= most.functions
    }
}

/// What each owner has probed.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    by_owner: FxHashMap<Owner, Used>,
    /// What is probed in one process alone, and on whose account it is.
    by_process: FxHashMap<u32, (Owner, Used)>,
    all: Used,
    refused: u64,
    /// Owners that were named.
    told: FxHashSet<Owner>,
}

/// Most owners with accounts of their own; what comes later shares one account.
const OWNERS: usize = 4096;

impl Budgets {
    /// Whether the owner may have no further file.
    pub(super) fn is_exhausted(&self, owner: Owner) -> bool {
        !self.may(owner, Used::of(1, true))
    }

    /// Takes functions of a file for an owner, and the file if it is a new one;
    /// `false`, and counted: that is too much. `only`: the process that they are probed
    /// in, if it is one.
    pub(super) fn take(
        &mut self,
        owner: Owner,
        functions: usize,
        is_new: bool,
        only: Option<u32>,
    ) -> bool {
        let more = Used::of(functions, is_new);
        if !self.may(owner, more) {
            self.refuse(owner);
            return false;
        }
        let account = self.account(owner);
        let used = self.by_owner.entry(account).or_default();
        *used = used.plus(more);
        self.all = self.all.plus(more);
        if let Some(pid) = only {
            let of_process = self.by_process.entry(pid);
            let (_, used) = of_process.or_insert((account, Used::default()));
            *used = used.plus(more);
        }
        true
    }

    /// Gives back what was probed in one process only; whether there was something.
    pub(super) fn give_back(&mut self, pid: u32) -> bool {
        let Some((account, used)) = self.by_process.remove(&pid) else {
            return false;
        };
        self.all = self.all.minus(used);
        if let Some(own) = self.by_owner.get_mut(&account) {
            *own = own.minus(used);
        }
        true
    }

    /// Counts a file that is not probed, and names its owner once.
    pub(super) fn refuse(&mut self, owner: Owner) {
        self.refused += 1;
        if self.told.len() < OWNERS && self.told.insert(owner) {
            tracing::warn!(
                "user {}: too many libraries (limit: {FILES} files with {FUNCTIONS} functions per \
                 user); further libraries are not probed",
                owner.uid
            );
        }
    }

    /// Files refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    fn may(&self, owner: Owner, more: Used) -> bool {
        let all = self.all.plus(more);
        if owner == Owner::ROOT {
            return all.is_within(OF_ROOT);
        }
        let own = self.by_owner.get(&self.account(owner)).copied();
        own.unwrap_or_default().plus(more).is_within(OF_OWNER) && all.is_within(OF_ALL)
    }

    fn account(&self, owner: Owner) -> Owner {
        if self.by_owner.len() < OWNERS || self.by_owner.contains_key(&owner) {
            return owner;
        }
        Owner {
            uid: u32::MAX,
            container: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Owner {
        Owner { uid, container: 0 }
    }

    #[test]
    fn a_flood_of_one_user_leaves_the_others_theirs() {
        let mut budgets = Budgets::default();
        let taken = (0..600).filter(|_| budgets.take(user(1), 120, true, None));
        assert_eq!(taken.count(), FILES as usize);
        assert_eq!(budgets.refused(), 600 - u64::from(FILES));
        assert!(budgets.is_exhausted(user(1)));
        assert!(budgets.take(user(2), 120, true, None));
        // Not even many users at once take what is root's.
        for uid in 3..100 {
            while budgets.take(user(uid), 120, true, None) {}
        }
        assert!(budgets.is_exhausted(user(1000)));
        assert!(budgets.take(Owner::ROOT, 120, true, None));
    }

    #[test]
    fn more_functions_of_a_known_file_are_no_further_file() {
        let mut budgets = Budgets::default();
        assert!(budgets.take(user(1), FUNCTIONS as usize - 1, true, None));
        assert!(budgets.take(user(1), 1, false, None));
        assert!(!budgets.take(user(1), 1, false, None));
        assert!(!budgets.take(user(2), usize::MAX, true, None));
    }

    #[test]
    fn what_was_for_a_process_is_given_back_when_it_is_gone() {
        let mut budgets = Budgets::default();
        for pid in 0..10_000 {
            assert!(budgets.take(user(1), 76, true, Some(pid)), "{pid}");
            assert!(budgets.take(user(1), 4, false, Some(pid)), "{pid}");
            assert!(budgets.give_back(pid));
            assert!(!budgets.give_back(pid));
        }
        assert_eq!(budgets.refused(), 0);
        // What is probed in all stays.
        assert!(budgets.take(user(1), FUNCTIONS as usize, true, None));
        assert!(!budgets.give_back(1));
        assert!(budgets.is_exhausted(user(1)));
    }
}
