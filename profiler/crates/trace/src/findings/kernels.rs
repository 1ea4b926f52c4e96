//! Kernels that are slower than they could be: a low clock, registers in memory.

use super::host::event;
use super::rules::{keep, ns, time};
use super::{Scene, cut, measure, percent, short, times};
use crate::device_time::DeviceTime;
use crate::finding::{Finding, FindingKind, Measure};
use crate::work::{RankedWork, WorkClass, name_of};
use aiprof_model::timeline::{Event, Id, Ph, Time};
use rustc_hash::FxHashMap;

/// A clock below this part of its highest is low.
const LOW: f64 = 0.95;
/// Kernels must take so much longer at a low clock to be slow by it.
const SLOWER: f64 = 1.03;
/// Fewest calls at a high clock that show how long a kernel takes.
const CALLS: usize = 5;

/// Looks for slow kernels.
pub(super) fn find(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    throttled(scene, findings);
    spills(scene, findings);
}

/// A clock over time: begin and MHz.
type ClockSteps = Vec<(Time, f64)>;

/// Clocks from counters.
#[derive(Default)]
struct ClockRows {
    /// By rank and process.
    rows: FxHashMap<(u32, Id), ClockSteps>,
    /// For ranks with one clock, whose it is; `None`: there are several, and the right one is not
    /// known.
    only: FxHashMap<u32, Option<Id>>,
}

fn clocks(scene: &Scene<'_>) -> ClockRows {
    let timeline = scene.timeline;
    let is_clock: Vec<bool> = timeline
        .names
        .iter()
        .map(|(_, name)| is_clock(name))
        .collect();
    let mut found: FxHashMap<(u32, Id), ClockSteps> = FxHashMap::default();
    for event in &timeline.events {
        let known = is_clock.get(event.name.index()).copied().unwrap_or(false);
        if event.ph != Ph::Counter || !known {
            continue;
        }
        let members = timeline.texts.get(event.args);
        let mut values = aiprof_model::timeline::members(members);
        let value = values.find_map(|(_, value)| value.parse::<f64>().ok());
        if let Some(mhz) = value.filter(|mhz| *mhz > 0.0) {
            let of = found
                .entry((scene.rank(event), timeline.pid(event)))
                .or_default();
            of.push((event.start, mhz));
        }
    }
    found
        .values_mut()
        .for_each(|steps| steps.sort_by_key(|step| step.0));
    let mut clocks = ClockRows::default();
    for (rank, process) in found.keys() {
        let one = clocks.only.entry(*rank);
        one.and_modify(|one| *one = None).or_insert(Some(*process));
    }
    clocks.rows = found;
    clocks
}

/// Whether a counter is the clock of a device's cores, by its name.
fn is_clock(name: &str) -> bool {
    let small = name.to_ascii_lowercase();
    let is_clock = ["frequency", "clock", "mhz"]
        .iter()
        .any(|word| small.contains(word));
    is_clock
        && !["mem", "cpu", "host"]
            .iter()
            .any(|word| small.contains(word))
}

/// The clock while a piece of work ran: by the device's own counter, else by the counters of
/// its row group, else of its rank.
fn clock_of(scene: &Scene<'_>, clocks: &ClockRows, event: &Event) -> Option<f64> {
    let counted = scene.timeline.device(event);
    if let Some(counted) = counted.filter(|counted| counted.piece > 0) {
        return scene
            .timeline
            .rates
            .pieces
            .get(usize::from(counted.piece) - 1)
            .copied();
    }
    let rank = scene.rank(event);
    let own = clocks.rows.get(&(rank, scene.timeline.pid(event)));
    let only = || clocks.rows.get(&(rank, (*clocks.only.get(&rank)?)?));
    let steps = own.or_else(only)?;
    let behind = steps.partition_point(|(at, _)| *at <= event.start);
    steps.get(behind.checked_sub(1)?).map(|(_, mhz)| *mhz)
}

/// What a low clock costs a device.
#[derive(Default)]
struct Throttled {
    us: f64,
    low_us: f64,
    most_mhz: f64,
    least_mhz: f64,
    kernels: Vec<(f64, String)>,
    first: Option<Time>,
    last: Option<Time>,
}

fn throttled(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let clocks = clocks(scene);
    if clocks.rows.is_empty() && scene.timeline.rates.pieces.is_empty() {
        return;
    }
    let found = scene
        .devices
        .iter()
        .filter_map(|device| Some((device, of_device(scene, &clocks, device)?)));
    let Some((device, it)) = found.max_by(|a, b| a.1.us.total_cmp(&b.1.us)) else {
        return;
    };
    let (whole, name) = (device.elapsed_us(), scene.device(device));
    let mut kernels = it.kernels;
    kernels.sort_by(|a, b| b.0.total_cmp(&a.0));
    let finding = Finding {
        kind: FindingKind::Throttling,
        subject: name.clone(),
        text: format!(
            "A low clock of {name} costs its kernels {} of {} (lowest {:.0}, highest {:.0} MHz).",
            time(it.us),
            time(whole),
            it.least_mhz,
            it.most_mhz
        ),
        cost_ns: Some(ns(it.us)),
        numbers: vec![
            measure("longer", it.us / 1e6, "s"),
            measure("low", it.low_us / 1e6, "s"),
            measure("of", whole / 1e6, "s"),
            measure("share", percent(it.us, whole), "percent"),
            measure("least_clock", it.least_mhz, "MHz"),
            measure("most_clock", it.most_mhz, "MHz"),
        ],
        places: vec![scene.at(device, it.first.zip(it.last), it.us)],
        evidence: cut(kernels.into_iter().map(|(_, line)| line).collect()),
        ..Finding::default()
    };
    keep(finding, whole, findings);
}

