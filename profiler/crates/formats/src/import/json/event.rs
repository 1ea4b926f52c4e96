//! A block of events: JSON text to [`Parsed`], which knows only its own names.

mod arguments;

use super::cut::value_len;
use super::problem::{Problems, Trouble};
use super::rescue::{Effort, events_in, next_event, with_escapes, without_nan};
use aiprof_model::timeline::number::{Micros, parse_counter};
use aiprof_model::timeline::{
    Device, Event, Id, Length, NONE, Names, Ph, Phase, Sym, Text, Texts, Time, Track, TrackId,
    Tracks, Transfer,
};
use arguments::{Arguments, hint};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// A piece of a file: whole events, with commas and white space between them.
#[derive(Debug)]
pub(super) struct EventBlock {
    /// Its text.
    pub text: Vec<u8>,
    /// Where it begins in the file.
    pub offset: u64,
    /// What times are counted from.
    pub origin: i64,
}

/// A block's events.
#[derive(Debug, Default)]
pub(in crate::import) struct Parsed {
    pub events: Vec<Event>,
    pub devices: Vec<Device>,
    pub transfers: Vec<Transfer>,
    pub names: Names,
    /// Rows of the events, of no job.
    pub tracks: Tracks,
    /// The last two rows that were new to this: most events are of the same as one
    /// before them.
    pub recent: [Option<(Track, TrackId)>; 2],
    /// Arguments of the events.
    pub text: String,
    pub problems: Problems,
    /// Where each begin and end stands, in the order of events.
    pub halves: Vec<u64>,
}

impl Parsed {
    /// Moves the arguments to texts: those of the events since `first`. Gives the first
    /// whose arguments come later.
    pub(in crate::import) fn flush(&mut self, first: usize, texts: &mut Texts) -> usize {
        let block = texts.add_block(std::mem::take(&mut self.text));
        for event in self.events.get_mut(first..).unwrap_or_default() {
            if !event.args.is_empty() {
                event.args.block = block;
            }
        }
        self.events.len()
    }

    /// The number of a row.
    fn track(&mut self, pid: Id, tid: Id) -> TrackId {
        let wanted = Track::row(pid, tid);
        let is_it = |known: &&(Track, TrackId)| known.0 == wanted;
        if let Some((_, id)) = self.recent.iter().flatten().find(is_it) {
            return *id;
        }
        let id = self.tracks.intern(wanted);
        let [last, _] = self.recent;
        self.recent = [Some((wanted, id)), last];
        id
    }
}

impl EventBlock {
    /// Reads its events.
    pub(super) fn parse(&self) -> Parsed {
        let mut parsed = Parsed {
            text: String::with_capacity(self.text.len() / 2),
            ..Parsed::default()
        };
        let text = match std::str::from_utf8(&self.text) {
            Ok(text) => Cow::Borrowed(text),
            Err(error) => {
                let place = self.offset + error.valid_up_to() as u64;
                parsed.problems.add(Trouble::BadText, place);
                String::from_utf8_lossy(&self.text)
            }
        };
        let (mut at, mut effort) = (0, None);
        while let Some(start) = begin(&text, at) {
            at = start + self.one(&text, start, &mut parsed, &mut effort);
        }
        parsed
    }

    /// Reads the value at `start`; gives how much of the text is done with.
    fn one(
        &self,
        text: &str,
        start: usize,
        parsed: &mut Parsed,
        effort: &mut Option<Effort>,
    ) -> usize {
        let rest = text.get(start..).unwrap_or_default();
        let offset = self.offset + start as u64;
        let mark = Mark::of(parsed);
        if let Some(len) = self.event(rest, offset, parsed) {
            return len;
        }
        mark.back(parsed);
        if let Some(len) = value_len(rest.as_bytes()) {
            let len = len.max(1);
            let value = rest.get(..len).unwrap_or_default();
            if value.starts_with('{') {
                if self.mended(value, offset, parsed) {
                    return len;
                }
                mark.back(parsed);
            } else if serde_json::from_str::<IgnoredAny>(value).is_ok() {
                parsed.problems.add(Trouble::NotAnObject, offset);
                return len;
            }
        }
        // Damaged: the value may have swallowed others, and goes on at the next event.
        let effort = effort.get_or_insert_with(|| Effort::of(text.as_bytes()));
        let len = next_event(rest.as_bytes(), 1, effort).unwrap_or(rest.len());
        let left_out = rest.get(..len).unwrap_or_default();
        match events_in(left_out).max(u64::from(rest.starts_with('{'))) {
            0 => parsed.problems.add(Trouble::NotAnObject, offset),
            lost => parsed.problems.add_some(Trouble::Syntax, lost, offset),
        }
        len
    }

