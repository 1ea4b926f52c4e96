//! Traces in JSON: the AIU runtime's own (FLEX), Kineto's (TORCH), acelyzer's output
//! and anything else in the Trace Event Format.
//!
//! One thread reads the file and cuts it into blocks of whole events. The others read the
//! blocks, and this one puts them together. So memory holds the events and a few blocks,
//! never the file.

mod base;
mod cut;
#[cfg(test)]
mod damage_tests;
pub(super) mod event;
mod file;
mod first;
mod problem;
mod rescue;
mod stated;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use base::BASE;
pub(super) use file::FAR;
pub use file::{End, JsonError};
pub use problem::{Problems, Seen, Trouble};

use super::dialects::{self, FileHeader};
use aiprof_model::parallel;
use aiprof_model::timeline::{
    Begins, Device, Dialect, Event, Id, Job, Length, NONE, Ph, Stretch, Sym, Text, Texts, Time,
    Timeline, Track, TrackId,
};
use aiprof_system::memory;
use event::Parsed;
use rustc_hash::FxHashMap;
use std::io::Read;

/// What acelyzer writes into `otherData.Application`.
const ACELYZER: &str = "Acelyzer";
/// How the same begins in what `aiprof analyze` writes.
const AIPROF: &str = "aiprof ";
/// Members that are not passed on: they are about the file, not the run.
const NOT_PASSED_ON: [&str; 4] = ["traceEvents", "distributedInfo", "otherData", "stackFrames"];

/// How the reading of a file went.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Its number in [`Timeline::jobs`].
    pub job: u32,
    /// Events that it gave.
    pub events: std::ops::Range<usize>,
    /// What its times are counted from, microseconds: not the timeline's origin if its
    /// clock is another one.
    pub origin: i64,
    /// What was wrong.
    pub problems: Problems,
    /// How it ended.
    pub end: End,
    /// It was written by acelyzer: its times are calibrated already.
    pub is_acelyzer_output: bool,
    /// Its metadata mark it as made up, not recorded.
    pub is_synthetic: bool,
    /// The time of day at the origin, microseconds since 1970. It is known of a recording of
    /// aiprof, whose times count from its begin, and of a trace of Kineto that states it.
    pub day_us: Option<i64>,
    /// What its times count from, as it states it: nanoseconds since 1970.
    pub base_ns: Option<i64>,
    /// When the earliest event begins whose time can be true. Events that were left out count, too.
    /// A reader that keeps all events may leave it to who has them.
    pub earliest: Option<Time>,
}

/// Reads a trace and adds it to a timeline. `path` is its name for messages and for
/// the job's; `from` its text, decompressed.
///
/// # Errors
/// The text has no trace in it. A damaged trace is no error: intact events are kept,
/// and [`Reading`] lists the damage.
pub fn read(from: impl Read + Send, path: &str, into: &mut Timeline) -> Result<Reading, JsonError> {
    read_within(from, path, Stretch::ALL, into)
}

/// [`read`] of what is within a stretch of time since the first event: the rest is left
/// out while reading, but for begins and ends, which belong together.
///
/// # Errors
/// As [`read`].
pub fn read_within(
    from: impl Read + Send,
    path: &str,
    kept: Stretch,
    into: &mut Timeline,
) -> Result<Reading, JsonError> {
    let start = into.events.len();
    let job = into.jobs.len() as u32;
    let mut joiner = Joiner {
        into,
        job,
        kept,
        open: FxHashMap::default(),
        problems: Problems::default(),
        begins: Begins::default(),
    };
    let origin = joiner.into.origin;
    let outline = parallel::ordered(
        |blocks| file::read(from, origin, blocks),
        |block| block.parse(),
        |parsed| {
            joiner.join(parsed);
            // Work under way would take memory too; the caller reports the reason.
            memory::check().is_ok()
        },
    )?;
    let mut begins = std::mem::take(&mut joiner.begins);
    let (mut problems, open) = joiner.finish();
    problems.merge(&outline.problems);
    let known = into.origin.or(outline.origin);
    let own = outline.origin.or(known).unwrap_or(0);
    into.origin = known;
    let members = outline.members;
    let is_acelyzer_output = is_by_acelyzer(&members);
    let base_ns = member(&members, base::BASE).and_then(base::parse);
    let day_us = day_us(&members).or_else(|| base_ns.map(|ns| ns / 1000));
    let day_us = day_us.map(|us| us.saturating_add(own));
    let is_synthetic = says_synthetic(&members);
    let mut new = new_job(path, &members);
    let header = FileHeader {
        has_devices: has_devices(&members) && !is_analyzed(&members),
        is_recording: new.is_recording,
        name: &new.name,
    };
    let found = dialects::settle(into, start, header);
    (new.dialect, new.writer) = (found.dialect, found.writer);
    match found.dialect {
        // Slices that were still open when the trace ended.
        Dialect::Plain => keep_begins(into, &open, &mut begins),
        _ => open
            .iter()
            .for_each(|(_, place)| problems.add(Trouble::NeverEnded, *place)),
    }
    sweep(into, start);
    new.rank = new.rank.or(found.rank);
    into.jobs.push(new);
    let rank = into.jobs.last().and_then(|job| job.rank);
    let passed = members
        .into_iter()
        .filter(|(key, _)| !NOT_PASSED_ON.contains(&key.as_str()))
        .map(|(key, value)| match (key.as_str(), rank) {
            ("deviceProperties", Some(rank)) => (key, of_rank(&value, rank).unwrap_or(value)),
            _ => (key, value),
        });
    into.metadata.extend(passed);
    Ok(Reading {
        job,
        events: start..into.events.len(),
        origin: own,
        problems,
        end: outline.end,
        is_acelyzer_output,
        is_synthetic,
        day_us,
        base_ns,
        earliest: begins.first(),
    })
}

