//! Rows of a timeline as tracks.

use super::encode::{message, number, packet, text};
use aiprof_model::timeline::{Event, Id, Sym, Timeline, Track, members};
use rustc_hash::{FxHashMap, FxHashSet};
use std::io;

/// Largest number that Perfetto has for a process or thread.
const MAX_NUMBER: i64 = i32::MAX as i64;
/// The first number of those that replace others.
const FIRST_REPLACEMENT: i64 = 0x7000_0000;
/// Text after which it is written, bytes.
const FLUSH: usize = 1 << 16;

/// What a row is, within its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RowKey {
    /// Events of the process itself.
    Process,
    /// A thread.
    Thread(Id),
    /// Asynchronous slices of a category and id.
    Async(Sym, Id),
}

/// A row.
#[derive(Clone, Copy, Debug)]
struct TrackRow {
    pid: Id,
    key: RowKey,
    /// The name of its first event.
    name: Sym,
    /// Number of its first track; those for overlapping slices follow.
    uuid: u64,
    /// How many tracks it has.
    lanes: u32,
}

/// What a name event gives a process or thread.
#[derive(Clone, Debug, Default)]
struct Named {
    name: Option<String>,
    labels: Option<String>,
    sort_index: Option<i64>,
}

/// All tracks.
#[derive(Debug, Default)]
pub(super) struct TrackTable {
    row_of: FxHashMap<(Id, RowKey), u32>,
    rows: Vec<TrackRow>,
    processes: Vec<Id>,
    process_of: FxHashMap<Id, u64>,
    named: FxHashMap<(Id, Id), Named>,
    /// Counters by process, name, id and series.
    counters: FxHashMap<(Id, Sym, Id), FxHashMap<String, u64>>,
    counter_order: Vec<(Id, Sym, Id, String, u64)>,
    /// Numbers that Perfetto has no room for, and what they are instead.
    replaced: FxHashMap<Id, i64>,
    /// The process that has the row of an id which counts for all.
    shared: FxHashMap<(Sym, Id), Id>,
    last_uuid: u64,
}

impl TrackTable {
    /// The process of an asynchronous slice's row: the slice may begin in one process and end in
    /// another, unless its id counts within its process.
    pub(super) fn owner(&mut self, timeline: &Timeline, event: &Event) -> Id {
        let pid = timeline.pid(event);
        let is_local = match event.id {
            Id::Token(sym) => timeline.name(sym).starts_with("{\"local\""),
            Id::Number(_) => false,
        };
        match is_local {
            true => pid,
            false => *self.shared.entry((event.cat, event.id)).or_insert(pid),
        }
    }

    /// The row, which is new if need be.
    pub(super) fn row(&mut self, pid: Id, key: RowKey, name: Sym) -> u32 {
        self.process(pid);
        let rows = &mut self.rows;
        *self.row_of.entry((pid, key)).or_insert_with(|| {
            rows.push(TrackRow {
                pid,
                key,
                name,
                uuid: 0,
                lanes: 1,
            });
            rows.len() as u32 - 1
        })
    }

    fn next_uuid(&mut self) -> u64 {
        self.last_uuid += 1;
        self.last_uuid
    }

