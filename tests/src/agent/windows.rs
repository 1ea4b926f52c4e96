//! The files that an agent writes, and busy processes to compare them with.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::cpu_time;
use crate::aiprof::binary;
use crate::child::{Child, LONG};
use crate::pprof::{self, About, Sample};
use crate::workload::Workshop;

/// Processes that are always on a CPU, and the CPU time that the Linux kernel reports for them.
#[derive(Debug)]
pub struct Busy {
    children: Vec<Child>,
    times: Arc<Mutex<Vec<Used>>>,
}

/// CPU time until a time, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    /// Nanoseconds since the Unix epoch.
    at: i64,
    /// By all programs of a [`Busy`].
    by_them: f64,
    /// By other guests of the virtual machine's host ("steal"). The Linux kernel leaves it out of
    /// a program's CPU time; the clock that samples does not.
    stolen: f64,
}

/// Seconds that other guests of the host used of this machine's CPUs since it started.
fn stolen() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = text
        .lines()
        .next()
        .and_then(|cpu| cpu.split_whitespace().nth(8)?.parse().ok());
    // A tick of /proc is a hundredth of a second.
    ticks.unwrap_or(0.0) / 100.0
}

impl Busy {
    /// Starts `count` busy programs.
    ///
    /// # Errors
    /// When they cannot be started.
    pub fn start(count: usize) -> anyhow::Result<Self> {
        let one = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]);
            Child::start(command.stdin(Stdio::null()))
        };
        let children: Vec<Child> = (0..count).map(one).collect::<anyhow::Result<_>>()?;
        let pids: Vec<u32> = children.iter().map(Child::pid).collect();
        let times = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::downgrade(&times);
        std::thread::spawn(move || {
            while let Some(times) = known.upgrade() {
                let used = pids.iter().map(|pid| cpu_time(*pid));
                let used: anyhow::Result<Duration> = used.sum();
                if let (Ok(used), Ok(mut times)) = (used, times.lock()) {
                    times.push(Used {
                        at: unix_ns(),
                        by_them: used.as_secs_f64(),
                        stolen: stolen(),
                    });
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Ok(Self { children, times })
    }

    /// CPU time between two times.
    fn between(&self, from: i64, to: i64) -> Used {
        let times = self
            .times
            .lock()
            .map(|times| times.clone())
            .unwrap_or_default();
        let at = |when: i64| {
            let next = times.partition_point(|used| used.at < when);
            let before = next.checked_sub(1).and_then(|before| times.get(before));
            match (before, times.get(next)) {
                (Some(a), Some(b)) => {
                    let share = (when - a.at) as f64 / (b.at - a.at).max(1) as f64;
                    Used {
                        at: when,
                        by_them: a.by_them + (b.by_them - a.by_them) * share,
                        stolen: a.stolen + (b.stolen - a.stolen) * share,
                    }
                }
                (None, Some(used)) | (Some(used), None) => *used,
                (None, None) => Used::default(),
            }
        };
        let (from, to) = (at(from), at(to));
        Used {
            at: to.at,
            by_them: to.by_them - from.by_them,
            stolen: to.stolen - from.stolen,
        }
    }

    /// CPU time during windows.
    fn during(&self, windows: &[(PathBuf, About)]) -> Used {
        let mut sum = Used::default();
        for (_, about) in windows {
            let start = about.start_unix_ns;
            let used = self.between(start, start + about.duration_ns);
            sum.by_them += used.by_them;
            sum.stolen += used.stolen;
        }
        sum
    }

    /// Checks that each window begins less than `apart_ns` nanoseconds after the end of the one
    /// before, or that much earlier, and that the windows have the programs' CPU time.
    ///
    /// # Errors
    /// Prints what does not hold.
    pub fn check_whole(&self, windows: &[(PathBuf, About)], apart_ns: i64) -> anyhow::Result<()> {
        for pair in windows.windows(2) {
            if let [(_, this), (_, next)] = pair {
                let gap = next.start_unix_ns - this.start_unix_ns - this.duration_ns;
                ensure!(gap.abs() < apart_ns, "{gap} ns between two windows");
            }
        }
        self.check(windows)
    }

    /// Checks that the windows have the programs' CPU time, within 2 % and within what chance
    /// allows where other programs shared the CPUs. Chance exceeds it once in two million checks.
    /// The windows may have as much more as the virtual machine's host gave to other guests.
    ///
    /// # Errors
    /// Prints by how much they are off.
    pub fn check(&self, windows: &[(PathBuf, About)]) -> anyhow::Result<()> {
        self.check_weighed(windows, 1)
    }

    /// [`Self::check`] where each sample counts `weight` times.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_weighed(&self, windows: &[(PathBuf, About)], weight: u32) -> anyhow::Result<()> {
        let weight = f64::from(weight);
        let Used {
            by_them: expected,
            stolen,
            ..
        } = self.during(windows);
        let found = sampled(windows, |sample| self.has(sample))? / weight;
        let cpus = std::thread::available_parallelism()?.get() as f64;
        let mut variance = 0.0;
        for window in windows {
            let (length, period) = (
                window.1.duration_ns as f64 / 1e9,
                window.1.period_ns as f64 / 1e9 / weight,
            );
            let used = self.during(std::slice::from_ref(window)).by_them;
            let share = used / (length * cpus);
            variance += length * cpus * period * share * (1.0 - share).max(0.0);
        }
        let allowed = 0.02 * expected + 5.0 * variance.sqrt();
        ensure!(
            (-allowed..allowed + stolen).contains(&(found - expected)),
            "{found} s sampled of {expected} s, {allowed} s may be wrong; {stolen} s were stolen"
        );
        Ok(())
    }

    /// Waits until they have used a second of CPU time more.
    ///
    /// # Errors
    /// When they get no CPU.
    pub fn works(&self) -> anyhow::Result<()> {
        let used = || -> anyhow::Result<f64> {
            let each = self.pids().map(cpu_time);
            Ok(each.sum::<anyhow::Result<Duration>>()?.as_secs_f64())
        };
        let (from, begun) = (used()?, Instant::now());
        while used()? < from + 1.0 {
            ensure!(begun.elapsed() < LONG, "no CPU for what is busy");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Their process ids.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().map(Child::pid)
    }

    /// Whether a sample is of one of them.
    #[must_use]
    pub fn has(&self, sample: &Sample) -> bool {
        let pid = sample.numbers.get("pid").copied().unwrap_or(0);
        self.pids().any(|own| i64::from(own) == pid)
    }
}

/// Nanoseconds since the Unix epoch.
#[must_use]
pub fn unix_ns() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(now.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}

/// The windows of a directory, in their order.
///
/// # Errors
/// When a file cannot be read.
pub fn windows(directory: &Path) -> anyhow::Result<Vec<(PathBuf, About)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.to_string_lossy().into_owned();
        let is_other = name.contains("off_cpu-") || name.contains("launches-");
        if name.ends_with(".pb.gz") && !is_other {
            found.push((path.clone(), pprof::about(&path)?));
        }
    }
    found.sort_by_key(|(_, about)| about.start_unix_ns);
    Ok(found)
}

