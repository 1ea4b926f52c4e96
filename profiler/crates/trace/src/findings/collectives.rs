//! Waste in collectives and messages: ranks that wait for one that comes late, collectives that nothing
//! is computed behind, and single ones that are slow.

use super::rules::{keep, ns, time};
use super::{Scene, cut, measure, percent, times};
use crate::device_time::DeviceTime;
use crate::finding::{Finding, FindingKind, SeenAt};
use crate::ranks::{Collectives, Matched};
use crate::stretches::Stretches;
use crate::work::WorkClass;
use aiprof_model::timeline::Time;
use std::collections::BTreeMap;

/// Part of all waits that one rank must be the cause of to be called late.
const ONE_RANK: f64 = 0.5;
/// Collectives of a size that have a median worth comparing with.
const ALIKE: usize = 5;
/// Collectives that take this many times the median of their like are slow.
const SLOW: f64 = 2.0;

/// Ranks that are named as late: those that cost most.
const NAMED: usize = 3;

/// What ranks lose by one that comes last.
#[derive(Clone, Default)]
struct Lateness {
    /// What could be won, microseconds.
    us: f64,
    /// Collectives or messages that it is the last of.
    times: u64,
    /// The one with the longest wait: that, and its stretch.
    worst: Option<(f64, Time, Time)>,
}

/// What one rank did in the collectives of the same ranks, or their messages.
#[derive(Clone, Copy, Default)]
struct RankWaits {
    waited_us: f64,
    last: u64,
}

/// Collectives of the same ranks, or messages between two.
#[derive(Clone, Default)]
struct RankGroup {
    count: u64,
    late: BTreeMap<u32, Lateness>,
    members: BTreeMap<u32, RankWaits>,
}

/// Looks for waste in collectives and messages.
pub(super) fn find(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let found = Collectives::of(scene.timeline, scene.index, scene.outcome);
    let mut waited: BTreeMap<u32, f64> = BTreeMap::new();
    for part in found
        .matched
        .iter()
        .chain(&found.messages)
        .flat_map(|one| &one.parts)
    {
        *waited.entry(part.rank).or_default() += part.waited_us;
    }
    late_ranks(scene, &found.matched, false, findings);
    late_ranks(scene, &found.messages, true, findings);
    exposed(scene, &found, &waited, findings);
    slow(scene, findings);
}

impl RankGroup {
    fn take(&mut self, one: &Matched) {
        let Some(last) = one.last() else { return };
        self.count += 1;
        for part in &one.parts {
            self.members.entry(part.rank).or_default().waited_us += part.waited_us;
        }
        let others = one.parts.iter().filter(|part| part.rank != last.rank);
        let mut others: Vec<f64> = others.map(|part| part.waited_us).collect();
        others.sort_by(f64::total_cmp);
        let us = others
            .get((others.len().saturating_sub(1)) / 2)
            .copied()
            .unwrap_or(0.0);
        let it = self.late.entry(last.rank).or_default();
        it.us += us;
        it.times += u64::from(us > 0.0);
        self.members.entry(last.rank).or_default().last += u64::from(us > 0.0);
        if it.worst.is_none_or(|(worst, ..)| us > worst) {
            it.worst = Some((us, last.start, last.end));
        }
    }

    /// The rank that causes most waits, if these are enough of all.
    fn latest(&self) -> Option<(u32, &Lateness)> {
        let all: f64 = self.late.values().map(|one| one.us).sum();
        let late = self.late.iter();
        let (rank, worst) = late.max_by(|a, b| a.1.us.total_cmp(&b.1.us))?;
        (worst.us >= ONE_RANK * all && worst.us > 0.0).then_some((*rank, worst))
    }
}

/// A rank that is late in one or more groups.
#[derive(Default)]
struct LateRank {
    lateness: Lateness,
    /// Collectives or messages of these groups.
    count: u64,
    /// What each rank did in these: with their number.
    members: BTreeMap<u32, (RankWaits, u64)>,
}

