//! The kernel that takes most of a device's time, and the line at which it stalls most.

use super::rules::{keep, ns, time};
use super::{LINES, Scene, cut, measure, percent, short};
use crate::analyze::device_stalls::{
    InstructionStalls, KernelStalls, SourcePlace, TimedStalls, Why, meaning,
};
use crate::finding::{Finding, FindingKind, SeenAt};
use aiprof_model::profile::StallReason;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Fewest samples of a kernel: then a fifth of them is known to four points.
const SAMPLES: u64 = 100;
/// Part of a kernel's samples, percent, that must stall at one place for one reason.
const DOMINANT: f64 = 20.0;
/// Part of the device's time, percent, that the kernel must take.
const HOT: f64 = 20.0;

/// What to try against stalls for a reason.
fn advice(reason: StallReason) -> &'static str {
    match reason {
        StallReason::Sbid => {
            "The instruction that holds the token is slow. If it is a load: reuse data in \
             registers or local memory, load earlier (prefetch, unroll), or use wider and \
             independent loads. If it is math or a matrix product: put more independent \
             instructions before its use."
        }
        StallReason::DistAcc => {
            "Results are used immediately after the instruction that computes them. Unroll, or \
             interleave independent chains (several accumulators)."
        }
        StallReason::Send => {
            "Messages are sent faster than they are accepted. Use fewer and wider loads and \
             stores, keep data in registers, and reduce spills."
        }
        StallReason::PipeStall => {
            "The pipe is the limit. Use fewer instructions of its type, another data type, or the \
             matrix unit."
        }
        StallReason::Sync => {
            "Threads reach the barrier at different times, or too often. Balance their work, or \
             use smaller work groups or fewer barriers."
        }
        StallReason::Control => {
            "Use fewer branches: unroll the loop, or select values instead of branching."
        }
        StallReason::InstFetch => {
            "The code does not stay in the instruction cache. Unroll and inline less, or use \
             smaller kernels."
        }
        StallReason::Tdr => {
            "Pixels are drawn over each other at one place. Order them, or draw fewer."
        }
        StallReason::Active | StallReason::Other => {
            "Run `aiprof stalls` to see the instructions around it."
        }
    }
}

/// Where samples of a kernel stall for a reason.
#[derive(Debug)]
struct StallPlace<'k> {
    reason: StallReason,
    count: u64,
    /// The line, else the offset.
    name: String,
    /// The instruction with most of these samples, and how many.
    instruction: &'k InstructionStalls,
    most: u64,
}

/// A kernel that takes most of its device's time.
struct HotKernel<'k> {
    it: &'k TimedStalls,
    place: StallPlace<'k>,
    others: Vec<StallPlace<'k>>,
    us: f64,
    cost_us: f64,
    device_us: f64,
}

/// Looks for the stall that costs most.
pub(super) fn find(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let stalls = &scene.outcome.stalls;
    let mut whole: FxHashMap<&str, f64> = FxHashMap::default();
    for it in stalls {
        *whole.entry(&it.stalls.device).or_default() += it.device_ns / 1000.0;
    }
    let mut hottest: BTreeMap<&str, &TimedStalls> = BTreeMap::new();
    for it in stalls {
        let most = hottest.entry(&it.stalls.device).or_insert(it);
        if it.device_ns > most.device_ns {
            *most = it;
        }
    }
    let found = hottest.into_iter();
    let found = found.filter_map(|(device, it)| hot(it, whole.get(device).copied()?));
    let mut found: Vec<HotKernel<'_>> = found.collect();
    found.sort_by(|a, b| b.cost_us.total_cmp(&a.cost_us));
    if let Some(first) = found.first() {
        keep(finding(first, &found), scene.elapsed_us, findings);
    }
}

/// What a kernel stalls at, if it is hot and one place is where.
fn hot(it: &TimedStalls, device_us: f64) -> Option<HotKernel<'_>> {
    let samples = it.stalls.samples.total();
    let us = it.device_ns / 1000.0;
    if samples < SAMPLES || percent(us, device_us) < HOT {
        return None;
    }
    let mut places = places(&it.stalls);
    places.truncate(LINES);
    let first = (!places.is_empty()).then(|| places.remove(0))?;
    let share = first.count as f64 / samples as f64;
    (share * 100.0 >= DOMINANT).then_some(HotKernel {
        it,
        place: first,
        others: places,
        us,
        cost_us: us * share,
        device_us,
    })
}