    /// Reads the event that a text begins with; gives its length.
    fn event(&self, text: &str, offset: u64, parsed: &mut Parsed) -> Option<usize> {
        let mut json = serde_json::Deserializer::from_str(text);
        let reader = FieldReader {
            origin: self.origin,
            offset,
            parsed,
        };
        reader.deserialize(&mut json).ok()?;
        Some(json.into_iter::<IgnoredAny>().byte_offset().max(1))
    }

    /// Reads an object again, with what JSON has in place of what it does not. Whether that
    /// helped.
    fn mended(&self, value: &str, offset: u64, parsed: &mut Parsed) -> bool {
        let finite = without_nan(value);
        let mended = with_escapes(&finite);
        let (has_nan, has_escapes) = (finite != value, mended != finite);
        let before = parsed.problems.clone();
        if !(has_nan || has_escapes) || self.event(&mended, offset, parsed).is_none() {
            parsed.problems = before;
            return false;
        }
        if has_escapes {
            parsed.problems.add(Trouble::BadEscape, offset);
        }
        // An event left out, for whatever reason, is reported once.
        if !parsed.problems.drops_since(&before) {
            if has_nan {
                parsed.problems.add(Trouble::NotANumber, offset);
            }
        } else if ["ts", "dur"].into_iter().any(|key| is_null(&mended, key)) {
            parsed.problems = before;
            parsed.problems.add(Trouble::BadTime, offset);
        }
        true
    }
}

/// Begin of the next value.
pub(super) fn begin(text: &str, from: usize) -> Option<usize> {
    let rest = text.as_bytes().get(from..)?;
    let skip = rest
        .iter()
        .position(|b| !(b.is_ascii_whitespace() || *b == b','))?;
    Some(from + skip)
}

/// Whether an event's member is null.
fn is_null(event: &str, key: &str) -> bool {
    type Members<'a> = std::collections::BTreeMap<Cow<'a, str>, &'a RawValue>;
    let members: Option<Members<'_>> = serde_json::from_str(event).ok();
    let value = members.as_ref().and_then(|members| members.get(key));
    value.is_some_and(|value| value.get() == "null")
}

/// How much of a block was read before an event.
struct Mark {
    text: usize,
    events: usize,
    devices: usize,
    transfers: usize,
    halves: usize,
}

impl Mark {
    fn of(parsed: &Parsed) -> Self {
        Self {
            text: parsed.text.len(),
            events: parsed.events.len(),
            devices: parsed.devices.len(),
            transfers: parsed.transfers.len(),
            halves: parsed.halves.len(),
        }
    }

    fn back(&self, parsed: &mut Parsed) {
        parsed.text.truncate(self.text);
        parsed.events.truncate(self.events);
        parsed.devices.truncate(self.devices);
        parsed.transfers.truncate(self.transfers);
        parsed.halves.truncate(self.halves);
    }
}

/// Reads one event.
pub(in crate::import) struct FieldReader<'p> {
    /// What times are counted from, microseconds.
    pub origin: i64,
    /// Where the event stands in the file.
    pub offset: u64,
    /// Where it goes.
    pub parsed: &'p mut Parsed,
}

/// The members of an event's object that matter.
#[derive(Default)]
pub(in crate::import) struct Fields<'a> {
    ph: Option<Cow<'a, str>>,
    name: Option<Sym>,
    cat: Sym,
    ts: Option<&'a str>,
    dur: Option<&'a str>,
    pid: Option<&'a str>,
    tid: Option<&'a str>,
    id: Option<&'a str>,
    /// `id2`: an object with the id as `local` or `global`.
    scoped_id: Option<&'a str>,
    binds_enclosing: bool,
    /// `args.correlation`; 0: none.
    pub correlation: u64,
    counters: CounterTexts<'a>,
    transfer: Option<Transfer>,
    /// `args` is something else than an object.
    has_bad_arguments: bool,
}

