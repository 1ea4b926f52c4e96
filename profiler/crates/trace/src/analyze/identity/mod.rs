//! Which processes, devices and streams the events of several files are of.
//!
//! A number of a process is no identity across files, and neither is a rank, which is a label.
//! What is the same is known by content: the host that a file states, the process, the rank and
//! the time. Files of one process, one for each cycle of its profiler, do not overlap in time. A
//! file may have several processes, when somebody merged it.
//!
//! Behind this step each `pid` of Kineto's events is of one process, or of one device of a
//! process, and each rank is of one process.

#[cfg(test)]
mod file_tests;
mod gather;
mod merged;
mod rows;
mod shared;
#[cfg(test)]
mod tests;

use super::messages::Messages;
use super::normalize;
use super::recordings::Recording;
use aiprof_model::timeline::{Dialect, Event, Id, Job, NONE, Ph, Sym, Timeline, TrackId};
use gather::TracePart;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// A process, in all of its files.
#[derive(Debug)]
struct TraceProcess {
    /// Its parts, in [`TraceParts::all`].
    parts: Vec<usize>,
    /// The host's number, if it is known.
    host: Option<u32>,
    /// Its rank, or a number that no other process has.
    rank: u32,
}

/// The processes of all files.
#[derive(Debug, Default)]
struct TraceParts {
    all: Vec<TracePart>,
    processes: Vec<TraceProcess>,
}

/// Finds the processes and devices of Kineto's files, and gives each its own group of rows and
/// its own rank. Needs the events as they were read, each file's together.
pub fn resolve(timeline: &mut Timeline, files: &[Recording], messages: &mut Messages) {
    let mut parts = TraceParts::default();
    for file in files {
        parts.all.extend(gather::parts(timeline, file));
    }
    if parts.all.is_empty() {
        return;
    }
    parts.join(timeline);
    parts.label(timeline, messages);
    let groups = rows::Groups::new(timeline, &parts);
    groups.apply(timeline, &parts);
    shared::find(timeline, &parts, &groups);
}

/// The file that an event of Kineto's is of: nothing was recorded between files of one process.
/// Files of others are one.
pub fn file_of(timeline: &Timeline, event: &Event) -> u32 {
    match timeline.dialect(event) {
        Dialect::Torch => timeline.job(event),
        Dialect::Flex | Dialect::Plain => NONE,
    }
}

/// Adds the host's name to the labels of processes and devices, where there are several hosts.
/// Events are added at the end.
pub fn name_hosts(timeline: &mut Timeline) {
    rows::name_hosts(timeline);
}

impl TraceParts {
    /// Joins the parts that are of one process, in an order that no name of a file decides.
    fn join(&mut self, timeline: &mut Timeline) {
        self.all.sort_by_cached_key(|part| part.order(timeline));
        let hosts: BTreeSet<&String> = self
            .all
            .iter()
            .filter_map(|part| part.host.as_ref())
            .collect();
        timeline.identity.hosts = hosts.into_iter().cloned().collect();
        for (at, part) in self.all.iter().enumerate() {
            let is_same = |process: &&mut TraceProcess| {
                let mut known = process
                    .parts
                    .iter()
                    .filter_map(|known| self.all.get(*known));
                known.all(|known| known.is_same_process(part))
            };
            if let Some(process) = self.processes.iter_mut().find(is_same) {
                process.parts.push(at);
                continue;
            }
            self.processes.push(TraceProcess {
                parts: vec![at],
                host: None,
                rank: 0,
            });
        }
        for process in &mut self.processes {
            let mut known = process.parts.iter().filter_map(|part| self.all.get(*part));
            let host = known.find_map(|part| part.host.as_ref());
            let number = host.and_then(|host| timeline.identity.hosts.binary_search(host).ok());
            process.host = number.and_then(|number| u32::try_from(number).ok());
        }
    }

    /// Gives each process the rank that its file states, if it is the first with it, else a
    /// number that no file states.
    fn label(&mut self, timeline: &Timeline, messages: &mut Messages) {
        let stated: BTreeSet<u32> = self.all.iter().filter_map(|part| part.rank).collect();
        let mut free = (0..).filter(|rank| !stated.contains(rank));
        let mut used = BTreeSet::new();
        for process in &mut self.processes {
            let part = process.parts.first().and_then(|part| self.all.get(*part));
            let own = part.and_then(|part| part.rank);
            if let Some(own) = own.filter(|own| used.insert(*own)) {
                process.rank = own;
                continue;
            }
            process.rank = free.next().unwrap_or(u32::MAX - 1);
            if let Some((own, part)) = own.zip(part) {
                let job = timeline.jobs.get(part.job as usize);
                let path = job.map_or("", |job| job.path.as_str());
                let rank = process.rank;
                messages.warn(
                    "INGEST",
                    format_args!(
                        "Another process has the rank {own} of {path}, too; it is listed as rank \
                         {rank}"
                    ),
                );
            }
        }
    }

