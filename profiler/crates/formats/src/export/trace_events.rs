//! A [`Timeline`] as Chrome trace JSON: the Trace Event Format, one event a line.
//!
//! Begins and ends are rounded to nanoseconds, each for itself, so that slices that
//! touch still do; a duration is their difference.

use aiprof_model::parallel;
use aiprof_model::timeline::number::{write_i64, write_micros, write_nanos, write_time, write_u64};
use aiprof_model::timeline::{BOUND_FLOW, Device, Dialect, Event, Id, NONE, Ph, Timeline, members};
use serde_json::Value;
use std::io::{self, Write};

/// Events that one thread writes at a time.
const PIECE: usize = 4096;
/// About the length of an event's text, bytes.
const EVENT_BYTES: usize = 512;

/// What stands before an event's arguments.
const ARGUMENTS: &[u8] = b",\"args\":{";

/// What stands around the events.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// `deviceProperties`.
    pub devices: Vec<Value>,
    /// `traceName`.
    pub name: String,
    /// `displayTimeUnit`: `ns` or `ms`.
    pub time_unit: String,
    /// `otherData`.
    pub other: Value,
    /// Other members: key and JSON text.
    pub members: Vec<(String, String)>,
}

/// Words for numbers in events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words {
    /// By [`Event::class`].
    pub classes: &'static [&'static str],
}

/// Writes the events with these numbers, in this order.
///
/// # Errors
/// As `out`.
pub fn write(
    timeline: &Timeline,
    words: Words,
    header: &Header,
    order: &[u32],
    out: &mut impl Write,
) -> io::Result<()> {
    let mut text = Vec::new();
    text.extend_from_slice(b"{\n\"deviceProperties\": ");
    serde_json::to_writer(&mut text, &header.devices)?;
    text.extend_from_slice(b",\n\"traceName\": ");
    serde_json::to_writer(&mut text, &header.name)?;
    text.extend_from_slice(b",\n\"displayTimeUnit\": ");
    serde_json::to_writer(&mut text, &header.time_unit)?;
    for (key, value) in &header.members {
        text.extend_from_slice(b",\n");
        serde_json::to_writer(&mut text, key)?;
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
    }
    text.extend_from_slice(b",\n\"otherData\": ");
    serde_json::to_writer(&mut text, &header.other)?;
    text.extend_from_slice(b",\n\"traceEvents\": [");
    out.write_all(&text)?;
    write_events(timeline, words, order, out)?;
    out.write_all(b"\n]\n}\n")
}

fn write_events(
    timeline: &Timeline,
    words: Words,
    order: &[u32],
    out: &mut impl Write,
) -> io::Result<()> {
    let mut result = Ok(());
    let mut is_first = true;
    parallel::ordered(
        |pieces| {
            order.chunks(PIECE).all(|piece| pieces.put(piece));
        },
        |piece: &[u32]| {
            let mut writer = EventWriter {
                timeline,
                words,
                out: Vec::with_capacity(piece.len() * EVENT_BYTES),
                job: NONE,
                job_name: String::new(),
            };
            for index in piece {
                if let Some(event) = timeline.events.get(*index as usize) {
                    writer.event(event);
                }
            }
            writer.out
        },
        |text| {
            // Each event is preceded by a comma, but the first.
            let text = match text.split_first() {
                Some((_, rest)) if is_first => rest,
                _ => &text,
            };
            is_first &= text.is_empty();
            result = out.write_all(text);
            result.is_ok()
        },
    );
    result
}

/// Adds the members of an event's arguments, with commas between them, to `out`: for other
/// formats, which have the same.
pub(super) fn arguments(timeline: &Timeline, words: Words, event: &Event, out: Vec<u8>) -> Vec<u8> {
    let mut writer = EventWriter {
        timeline,
        words,
        out,
        job: NONE,
        job_name: String::new(),
    };
    writer.arguments(event, timeline.bound_flow(event).is_some());
    let around = writer.out.starts_with(ARGUMENTS) && writer.out.pop().is_some();
    writer.out.drain(..if around { ARGUMENTS.len() } else { 0 });
    writer.out
}

/// Members of the Trace Event Format beside the arguments that are kept among these.
const OUTER: [&str; 8] = [
    "s",
    "scope",
    "tts",
    "tdur",
    "cname",
    "sf",
    "esf",
    "use_async_tts",
];

