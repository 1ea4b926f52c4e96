//! Messages of Perfetto's trace format, by the numbers of their fields
//! (github.com/google/perfetto, protos/perfetto/trace/perfetto_trace.proto).

use super::plan::{PlannedEvent, TracePlan, What};
use super::tracks::counted;
use crate::export::trace_events::{Words, arguments};
use aiprof_model::json::{is_exact, shown};
use aiprof_model::timeline::{
    Event, Sym, Timeline, Value as Arg, args::micros, decimal, hex, members,
};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;
use std::borrow::Cow;

/// The only sequence.
const SEQUENCE: u64 = 1;
/// `sequence_flags`: the state begins here.
const STATE_CLEARED: u64 = 1;
/// `sequence_flags`: the packet is of use only with the state.
const NEEDS_STATE: u64 = 2;
/// Texts of its own that a piece gives numbers to, as bits.
const PIECE_BITS: u32 = 14;
/// Longest text that is given a number.
const MAX_INTERNED: usize = 256;
/// Deepest argument that is written as more than its JSON text.
const MAX_DEPTH: u32 = 16;

/// How a field's value is written: protobuf's wire types.
const VARINT: u32 = 0;
const EIGHT_BYTES: u32 = 1;
const DELIMITED: u32 = 2;

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn key(out: &mut Vec<u8>, field: u32, wire_type: u32) {
    varint(out, u64::from(field << 3 | wire_type));
}

/// A whole number.
pub(super) fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    key(out, field, VARINT);
    varint(out, value);
}

/// A text.
pub(super) fn text(out: &mut Vec<u8>, field: u32, value: &str) {
    key(out, field, DELIMITED);
    varint(out, value.len() as u64);
    out.extend_from_slice(value.as_bytes());
}

pub(super) fn fixed64(out: &mut Vec<u8>, field: u32, value: u64) {
    key(out, field, EIGHT_BYTES);
    out.extend_from_slice(&value.to_le_bytes());
}

/// A message.
pub(super) fn message(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    key(out, field, DELIMITED);
    // Most are shorter than 128 bytes: room for that length, and more if need be.
    out.push(0);
    let start = out.len();
    write(out);
    let mut len = out.len() - start;
    let mut at = start - 1;
    if len >= 0x80 {
        let more = (usize::BITS - 1 - len.leading_zeros()) as usize / 7;
        out.resize(out.len() + more, 0);
        out.copy_within(start..start + len, start + more);
    }
    while let Some(place) = out.get_mut(at) {
        *place = len as u8 & 0x7f | u8::from(len >= 0x80) << 7;
        len >>= 7;
        at += 1;
        if len == 0 {
            break;
        }
    }
}

/// A packet, with its time in nanoseconds.
pub(super) fn packet(out: &mut Vec<u8>, time: Option<u64>, write: impl FnOnce(&mut Vec<u8>)) {
    message(out, 1, |packet| {
        if let Some(time) = time {
            number(packet, 8, time);
        }
        number(packet, 10, SEQUENCE);
        number(packet, 13, NEEDS_STATE);
        write(packet);
    });
}

/// The first packet.
pub(super) fn begin(out: &mut Vec<u8>) {
    begin_with(out, |_| {});
}

/// The first packet, with more in it.
pub(super) fn begin_with(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    message(out, 1, |packet| {
        number(packet, 10, SEQUENCE);
        number(packet, 13, STATE_CLEARED);
        write(packet);
    });
}

/// Texts of a kind that got numbers.
#[derive(Default)]
struct Interned {
    numbers: FxHashMap<Box<str>, u64>,
    first: u64,
}

impl Interned {
    /// The text's number, and whether it is new. `None`: it has none.
    fn number(&mut self, text: &str) -> Option<(u64, bool)> {
        if let Some(number) = self.numbers.get(text) {
            return Some((*number, false));
        }
        if text.len() > MAX_INTERNED || self.numbers.len() >= (1 << PIECE_BITS) - 1 {
            return None;
        }
        let number = self.first + self.numbers.len() as u64;
        self.numbers.insert(text.into(), number);
        Some((number, true))
    }
}

