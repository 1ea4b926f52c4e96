//! What a trace file holds: spans, counters, flows and marks on rows, with the device
//! counters of accelerator events. Readers fill it, analyses change and add to it,
//! exporters write it.
//!
//! It is made for traces of ten million events. An event is some hundred bytes, texts that
//! repeat are kept once, and arguments that no analysis needs stay the JSON text they were.
//!
//! Times are whole picoseconds from [`Timeline::origin`]; where an analysis calculates
//! it does so with microseconds, as all these formats have them.

pub mod args;
mod begins;
mod bound;
mod event;
mod identity;
mod kinds;
mod names;
mod nested;
pub mod number;
mod phase;
pub mod recorded;
mod text;
mod time;
mod tracks;

pub use args::{Args, Members, Value, decimal, hex};
pub use begins::{Begins, DAY};
pub use bound::{BOUND_FLOW, BoundFlow};
pub use event::{Event, Quality};
pub use identity::{DeviceKey, Identity, ProcessKey, RowGroup, Stated, StatedRow, StreamKey};
pub use kinds::{Kind, Kinds};
pub use names::{Names, Sym};
pub use nested::slice_around;
pub use phase::Phase;
pub use text::{Text, Texts};
pub use time::{Length, Stretch, Time};
pub use tracks::{Track, TrackId, TrackKind, Tracks};

use crate::kernel_classes::KernelClasses;
use rustc_hash::FxHashMap;

/// No entry of a side table.
pub const NONE: u32 = u32::MAX;

/// A process, thread or flow id: JSON allows numbers and texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Id {
    /// A number.
    Number(i64),
    /// Anything else, as its JSON text: `"Spans"`, `1.5`, `15514734831341844875`.
    Token(Sym),
}

impl Id {
    /// Not given.
    pub const NONE: Self = Self::Token(Sym::EMPTY);

    /// The number, if it is one.
    pub fn number(self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(number),
            Self::Token(_) => None,
        }
    }

    /// Whether it was given.
    pub fn is_given(self) -> bool {
        self != Self::NONE
    }
}

/// Kind of an event: `ph` of the Trace Event Format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ph {
    /// Begin of a slice.
    Begin = b'B',
    /// End of a slice.
    End = b'E',
    /// A slice with its duration.
    Complete = b'X',
    /// Values of a counter.
    Counter = b'C',
    /// Begin of an asynchronous slice.
    AsyncBegin = b'b',
    /// End of an asynchronous slice.
    AsyncEnd = b'e',
    /// A point of an asynchronous slice.
    AsyncInstant = b'n',
    /// Begin of a flow.
    FlowStart = b's',
    /// A step of a flow.
    FlowStep = b't',
    /// End of a flow.
    FlowEnd = b'f',
    /// A moment.
    Instant = b'i',
    /// Names and order of rows.
    Metadata = b'M',
}

impl Ph {
    /// By its letter; `None`: one that no viewer draws any more.
    pub fn of(text: &str) -> Option<Self> {
        Some(match text {
            "B" => Self::Begin,
            "E" => Self::End,
            "X" => Self::Complete,
            "C" => Self::Counter,
            "b" | "S" => Self::AsyncBegin,
            "e" | "F" => Self::AsyncEnd,
            "n" | "T" => Self::AsyncInstant,
            "s" => Self::FlowStart,
            "t" => Self::FlowStep,
            "f" => Self::FlowEnd,
            // "R" marks a moment by its name alone.
            "i" | "I" | "R" => Self::Instant,
            "M" => Self::Metadata,
            _ => return None,
        })
    }

    /// Its letter.
    pub fn letter(self) -> char {
        char::from(self as u8)
    }
}

/// Device counters of an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// TS1 to TS5: as read; with wraps counted once the trace is calibrated.
    pub stamps: [i64; 5],
    /// Charge counter (`Power`), -1: not given.
    pub power: i64,
    /// What the event covers of its operation.
    pub phase: Phase,
    /// First of the stamps that had wrapped within the event, 1 to 5; 0: none.
    pub wrapped_at: u8,
    /// Counter periods since the counter's first.
    pub epoch: i64,
    /// First change of begin and of length, microseconds.
    pub adjusted: (f64, f64),
    /// Shift with its job, microseconds; 0 if not shifted.
    pub moved: f64,
    /// Shift of its end from the host's time to the device clock's time, microseconds;
    /// 0 if not shifted.
    pub placed: f64,
    /// Its place in [`TickRates::pieces`] plus one, where its rank's frequency changes;
    /// 0: the frequency is that of its rank.
    pub piece: u16,
    /// Wraps are counted.
    pub is_counted: bool,
    /// The charge came as a text.
    pub power_is_text: bool,
    /// They came as a list, `args.cycles_ts`, which stays among the arguments.
    pub is_listed: bool,
}

