//! Devices that several processes use: known by what identifies them, never by their number.

use super::gather::{TracePart, pid_text};
use super::rows::Groups;
use super::{TraceParts, TraceProcess};
use aiprof_model::timeline::{Id, Timeline};
use rustc_hash::{FxHashMap, FxHashSet};

/// A device of a process.
#[derive(Clone, Debug)]
struct DeviceUse {
    process: usize,
    /// Its group of rows, and its number.
    row: Id,
    number: i64,
    /// What identifies it, if the file states that.
    gpu: Option<String>,
}

/// Finds the devices that several processes use, and notes what is assumed.
pub(super) fn find(timeline: &mut Timeline, parts: &TraceParts, groups: &Groups) {
    let used = used(timeline, parts, groups);
    let known = used
        .iter()
        .filter_map(|one| Some((one.row, one.gpu.clone()?)));
    timeline.identity.gpus = known.collect();
    let mut first: FxHashMap<(String, Option<u32>), usize> = FxHashMap::default();
    let mut shared: Vec<(usize, usize)> = Vec::new();
    for (at, one) in used.iter().enumerate() {
        let Some(gpu) = &one.gpu else { continue };
        let host = parts
            .processes
            .get(one.process)
            .and_then(|process| process.host);
        // A UUID is of one device in the world, an address of one of a host.
        let host = host.filter(|_| is_address(gpu));
        match first.get(&(gpu.clone(), host)) {
            Some(known) => shared.push((*known, at)),
            None => {
                first.insert((gpu.clone(), host), at);
            }
        }
    }
    shared.extend(of_one_npu(timeline, parts, &used));
    for (first, at) in shared {
        let Some((first, one)) = used.get(first).zip(used.get(at)) else {
            continue;
        };
        if first.process == one.process && first.gpu.is_some() {
            continue;
        }
        let key = |used: &DeviceUse| {
            let group = timeline.identity.groups.get(&used.row);
            (
                group.map_or(used.row, |group| group.process),
                Id::Number(used.number),
            )
        };
        let (known, own) = (key(first), key(one));
        timeline.identity.shared.insert(own, known);
        if let Some(group) = timeline.identity.groups.get_mut(&one.row) {
            group.same = first.row;
        }
        if first.process == one.process {
            continue;
        }
        let rank = |used: &DeviceUse| parts.processes.get(used.process).map_or(0, |one| one.rank);
        let text = format!(
            "ranks {} and {} use the same device ({})",
            rank(first),
            rank(one),
            first.gpu.as_deref().unwrap_or_default()
        );
        timeline.identity.assumed.push(text);
    }
    if is_assumed(parts, &used) {
        let text = "devices with equal numbers in different processes count as different devices: \
                    no UUID or PCI address shows which are the same";
        timeline.identity.assumed.push(text.to_owned());
    }
}

/// Pairs of a process's first device and another group of rows of the same: torch_npu, whose
/// processes have one device each, gives its collectives a group of their own.
fn of_one_npu(timeline: &Timeline, parts: &TraceParts, used: &[DeviceUse]) -> Vec<(usize, usize)> {
    let is_npu = |one: &DeviceUse| {
        let process = parts.processes.get(one.process);
        let part = process.and_then(|process| parts.first(process));
        let job = part.and_then(|part| timeline.jobs.get(part.job as usize));
        one.gpu.is_none() && job.is_some_and(|job| job.writer == "torch_npu")
    };
    let mut first: FxHashMap<usize, usize> = FxHashMap::default();
    let mut pairs = Vec::new();
    for (at, one) in used.iter().enumerate().filter(|(_, one)| is_npu(one)) {
        let known = *first.entry(one.process).or_insert(at);
        if known != at {
            pairs.push((known, at));
        }
    }
    pairs
}

/// The devices of all processes.
fn used(timeline: &Timeline, parts: &TraceParts, groups: &Groups) -> Vec<DeviceUse> {
    let mut used: Vec<DeviceUse> = Vec::new();
    let mut known: FxHashSet<(usize, Id, i64)> = FxHashSet::default();
    for (number, process) in parts.processes.iter().enumerate() {
        for part in process.parts.iter().filter_map(|part| parts.all.get(*part)) {
            let stated_rows = part.stated_rows(timeline);
            for (pid, row) in part.devices() {
                let stated_row = stated_rows.get(pid_text(timeline, pid).as_str());
                for device in &row.devices {
                    let row = groups.of(parts, number, pid);
                    if !known.insert((number, row, *device)) {
                        continue;
                    }
                    used.push(DeviceUse {
                        process: number,
                        row,
                        number: *device,
                        gpu: stated_row
                            .and_then(|row| row.gpu.clone())
                            .or_else(|| stated(timeline, part, *device)),
                    });
                }
            }
        }
    }
    used
}

/// What identifies a device, as its file states it. What states it for one process is not about
/// the others of the file.
fn stated(timeline: &Timeline, part: &TracePart, number: i64) -> Option<String> {
    let stated = &timeline.jobs.get(part.job as usize)?.stated;
    let mut numbered = stated.gpus.iter().filter(|_| part.only.is_none());
    let (_, gpu) = numbered.find(|(id, _)| *id == number)?;
    Some(gpu.clone())
}

/// Whether it is a PCI address: `0000:01:00.0`.
fn is_address(gpu: &str) -> bool {
    gpu.contains(':')
}

/// Whether two devices have one number in processes that may be of one host, and nothing shows
/// whether they are the same.
fn is_assumed(parts: &TraceParts, used: &[DeviceUse]) -> bool {
    let host = |one: &DeviceUse| {
        parts
            .processes
            .get(one.process)
            .and_then(|process: &TraceProcess| process.host)
    };
    let mut seen: FxHashMap<i64, Vec<&DeviceUse>> = FxHashMap::default();
    for one in used {
        let known = seen.entry(one.number).or_default();
        let is_doubtful = |other: &&&DeviceUse| {
            let is_apart = host(one).zip(host(other)).is_some_and(|(a, b)| a != b);
            let is_known = one.gpu.is_some() && other.gpu.is_some();
            one.process != other.process && !is_apart && !is_known
        };
        if known.iter().any(|other| is_doubtful(&other)) {
            return true;
        }
        known.push(one);
    }
    false
}
