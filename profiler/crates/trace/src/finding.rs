//! A finding: a conclusion with its cost, its places, its numbers, and what to try.

use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// Results are wrong or missing because of it.
    Error,
    /// Something costs time or may be wrong.
    #[default]
    Warning,
    /// Good to know.
    Note,
}

/// Kind of a finding. Names are stable: programs and `aiprof diff` know findings by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// A device idles because its next work was not launched yet.
    LaunchStarved,
    /// A device idles because the host waited for it before it launched more.
    SynchronousWait,
    /// A device idles between kernels that take less than their launches.
    ShortKernels,
    /// Copies run while no kernel does.
    CopyNotOverlapped,
    /// Copies from or to pageable memory run while no kernel does.
    PageableCopy,
    /// A step waits for its data.
    DataloaderStall,
    /// A device idles because the profiler that wrote the trace delayed launches.
    ProfilerOverhead,
    /// `torch.compile` broke graphs.
    GraphBreaks,
    /// `torch.compile` compiled functions again.
    Recompilation,
    /// Ranks wait in collectives for one that comes late.
    LateRank,
    /// Collectives run while no kernel computes.
    CommunicationNotHidden,
    /// Single collectives take longer than others of their size.
    SlowCollectives,
    /// Kernels take longer while the device's clock is low.
    Throttling,
    /// An AIU idles while computations are prepared for it.
    PrepQueueStarved,
    /// Kernels keep registers in memory.
    Spills,
    /// The kernel that takes most of a device's time stalls at one line.
    KernelStall,
    /// Kernels use little of what the device can do, as the compiler has it.
    LowUtilization,
    /// A device idles; the trace does not show why.
    DeviceIdle,
    /// Something is wrong with a file.
    InputProblems,
    /// No kernel is in the traces.
    NoKernels,
    /// Devices kept no times.
    UntimedLaunches,
    /// A fault that traces are known for.
    TraceFault,
    /// Messages arrive before they are sent.
    ReversedMessages,
    /// Kernels are faster than they can be.
    ImpossibleUtilization,
    /// Messages contradict each other, or ranks exchange none.
    RankClocks,
    /// Jobs were not where they belong.
    JobsMoved,
    /// Calls of a kernel take different times.
    UnevenKernels,
    /// What devices take, and whether it can be.
    Power,
    /// Clocks of devices: frequency, steps, guesses.
    #[default]
    Clocks,
}

impl FindingKind {
    /// Its stable name.
    pub fn name(self) -> String {
        let name = serde_json::to_value(self).ok();
        let name = name.and_then(|name| name.as_str().map(str::to_owned));
        name.unwrap_or_default()
    }
}

/// A number that a finding is by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measure {
    /// What of: stable, as in a column's name.
    pub name: &'static str,
    /// How much.
    pub value: f64,
    /// `s`, `us`, `percent`, `MHz`, `bytes`; empty: a number of things.
    pub unit: &'static str,
}

/// Where a finding is seen; parts may be unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SeenAt {
    /// Rank.
    pub rank: Option<u32>,
    /// Device.
    pub device: Option<String>,
    /// Process.
    pub pid: Option<i64>,
    /// Thread.
    pub tid: Option<i64>,
    /// Begin of the longest stretch of it, microseconds since the first event of the trace.
    pub start_us: Option<f64>,
    /// End of that.
    pub end_us: Option<f64>,
    /// Function, line, operator or kernel.
    pub name: Option<String>,
    /// What it costs there, nanoseconds.
    pub cost_ns: Option<u64>,
}

/// Limits that a cost must pass before a finding is reported.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Threshold {
    /// Its cost in percent of the time it is part of.
    pub percent: f64,
    /// Its cost, microseconds.
    pub least_us: f64,
}

/// Something that was found, in words and numbers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Finding {
    /// Kind of the conclusion.
    pub kind: FindingKind,
    /// Its subject, by which `aiprof diff` recognizes it: a line, a kernel, a rank.
    pub subject: String,
    /// How much it matters.
    pub weight: Weight,
    /// One sentence: the conclusion first.
    pub text: String,
    /// Wall time that could be won at most, nanoseconds; `None`: it is no loss of time, or
    /// not known. Costs of findings overlap: they are not to be added.
    pub cost_ns: Option<u64>,
    /// How the cost is computed.
    pub cost_is: Option<&'static str>,
    /// Numbers that it is by.
    pub numbers: Vec<Measure>,
    /// Where it is seen, the most expensive first.
    pub places: Vec<SeenAt>,
    /// The same in words, a line each.
    pub evidence: Vec<String>,
    /// What to try.
    pub advice: Option<&'static str>,
    /// What it passed.
    pub threshold: Option<Threshold>,
}

/// Puts findings in order: what costs most first, then what is wrong with the traces, then
/// what is good to know; clocks last.
pub(crate) fn rank(findings: &mut [Finding]) {
    findings.sort_by_key(|finding| {
        let cost = std::cmp::Reverse(finding.cost_ns.unwrap_or(0));
        let is_clock = finding.kind == FindingKind::Clocks;
        (cost, finding.weight, is_clock)
    });
}