/// The counters of a device among the arguments, as text.
#[derive(Default)]
struct CounterTexts<'a> {
    /// `TS1` to `TS5`.
    stamps: [Option<&'a str>; 5],
    /// `cycles_ts`: the five as a list, with `charge` in place of `Power`.
    cycles: Option<&'a str>,
    power: Option<&'a str>,
    charge: Option<&'a str>,
}

impl<'a> DeserializeSeed<'a> for FieldReader<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for FieldReader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event")
    }

    fn visit_map<M: MapAccess<'a>>(mut self, mut map: M) -> Result<(), M::Error> {
        let text = self.parsed.text.len();
        let mut fields = Fields::default();
        while let Some(key) = map.next_key_seed(ObjectKey)? {
            match &*key {
                "ph" => fields.ph = string(map.next_value()?),
                "name" => fields.name = self.intern(map.next_value()?),
                "cat" => fields.cat = self.intern(map.next_value()?).unwrap_or_default(),
                "ts" => fields.ts = given(map.next_value()?),
                "dur" => fields.dur = given(map.next_value()?),
                "pid" => fields.pid = given(map.next_value()?),
                "tid" => fields.tid = given(map.next_value()?),
                "id" => fields.id = given(map.next_value()?),
                "id2" => fields.scoped_id = given(map.next_value()?),
                "bp" => fields.binds_enclosing = map.next_value::<&RawValue>()?.get() == "\"e\"",
                "args" | "attr" => map.next_value_seed(Arguments {
                    fields: &mut fields,
                    parsed: self.parsed,
                })?,
                other => argument(&mut self.parsed.text, other, map.next_value()?),
            }
        }
        self.finish(fields, text);
        Ok(())
    }
}

