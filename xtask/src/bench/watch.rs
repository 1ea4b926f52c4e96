//! Watching a running process through /proc, and the machine around it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::bpf::field;

/// How often memory is looked at.
const MEMORY_INTERVAL: Duration = Duration::from_millis(50);

/// How often the other processes of a family are looked at.
const FAMILY_INTERVAL: Duration = Duration::from_millis(10);

/// The machine counts as quiet below this share of busy CPU time.
const QUIET: f64 = 0.05;

/// All process ids.
pub(super) fn pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// State and CPU seconds of a process, its waited-for children included.
pub(super) fn stat(pid: u32) -> Option<(char, f64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(text: &str) -> Option<(char, f64)> {
    // The name in parentheses may hold anything.
    let (_, rest) = text.rsplit_once(") ")?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let state = words.first()?.chars().next()?;
    let ticks: u64 = words
        .get(11..15)?
        .iter()
        .filter_map(|w| w.parse::<u64>().ok())
        .sum();
    // USER_HZ is 100 on every Linux that aiprof supports.
    Some((state, ticks as f64 / 100.0))
}

/// A process and its children that work for it: aiprof's readers. Their CPU time is counted here,
/// since they are not waited for. The command that it runs is left out.
pub(super) struct Family {
    pid: u32,
    /// CPU seconds that each of the others had when it was last seen.
    others: BTreeMap<u32, f64>,
}

impl Family {
    pub(super) fn of(pid: u32) -> Self {
        Self {
            pid,
            others: BTreeMap::new(),
        }
    }

    /// Looks at the others: to be called often, for who ends is not seen again.
    pub(super) fn look(&mut self) {
        for pid in members(self.pid).into_iter().skip(1) {
            if let Some((_, seconds)) = stat(pid) {
                self.others.insert(pid, seconds);
            }
        }
    }

    /// CPU seconds of the others.
    pub(super) fn cpu_of_others(&self) -> f64 {
        self.others.values().sum()
    }

    /// CPU seconds of all; `None`: it has ended.
    pub(super) fn cpu(&mut self) -> Option<f64> {
        self.look();
        stat(self.pid).map(|(_, own)| own + self.cpu_of_others())
    }
}

/// The processes of a family, the first first.
fn members(pid: u32) -> Vec<u32> {
    let text = |pid: u32, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&parent) = all.get(next) {
        next += 1;
        let children = text(parent, &format!("task/{parent}/children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|c| c.parse().ok());
        let works = |&pid: &u32| text(pid, "comm").is_ok_and(|c| c.starts_with("aiprof-"));
        all.extend(children.filter(works));
    }
    all
}

/// CPU seconds of a process and those that work for it, of all threads that run.
pub(super) fn cpu_of(pid: u32) -> f64 {
    let ns = |path: &std::path::Path| -> Option<u64> {
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    let mut sum = 0;
    for pid in members(pid) {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        let tasks = tasks.into_iter().flatten().flatten();
        sum += tasks.filter_map(|task| ns(&task.path())).sum::<u64>();
    }
    sum as f64 / 1e9
}

/// Ends a child as Ctrl-C does.
pub(super) fn interrupt(child: &Child) {
    signal(child, libc::SIGINT);
}

/// Peaks of a family's memory, in bytes. A page that several of its processes share,
/// as after a fork, counts once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// Anonymous and shared memory.
    pub(super) own: u64,
    /// Pages of files, of perf rings and of mapped BPF maps, of the process that has most.
    pub(super) file: u64,
}

/// Bytes of anonymous and shared memory of a family; a page that several of its processes
/// share counts once.
pub(super) fn own_memory(pid: u32) -> u64 {
    let one = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let kib = |name| field(&text, name).unwrap_or(0) * 1024;
        kib("Pss_Anon") + kib("Pss_Shmem")
    };
    members(pid).into_iter().map(one).sum()
}

/// Notes a family's memory until it ends or the watch is stopped.
pub(super) struct MemoryWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Memory>,
}

impl MemoryWatch {
    pub(super) fn start(pid: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut peak = Memory::default();
            while !told.load(Ordering::Relaxed) {
                let mut now = Memory {
                    own: own_memory(pid),
                    file: 0,
                };
                for pid in members(pid) {
                    let text = |file| fs::read_to_string(format!("/proc/{pid}/{file}"));
                    let all = text("status").unwrap_or_default();
                    let kib = |text, name| field(text, name).unwrap_or(0) * 1024;
                    now.file = now.file.max(kib(&all, "RssFile"));
                }
                peak.own = peak.own.max(now.own);
                peak.file = peak.file.max(now.file);
                thread::sleep(MEMORY_INTERVAL);
            }
            peak
        });
        Self { stop, thread }
    }

    pub(super) fn finish(self) -> Memory {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// Bytes of perf event rings that a process has mapped.
pub(super) fn perf_rings(pid: u32) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines()
        .filter(|line| line.ends_with("anon_inode:[perf_event]"))
        .filter_map(|line| {
            let (from, to) = line.split_whitespace().next()?.split_once('-')?;
            let at = |text| u64::from_str_radix(text, 16).ok();
            at(to)?.checked_sub(at(from)?)
        })
        .sum()
}

