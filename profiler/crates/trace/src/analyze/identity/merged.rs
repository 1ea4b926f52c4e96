//! Files that somebody merged by hand: the processes in them, and whose work is whose.
//!
//! Numbers of correlations are a process's own. So the work of a device is of the process that
//! launched it: on rows whose work only one process can have launched, of that. On others the
//! order of the events in the file decides, if each process has a block of it, else what was
//! ready when the work began.

use super::gather::Roles;
use crate::work::SpanRole;
use aiprof_model::timeline::{Event, Id, Ph, Time, Timeline};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// Most processes of a file.
const MOST: usize = 4096;

/// When the last work ended, by process and stream.
type Ends = FxHashMap<(u32, Id), Time>;

/// A call that launched something.
#[derive(Clone, Copy)]
struct MergedCall {
    process: u32,
    start: Time,
}

/// From the calls of a process to the work of some rows.
#[derive(Clone, Copy, Default)]
struct Delays {
    /// Work that it can have launched.
    work: u64,
    count: i128,
    /// Nanoseconds.
    sum: i128,
    squares: i128,
}

impl Delays {
    fn add(&mut self, ps: i64) {
        let ns = i128::from(ps / 1000);
        self.count += 1;
        self.sum += ns;
        self.squares = self.squares.saturating_add(ns * ns);
    }

    /// How much they differ: their variance, by what it takes to compare it.
    fn unevenness(&self) -> i128 {
        let squares = self.squares.saturating_mul(self.count);
        squares.saturating_sub(self.sum.saturating_mul(self.sum))
    }
}

/// What is known of a file while it is split.
struct Split<'t> {
    timeline: &'t Timeline,
    events: &'t [Event],
    /// Processes by the group of rows of their calls.
    hosts: FxHashMap<Id, u32>,
    /// Calls by correlation.
    calls: FxHashMap<u64, Vec<MergedCall>>,
    /// Whether each process has a block of the file.
    are_blocks: bool,
}

/// Which process each event is of, and how many there are; `None`: there is one.
pub(super) fn split(
    timeline: &Timeline,
    events: &[Event],
    roles: &mut Roles,
) -> Option<(Vec<u32>, u32)> {
    let mut split = Split {
        timeline,
        events,
        hosts: FxHashMap::default(),
        calls: FxHashMap::default(),
        are_blocks: true,
    };
    let is_call = |roles: &mut Roles, event: &Event| {
        event.is_slice() && event.correlation != 0 && roles.of(timeline, event) == SpanRole::Call
    };
    // Calls may stand on the rows of a device, which is no process.
    let mut devices: FxHashSet<Id> = FxHashSet::default();
    for event in events.iter().filter(|event| event.is_slice()) {
        if roles.of(timeline, event) == SpanRole::Device {
            devices.insert(timeline.pid(event));
        }
    }
    for event in events {
        if is_call(roles, event) && !devices.contains(&timeline.pid(event)) {
            let next = split.hosts.len() as u32;
            split.hosts.entry(timeline.pid(event)).or_insert(next);
        }
        if split.hosts.len() > MOST {
            return None;
        }
    }
    if split.hosts.len() < 2 {
        return None;
    }
    let (mut last, mut seen) = (None, Vec::new());
    for event in events.iter().filter(|event| is_call(roles, event)) {
        let Some(process) = split.hosts.get(&timeline.pid(event)).copied() else {
            continue;
        };
        if last.replace(process) != Some(process) {
            split.are_blocks &= !seen.contains(&process);
            seen.push(process);
            // Blocks are few; what changes more often has none.
            if seen.len() > MOST {
                split.are_blocks = false;
                seen.clear();
            }
        }
        let start = event.start;
        let calls = split.calls.entry(event.correlation).or_default();
        calls.push(MergedCall { process, start });
    }
    for calls in split.calls.values_mut() {
        calls.sort_by_key(|call| (call.start, call.process));
    }
    let count = split.hosts.len() as u32;
    Some((split.assign(roles), count))
}

