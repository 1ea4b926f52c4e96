//! A device idles, by what the host did meanwhile.

use super::device::{BEFORE, GapBlame, Idle, IdleBlame, IdlePart};
use super::rules::{keep, ns, time};
use super::{Scene, cut, measure, percent, short, times};
use crate::device_time::DeviceTime;
use crate::finding::{Finding, FindingKind};
use crate::stretches::Stretches;
use aiprof_model::timeline::{Kind, Kinds, Time};
use rustc_hash::FxHashMap;

/// Idle time of one kind, of all devices.
struct IdleFinding<'s> {
    kind: FindingKind,
    /// Devices with their time, the most first.
    parts: Vec<(&'s DeviceTime<'s>, IdlePart)>,
}

/// Looks for idle devices.
pub(super) fn find(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let blame = GapBlame {
        timeline: scene.timeline,
        host: &scene.host,
    };
    let prepared = preparing(scene);
    let mut idle: Vec<Idle> = scene.devices.iter().map(|one| blame.of(one)).collect();
    for (idle, prepared) in idle.iter_mut().zip(&prepared) {
        if let Some(part) = idle.get_mut(&IdleBlame::Unknown) {
            part.less(prepared.us());
        }
    }
    for (kind, cause) in [
        (FindingKind::LaunchStarved, IdleBlame::Starved),
        (FindingKind::SynchronousWait, IdleBlame::Sync),
        (FindingKind::ShortKernels, IdleBlame::Short),
        (FindingKind::DataloaderStall, IdleBlame::Loader),
        (FindingKind::DeviceIdle, IdleBlame::Unknown),
    ] {
        let parts = scene.devices.iter().zip(&idle);
        let mut parts: Vec<_> = parts
            .filter_map(|(device, idle)| Some((device, idle.get(&cause)?.clone())))
            .collect();
        parts.sort_by(|a, b| b.1.us().total_cmp(&a.1.us()));
        add(scene, &IdleFinding { kind, parts }, findings);
    }
    add_prepared(scene, &prepared, findings);
}

fn add(scene: &Scene<'_>, idle: &IdleFinding<'_>, findings: &mut Vec<Finding>) {
    let Some((device, part)) = idle.parts.first() else {
        return;
    };
    let (us, whole) = (part.us(), device.elapsed_us());
    let by_place = part.by_place();
    let place = by_place.first().map_or("", |(name, _)| name.as_str());
    let head = format!("{} of {}", time(us), time(whole));
    let name = scene.device(device);
    let text = match idle.kind {
        FindingKind::LaunchStarved => {
            format!("{name} waits {head} for launches: {}.", most(&by_place, us))
        }
        FindingKind::SynchronousWait => format!(
            "{name} is idle for {head} because the host waits in {place} before it launches more \
             ({}).",
            times(part.gaps, "time")
        ),
        FindingKind::ShortKernels => format!(
            "{name} is idle for {head} before kernels that are shorter than their launches ({}): \
             {}.",
            times(part.gaps, "time"),
            short(place)
        ),
        FindingKind::DataloaderStall => {
            format!("{name} waits {head} for data: {}.", most(&by_place, us))
        }
        _ => format!("{name} was idle for {head} between its first and last operation."),
    };
    let mut lines: Vec<String> = by_place
        .iter()
        .map(|(name, us)| format!("{}: {name}", time(*us)))
        .collect();
    lines = cut(lines);
    let each = idle.parts.iter().map(|(device, part)| {
        let (us, whole) = (part.us(), device.elapsed_us());
        let longest = part.longest_us();
        format!(
            "{}: {} of {} ({:.1} %) in {}, the longest {}",
            scene.device(device),
            time(us),
            time(whole),
            percent(us, whole),
            times(part.gaps, "gap"),
            time(longest)
        )
    });
    lines.extend(cut(each.collect()));
    let places = idle.parts.iter().map(|(device, part)| {
        let mut at = scene.at(device, part.longest, part.us());
        let thread = part.thread();
        at.pid = thread.and_then(|(process, _)| process.pid.number());
        at.tid = thread.and_then(|(_, tid)| tid.number());
        at.name = part.by_place().into_iter().next().map(|(name, _)| name);
        at
    });
    let finding = Finding {
        kind: idle.kind,
        subject: if place.is_empty() {
            name.clone()
        } else {
            place.to_owned()
        },
        text: first_large(text),
        cost_ns: Some(ns(us)),
        numbers: vec![
            measure("idle", us / 1e6, "s"),
            measure("of", whole / 1e6, "s"),
            measure("share", percent(us, whole), "percent"),
            measure("gaps", part.gaps as f64, ""),
        ],
        places: places.collect(),
        evidence: lines,
        ..Finding::default()
    };
    keep(finding, whole, findings);
}

/// Where the host is for how much of it.
fn most(by_place: &[(String, f64)], whole: f64) -> String {
    let Some((place, us)) = by_place.first() else {
        return "the host's activity is unknown".to_owned();
    };
    let share = percent(*us, whole);
    match place.strip_prefix(BEFORE) {
        Some(next) => format!("{share:.0} % of it before {}", short(next)),
        None => format!("the host is in {} for {share:.0} % of it", short(place)),
    }
}

fn first_large(text: String) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => text,
    }
}

/// When each AIU idles while a computation is prepared for it.
fn preparing(scene: &Scene<'_>) -> Vec<Stretches> {
    let timeline = scene.timeline;
    let kinds = Kinds::new(timeline);
    let mut preps: FxHashMap<u32, Vec<(Time, Time)>> = FxHashMap::default();
    for event in timeline
        .events
        .iter()
        .filter(|e| e.is_slice() && !e.dropped)
    {
        if kinds.of(event.name).is(Kind::PREP) {
            let of_rank = preps.entry(scene.rank(event)).or_default();
            of_rank.push((event.start, event.end()));
        }
    }
    let preps: FxHashMap<u32, Stretches> = preps
        .into_iter()
        .map(|(rank, all)| (rank, Stretches::of(all)))
        .collect();
    let none = Stretches::default();
    let idle = scene.devices.iter().map(|device| {
        let preps = preps.get(&device.rank.rank).unwrap_or(&none);
        device.busy.gaps().and(&device.seen).and(preps)
    });
    idle.collect()
}

fn add_prepared(scene: &Scene<'_>, prepared: &[Stretches], findings: &mut Vec<Finding>) {
    let found: Vec<(&DeviceTime<'_>, &Stretches)> = scene.devices.iter().zip(prepared).collect();
    let Some((device, idle)) = found.iter().max_by(|a, b| a.1.us().total_cmp(&b.1.us())) else {
        return;
    };
    let (us, whole) = (idle.us(), device.elapsed_us());
    let name = scene.device(device);
    let lines = found.iter().map(|(device, idle)| {
        let whole = device.elapsed_us();
        format!(
            "{}: {} of {} ({:.1} %)",
            scene.device(device),
            time(idle.us()),
            time(whole),
            percent(idle.us(), whole)
        )
    });
    let finding = Finding {
        kind: FindingKind::PrepQueueStarved,
        subject: name.clone(),
        text: first_large(format!(
            "{name} is idle for {} of {} while computations are being prepared for it.",
            time(us),
            time(whole)
        )),
        cost_ns: Some(ns(us)),
        numbers: vec![
            measure("idle", us / 1e6, "s"),
            measure("of", whole / 1e6, "s"),
            measure("share", percent(us, whole), "percent"),
        ],
        places: vec![scene.at(device, idle.longest(), us)],
        evidence: cut(lines.collect()),
        ..Finding::default()
    };
    keep(finding, whole, findings);
}
