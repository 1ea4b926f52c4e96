//! What a file has of processes: who they are, when, and what rows they use.

use super::merged;
use crate::analyze::recordings::Recording;
use crate::work::{SpanRole, role_of};
use aiprof_model::timeline::{
    Dialect, Event, Id, Job, NONE, Ph, StatedRow, Sym, Timeline, TrackId,
};
use rustc_hash::{FxHashMap, FxHasher};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};
use std::ops::Range;
use std::sync::Arc;

/// In a microsecond.
const PICOSECONDS: i128 = 1_000_000;
/// Files of one process have no more in common than this part of the shorter.
const ALSO_COMMON: f64 = 0.1;

/// What a process has a group of rows for.
#[derive(Clone, Debug, Default)]
pub(super) struct RowUse {
    /// Calls into runtimes.
    pub(super) calls: u64,
    /// Whether a device's work is on it.
    pub(super) is_device: bool,
    /// Numbers of the devices that its work names.
    pub(super) devices: BTreeSet<i64>,
}

/// A process in one file.
#[derive(Clone, Debug, Default)]
pub(super) struct TracePart {
    /// The file.
    pub(super) job: u32,
    /// The file's events.
    pub(super) events: Range<usize>,
    /// Which process of the file; `None`: it has only one.
    pub(super) only: Option<Arc<Vec<u32>>>,
    /// Its number in [`Self::only`].
    pub(super) number: u32,
    /// Whether an analysis wrote the file.
    pub(super) is_processed: bool,
    /// The rank that the file states.
    pub(super) rank: Option<u32>,
    /// The host that it states.
    pub(super) host: Option<String>,
    /// Groups of rows with events, by their `pid` in the file.
    pub(super) rows: BTreeMap<Id, RowUse>,
    /// First begin and last end, microseconds as the file has them.
    from_us: f64,
    to_us: f64,
    /// Slices.
    slices: usize,
    /// A digest of their names, begins and lengths, whatever their order.
    digest: u64,
}

/// What decides on the order of processes: rank, host, process, times, slices, and the file only
/// where all of these are equal.
type Order = (
    u32,
    Option<String>,
    (i64, String),
    [i64; 2],
    usize,
    u64,
    String,
);

impl TracePart {
    /// What decides on its place.
    pub(super) fn order(&self, timeline: &Timeline) -> Order {
        let pid = match self.process() {
            Id::Number(number) => (number, String::new()),
            Id::Token(text) => (i64::MAX, timeline.name(text).to_owned()),
        };
        let job = timeline.jobs.get(self.job as usize);
        (
            self.rank.unwrap_or(NONE),
            self.host.clone(),
            pid,
            [self.from_us as i64, self.to_us as i64],
            self.slices,
            self.digest,
            job.map_or(String::new(), |job| job.path.clone()),
        )
    }

    /// The group of rows of its threads: that with most calls, else the first that is of no
    /// device.
    pub(super) fn process(&self) -> Id {
        let most = self.rows.iter().filter(|(_, row)| row.calls > 0);
        let most = most.max_by_key(|(pid, row)| (row.calls, std::cmp::Reverse(**pid)));
        let host = || self.rows.iter().find(|(_, row)| !row.is_device);
        let any = || self.rows.iter().next();
        most.or_else(host)
            .or_else(any)
            .map_or(Id::NONE, |(pid, _)| *pid)
    }

    /// Whether both are parts of one process, of which each file has another time. Without a
    /// rank and a host nothing shows that.
    pub(super) fn is_same_process(&self, other: &Self) -> bool {
        let common = self.to_us.min(other.to_us) - self.from_us.max(other.from_us);
        let length = (self.to_us - self.from_us).min(other.to_us - other.from_us);
        // Work of a device may end while the next file begins.
        let is_apart = common <= length * ALSO_COMMON || length < 0.0;
        let is_host = match (&self.host, &other.host) {
            (Some(one), Some(two)) => one == two,
            _ => true,
        };
        let is_known = self.rank.is_some() || self.host.is_some() && other.host.is_some();
        is_known
            && is_apart
            && is_host
            && self.job != other.job
            && self.rank == other.rank
            && self.process() == other.process()
    }

    /// Groups of rows with work of devices.
    pub(super) fn devices(&self) -> impl Iterator<Item = (Id, &RowUse)> {
        let rows = self.rows.iter().filter(|(_, row)| row.is_device);
        rows.map(|(pid, row)| (*pid, row))
    }

