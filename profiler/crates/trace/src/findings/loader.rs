//! Waits for data of traces without a device.

use super::host::is_loader;
use super::rules::{keep, ns, time};
use super::{Scene, measure, percent, times};
use crate::finding::{Finding, FindingKind, SeenAt};
use crate::stretches::Stretches;
use crate::work::name_of;
use aiprof_model::timeline::{Time, TrackId};
use rustc_hash::FxHashMap;

/// Looks for waits for data where no device shows what they cost.
pub(super) fn find(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    if !scene.devices.is_empty() {
        return;
    }
    let timeline = scene.timeline;
    let is_wait: Vec<bool> = timeline
        .names
        .iter()
        .map(|(_, text)| is_loader(text))
        .collect();
    let mut threads: FxHashMap<TrackId, Vec<(Time, Time, u32)>> = FxHashMap::default();
    for (at, event) in (0u32..).zip(&timeline.events) {
        let known = is_wait.get(event.name.index()).copied().unwrap_or(false);
        let is_span = event.is_slice() && timeline.name(event.cat) != "sample";
        if known && is_span && !event.dropped {
            let spans = threads.entry(timeline.home(event)).or_default();
            spans.push((event.start, event.end(), at));
        }
    }
    let sums = threads.iter().map(|(track, spans)| {
        let waits = Stretches::of(spans.iter().map(|(from, to, _)| (*from, *to)));
        (*track, waits, spans)
    });
    let Some((track, waits, spans)) = sums.max_by(|a, b| a.1.us().total_cmp(&b.1.us())) else {
        return;
    };
    // Whatever else the thread did is what the waits are part of.
    let all = timeline
        .events
        .iter()
        .filter(|e| e.is_slice() && timeline.home(e) == track);
    let all = Stretches::of(all.map(|event| (event.start, event.end())));
    let whole = all.ends().map_or(0.0, |(from, to)| (to - from).micros());
    let longest = spans.iter().max_by_key(|(from, to, _)| *to - *from);
    let name = longest
        .and_then(|(_, _, at)| super::host::event(timeline, *at))
        .map_or("", |event| name_of(timeline, event));
    let us = waits.us();
    let row = timeline.tracks.get(track);
    let finding = Finding {
        kind: FindingKind::DataloaderStall,
        subject: name.to_owned(),
        text: format!(
            "The thread waits {} of {} for data in {name}.",
            time(us),
            time(whole)
        ),
        cost_ns: Some(ns(us)),
        numbers: vec![
            measure("waiting", us / 1e6, "s"),
            measure("of", whole / 1e6, "s"),
            measure("share", percent(us, whole), "percent"),
            measure("waits", waits.iter().count() as f64, ""),
        ],
        places: vec![SeenAt {
            pid: row.pid.number(),
            tid: row.tid.number(),
            start_us: waits.longest().map(|(from, _)| scene.since(from)),
            end_us: waits.longest().map(|(_, to)| scene.since(to)),
            name: Some(name.to_owned()),
            cost_ns: Some(ns(us)),
            ..SeenAt::default()
        }],
        evidence: vec![format!(
            "{}, {:.1} % of the thread's time, in {}",
            time(us),
            percent(us, whole),
            times(waits.iter().count() as u64, "wait")
        )],
        ..Finding::default()
    };
    keep(finding, whole, findings);
}