impl Split<'_> {
    fn assign(&mut self, roles: &mut Roles) -> Vec<u32> {
        let timeline = self.timeline;
        let blocks = self.blocks();
        let mut of = blocks.clone();
        let mut devices: FxHashMap<Id, Vec<usize>> = FxHashMap::default();
        for (place, event) in self.events.iter().enumerate() {
            let pid = timeline.pid(event);
            if let (Some(host), Some(of)) = (self.hosts.get(&pid), of.get_mut(place)) {
                *of = *host;
            } else if event.is_slice() && roles.of(timeline, event) == SpanRole::Device {
                devices.entry(pid).or_default().push(place);
            }
        }
        // Blocks are whole only if each process has work of a device in its own.
        let within = devices
            .values()
            .flatten()
            .filter_map(|place| blocks.get(*place));
        let within: FxHashSet<u32> = within.copied().collect();
        self.are_blocks &= within.len() == self.hosts.len();
        let mut order: Vec<_> = devices.into_iter().collect();
        order.sort_by_key(|(pid, _)| *pid);
        let mut owners: FxHashMap<Id, u32> = FxHashMap::default();
        let mut taken = vec![0u32; self.hosts.len()];
        for (pid, places) in &order {
            match self.owner(places, &taken) {
                Some(owner) => {
                    owners.insert(*pid, owner);
                    if let Some(taken) = taken.get_mut(owner as usize) {
                        *taken += 1;
                    }
                }
                None => self.each(places, &blocks, &mut of),
            }
        }
        self.others(&owners, &order, &mut of);
        of
    }

    /// The process of the block around each event: that of the last call or row of a process
    /// before it, or of the first behind it.
    fn blocks(&self) -> Vec<u32> {
        let host = |event: &Event| self.hosts.get(&self.timeline.pid(event)).copied();
        let mut last = self.events.iter().find_map(host).unwrap_or(0);
        let blocks = self.events.iter().map(|event| {
            last = host(event).unwrap_or(last);
            last
        });
        blocks.collect()
    }

    /// The one process that launched all work of some rows, if there is one: of several that
    /// can be it the one whose launches the work follows most evenly.
    fn owner(&self, places: &[usize], taken: &[u32]) -> Option<u32> {
        let work = places.iter().filter_map(|place| self.events.get(*place));
        let mut delays: FxHashMap<u32, Delays> = FxHashMap::default();
        let (mut all, mut seen) = (0u64, FxHashMap::<u64, u64>::default());
        for event in work.filter(|event| event.correlation != 0) {
            let Some(calls) = self.calls.get(&event.correlation) else {
                continue;
            };
            all += 1;
            *seen.entry(event.correlation).or_default() += 1;
            let mut last = None;
            // A number is of one call of a process.
            let calls = calls.iter().take(MOST);
            for call in calls.filter(|call| call.start <= event.start) {
                let of = delays.entry(call.process).or_default();
                of.work += u64::from(last.replace(call.process) != Some(call.process));
                of.add((event.start - call.start).0);
            }
        }
        let shared = seen.iter().filter(|(number, _)| self.is_shared(**number));
        let again = shared.clone().filter(|(_, count)| **count > 1).count();
        // Rows of several processes have most of their common numbers several times.
        if self.are_blocks || again * 2 > shared.count() {
            return None;
        }
        let rows = |process: u32| taken.get(process as usize).copied().unwrap_or(0);
        if all == 0 {
            // Nothing shows whose they are, but that they are of one process.
            return (0..self.hosts.len() as u32).min_by_key(|process| rows(*process));
        }
        let whole = delays.into_iter().filter(|(_, of)| of.work >= all);
        let best = whole.min_by_key(|(process, of)| {
            let process = *process;
            (of.unevenness(), rows(process), of.sum, process)
        });
        best.map(|(process, _)| process)
    }

    /// Whether several processes have calls with a number.
    fn is_shared(&self, correlation: u64) -> bool {
        let calls = self.calls.get(&correlation).map_or(&[][..], Vec::as_slice);
        let first = calls.first().map(|call| call.process);
        calls.iter().any(|call| Some(call.process) != first)
    }

    /// Finds the process of each piece of work on rows of several.
    fn each(&self, places: &[usize], blocks: &[u32], of: &mut [u32]) {
        let mut alike: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for place in places {
            if let Some(event) = self.events.get(*place) {
                alike.entry(event.correlation).or_default().push(*place);
            }
        }
        let mut ends = Ends::default();
        for (correlation, places) in &alike {
            let calls = self.calls.get(correlation).map_or(&[][..], Vec::as_slice);
            let found = match self.are_blocks || places.len() * calls.len() > MOST {
                true => Vec::new(),
                false => self.nearest(places, calls, &ends),
            };
            let launchers: FxHashSet<u32> = calls.iter().map(|call| call.process).collect();
            for (at, place) in places.iter().enumerate() {
                let block = blocks.get(*place).copied().unwrap_or(0);
                let launched = launchers.contains(&block);
                let process = match (found.get(at).copied().flatten(), calls) {
                    (Some(process), _) => process,
                    (None, [only]) => only.process,
                    (None, [.., last]) if !launched => last.process,
                    _ => block,
                };
                if let Some(of) = of.get_mut(*place) {
                    *of = process;
                }
                if let Some(event) = self.events.get(*place) {
                    let end = ends.entry((process, self.timeline.tid(event)));
                    let end = end.or_insert(event.end());
                    *end = event.end().max(*end);
                }
            }
        }
    }

    /// The processes of pieces of work with one correlation: work begins when it is launched, or
    /// when the work before it on its stream ends. `ends` has the last end by process and stream.
    fn nearest(&self, places: &[usize], calls: &[MergedCall], ends: &Ends) -> Vec<Option<u32>> {
        let mut pairs = Vec::new();
        for (at, place) in places.iter().enumerate() {
            let Some(event) = self.events.get(*place) else {
                continue;
            };
            let tid = self.timeline.tid(event);
            for (number, call) in calls.iter().enumerate() {
                let before = ends.get(&(call.process, tid)).copied();
                let ready = before.map_or(call.start, |end| end.max(call.start));
                let (is_early, gap) = match event.start < ready {
                    true => (true, ready - event.start),
                    false => (false, event.start - ready),
                };
                if call.start <= event.start {
                    pairs.push((is_early, gap.0, number, at, call.process));
                }
            }
        }
        pairs.sort_unstable();
        // As many calls as work: each has one.
        let is_one_each = calls.len() == places.len();
        let mut used = vec![false; calls.len()];
        let mut found = vec![None; places.len()];
        for (_, _, number, at, process) in pairs {
            let (Some(used), Some(found)) = (used.get_mut(number), found.get_mut(at)) else {
                continue;
            };
            if found.is_none() && !(is_one_each && *used) {
                (*used, *found) = (true, Some(process));
            }
        }
        found
    }

    /// Finds the process of what is neither of a thread nor a device's work: as its row, an
    /// arrow's end as the work where it ends.
    fn others(&self, owners: &FxHashMap<Id, u32>, order: &[(Id, Vec<usize>)], of: &mut [u32]) {
        let mut ends: FxHashMap<(Id, i64, Time), u32> = FxHashMap::default();
        let mut used: FxHashMap<Id, Vec<u32>> = FxHashMap::default();
        for (pid, places) in order.iter().filter(|(pid, _)| !owners.contains_key(pid)) {
            for place in places {
                let found = self.events.get(*place).zip(of.get(*place).copied());
                let Some((event, process)) = found else {
                    continue;
                };
                let number = i64::try_from(event.correlation).unwrap_or(0);
                ends.insert((*pid, number, event.start), process);
                let used = used.entry(*pid).or_default();
                if !used.contains(&process) {
                    used.push(process);
                }
            }
        }
        let mut rest: FxHashMap<Id, u32> = FxHashMap::default();
        for (event, of) in self.events.iter().zip(of.iter_mut()) {
            let pid = self.timeline.pid(event);
            if let Some(owner) = owners.get(&pid) {
                *of = *owner;
            } else if let Some(used) = used.get(&pid) {
                let number = event.id.number().unwrap_or(0);
                let end = ends.get(&(pid, number, event.start));
                *of = match (end, event.ph) {
                    (Some(process), Ph::FlowEnd | Ph::FlowStep) => *process,
                    _ if used.contains(of) => *of,
                    _ => used.first().copied().unwrap_or(*of),
                };
            } else if !self.hosts.contains_key(&pid) {
                *of = *rest.entry(pid).or_insert(*of);
            }
        }
    }
}
