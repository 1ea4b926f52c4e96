//! Capabilities and namespaces.

use super::{Check, Status, read_text};
use aiprof_system::files::kernel;
use aiprof_system::os::privileges::{self, NEEDED, SETCAP};
use std::os::unix::fs::MetadataExt;

/// Inode of the initial pid namespace (`PROC_PID_INIT_INO`, linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xeffffffc;

/// The checks of this file.
pub(super) fn checks() -> Vec<Check> {
    let have = privileges::effective().unwrap_or_else(|_| rustix::thread::CapabilitySet::empty());
    let mut checks: Vec<_> = NEEDED
        .iter()
        .map(|needed| {
            let works = privileges::covers(have, needed.capability);
            let found = if works { "held" } else { "not held" };
            let mut check = Check::new(
                "permission",
                json_name(needed.name),
                works,
                format!("{} {found}", needed.name),
            )
            .otherwise(
                needed.purpose,
                format!("sudo aiprof ..., or once: sudo setcap {SETCAP} \"$(command -v aiprof)\""),
            );
            check.required = needed.required;
            check
        })
        .collect();
    checks.push(pid_namespace());
    checks.push(user_namespace());
    checks
}

/// The stable name of a capability's check. Spelled out, so that a change of the
/// message cannot change the JSON.
fn json_name(capability: &'static str) -> &'static str {
    match capability {
        "CAP_BPF" => "cap_bpf",
        "CAP_PERFMON" => "cap_perfmon",
        "CAP_SYS_PTRACE" => "cap_sys_ptrace",
        "CAP_DAC_READ_SEARCH" => "cap_dac_read_search",
        "CAP_CHECKPOINT_RESTORE" => "cap_checkpoint_restore",
        other => other,
    }
}

/// Samples carry process ids of the initial namespace: elsewhere /proc shows other
/// ones, and no process can be looked up.
fn pid_namespace() -> Check {
    let initial = is_initial_pid_namespace();
    let found = match initial {
        true => "the host's process IDs",
        false if !has_proc() => "unknown: /proc is not mounted",
        false => "a container's process IDs",
    };
    Check::new("permission", "pid_namespace", initial, found)
        .required()
        .otherwise(
            "processes cannot be looked up, so user frames have no names",
            match has_proc() {
                true => "run aiprof on the host, or start the container with --pid=host",
                false => MOUNT_PROC,
            },
        )
}

const MOUNT_PROC: &str = "mount -t proc proc /proc";

fn has_proc() -> bool {
    kernel::metadata("/proc/self").is_ok()
}

fn is_initial_pid_namespace() -> bool {
    kernel::metadata("/proc/self/ns/pid")
        .is_ok_and(|namespace| namespace.ino() == INITIAL_PID_NAMESPACE)
}

/// The warning of a recording that starts now without /proc, or in a pid namespace other
/// than the initial one; `None` if neither is so.
pub fn pid_namespace_warning() -> Option<&'static str> {
    if !has_proc() {
        return Some(
            "/proc is not mounted, so processes cannot be looked up: most user stacks are cut and \
             user code has no names; run mount -t proc proc /proc",
        );
    }
    (!is_initial_pid_namespace()).then_some(
        "this container has its own process IDs, but samples have the host's. Most user stacks \
         are cut and user code has no names; run aiprof on the host, or start the container with \
         --pid=host",
    )
}

/// Capabilities of a user namespace do not count for eBPF and perf.
fn user_namespace() -> Check {
    let Some(map) = read_text("/proc/self/uid_map", 4096) else {
        return Check::new(
            "permission",
            "user_namespace",
            Status::NotApplicable,
            "this kernel has no user namespaces",
        );
    };
    let initial = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let found = if initial {
        "the host's"
    } else {
        "a container's"
    };
    Check::new(
        "permission",
        "user_namespace",
        initial,
        format!("{found} user IDs"),
    )
    .otherwise(
        "the kernel does not accept the capabilities of this user namespace for eBPF and perf",
        "run aiprof on the host, or in a container that is not rootless",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capability_has_a_stable_name() {
        for needed in NEEDED {
            assert_eq!(json_name(needed.name), needed.name.to_lowercase());
        }
    }
}