    /// The first part of a process.
    fn first(&self, process: &TraceProcess) -> Option<&TracePart> {
        self.all.get(*process.parts.first()?)
    }
}

/// Gives the slices of what an analysis wrote back to the files that it had read: it notes them
/// with each slice.
pub fn restore_files(timeline: &mut Timeline) {
    if !timeline.jobs.iter().any(|job| job.is_processed) {
        return;
    }
    let mut jobs: BTreeMap<(u32, String), u32> = BTreeMap::new();
    let mut moved: FxHashMap<(TrackId, Sym), TrackId> = FxHashMap::default();
    for index in 0..timeline.events.len() {
        let Some(event) = timeline.events.get(index).copied() else {
            break;
        };
        let is_kineto = timeline.dialect(&event) == Dialect::Torch;
        if !is_kineto || !event.is_slice() || !timeline.is_processed(&event) {
            continue;
        }
        let Some(name) = timeline.arg(&event, "jobname").map(str::to_owned) else {
            continue;
        };
        let key = (event.track, timeline.names.intern(&name));
        let track = match moved.get(&key) {
            Some(track) => *track,
            None => {
                let old = timeline.job(&event);
                let mut known = jobs.range((old, String::new())..);
                let is_first = known.next().is_none_or(|((job, _), _)| *job != old);
                let job = *jobs
                    .entry((old, name.clone()))
                    .or_insert_with(|| match is_first {
                        true => old,
                        false => like(timeline, old, &name),
                    });
                let track = timeline.tracks.like(event.track, |track| track.job = job);
                moved.insert(key, track);
                track
            }
        };
        if let Some(event) = timeline.events.get_mut(index) {
            event.track = track;
        }
    }
}

/// Adds a file that is like another but for its name, and returns its number.
fn like(timeline: &mut Timeline, job: u32, name: &str) -> u32 {
    let new = u32::try_from(timeline.jobs.len()).unwrap_or(job);
    if let Some(old) = timeline.jobs.get(job as usize) {
        let name = name.trim_matches('"').to_owned();
        timeline.jobs.push(Job {
            name,
            ..old.clone()
        });
        if let Some(beyond) = timeline.beyond.get(&job).copied() {
            timeline.beyond.insert(new, beyond);
        }
    }
    new
}

/// Gives arrows numbers of their own where another process has those of their file, too: viewers
/// join all arrows of one number.
pub(super) fn separate_arrows(timeline: &mut Timeline) {
    if timeline.identity.renumbered.is_empty() {
        return;
    }
    let is_arrow = |ph| matches!(ph, Ph::FlowStart | Ph::FlowStep | Ph::FlowEnd);
    let numbers = timeline.events.iter().filter(|event| is_arrow(event.ph));
    let numbers = numbers.filter_map(|event| event.id.number());
    let mut last = numbers.max().unwrap_or(0).max(0);
    let mut given: FxHashMap<(u32, Sym, Sym, Id), i64> = FxHashMap::default();
    let Timeline {
        events,
        tracks,
        identity,
        ..
    } = timeline;
    for event in events.iter_mut().filter(|event| is_arrow(event.ph)) {
        let rank = tracks.rank(event);
        if identity.renumbered.contains(&rank) {
            let key = (rank, event.cat, event.name, event.id);
            let number = given.entry(key).or_insert_with(|| {
                last = last.saturating_add(1);
                last
            });
            event.id = Id::Number(*number);
        }
    }
    separate_bound_arrows(timeline);
}

/// The same for arrows that slices name themselves.
fn separate_bound_arrows(timeline: &mut Timeline) {
    let number = |id: &str| match id.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => id.parse().ok(),
    };
    let bound = timeline.events.iter().zip(0..);
    let bound = bound.filter_map(|(event, index)| {
        let id = timeline.bound_flow(event)?.id;
        Some((index, timeline.rank(event), id.to_owned()))
    });
    let bound: Vec<(usize, u32, String)> = bound.collect();
    let numbers = bound.iter().filter_map(|(.., id)| number(id));
    let mut last = numbers.max().unwrap_or(0).max(0);
    let mut given: FxHashMap<(u32, String), i64> = FxHashMap::default();
    for (index, rank, id) in bound {
        let Some(event) = timeline.events.get(index).copied() else {
            continue;
        };
        if !timeline.identity.renumbered.contains(&rank) {
            continue;
        }
        let number = given.entry((rank, id)).or_insert_with(|| {
            last = last.saturating_add(1);
            last
        });
        let args = normalize::with_member(timeline, &event, "bind_id", &number.to_string());
        let args = timeline.texts.add(&args);
        if let Some(event) = timeline.events.get_mut(index) {
            event.args = args;
        }
    }
}
