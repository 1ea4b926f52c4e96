//! The kernel's version, settings and symbols.

use super::{Check, Status, read_text};
use crate::config::RecordConfig;
use aiprof_system::files::kernel;
use aiprof_system::os::privileges;
use rustix::thread::CapabilitySet;
use std::path::Path;

/// Oldest kernel that the tests run on.
const OLDEST_TESTED: (u32, u32) = (6, 1);
/// First kernel with `bpf_loop`.
const OLDEST_POSSIBLE: (u32, u32) = (5, 17);
/// First kernel that charges eBPF memory to the cgroup, not to RLIMIT_MEMLOCK.
const NO_MEMLOCK: (u32, u32) = (5, 11);

/// The checks of kernel and settings.
pub(super) fn checks() -> Vec<Check> {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    vec![
        version(&release),
        btf(),
        lockdown(read_text("/sys/kernel/security/lockdown", 4096).as_deref()),
        memlock(&release),
        tracefs(),
        paranoid(),
        max_stack(),
        sample_rate(),
        cpu_time_limit(),
        unprivileged_bpf(),
    ]
}

/// The checks of where names come from.
pub(super) fn symbol_checks() -> Vec<Check> {
    vec![map_files(), debuginfod()]
}

pub(super) fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn version(release: &str) -> Check {
    let version = version_of(release);
    let possible = version.is_some_and(|v| v >= OLDEST_POSSIBLE);
    let mut detail = format!("Linux {release}");
    if possible && version.is_some_and(|v| v < OLDEST_TESTED) {
        detail.push_str(" (works from 5.17, tested from 6.1)");
    }
    Check::new("kernel", "version", possible, detail)
        .required()
        .otherwise(
            "the eBPF programs need Linux 5.17 or later",
            "install a newer kernel",
        )
}

fn btf() -> Check {
    let path = "/sys/kernel/btf/vmlinux";
    let readable = kernel::open(path).is_ok();
    Check::new(
        "kernel",
        "btf",
        readable,
        if readable {
            path.to_owned()
        } else {
            format!("cannot open {path}")
        },
    )
    .required()
    .otherwise(
        "the layout of the kernel's structures is unknown",
        "use a kernel with CONFIG_DEBUG_INFO_BTF=y, such as a distribution's",
    )
}

/// `text` is the content of the lockdown file: `none [integrity] confidentiality`.
fn lockdown(text: Option<&str>) -> Check {
    let mode = text
        .and_then(|text| text.split_once('['))
        .and_then(|(_, rest)| rest.split_once(']'))
        .map(|(mode, _)| mode);
    match mode {
        None => Check::new(
            "kernel",
            "lockdown",
            Status::NotApplicable,
            "this kernel has no lockdown, or its state cannot be read",
        ),
        Some(mode) => Check::new(
            "kernel",
            "lockdown",
            mode != "confidentiality",
            format!("mode {mode}"),
        )
        .otherwise(
            "eBPF programs may not read memory, so there are no stacks",
            "start the kernel without lockdown=confidentiality",
        ),
    }
}