/// Arguments of events, whose keys and texts get numbers.
#[derive(Default)]
pub(super) struct Notes {
    keys: Interned,
    values: Interned,
}

impl Notes {
    /// Numbers begin with `first`.
    pub(super) fn new(first: u64) -> Self {
        let interned = || Interned {
            numbers: FxHashMap::default(),
            first,
        };
        Self {
            keys: interned(),
            values: interned(),
        }
    }

    /// A `DebugAnnotation`: a key, as it stands between its quotes, and a value in JSON.
    pub(super) fn annotation(
        &mut self,
        texts: &mut Vec<u8>,
        out: &mut Vec<u8>,
        key: &str,
        value: &str,
    ) {
        self.key(texts, out, &unquoted(key));
        self.json(texts, out, value);
    }

    /// A `DebugAnnotation` of a recording's argument.
    pub(super) fn argument(
        &mut self,
        texts: &mut Vec<u8>,
        out: &mut Vec<u8>,
        key: &str,
        value: Arg<'_>,
    ) {
        self.key(texts, out, &shown(key));
        match value {
            Arg::Text(text) => self.string(texts, out, &shown(text)),
            Arg::Json(json) => self.json(texts, out, json),
            Arg::Number(value) if is_exact(value) => whole(out, value),
            Arg::Number(value) => text(out, 6, decimal(value).text()),
            Arg::Signed(value) if is_exact(value.unsigned_abs()) => {
                number(out, 4, value.cast_unsigned());
            }
            Arg::Signed(value) => self.string(texts, out, &value.to_string()),
            Arg::Hex(value) => text(out, 6, hex(value).text()),
            Arg::Micros(ns) => fixed64_double(out, 5, micros(ns)),
            Arg::Float(value) if value.is_finite() => float(out, value),
            Arg::Float(value) => self.string(texts, out, &value.to_string()),
            Arg::Flag(value) => number(out, 2, value.into()),
            Arg::Numbers(list) | Arg::Texts(list) if list.is_empty() => empty_array(out),
            Arg::Numbers(list) => list
                .numbers()
                .for_each(|value| message(out, 12, |entry| whole(entry, value))),
            Arg::Texts(list) => list.texts().for_each(|value| {
                message(out, 12, |entry| self.string(texts, entry, &shown(value)));
            }),
        }
    }

    /// A value in JSON.
    fn json(&mut self, texts: &mut Vec<u8>, out: &mut Vec<u8>, value: &str) {
        match value.as_bytes().first() {
            Some(b'"') => {
                let inner = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
                self.string(texts, out, &unquoted(inner.unwrap_or(value)));
            }
            Some(b't' | b'f') => number(out, 2, u64::from(value == "true")),
            Some(b'-' | b'0'..=b'9') => number_value(out, value),
            _ => match serde_json::from_str::<Value>(value) {
                Ok(parsed) if depth(&parsed) <= MAX_DEPTH => self.nested(texts, out, &parsed),
                _ => text(out, 6, value),
            },
        }
    }

    /// The key of an annotation.
    pub(super) fn key(&mut self, texts: &mut Vec<u8>, out: &mut Vec<u8>, key: &str) {
        match self.keys.number(key) {
            Some((iid, is_new)) => {
                if is_new {
                    intern(texts, 3, iid, key);
                }
                number(out, 1, iid);
            }
            None => text(out, 10, key),
        }
    }

    fn string(&mut self, texts: &mut Vec<u8>, out: &mut Vec<u8>, value: &str) {
        // Counters as text are all different.
        let is_word = value.len() > 4 && !value.starts_with(|c: char| c.is_ascii_digit());
        let number_of = is_word.then(|| self.values.number(value)).flatten();
        match number_of {
            Some((iid, is_new)) => {
                if is_new {
                    intern(texts, 29, iid, value);
                }
                number(out, 17, iid);
            }
            None => text(out, 6, value),
        }
    }