fn of_device(scene: &Scene<'_>, clocks: &ClockRows, device: &DeviceTime<'_>) -> Option<Throttled> {
    let mut by_name: FxHashMap<&str, Vec<(f64, &RankedWork)>> = FxHashMap::default();
    let mut it = Throttled {
        least_mhz: f64::MAX,
        ..Throttled::default()
    };
    for work in device
        .work
        .iter()
        .filter(|work| work.class == WorkClass::Compute)
    {
        let event = event(scene.timeline, work.event)?;
        let Some(mhz) = clock_of(scene, clocks, event) else {
            continue;
        };
        it.most_mhz = it.most_mhz.max(mhz);
        it.least_mhz = it.least_mhz.min(mhz);
        by_name
            .entry(name_of(scene.timeline, event))
            .or_default()
            .push((mhz, work));
    }
    let low = LOW * it.most_mhz;
    for (name, calls) in by_name {
        let mut high: Vec<f64> = calls
            .iter()
            .filter(|c| c.0 >= low)
            .map(|c| c.1.us())
            .collect();
        high.sort_by(f64::total_cmp);
        let usual = high
            .get(high.len() / 2)
            .copied()
            .filter(|_| high.len() >= CALLS);
        let slow: Vec<&RankedWork> = calls.iter().filter(|c| c.0 < low).map(|c| c.1).collect();
        let took: f64 = slow.iter().map(|work| work.us()).sum();
        let Some(usual) = usual.filter(|us| took > us * SLOWER * slow.len() as f64) else {
            continue;
        };
        let longer = took - usual * slow.len() as f64;
        it.us += longer;
        it.low_us += took;
        it.first = slow.iter().map(|work| work.start).chain(it.first).min();
        it.last = slow.iter().map(|work| work.end).chain(it.last).max();
        let line = format!(
            "{name}: {} at a low clock took {}, {} longer than at the highest clock",
            times(slow.len() as u64, "call"),
            time(took),
            time(longer)
        );
        it.kernels.push((longer, line));
    }
    (it.us > 0.0).then_some(it)
}

/// Kernels that keep registers in memory.
fn spills(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let timeline = scene.timeline;
    let mut bytes: FxHashMap<&str, f64> = FxHashMap::default();
    let mut sums: FxHashMap<&str, (u64, f64, &DeviceTime<'_>, &RankedWork)> = FxHashMap::default();
    for device in &scene.devices {
        for work in device
            .work
            .iter()
            .filter(|work| work.class == WorkClass::Compute)
        {
            let Some(event) = event(timeline, work.event) else {
                continue;
            };
            let name = name_of(timeline, event);
            // Only the first event of a kernel has its properties.
            let given = timeline
                .arg(event, "spill_bytes")
                .and_then(|text| text.parse().ok());
            if let Some(given) = given.filter(|given: &f64| *given > 0.0) {
                bytes.insert(name, given);
            }
            let sum = sums.entry(name).or_insert((0, 0.0, device, work));
            (sum.0, sum.1) = (sum.0 + 1, sum.1 + work.us());
            if work.us() > sum.3.us() {
                sum.3 = work;
            }
        }
    }
    for (name, bytes) in bytes {
        let Some((calls, us, device, longest)) = sums.get(name) else {
            continue;
        };
        let whole = device.elapsed_us();
        let mut at = scene.at(device, Some((longest.start, longest.end)), *us);
        at.name = Some(name.to_owned());
        let numbers: Vec<Measure> = vec![
            measure("kernel", us / 1e6, "s"),
            measure("of", whole / 1e6, "s"),
            measure("share", percent(*us, whole), "percent"),
            measure("spilled", bytes, "bytes"),
            measure("calls", *calls as f64, ""),
        ];
        let finding = Finding {
            kind: FindingKind::Spills,
            subject: name.to_owned(),
            text: format!(
                "{} spills {bytes:.0} bytes of registers per thread to memory and takes {} of {}.",
                short(name),
                time(*us),
                time(whole)
            ),
            cost_ns: Some(ns(*us)),
            numbers,
            places: vec![at],
            evidence: vec![format!(
                "{} of device time in {}; the compiler reports the spills",
                time(*us),
                times(*calls, "call")
            )],
            ..Finding::default()
        };
        keep(finding, whole, findings);
    }
}