impl FieldReader<'_> {
    fn intern(&mut self, value: &RawValue) -> Option<Sym> {
        let text = string(value)?;
        Some(self.parsed.names.intern(&text))
    }

    /// An id that counts within its process, or for all: the object, without white space.
    fn scoped(&mut self, text: &str) -> Id {
        let object = serde_json::from_str::<serde_json::Value>(text);
        let text = object.map_or(Cow::Borrowed(text), |object| object.to_string().into());
        Id::Token(self.parsed.names.intern(&text))
    }

    fn id(&mut self, text: Option<&str>) -> Id {
        let Some(text) = text else { return Id::NONE };
        match text.parse() {
            Ok(number) => Id::Number(number),
            Err(_) => Id::Token(self.parsed.names.intern(text)),
        }
    }

    fn trouble(&mut self, trouble: Trouble) {
        self.parsed.problems.add(trouble, self.offset);
    }

    /// Adds the event, if there is enough of it; else its text goes too.
    fn finish(&mut self, fields: Fields<'_>, text: usize) {
        if fields.is_empty() && self.parsed.text.len() == text {
            // What some put behind the last comma.
            return;
        }
        if fields.is_not_drawn() {
            self.parsed.text.truncate(text);
            return;
        }
        match self.event(&fields, text) {
            Ok(event) => {
                if fields.has_bad_arguments {
                    self.trouble(Trouble::BadArguments);
                }
                self.parsed.events.push(event);
            }
            Err(trouble) => {
                self.parsed.text.truncate(text);
                self.trouble(trouble);
            }
        }
    }

    fn event(&mut self, fields: &Fields<'_>, text: usize) -> Result<Event, Trouble> {
        let ph = fields.ph.as_deref().ok_or(Trouble::Incomplete)?;
        let ph = Ph::of(ph).ok_or(Trouble::UnknownPhase)?;
        let name = match (fields.name, ph) {
            (Some(name), _) => name,
            // What a counter counts, or which name a row has.
            (None, Ph::Counter | Ph::Metadata) => return Err(Trouble::Incomplete),
            // The end of a slice need not repeat its name, and others are drawn without one.
            (None, _) => Sym::EMPTY,
        };
        let ts = match (fields.ts, ph) {
            (Some(ts), _) => Micros::parse(ts).ok_or(Trouble::BadTime)?,
            // Names of rows need no time.
            (None, Ph::Metadata) => Micros {
                whole: 0,
                rest: 0.0,
            },
            (None, _) => return Err(Trouble::Incomplete),
        };
        let pid = match fields.pid {
            None => Id::Number(0),
            pid => self.id(pid),
        };
        let length = self.length(fields, ph)?;
        let tid = self.id(fields.tid);
        let track = self.parsed.track(pid, tid);
        let mut event = Event::new(ph, name, track, self.start(ts, ph));
        event.length = length;
        event.id = match fields.scoped_id {
            Some(id) if fields.id.is_none() => self.scoped(id),
            _ => self.id(fields.id),
        };
        event.cat = fields.cat;
        event.correlation = fields.correlation;
        event.binds_enclosing = fields.binds_enclosing;
        // Counters are those of the begin.
        if ph != Ph::End {
            self.sides(fields, &mut event);
        }
        if matches!(ph, Ph::Begin | Ph::End) {
            self.parsed.halves.push(self.offset);
        }
        event.args = self.argument_text(text);
        Ok(event)
    }

    /// What was added to the text since `start`, without the comma behind it.
    pub(in crate::import) fn argument_text(&mut self, start: usize) -> Text {
        let text = &mut self.parsed.text;
        // The comma behind the last.
        let end = text.len().saturating_sub(1).max(start);
        text.truncate(end);
        match (u32::try_from(start), u32::try_from(end - start)) {
            (Ok(start), Ok(len)) if len > 0 => Text {
                block: 0,
                start,
                len,
            },
            _ => Text::EMPTY,
        }
    }

    /// When it begins. 0 is what some write for no time.
    fn start(&mut self, ts: Micros, ph: Ph) -> Time {
        let start = ts.since(self.origin);
        if start.is_edge() && ts.whole != 0 && ph != Ph::Metadata {
            self.trouble(Trouble::FarTime);
        }
        start
    }

    fn length(&mut self, fields: &Fields<'_>, ph: Ph) -> Result<Length, Trouble> {
        if ph != Ph::Complete {
            return Ok(Length::ZERO);
        }
        let dur = fields.dur.ok_or(Trouble::NoDuration)?;
        let end = Micros::parse(dur).ok_or(Trouble::BadTime)?.since(0);
        let length = end - Time::ORIGIN;
        if length < Length::ZERO {
            return Err(Trouble::NegativeDuration);
        }
        if length == Length::ZERO {
            self.trouble(Trouble::ZeroDuration);
        }
        if end.is_edge() {
            self.trouble(Trouble::FarTime);
        }
        Ok(length)
    }

    /// Counters and transfers go to tables of their own.
    pub(in crate::import) fn sides(&mut self, fields: &Fields<'_>, event: &mut Event) {
        event.device = self.device(&fields.counters, event);
        if let Some(transfer) = fields.transfer {
            event.transfer = self.parsed.transfers.len() as u32;
            self.parsed.transfers.push(transfer);
        }
    }

    fn device(&mut self, texts: &CounterTexts<'_>, event: &Event) -> u32 {
        let (stamps, power, listed) = match texts.cycles {
            Some(list) => (five(list), texts.charge, true),
            None if texts.stamps.iter().all(Option::is_none) => {
                self.keep("Power", texts.power);
                self.keep("charge", texts.charge);
                return NONE;
            }
            None => (all(texts.stamps), texts.power, false),
        };
        if listed {
            self.keep("cycles_ts", texts.cycles);
            self.keep("charge", texts.charge);
        }
        let Some(stamps) = stamps else {
            self.trouble(Trouble::BadCounters);
            (1..).zip(texts.stamps).for_each(|(i, text)| {
                self.keep(&format!("TS{i}"), text);
            });
            self.keep("Power", texts.power);
            return NONE;
        };
        if stamps == [0; 5] && listed {
            self.trouble(Trouble::NoCounters);
            return NONE;
        }
        if event.ph == Ph::Complete && event.length == Length::ZERO && stamps[0] != stamps[4] {
            self.trouble(Trouble::ZeroHostTime);
        }
        let name = self.parsed.names.get(event.name);
        let device = Device {
            stamps,
            power: power.and_then(parse_counter).unwrap_or(-1),
            phase: Phase::of(name),
            wrapped_at: 0,
            epoch: 0,
            adjusted: (0.0, 0.0),
            moved: 0.0,
            placed: 0.0,
            piece: 0,
            is_counted: false,
            power_is_text: power.is_some_and(|text| text.starts_with('"')),
            is_listed: listed,
        };
        self.parsed.devices.push(device);
        self.parsed.devices.len() as u32 - 1
    }

    /// What is not understood stays as it is.
    fn keep(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            member(&mut self.parsed.text, key, value);
        }
    }
}