/// Each file's device is the first of its process; in the run it is the rank's.
fn of_rank(devices: &str, rank: u32) -> Option<String> {
    let mut devices: Vec<serde_json::Value> = serde_json::from_str(devices).ok()?;
    devices.truncate(1);
    for device in &mut devices {
        if let Some(id) = device.get_mut("id") {
            *id = rank.into();
        }
    }
    serde_json::to_string(&devices).ok()
}

fn member<'a>(members: &'a [(String, String)], key: &str) -> Option<&'a str> {
    let found = members.iter().find(|(known, _)| known == key);
    found.map(|(_, value)| value.as_str())
}

fn is_by_acelyzer(members: &[(String, String)]) -> bool {
    application(members).is_some_and(|name| name.contains(ACELYZER))
}

/// Whether an analysis of acelyzer or aiprof wrote it.
fn is_analyzed(members: &[(String, String)]) -> bool {
    let is_by = |name: String| name.contains(ACELYZER) || name.starts_with(AIPROF);
    application(members).is_some_and(is_by)
}

/// The program that wrote it.
fn application(members: &[(String, String)]) -> Option<String> {
    let other: serde_json::Value = serde_json::from_str(member(members, "otherData")?).ok()?;
    Some(other.get("Application")?.as_str()?.to_owned())
}

/// When a recording of aiprof began, microseconds since 1970.
fn day_us(members: &[(String, String)]) -> Option<i64> {
    if !is_recording(members) {
        return None;
    }
    let about = member(members, "otherData")?;
    let about: serde_json::Value = serde_json::from_str(about).ok()?;
    let began = about.get("start_unix_ns")?;
    let text = began.as_str().and_then(|text| text.parse().ok());
    super::recording::day_us(text.or_else(|| began.as_u64())?)
}

/// Whether aiprof recorded it: what it analysed has no begin on the machine's clock.
fn is_recording(members: &[(String, String)]) -> bool {
    let about = member(members, "otherData");
    let about = about.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
    about.is_some_and(|about| {
        let version = about.get("version").and_then(|version| version.as_str());
        let is_own = version.is_some_and(|version| version.starts_with("aiprof "));
        is_own && about.get("start_monotonic_ns").is_some()
    })
}

/// Whether the file lists devices.
fn has_devices(members: &[(String, String)]) -> bool {
    member(members, "deviceProperties").is_some()
}

/// Whether a member `synthetic`, of the trace or of its `otherData`, is anything but
/// empty or false.
fn says_synthetic(members: &[(String, String)]) -> bool {
    let says = |value: &serde_json::Value| match value {
        serde_json::Value::Null => false,
        serde_json::Value::Bool(says) => *says,
        serde_json::Value::String(text) => !matches!(text.as_str(), "" | "false" | "no"),
        serde_json::Value::Number(number) => number.as_f64() != Some(0.0),
        _ => true,
    };
    let parsed =
        |key| -> Option<serde_json::Value> { serde_json::from_str(member(members, key)?).ok() };
    let other = parsed("otherData");
    let inner = other.as_ref().and_then(|other| other.get("synthetic"));
    inner.is_some_and(says) || parsed("synthetic").as_ref().is_some_and(says)
}

