//! On whose account something is done for a process, and what this program may do
//! with processes of others.

use aiprof_system::{files::kernel, os::process, workers::Owner};
use rustc_hash::FxHashMap;
use std::{sync::OnceLock, time::Duration};

/// The user of a process, and for root its container. Reads nothing that the
/// process could hold up: neither its memory nor its mappings.
///
/// Not the owner of /proc/PID: that is root for programs that may not be dumped, and any program
/// can make itself one of these. A process that is gone has user `u32::MAX`.
pub(crate) fn owner_of(pid: u32) -> Owner {
    let Some(uid) = uid_of(pid) else {
        return Owner {
            uid: u32::MAX,
            container: 0,
        };
    };
    let container = if uid == 0 { container_of(pid) } else { 0 };
    Owner { uid, container }
}

/// Most processes whose owners are remembered.
const MAX_OWNERS: usize = 65_536;

/// The owners of processes that were met.
#[derive(Debug, Default)]
pub(crate) struct KnownOwners(FxHashMap<u32, Owner>);

impl KnownOwners {
    /// On whose account it is what a process does.
    pub(crate) fn of(&mut self, pid: u32) -> Owner {
        if self.0.len() >= MAX_OWNERS {
            self.0.clear();
        }
        *self.0.entry(pid).or_insert_with(|| owner_of(pid))
    }

    /// A process has ended, or may be another user's now.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.0.remove(&pid);
    }
}

/// Real user id of a process, in this program's user namespace.
pub(crate) fn uid_of(pid: u32) -> Option<u32> {
    nth_uid_of(pid, 0)
}

/// Effective user id of a process: whose files it writes.
pub(crate) fn effective_uid_of(pid: u32) -> Option<u32> {
    nth_uid_of(pid, 1)
}

fn nth_uid_of(pid: u32, nth: usize) -> Option<u32> {
    process::numbers(&process::status(pid)?, "Uid:").nth(nth)
}

/// The mount namespace of a process; 0: this program's own.
fn container_of(pid: u32) -> u64 {
    let other = mounts(&format!("/proc/{pid}/ns/mnt"));
    if own_mounts() == other {
        0
    } else {
        other.map_or(u64::MAX, u64::from)
    }
}

/// The number of this program's own mount namespace.
pub(crate) fn own_mounts() -> Option<u32> {
    static OWN: OnceLock<Option<u32>> = OnceLock::new();
    *OWN.get_or_init(|| mounts("/proc/self/ns/mnt"))
}

/// The number of the mount namespace that a link in /proc leads to.
fn mounts(path: &str) -> Option<u32> {
    let link = kernel::read_link(path).ok()?;
    let digits = link.to_str()?.strip_prefix("mnt:[")?.strip_suffix(']')?;
    digits.parse().ok()
}

/// Whether an owner does nothing to this program that its caller could not do
/// himself: root of this machine, or the caller.
pub fn is_trusted(owner: Owner) -> bool {
    owner == Owner::ROOT || owner.uid != 0 && owner.uid == rustix::process::getuid().as_raw()
}

/// Whether the caller may have what is in the memory of a user's processes: texts,
/// device modules, names. Root may; others, to whom file capabilities or a service
/// give this program's rights, may have their own.
pub(crate) fn may_have(uid: u32) -> bool {
    let caller = rustix::process::getuid();
    caller.is_root() || caller.as_raw() == uid
}

/// How long to wait at the end of a recording for what such users do who could make
/// it last.
pub(crate) const BRIEF: Duration = Duration::from_millis(300);

/// How long to wait for what is found out of these processes: as long as is given if
/// it is of the caller's or root's processes.
pub(crate) fn patience_with(mut pids: impl Iterator<Item = u32>, patience: Duration) -> Duration {
    // What has ended holds nothing up.
    let is_fine = |owner: Owner| owner.uid == u32::MAX || is_trusted(owner);
    match pids.any(|pid| is_fine(owner_of(pid))) {
        true => patience,
        false => patience.min(BRIEF),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;

    #[test]
    fn a_program_that_may_not_be_dumped_is_still_its_users() {
        let own = rustix::process::getuid();
        assert_eq!(uid_of(std::process::id()), Some(own.as_raw()));
        assert!(is_trusted(owner_of(std::process::id())));
        assert_eq!(owner_of(u32::MAX).uid, u32::MAX);
        if !own.is_root() {
            println!("skipped: a_program_that_may_not_be_dumped_is_still_its_users: not root");
            return;
        }
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("60").uid(65534).gid(65534).spawn().unwrap();
        let owner = owner_of(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(
            owner,
            Owner {
                uid: 65534,
                container: 0
            }
        );
        assert!(!is_trusted(owner));
    }
}
