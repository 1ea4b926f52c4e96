//! Reads the truth files of the virtual Level Zero driver: JSON lines, one per
//! call and one per execution on a device (`virtual/level-zero/README.md`).

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

/// One API call, as the driver saw it.
#[derive(Clone, Debug, Deserialize)]
pub struct Call {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// The function's name.
    #[serde(rename = "call")]
    pub function: String,
    /// Number of the call in its process, by entry.
    pub seq: u64,
    /// Entry, CLOCK_MONOTONIC ns.
    pub t0: u64,
    /// Return, CLOCK_MONOTONIC ns.
    pub t1: u64,
    /// The `ze_result_t`; `None` when the call never returned.
    pub result: Option<u32>,
    /// A test hook ran inside: the rest of the call is not described.
    #[serde(default)]
    pub hooked: u32,
    /// Name of the kernel.
    pub kernel: Option<String>,
    /// Handle of the kernel.
    pub kernel_handle: Option<u64>,
    /// Group counts; absent for indirect launches.
    pub groups: Option<[u64; 3]>,
    /// Group size.
    pub group_size: Option<[u64; 3]>,
    /// Handle of the command list.
    pub list: Option<u64>,
    /// Handle of the command queue.
    pub queue: Option<u64>,
    /// Number of command lists.
    pub lists: Option<u64>,
    /// Handle of the module.
    pub module: Option<u64>,
    /// Handle of the event that is signalled, created, waited for.
    pub event: Option<u64>,
    /// Size of a copy, fill or allocation.
    pub bytes: Option<u64>,
    /// Address of an allocation, or of an extension function.
    pub address: Option<u64>,
    /// Index of the device.
    pub device: Option<u32>,
    /// Address of a kernel's code on the device.
    pub isa: Option<u64>,
    /// Name of an extension function.
    pub name: Option<String>,
    /// Everything that was not named above.
    #[serde(flatten)]
    pub rest: BTreeMap<String, serde_json::Value>,
}

impl Call {
    /// Whether it returned success.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.result == Some(0)
    }

    /// Whether it appends exactly one kernel launch when it succeeds.
    #[must_use]
    pub fn is_launch(&self) -> bool {
        self.function.starts_with("zeCommandListAppendLaunch")
            && !self.function.contains("Multiple")
    }
}

/// What a device ran.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A kernel.
    Kernel,
    /// A copy.
    Copy,
    /// A fill.
    Fill,
    /// A barrier.
    Barrier,
}

/// One execution on a device.
#[derive(Clone, Debug, Deserialize)]
pub struct Exec {
    /// Process that submitted it.
    pub pid: u32,
    /// Its kind.
    #[serde(rename = "exec")]
    pub kind: Kind,
    /// [`Call::seq`] of the call that appended it.
    pub seq: u64,
    /// [`Call::seq`] of the call that submitted it.
    pub submit: u64,
    /// Index of the root device.
    pub device: u32,
    /// Index of the sub-device, or -1.
    pub sub: i32,
    /// Command queue group.
    pub ordinal: u32,
    /// Queue of the group.
    pub index: u32,
    /// Name of the kernel.
    pub kernel: Option<String>,
    /// Address of its code on the device.
    pub isa: Option<u64>,
    /// Group counts.
    pub groups: Option<[u64; 3]>,
    /// Size of a copy or fill.
    pub bytes: u64,
    /// Device clock at its start, as kernel timestamps show it.
    pub start_ticks: u64,
    /// Device clock at its end.
    pub end_ticks: u64,
    /// Start, CLOCK_MONOTONIC ns.
    pub start_ns: u64,
    /// End, CLOCK_MONOTONIC ns.
    pub end_ns: u64,
}

/// The samples that one execution has in a window, at one instruction and for one
/// reason.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(from = "(u64, u64, u64, String, u64, u64)")]
pub struct Sampled {
    /// [`Exec::seq`].
    pub seq: u64,
    /// [`Exec::isa`].
    pub isa: u64,
    /// Offset of the instruction in the kernel, bytes.
    pub offset: u64,
    /// The driver's name of the reason.
    pub reason: String,
    /// Samples in records that were written.
    pub written: u64,
    /// Samples in records that were not: dropped, or not read in time.
    pub lost: u64,
}