/// Ranks that others wait for, by the groups of ranks in which they do.
fn late_ranks(
    scene: &Scene<'_>,
    matched: &[Matched],
    is_message: bool,
    findings: &mut Vec<Finding>,
) {
    let mut groups: BTreeMap<Vec<u32>, RankGroup> = BTreeMap::new();
    for one in matched {
        let mut ranks: Vec<u32> = one.parts.iter().map(|part| part.rank).collect();
        ranks.sort_unstable();
        groups.entry(ranks).or_default().take(one);
    }
    let mut found: BTreeMap<u32, LateRank> = BTreeMap::new();
    for group in groups.values() {
        let Some((rank, worst)) = group.latest() else {
            continue;
        };
        let late = found.entry(rank).or_default();
        let all = &mut late.lateness;
        all.us += worst.us;
        all.times += worst.times;
        if all.worst.map(|one| one.0) < worst.worst.map(|one| one.0) {
            all.worst = worst.worst;
        }
        late.count += group.count;
        for (rank, member) in &group.members {
            let (sum, count) = late.members.entry(*rank).or_default();
            sum.waited_us += member.waited_us;
            sum.last += member.last;
            *count += group.count;
        }
    }
    let mut found: Vec<(u32, LateRank)> = found.into_iter().collect();
    found.sort_by(|a, b| b.1.lateness.us.total_cmp(&a.1.lateness.us));
    for (rank, late) in found.iter().take(NAMED) {
        late_rank(scene, *rank, late, is_message, findings);
    }
}

fn late_rank(
    scene: &Scene<'_>,
    rank: u32,
    late: &LateRank,
    is_message: bool,
    findings: &mut Vec<Finding>,
) {
    let what = match is_message {
        true => "messages",
        false => "collectives",
    };
    let whole = whole(scene);
    let (us, count, last) = (late.lateness.us, late.count, late.lateness.times);
    let mut rows: Vec<_> = late.members.iter().collect();
    rows.sort_by(|a, b| b.1.0.waited_us.total_cmp(&a.1.0.waited_us));
    let lines = rows.iter().map(|(rank, (member, count))| {
        format!(
            "rank {rank}: waited {} in {count} {what} and was last in {}",
            time(member.waited_us),
            member.last
        )
    });
    let worst = late.lateness.worst;
    let finding = Finding {
        kind: FindingKind::LateRank,
        subject: format!("rank {rank}"),
        text: format!(
            "The other ranks wait {} of {} in {what} for rank {rank}, which is last in {last} of \
             {count}.",
            time(us),
            time(whole),
        ),
        cost_ns: Some(ns(us)),
        numbers: vec![
            measure("waiting", us / 1e6, "s"),
            measure("of", whole / 1e6, "s"),
            measure("share", percent(us, whole), "percent"),
            measure("last", last as f64, ""),
            measure(what, count as f64, ""),
        ],
        places: vec![SeenAt {
            rank: Some(rank),
            start_us: worst.map(|(_, from, _)| scene.since(from)),
            end_us: worst.map(|(_, _, to)| scene.since(to)),
            cost_ns: Some(ns(us)),
            ..SeenAt::default()
        }],
        evidence: cut(lines.collect()),
        advice: is_message.then_some(
            "Give this rank less work or smaller parts, so that it sends and receives earlier \
             (more micro-batches, other stages). Then examine its data and its machine.",
        ),
        ..Finding::default()
    };
    keep(finding, whole, findings);
}

/// The longest time that a device is looked at, microseconds.
fn whole(scene: &Scene<'_>) -> f64 {
    let devices = scene.devices.iter();
    devices.map(DeviceTime::elapsed_us).fold(0.0, f64::max)
}

/// What the kernels of a rank that communicate are part of, and what the device does then.
fn words(found: &Collectives, rank: u32) -> (&'static str, &'static str) {
    match found.kernels.get(&rank) {
        Some((0, messages)) if *messages > 0 => ("messages", "sends and receives messages"),
        Some((_, messages)) if *messages > 0 => (
            "collectives and messages",
            "runs collectives, sends and receives",
        ),
        _ => ("collectives", "runs collectives"),
    }
}

/// A device, what it could hide, its time in collectives and messages, and that with nothing beside.
type Exposed<'d> = (&'d DeviceTime<'d>, f64, f64, Stretches);

