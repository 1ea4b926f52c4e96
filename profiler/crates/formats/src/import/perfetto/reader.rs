//! Packets to events.

use super::args::{Arguments, push_double, push_string};
use super::clocks::{BOOTTIME, Clocks, MONOTONIC};
use super::finish::Half;
use super::flows::FlowPoints;
use super::frame::{Frames, Next};
use super::proto::{
    COUNTER, INSTANT, Packet, PerfSample, SLICE_BEGIN, SLICE_END, ThreadDescriptor, TrackEvent,
    TrackEventDefaults, UNSPECIFIED,
};
use super::sequence::Sequence;
use super::stages::Listed;
use super::tracks::Tracks;
use crate::import::json::event::{FieldReader, Fields, Parsed, member};
use crate::import::json::{FAR, Trouble};
use crate::timeline::SAMPLES;
use aiprof_model::timeline::{Event, Length, NONE, Ph, Sym, Time, Timeline, TrackId};
use aiprof_system::memory::Metered;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use prost::Message as _;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::io::Read;

/// Length of arguments after which they go to the timeline's, bytes.
const FLUSH: usize = 1 << 20;

/// What was read so far.
pub(super) struct PacketReader<'t> {
    /// Everything else is lent to `parsed`.
    pub into: &'t mut Timeline,
    /// The timeline's tables, and arguments that are not in its texts yet.
    pub parsed: Parsed,
    /// The first event whose arguments are still in `parsed`.
    flushed: usize,
    /// What times count from, microseconds: the timeline's origin, unless the file's clock
    /// is another one.
    pub origin: Option<i64>,
    sequences: FxHashMap<u32, Sequence>,
    pub tracks: Tracks,
    /// Rows by the track's number; an event's `track` is the row's index until the end.
    row_of: FxHashMap<u64, u32>,
    /// The tracks of the rows.
    pub rows: Vec<u64>,
    /// Begins and ends by row.
    pub halves: Vec<Vec<Half>>,
    pub flows: FlowPoints,
    /// Arguments of ends: event and JSON members, which go to the slice.
    clocks: Clocks,
    arguments: Arguments,
    /// Bytes that packets within packets had, decompressed.
    inflated: u64,
    /// Names of devices' queues and stages, in the older form.
    pub listed: Listed,
    /// The time of the last sample of each row of samples.
    sampled: FxHashMap<u32, i64>,
}

/// Where and when an event is.
#[derive(Clone, Copy)]
pub(super) struct EventPlace {
    pub offset: u64,
    pub row: u32,
    pub track: u64,
    /// Nanoseconds.
    pub ns: i64,
}

impl<'t> PacketReader<'t> {
    pub(super) fn new(into: &'t mut Timeline) -> Self {
        let parsed = Parsed {
            events: std::mem::take(&mut into.events),
            devices: std::mem::take(&mut into.devices),
            transfers: std::mem::take(&mut into.transfers),
            names: std::mem::take(&mut into.names),
            ..Parsed::default()
        };
        Self {
            flushed: parsed.events.len(),
            origin: None,
            into,
            parsed,
            sequences: FxHashMap::default(),
            tracks: Tracks::default(),
            row_of: FxHashMap::default(),
            rows: Vec::new(),
            halves: Vec::new(),
            flows: FlowPoints::default(),
            clocks: Clocks::new(),
            arguments: Arguments::default(),
            inflated: 0,
            listed: Listed::default(),
            sampled: FxHashMap::default(),
        }
    }

    pub(super) fn trouble(&mut self, trouble: Trouble, offset: u64) {
        self.parsed.problems.add(trouble, offset);
    }