impl From<(u64, u64, u64, String, u64, u64)> for Sampled {
    fn from((seq, isa, offset, reason, written, lost): (u64, u64, u64, String, u64, u64)) -> Self {
        Self {
            seq,
            isa,
            offset,
            reason,
            written,
            lost,
        }
    }
}

/// The EU stall records of one GT in one read window.
#[derive(Clone, Debug, Deserialize)]
pub struct Window {
    /// Process whose kernels were sampled.
    pub pid: u32,
    /// Index of the root device.
    pub device: u32,
    /// Begin of the window, CLOCK_MONOTONIC ns.
    pub t0: u64,
    /// End of the window, CLOCK_MONOTONIC ns.
    pub t1: u64,
    /// Records written.
    pub records: u64,
    /// Records that were dropped, or were not read in time.
    pub lost: u64,
    /// Kernel, offset of the instruction, reason, count: in all these records.
    pub counts: Vec<(String, u64, String, u64)>,
    /// GT of the device.
    #[serde(default)]
    pub gt: u32,
    /// 1: all of it was thrown away (`VZE_STALLS_DROP`).
    #[serde(default)]
    pub dropped: u32,
    /// Samples left out of the records (`VZE_STALLS_EVERY`).
    #[serde(default)]
    pub skipped: u64,
    /// The same by execution.
    #[serde(default)]
    pub execs: Vec<Sampled>,
}

/// The content of a truth file.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    /// Calls, in the order they were written.
    pub calls: Vec<Call>,
    /// Executions, likewise.
    pub execs: Vec<Exec>,
    /// Windows of stall records, likewise.
    pub windows: Vec<Window>,
    /// Where only counts are kept: calls by function.
    pub counts: BTreeMap<String, u64>,
    /// Likewise launches by kernel.
    pub launches: BTreeMap<String, u64>,
    /// Likewise executions by kind.
    pub exec_counts: BTreeMap<String, u64>,
    /// Executions whose stall records were refused.
    pub stalls_refused: u64,
}

/// A line that only counts.
#[derive(Deserialize)]
struct Counted {
    count: Option<String>,
    launches: Option<String>,
    execs: Option<String>,
    n: u64,
}

