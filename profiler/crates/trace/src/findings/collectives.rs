//! Waste in collectives: ranks that wait for one that comes late, collectives that nothing
//! is computed behind, and single ones that are slow.

use super::rules::{keep, ns, time};
use super::{Scene, cut, measure, percent, times};
use crate::device_time::DeviceTime;
use crate::finding::{Finding, FindingKind, SeenAt};
use crate::ranks::{Collectives, Matched};
use crate::work::WorkClass;
use aiprof_model::timeline::Time;
use std::collections::BTreeMap;

/// Part of all waits that one rank must be the cause of to be called late.
const ONE_RANK: f64 = 0.5;
/// Collectives of a size that have a median worth comparing with.
const ALIKE: usize = 5;
/// Collectives that take this many times the median of their like are slow.
const SLOW: f64 = 2.0;

/// What ranks lose by one that comes last.
#[derive(Clone, Default)]
struct Lateness {
    /// What could be won, microseconds.
    us: f64,
    /// Collectives that it is the last of.
    times: u64,
    /// The one with the longest wait: that, and its stretch.
    worst: Option<(f64, Time, Time)>,
}

/// Looks for waste in collectives.
pub(super) fn find(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let matched = Collectives::of(scene.timeline, scene.index, scene.outcome).matched;
    let mut waited: BTreeMap<u32, f64> = BTreeMap::new();
    let mut late: BTreeMap<u32, Lateness> = BTreeMap::new();
    for one in &matched {
        take(one, &mut late, &mut waited);
    }
    late_rank(scene, &late, &waited, matched.len(), findings);
    exposed(scene, &waited, findings);
    slow(scene, findings);
}

fn take(one: &Matched, late: &mut BTreeMap<u32, Lateness>, waited: &mut BTreeMap<u32, f64>) {
    let Some(last) = one.last() else { return };
    for part in &one.parts {
        *waited.entry(part.rank).or_default() += part.waited_us;
    }
    let others = one.parts.iter().filter(|part| part.rank != last.rank);
    let mut others: Vec<f64> = others.map(|part| part.waited_us).collect();
    others.sort_by(f64::total_cmp);
    let us = others
        .get((others.len().saturating_sub(1)) / 2)
        .copied()
        .unwrap_or(0.0);
    let it = late.entry(last.rank).or_default();
    it.us += us;
    it.times += u64::from(us > 0.0);
    if it.worst.is_none_or(|(worst, ..)| us > worst) {
        it.worst = Some((us, last.start, last.end));
    }
}

fn late_rank(
    scene: &Scene<'_>,
    late: &BTreeMap<u32, Lateness>,
    waited: &BTreeMap<u32, f64>,
    collectives: usize,
    findings: &mut Vec<Finding>,
) {
    let all: f64 = late.values().map(|one| one.us).sum();
    let Some((rank, worst)) = late.iter().max_by(|a, b| a.1.us.total_cmp(&b.1.us)) else {
        return;
    };
    if worst.us < ONE_RANK * all {
        return;
    }
    let whole = whole(scene);
    let (us, text_us) = (worst.us, time(worst.us));
    let mut rows: Vec<(&u32, &f64)> = waited.iter().collect();
    rows.sort_by(|a, b| b.1.total_cmp(a.1));
    let lines = rows.iter().map(|(rank, us)| {
        let last = late.get(rank).map_or(0, |one| one.times);
        format!(
            "rank {rank}: waited {} in {collectives} collectives and was last in {last}",
            time(**us)
        )
    });
    let finding = Finding {
        kind: FindingKind::LateRank,
        subject: format!("rank {rank}"),
        text: format!(
            "The other ranks wait {text_us} of {} in collectives for rank {rank}, which is last in \
             {} of {collectives}.",
            time(whole),
            worst.times
        ),
        cost_ns: Some(ns(us)),
        numbers: vec![
            measure("waiting", us / 1e6, "s"),
            measure("of", whole / 1e6, "s"),
            measure("share", percent(us, whole), "percent"),
            measure("last", worst.times as f64, ""),
            measure("collectives", collectives as f64, ""),
        ],
        places: vec![SeenAt {
            rank: Some(*rank),
            start_us: worst.worst.map(|(_, from, _)| scene.since(from)),
            end_us: worst.worst.map(|(_, _, to)| scene.since(to)),
            cost_ns: Some(ns(us)),
            ..SeenAt::default()
        }],
        evidence: cut(lines.collect()),
        ..Finding::default()
    };
    keep(finding, whole, findings);
}

/// The longest time that a device is looked at, microseconds.
fn whole(scene: &Scene<'_>) -> f64 {
    let devices = scene.devices.iter();
    devices.map(DeviceTime::elapsed_us).fold(0.0, f64::max)
}

/// Collectives that nothing is computed behind.
fn exposed(scene: &Scene<'_>, waited: &BTreeMap<u32, f64>, findings: &mut Vec<Finding>) {
    let rows = scene.devices.iter().filter_map(|device| {
        let collectives = device.running(&[WorkClass::Communication]);
        let kernels = device.running(&[WorkClass::Compute]);
        let (all, alone) = (collectives.us(), collectives.without(&kernels));
        let waits = waited.get(&device.rank.rank).copied().unwrap_or(0.0);
        let us = (alone.us() - waits).min(kernels.without(&collectives).us());
        (us > 0.0).then_some((device, us, all, alone))
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    let Some((device, us, all, alone)) = rows.first() else {
        return;
    };
    let (whole, name) = (device.elapsed_us(), scene.device(device));
    let lines = rows.iter().map(|(device, _, all, alone)| {
        let name = scene.device(device);
        let hidden = percent(all - alone.us(), *all);
        format!(
            "{name}: {} in collectives, {hidden:.1} % of it hidden behind kernels",
            time(*all)
        )
    });
    let finding = Finding {
        kind: FindingKind::CommunicationNotHidden,
        subject: "collectives".to_owned(),
        text: format!(
            "For {} of {}, {name} runs collectives and computes nothing.",
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
        evidence: cut(lines.collect()),
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
        let at = start - scene.first.micros();
        format!(
            "{name} at {at:.3} us: {}, median of similar collectives {}",
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
