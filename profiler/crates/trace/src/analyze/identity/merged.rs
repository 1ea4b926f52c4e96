//! Files that somebody merged by hand: the processes in them, and whose work is whose.
//!
//! Numbers of correlations are a process's own. So the work of a device is of the process that
//! launched it: on rows whose work only one process can have launched, of that. On others the
//! order of the events in the file decides, if each process has a block of it, else time.

use super::gather::Roles;
use crate::work::SpanRole;
use aiprof_model::timeline::{Event, Id, Ph, Time, Timeline};
use rustc_hash::{FxHashMap, FxHashSet};

/// Most processes of a file.
const MOST: usize = 4096;

/// A call that launched something.
#[derive(Clone, Copy)]
struct Call {
    process: u32,
    start: Time,
}

/// What is known of a file while it is split.
struct Split<'t> {
    timeline: &'t Timeline,
    events: &'t [Event],
    /// Processes by the group of rows of their calls.
    hosts: FxHashMap<Id, u32>,
    /// Calls by correlation.
    calls: FxHashMap<u64, Vec<Call>>,
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
    for event in events {
        if is_call(roles, event) {
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
        let process = split.hosts.get(&timeline.pid(event)).copied()?;
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
        calls.push(Call { process, start });
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
    /// can be it the one whose calls are nearest.
    fn owner(&self, places: &[usize], taken: &[u32]) -> Option<u32> {
        let work = || places.iter().filter_map(|place| self.events.get(*place));
        let work = || work().filter(|event| event.correlation != 0);
        let mut sums: FxHashMap<u32, (u64, i128)> = FxHashMap::default();
        let (mut all, mut seen) = (0u64, FxHashMap::<u64, u64>::default());
        for event in work() {
            let Some(calls) = self.calls.get(&event.correlation) else {
                continue;
            };
            all += 1;
            *seen.entry(event.correlation).or_default() += 1;
            let mut last = None;
            for call in calls.iter().filter(|call| call.start <= event.start) {
                let sum = sums.entry(call.process).or_default();
                sum.0 += u64::from(last.replace(call.process) != Some(call.process));
                sum.1 += i128::from((event.start - call.start).0);
            }
        }
        let shared = seen.iter().filter(|(number, _)| self.is_shared(**number));
        let again = shared.clone().filter(|(_, count)| **count > 1).count();
        // Rows of several processes have most of their common numbers several times.
        if self.are_blocks || again * 2 > shared.count() {
            return None;
        }
        let mut whole: Vec<(u32, i128)> = sums
            .into_iter()
            .filter(|(_, (count, _))| *count >= all)
            .map(|(process, (_, delay))| (process, delay))
            .collect();
        let taken = |process: u32| taken.get(process as usize).copied().unwrap_or(0);
        whole.sort_by_key(|(process, delay)| (*delay, taken(*process), *process));
        whole.first().map(|(process, _)| *process)
    }

    /// Whether several processes have calls with a number.
    fn is_shared(&self, correlation: u64) -> bool {
        let calls = self.calls.get(&correlation).map_or(&[][..], Vec::as_slice);
        let first = calls.first().map(|call| call.process);
        calls.iter().any(|call| Some(call.process) != first)
    }

    /// Finds the process of each piece of work on rows of several.
    fn each(&self, places: &[usize], blocks: &[u32], of: &mut [u32]) {
        let mut alike: FxHashMap<u64, Vec<usize>> = FxHashMap::default();
        for place in places {
            if let Some(event) = self.events.get(*place) {
                alike.entry(event.correlation).or_default().push(*place);
            }
        }
        for (correlation, mut places) in alike {
            let calls = self.calls.get(&correlation).map_or(&[][..], Vec::as_slice);
            let start = |place: &usize| self.events.get(*place).map(|event| event.start);
            places.sort_by_key(|place| (start(place), *place));
            for (turn, place) in places.iter().enumerate() {
                let block = blocks.get(*place).copied().unwrap_or(0);
                let began = start(place);
                let before = calls.iter().filter(|call| Some(call.start) <= began);
                let of_block = || before.clone().any(|call| call.process == block);
                let process = match (calls, calls.len() == places.len()) {
                    _ if correlation == 0 || calls.is_empty() => block,
                    ([only], _) => only.process,
                    _ if self.are_blocks && of_block() => block,
                    (_, true) => calls.get(turn).map_or(block, |call| call.process),
                    _ => before.clone().last().map_or(block, |call| call.process),
                };
                if let Some(of) = of.get_mut(*place) {
                    *of = process;
                }
            }
        }
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