/// How much of its communication each device hides.
fn exposed_lines(scene: &Scene<'_>, found: &Collectives, rows: &[Exposed<'_>]) -> Vec<String> {
    let lines = rows.iter().map(|(device, _, all, alone)| {
        let name = scene.device(device);
        let hidden = percent(all - alone.us(), *all);
        let (what, _) = words(found, device.rank.rank);
        format!(
            "{name}: {} in {what}, {hidden:.1} % of it hidden behind kernels",
            time(*all)
        )
    });
    let mut lines = cut(lines.collect());
    if found.unpaired > 0 {
        lines.push(format!(
            "{} kernels that send or receive: the traces do not show for whom they wait, so their \
             times include these waits",
            found.unpaired
        ));
    }
    lines
}

/// Collectives and messages that nothing is computed behind.
fn exposed(
    scene: &Scene<'_>,
    found: &Collectives,
    waited: &BTreeMap<u32, f64>,
    findings: &mut Vec<Finding>,
) {
    let rows = scene.devices.iter().filter_map(|device| {
        let collectives = device.running(&[WorkClass::Communication]);
        let kernels = device.running(&[WorkClass::Compute]);
        let (all, alone) = (collectives.us(), collectives.without(&kernels));
        let waits = waited.get(&device.rank.rank).copied().unwrap_or(0.0);
        let us = (alone.us() - waits).min(kernels.without(&collectives).us());
        (us > 0.0).then_some((device, us, all, alone))
    });
    let mut rows: Vec<Exposed<'_>> = rows.collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    let Some((device, us, all, alone)) = rows.first() else {
        return;
    };
    let (whole, name) = (device.elapsed_us(), scene.device(device));
    let (what, does) = words(found, device.rank.rank);
    let finding = Finding {
        kind: FindingKind::CommunicationNotHidden,
        subject: what.to_owned(),
        text: format!(
            "For {} of {}, {name} {does} and computes nothing.",
            time(*us),
            time(whole)
        ),
        cost_ns: Some(ns(*us)),
        numbers: vec![
            measure("alone", alone.us() / 1e6, "s"),
            measure("communication", all / 1e6, "s"),
            measure("of", whole / 1e6, "s"),
            measure("share", percent(*us, whole), "percent"),
        ],
        places: rows
            .iter()
            .map(|(device, us, _, alone)| scene.at(device, alone.longest(), *us))
            .collect(),
        evidence: exposed_lines(scene, found, &rows),
        advice: (what == "messages").then_some(
            "Send earlier and in smaller parts, and compute while messages are on their way (more \
             micro-batches, another stream).",
        ),
        ..Finding::default()
    };
    keep(finding, whole, findings);
}

/// Collectives of AIUs that take much longer than others of their size and ranks.
fn slow(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    type Like = (i64, usize, String);
    let mut alike: BTreeMap<Like, Vec<(f64, f64, &str)>> = BTreeMap::new();
    for one in &scene.outcome.collectives.collectives {
        let like = (one.bytes, one.spans.len(), one.algorithm.to_string());
        let group = scene.timeline.name(one.group);
        let length = one.end_us - one.start_us;
        alike
            .entry(like)
            .or_default()
            .push((length, one.start_us, group));
    }
    let (mut lost, mut found) = (0.0, Vec::new());
    for mut group in alike.into_values().filter(|group| group.len() >= ALIKE) {
        group.sort_by(|a, b| a.0.total_cmp(&b.0));
        let median = group.get(group.len() / 2).map_or(0.0, |one| one.0);
        for (us, start, name) in group.iter().filter(|one| one.0 > SLOW * median) {
            lost += us - median;
            found.push((us - median, median, *us, *start, *name));
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let lines = found.iter().map(|(_, median, us, start, name)| {
        format!(
            "{name} at {start:.3} us: {}, median of similar collectives {}",
            time(*us),
            time(*median)
        )
    });
    let whole = whole(scene);
    let finding = Finding {
        kind: FindingKind::SlowCollectives,
        subject: "collectives".to_owned(),
        text: format!(
            "Slow collectives lose {} of {}: {} took more than twice the median for their size.",
            time(lost),
            time(whole),
            times(found.len() as u64, "collective")
        ),
        cost_ns: Some(ns(lost)),
        numbers: vec![
            measure("above", lost / 1e6, "s"),
            measure("of", whole / 1e6, "s"),
            measure("collectives", found.len() as f64, ""),
        ],
        places: Vec::new(),
        evidence: cut(lines.collect()),
        ..Finding::default()
    };
    keep(finding, whole, findings);
}