fn new_job(path: &str, members: &[(String, String)]) -> Job {
    let rank = member(members, "distributedInfo").and_then(|text| {
        let value: serde_json::Value = serde_json::from_str(text).ok()?;
        u32::try_from(value.get("rank")?.as_u64()?).ok()
    });
    Job {
        path: path.to_owned(),
        name: path.rsplit('/').next().unwrap_or(path).to_owned(),
        hash: job_hash(path),
        dialect: Dialect::Plain,
        writer: "",
        rank,
        is_processed: is_analyzed(members),
        stated: stated::of(members),
        is_recording: is_recording(members),
    }
}

/// `hash(path) % 10000` of CPython since 3.11 with `PYTHONHASHSEED=0`: SipHash-1-3
/// with a key of zeros, over the characters as CPython keeps them (1, 2 or 4 bytes
/// each, by the widest).
pub(super) fn job_hash(path: &str) -> u32 {
    use std::hash::Hasher as _;
    let widest = path.chars().map(u32::from).max().unwrap_or(0);
    let mut bytes = Vec::with_capacity(path.len());
    for c in path.chars().map(u32::from) {
        let len = match widest {
            0..=0xff => 1,
            0x100..=0xffff => 2,
            _ => 4,
        };
        bytes.extend_from_slice(c.to_le_bytes().get(..len).unwrap_or_default());
    }
    let mut hasher = siphasher::sip::SipHasher13::new_with_keys(0, 0);
    hasher.write(&bytes);
    let hash = match hasher.finish() as i64 {
        -1 => -2,
        hash => hash,
    };
    hash.rem_euclid(10_000) as u32
}

/// Adds the arguments of an end to those of its begin, which come first where both have one.
pub(super) fn add_end_args(texts: &mut Texts, begin: &mut Event, end: Text) {
    if end.is_empty() {
        return;
    }
    let (known, more) = (texts.get(begin.args).to_owned(), texts.get(end));
    let new = aiprof_model::timeline::members(more)
        .filter(|(key, _)| aiprof_model::timeline::member(&known, key).is_none())
        .map(|(key, value)| format!("\"{key}\":{value}"));
    let known = Some(known.clone()).filter(|known| !known.is_empty());
    let all: Vec<String> = known.into_iter().chain(new).collect();
    begin.args = texts.add(&all.join(","));
}

/// A begin finds its end: it is a slice now.
pub(super) fn close(
    begin: &mut Event,
    end: Time,
    devices: &[Device],
    problems: &mut Problems,
    place: u64,
) {
    begin.ph = Ph::Complete;
    begin.length = end - begin.start;
    if begin.length < Length::ZERO {
        begin.dropped = true;
        problems.add(Trouble::NegativeDuration, place);
    } else if begin.length == Length::ZERO {
        problems.add(Trouble::ZeroDuration, place);
        let device = devices.get(begin.device as usize);
        if device.is_some_and(|d| d.stamps[0] != d.stamps[4]) {
            problems.add(Trouble::ZeroHostTime, place);
        }
    }
}

/// Whether a begin, by its event and place, has not met its end.
fn is_open(events: &[Event], begin: &(usize, u64)) -> bool {
    events
        .get(begin.0)
        .is_some_and(|event| event.ph == Ph::Begin)
}

/// Which begins: of a row, all or those of one name.
type OpenRow = (TrackId, Option<Sym>);

/// Puts the blocks' events together.
struct Joiner<'t> {
    into: &'t mut Timeline,
    job: u32,
    /// What is not left out.
    kept: Stretch,
    /// Begins on a row, and those of one name on a row, the last one last: event and
    /// place in the file. Those that ended stay until they are the last.
    open: FxHashMap<OpenRow, Vec<(usize, u64)>>,
    problems: Problems,
    /// Those of all events, but of begins that met no end, if a part of the file is kept.
    begins: Begins,
}

