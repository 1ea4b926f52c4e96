//! Copies between host and device that run alone.

use super::device::is_pageable;
use super::host::event;
use super::rules::{keep, ns, time};
use super::{Scene, cut, measure, percent, times};
use crate::device_time::{DeviceTime, begins_before};
use crate::finding::{Finding, FindingKind};
use crate::stretches::Stretches;
use crate::work::{RankedWork, WorkClass, name_of};
use aiprof_model::timeline::{Kinds, Time, Timeline};
use rustc_hash::FxHashMap;

/// Looks for copies that nothing is done behind.
pub(super) fn find(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let kinds = Kinds::new(scene.timeline);
    for kind in [FindingKind::PageableCopy, FindingKind::CopyNotOverlapped] {
        let mut found: Vec<_> = scene
            .devices
            .iter()
            .filter_map(|device| Alone::of(scene, &kinds, device, kind))
            .collect();
        found.sort_by(|a, b| b.us.total_cmp(&a.us));
        if let Some(first) = found.first() {
            let whole = first.device.elapsed_us();
            keep(finding(scene, kind, first, &found), whole, findings);
        }
    }
}

/// Copies of a device, and when they ran alone.
struct Alone<'s> {
    device: &'s DeviceTime<'s>,
    copies: Vec<&'s RankedWork>,
    alone: Stretches,
    us: f64,
}

impl<'s> Alone<'s> {
    fn of(
        scene: &Scene<'_>,
        kinds: &Kinds,
        device: &'s DeviceTime<'s>,
        kind: FindingKind,
    ) -> Option<Self> {
        let timeline = scene.timeline;
        let wants_pageable = kind == FindingKind::PageableCopy;
        let is_wanted = |work: &&&RankedWork| {
            let Some(event) = event(timeline, work.event) else {
                return false;
            };
            let crosses = kinds.is_data_in(timeline, event) || kinds.is_data_out(timeline, event);
            work.class == WorkClass::Copy
                && crosses
                && is_pageable(name_of(timeline, event)) == wants_pageable
        };
        let kernels = device.running(&[WorkClass::Compute, WorkClass::Communication]);
        // What is copied before the first kernel has nothing to run beside it.
        let (from, to) = kernels.ends()?;
        let within = |work: &&&RankedWork| work.start >= from && work.end <= to;
        let copies = device.work.iter().filter(is_wanted).filter(within);
        let copies: Vec<&RankedWork> = copies.copied().collect();
        let ran = copies.iter().map(|copy| (copy.start, copy.end));
        let all = match wants_pageable {
            true => Stretches::of(ran.chain(blocked(timeline, device, &copies))),
            false => Stretches::of(ran),
        };
        let alone = all.without(&kernels).and(&Stretches::one(from, to));
        let us = match wants_pageable {
            true => alone.us(),
            false => alone.us().min(kernels.without(&all).us()),
        };
        (!copies.is_empty()).then_some(Self {
            device,
            copies,
            alone,
            us,
        })
    }
}

/// When calls that copy blocked their threads on behalf of the copy: until they returned, but
/// not while the copy's stream still had work from before.
fn blocked<'a>(
    timeline: &'a Timeline,
    device: &'a DeviceTime<'_>,
    copies: &'a [&RankedWork],
) -> impl Iterator<Item = (Time, Time)> + 'a {
    let mut free: FxHashMap<u32, Time> = FxHashMap::default();
    let mut before = device.work.iter().peekable();
    copies.iter().filter_map(move |copy| {
        while let Some(work) = before.next_if(|work| work.start < copy.start) {
            let end = free.entry(work.stream).or_insert(work.end);
            *end = work.end.max(*end);
        }
        let call = event(timeline, copy.call).filter(|call| !begins_before(copy, call))?;
        let from = free.get(&copy.stream).copied().max(Some(call.start))?;
        Some((from, call.end().min(copy.end)))
    })
}

fn finding(scene: &Scene<'_>, kind: FindingKind, first: &Alone<'_>, all: &[Alone<'_>]) -> Finding {
    let timeline = scene.timeline;
    let (us, whole) = (first.us, first.device.elapsed_us());
    let mut sums: FxHashMap<&str, (u64, f64, f64)> = FxHashMap::default();
    for work in &first.copies {
        let Some(event) = event(timeline, work.event) else {
            continue;
        };
        let bytes = timeline
            .arg(event, "bytes")
            .and_then(|text| text.parse::<f64>().ok());
        let sum = sums.entry(name_of(timeline, event)).or_default();
        *sum = (sum.0 + 1, sum.1 + work.us(), sum.2 + bytes.unwrap_or(0.0));
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.1.total_cmp(&a.1.1).then(a.0.cmp(b.0)));
    let subject = sums.first().map_or("", |(name, _)| *name).to_owned();
    let lines = sums.iter().map(|(name, (count, us, bytes))| {
        let rate = match *bytes > 0.0 && *us > 0.0 {
            true => format!(", {:.3} GB/s", bytes / us / 1e3),
            false => String::new(),
        };
        format!(
            "{name}: {}, {}{rate}",
            times(*count, "copy").replace("copys", "copies"),
            time(*us)
        )
    });
    let mut lines = cut(lines.collect());
    let each = all.iter().map(|one| {
        let copied: f64 = one.copies.iter().map(|work| work.us()).sum();
        let alone = one.alone.us();
        let name = scene.device(one.device);
        format!(
            "{name}: {} of copies, {} without a running kernel",
            time(copied),
            time(alone)
        )
    });
    lines.extend(cut(each.collect()));
    let name = scene.device(first.device);
    let what = match kind {
        FindingKind::PageableCopy => "pageable memory is copied",
        _ => "data is copied",
    };
    let places = all
        .iter()
        .map(|one| scene.at(one.device, one.alone.longest(), one.us));
    Finding {
        kind,
        text: format!(
            "For {} of {}, {what} while {name} runs no kernel: {subject}.",
            time(us),
            time(whole)
        ),
        subject,
        cost_ns: Some(ns(us)),
        numbers: vec![
            measure("alone", first.alone.us() / 1e6, "s"),
            measure("of", whole / 1e6, "s"),
            measure("share", percent(us, whole), "percent"),
            measure("copies", first.copies.len() as f64, ""),
        ],
        places: places.collect(),
        evidence: lines,
        ..Finding::default()
    }
}
