//! A device idles, by what the host did meanwhile.

use super::device::{BEFORE, GapBlame, Idle, IdlePart, by_blame};
use super::rules::{keep, ns, time};
use super::{Scene, cut, measure, percent, short, times};
use crate::device_time::{DeviceTime, IdleBlame};
use crate::finding::{Finding, FindingKind};
use crate::stretches::Stretches;
use aiprof_model::timeline::{Kind, Kinds, NONE, Time, Timeline};
use rustc_hash::FxHashMap;

/// Idle time of one kind, of all devices.
struct IdleFinding<'s> {
    kind: FindingKind,
    /// Devices with their time, the most first.
    parts: Vec<(&'s DeviceTime<'s>, IdlePart)>,
}

/// From this part of idle time on, percent, the text has that its place is unknown.
const UNKNOWN: f64 = 10.0;

/// The findings about idle devices, each with the reason that it is about, in the order in which
/// they are made. Other reasons have findings of their own, or none.
pub(super) const KINDS: [(FindingKind, IdleBlame); 7] = [
    (FindingKind::LaunchStarved, IdleBlame::Starved),
    (FindingKind::SynchronousWait, IdleBlame::Sync),
    (FindingKind::ShortKernels, IdleBlame::Short),
    (FindingKind::DataloaderStall, IdleBlame::Loader),
    (FindingKind::ProfilerOverhead, IdleBlame::Profiler),
    (FindingKind::PrepQueueStarved, IdleBlame::Prepared),
    (FindingKind::DeviceIdle, IdleBlame::Unknown),
];

/// Looks for idle devices.
pub(super) fn find(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let blame = GapBlame::new(scene.timeline, &scene.host);
    let idle = scene.devices.iter().map(|one| by_blame(&blame.of(one)));
    let mut idle: Vec<Idle> = idle.collect();
    for (kind, cause) in KINDS {
        let parts = scene.devices.iter().zip(&mut idle);
        let mut parts: Vec<_> = parts
            .filter_map(|(device, idle)| Some((device, idle.remove(&cause)?)))
            .collect();
        parts.sort_by(|a, b| b.1.us().total_cmp(&a.1.us()));
        add(scene, &IdleFinding { kind, parts }, findings);
    }
}

fn add(scene: &Scene<'_>, idle: &IdleFinding<'_>, findings: &mut Vec<Finding>) {
    let Some((device, part)) = idle.parts.first() else {
        return;
    };
    let (us, whole) = (part.us(), device.elapsed_us());
    let timeline = scene.timeline;
    let by_place = part.by_place(timeline);
    let name = scene.device(device);
    let places = idle.parts.iter().map(|(device, part)| {
        let mut at = scene.at(device, part.longest, part.us());
        let thread = part.thread().map(|track| timeline.tracks.get(track));
        at.pid = thread.and_then(|row| row.pid.number());
        at.tid = thread.and_then(|row| row.tid.number());
        let mut names = part.by_place(timeline).into_iter().map(|(name, _)| name);
        at.name = names.next();
        at
    });
    let finding = Finding {
        kind: idle.kind,
        subject: by_place
            .first()
            .map_or(name.clone(), |(place, _)| place.clone()),
        text: first_large(sentence(idle.kind, &name, part, whole, &by_place)),
        cost_ns: Some(ns(us)),
        numbers: vec![
            measure("idle", us / 1e6, "s"),
            measure("of", whole / 1e6, "s"),
            measure("share", percent(us, whole), "percent"),
            measure("gaps", part.gaps as f64, ""),
        ],
        places: places.collect(),
        evidence: evidence(scene, idle, &by_place),
        ..Finding::default()
    };
    keep(finding, whole, findings);
}

/// What idle time of a kind is, in words.
fn sentence(
    kind: FindingKind,
    name: &str,
    part: &IdlePart,
    whole: f64,
    by_place: &[(String, f64)],
) -> String {
    let us = part.us();
    let head = format!("{} of {}", time(us), time(whole));
    let place = by_place.first().map_or("", |(name, _)| name.as_str());
    match kind {
        FindingKind::LaunchStarved => {
            format!("{name} waits {head} for launches: {}.", most(by_place, us))
        }
        FindingKind::SynchronousWait => format!(
            "{name} is idle for {head} because the host waits in {} before it launches more ({}).",
            short(place),
            times(part.gaps, "time")
        ),
        FindingKind::ShortKernels => format!(
            "{name} is idle for {head} before kernels that are shorter than their launches ({}): \
             {}.",
            times(part.gaps, "time"),
            short(place)
        ),
        FindingKind::DataloaderStall => {
            format!("{name} waits {head} for data: {}.", most(by_place, us))
        }
        FindingKind::ProfilerOverhead => format!(
            "{name} waits {head} for launches that the profiler itself delays: {}.",
            short(place)
        ),
        FindingKind::PrepQueueStarved => {
            format!("{name} is idle for {head} while computations are being prepared for it.")
        }
        _ => format!("{name} was idle for {head} between its first and last operation."),
    }
}

/// The places of the device that idles most, and the idle time of each device.
fn evidence(scene: &Scene<'_>, idle: &IdleFinding<'_>, by_place: &[(String, f64)]) -> Vec<String> {
    let lines = by_place
        .iter()
        .map(|(name, us)| format!("{}: {}", time(*us), short(name)));
    let mut lines = cut(lines.collect());
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
    lines
}

/// Where the host is for how much of it.
fn most(by_place: &[(String, f64)], whole: f64) -> String {
    let Some((place, us)) = by_place.first() else {
        return "the host's activity is unknown".to_owned();
    };
    let share = percent(*us, whole);
    if let Some(next) = place.strip_prefix(BEFORE) {
        return format!("{share:.0} % of it before {}", short(next));
    }
    let wait = place
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let mut text = match wait {
        Some(wait) => format!("the launching thread {wait} for {share:.0} % of it"),
        None => format!("the host is in {} for {share:.0} % of it", short(place)),
    };
    let known: f64 = by_place.iter().map(|(_, us)| us).sum();
    let unknown = percent(whole - known, whole);
    if unknown >= UNKNOWN {
        text += &format!(", and in an unknown place for {unknown:.0} %");
    }
    text
}

fn first_large(text: String) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => text,
    }
}

/// When computations of each rank are prepared for its AIUs.
pub(super) fn preparing(timeline: &Timeline) -> FxHashMap<u32, Stretches> {
    let kinds = Kinds::new(timeline);
    let mut preps: FxHashMap<u32, Vec<(Time, Time)>> = FxHashMap::default();
    let slices = timeline.events.iter();
    for event in slices.filter(|event| event.is_slice() && !event.dropped) {
        if kinds.of(event.name).is(Kind::PREP) {
            let rank = match timeline.rank(event) {
                NONE => 0,
                rank => rank,
            };
            let of_rank = preps.entry(rank).or_default();
            of_rank.push((event.start, event.end()));
        }
    }
    let joined = preps.into_iter();
    joined
        .map(|(rank, all)| (rank, Stretches::of(all)))
        .collect()
}