    /// Takes a packet, which begins at `offset`. `may_nest`: it may hold others.
    pub(super) fn packet(&mut self, bytes: &[u8], offset: u64, may_nest: bool) {
        let Ok(mut packet) = Packet::decode(bytes) else {
            return self.trouble(Trouble::BadPacket, offset);
        };
        if !packet.compressed_packets.is_empty() {
            match may_nest {
                true => self.compressed(&packet.compressed_packets, offset),
                false => self.trouble(Trouble::BadPacket, offset),
            }
        }
        if let Some(snapshot) = &packet.clock_snapshot
            && !self.clocks.snapshot(packet.sequence, snapshot)
        {
            self.trouble(Trouble::UnknownClock, offset);
        }
        let mut sequence = self.sequences.remove(&packet.sequence).unwrap_or_default();
        if !sequence.update(&packet, &mut self.parsed.names) {
            self.trouble(Trouble::LostPackets, offset);
        }
        if let Some(track) = packet.track_descriptor.take() {
            self.tracks.describe(track);
        }
        if let Some(process) = packet.process_descriptor.take() {
            self.tracks.process(process);
        }
        if let Some(thread) = packet.thread_descriptor.take() {
            sequence.last_us = thread.reference_timestamp_us.unwrap_or(sequence.last_us);
            sequence.thread = Some(self.tracks.thread(thread));
        }
        if let Some(event) = packet.track_event.take() {
            match sequence.is_missing(&packet) {
                true => self.trouble(Trouble::Unresolved, offset),
                false => self.event(&packet, &event, &mut sequence, offset),
            }
        }
        if let Some(sample) = packet.perf_sample.take() {
            match sequence.is_missing(&packet) {
                true => self.trouble(Trouble::Unresolved, offset),
                false => self.sample(&packet, sample, &sequence, offset),
            }
        }
        if let Some(stage) = packet.gpu_stage.take() {
            match sequence.is_missing(&packet) {
                true => self.trouble(Trouble::Unresolved, offset),
                false => self.stage(&packet, &stage, &sequence, offset),
            }
        }
        self.sequences.insert(packet.sequence, sequence);
        if self.parsed.text.len() > FLUSH {
            self.flush();
        }
    }

