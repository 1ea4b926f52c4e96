//! When waste is worth a word, what its cost is, and what to try against it: one table.

use crate::analyze::finding::{Finding, FindingKind, Threshold};
use FindingKind as Kind;

/// What is said of a kind of waste.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// Kind.
    pub(crate) kind: FindingKind,
    /// What its cost must pass.
    pub(crate) threshold: Threshold,
    /// How its cost is computed.
    pub(crate) cost_is: &'static str,
    /// What to try.
    pub(crate) advice: &'static str,
}

/// Least cost of all, microseconds: nobody gains by less.
const LEAST_US: f64 = 1000.0;

const fn rule(
    kind: FindingKind,
    percent: f64,
    cost_is: &'static str,
    advice: &'static str,
) -> Rule {
    Rule {
        kind,
        threshold: Threshold {
            percent,
            least_us: LEAST_US,
        },
        cost_is,
        advice,
    }
}

/// All rules. `docs/findings.md` has the same numbers with their reasons.
pub(crate) const RULES: [Rule; 17] = [
    rule(
        Kind::LaunchStarved,
        5.0,
        "time in which the device had nothing to do and the call that launched its next work had \
         not returned, on the device with most of it",
        "Launch earlier or from another thread, move this work of the host out of the loop, or \
         let the device do more per launch (larger batches, torch.compile, graphs).",
    ),
    rule(
        Kind::SynchronousWait,
        2.0,
        "of each wait of the host for the device the time that the device idled behind it, at \
         most as long as the wait was",
        "Do not wait in the loop: read results later, use events or non_blocking copies, and \
         leave .item(), print(tensor) and synchronize() to every N-th step.",
    ),
    rule(
        Kind::ShortKernels,
        2.0,
        "time in which the device idled before kernels that take less than their launch",
        "Fuse them (torch.compile), capture the loop in a graph (CUDA graphs, command lists), or \
         give each more work.",
    ),
    rule(
        Kind::CopyNotOverlapped,
        2.0,
        "time of copies between host and device in which no kernel ran, at most as long as \
         kernels ran without a copy",
        "Copy on a stream of its own while the kernels of the step before run, from pinned \
         memory with non_blocking=True.",
    ),
    rule(
        Kind::PageableCopy,
        2.0,
        "time in which copies from and to pageable memory ran, or their calls blocked the host, \
         and no kernel ran",
        "Pin the memory (pin_memory=True in the DataLoader, cudaHostAlloc) and copy with \
         non_blocking=True.",
    ),
    rule(
        Kind::DataloaderStall,
        2.0,
        "time in which the device had nothing to do while its thread waited for data; without a \
         device: the whole time of these waits",
        "More workers (num_workers), prefetch_factor, persistent_workers, and less work per \
         sample.",
    ),
    rule(
        Kind::GraphBreaks,
        1.0,
        "time that it took to compile what is behind the breaks",
        "Take out what breaks the graph, or move it out of the compiled function; fullgraph=True \
         says where it is.",
    ),
    rule(
        Kind::Recompilation,
        1.0,
        "time that compilations of functions took that had been compiled before",
        "Keep what the guards check the same from call to call, or mark shapes as dynamic \
         (torch.compile(dynamic=True), mark_dynamic).",
    ),
    rule(
        Kind::LateRank,
        2.0,
        "how long the middle one of the other ranks waited in collectives for the rank that \
         came last, summed over them",
        "Look at that rank alone: its data, its input, its neighbours on the machine, its clock.",
    ),
    rule(
        Kind::CommunicationNotHidden,
        5.0,
        "time of collectives in which nothing was computed, without the waits for a late rank, \
         at most as long as kernels computed without a collective",
        "Start collectives earlier and let computation go on beside them (buckets of gradients, \
         another stream).",
    ),
    rule(
        Kind::SlowCollectives,
        2.0,
        "time above the median of collectives of the same size and ranks",
        "Look at links and at what else used them at those times.",
    ),
    rule(
        Kind::Throttling,
        2.0,
        "time of kernels above what they take at the device's highest clock",
        "Look at temperature, power limit and clock settings of the device.",
    ),
    rule(
        Kind::PrepQueueStarved,
        5.0,
        "time in which the device had nothing to do while a computation was being prepared for \
         it",
        "Prepare further ahead: more control blocks in flight, larger supernodes, autopilot on.",
    ),
    rule(
        Kind::Spills,
        2.0,
        "all device time of kernels that spill: what the spills themselves cost is a part of it",
        "Give the kernel more registers (large GRF mode, launch bounds), smaller tiles, or fewer \
         live values.",
    ),
    rule(
        Kind::KernelStall,
        5.0,
        "device time of the kernel, times the share of its samples that stall there for this \
         reason: an upper bound, as the next stall may take its place",
        "`aiprof stalls` shows the instructions around it.",
    ),
    rule(
        Kind::LowUtilization,
        5.0,
        "time of kernels beyond what the compiler has as ideal",
        "Look at shapes and layouts of the kernels that lose the most time.",
    ),
    rule(
        Kind::DeviceIdle,
        10.0,
        "time in which the device ran nothing between its first and last work and the trace \
         does not tell why",
        "Record with host calls, so that launches can be told from kernels.",
    ),
];

/// The rule of a kind.
fn of(kind: FindingKind) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.kind == kind)
}

/// Takes a finding in if it costs enough of `whole_us`; writes the rule into it. Advice of its
/// own stays.
pub(crate) fn keep(mut finding: Finding, whole_us: f64, into: &mut Vec<Finding>) {
    let Some(rule) = of(finding.kind) else {
        return;
    };
    let us = finding.cost_ns.unwrap_or(0) as f64 / 1000.0;
    let Threshold { percent, least_us } = rule.threshold;
    if us < least_us || us < whole_us * percent / 100.0 {
        return;
    }
    finding.cost_is = Some(rule.cost_is);
    finding.advice = finding.advice.or(Some(rule.advice));
    finding.threshold = Some(rule.threshold);
    into.push(finding);
}

/// Microseconds as whole nanoseconds.
pub(crate) fn ns(us: f64) -> u64 {
    (us * 1000.0).round().max(0.0) as u64
}

/// Microseconds in the unit that suits them: `1.234 s`, `56.7 ms`.
pub(crate) fn time(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.3} s", us / 1e6),
        us if us >= 1e3 => format!("{:.3} ms", us / 1e3),
        us => format!("{us:.1} us"),
    }
}