impl Truth {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read or a line is not understood.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
        let mut truth = Self::default();
        for (number, line) in BufReader::new(file).lines().enumerate() {
            let line = line?;
            truth
                .add(&line)
                .with_context(|| format!("{}:{}: {line}", path.display(), number + 1))?;
        }
        Ok(truth)
    }

    /// Adds one line.
    ///
    /// # Errors
    /// When it is not understood.
    pub fn add(&mut self, line: &str) -> anyhow::Result<()> {
        // The third member shows what the line is.
        if line.contains("\"call\":") {
            self.calls.push(serde_json::from_str(line)?);
        } else if line.contains("\"exec\":") {
            self.execs.push(serde_json::from_str(line)?);
        } else if line.contains("\"stalls\":\"window\"") {
            self.windows.push(serde_json::from_str(line)?);
        } else {
            let counted: Counted = serde_json::from_str(line)?;
            let (map, name) = match counted {
                Counted {
                    count: Some(name), ..
                } => (&mut self.counts, name),
                Counted {
                    launches: Some(name),
                    ..
                } => (&mut self.launches, name),
                Counted {
                    execs: Some(name), ..
                } => (&mut self.exec_counts, name),
                Counted { n, .. } => {
                    self.stalls_refused += n;
                    return Ok(());
                }
            };
            *map.entry(name).or_default() += counted.n;
        }
        Ok(())
    }

    /// Calls of a function.
    pub fn calls_of<'a>(&'a self, function: &'a str) -> impl Iterator<Item = &'a Call> {
        self.calls.iter().filter(move |c| c.function == function)
    }

    /// Launches that succeeded.
    pub fn launch_calls(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(|c| c.is_launch() && c.succeeded())
    }

    /// How often each kernel was launched, by name.
    #[must_use]
    pub fn launches_by_kernel(&self) -> BTreeMap<String, u64> {
        let mut out = self.launches.clone();
        for kernel in self.launch_calls().filter_map(|c| c.kernel.clone()) {
            *out.entry(kernel).or_default() += 1;
        }
        out
    }

    /// How often each thread launched, by thread id.
    #[must_use]
    pub fn launches_by_thread(&self) -> BTreeMap<u32, u64> {
        let mut out = BTreeMap::new();
        for call in self.launch_calls() {
            *out.entry(call.tid).or_default() += 1;
        }
        out
    }

    /// How often each function was called, whatever it returned.
    #[must_use]
    pub fn calls_by_function(&self) -> BTreeMap<String, u64> {
        let mut out = self.counts.clone();
        for call in &self.calls {
            *out.entry(call.function.clone()).or_default() += 1;
        }
        out
    }

    /// Scheduled counts by (kernel, offset, reason), summed over all windows.
    #[must_use]
    pub fn stalls(&self) -> BTreeMap<(String, u64, String), u64> {
        let mut out = BTreeMap::new();
        for (kernel, offset, reason, n) in self.windows.iter().flat_map(|w| &w.counts) {
            *out.entry((kernel.clone(), *offset, reason.clone()))
                .or_default() += n;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_kind_of_line() {
        let mut truth = Truth::default();
        for line in [
            r#"{"pid":1,"tid":2,"call":"zeCommandListAppendLaunchKernel","seq":3,"t0":4,"t1":5,"kernel_handle":6,"kernel":"k","group_size":[16,1,1],"groups":[4,2,1],"list":7,"result":0}"#,
            r#"{"pid":1,"tid":2,"call":"zeEventCreate","seq":9,"t0":4,"t1":5,"hooked":1}"#,
            r#"{"pid":1,"tid":3,"exec":"kernel","seq":3,"submit":3,"device":0,"sub":-1,"ordinal":0,"index":0,"kernel":"k","isa":4096,"groups":[4,2,1],"bytes":0,"start_ticks":1,"end_ticks":2,"start_ns":3,"end_ns":4}"#,
            r#"{"pid":1,"tid":4,"stalls":"window","device":0,"t0":1,"t1":2,"records":1,"lost":0,"counts":[["k",64,"sbid",7]]}"#,
            r#"{"pid":1,"tid":4,"stalls":"window","device":0,"gt":3,"t0":1,"t1":2,"records":1,"lost":1,"dropped":0,"skipped":9,"execs":[[3,4096,64,"sbid",2,1]],"counts":[["k",64,"sbid",3]]}"#,
            r#"{"pid":1,"tid":2,"count":"zeInit","n":2}"#,
            r#"{"pid":1,"tid":2,"launches":"k","n":5}"#,
        ] {
            truth.add(line).unwrap();
        }
        assert_eq!(truth.launches_by_kernel()["k"], 6);
        assert_eq!(truth.launches_by_thread()[&2], 1);
        assert_eq!(truth.calls_by_function()["zeInit"], 2);
        assert_eq!(truth.calls[1].hooked, 1);
        assert!(!truth.calls[1].succeeded());
        assert_eq!(truth.execs[0].kind, Kind::Kernel);
        assert_eq!(truth.stalls()[&("k".into(), 64, "sbid".into())], 10);
        assert_eq!(truth.windows[1].execs[0].written, 2);
        assert_eq!(truth.windows[1].gt, 3);
    }

    #[test]
    fn damaged_lines_are_errors() {
        let mut truth = Truth::default();
        for line in ["", "{", r#"{"pid":1,"call":"zeInit"}"#, "[]"] {
            assert!(truth.add(line).is_err(), "{line}");
        }
    }
}