fn all(texts: [Option<&str>; 5]) -> Option<[i64; 5]> {
    let mut stamps = [0; 5];
    for (stamp, text) in stamps.iter_mut().zip(texts) {
        *stamp = parse_counter(text?)?;
    }
    Some(stamps)
}

/// `[1, 2, 3, 4, 5]`
fn five(list: &str) -> Option<[i64; 5]> {
    let list = list.strip_prefix('[')?.strip_suffix(']')?;
    let mut stamps = [0; 5];
    let mut texts = list.split(',');
    for stamp in &mut stamps {
        *stamp = parse_counter(texts.next()?.trim())?;
    }
    texts.next().is_none().then_some(stamps)
}

impl<'a> Fields<'a> {
    /// Whether the object had no member.
    fn is_empty(&self) -> bool {
        let texts = [
            self.ts,
            self.dur,
            self.pid,
            self.tid,
            self.id,
            self.scoped_id,
        ];
        let has_text = self.ph.is_some() || self.name.is_some() || !self.cat.is_empty();
        let has_more = self.binds_enclosing || self.has_bad_arguments || self.correlation != 0;
        !has_text && !has_more && texts.iter().all(Option::is_none)
    }

    /// Whether the format has the event, but no viewer draws it.
    fn is_not_drawn(&self) -> bool {
        let ph = self.ph.as_deref();
        ph.is_some_and(|ph| NOT_DRAWN.contains(&ph))
    }

    /// Takes an argument: counters and their like to their fields, what analyses want
    /// to know of the others to theirs, and the text of these to the block's.
    pub(in crate::import) fn argument(&mut self, parsed: &mut Parsed, key: &str, text: &'a str) {
        match key {
            "TS1" => self.counters.stamps[0] = Some(text),
            "TS2" => self.counters.stamps[1] = Some(text),
            "TS3" => self.counters.stamps[2] = Some(text),
            "TS4" => self.counters.stamps[3] = Some(text),
            "TS5" => self.counters.stamps[4] = Some(text),
            "Power" => self.counters.power = Some(text),
            "cycles_ts" => self.counters.cycles = Some(text),
            "charge" => self.counters.charge = Some(text),
            key => {
                hint(parsed, self, key, text);
                member(&mut parsed.text, renamed(key), text);
            }
        }
    }
}

/// `Bytes` of FLEX is `bytes` everywhere else.
fn renamed(key: &str) -> &str {
    match key {
        "Bytes" => "bytes",
        key => key,
    }
}

/// Kinds of events that no viewer draws: samples without a stack, objects, contexts, dumps of
/// memory, clock marks, and numbers that are linked.
const NOT_DRAWN: [&str; 11] = ["P", "N", "O", "D", "(", ")", "V", "v", "c", "=", "a"];

/// Adds `"key":value,` to a text.
pub(in crate::import) fn member(out: &mut String, key: &str, value: &str) {
    if key.bytes().all(|b| b != b'"' && b != b'\\' && b >= b' ') {
        out.push('"');
        out.push_str(key);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(key).to_string());
    }
    out.push(':');
    out.push_str(value);
    out.push(',');
}

fn argument(out: &mut String, key: &str, value: &RawValue) {
    member(out, key, value.get());
}

/// The text of a JSON string; numbers and the like as they are written.
fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    let text = value.get();
    match text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Some(Cow::Borrowed(plain)),
        Some(_) => serde_json::from_str(text).ok().map(Cow::Owned),
        None => given(value).map(Cow::Borrowed),
    }
}

/// A value's text, unless it is null.
fn given(value: &RawValue) -> Option<&str> {
    Some(value.get()).filter(|text| *text != "null")
}

/// A key of an object, borrowed where it has no escapes.
struct ObjectKey;

impl<'a> DeserializeSeed<'a> for ObjectKey {
    type Value = Cow<'a, str>;

    fn deserialize<D: Deserializer<'a>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'a> Visitor<'a> for ObjectKey {
    type Value = Cow<'a, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, text: &'a str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}
