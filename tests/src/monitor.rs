//! Watches a process while it runs, through /proc.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Anonymous and shared memory of a process over time. File-backed pages are
/// left out: they are the kernel's to reclaim.
#[derive(Debug)]
pub struct Monitor {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Reading>>,
}

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Since the monitor's start.
    pub at: Duration,
    /// RssAnon and RssShmem of /proc/PID/status, in KiB.
    pub memory_kib: u64,
}

impl Monitor {
    /// Watches a process from now on, four times a second.
    #[must_use]
    pub fn start(pid: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (start, mut readings) = (Instant::now(), Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                if let Some(memory_kib) = memory_kib(pid) {
                    let at = start.elapsed();
                    readings.push(Reading { at, memory_kib });
                }
                std::thread::sleep(Duration::from_millis(250));
            }
            readings
        });
        Self { stop, thread }
    }

    /// Ends the watch and returns what was seen.
    ///
    /// # Errors
    /// When the watching thread panicked.
    pub fn finish(self) -> anyhow::Result<Vec<Reading>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the watching thread panicked"))
    }
}

/// RssAnon and RssShmem of a process in KiB; `None` when it is gone.
fn memory_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| -> Option<u64> {
        let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    Some(field("RssAnon:")? + field("RssShmem:")?)
}

/// Ids of the eBPF programs that a process holds, by its /proc/PID/fdinfo.
#[must_use]
pub fn programs_of(pid: u32) -> Vec<u32> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fdinfo"));
    fds.into_iter()
        .flatten()
        .flatten()
        .filter_map(|fd| {
            let info = std::fs::read_to_string(fd.path()).ok()?;
            let id = info
                .lines()
                .find_map(|line| line.strip_prefix("prog_id:"))?;
            id.trim().parse().ok()
        })
        .collect()
}

/// What a process holds of the kernel's tracing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// eBPF maps.
    pub maps: usize,
    /// eBPF programs.
    pub programs: usize,
    /// eBPF links, and perf events: what programs are attached by.
    pub links: usize,
}

/// What a process holds now.
#[must_use]
pub fn held_by(pid: u32) -> Held {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd"));
    let mut held = Held::default();
    for fd in fds.into_iter().flatten().flatten() {
        let Ok(target) = std::fs::read_link(fd.path()) else {
            continue;
        };
        match &*target.to_string_lossy() {
            "anon_inode:bpf-map" => held.maps += 1,
            "anon_inode:bpf-prog" => held.programs += 1,
            "anon_inode:bpf_link" | "anon_inode:bpf-link" | "anon_inode:[perf_event]" => {
                held.links += 1;
            }
            _ => {}
        }
    }
    held
}

/// Number of perf events that a process holds.
#[must_use]
pub fn perf_events_of(pid: u32) -> usize {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd"));
    fds.into_iter()
        .flatten()
        .flatten()
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .filter(|target| target.to_string_lossy().contains("[perf_event]"))
        .count()
}

/// Waits until the kernel has freed these programs, and with them whatever they
/// were attached to; it does so a while after their last user.
///
/// # Errors
/// When one is still loaded after five seconds.
pub fn wait_until_unloaded(programs: &[u32]) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let loaded = program_ids();
        if !programs.iter().any(|id| loaded.contains(id)) {
            return Ok(());
        }
        anyhow::ensure!(
            start.elapsed() < Duration::from_secs(5),
            "of the programs {programs:?} some are still loaded: {loaded:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Ids of all loaded eBPF programs, by BPF_PROG_GET_NEXT_ID (command 11 of
/// linux/include/uapi/linux/bpf.h); empty without the privilege to ask.
fn program_ids() -> Vec<u32> {
    let mut ids = Vec::new();
    loop {
        // start_id, next_id and open_flags of union bpf_attr.
        let mut attr = [ids.last().copied().unwrap_or(0), 0u32, 0];
        // SAFETY: the kernel reads and writes only the twelve bytes that the
        // third argument allows it, all of which are `attr`'s.
        let rc = unsafe { libc::syscall(libc::SYS_bpf, 11, attr.as_mut_ptr(), size_of_val(&attr)) };
        if rc != 0 {
            return ids;
        }
        ids.push(attr[1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_its_own_memory() {
        let monitor = Monitor::start(std::process::id());
        std::thread::sleep(Duration::from_millis(50));
        let readings = monitor.finish().unwrap();
        assert!(readings[0].memory_kib > 100, "{readings:?}");
    }

    #[test]
    fn a_process_that_is_not_there_has_no_memory() {
        assert_eq!(memory_kib(u32::MAX), None);
    }
}