impl Joiner<'_> {
    fn join(&mut self, mut parsed: Parsed) {
        self.problems.merge(&parsed.problems);
        let is_half = |event: &Event| matches!(event.ph, Ph::Begin | Ph::End);
        if self.kept != Stretch::ALL {
            let whole = parsed.events.iter().filter(|event| !is_half(event));
            whole.for_each(|event| self.begins.add(event));
            let kept = self.kept;
            let is_kept = |event: &Event| is_half(event) || event.is_within(kept);
            parsed.events.retain(is_kept);
            if parsed.events.is_empty() {
                return;
            }
        }
        let names: Vec<Sym> = parsed
            .names
            .iter()
            .map(|(_, text)| self.into.names.intern(text))
            .collect();
        let name = |sym: Sym| names.get(sym.index()).copied().unwrap_or_default();
        let id = |id: Id| match id {
            Id::Token(sym) => Id::Token(name(sym)),
            number @ Id::Number(_) => number,
        };
        let tracks: Vec<TrackId> = parsed
            .tracks
            .iter()
            .map(|(_, track)| {
                self.into.tracks.intern(Track {
                    job: self.job,
                    pid: id(track.pid),
                    tid: id(track.tid),
                    ..*track
                })
            })
            .collect();
        let device = self.into.devices.len() as u32;
        let transfer = self.into.transfers.len() as u32;
        self.into.devices.extend_from_slice(&parsed.devices);
        self.into.transfers.extend(parsed.transfers.iter().map(|t| {
            aiprof_model::timeline::Transfer {
                group: name(t.group),
                peers: name(t.peers),
                kind: name(t.kind),
                ..*t
            }
        }));
        let block = self.into.texts.add_block(parsed.text);
        let mut halves = parsed.halves.into_iter();
        self.into.events.reserve(parsed.events.len());
        for mut event in parsed.events {
            event.name = name(event.name);
            event.cat = name(event.cat);
            event.id = id(event.id);
            event.track = tracks
                .get(event.track.0 as usize)
                .copied()
                .unwrap_or(event.track);
            event.args.block = if event.args.is_empty() { 0 } else { block };
            if event.device != NONE {
                event.device += device;
            }
            if event.transfer != NONE {
                event.transfer += transfer;
            }
            match event.ph {
                Ph::Begin => {
                    let place = halves.next().unwrap_or(0);
                    self.begin(&event, place);
                    self.into.events.push(event);
                }
                Ph::End => self.end(&event, halves.next().unwrap_or(0)),
                _ => self.into.events.push(event),
            }
        }
    }

    /// The begin of a slice that becomes the next event.
    fn begin(&mut self, begin: &Event, place: u64) {
        let Self { into, open, .. } = self;
        for name in [None, Some(begin.name)] {
            let open = open.entry((begin.track, name)).or_default();
            while open.last().is_some_and(|last| !is_open(&into.events, last)) {
                open.pop();
            }
            open.push((into.events.len(), place));
        }
    }

    /// The end of a slice: of the last one of its name that is open on its row.
    fn end(&mut self, end: &Event, place: u64) {
        let events = &mut self.into.events;
        let name = Some(end.name).filter(|name| !name.is_empty());
        let open = self.open.get_mut(&(end.track, name));
        let found = open.and_then(|open| {
            while let Some(last) = open.pop() {
                if is_open(events, &last) {
                    return Some(last);
                }
            }
            None
        });
        let Some((index, place_of_begin)) = found else {
            return self.problems.add(Trouble::NeverBegun, place);
        };
        let Some(begin) = events.get_mut(index) else {
            return;
        };
        add_end_args(&mut self.into.texts, begin, end.args);
        let devices = &self.into.devices;
        close(
            begin,
            end.start,
            devices,
            &mut self.problems,
            place_of_begin,
        );
        if !begin.dropped && self.kept != Stretch::ALL {
            self.begins.add(begin);
        }
    }

    /// The file is over: what was wrong, and the begins that met no end, which are dropped, by
    /// event and place.
    fn finish(self) -> (Problems, Vec<(usize, u64)>) {
        let rows = self
            .open
            .into_iter()
            .filter(|((_, name), _)| name.is_none());
        let mut open: Vec<(usize, u64)> = rows.flat_map(|(_, open)| open).collect();
        open.retain(|begin| is_open(&self.into.events, begin));
        for (index, _) in &open {
            if let Some(event) = self.into.events.get_mut(*index) {
                event.dropped = true;
            }
        }
        (self.problems, open)
    }
}

/// Keeps begins without an end, as a plain trace has them.
fn keep_begins(timeline: &mut Timeline, open: &[(usize, u64)], begins: &mut Begins) {
    for (index, _) in open {
        if let Some(event) = timeline.events.get_mut(*index) {
            event.dropped = false;
            begins.add(event);
        }
    }
}

/// Forgets the events from `start` on that were dropped.
fn sweep(timeline: &mut Timeline, start: usize) {
    let mut index = 0;
    timeline.events.retain(|event| {
        index += 1;
        index <= start || !event.dropped
    });
}