fn memlock(release: &str) -> Check {
    if version_of(release).is_some_and(|v| v >= NO_MEMLOCK) {
        return Check::new(
            "kernel",
            "memlock",
            Status::NotApplicable,
            "eBPF memory is not limited by RLIMIT_MEMLOCK",
        );
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    Check::new(
        "kernel",
        "memlock",
        limit.is_none(),
        limit.map_or("unlimited".into(), |bytes| format!("{bytes} bytes")),
    )
    .otherwise(
        "the kernel may refuse to create eBPF maps",
        "ulimit -l unlimited",
    )
}

fn tracefs() -> Check {
    let mounted = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .into_iter()
        .find(|dir| kernel::exists(Path::new(dir).join("events")));
    Check::new(
        "kernel",
        "tracefs",
        mounted.is_some(),
        mounted.unwrap_or("not mounted, or not readable"),
    )
    .otherwise(
        "tracepoints of accelerator drivers are not recorded; CPU sampling still works",
        "sudo mount -t tracefs tracefs /sys/kernel/tracing",
    )
}

/// A number in /proc/sys/kernel.
fn sysctl(name: &str) -> Option<i64> {
    read_text(format!("/proc/sys/kernel/{name}"), 64)?
        .trim()
        .parse()
        .ok()
}

fn absent(area: &'static str, name: &'static str) -> Check {
    Check::new(
        area,
        name,
        Status::NotApplicable,
        "this kernel has no such setting",
    )
}

pub(super) fn has(capability: CapabilitySet) -> bool {
    privileges::effective().is_ok_and(|have| privileges::covers(have, capability))
}

fn paranoid() -> Check {
    let name = "perf_event_paranoid";
    let Some(value) = sysctl(name) else {
        return absent("kernel", name);
    };
    if let Some(value) = privileges::strict_perf().filter(|_| !super::perf::can_open()) {
        let detail = format!("{value}: this kernel requires CAP_SYS_ADMIN");
        return Check::new("kernel", name, false, detail).otherwise(
            "no perf event can be opened",
            "sudo aiprof ..., or sudo sysctl kernel.perf_event_paranoid=2",
        );
    }
    let exempt = has(CapabilitySet::PERFMON);
    let note = if exempt {
        " (does not apply with CAP_PERFMON)"
    } else {
        ""
    };
    // Events of all processes on a CPU need 0 or less (kernel/events/core.c).
    Check::new(
        "kernel",
        name,
        exempt || value <= 0,
        format!("{value}{note}"),
    )
    .otherwise(
        "only root, or a program with CAP_PERFMON, may sample the machine",
        "sudo aiprof ...",
    )
}

fn max_stack() -> Check {
    let name = "perf_event_max_stack";
    let Some(value) = sysctl(name) else {
        return absent("kernel", name);
    };
    let wanted = i64::try_from(aiprof_common::MAX_KERNEL_FRAMES).unwrap_or(i64::MAX);
    Check::new(
        "kernel",
        name,
        value >= wanted,
        format!("{value} kernel frames"),
    )
    .otherwise(
        "deeper kernel stacks are cut",
        format!("sudo sysctl kernel.{name}={wanted}"),
    )
}

fn sample_rate() -> Check {
    let name = "perf_event_max_sample_rate";
    let Some(value) = sysctl(name) else {
        return absent("kernel", name);
    };
    let wanted = i64::from(RecordConfig::default().frequency_hz);
    Check::new(
        "kernel",
        name,
        value >= wanted,
        format!("{value} Hz at most"),
    )
    .otherwise(
        "the kernel throttles sampling; lost sampling periods are counted",
        format!("sudo sysctl kernel.{name}=100000"),
    )
}

fn cpu_time_limit() -> Check {
    let name = "perf_cpu_time_max_percent";
    let Some(value) = sysctl(name) else {
        return absent("kernel", name);
    };
    let detail = match value {
        0 | 100 => "no limit on the CPU time of sampling".to_owned(),
        percent => format!("sampling may take up to {percent} % of the CPU time"),
    };
    Check::new("kernel", name, true, detail)
}

fn unprivileged_bpf() -> Check {
    let name = "unprivileged_bpf_disabled";
    let Some(value) = sysctl(name) else {
        return absent("kernel", name);
    };
    Check::new(
        "kernel",
        name,
        Status::NotApplicable,
        format!("{value} (does not apply with CAP_BPF)"),
    )
}

/// Files that were deleted or replaced are still reachable below map_files.
fn map_files() -> Check {
    let works = kernel::read_dir("/proc/self/map_files")
        .unwrap_or_default()
        .first()
        .is_some_and(|(path, _)| kernel::open(path).is_ok());
    let found = if works {
        "mapped files can be opened"
    } else {
        "mapped files cannot be opened"
    };
    Check::new("symbols", "map_files", works, found).otherwise(
        "no names from files that were deleted or replaced while running",
        "sudo aiprof ... (CAP_CHECKPOINT_RESTORE)",
    )
}

fn debuginfod() -> Check {
    match std::env::var("DEBUGINFOD_URLS") {
        Ok(urls) if !urls.trim().is_empty() => Check::new("symbols", "debuginfod", true, urls),
        _ => Check::new(
            "symbols",
            "debuginfod",
            Status::NotApplicable,
            "DEBUGINFOD_URLS is not set; names come only from files on this machine",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions_are_understood() {
        for (release, version) in [
            ("6.1.0-28-amd64", Some((6, 1))),
            ("5.14.0-503.el9.x86_64", Some((5, 14))),
            ("6.18.0", Some((6, 18))),
            ("7.0-rc1", Some((7, 0))),
            ("", None),
            ("next", None),
            ("6", None),
            ("99999999999.1", None),
        ] {
            assert_eq!(version_of(release), version, "{release}");
        }
    }

    #[test]
    fn versions_decide_in_three_steps() {
        for (release, status, noted) in [
            ("5.16.9", Status::No, false),
            ("5.17.0", Status::Yes, true),
            ("6.0.1", Status::Yes, true),
            ("6.1.0", Status::Yes, false),
            ("garbage", Status::No, false),
        ] {
            let check = version(release);
            assert_eq!(check.status, status, "{release}");
            assert_eq!(check.detail.contains("tested from"), noted, "{release}");
        }
    }

    #[test]
    fn lockdown_matters_only_when_confidential() {
        for (text, status) in [
            (None, Status::NotApplicable),
            (Some("garbage"), Status::NotApplicable),
            (Some("[none] integrity confidentiality\n"), Status::Yes),
            (Some("none [integrity] confidentiality\n"), Status::Yes),
            (Some("none integrity [confidentiality]\n"), Status::No),
        ] {
            assert_eq!(lockdown(text).status, status, "{text:?}");
        }
    }
}