    /// Packets within a packet.
    fn compressed(&mut self, bytes: &[u8], offset: u64) {
        let from: Box<dyn Read + '_> = match bytes.starts_with(&[0x1f, 0x8b]) {
            true => Box::new(MultiGzDecoder::new(bytes)),
            false => Box::new(ZlibDecoder::new(bytes)),
        };
        let mut frames = Frames::new(Metered::decompressed(from, None).after(self.inflated));
        let mut packet = Vec::new();
        let end = loop {
            match frames.next(&mut packet) {
                Next::Packet(_) => self.packet(&packet, offset, false),
                Next::Over(end) => break end,
            }
        };
        self.inflated = self.inflated.saturating_add(frames.offset());
        if end != super::End::Whole {
            self.trouble(Trouble::BadPacket, offset);
        }
    }

    /// Moves arguments to the timeline's texts.
    pub(super) fn flush(&mut self) {
        let texts = &mut self.into.texts;
        self.flushed = self.parsed.flush(self.flushed, texts);
    }

    pub(super) fn row(&mut self, track: u64) -> u32 {
        let (rows, halves) = (&mut self.rows, &mut self.halves);
        *self.row_of.entry(track).or_insert_with(|| {
            rows.push(track);
            halves.push(Vec::new());
            rows.len() as u32 - 1
        })
    }

    fn event(&mut self, packet: &Packet, event: &TrackEvent, sequence: &mut Sequence, offset: u64) {
        let Some(ns) = self.time(packet, event, sequence) else {
            return self.trouble(Trouble::UnknownClock, offset);
        };
        if self.is_full() {
            // More do not fit in memory either.
            return self.trouble(Trouble::BadPacket, offset);
        }
        if self.start(ns).is_edge() {
            self.trouble(Trouble::FarTime, offset);
        }
        let track = event
            .track_uuid
            .or(sequence.track_event.track_uuid)
            .or(sequence.thread)
            .unwrap_or(0);
        let place = EventPlace {
            offset,
            row: self.row(track),
            track,
            ns,
        };
        self.extra_counters(event, &sequence.track_event, place);
        let legacy = event.legacy.unwrap_or_default();
        let phase = u8::try_from(legacy.phase).unwrap_or(0);
        let index = match (event.kind, phase) {
            (SLICE_BEGIN, _) | (UNSPECIFIED, b'B') => self.begin(event, sequence, place),
            (SLICE_END, _) | (UNSPECIFIED, b'E') => return self.end(event, sequence, place),
            (INSTANT, _) | (UNSPECIFIED, b'I' | b'i') => {
                self.add(Ph::Instant, event, sequence, place)
            }
            (UNSPECIFIED, b'X') => {
                let index = self.begin(event, sequence, place);
                let ns = ns.saturating_add(legacy.duration_us.saturating_mul(1000));
                self.half(EventPlace { ns, ..place }, NONE);
                index
            }
            (COUNTER, _) => return self.counter_event(event, place),
            (UNSPECIFIED, 0) => return,
            _ => return self.trouble(Trouble::UnknownPhase, offset),
        };
        self.flows.add(event, ns, index);
    }

    /// A CPU sample of a known period: a span that ends with it, on a row of its own for
    /// each thread, as in aiprof's Chrome traces.
    fn sample(&mut self, packet: &Packet, sample: PerfSample, sequence: &Sequence, offset: u64) {
        if sequence.sample_ns == 0 || self.is_full() {
            return;
        }
        let Some(ns) = self.packet_time(packet, sequence) else {
            return self.trouble(Trouble::UnknownClock, offset);
        };
        let track = self.tracks.thread(ThreadDescriptor {
            pid: sample.pid.into(),
            tid: i64::from(sample.tid) + SAMPLES,
            ..ThreadDescriptor::default()
        });
        let row = self.row(track);
        let period = i64::try_from(sequence.sample_ns).unwrap_or(0);
        // Samples come a little early at times.
        let last = self.sampled.entry(row).or_insert(-1);
        let begin = ns
            .saturating_sub(period)
            .max(last.saturating_add(1))
            .min(ns.max(*last));
        *last = ns;
        let name = sequence.leaf(sample.callstack_iid).unwrap_or(Sym::EMPTY);
        let place = EventPlace {
            offset,
            row,
            track,
            ns: begin,
        };
        let mut new = self.new_event(Ph::Complete, name, place);
        new.length = Length::from_nanos(ns.saturating_sub(begin));
        new.cat = self.parsed.names.intern("sample");
        let start = self.parsed.text.len();
        member(&mut self.parsed.text, "cpu", &sample.cpu.to_string());
        let mut common = FieldReader {
            origin: 0,
            offset,
            parsed: &mut self.parsed,
        };
        new.args = common.argument_text(start);
        self.parsed.events.push(new);
    }

    /// Nanoseconds of the file's clock as a time; the first shows which clock it is.
    fn start(&mut self, ns: i64) -> Time {
        let first = ns.div_euclid(1000);
        let wanted = self.into.origin;
        let origin = *self.origin.get_or_insert_with(|| {
            let known = wanted.filter(|wanted| first.abs_diff(*wanted) < FAR);
            known.unwrap_or(first)
        });
        let since = i128::from(ns) - i128::from(origin) * 1000;
        let bound = if since < 0 { i64::MIN } else { i64::MAX };
        Time::from_nanos(i64::try_from(since).unwrap_or(bound))
    }

    /// When an event is, nanoseconds.
    fn time(
        &mut self,
        packet: &Packet,
        event: &TrackEvent,
        sequence: &mut Sequence,
    ) -> Option<i64> {
        let us = match (event.timestamp_absolute_us, event.timestamp_delta_us) {
            (Some(us), _) => Some(us),
            (None, Some(delta)) => {
                sequence.last_us = sequence.last_us.wrapping_add(delta);
                Some(sequence.last_us)
            }
            (None, None) => None,
        };
        if let (Some(us), None) = (us, packet.timestamp) {
            let ns = us.wrapping_mul(1000) as u64;
            return self.clocks.time(packet.sequence, MONOTONIC, ns);
        }
        self.packet_time(packet, sequence)
    }

    /// The time that a packet itself has, nanoseconds.
    pub(super) fn packet_time(&mut self, packet: &Packet, sequence: &Sequence) -> Option<i64> {
        let clock = packet.timestamp_clock_id.or(sequence.clock);
        let (clock, time) = (clock.unwrap_or(BOOTTIME), packet.timestamp.unwrap_or(0));
        self.clocks.time(packet.sequence, clock, time)
    }

    /// Whether there are as many events as numbers of them.
    pub(super) fn is_full(&self) -> bool {
        self.parsed.events.len() >= NONE as usize - 1
    }

    fn half(&mut self, place: EventPlace, at: u32) {
        if let Some(halves) = self.halves.get_mut(place.row as usize) {
            halves.push(Half {
                ns: place.ns,
                at,
                end_args: NONE,
                offset: place.offset,
            });
        }
    }

    fn begin(&mut self, event: &TrackEvent, sequence: &Sequence, place: EventPlace) -> u32 {
        let index = self.add(Ph::Begin, event, sequence, place);
        self.half(place, index);
        index
    }

    /// The end of a slice; its arguments and flows go to the slice.
    fn end(&mut self, event: &TrackEvent, sequence: &Sequence, place: EventPlace) {
        let says_more = !event.annotations.is_empty()
            || !event.flow_ids.is_empty()
            || !event.terminating_flow_ids.is_empty();
        let index = match says_more {
            true => self.add(Ph::End, event, sequence, place),
            false => NONE,
        };
        self.half(place, NONE);
        let halves = self.halves.get_mut(place.row as usize);
        if let Some(half) = halves.and_then(|halves| halves.last_mut()) {
            half.end_args = index;
        }
        if index != NONE {
            self.flows.add(event, place.ns, index);
        }
    }

    /// Adds an event; gives its number.
    fn add(&mut self, ph: Ph, event: &TrackEvent, sequence: &Sequence, place: EventPlace) -> u32 {
        let name = self.name(event, sequence, place.offset);
        let cat = self.category(event, sequence, place.offset);
        let mut new = self.new_event(ph, name, place);
        new.cat = cat;
        let start = self.parsed.text.len();
        let mut arguments = std::mem::take(&mut self.arguments);
        arguments.take(&event.annotations, sequence);
        for trouble in &arguments.troubles {
            self.trouble(*trouble, place.offset);
        }
        let mut fields = Fields::default();
        for (key, text) in arguments.iter() {
            match ph {
                // Counters are those of the begin.
                Ph::End => member(&mut self.parsed.text, key, text),
                _ => fields.argument(&mut self.parsed, key, text),
            }
        }
        new.correlation = fields.correlation;
        let mut common = FieldReader {
            origin: self.origin.unwrap_or(0),
            offset: place.offset,
            parsed: &mut self.parsed,
        };
        common.sides(&fields, &mut new);
        new.args = common.argument_text(start);
        drop(fields);
        self.arguments = arguments;
        self.parsed.events.push(new);
        self.parsed.events.len() as u32 - 1
    }

    pub(super) fn new_event(&mut self, ph: Ph, name: Sym, place: EventPlace) -> Event {
        let start = self.start(place.ns);
        Event::new(ph, name, TrackId(place.row), start)
    }

    fn intern(&mut self, bytes: &[u8], offset: u64) -> Sym {
        let text = String::from_utf8_lossy(bytes);
        if let Cow::Owned(_) = text {
            self.trouble(Trouble::BadText, offset);
        }
        self.parsed.names.intern(&text)
    }

    fn name(&mut self, event: &TrackEvent, sequence: &Sequence, offset: u64) -> Sym {
        if let Some(name) = &event.name {
            return self.intern(name, offset);
        }
        let legacy = event.legacy.map_or(0, |legacy| legacy.name_iid);
        let iid = [event.name_iid, legacy].into_iter().find(|iid| *iid != 0);
        let Some(iid) = iid else { return Sym::EMPTY };
        sequence.names.get(&iid).copied().unwrap_or_else(|| {
            self.trouble(Trouble::Unresolved, offset);
            Sym::EMPTY
        })
    }

    fn category(&mut self, event: &TrackEvent, sequence: &Sequence, offset: u64) -> Sym {
        let mut first = Sym::EMPTY;
        let mut all = String::new();
        let mut categories = Vec::new();
        for iid in &event.category_iids {
            match sequence.categories.get(iid) {
                Some(category) => categories.push(*category),
                None => self.trouble(Trouble::Unresolved, offset),
            }
        }
        for category in &event.categories {
            categories.push(self.intern(category, offset));
        }
        for (i, category) in categories.iter().enumerate() {
            match i {
                0 => first = *category,
                1 => all = self.parsed.names.get(first).to_owned(),
                _ => {}
            }
            if i > 0 {
                all.push(',');
                all.push_str(self.parsed.names.get(*category));
            }
        }
        match categories.len() {
            0 | 1 => first,
            _ => self.parsed.names.intern(&all),
        }
    }

    fn counter_event(&mut self, event: &TrackEvent, place: EventPlace) {
        match (event.counter_value, event.double_counter_value) {
            (Some(value), _) => self.counter(place, CounterValue::Int(value)),
            (None, Some(value)) => self.counter(place, CounterValue::Double(value)),
            (None, None) => self.trouble(Trouble::Incomplete, place.offset),
        }
    }

    /// Values of counters that stand with another event.
    fn extra_counters(
        &mut self,
        event: &TrackEvent,
        defaults: &TrackEventDefaults,
        place: EventPlace,
    ) {
        let tracks = |own: &[u64], default: &[u64]| match own.is_empty() {
            true => default.to_vec(),
            false => own.to_vec(),
        };
        if !event.extra_counter_values.is_empty() {
            let tracks = tracks(&event.extra_counters, &defaults.extra_counters);
            for (track, value) in tracks.iter().zip(&event.extra_counter_values) {
                self.extra_counter(*track, CounterValue::Int(*value), place);
            }
        }
        if !event.extra_double_counter_values.is_empty() {
            let tracks = tracks(
                &event.extra_double_counters,
                &defaults.extra_double_counters,
            );
            for (track, value) in tracks.iter().zip(&event.extra_double_counter_values) {
                self.extra_counter(*track, CounterValue::Double(*value), place);
            }
        }
    }

    fn extra_counter(&mut self, track: u64, value: CounterValue, place: EventPlace) {
        let row = self.row(track);
        self.counter(
            EventPlace {
                row,
                track,
                ..place
            },
            value,
        );
    }

    fn counter(&mut self, place: EventPlace, value: CounterValue) {
        let known = self.tracks.get_mut(place.track);
        let Some((track, counter)) = known.and_then(|t| Some((t.counter.clone()?, t))) else {
            return self.trouble(Trouble::Unresolved, place.offset);
        };
        let (counter, track) = (track, counter);
        let mut value = value.times(counter.multiplier);
        if counter.is_incremental {
            track.total += value.as_f64();
            value = match value {
                CounterValue::Int(_) if track.total.abs() < (1i64 << 53) as f64 => {
                    CounterValue::Int(track.total as i64)
                }
                _ => CounterValue::Double(track.total),
            };
        }
        let unit = String::from_utf8_lossy(&counter.unit_name);
        let unit: &str = match (counter.unit, &unit) {
            (_, unit) if !unit.is_empty() => unit,
            (1, _) => "ns",
            (2, _) => "count",
            (3, _) => "bytes",
            _ => "value",
        };
        // Several series of a counter have its name with their own behind it.
        let name = track.name.strip_suffix(unit);
        let name = name.and_then(|name| name.strip_suffix(' '));
        let name = self.parsed.names.intern(name.unwrap_or(&track.name));
        let parent = track.parent;
        let mut text = String::with_capacity(unit.len() + 24);
        push_string(&mut text, unit);
        text.push(':');
        match value {
            CounterValue::Int(value) => text.push_str(&value.to_string()),
            CounterValue::Double(value) if value.is_finite() => push_double(&mut text, value),
            CounterValue::Double(_) => return self.trouble(Trouble::NotANumber, place.offset),
        }
        self.add_counter(place, name, parent, &text);
    }

    /// Adds a value, to the event before if that is of the same counter and time.
    fn add_counter(&mut self, place: EventPlace, name: Sym, parent: u64, text: &str) {
        let new = self.new_event(Ph::Counter, name, place);
        let out = &mut self.parsed.text;
        let is_flushed = self.flushed == self.parsed.events.len();
        if let Some(last) = self.parsed.events.last_mut()
            && !is_flushed
            && (last.ph, last.name, last.start) == (Ph::Counter, name, new.start)
            && last.args.start as usize + last.args.len as usize == out.len()
            && last.track != new.track
            && let Some(track) = self.rows.get(last.track.0 as usize)
            && self
                .tracks
                .get_mut(*track)
                .is_some_and(|t| t.parent == parent)
        {
            out.push(',');
            out.push_str(text);
            last.args.len += text.len() as u32 + 1;
            return;
        }
        let start = out.len();
        out.push_str(text);
        out.push(',');
        let mut event = new;
        let mut common = FieldReader {
            origin: 0,
            offset: place.offset,
            parsed: &mut self.parsed,
        };
        event.args = common.argument_text(start);
        self.parsed.events.push(event);
    }
}

/// A counter's value.
#[derive(Clone, Copy)]
enum CounterValue {
    Int(i64),
    Double(f64),
}

impl CounterValue {
    fn as_f64(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Double(value) => value,
        }
    }

    fn times(self, factor: i64) -> Self {
        match (self, factor) {
            (value, 0 | 1) => value,
            (Self::Int(value), factor) => match value.checked_mul(factor) {
                Some(product) => Self::Int(product),
                None => Self::Double(value as f64 * factor as f64),
            },
            (Self::Double(value), factor) => Self::Double(value * factor as f64),
        }
    }
}