/// Where a kernel stalls, for each reason by itself; the most frequent first.
fn places(kernel: &KernelStalls) -> Vec<StallPlace<'_>> {
    let mut found: BTreeMap<(String, StallReason), StallPlace<'_>> = BTreeMap::new();
    for instruction in &kernel.instructions {
        let line = line(&instruction.place);
        let Some(name) = line.or_else(|| Some(format!("{:#x}", instruction.offset?))) else {
            continue;
        };
        for (reason, count) in instruction.samples.reasons() {
            if reason == StallReason::Active {
                continue;
            }
            let place = found
                .entry((name.clone(), reason))
                .or_insert_with(|| StallPlace {
                    reason,
                    count: 0,
                    name: name.clone(),
                    instruction,
                    most: 0,
                });
            place.count = place.count.saturating_add(count);
            if count > place.most {
                (place.instruction, place.most) = (instruction, count);
            }
        }
    }
    let mut found: Vec<_> = found.into_values().collect();
    found.sort_by_key(|place| std::cmp::Reverse(place.count));
    found
}

/// `gemm.cl:47`: the innermost.
fn line(place: &SourcePlace) -> Option<String> {
    let frame = place.last().filter(|frame| frame.line > 0)?;
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    Some(format!("{file}:{}", frame.line))
}

/// `0x200 send.ugm`.
fn instruction(kernel: &KernelStalls, of: &InstructionStalls) -> Option<String> {
    let offset = of.offset?;
    let found = of.index.and_then(|index| kernel.instruction(index));
    Some(match found {
        Some(instruction) => format!("{offset:#x} {}", instruction.mnemonic),
        None => format!("{offset:#x}"),
    })
}

fn finding(hot: &HotKernel<'_>, all: &[HotKernel<'_>]) -> Finding {
    let (kernel, place) = (&hot.it.stalls, &hot.place);
    let total = kernel.samples.total();
    let share = percent(place.count as f64, total as f64);
    let text = format!(
        "{} takes {} of {} on {}, and {share:.0} % of its samples stall at {} ({}): {}.",
        short(&kernel.name),
        time(hot.us),
        time(hot.device_us),
        kernel.device,
        place.name,
        place.reason.name(),
        meaning(place.reason),
    );
    let is_same = |other: &&HotKernel<'_>| {
        let (one, two) = (&other.place, place);
        other.it.stalls.name == kernel.name && (&one.name, one.reason) == (&two.name, two.reason)
    };
    let seen = all.iter().filter(is_same).map(|other| SeenAt {
        device: Some(other.it.stalls.device.clone()),
        name: Some(format!("{} in {}", other.place.name, kernel.name)),
        cost_ns: Some(ns(other.cost_us)),
        ..SeenAt::default()
    });
    Finding {
        kind: FindingKind::KernelStall,
        subject: format!("{} at {}", kernel.name, place.name),
        text,
        cost_ns: Some(ns(hot.cost_us)),
        numbers: vec![
            measure("kernel", hot.us / 1e6, "s"),
            measure("of", hot.device_us / 1e6, "s"),
            measure("share", percent(hot.us, hot.device_us), "percent"),
            measure("stalled_here", share, "percent"),
            measure(
                "stalled",
                percent(kernel.samples.stalled() as f64, total as f64),
                "percent",
            ),
            measure("samples", total as f64, ""),
        ],
        places: seen.take(LINES).collect(),
        evidence: evidence(hot),
        advice: Some(advice(place.reason)),
        ..Finding::default()
    }
}