/// The arguments of an event that describe a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transfer {
    /// `CollGroup`: the collective it belongs to.
    pub group: Sym,
    /// `Peer` or `Peers`: ranks, as "0,1,2".
    pub peers: Sym,
    /// `Type`: "SingleCast", "MultiCast", ...
    pub kind: Sym,
    /// Bytes, -1: not given.
    pub bytes: i64,
    /// `memory bandwidth (GB/s)`; NaN: not given, or no number.
    pub gigabytes_per_second: f64,
    /// Whether the peers came as `Peers`.
    pub is_plural: bool,
}

/// Which program wrote a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The AIU's runtime: counters TS1 to TS5, or names that only it gives.
    Flex,
    /// Kineto, and other tools whose traces show what devices did.
    Torch,
    /// Anything else: what programs did on the host, in rows of any meaning.
    Plain,
}

/// A file that was read.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its path as given.
    pub path: String,
    /// The path's last part.
    pub name: String,
    /// A number that distinguishes it from others, 0 to 9999: the same as acelyzer's under
    /// `PYTHONHASHSEED=0`.
    pub hash: u32,
    /// What kind of trace it is.
    pub dialect: Dialect,
    /// What wrote it, for people: `unitrace`; empty: `dialect` shows it.
    pub writer: &'static str,
    /// `distributedInfo.rank`, if given.
    pub rank: Option<u32>,
    /// acelyzer or aiprof wrote it: its times are calibrated.
    pub is_processed: bool,
    /// What it states about hosts and devices.
    pub stated: Stated,
    /// aiprof recorded it: what ran on devices has Kineto's categories.
    pub is_recording: bool,
}

/// How fast the counters of devices run, ticks per microsecond.
#[derive(Debug, Default)]
pub struct TickRates {
    /// By rank.
    pub ranks: FxHashMap<u32, f64>,
    /// That of ranks that are not in `ranks`.
    pub default: f64,
    /// That of each part of the clocks whose frequency changes.
    pub pieces: Vec<f64>,
}

/// All that was read.
#[derive(Debug, Default)]
pub struct Timeline {
    /// Events: by time within a file, if the file has them so.
    pub events: Vec<Event>,
    /// Events whose times cannot be true: they are written, but not analysed.
    pub aside: Vec<Event>,
    /// Device counters of events.
    pub devices: Vec<Device>,
    /// Transfers of events.
    pub transfers: Vec<Transfer>,
    /// Names, categories, ids.
    pub names: Names,
    /// What events are of.
    pub tracks: Tracks,
    /// Arguments.
    pub texts: Texts,
    /// Files.
    pub jobs: Vec<Job>,
    /// What times count from, microseconds; `None` until the first file is read.
    pub origin: Option<i64>,
    /// When the earliest event of all files begins. Events that were left out count, too.
    pub first: Option<Time>,
    /// Extra distance from the origin for some files, by their number in `jobs`,
    /// microseconds. Their clock differs so much that event times cannot hold it.
    /// Writers add it, so that times are written as in the file.
    pub beyond: FxHashMap<u32, i64>,
    /// How fast devices' counters run.
    pub rates: TickRates,
    /// For rows that slices were moved to, because they overlapped others of theirs in
    /// part: the row they are of.
    pub moved: FxHashMap<TrackId, TrackId>,
    /// Members of the files' outermost object that are passed on: key and JSON text.
    pub metadata: Vec<(String, String)>,
    /// What kernels are for, by their names.
    pub classes: KernelClasses,
    /// What processes and devices the rows are of.
    pub identity: Identity,
}

impl Timeline {
    /// What times count from, microseconds.
    pub fn origin(&self) -> i64 {
        self.origin.unwrap_or(0)
    }

    /// A text's name.
    pub fn name(&self, sym: Sym) -> &str {
        self.names.get(sym)
    }

    /// What the event is of.
    pub fn track(&self, event: &Event) -> Track {
        self.tracks.get(event.track)
    }

    /// The row that the event is of, also where it was moved away from it.
    pub fn home(&self, event: &Event) -> TrackId {
        self.moved.get(&event.track).copied().unwrap_or(event.track)
    }