    fn nested(&mut self, texts: &mut Vec<u8>, out: &mut Vec<u8>, value: &Value) {
        match value {
            Value::Object(members) if !members.is_empty() => {
                for (key, value) in members {
                    message(out, 11, |entry| {
                        self.key(texts, entry, key);
                        self.nested(texts, entry, value);
                    });
                }
            }
            Value::Array(values) if !values.is_empty() => {
                for value in values {
                    message(out, 12, |entry| self.nested(texts, entry, value));
                }
            }
            Value::Bool(is) => number(out, 2, u64::from(*is)),
            Value::String(string) => self.string(texts, out, string),
            Value::Number(value) => number_value(out, &value.to_string()),
            // What is empty has a form only among the older ones: a nested value and
            // its type. (There is one for JSON too; Perfetto 52 crashes on a null in it.)
            Value::Object(_) => message(out, 8, |nested| number(nested, 1, 1)),
            Value::Array(_) => empty_array(out),
            Value::Null => message(out, 8, |_| {}),
        }
    }
}

/// Writes a piece of the track events to memory.
pub(super) struct Encoder<'t> {
    timeline: &'t Timeline,
    words: Words,
    plan: &'t TracePlan<'t>,
    events: Vec<u8>,
    /// Texts that the piece's events refer to.
    texts: Vec<u8>,
    names: FxHashSet<Sym>,
    categories: FxHashSet<Sym>,
    notes: Notes,
    /// An event's arguments as JSON.
    json: Vec<u8>,
}

impl<'t> Encoder<'t> {
    pub(super) fn new(
        timeline: &'t Timeline,
        words: Words,
        plan: &'t TracePlan<'t>,
        piece: u64,
    ) -> Self {
        Self {
            timeline,
            words,
            plan,
            events: Vec::new(),
            texts: Vec::new(),
            names: FxHashSet::default(),
            categories: FxHashSet::default(),
            notes: Notes::new((piece << PIECE_BITS) + 1),
            json: Vec::new(),
        }
    }

    /// The packets of these steps.
    pub(super) fn steps(mut self, steps: &[PlannedEvent]) -> Vec<u8> {
        let mut events = std::mem::take(&mut self.events);
        for step in steps {
            if let Some(event) = self.timeline.events.get(step.event as usize) {
                self.step(step, event, &mut events);
            }
        }
        let mut out = Vec::with_capacity(self.texts.len() + events.len() + 32);
        if !self.texts.is_empty() {
            packet(&mut out, None, |packet| {
                message(packet, 12, |data| data.extend_from_slice(&self.texts));
            });
        }
        out.append(&mut events);
        out
    }

    fn time(&self, ns: i64) -> u64 {
        u64::try_from(self.plan.zero + i128::from(ns)).unwrap_or(0)
    }

    fn step(&mut self, step: &PlannedEvent, event: &Event, out: &mut Vec<u8>) {
        let time = Some(self.time(step.ns));
        match step.what {
            // A slice wrote its arguments where it began.
            What::End => track_event(out, time, 2, step.track, |out| {
                if !event.is_slice() {
                    self.notes(event, out);
                }
            }),
            What::Begin => {
                track_event(out, time, 1, step.track, |out| self.event(step, event, out))
            }
            What::Instant => {
                track_event(out, time, 3, step.track, |out| self.event(step, event, out));
            }
            What::Counter => self.counter(step, event, out),
        }
    }

    /// Name, category, flows, arguments.
    fn event(&mut self, step: &PlannedEvent, event: &Event, out: &mut Vec<u8>) {
        if !event.cat.is_empty() {
            let cat = self.sym(event.cat, 1);
            number(out, 3, cat);
        }
        if !event.name.is_empty() {
            let name = self.sym(event.name, 2);
            number(out, 10, name);
        }
        for flow in self.plan.flows_of(step.event) {
            fixed64(out, if flow.ends { 48 } else { 47 }, flow.id);
        }
        self.notes(event, out);
    }

    /// Arguments.
    fn notes(&mut self, event: &Event, out: &mut Vec<u8>) {
        let mut json = std::mem::take(&mut self.json);
        json.clear();
        let json = arguments(self.timeline, self.words, event, json);
        if let Ok(members_text) = std::str::from_utf8(&json) {
            for (key, value) in members(members_text) {
                let (notes, texts) = (&mut self.notes, &mut self.texts);
                message(out, 4, |note| notes.annotation(texts, note, key, value));
            }
        }
        self.json = json;
    }

