//! When waste is worth a word, what its cost is, and what to try against it: one table, with
//! what finds it.

use super::{Scene, collectives, compile, copies, idle, kernels, loader, stalls};
use crate::finding::{Finding, FindingKind, Threshold};
use FindingKind as Kind;

/// The threshold, cost and advice for a kind of waste.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// Kind.
    pub(super) kind: FindingKind,
    /// What its cost must pass.
    pub(super) threshold: Threshold,
    /// How its cost is computed.
    cost_is: &'static str,
    /// What to try.
    advice: &'static str,
}

/// Least cost of all, microseconds: less is not worth a finding.
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

/// A search for waste, and the rules of what it finds.
pub(super) struct WasteSearch {
    /// Adds what it finds, if it costs enough.
    pub(super) find: fn(&Scene<'_>, &mut Vec<Finding>),
    /// A rule for each kind.
    rules: &'static [Rule],
}

/// All searches, in the order in which they are made. `docs/findings.md` has the same numbers
/// with their reasons.
pub(super) const SEARCHES: [WasteSearch; 7] = [
    WasteSearch {
        find: idle::find,
        rules: &[
            rule(
                Kind::LaunchStarved,
                5.0,
                "idle time until the launch call of the next operation returned, on the device with the \
                 most such time",
                "Launch earlier or from another thread, move this host work out of the loop, or give the \
                 device more work per launch (larger batches, torch.compile, graphs).",
            ),
            rule(
                Kind::SynchronousWait,
                2.0,
                "idle time of the device after each wait of the host, at most the length of the wait",
                "Do not wait in the loop: read results later, use events or non_blocking copies, and call \
                 .item(), print(tensor) and synchronize() only every N steps.",
            ),
            rule(
                Kind::ShortKernels,
                2.0,
                "idle time of the device before kernels that are shorter than their launches",
                "Fuse the kernels (torch.compile), capture the loop in a graph (CUDA graphs, command \
                 lists), or give each kernel more work.",
            ),
            rule(
                Kind::ProfilerOverhead,
                2.0,
                "idle time of the device while the profiler that wrote the trace worked for itself \
                 before or in the next launch",
                "The program does not lose this time without the profiler. For a truer trace, begin to \
                 record a few steps earlier (warmup), or record fewer kinds of events.",
            ),
            rule(
                Kind::PrepQueueStarved,
                5.0,
                "idle time of the device while a computation was being prepared for it",
                "Prepare further ahead: use more control blocks in flight, larger supernodes or \
                 autopilot.",
            ),
            rule(
                Kind::DeviceIdle,
                10.0,
                "idle time between the device's first and last operation, without a known cause",
                "Record host calls too, so that aiprof can match kernels with their launches.",
            ),
        ],
    },
    WasteSearch {
        find: copies::find,
        rules: &[
            rule(
                Kind::CopyNotOverlapped,
                2.0,
                "time in which a copy between host and device ran and no kernel did; at most the time in \
                 which a kernel ran and no copy did",
                "While the kernels of the previous step run, copy on a separate stream, from pinned memory \
                 with non_blocking=True.",
            ),
            rule(
                Kind::PageableCopy,
                2.0,
                "time in which no kernel ran while copies of pageable memory ran or their calls blocked \
                 the host",
                "Pin the memory (pin_memory=True in the DataLoader, cudaHostAlloc), and copy with \
                 non_blocking=True.",
            ),
        ],
    },
    WasteSearch {
        find: loader::find,
        rules: &[rule(
            Kind::DataloaderStall,
            2.0,
            "idle time of the device while the launching thread waited for data; without a device, all \
                 time of these waits",
            "Use more workers (num_workers), a larger prefetch_factor and persistent_workers, and do \
                 less work per sample.",
        )],
    },
    WasteSearch {
        find: compile::find,
        rules: &[
            rule(
                Kind::GraphBreaks,
                1.0,
                "time to compile the code behind the breaks",
                "Remove the code that breaks the graph, or move it out of the compiled function. \
                 fullgraph=True reports where it is.",
            ),
            rule(
                Kind::Recompilation,
                1.0,
                "time to compile functions that were already compiled",
                "Keep the values that guards check the same in every call, or mark shapes as dynamic \
                 (torch.compile(dynamic=True), mark_dynamic).",
            ),
        ],
    },
    WasteSearch {
        find: collectives::find,
        rules: &[
            rule(
                Kind::LateRank,
                2.0,
                "median wait of the other ranks for the rank that came last, summed over the collectives or \
                 messages of the same ranks",
                "Examine this rank: its data, its input, its clock, and other programs on its machine.",
            ),
            rule(
                Kind::CommunicationNotHidden,
                5.0,
                "time in which a collective or message ran and no kernel did, minus known waits for \
                 other ranks; at most the time in which a kernel ran and neither did",
                "Start collectives earlier, and compute while they run (gradient buckets, another stream).",
            ),
            rule(
                Kind::SlowCollectives,
                2.0,
                "time above the median of collectives of the same size and ranks",
                "Check the links between devices, and what else used them at these times.",
            ),
        ],
    },
    WasteSearch {
        find: kernels::find,
        rules: &[
            rule(
                Kind::Throttling,
                2.0,
                "extra time of kernels compared with the device's highest clock",
                "Check the temperature, power limit and clock settings of the device.",
            ),
            rule(
                Kind::Spills,
                2.0,
                "all device time of the kernel; the spills cause only a part of it",
                "Give the kernel more registers (large GRF mode, launch bounds), smaller tiles, or fewer \
                 live values.",
            ),
        ],
    },
    WasteSearch {
        find: stalls::find,
        rules: &[rule(
            Kind::KernelStall,
            5.0,
            "device time of the kernel, times the share of its samples that stall there for this \
                 reason; an upper bound, because another stall may take its place",
            "Run `aiprof stalls` to see the instructions around it.",
        )],
    },
];

/// It is about the report's kernels, so it is found with what is wrong with traces.
const LOW_UTILIZATION: Rule = rule(
    Kind::LowUtilization,
    5.0,
    "kernel time beyond the compiler's ideal time",
    "Check shapes and layouts of the kernels that lose the most time.",
);

/// The rules of all searches.
pub(super) fn all() -> impl Iterator<Item = &'static Rule> {
    let rules = SEARCHES.iter().flat_map(|search| search.rules);
    rules.chain([&LOW_UTILIZATION])
}

/// The rule of a kind.
fn of(kind: FindingKind) -> Option<&'static Rule> {
    all().find(|rule| rule.kind == kind)
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
