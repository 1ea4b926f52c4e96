//! Tracks of a file, and the rows that they are in a timeline.

use super::args::push_string;
use super::proto::{CounterDescriptor, ProcessDescriptor, ThreadDescriptor, TrackDescriptor};
use aiprof_model::timeline::{self, Event, Id, NONE, Names, Ph, Texts, Time, TrackId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Most steps from a track to its process.
const MAX_DEPTH: usize = 64;
/// Process of tracks that are of none.
const GLOBAL: &str = "global";

/// A track as it was described; all of it may come late.
#[derive(Debug, Default)]
pub(super) struct Track {
    pub parent: u64,
    pub name: String,
    process: Option<ProcessDescriptor>,
    thread: Option<ThreadDescriptor>,
    pub counter: Option<CounterDescriptor>,
    /// The last value of a counter whose values are differences.
    pub total: f64,
}

/// All tracks.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    by_uuid: FxHashMap<u64, Track>,
    /// In the order in which they came.
    order: Vec<u64>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Tracks {
    pub(super) fn describe(&mut self, new: TrackDescriptor) {
        let name = [&new.name, &new.static_name, &new.atrace_name];
        let name = name.into_iter().find(|name| !name.is_empty());
        let track = self.track(new.uuid);
        if let Some(name) = name {
            track.name = text(name);
        }
        if new.parent_uuid != 0 {
            track.parent = new.parent_uuid;
        }
        track.process = new.process.or(track.process.take());
        track.thread = new.thread.or(track.thread.take());
        track.counter = new.counter.or(track.counter.take());
    }

    /// A thread that has no track of its own; gives the one it gets.
    pub(super) fn thread(&mut self, thread: ThreadDescriptor) -> u64 {
        // Numbers of tracks are random; these are apart from them and each other.
        let uuid = (thread.pid as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let uuid = (uuid ^ thread.tid as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        self.track(uuid).thread = Some(thread);
        uuid
    }

    /// A process that has no track of its own.
    pub(super) fn process(&mut self, process: ProcessDescriptor) {
        let uuid = (process.pid as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 1;
        self.track(uuid).process = Some(process);
    }

    fn track(&mut self, uuid: u64) -> &mut Track {
        let order = &mut self.order;
        self.by_uuid.entry(uuid).or_insert_with(|| {
            order.push(uuid);
            Track::default()
        })
    }

    pub(super) fn get_mut(&mut self, uuid: u64) -> Option<&mut Track> {
        self.by_uuid.get_mut(&uuid)
    }

    /// Process and thread of a track.
    pub(super) fn row(&self, uuid: u64, names: &mut Names) -> (Id, Id) {
        let own = self.by_uuid.get(&uuid);
        let mut last = own;
        let mut next = own;
        for depth in 0..MAX_DEPTH {
            let Some(track) = next else { break };
            if let Some(thread) = &track.thread {
                return (Id::Number(thread.pid), Id::Number(thread.tid));
            }
            if let Some(process) = &track.process {
                let tid = match depth {
                    0 => Id::NONE,
                    _ => name_of(own, uuid, names),
                };
                return (Id::Number(process.pid), tid);
            }
            last = next;
            next = self
                .by_uuid
                .get(&track.parent)
                .filter(|_| track.parent != 0);
        }
        let group = last.filter(|last| !last.name.is_empty());
        let group = group.map_or(GLOBAL, |last| last.name.as_str());
        (token(group, names), name_of(own, uuid, names))
    }

    /// Names and order of processes and threads: what each is of, and its event, which
    /// has no track yet.
    pub(super) fn metadata(
        &self,
        zero: Time,
        names: &mut Names,
        texts: &mut Texts,
    ) -> Vec<(timeline::Track, Event)> {
        let mut events = Vec::new();
        let mut seen = FxHashSet::default();
        let mut add = |pid: Id, tid: Id, name: &str, key: &str, value: String| {
            if !value.is_empty() && seen.insert((pid, tid, name.to_owned())) {
                let name = names.intern(name);
                let mut event = Event::new(Ph::Metadata, name, TrackId(NONE), zero);
                event.args = texts.join(&["\"", key, "\":", &value]);
                events.push((timeline::Track::row(pid, tid), event));
            }
        };
        for uuid in &self.order {
            let Some(track) = self.by_uuid.get(uuid) else {
                continue;
            };
            let index = |index: Option<i64>| index.map_or(String::new(), |i| i.to_string());
            if let Some(process) = &track.process {
                let pid = Id::Number(process.pid);
                let first = process.cmdline.first().map_or(&[][..], Vec::as_slice);
                let name = [&process.name[..], track.name.as_bytes(), first];
                let name = name.into_iter().find(|name| !name.is_empty());
                let labels: Vec<String> = process.labels.iter().map(|l| text(l)).collect();
                add(pid, Id::NONE, "process_name", "name", quoted(name));
                let labels = labels.join(",");
                let labels = Some(labels.as_bytes()).filter(|l| !l.is_empty());
                add(pid, Id::NONE, "process_labels", "labels", quoted(labels));
                let sort_index = index(process.sort_index);
                add(
                    pid,
                    Id::NONE,
                    "process_sort_index",
                    "sort_index",
                    sort_index,
                );
            }
            if let Some(thread) = &track.thread {
                let (pid, tid) = (Id::Number(thread.pid), Id::Number(thread.tid));
                let name = [&thread.name[..], track.name.as_bytes()];
                let name = name.into_iter().find(|name| !name.is_empty());
                add(pid, tid, "thread_name", "name", quoted(name));
                let sort_index = index(thread.sort_index);
                add(pid, tid, "thread_sort_index", "sort_index", sort_index);
            }
        }
        events
    }
}

/// A name in quotes; empty: there is none.
fn quoted(name: Option<&[u8]>) -> String {
    let mut out = String::new();
    if let Some(name) = name {
        push_string(&mut out, &String::from_utf8_lossy(name));
    }
    out
}

/// A row named as its track.
fn name_of(track: Option<&Track>, uuid: u64, names: &mut Names) -> Id {
    match track.filter(|track| !track.name.is_empty()) {
        Some(track) => token(&track.name, names),
        None if uuid == 0 => token(GLOBAL, names),
        None => token(&format!("track {uuid:x}"), names),
    }
}

fn token(text: &str, names: &mut Names) -> Id {
    let mut quoted = String::new();
    push_string(&mut quoted, text);
    Id::Token(names.intern(&quoted))
}