    /// The number of a name or category, whose text is in the piece's texts.
    fn sym(&mut self, sym: Sym, field: u32) -> u64 {
        let number = sym.index() as u64;
        let known = match field {
            1 => &mut self.categories,
            _ => &mut self.names,
        };
        if known.insert(sym) {
            intern(&mut self.texts, field, number, self.timeline.name(sym));
        }
        number
    }

    /// The values of a counter's series; what is no number is written with the first.
    fn counter(&mut self, step: &PlannedEvent, event: &Event, out: &mut Vec<u8>) {
        let time = Some(self.time(step.ns));
        let series = members(self.timeline.texts.get(event.args));
        let mut rest = Vec::new();
        let mut has_values = false;
        for (key, value) in series {
            let track = self.plan.tracks.counter(self.timeline, event, key);
            let Some(((text, double), track)) = counted(value).zip(track) else {
                rest.push((key, value));
                continue;
            };
            has_values = true;
            track_event(out, time, 4, track, |out| match text.parse::<i64>() {
                Ok(int) => number(out, 30, int as u64),
                Err(_) => fixed64_double(out, 44, double),
            });
        }
        if has_values && rest.is_empty() {
            return;
        }
        track_event(out, time, 3, step.track, |out| {
            let name = self.sym(event.name, 2);
            number(out, 10, name);
            for (key, value) in rest {
                let (notes, texts) = (&mut self.notes, &mut self.texts);
                message(out, 4, |note| notes.annotation(texts, note, key, value));
            }
        });
    }
}

pub(super) fn track_event(
    out: &mut Vec<u8>,
    time: Option<u64>,
    kind: u64,
    track: u64,
    more: impl FnOnce(&mut Vec<u8>),
) {
    packet(out, time, |packet| {
        message(packet, 11, |event| {
            number(event, 9, kind);
            number(event, 11, track);
            more(event);
        });
    });
}

pub(super) fn intern(out: &mut Vec<u8>, field: u32, iid: u64, value: &str) {
    message(out, field, |entry| {
        number(entry, 1, iid);
        text(entry, 2, value);
    });
}

pub(super) fn fixed64_double(out: &mut Vec<u8>, field: u32, value: f64) {
    fixed64(out, field, value.to_bits());
}

/// A whole number: signed, if it fits.
fn whole(out: &mut Vec<u8>, value: u64) {
    let field = if i64::try_from(value).is_ok() { 4 } else { 3 };
    number(out, field, value);
}

/// A number that may have decimals.
fn float(out: &mut Vec<u8>, value: f64) {
    match value.fract() == 0.0 {
        true => number_value(out, &value.to_string()),
        false => fixed64_double(out, 5, value),
    }
}

fn empty_array(out: &mut Vec<u8>) {
    message(out, 8, |nested| number(nested, 1, 2));
}

/// A JSON number: whole ones as such, others as doubles, what is beyond as text.
fn number_value(out: &mut Vec<u8>, value: &str) {
    if let Ok(int) = value.parse::<i64>() {
        return number(out, 4, int as u64);
    }
    if let Ok(uint) = value.parse::<u64>() {
        return whole(out, uint);
    }
    match value.parse::<f64>() {
        Ok(double) if double.is_finite() => fixed64_double(out, 5, double),
        _ => text(out, 6, value),
    }
}

/// A JSON string without its quotes.
fn unquoted(inner: &str) -> Cow<'_, str> {
    if !inner.contains('\\') {
        return Cow::Borrowed(inner);
    }
    serde_json::from_str(&format!("\"{inner}\"")).map_or(Cow::Borrowed(inner), Cow::Owned)
}

fn depth(value: &Value) -> u32 {
    let below = match value {
        Value::Object(members) => members.values().map(depth).max(),
        Value::Array(values) => values.iter().map(depth).max(),
        _ => return 0,
    };
    below.unwrap_or(0) + 1
}