    /// What positions in reports and tables count from: [`Self::first`], or the begin of an event
    /// that an analysis moved before that. The origin, if there is no event.
    pub fn earliest(&self) -> Time {
        let timed = self
            .events
            .iter()
            .filter(|event| !event.dropped && event.ph != Ph::Metadata && !event.start.is_edge());
        let begins = timed.map(|event| event.start).chain(self.first);
        begins.min().unwrap_or(Time::ORIGIN)
    }

    /// The event's process, or group of rows.
    pub fn pid(&self, event: &Event) -> Id {
        self.tracks.pid(event)
    }

    /// The same with all that is known of it.
    pub fn process(&self, event: &Event) -> ProcessKey {
        self.identity.process(self.pid(event))
    }

    /// The event's thread, or row.
    pub fn tid(&self, event: &Event) -> Id {
        self.tracks.tid(event)
    }

    /// The rank of the event's process in the distributed run, or [`NONE`].
    pub fn rank(&self, event: &Event) -> u32 {
        self.tracks.rank(event)
    }

    /// The number of the event's file in [`Self::jobs`], or [`NONE`].
    pub fn job(&self, event: &Event) -> u32 {
        self.tracks.job(event)
    }

    /// What the event's time counts from in its file, microseconds: the origin, unless
    /// the file is [`Self::beyond`].
    pub fn origin_of(&self, event: &Event) -> i64 {
        let more = match self.beyond.is_empty() {
            true => None,
            false => self.beyond.get(&self.job(event)),
        };
        self.origin().saturating_add(more.copied().unwrap_or(0))
    }

    /// When the event begins, microseconds as its file has them: since 1970, boot, or
    /// whatever its clock counts from. What is too far from the origin is at 0, as in
    /// [`write_time`](number::write_time).
    pub fn file_us(&self, event: &Event) -> f64 {
        match event.start {
            Time::FIRST => 0.0,
            start => start.micros() + self.origin_of(event) as f64,
        }
    }

    /// The time that the files' clocks show as 0, or the nearest there is.
    pub fn zero(&self) -> Time {
        Time::from_whole_micros(self.origin().saturating_neg())
    }

    /// The event's device counters.
    pub fn device(&self, event: &Event) -> Option<&Device> {
        self.devices.get(event.device as usize)
    }

    /// The event's transfer.
    pub fn transfer(&self, event: &Event) -> Option<&Transfer> {
        self.transfers.get(event.transfer as usize)
    }

    /// Ticks of the event's device per microsecond.
    pub fn mhz(&self, event: &Event) -> f64 {
        let piece = self
            .device(event)
            .map_or(0, |device| usize::from(device.piece));
        let own = piece
            .checked_sub(1)
            .and_then(|piece| self.rates.pieces.get(piece));
        own.copied()
            .or_else(|| self.rates.ranks.get(&self.rank(event)).copied())
            .or(Some(self.rates.default))
            .filter(|mhz| *mhz > 0.0)
            .unwrap_or(1000.0)
    }

    /// The host time of one of the event's counters (0 is TS1), microseconds since
    /// [`Self::origin`]: the event's end is where its phase ended. Only once the trace
    /// is calibrated.
    pub fn stamp_time(&self, event: &Event, index: usize) -> Option<f64> {
        let device = self.device(event)?;
        let (_, end) = device.phase.ends();
        let ticks = i128::from(*device.stamps.get(index)?) - i128::from(*device.stamps.get(end)?);
        Some(event.end_us() + ticks as f64 / self.mhz(event))
    }

    /// What wrote the event.
    pub fn dialect(&self, event: &Event) -> Dialect {
        let job = self.jobs.get(self.job(event) as usize);
        job.map_or(Dialect::Flex, |job| job.dialect)
    }

    /// Whether the event's file was calibrated before.
    pub fn is_processed(&self, event: &Event) -> bool {
        let job = self.jobs.get(self.job(event) as usize);
        job.is_some_and(|job| job.is_processed)
    }

    /// Adds members to an event's arguments: `"key":value`, with commas between them.
    pub fn add_args(&mut self, index: usize, members: &str) {
        let Some(event) = self.events.get_mut(index) else {
            return;
        };
        event.args = if event.args.is_empty() {
            self.texts.add(members)
        } else {
            let known = self.texts.get(event.args).to_owned();
            self.texts.join(&[&known, ",", members])
        };
    }