    /// Whether an event of the file, by its place among them, is of this process.
    pub(super) fn has(&self, place: usize) -> bool {
        let of = self.only.as_ref().and_then(|of| of.get(place));
        self.only.is_none() || of == Some(&self.number)
    }

    /// Takes an event.
    fn add(&mut self, timeline: &Timeline, event: &Event, role: SpanRole, origin: i64) {
        if !event.is_slice() {
            return;
        }
        let row = self.rows.entry(timeline.pid(event)).or_default();
        row.calls += u64::from(role == SpanRole::Call);
        if role == SpanRole::Device {
            row.is_device = true;
        }
        self.slices += 1;
        let mut hasher = FxHasher::default();
        let start = i128::from(event.start.0) + i128::from(origin) * PICOSECONDS;
        (timeline.name(event.name), start, event.length).hash(&mut hasher);
        self.digest = self.digest.wrapping_add(hasher.finish());
        // Times that cannot be true make no process long.
        let origin = origin as f64;
        let start = event.ts() + origin;
        if role != SpanRole::Other && !event.start.is_edge() && start > 1.0 {
            self.from_us = self.from_us.min(start);
            self.to_us = self.to_us.max(event.end_us() + origin);
        }
    }
}

/// Whether a file's rows are Kineto's: processes by their number, devices by theirs.
fn is_kineto(timeline: &Timeline, job: u32) -> bool {
    let job = timeline.jobs.get(job as usize);
    job.is_some_and(|job| job.dialect == Dialect::Torch && !job.is_recording)
}

/// The writer of traces whose processes have names such as `RANK 3 HOST<a>`.
const UNITRACE: &str = "unitrace";

/// The ranks that names of processes state, in their order, and the processes of each; none, if
/// there are not several.
fn named_ranks(timeline: &Timeline, job: &Job, events: &[Event]) -> Vec<(u32, BTreeSet<Id>)> {
    let mut ranks: BTreeMap<u32, BTreeSet<Id>> = BTreeMap::new();
    let names = events
        .iter()
        .filter(|event| event.ph == Ph::Metadata && timeline.name(event.name) == "process_name");
    for event in names {
        let name = timeline.arg(event, "name").unwrap_or_default();
        let rest = name.trim_start_matches('"').strip_prefix("RANK ");
        let number = rest.and_then(|rest| rest.split(' ').next());
        if let Some(rank) = number.and_then(|number| number.parse().ok()) {
            ranks.entry(rank).or_default().insert(timeline.pid(event));
        }
    }
    match job.writer == UNITRACE && ranks.len() > 1 {
        true => ranks.into_iter().collect(),
        false => Vec::new(),
    }
}

/// Which of these ranks each event is of, and how many there are.
fn by_named(
    timeline: &Timeline,
    events: &[Event],
    named: &[(u32, BTreeSet<Id>)],
) -> (Vec<u32>, u32) {
    let numbered = (0u32..).zip(named);
    let of: FxHashMap<Id, u32> = numbered
        .flat_map(|(number, (_, pids))| pids.iter().map(move |pid| (*pid, number)))
        .collect();
    let of = |event: &Event| of.get(&timeline.pid(event)).copied().unwrap_or(0);
    (events.iter().map(of).collect(), named.len() as u32)
}