/// Sends a signal to a process of ours that is not yet waited for.
pub(super) fn signal(child: &Child, signal: i32) {
    if let Ok(pid) = i32::try_from(child.id()) {
        // SAFETY: no memory is involved; the process is our child and not
        // reaped, so its id names no other process.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Ends processes when this one ends, however it does: a bench that is killed
/// must leave no busy loops behind. A shell that waits for the end of its input
/// knows them.
pub(super) struct Guard {
    shell: Child,
}

impl Guard {
    pub(super) fn new() -> Result<Self> {
        let script = "while read -r p; do all=\"$all $p\"; done; kill -s KILL -- $all";
        let shell = Command::new("sh")
            .args(["-c", script])
            // Out of the reach of what ends this process and its group.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start sh")?;
        Ok(Self { shell })
    }

    /// Takes a child of ours in, or with `group` the group that it leads.
    pub(super) fn add(&mut self, child: &Child, group: bool) -> Result<()> {
        let sign = if group { "-" } else { "" };
        let pipe = self
            .shell
            .stdin
            .as_mut()
            .context("cannot write to the input of sh")?;
        writeln!(pipe, "{sign}{}", child.id()).context("cannot write to sh")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Before its input ends: what it knows is waited for by now, and the
        // ids may be others' soon.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// Children, each with what it starts, that end with this value.
pub(super) struct Group {
    children: Vec<Child>,
    guard: Guard,
}

impl Group {
    pub(super) fn new() -> Result<Self> {
        let guard = Guard::new()?;
        Ok(Self {
            children: Vec::new(),
            guard,
        })
    }

    pub(super) fn spawn(&mut self, command: &mut Command) -> Result<()> {
        let text = crate::proc::display(command);
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {text}"))?;
        let guarded = self.guard.add(&child, true);
        self.children.push(child);
        guarded
    }

    pub(super) fn signal(&self, number: i32) {
        for child in &self.children {
            if let Ok(pid) = i32::try_from(child.id()) {
                // SAFETY: as in `signal`; the child leads a group of its own.
                unsafe { libc::kill(-pid, number) };
            }
        }
    }

    /// CPU seconds used so far.
    pub(super) fn cpu(&self) -> f64 {
        let used = self.children.iter().filter_map(|c| stat(c.id()));
        used.map(|(_, seconds)| seconds).sum()
    }

    /// How many ended by themselves.
    pub(super) fn ended(&mut self) -> usize {
        let ended = |c: &mut Child| !matches!(c.try_wait(), Ok(None));
        self.children.iter_mut().map(ended).filter(|&e| e).count()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        for child in &mut self.children {
            // Ended already is as good as killed.
            let _ = child.wait();
        }
    }
}

/// Waits for a process: its status, the CPU seconds of its family and when it ended.
pub(super) fn wait(child: &mut Child, limit: Duration) -> Result<(ExitStatus, f64, Instant)> {
    let deadline = Instant::now() + limit;
    let mut cpu = 0.0;
    let mut family = Family::of(child.id());
    let mut looked = None;
    loop {
        match stat(child.id()) {
            Some(('Z', seconds)) => {
                let ended = Instant::now();
                let status = child.wait().context("cannot wait for a process")?;
                return Ok((status, seconds + family.cpu_of_others(), ended));
            }
            Some((_, seconds)) => cpu = seconds,
            None => {
                let status = child.wait().context("cannot wait for a process")?;
                return Ok((status, cpu + family.cpu_of_others(), Instant::now()));
            }
        }
        if looked.is_none_or(|at: Instant| at.elapsed() > FAMILY_INTERVAL) {
            family.look();
            looked = Some(Instant::now());
        }
        if Instant::now() > deadline {
            signal(child, libc::SIGKILL);
            child.wait().context("cannot wait for a process")?;
            bail!("the program did not end within {} s", limit.as_secs());
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// What a process needed from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Usage {
    /// Seconds.
    pub(super) wall: f64,
    /// Seconds in user and kernel mode, of waited-for children too.
    pub(super) cpu: f64,
    /// Most bytes resident at once, as the kernel counted them; mapped files too.
    pub(super) peak: u64,
}

/// Runs a command to its end.
pub(super) fn usage(command: &mut Command) -> Result<(ExitStatus, Usage)> {
    let text = crate::proc::display(command);
    let mut guard = Guard::new()?;
    let started = Instant::now();
    let child = command
        .spawn()
        .with_context(|| format!("cannot start {text}"))?;
    guard.add(&child, false)?;
    let pid = i32::try_from(child.id()).context("no process ID")?;
    let mut status = 0;
    // SAFETY: a rusage is numbers, for which zeros are values.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both places are ours and of the types that wait4 wants; the process is our child, and
    // no other code waits for it.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut used) };
    let wall = started.elapsed().as_secs_f64();
    if waited != pid {
        return Err(std::io::Error::last_os_error()).context(text);
    }
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    let usage = Usage {
        wall,
        cpu: seconds(used.ru_utime) + seconds(used.ru_stime),
        peak: u64::try_from(used.ru_maxrss).unwrap_or(0) * 1024,
    };
    Ok((ExitStatus::from_raw(status), usage))
}

/// Busy and all CPU ticks of the machine so far.
fn cpu_ticks() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let words = text.lines().next()?.split_whitespace().skip(1);
    let ticks: Vec<u64> = words.take(8).filter_map(|w| w.parse().ok()).collect();
    let all = ticks.iter().sum();
    let idle: u64 = ticks.get(3..5)?.iter().sum();
    Some((all - idle, all))
}

/// Waits for the machine to be quiet, for a limited time over all rounds: on a machine that is
/// never quiet, a bench must end too, and report that.
pub(super) struct Quiet {
    left: Duration,
}

impl Quiet {
    pub(super) fn new(limit: Duration) -> Self {
        Self { left: limit }
    }

    /// Whether there is time left to wait in.
    pub(super) fn may_wait(&self) -> bool {
        !self.left.is_zero()
    }

    /// Waits until the machine does next to nothing; whether it got there.
    pub(super) fn wait(&mut self) -> bool {
        let mut told = false;
        loop {
            let busy = busy_share(Duration::from_secs(2));
            if busy < QUIET {
                return true;
            }
            if self.left.is_zero() {
                eprintln!(
                    "xtask: continuing, although the machine is {:.0} % busy",
                    busy * 100.0
                );
                return false;
            }
            if !told {
                eprintln!("xtask: waiting for the machine to become quiet");
                told = true;
            }
            self.left = self.left.saturating_sub(Duration::from_secs(2));
        }
    }
}

/// The share of all CPUs that is busy over some time.
fn busy_share(time: Duration) -> f64 {
    let before = cpu_ticks();
    thread::sleep(time);
    match (before, cpu_ticks()) {
        (Some((b0, a0)), Some((b1, a1))) => {
            b1.saturating_sub(b0) as f64 / a1.saturating_sub(a0).max(1) as f64
        }
        _ => 1.0,
    }
}

/// The middle of some values; 0 without any.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let at = |i: usize| values.get(i).copied().unwrap_or(0.0);
    let half = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => at(half),
        _ => f64::midpoint(at(half - 1), at(half)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([]), 0.0);
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0]), 2.5);
    }

    #[test]
    fn stat_with_a_strange_name() {
        let text = "7 (a) b) Z 1 7 7 0 -1 4 1 2 3 4 150 50 20 10 20 0 1 0 99";
        assert_eq!(parse_stat(text), Some(('Z', 2.3)));
        assert_eq!(parse_stat("7 (short) S 1"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn usage_is_that_of_the_process() {
        let script = "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; sleep 0.2";
        let (status, used) = usage(Command::new("sh").args(["-c", script])).unwrap();
        assert!(status.success());
        assert!(used.cpu > 0.0 && used.wall > 0.2, "{used:?}");
        let block = ["if=/dev/zero", "of=/dev/null", "bs=48M", "count=1"];
        let (_, used) = usage(Command::new("dd").args(block).stderr(Stdio::null())).unwrap();
        assert!((48 << 20..64 << 20).contains(&used.peak), "{used:?}");
        let (status, _) = usage(Command::new("sh").args(["-c", "exit 3"])).unwrap();
        assert_eq!(status.code(), Some(3));
        assert!(usage(&mut Command::new("/no/such/program")).is_err());
    }

    #[test]
    fn guards_end_what_they_know() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let mut guard = Guard::new().unwrap();
        guard.add(&child, false).unwrap();
        // As when this process had ended.
        drop(guard.shell.stdin.take());
        let (status, _, _) = wait(&mut child, Duration::from_secs(30)).unwrap();
        assert!(!status.success());
    }

    #[test]
    fn own_memory_and_time_are_seen() {
        assert!(stat(std::process::id()).is_some());
        let watch = MemoryWatch::start(std::process::id());
        thread::sleep(Duration::from_millis(50));
        assert!(watch.finish().own > 0);
    }
}