/// Whether a member of a plain trace's event is no argument.
fn is_outer(key: &str) -> bool {
    OUTER.contains(&key) || is_of_flow(key)
}

/// Whether a member names an arrow of its slice.
fn is_of_flow(key: &str) -> bool {
    BOUND_FLOW.contains(&key)
}

/// Whether an event is written as it was read.
fn is_plain(timeline: &Timeline, event: &Event) -> bool {
    timeline.dialect(event) == Dialect::Plain
}

/// Writes events to memory, which cannot fail.
struct EventWriter<'t> {
    timeline: &'t Timeline,
    words: Words,
    out: Vec<u8>,
    /// The job whose name, as JSON, is `job_name`.
    job: u32,
    job_name: String,
}

impl EventWriter<'_> {
    fn event(&mut self, event: &Event) {
        self.raw(",\n{\"ph\":\"");
        self.out.push(event.ph as u8);
        self.raw("\",\"name\":");
        self.text(self.timeline.name(event.name));
        // Counters have the member even when it is empty.
        if !event.cat.is_empty() || event.ph == Ph::Counter {
            self.raw(",\"cat\":");
            self.text(self.timeline.name(event.cat));
        }
        let track = self.timeline.track(event);
        self.id("pid", track.pid);
        // Counters belong to processes.
        if event.ph != Ph::Counter && !self.is_of_process(event) {
            self.id("tid", track.tid);
        }
        // An id that counts within its process, or for all, is an object.
        let key = match event.id {
            Id::Token(sym) if self.timeline.name(sym).starts_with('{') => "id2",
            _ => "id",
        };
        self.id(key, event.id);
        self.times(event);
        if event.binds_enclosing {
            self.raw(",\"bp\":\"e\"");
        }
        let names_arrow = self.timeline.bound_flow(event).is_some();
        if is_plain(self.timeline, event) {
            self.members(event, is_outer);
        } else if names_arrow {
            self.members(event, is_of_flow);
        } else if event.ph == Ph::Instant
            // How wide a moment is drawn; kept among the arguments too.
            && let Some(scope) = self.timeline.arg(event, "s")
        {
            self.raw(",\"s\":");
            self.raw(scope);
        }
        self.arguments(event, names_arrow);
        self.out.push(b'}');
    }

    /// Names and order of processes belong to no thread.
    fn is_of_process(&self, event: &Event) -> bool {
        event.ph == Ph::Metadata
            && self.timeline.tid(event) == Id::Number(0)
            && self.timeline.name(event.name).starts_with("process_")
    }

    fn times(&mut self, event: &Event) {
        let origin = self.timeline.origin_of(event);
        self.raw(",\"ts\":");
        let _ = write_time(&mut self.out, origin, event.start);
        if event.ph != Ph::Complete {
            return;
        }
        self.raw(",\"dur\":");
        let (from, to) = (event.start.nearest_nanos(), event.end().nearest_nanos());
        let _ = write_nanos(&mut self.out, i128::from(to) - i128::from(from));
    }

    /// Those members of an event's text that are wanted.
    fn members(&mut self, event: &Event, is_wanted: impl Fn(&str) -> bool) {
        let timeline = self.timeline;
        for (key, value) in members(timeline.texts.get(event.args)) {
            if is_wanted(key) {
                self.key(key);
                self.raw(value);
            }
        }
    }

    /// The arguments of a plain trace's event, and nothing that was found about it.
    fn plain_arguments(&mut self, event: &Event) {
        let start = self.out.len();
        self.out.extend_from_slice(ARGUMENTS);
        let open = self.out.len();
        self.members(event, |key| !is_outer(key));
        match self.out.len() == open {
            true => self.out.truncate(start),
            false => self.out.push(b'}'),
        }
    }

    /// `names_arrow`: the event has a [`Timeline::bound_flow`].
    fn arguments(&mut self, event: &Event, names_arrow: bool) {
        if is_plain(self.timeline, event) {
            return self.plain_arguments(event);
        }
        let text = self.timeline.texts.get(event.args);
        let start = self.out.len();
        self.out.extend_from_slice(ARGUMENTS);
        let open = self.out.len();
        match names_arrow {
            true => self.members(event, |key| !is_of_flow(key)),
            false => self.raw(text),
        }
        if let Some(device) = self.timeline.device(event) {
            self.device(device, event);
        }
        // What was calibrated before has all of these.
        if event.ph == Ph::Complete && !self.timeline.is_processed(event) {
            self.slice(event);
        }
        let has_rank = match event.ph {
            Ph::Instant | Ph::AsyncBegin | Ph::AsyncEnd => !text.is_empty(),
            Ph::Metadata => self.timeline.dialect(event) == Dialect::Flex,
            _ => false,
        };
        let rank = self.timeline.rank(event);
        if has_rank && rank != NONE && !self.timeline.is_processed(event) {
            self.key("rank");
            let _ = write_u64(&mut self.out, u64::from(rank));
        }
        if self.out.len() == open {
            self.out.truncate(start);
        } else {
            self.out.push(b'}');
        }
    }

    /// What every slice has.
    fn slice(&mut self, event: &Event) {
        let timeline = self.timeline;
        let track = timeline.track(event);
        if track.rank != NONE {
            self.key("rank");
            let _ = write_u64(&mut self.out, u64::from(track.rank));
        }
        if let Some(job) = timeline.jobs.get(track.job as usize) {
            self.key("jobname");
            // Neighbours are of the same job as a rule.
            if self.job != track.job {
                self.job = track.job;
                let name = format!("{}({})", job.name, job.hash);
                self.job_name = serde_json::Value::from(name).to_string();
            }
            self.out.extend_from_slice(self.job_name.as_bytes());
        }
        let class = self.words.classes.get(usize::from(event.class));
        if let Some(class) = class.filter(|class| !class.is_empty()) {
            self.key("class");
            self.text(class);
        }
        if !event.orig_name.is_empty() {
            self.key("orig_name");
            self.text(timeline.name(event.orig_name));
        }
    }

    fn device(&mut self, device: &Device, event: &Event) {
        if device.is_listed {
            // The numbers as they were read are among the arguments.
        } else {
            if device.power >= 0 {
                self.key("Power");
                self.counter(device.power, device.power_is_text);
            }
            for (key, stamp) in ["TS1", "TS2", "TS3", "TS4", "TS5"]
                .iter()
                .zip(device.stamps)
            {
                self.key(key);
                self.counter(stamp, true);
            }
        }
        if self.timeline.is_processed(event) {
            return;
        }
        if device.wrapped_at > 0 {
            self.key("TSxOF");
            self.raw("\"TS");
            self.out.push(b'0' + device.wrapped_at % 10);
            self.raw("\"");
        }
        if device.is_counted {
            self.key("OVC");
            let _ = write_i64(&mut self.out, device.epoch);
        }
        if device.adjusted != (0.0, 0.0) {
            self.key("time_adjust");
            self.raw("{\"ts\":");
            let _ = write_micros(&mut self.out, 0, device.adjusted.0);
            self.raw(",\"dur\":");
            let _ = write_micros(&mut self.out, 0, device.adjusted.1);
            self.raw("}");
        }
        if device.moved != 0.0 {
            self.key("ts_adj");
            let _ = write_micros(&mut self.out, 0, device.moved);
        }
        if event.is_refined && !device.is_listed {
            self.key("device");
            let _ = write_u64(&mut self.out, u64::from(self.timeline.rank(event)));
        }
    }

    fn counter(&mut self, value: i64, is_text: bool) {
        let quote = if is_text { "\"" } else { "" };
        self.raw(quote);
        let _ = write_i64(&mut self.out, value);
        self.raw(quote);
    }

    /// Begins a member.
    fn key(&mut self, key: &str) {
        if self.out.last() != Some(&b'{') {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.raw(key);
        self.raw("\":");
    }

    fn id(&mut self, key: &str, id: Id) {
        if !id.is_given() {
            return;
        }
        self.key(key);
        match id {
            Id::Number(number) => {
                let _ = write_i64(&mut self.out, number);
            }
            Id::Token(sym) => self.raw(self.timeline.name(sym)),
        }
    }

    fn raw(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn text(&mut self, text: &str) {
        let is_plain = text.bytes().all(|b| b >= b' ' && b != b'"' && b != b'\\');
        if is_plain {
            self.out.push(b'"');
            self.raw(text);
            self.out.push(b'"');
        } else {
            let _ = serde_json::to_writer(&mut self.out, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::json;
    use serde_json::json;

    #[test]
    fn what_was_read_is_written() {
        let input = r#"[{"ph":"X","name":"a\"b","cat":"k","pid":0,"tid":"t","ts":1751234567890123.25,
            "dur":0.5,"args":{"x":[1],"TS1":"0x1","TS2":2,"TS3":3,"TS4":4,"TS5":5,"Power":7}},
            {"ph":"s","id":9,"pid":1,"tid":2,"ts":1751234567890124,"name":"f","bp":"e"},
            {"ph":"M","pid":1,"name":"process_name","args":{"name":"x"}}]"#;
        let mut timeline = Timeline::default();
        json::read(input.as_bytes(), "d/n.json", &mut timeline).unwrap();
        let mut out = Vec::new();
        let header = Header {
            time_unit: "ns".into(),
            members: vec![("k".into(), "[1,2]".into())],
            ..Header::default()
        };
        write(&timeline, Words::default(), &header, &[0, 1, 2], &mut out).unwrap();
        let value: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["k"], json!([1, 2]));
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("\"ts\":1751234567890123.25,\"dur\":0.5"),
            "{text}"
        );
        let events = value["traceEvents"].as_array().unwrap();
        assert_eq!(
            events[0]["args"],
            json!({"x": [1], "Power": 7, "TS1": "1", "TS2": "2", "TS3": "3", "TS4": "4",
                "TS5": "5", "jobname": format!("n.json({})", timeline.jobs[0].hash)})
        );
        assert_eq!(
            events[1],
            json!({"ph": "s", "name": "f", "id": 9, "pid": 1, "tid": 2, "bp": "e",
                "ts": 1_751_234_567_890_124_u64})
        );
        assert_eq!(
            events[2],
            json!({"ph": "M", "name": "process_name", "pid": 1, "ts": 0, "args": {"name": "x"}})
        );
    }

    #[test]
    fn no_events_are_an_empty_list() {
        let mut out = Vec::new();
        let timeline = Timeline::default();
        write(
            &timeline,
            Words::default(),
            &Header::default(),
            &[],
            &mut out,
        )
        .unwrap();
        let value: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["traceEvents"], json!([]));
    }

    /// What names an arrow is a member of the slice, and no argument of it, in every dialect.
    #[test]
    fn slices_keep_the_arrows_that_they_name() {
        for cat in ["kernel", "anything"] {
            let event = json!({"ph": "X", "name": "k", "cat": cat, "pid": 1, "tid": 1, "ts": 10,
                "dur": 2, "bind_id": "0x5", "flow_in": true, "args": {"grid": [1]}});
            let mut timeline = Timeline::default();
            json::read(format!("[{event}]").as_bytes(), "d/n.json", &mut timeline).unwrap();
            let mut out = Vec::new();
            write_events(&timeline, Words::default(), &[0], &mut out).unwrap();
            let written: Value = serde_json::from_slice(&out).unwrap();
            for key in ["bind_id", "flow_in"] {
                assert_eq!(written[key], event[key], "{cat}");
                assert_eq!(written["args"][key], Value::Null, "{cat}");
            }
            assert_eq!(written["args"]["grid"], json!([1]), "{cat}");
        }
    }

    /// Ids of both kinds, bound flows, open slices and the width of moments; no arguments of ours.
    #[test]
    fn plain_traces_are_written_as_they_were_read() {
        for event in [
            r#"{"ph":"b","name":"m","cat":"c","pid":1,"tid":1,"id2":{"local":"0x1"},"ts":10}"#,
            r#"{"ph":"n","name":"m","cat":"c","pid":1,"tid":1,"id2":{"global":9},"ts":10,"args":{"x":1}}"#,
            r#"{"ph":"X","name":"f","pid":1,"tid":1,"ts":10,"dur":2,"bind_id":"0x5","flow_out":true,"args":{"a":[1]}}"#,
            r#"{"ph":"B","name":"open","pid":1,"tid":1,"ts":10}"#,
            r#"{"ph":"i","name":"i","pid":1,"tid":1,"ts":10,"s":"g"}"#,
            r#"{"ph":"X","name":"no thread","pid":0,"ts":10,"dur":1}"#,
        ] {
            let mut timeline = Timeline::default();
            json::read(format!("[{event}]").as_bytes(), "d/n.json", &mut timeline).unwrap();
            let mut out = Vec::new();
            write_events(&timeline, Words::default(), &[0], &mut out).unwrap();
            let parsed = |text: &[u8]| serde_json::from_slice::<Value>(text).unwrap();
            assert_eq!(parsed(&out), parsed(event.as_bytes()));
        }
    }
}