/// CPU time of samples in all windows, seconds.
///
/// # Errors
/// When a file cannot be read.
pub fn sampled(
    windows: &[(PathBuf, About)],
    wanted: impl Fn(&Sample) -> bool,
) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for (path, _) in windows {
        for sample in pprof::read(path)? {
            if wanted(&sample) {
                sum += sample.values.get("cpu").copied().unwrap_or(0) as f64 / 1e9;
            }
        }
    }
    Ok(sum)
}

/// Lines of a configuration with which the agent writes its windows into a folder `files`.
#[must_use]
pub fn files(shop: &Workshop) -> String {
    format!(
        "[metrics]\nlisten = \"off\"\n[[output]]\ntype = \"files\"\ndirectory = \"{}\"\n",
        shop.path("files").display()
    )
}

/// Asks the agent; gives what is answered.
///
/// # Errors
/// When it refuses.
pub fn ctl(args: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(binary()?);
    command.args(["agent", "ctl"]).args(args);
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{args:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &said)
}

/// Launches in all windows.
///
/// # Errors
/// When a file cannot be read.
pub fn launches(directory: &Path) -> anyhow::Result<i64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.to_string_lossy().into_owned();
        if name.ends_with(".pb.gz") && name.contains("launches-") {
            for sample in pprof::read(&path)? {
                sum += sample.values.get("launches").copied().unwrap_or(0);
            }
        }
    }
    Ok(sum)
}

/// The eBPF programs that are loaded: name, and nanoseconds that each has run.
///
/// # Errors
/// When bpftool does not list them.
pub fn programs() -> anyhow::Result<Vec<(String, u64)>> {
    let output = Command::new("bpftool")
        .args(["prog", "show", "-j"])
        .output()?;
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let all = listed.as_array().context("no list of programs")?;
    let found = all.iter().filter_map(|program| {
        let name = program.get("name")?.as_str()?.to_owned();
        let ns = program
            .get("run_time_ns")
            .and_then(serde_json::Value::as_u64);
        Some((name, ns.unwrap_or(0)))
    });
    Ok(found.collect())
}