    fn process(&mut self, pid: Id) {
        if !self.process_of.contains_key(&pid) {
            let uuid = self.next_uuid();
            self.process_of.insert(pid, uuid);
            self.processes.push(pid);
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Takes a name event.
    pub(super) fn name(&mut self, timeline: &Timeline, event: &Event) {
        let value = |key: &str| timeline.arg(event, key);
        let string = |key: &str| value(key).map(plain);
        let Track { pid, tid, .. } = timeline.track(event);
        let tid = match timeline.name(event.name) {
            "process_name" | "process_labels" | "process_sort_index" => Id::NONE,
            "thread_name" | "thread_sort_index" => {
                self.row(pid, RowKey::Thread(tid), Sym::EMPTY);
                tid
            }
            _ => return,
        };
        self.process(pid);
        let named = self.named.entry((pid, tid)).or_default();
        named.name = string("name").or(named.name.take());
        named.labels = string("labels").or(named.labels.take());
        let sort_index = value("sort_index").and_then(|text| text.parse().ok());
        named.sort_index = sort_index.or(named.sort_index);
    }

    /// Makes tracks for the series of a counter's event.
    pub(super) fn counters(&mut self, timeline: &Timeline, event: &Event) {
        let pid = timeline.pid(event);
        self.process(pid);
        let key = (pid, event.name, event.id);
        let known = self.counters.entry(key).or_default();
        for (key, value) in members(timeline.texts.get(event.args)) {
            if counted(value).is_some() && !known.contains_key(key) {
                self.last_uuid += 1;
                known.insert(key.to_owned(), self.last_uuid);
                let new = (pid, event.name, event.id, key.to_owned(), self.last_uuid);
                self.counter_order.push(new);
            }
        }
    }

    /// The track of a counter's series.
    pub(super) fn counter(&self, timeline: &Timeline, event: &Event, key: &str) -> Option<u64> {
        let key_of = (timeline.pid(event), event.name, event.id);
        let series = self.counters.get(&key_of)?;
        series.get(key).copied()
    }

    /// All rows are known: they get their numbers.
    pub(super) fn number(&mut self) {
        for i in 0..self.rows.len() {
            let pid = self.rows.get(i).map_or(Id::NONE, |row| row.pid);
            let uuid = match self.rows.get(i).map(|row| row.key) {
                Some(RowKey::Process) => self.process_of.get(&pid).copied().unwrap_or(0),
                _ => self.next_uuid(),
            };
            if let Some(row) = self.rows.get_mut(i) {
                row.uuid = uuid;
            }
        }
        let thread = |row: &TrackRow| match row.key {
            RowKey::Thread(tid) => Some(tid),
            _ => None,
        };
        let ids = || {
            self.processes
                .iter()
                .copied()
                .chain(self.rows.iter().filter_map(thread))
        };
        let used: FxHashSet<i64> = ids().filter_map(Id::number).collect();
        let mut free = (FIRST_REPLACEMENT..=MAX_NUMBER).filter(|number| !used.contains(number));
        let mut replaced = FxHashMap::default();
        for id in ids() {
            let fits = id.number().is_some_and(|n| (0..=MAX_NUMBER).contains(&n));
            if !fits && !replaced.contains_key(&id) {
                // More rows than that do not fit in memory.
                replaced.insert(id, free.next().unwrap_or(MAX_NUMBER));
            }
        }
        self.replaced = replaced;
    }

    /// How many tracks each row needs.
    pub(super) fn set_lanes(&mut self, lanes: Vec<u32>) {
        for (row, lanes) in self.rows.iter_mut().zip(lanes) {
            row.lanes = lanes.max(1);
        }
    }

    /// The number of a row's track.
    pub(super) fn uuid(&self, row: u32, lane: usize) -> u64 {
        let first = self.rows.get(row as usize).map_or(0, |row| row.uuid);
        lane_uuid(first, lane as u64)
    }

    /// The number of a process or thread.
    fn id(&self, id: Id) -> i64 {
        let own = id.number().unwrap_or(0);
        self.replaced.get(&id).copied().unwrap_or(own)
    }

    /// The name of a process or thread: its own, or else its id where the written number
    /// does not show it.
    fn name_of(&self, timeline: &Timeline, pid: Id, tid: Id, id: Id) -> Option<String> {
        let named = self
            .named
            .get(&(pid, tid))
            .and_then(|named| named.name.clone());
        named.or_else(|| match id {
            _ if !id.is_given() => None,
            Id::Token(sym) => Some(plain(timeline.name(sym))),
            Id::Number(number) => self.replaced.contains_key(&id).then(|| number.to_string()),
        })
    }

    /// Describes all tracks in `out`, which `full` is given when there is much in it.
    pub(super) fn write(
        &self,
        timeline: &Timeline,
        out: &mut Vec<u8>,
        mut full: impl FnMut(&mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        for pid in &self.processes {
            self.write_process(timeline, *pid, out);
            if out.len() > FLUSH {
                full(out)?;
            }
        }
        for row in &self.rows {
            self.write_row(timeline, row, out);
            if out.len() > FLUSH {
                full(out)?;
            }
        }
        for (pid, name, id, key, uuid) in &self.counter_order {
            let parent = self.process_of.get(pid).copied().unwrap_or(0);
            let key = plain(&format!("\"{key}\""));
            let name = timeline.name(*name);
            // Counters of one name with different ids are different counters.
            let name = match *id {
                Id::NONE => name.to_owned(),
                Id::Number(number) => format!("{name} id: {number}"),
                Id::Token(sym) => format!("{name} id: {}", plain(timeline.name(sym))),
            };
            describe(out, *uuid, parent, |track| {
                text(track, 2, &format!("{name} {key}"));
                message(track, 8, |counter| text(counter, 6, &key));
            });
            if out.len() > FLUSH {
                full(out)?;
            }
        }
        Ok(())
    }

    fn write_process(&self, timeline: &Timeline, pid: Id, out: &mut Vec<u8>) {
        let uuid = self.process_of.get(&pid).copied().unwrap_or(0);
        let named = self.named.get(&(pid, Id::NONE));
        describe(out, uuid, 0, |track| {
            message(track, 3, |process| {
                number(process, 1, self.id(pid) as u64);
                if let Some(index) = named.and_then(|named| named.sort_index) {
                    number(process, 3, index as u64);
                }
                if let Some(name) = self.name_of(timeline, pid, Id::NONE, pid) {
                    text(process, 6, &name);
                }
                if let Some(labels) = named.and_then(|named| named.labels.as_deref()) {
                    text(process, 8, labels);
                }
            });
        });
    }

    fn write_row(&self, timeline: &Timeline, row: &TrackRow, out: &mut Vec<u8>) {
        let parent = self.process_of.get(&row.pid).copied().unwrap_or(0);
        let name = match row.key {
            RowKey::Process => None,
            RowKey::Thread(tid) => {
                let name = self.name_of(timeline, row.pid, tid, tid);
                let index = self.named.get(&(row.pid, tid)).and_then(|n| n.sort_index);
                describe(out, row.uuid, parent, |track| {
                    message(track, 4, |thread| {
                        number(thread, 1, self.id(row.pid) as u64);
                        number(thread, 2, self.id(tid) as u64);
                        if let Some(index) = index {
                            number(thread, 3, index as u64);
                        }
                        if let Some(name) = &name {
                            text(thread, 5, name);
                        }
                    });
                });
                name
            }
            RowKey::Async(..) => {
                let name = timeline.name(row.name);
                describe(out, row.uuid, parent, |track| text(track, 2, name));
                None
            }
        };
        let name = name.unwrap_or_else(|| "overlapping".to_owned());
        for lane in 1..u64::from(row.lanes) {
            describe(out, lane_uuid(row.uuid, lane), row.uuid, |track| {
                text(track, 2, &format!("{name} {}", lane + 1));
            });
        }
    }
}

/// The number of a counter's value, as text and as a double: some writers put it in quotes.
/// `None`: it is no number.
pub(super) fn counted(value: &str) -> Option<(&str, f64)> {
    let text = value.trim_matches('"').trim();
    let double: f64 = text.parse().ok()?;
    double.is_finite().then_some((text, double))
}

/// Tracks of overlapping slices have numbers of their own.
fn lane_uuid(first: u64, lane: u64) -> u64 {
    first | lane << 40
}

/// A text from its JSON; numbers as they are written.
fn plain(json: &str) -> String {
    serde_json::from_str(json).unwrap_or_else(|_| json.trim_matches('"').to_owned())
}

/// Writes a `TrackDescriptor`.
pub(super) fn describe(out: &mut Vec<u8>, uuid: u64, parent: u64, more: impl FnOnce(&mut Vec<u8>)) {
    packet(out, None, |packet| {
        message(packet, 60, |track| {
            number(track, 1, uuid);
            if parent != 0 {
                number(track, 5, parent);
            }
            more(track);
        });
    });
}
