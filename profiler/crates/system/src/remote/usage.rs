//! What these processes use.

use super::{PROCESSES, has_ended};
use crate::files::kernel;
use std::{os::fd::OwnedFd, sync::PoisonError, time::Duration};

/// Processes that work for this one.
#[derive(Debug)]
pub(super) struct Processes {
    living: Vec<Forked>,
    /// CPU time of those that have ended, from the last time it was seen.
    ended: Duration,
}

#[derive(Debug)]
struct Forked {
    pid: i32,
    /// Its number may be another's once it has ended.
    process: OwnedFd,
    /// CPU time when it was looked at last.
    used: Duration,
}

impl Processes {
    pub(super) const fn none() -> Self {
        Self {
            living: Vec::new(),
            ended: Duration::ZERO,
        }
    }

    pub(super) fn add(&mut self, pid: i32, process: OwnedFd) {
        let used = Duration::ZERO;
        self.living.push(Forked { pid, process, used });
    }

    fn cpu_time(&mut self) -> Duration {
        let mut sum = Duration::ZERO;
        self.living.retain_mut(|one| {
            // In nanoseconds, the first of three numbers (Documentation/scheduler).
            let text = kernel::read_to_string(format!("/proc/{}/schedstat", one.pid));
            // What was read is its own only if it lives after that.
            if has_ended(&one.process) {
                self.ended += one.used;
                return false;
            }
            let ns = text.as_ref().ok().and_then(|text| text.split(' ').next());
            if let Some(ns) = ns.and_then(|ns| ns.parse().ok()) {
                one.used = Duration::from_nanos(ns);
            }
            sum += one.used;
            true
        });
        sum + self.ended
    }
}

/// Largest block that comes out of the heap, where a smaller one behind it keeps its
/// pages from the system after it was freed; larger ones are mapped by themselves.
#[cfg(target_env = "gnu")]
const MOST_OF_HEAP: libc::c_int = 256 << 10;

/// Has the allocator keep little of what is freed. By default it takes blocks of up to 32 MiB out
/// of the heap once one of that size was freed, and each thread gets its own heap. So over hours
/// the memory that windows and debug files took stays behind in pieces.
pub fn keep_little_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no memory is passed; called before there are threads, and each setting
    // holds from then on.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MOST_OF_HEAP);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * MOST_OF_HEAP);
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Gives the system what is free in this process's heaps, also in their middle.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no memory is passed; the allocator takes its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// CPU time that all these processes used, user and system; of those that have ended as
/// much as was seen when this was asked last before.
pub fn cpu_time() -> Duration {
    let mut processes = PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
    processes.cpu_time()
}

/// The CPU time that a clock of a process or thread shows (`clock_gettime(2)`); 0 if that is gone.
pub fn cpu_clock(clock: libc::clockid_t) -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a timespec that lives through the call.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// The most memory that this process and all these had at once.
#[derive(Debug, Default)]
pub struct PeakMemory {
    /// The most that [`anonymous_of`] found.
    anonymous: u64,
    bytes: u64,
}

impl PeakMemory {
    /// Looks at the memory now, if it may be more than before. This is costly: to find what
    /// processes share, the kernel walks through all of their pages.
    pub fn look(&mut self) {
        let now = sum_over_all(anonymous_of);
        if now > self.anonymous / 10 * 11 {
            self.anonymous = now;
            self.bytes = self.bytes.max(sum_over_all(memory_of));
        }
    }

    /// Bytes, anonymous and shared.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Memory that this process and all these have now, anonymous and shared, bytes.
pub fn memory_bytes() -> u64 {
    sum_over_all(memory_of)
}

/// Whether these processes may have more memory than this: a page that several of them share counts
/// for each. Cheap: to find what is shared the kernel walks through all pages.
pub fn may_have_memory(bytes: u64) -> bool {
    sum_over_all(anonymous_of) > bytes
}

/// [`memory_bytes`] of another process.
pub fn memory_bytes_of(pid: u32) -> u64 {
    memory_of(&pid.to_string())
}

/// The CPU time that a process used, user and system; 0 if it is gone.
pub fn cpu_time_of(pid: u32) -> Duration {
    // The clock of a process by its id (`clock_getcpuclockid(3)`).
    const SCHEDULED: libc::clockid_t = 2;
    let pid = libc::clockid_t::try_from(pid).unwrap_or(0);
    cpu_clock((!pid << 3) | SCHEDULED)
}

fn sum_over_all(of: fn(&str) -> u64) -> u64 {
    let processes = PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
    let others = processes.living.iter().map(|one| {
        let bytes = of(&one.pid.to_string());
        if has_ended(&one.process) { 0 } else { bytes }
    });
    of("self") + others.sum::<u64>()
}

/// Anonymous resident bytes of a process now, those included that it shares with
/// others of these processes.
fn anonymous_of(pid: &str) -> u64 {
    let text = kernel::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = text.split(' ').map(|n| n.parse::<u64>().unwrap_or(0));
    let (resident, shared) = (pages.nth(1).unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * rustix::param::page_size() as u64
}

/// Anonymous and shared resident bytes of a process now, by its id or `self`. Shared bytes count
/// with its part, for these processes are copies of each other until they write. File-backed pages
/// are the page cache's and not counted.
fn memory_of(pid: &str) -> u64 {
    let sum = |file: &str, names: [&str; 2]| -> Option<u64> {
        let text = kernel::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
        let field = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|l| l.strip_prefix(name))?;
            line.split_ascii_whitespace().next()?.parse().ok()
        };
        Some((field(names[0])? + field(names[1])?) * 1024)
    };
    sum("smaps_rollup", ["Pss_Anon:", "Pss_Shmem:"])
        .or_else(|| sum("status", ["RssAnon:", "RssShmem:"]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::PidfdFlags;
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn the_time_of_a_process_that_has_ended_stays() {
        let work = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo; read line";
        let mut child = Command::new("sh")
            .args(["-c", work])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let mut processes = Processes::none();
        processes.add(pid.as_raw_nonzero().get(), process);
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let used = processes.cpu_time();
        assert!(used > Duration::ZERO);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(processes.cpu_time() >= used);
        assert!(processes.living.is_empty());
    }
}
