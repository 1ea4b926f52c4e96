//! On whose account names are looked up, and whose jobs must wait.

use super::owner_of;
use crate::owner;
use aiprof_model::process::ProcessTable;
use aiprof_system::workers::Owner;
use rustc_hash::FxHashMap;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a user waits after two jobs that took too long.
const PENALTY: Duration = Duration::from_secs(30);
/// Most users accounts are kept of.
const MAX_ACCOUNTS: usize = 4096;

/// What a user's jobs have cost so far.
#[derive(Default)]
struct Account {
    /// Processes that hang.
    stuck: Arc<AtomicUsize>,
    /// Jobs that took too long in a row.
    late: u32,
    /// No jobs until then.
    until: Option<Instant>,
}

/// A process that uses a file.
#[derive(Clone, Copy)]
pub(super) struct FileUser {
    pub(super) pid: u32,
    pub(super) owner: Owner,
    /// The lowest is best: trusted, nothing against it, jobs of this user hang.
    rank: u8,
}

/// The accounts of all users.
#[derive(Default)]
pub(super) struct NamingAccounts(FxHashMap<Owner, Account>);

impl NamingAccounts {
    /// How many processes hang on a user's account, for a job of this user; `None`: the user has
    /// to wait.
    pub(super) fn admit(&mut self, owner: Owner) -> Option<Arc<AtomicUsize>> {
        if self.0.len() >= MAX_ACCOUNTS && !self.0.contains_key(&owner) {
            self.0.retain(|_, a| a.stuck.load(Ordering::Relaxed) > 0);
        }
        let account = self.0.entry(owner).or_default();
        let waits = account.until.is_some_and(|until| Instant::now() < until);
        (!waits).then(|| Arc::clone(&account.stuck))
    }

    /// A job of a user was done in time.
    pub(super) fn answered(&mut self, owner: Owner) {
        if let Some(account) = self.0.get_mut(&owner) {
            account.late = 0;
        }
    }

    /// A job of a user took too long.
    pub(super) fn too_long(&mut self, owner: Owner) {
        if let Some(account) = self.0.get_mut(&owner) {
            account.late += 1;
            if account.late >= 2 {
                account.until = Some(Instant::now() + PENALTY);
            }
        }
    }

    /// For each of `files`, a live process that maps it, if there is one. The debug files of this
    /// process are looked for, on the account of its user. Trusted processes are preferred, and
    /// then those whose user does not wait: no user should make others' names take long by mapping
    /// their files.
    pub(super) fn users(
        &self,
        processes: &ProcessTable,
        files: impl Iterator<Item = u32>,
    ) -> FxHashMap<u32, Option<FileUser>> {
        let mut users: FxHashMap<u32, Option<FileUser>> = files.map(|file| (file, None)).collect();
        let mut open = users.len();
        for (pid, process) in processes.iter().filter(|(_, p)| p.exited_ns.is_none()) {
            if open == 0 {
                break;
            }
            let mut own = None;
            for mapping in &process.space.maps {
                let Some(user) = users.get_mut(&mapping.file.0) else {
                    continue;
                };
                if user.is_some_and(|user| user.rank == 0) {
                    continue;
                }
                let Some(own) = *own.get_or_insert_with(|| self.user(pid)) else {
                    break;
                };
                if user.is_none_or(|user| own.rank < user.rank) {
                    *user = Some(own);
                    open -= usize::from(own.rank == 0);
                }
            }
        }
        users
    }

    /// A process that uses files; `None`: it has gone.
    fn user(&self, pid: u32) -> Option<FileUser> {
        let owner = owner_of(pid)?;
        let waits =
            |account: &Account| account.stuck.load(Ordering::Relaxed) > 0 || account.late > 0;
        let rank = match owner {
            owner if owner::is_trusted(owner) => 0,
            owner => 1 + u8::from(self.0.get(&owner).is_some_and(waits)),
        };
        Some(FileUser { pid, owner, rank })
    }
}