fn evidence(hot: &HotKernel<'_>) -> Vec<String> {
    let kernel = &hot.it.stalls;
    let total = kernel.samples.total();
    let row = |place: &StallPlace<'_>| {
        let at = instruction(kernel, place.instruction);
        let at = at.filter(|at| *at != place.name);
        let at = at.map_or(String::new(), |at| format!(", most of them at {at}"));
        format!(
            "{}, {}: {} of {total} samples{at}",
            place.name,
            place.reason.name(),
            place.count
        )
    };
    let mut lines = vec![row(&hot.place)];
    let why = hot.place.instruction.why.iter();
    let mut why = why.filter(|(reason, ..)| *reason == hot.place.reason);
    lines.extend(why.next().map(|(.., why)| because(kernel, why)));
    lines.extend(kernel.hints.iter().cloned());
    lines.extend(hot.others.iter().map(row));
    if let Err(why) = &kernel.code {
        lines.push(why.clone());
    }
    cut(lines)
}

/// What is waited for.
fn because(kernel: &KernelStalls, why: &Why) -> String {
    let producers = why.producers.iter().filter_map(|producer| {
        let found = kernel.instruction(producer.instruction)?;
        let line = line(&kernel.place(producer.instruction));
        let line = line.map_or(String::new(), |line| format!(" ({line})"));
        Some(format!("{:#x} {}{line}", found.offset, found.mnemonic))
    });
    let producers: Vec<String> = producers.collect();
    match producers.is_empty() {
        true => why.text.clone(),
        false => format!("{}: {}", why.text, producers.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::device_stalls::{Sampled, Tally};
    use crate::analyze::pipeline::Outcome;
    use crate::work::SharedWork;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene;

    fn kernel(name: &str, ms: f64, rows: &[(u64, StallReason, u64)]) -> TimedStalls {
        let rows = rows.iter().map(|(offset, reason, count)| {
            let mut tally = Tally::default();
            tally.counts[*reason as usize] = *count;
            (Some(*offset), tally)
        });
        let sampled = Sampled {
            device: "card0 gt0".to_owned(),
            kernel: name.to_owned(),
            code: Err("code not known".to_owned()),
            rows: rows.collect(),
        };
        TimedStalls {
            device_ns: ms * 1e6,
            stalls: KernelStalls::of(sampled),
        }
    }

    fn found(stalls: Vec<TimedStalls>) -> Vec<Finding> {
        let outcome = Outcome {
            stalls,
            ..Outcome::default()
        };
        super::super::find(
            &scene::empty(Dialect::Torch),
            &outcome,
            &SharedWork::default(),
            1e6,
        )
        .0
    }

    #[test]
    fn the_hottest_kernels_dominant_stall_is_found() {
        let hot = || {
            let (sbid, pipe) = (StallReason::Sbid, StallReason::PipeStall);
            let active = StallReason::Active;
            kernel(
                "gemm",
                400.0,
                &[(64, sbid, 60), (64, active, 10), (80, pipe, 50)],
            )
        };
        let small = || kernel("add", 100.0, &[(0, StallReason::Sync, 500)]);
        let all = found(vec![small(), hot()]);
        let [one] = &all[..] else { panic!("{all:?}") };
        // 400 ms times 60 of 120.
        assert_eq!(one.cost_ns, Some(200_000_000));
        assert_eq!(one.kind, FindingKind::KernelStall);
        assert_eq!(one.subject, "gemm at 0x40");
        assert!(
            one.text
                .contains("50 % of its samples stall at 0x40 (sbid)"),
            "{}",
            one.text
        );
        assert_eq!(one.evidence[0], "0x40, sbid: 60 of 120 samples");
        assert_eq!(one.advice, Some(advice(StallReason::Sbid)));
    }

    #[test]
    fn what_is_even_rare_or_short_is_not() {
        let even: Vec<_> = (0..10).map(|at| (at * 16, StallReason::Sbid, 40)).collect();
        assert!(found(vec![kernel("even", 400.0, &even)]).is_empty());
        let few = [(0, StallReason::Sbid, SAMPLES - 1)];
        assert!(found(vec![kernel("few", 400.0, &few)]).is_empty());
        // 5 % of a second.
        let all = [(0, StallReason::Sbid, 1000)];
        assert!(found(vec![kernel("short", 49.0, &all)]).is_empty());
        assert_eq!(found(vec![kernel("long", 51.0, &all)]).len(), 1);
        let busy = [(0, StallReason::Active, 1000)];
        assert!(found(vec![kernel("busy", 400.0, &busy)]).is_empty());
    }
}
