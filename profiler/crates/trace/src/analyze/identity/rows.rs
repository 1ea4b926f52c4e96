//! Groups of rows: each of one process or device, whatever the numbers in the files.

use super::{TracePart, TraceParts, TraceProcess};
use aiprof_model::timeline::{Event, Id, Ph, RowGroup, Time, Timeline, Track, TrackId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// What is added to the number of a group that another has, so that the number still shows.
const APART: i64 = 10_000_000;
/// Groups that Kineto has for itself, of no process.
const PSEUDO: [&str; 4] = ["", "\"Spans\"", "\"Traces\"", "\"Trace\""];

/// Where the rows of processes go.
pub(super) struct Groups {
    /// By process and its group in the file.
    new: FxHashMap<(usize, Id), Id>,
}

impl Groups {
    /// Finds a group for each process and device, in the order of processes.
    pub(super) fn new(timeline: &mut Timeline, parts: &TraceParts) -> Self {
        let tracks = timeline.tracks.iter();
        let mut known: FxHashSet<Id> = tracks.map(|(_, track)| track.pid).collect();
        let mut taken: FxHashSet<Id> = FxHashSet::default();
        let mut groups = Self {
            new: FxHashMap::default(),
        };
        for (number, process) in parts.processes.iter().enumerate() {
            let first = parts.first(process);
            if first.is_some_and(|part| part.number > 0 && !part.is_processed) {
                // The arrows of the file's first process have the same numbers.
                timeline.identity.renumbered.insert(process.rank);
            }
            let lone = parts.lone_device(process);
            for pid in parts.rows(process) {
                if is_pseudo(timeline, pid) {
                    continue;
                }
                let wanted = parts.wanted(process, pid);
                let mut candidates = Candidates {
                    wanted,
                    own: (lone == Some(pid)).then_some(process.rank),
                };
                let mut new = wanted;
                let mut turn = 0;
                while taken.contains(&new) || new != wanted && known.contains(&new) {
                    turn += 1;
                    new = candidates.get(timeline, turn);
                }
                taken.insert(new);
                known.insert(new);
                if new != wanted && !parts.is_device(process, pid) {
                    timeline.identity.renumbered.insert(process.rank);
                }
                groups.new.insert((number, pid), new);
            }
        }
        groups
    }

    /// The group of a process for one of its file.
    pub(super) fn of(&self, parts: &TraceParts, number: usize, pid: Id) -> Id {
        let found = self.new.get(&(number, pid)).copied();
        let process = parts.processes.get(number);
        let wanted = || process.map_or(pid, |process| parts.wanted(process, pid));
        found.unwrap_or_else(wanted)
    }

    /// Puts the events of all processes on their rows.
    pub(super) fn apply(&self, timeline: &mut Timeline, parts: &TraceParts) {
        for (number, process) in parts.processes.iter().enumerate() {
            let own = parts.first(process).map_or(Id::NONE, TracePart::process);
            let own = self.of(parts, number, own);
            for part in process.parts.iter().filter_map(|part| parts.all.get(*part)) {
                self.move_part(timeline, parts, number, part);
            }
            for pid in parts.rows(process) {
                if is_pseudo(timeline, pid) {
                    continue;
                }
                let pid = self.of(parts, number, pid);
                let group = RowGroup {
                    host: process.host,
                    process: own,
                    same: pid,
                };
                timeline.identity.groups.insert(pid, group);
            }
        }
    }

    fn move_part(
        &self,
        timeline: &mut Timeline,
        parts: &TraceParts,
        number: usize,
        part: &TracePart,
    ) {
        let Some(process) = parts.processes.get(number) else {
            return;
        };
        let mut moved: FxHashMap<TrackId, TrackId> = FxHashMap::default();
        for (place, index) in part.events.clone().enumerate() {
            let Some(event) = timeline.events.get(index).copied() else {
                break;
            };
            if !part.has(place) {
                continue;
            }
            let old = timeline.track(&event);
            let track = *moved.entry(event.track).or_insert_with(|| {
                timeline.tracks.like(event.track, |track| {
                    track.rank = process.rank;
                    if !part.is_processed || self.new.contains_key(&(number, old.pid)) {
                        track.pid = self.of(parts, number, old.pid);
                    }
                })
            });
            let args = match event.ph {
                Ph::Metadata if !part.is_processed => parts.order_text(timeline, process, &event),
                _ => None,
            };
            let args = args.map(|text| timeline.texts.add(&text));
            if let Some(event) = timeline.events.get_mut(index) {
                event.track = track;
                event.args = args.unwrap_or(event.args);
            }
        }
    }
}

impl TraceParts {
    /// The groups of a process in its files that have events.
    pub(super) fn rows(&self, process: &TraceProcess) -> impl Iterator<Item = Id> + use<> {
        let parts = process.parts.iter().filter_map(|part| self.all.get(*part));
        let mut rows: Vec<Id> = parts.flat_map(|part| part.rows.keys().copied()).collect();
        rows.sort();
        rows.dedup();
        rows.into_iter()
    }

    /// Whether a process has a group.
    fn has_row(&self, process: &TraceProcess, pid: Id) -> bool {
        let mut parts = process.parts.iter().filter_map(|part| self.all.get(*part));
        parts.any(|part| part.rows.contains_key(&pid))
    }

    /// Whether a group of a process is of a device.
    fn is_device(&self, process: &TraceProcess, pid: Id) -> bool {
        let mut parts = process.parts.iter().filter_map(|part| self.all.get(*part));
        parts.any(|part| part.rows.get(&pid).is_some_and(|row| row.is_device))
    }

    /// The process's only device, if it has one and no other.
    fn lone_device(&self, process: &TraceProcess) -> Option<Id> {
        let parts = process.parts.iter().filter_map(|part| self.all.get(*part));
        let mut devices = parts.flat_map(TracePart::devices).map(|(pid, _)| pid);
        let first = devices.next()?;
        devices.all(|device| device == first).then_some(first)
    }

    /// The number that a group of a process gets, if no other has it: the first device is
    /// that of the rank, if there are no others.
    fn wanted(&self, process: &TraceProcess, pid: Id) -> Id {
        let is_processed = self.first(process).is_none_or(|part| part.is_processed);
        let is_first = pid == Id::Number(0) && !is_processed;
        let parts = process.parts.iter().filter_map(|part| self.all.get(*part));
        let mut devices = parts.flat_map(TracePart::devices);
        match is_first && devices.all(|(device, _)| device == pid) {
            true => Id::Number(process.rank.into()),
            false => pid,
        }
    }

    /// The arguments of an event with the order of a process, so that those of a rank stand
    /// together.
    fn order_text(
        &self,
        timeline: &Timeline,
        process: &TraceProcess,
        event: &Event,
    ) -> Option<String> {
        let name = timeline.name(event.name);
        if !name.starts_with("process_") || !name.ends_with("sort_index") {
            return None;
        }
        let pid = timeline.pid(event);
        let is_host = match (pid.number(), self.has_row(process, pid)) {
            (None, _) => false,
            (_, true) => !self.is_device(process, pid),
            (Some(number), _) => number > i64::from(process.rank),
        };
        let after = if is_host { 0 } else { 15 };
        let index = u64::from(process.rank) * 123_000 + after;
        let old = timeline.arg(event, "sort_index")?;
        let text = timeline.texts.get(event.args);
        let start = old.as_ptr() as usize - text.as_ptr() as usize;
        let (before, rest) = text.split_at_checked(start)?;
        let behind = rest.get(old.len()..)?;
        Some(format!("{before}{index}{behind}"))
    }
}

/// Numbers for a group, in turn.
struct Candidates {
    wanted: Id,
    /// The rank of a process with one device, whose number it may have.
    own: Option<u32>,
}

impl Candidates {
    fn get(&mut self, timeline: &mut Timeline, turn: i64) -> Id {
        if let Some(own) = self.own.take() {
            return Id::Number(own.into());
        }
        match self.wanted {
            Id::Number(number) => Id::Number(number.saturating_add(turn.saturating_mul(APART))),
            Id::Token(text) => {
                let text = timeline.name(text).trim_matches('"').to_owned();
                let text = format!("\"{text} ({})\"", turn.saturating_add(1));
                Id::Token(timeline.names.intern(&text))
            }
        }
    }
}

fn is_pseudo(timeline: &Timeline, pid: Id) -> bool {
    match pid {
        Id::Number(_) => false,
        Id::Token(text) => PSEUDO.contains(&timeline.name(text)),
    }
}

/// Adds the host's name to the labels of processes and devices, where there are several.
pub(super) fn name_hosts(timeline: &mut Timeline) {
    if timeline.identity.hosts.len() < 2 {
        return;
    }
    let label = timeline.names.intern("process_labels");
    let groups = timeline.identity.groups.iter();
    let mut left: BTreeMap<Id, RowGroup> = groups.map(|(pid, group)| (*pid, *group)).collect();
    for index in 0..timeline.events.len() {
        let Some(event) = timeline.events.get(index).copied() else {
            break;
        };
        if event.ph != Ph::Metadata || event.name != label {
            continue;
        }
        let pid = timeline.pid(&event);
        let group = timeline.identity.groups.get(&pid);
        let host = group.and_then(|group| timeline.identity.host_name(group.host));
        let Some((host, text)) = host.zip(timeline.arg(&event, "labels")) else {
            continue;
        };
        left.remove(&pid);
        let known = serde_json::from_str::<String>(text).unwrap_or_default();
        if known.split(", ").any(|part| part == host) {
            continue;
        }
        let text = labels(&format!("{known}, {host}"));
        let text = timeline.texts.add(&text);
        if let Some(event) = timeline.events.get_mut(index) {
            event.args = text;
        }
    }
    for (pid, group) in left {
        let Some(host) = timeline.identity.host_name(group.host) else {
            continue;
        };
        let text = labels(host);
        let track = timeline.tracks.intern(Track::row(pid, Id::Number(0)));
        let mut event = Event::new(Ph::Metadata, label, track, Time::ORIGIN);
        event.args = timeline.texts.add(&text);
        timeline.events.push(event);
    }
}

fn labels(text: &str) -> String {
    format!("\"labels\":{}", serde_json::Value::from(text))
}
