//! What the kernel knows about BPF programs and maps: run time, runs, memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};

/// Commands of bpf(2), `enum bpf_cmd` in the kernel's `include/uapi/linux/bpf.h`.
const MAP_GET_NEXT_ID: i32 = 12;
const MAP_GET_FD_BY_ID: i32 = 14;
const ENABLE_STATS: i32 = 32;

/// `BPF_PROG_TYPE_PERF_EVENT`: what runs once per sample.
const PERF_EVENT: u64 = 7;

/// The first words of `union bpf_attr`; each command used here takes an id or a
/// type in the first and, `MAP_GET_NEXT_ID`, answers in the second.
#[repr(C)]
#[derive(Default)]
struct Attr {
    words: [u32; 32],
}

fn bpf(command: i32, attr: &mut Attr) -> io::Result<i32> {
    // SAFETY: the kernel reads and writes at most the given size of `attr`, all
    // of it initialised; the commands used here hold no pointers in it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<Attr>(),
        )
    };
    match i32::try_from(result) {
        Ok(n) if n >= 0 => Ok(n),
        _ => Err(io::Error::last_os_error()),
    }
}

fn bpf_fd(command: i32, first: u32) -> io::Result<OwnedFd> {
    let mut attr = Attr::default();
    attr.words[0] = first;
    let fd = bpf(command, &mut attr)?;
    // SAFETY: the kernel has just made this descriptor and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// While it lives, the kernel measures the run time of every BPF program.
pub(super) struct Stats {
    _fd: OwnedFd,
}

impl Stats {
    pub(super) fn enable() -> Result<Self> {
        // BPF_STATS_RUN_TIME is 0.
        let fd = bpf_fd(ENABLE_STATS, 0).context("cannot enable BPF statistics (as root?)")?;
        Ok(Self { _fd: fd })
    }
}

/// Run time and runs of a process's programs since they were loaded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Runs {
    /// Run time of all its programs; a tail-called program's time is its caller's.
    pub(super) nanoseconds: u64,
    /// Runs of its perf event programs.
    pub(super) samples: u64,
}

impl Runs {
    /// The sums over the programs that process `pid` holds.
    pub(super) fn of(pid: u32) -> Self {
        let mut programs = BTreeMap::new();
        for info in fdinfos(pid) {
            if let Some(id) = field(&info, "prog_id") {
                let value = |name| field(&info, name).unwrap_or(0);
                let kind = value("prog_type");
                programs.insert(id, (kind, value("run_time_ns"), value("run_cnt")));
            }
        }
        let mut runs = Self::default();
        for (kind, nanoseconds, count) in programs.into_values() {
            runs.nanoseconds += nanoseconds;
            runs.samples += if kind == PERF_EVENT { count } else { 0 };
        }
        runs
    }

    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            nanoseconds: self.nanoseconds.saturating_sub(earlier.nanoseconds),
            samples: self.samples.saturating_sub(earlier.samples),
        }
    }
}

/// Ids of all maps in the kernel.
pub(super) fn map_ids() -> Result<BTreeSet<u32>> {
    let mut ids = BTreeSet::new();
    let mut attr = Attr::default();
    loop {
        match bpf(MAP_GET_NEXT_ID, &mut attr) {
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(ids),
            Err(e) => return Err(e).context("cannot list BPF maps (as root?)"),
        }
        let next = attr.words[1];
        ids.insert(next);
        attr = Attr::default();
        attr.words[0] = next;
    }
}

/// Bytes of kernel memory in the maps of `pid` that did not exist `before`. Maps
/// within maps count though the process may have closed them; maps that only
/// another process holds do not.
pub(super) fn map_memory(pid: u32, before: &BTreeSet<u32>) -> Result<u64> {
    let held = |pid| -> BTreeSet<u32> {
        let ids = fdinfos(pid).into_iter().filter_map(|i| field(&i, "map_id"));
        ids.filter_map(|id| u32::try_from(id).ok()).collect()
    };
    let own = held(pid);
    let mut others = BTreeSet::new();
    for other in super::watch::pids().into_iter().filter(|&p| p != pid) {
        others.extend(held(other));
    }
    let new = |id: &u32| own.contains(id) || !(before.contains(id) || others.contains(id));
    Ok(map_ids()?
        .iter()
        .filter(|id| new(id))
        .filter_map(|&id| memlock(id))
        .sum())
}

/// None when the map went meanwhile.
fn memlock(id: u32) -> Option<u64> {
    let fd = bpf_fd(MAP_GET_FD_BY_ID, id).ok()?;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    field(&info, "memlock")
}

/// The BPF-related fdinfo texts of a process.
fn fdinfos(pid: u32) -> Vec<String> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return Vec::new();
    };
    let texts = entries.filter_map(|e| fs::read_to_string(e.ok()?.path()).ok());
    texts
        .filter(|t| t.contains("prog_type") || t.contains("map_id"))
        .collect()
}

/// The number after `name:` on a line of its own.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        value.split_whitespace().next()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_fdinfo_fields() {
        let text = "pos:\t0\nprog_type:\t7\nprog_id:\t12\nrun_time_ns:\t99\nmemlock:\t4096\n";
        assert_eq!(field(text, "prog_id"), Some(12));
        assert_eq!(field(text, "run_time_ns"), Some(99));
        assert_eq!(field(text, "run_cnt"), None);
        assert_eq!(field("RssAnon:\t  12 kB\n", "RssAnon"), Some(12));
    }
}