    /// The value of an argument that is kept as text: its JSON.
    pub fn arg<'a>(&'a self, event: &Event, key: &str) -> Option<&'a str> {
        member(self.texts.get(event.args), key)
    }

    /// Forgets the events that were dropped.
    pub fn sweep(&mut self) {
        self.events.retain(|event| !event.dropped);
    }
}

/// The value of a member in a text of `"key":value` with commas between them, all
/// of it valid JSON without white space outside of values.
pub fn member<'a>(members: &'a str, key: &str) -> Option<&'a str> {
    for colon in memchr::memchr_iter(b':', members.as_bytes()) {
        let before = members.get(..colon).and_then(|text| text.strip_suffix('"'));
        let before = before.and_then(|text| text.strip_suffix(key)?.strip_suffix('"'));
        // In a text, a quote has a backslash before it: this is a key, and not a part of a value.
        let Some(before) = before.filter(|text| !text.ends_with('\\')) else {
            continue;
        };
        // It is of the object itself if none began before it.
        if memchr::memchr2(b'{', b'[', before.as_bytes()).is_some() {
            let mut all = self::members(members);
            return all.find(|(name, _)| *name == key).map(|(_, value)| value);
        }
        let value = members.get(colon + 1..)?;
        return value.get(..value_len(value));
    }
    None
}

/// Keys, as they stand between their quotes, and values of such a text.
pub fn members(members: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = Some(members);
    std::iter::from_fn(move || {
        let after = rest.take()?.strip_prefix('"')?;
        let end = string_end(after)?;
        let name = after.get(..end)?;
        let value = after.get(end + 1..)?.strip_prefix(':')?;
        let len = value_len(value);
        let text = value.get(..len)?;
        rest = value.get(len..).and_then(|rest| rest.strip_prefix(','));
        Some((name, text))
    })
}

/// Where a JSON string ends, of which the opening quote is gone.
fn string_end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut from = 0;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', bytes.get(from..)?)?;
        match bytes.get(at) {
            Some(b'"') => return Some(at),
            // What is behind a backslash ends nothing.
            _ => from = at + 2,
        }
    }
}

/// Length of the JSON value at the begin of a text, up to the comma behind it.
fn value_len(text: &str) -> usize {
    let end = match text.as_bytes().first() {
        Some(b'"') => text.get(1..).and_then(string_end).map(|end| end + 2),
        Some(b'{' | b'[') => nested_len(text),
        _ => memchr::memchr(b',', text.as_bytes()),
    };
    end.unwrap_or(text.len())
}

/// The same of a list or object.
fn nested_len(text: &str) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    text.bytes().position(|byte| {
        if quoted {
            quoted = byte != b'"' || escaped;
            escaped = byte == b'\\' && !escaped;
            return false;
        }
        match byte {
            b'"' => quoted = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' => return depth == 0,
            _ => {}
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_small() {
        assert!(size_of::<Device>() <= 96, "{}", size_of::<Device>());
    }

    #[test]
    fn arguments_are_found_in_their_text() {
        let text = r#""a":1,"b":{"c":",\"","d":[1,2]},"e\"f":"x,y","g":"\\","h":null"#;
        for (key, value) in [
            ("a", Some("1")),
            ("b", Some(r#"{"c":",\"","d":[1,2]}"#)),
            ("c", None),
            ("g", Some(r#""\\""#)),
            ("h", Some("null")),
            ("z", None),
            ("", None),
        ] {
            assert_eq!(member(text, key), value, "{key}");
        }
        let text = r#""x":"a","xa":"a,","a":2,"":3,"b":"{","k\"a":4,"c":5,"a":6"#;
        for (key, value) in [("a", "2"), ("", "3"), ("c", "5"), ("k\\\"a", "4")] {
            assert_eq!(member(text, key), Some(value), "{key}");
        }
        for broken in ["", "\"a", "\"a\"", "\"a\":", "x", "\"a\":1,"] {
            assert_eq!(member(broken, "b"), None, "{broken}");
        }
    }

    #[test]
    fn arguments_are_added() {
        let mut timeline = Timeline::default();
        let track = timeline.tracks.intern(Track::row(Id::Number(1), Id::NONE));
        let event = Event::new(Ph::Complete, Sym::EMPTY, track, Time::ORIGIN);
        timeline.events.push(event);
        timeline.add_args(0, "\"a\":1");
        timeline.add_args(0, "\"b\":\"x\"");
        let event = timeline.events[0];
        assert_eq!(timeline.texts.get(event.args), "\"a\":1,\"b\":\"x\"");
        assert_eq!(timeline.arg(&event, "b"), Some("\"x\""));
    }
}