/// The processes of a file; none, if it is not one of Kineto's.
pub(super) fn parts(timeline: &Timeline, file: &Recording) -> Vec<TracePart> {
    let Some(job) = timeline.jobs.get(file.job as usize) else {
        return Vec::new();
    };
    if !is_kineto(timeline, file.job) {
        return Vec::new();
    }
    let events = timeline.events.get(file.events.clone()).unwrap_or_default();
    let mut roles = Roles::default();
    // What an analysis wrote has ranks of its own.
    let named = match job.is_processed {
        true => Vec::new(),
        false => named_ranks(timeline, job, events),
    };
    let split = match job.is_processed {
        true => by_rank(timeline, events),
        false if !named.is_empty() => Some(by_named(timeline, events, &named)),
        false => merged::split(timeline, events, &mut roles),
    };
    let (only, count) = match split {
        Some((of, count)) => (Some(Arc::new(of)), count),
        None => (None, 1),
    };
    let stated = |number: u32| match named.get(number as usize) {
        Some((rank, _)) => Some(*rank),
        None => job.rank.filter(|_| number == 0),
    };
    let part = |number| TracePart {
        job: file.job,
        events: file.events.clone(),
        only: only.clone(),
        number,
        is_processed: job.is_processed,
        rank: stated(number),
        host: job.stated.host.clone(),
        from_us: f64::INFINITY,
        to_us: f64::NEG_INFINITY,
        ..TracePart::default()
    };
    let mut parts: Vec<TracePart> = (0..count).map(part).collect();
    let mut seen: FxHashMap<(TrackId, u32), ()> = FxHashMap::default();
    for (place, event) in events.iter().enumerate() {
        let number = only
            .as_ref()
            .and_then(|of| of.get(place))
            .copied()
            .unwrap_or(0);
        let Some(part) = parts.get_mut(number as usize) else {
            continue;
        };
        let role = roles.of(timeline, event);
        part.add(timeline, event, role, file.origin);
        if role == SpanRole::Device && seen.insert((event.track, number), ()).is_none() {
            part.add_device(timeline, event);
        }
        if job.is_processed && part.rank.is_none() && event.is_slice() {
            part.rank = given_rank(timeline, event);
        }
    }
    for part in parts.iter_mut().filter(|part| part.is_processed) {
        part.host = part.stated_host(timeline);
    }
    parts.retain(|part| part.slices > 0 || part.number == 0);
    parts
}

impl TracePart {
    /// Takes the number of the device that did an event's work.
    fn add_device(&mut self, timeline: &Timeline, event: &Event) {
        let device = timeline
            .arg(event, "device")
            .and_then(|text| text.parse().ok());
        let row = self.rows.entry(timeline.pid(event)).or_default();
        row.devices.extend(device.or(timeline.pid(event).number()));
    }

    /// The host that a file states of its rows.
    fn stated_host(&self, timeline: &Timeline) -> Option<String> {
        let stated = self.stated_rows(timeline);
        let mut rows = self.rows.keys();
        rows.find_map(|pid| stated.get(pid_text(timeline, *pid).as_str())?.host.clone())
    }

    /// What the file states of its rows, by the text of their `pid`; of several the first counts.
    pub(super) fn stated_rows<'t>(
        &self,
        timeline: &'t Timeline,
    ) -> FxHashMap<&'t str, &'t StatedRow> {
        let job = timeline.jobs.get(self.job as usize);
        let rows = job.map_or(&[][..], |job| &job.stated.rows).iter().rev();
        rows.map(|(pid, row)| (pid.as_str(), row)).collect()
    }
}

/// The JSON text of a `pid`.
pub(super) fn pid_text(timeline: &Timeline, pid: Id) -> String {
    match pid {
        Id::Number(number) => number.to_string(),
        Id::Token(text) => timeline.name(text).to_owned(),
    }
}

/// The rank that an analysis noted with a slice.
fn given_rank(timeline: &Timeline, event: &Event) -> Option<u32> {
    timeline.arg(event, "rank")?.parse().ok()
}

/// The processes of what an analysis wrote: by the ranks of its slices, other events by their
/// rows.
fn by_rank(timeline: &Timeline, events: &[Event]) -> Option<(Vec<u32>, u32)> {
    let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
    let mut rows: FxHashMap<Id, u32> = FxHashMap::default();
    for event in events.iter().filter(|event| event.is_slice()) {
        if let Some(rank) = given_rank(timeline, event) {
            let next = numbers.len() as u32;
            let number = *numbers.entry(rank).or_insert(next);
            rows.entry(timeline.pid(event)).or_insert(number);
        }
    }
    let of = events.iter().map(|event| {
        let given = given_rank(timeline, event).and_then(|rank| numbers.get(&rank).copied());
        let row = || rows.get(&timeline.pid(event)).copied();
        given.or_else(row).unwrap_or(0)
    });
    (numbers.len() > 1).then(|| (of.collect(), numbers.len() as u32))
}

/// What events are, by their category.
#[derive(Default)]
pub(super) struct Roles(FxHashMap<Sym, SpanRole>);

impl Roles {
    /// What an event is.
    pub(super) fn of(&mut self, timeline: &Timeline, event: &Event) -> SpanRole {
        let new = || role_of(timeline.name(event.cat));
        *self.0.entry(event.cat).or_insert_with(new)
    }
}
