//! The Chrome trace of a recording: what happened when, for Perfetto, speedscope and
//! Chrome's own viewer; the JSON object form of the Trace Event Format.
//!
//! * The calls and waits of a thread are spans (`X`). Its samples are a row below: spans
//!   that end at the sample and last one period. They show from afar where time went, and
//!   what a viewer adds up over a selection is CPU time. Instants would be drawn as a comb,
//!   and speedscope ignores them. The stacks of samples are in `stackFrames`.
//! * Devices have rows of their own; see [`Builder`](aiprof_record::timeline::Builder)
//!   for what there is, and `TimelineLayout` for the rows.
//!
//! Events come in order of their begin. Memory depends on how many names, tracks and
//! different stacks there are, not on how many events. What readers see of it is described
//! in `docs/output-formats.md`.

use super::names;
use crate::timeline::{Placed, RowName, TimelineLayout};
use aiprof_model::{
    json::{self, Object},
    profile::Losses,
    timeline::{
        Event, Id, Members, NONE, Ph, Time, TrackKind,
        recorded::{Recorded, StackNode, Totals},
    },
};
use aiprof_record::store::Store;
use rustc_hash::{FxHashMap, FxHashSet};
use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Write},
};

/// Longest text of a stack in bytes: frames towards the root are left out beyond it.
const MAX_STACK: usize = 64 << 10;
/// Stands for frames that there was no room for.
const LEFT_OUT: &str = "[..]";
/// Most events that wait for their turn. Only damaged recordings reach this number.
const MAX_HELD: usize = 4096;
/// Most bytes of the texts of stacks that are kept.
const MAX_TEXTS: usize = 32 << 20;

/// Writes the trace.
///
/// # Errors
/// Those of the store and of `out`.
pub fn write(recorded: &Recorded, store: Store, out: &mut dyn Write) -> io::Result<()> {
    let mut writer = ChromeWriter {
        recorded,
        out: BufWriter::with_capacity(1 << 16, out),
        layout: TimelineLayout::new(recorded),
        is_first: true,
        texts: FxHashMap::default(),
        text_bytes: 0,
        sampled: FxHashSet::default(),
        leaves: FxHashMap::default(),
        held: BTreeMap::new(),
        turn: 0,
    };
    writer.begin()?;
    store.read(&mut |event, args| writer.event(event, args))?;
    writer.end()
}

struct ChromeWriter<'a> {
    recorded: &'a Recorded,
    out: BufWriter<&'a mut dyn Write>,
    layout: TimelineLayout<'a>,
    is_first: bool,
    /// Stacks of calls as JSON texts.
    texts: FxHashMap<u32, Box<str>>,
    text_bytes: usize,
    /// Stacks of samples.
    sampled: FxHashSet<u32>,
    /// Names of their leaves.
    leaves: FxHashMap<u32, Box<str>>,
    /// Events that were set a little later than they came, by time and turn.
    held: BTreeMap<(Time, u64), String>,
    turn: u64,
}

impl ChromeWriter<'_> {
    fn begin(&mut self) -> io::Result<()> {
        self.out
            .write_all(b"{\"displayTimeUnit\":\"ns\",\n\"traceEvents\":[")?;
        self.rows()
    }

    fn line(&mut self, line: &str) -> io::Result<()> {
        let between: &[u8] = match std::mem::take(&mut self.is_first) {
            true => b"\n",
            false => b",\n",
        };
        self.out.write_all(between)?;
        self.out.write_all(line.as_bytes())
    }

    /// Names and order of new rows.
    fn rows(&mut self) -> io::Result<()> {
        for row in self.layout.take_new() {
            for line in describe(&row) {
                self.line(&line)?;
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event, args: Members<'_>) -> io::Result<()> {
        let Some(placed) = self.layout.place(event) else {
            return Ok(());
        };
        self.rows()?;
        let recorded = self.recorded;
        let track = recorded.tracks.get(event.track);
        let is_sample = track.kind == TrackKind::Samples;
        let mut line = Object::new();
        line.text("ph", event.ph.letter().encode_utf8(&mut [0; 4]));
        match is_sample {
            true => line.text("name", self.leaf(event.stack)),
            false => line.text("name", recorded.name(event.name)),
        }
        line.text("cat", recorded.name(event.cat));
        self.place(&mut line, event, placed);
        if is_sample {
            self.sampled.insert(event.stack);
            line.raw("sf", &frame_id(event.stack, 0));
        }
        if matches!(event.ph, Ph::Complete | Ph::Counter | Ph::Instant) {
            self.args(&mut line, event, args, is_sample);
        }
        self.hold(event.start, placed.start, line.end())
    }

    /// Writes an event when all that are to come begin with it or later: those that come
    /// after `now` do.
    fn hold(&mut self, now: Time, start: Time, line: String) -> io::Result<()> {
        let first = self.layout.first();
        if self.held.is_empty() && start <= now - first {
            return self.line(&line);
        }
        self.turn += 1;
        self.held.insert((start, self.turn), line);
        while let Some(entry) = self.held.first_entry()
            && (entry.key().0 <= now - first || self.held.len() > MAX_HELD)
        {
            if let Some((_, line)) = self.held.pop_first() {
                self.line(&line)?;
            }
        }
        Ok(())
    }

    fn place(&self, line: &mut Object, event: &Event, placed: Placed) {
        let ns = |picos: i64| u64::try_from(picos.div_euclid(1000)).unwrap_or(0);
        line.signed("pid", placed.pid);
        if event.ph != Ph::Counter {
            line.signed("tid", placed.tid);
        }
        line.micros("ts", ns(placed.start.0));
        if event.is_slice() {
            line.micros("dur", ns(placed.length.0));
        }
        if let Id::Number(id) = event.id {
            line.signed("id", id);
        }
        if event.binds_enclosing {
            line.text("bp", "e");
        }
    }

    /// The arguments of a span or counter, with what the event has in numbers.
    fn args(&mut self, line: &mut Object, event: &Event, args: Members<'_>, is_sample: bool) {
        let mut all = Object::new();
        let recorded = self.recorded;
        recorded.arguments(event, args, |key, value| all.value(key, value));
        if event.stack != NONE && !is_sample {
            all.raw("stack", self.stack(event.stack));
        }
        line.raw("args", &all.end());
    }

    /// The name of a stack's leaf.
    fn leaf(&mut self, stack: u32) -> &str {
        let recorded = self.recorded;
        self.leaves
            .entry(stack)
            .or_insert_with(|| leaf_name(recorded, stack).into())
    }

    /// The text of a stack as JSON: root first, frames separated by `;`.
    fn stack(&mut self, stack: u32) -> &str {
        if !self.texts.contains_key(&stack) {
            if self.text_bytes > MAX_TEXTS {
                self.texts.clear();
                self.text_bytes = 0;
            }
            let mut text = String::new();
            json::quote(&mut text, &stack_text(self.recorded, stack));
            self.text_bytes += text.len();
            self.texts.insert(stack, text.into());
        }
        self.texts.get(&stack).map_or("\"\"", |text| text)
    }

    fn end(mut self) -> io::Result<()> {
        while let Some((_, line)) = self.held.pop_first() {
            self.line(&line)?;
        }
        let recorded = self.recorded;
        let losses = self.layout.losses();
        for line in loss_marks(&losses, recorded) {
            self.line(&line)?;
        }
        self.out.write_all(b"\n],\n\"stackFrames\":{")?;
        self.frames()?;
        let other = other_data(recorded, &losses);
        writeln!(self.out, "}},\n\"otherData\":{other}}}")?;
        self.out.flush()
    }

    /// The frames of the stacks of samples.
    fn frames(&mut self) -> io::Result<()> {
        let stacks = &self.recorded.stacks;
        let mut used: FxHashSet<u32> = FxHashSet::default();
        for &stack in &self.sampled {
            for (id, _) in stacks.nodes_of(stack) {
                if !used.insert(id) {
                    break;
                }
            }
        }
        let mut used: Vec<u32> = used.into_iter().collect();
        used.sort_unstable();
        let mut is_first = true;
        for id in used {
            let Some(node) = stacks.nodes.get(id as usize) else {
                continue;
            };
            for text in frames_of(self.recorded, id, *node) {
                let between: &[u8] = if std::mem::take(&mut is_first) {
                    b"\n"
                } else {
                    b",\n"
                };
                self.out.write_all(between)?;
                self.out.write_all(text.as_bytes())?;
            }
        }
        Ok(())
    }
}

/// The name of a frame: that of its node, and how many frames of it are further in.
fn frame_id(node: u32, inner: usize) -> String {
    match inner {
        0 => format!("\"{node}\""),
        inner => format!("\"{node}.{inner}\""),
    }
}

/// The members of `stackFrames` for a node.
fn frames_of(recorded: &Recorded, id: u32, node: StackNode) -> Vec<String> {
    let stacks = &recorded.stacks;
    let count = node.len as usize;
    let frames = stacks.frames_of(&node).enumerate();
    let frames = frames.map(|(index, frame)| {
        let inner = count - 1 - index;
        let mut object = Object::new();
        let frame = stacks.frames.get(frame as usize);
        let name = frame.map_or_else(
            || names::UNKNOWN.to_owned(),
            |frame| names::suffixed(&frame.name, frame.kind),
        );
        object.text("name", &name);
        if index > 0 {
            object.raw("parent", &frame_id(id, inner + 1));
        } else if node.parent < id {
            object.raw("parent", &frame_id(node.parent, 0));
        }
        format!("{}:{}", frame_id(id, inner), object.end())
    });
    frames.collect()
}

/// The name of the frame that a stack ends in.
pub(crate) fn leaf_name(recorded: &Recorded, stack: u32) -> String {
    let leaf = recorded.stacks.leaf(stack);
    let name = leaf.map(|frame| names::suffixed(&frame.name, frame.kind));
    name.unwrap_or_else(|| names::UNKNOWN.to_owned())
}

/// The text of a stack, root first.
pub(super) fn stack_text(recorded: &Recorded, stack: u32) -> String {
    let stacks = &recorded.stacks;
    let mut parts: Vec<String> = Vec::new();
    let mut room = MAX_STACK;
    'walk: for (_, node) in stacks.nodes_of(stack) {
        for frame in stacks.frames_of(node).rev() {
            let frame = stacks.frames.get(frame as usize);
            let text = frame.map_or_else(
                || LEFT_OUT.to_owned(),
                |frame| names::suffixed(&frame.name, frame.kind),
            );
            let len = text.len() + 1;
            if room < len {
                parts.push(LEFT_OUT.to_owned());
                break 'walk;
            }
            room -= len;
            parts.push(text);
        }
    }
    parts.reverse();
    parts.join(";")
}

/// The metadata events of a process or row.
fn describe(row: &RowName) -> Vec<String> {
    let facts = row.facts().into_iter().map(|(name, members)| {
        let mut args = Object::new();
        for (key, value) in &members {
            args.raw(key, value);
        }
        let mut event = Object::new();
        event.text("ph", "M");
        event.text("name", &name);
        event.signed("pid", row.pid);
        event.signed("tid", row.tid.unwrap_or(row.pid));
        event.number("ts", 0);
        event.raw("args", &args.end());
        event.end()
    });
    facts.collect()
}

/// A mark across the whole trace for each kind of loss, at its end.
fn loss_marks(losses: &Losses, recorded: &Recorded) -> impl Iterator<Item = String> {
    let length = recorded.length_ns();
    losses.iter().map(move |(kind, count)| {
        let mut args = Object::new();
        args.number("count", count);
        let mut event = Object::new();
        event.text("ph", "i");
        event.text("s", "g");
        event.text("name", &format!("lost: {}", kind.label()));
        event.text("cat", "losses");
        event.number("pid", 0);
        event.number("tid", 0);
        event.micros("ts", length);
        event.raw("args", &args.end());
        event.end()
    })
}

/// About the recording.
pub(super) fn other_data(recorded: &Recorded, losses: &Losses) -> String {
    let about = &recorded.meta;
    let mut lost = Object::new();
    for (kind, count) in losses.iter() {
        lost.number(kind.label(), count);
    }
    let mut data = Object::new();
    data.text("version", concat!("aiprof ", env!("CARGO_PKG_VERSION")));
    for (key, text) in [
        ("title", &about.title),
        ("host", &about.host),
        ("kernel", &about.kernel),
        ("command", &about.command),
    ] {
        if !text.is_empty() {
            data.text(key, text);
        }
    }
    data.number("start_unix_ns", about.start_unix_ns);
    data.number("start_monotonic_ns", recorded.start_ns);
    data.micros("duration_us", about.duration_ns);
    data.number("cpus", about.cpus.into());
    data.number("frequency_hz", about.frequency_hz.into());
    let totals: &Totals = &recorded.totals;
    for (key, count) in [
        ("calls", totals.calls),
        ("launches", totals.launches),
        ("samples", totals.samples),
        ("waits", totals.waits),
        ("ops", totals.ops),
        ("submissions", totals.submissions),
        ("device_spans", totals.device_spans),
        ("estimated_device_spans", totals.estimated_spans),
        ("flows", totals.flows),
        ("counter_values", totals.counters),
    ] {
        data.number(key, count);
    }
    if recorded.clock_steps > 0 {
        // Times of devices near these are less certain.
        data.number("time_of_day_set", recorded.clock_steps);
    }
    data.raw("losses", &lost.end());
    data.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::{
        profile::Meta,
        wire::{self, ProcessEvent, ProcessEventKind, Trace, TracePoint},
    };
    use aiprof_record::store::Store;
    use aiprof_record::{aggregate::NoNames, timeline::Replay};
    use serde_json::Value;

    /// The events of a recording, in order.
    fn recording() -> Vec<wire::Event> {
        let point = |id, name: &str| {
            wire::Event::TracePoint(TracePoint {
                id,
                category: "dma_fence".into(),
                name: name.into(),
                values: vec!["context".into(), "seqno".into()],
                texts: vec!["driver".into(), "timeline".into()],
            })
        };
        let hit = |time_ns, point, seqno| {
            let mut values = [0; aiprof_common::TRACE_VALUES];
            values[..2].copy_from_slice(&[3, seqno]);
            wire::Event::Trace(Trace {
                time_ns,
                cpu: 0,
                pid: 70,
                tid: 71,
                point,
                values,
                texts: ["xe".into(), "rcs0\"".into()],
            })
        };
        let exec = wire::Event::Process(ProcessEvent {
            time_ns: 1000,
            pid: 70,
            tid: 70,
            kind: ProcessEventKind::Exec {
                comm: "train".into(),
            },
        });
        let (begin, end) = (0, 1);
        let mut events = vec![
            point(begin, "dma_fence_init"),
            point(end, "dma_fence_signaled"),
            exec,
        ];
        for (time, point, seqno) in [
            (2000, begin, 1),
            (3000, begin, 2),
            (4000, end, 1),
            (5000, begin, 3),
            (6000, end, 2),
            (9000, begin, 4),
            (10_000, end, 3),
        ] {
            events.push(hit(time, point, seqno));
        }
        events
    }

    #[test]
    fn a_trace_has_submissions_on_rows_of_their_queue() {
        let mut replay = Replay::new(0, false, Store::new(Box::new(tempfile::tempfile)));
        for event in recording() {
            replay.event(&event).unwrap();
        }
        let losses = Losses::default();
        let (recorded, store) = replay.finish(Meta::default(), &losses, &NoNames).unwrap();
        assert_eq!((recorded.totals.submissions, recorded.totals.calls), (4, 0));
        let mut out = Vec::new();
        write(&recorded, store, &mut out).unwrap();
        let whole: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(whole["otherData"]["submissions"], 4);
        let events = whole["traceEvents"].as_array().unwrap();
        let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        let first = spans[0]["tid"].as_u64().unwrap();
        let drawn: Vec<_> = spans
            .iter()
            .map(|span| {
                let named = (&span["name"], &span["cat"]);
                assert_eq!(named, (&"train".into(), &"submission".into()));
                let row = span["tid"].as_u64().unwrap() - first;
                let [from, length] = ["ts", "dur"].map(|key| span[key].as_f64().unwrap());
                (span["args"]["seqno"].as_u64().unwrap(), row, from, length)
            })
            .collect();
        // The last one is not done when the recording ends.
        assert_eq!(
            drawn,
            [
                (1, 0, 1.0, 2.0),
                (2, 1, 2.0, 3.0),
                (3, 0, 4.0, 5.0),
                (4, 1, 8.0, 1.0)
            ]
        );
        assert_eq!(spans[3]["args"]["end"], "not seen");
        let named = |what: &str| -> Vec<&str> {
            let lines = events.iter().filter(|event| event["name"] == what);
            lines.map(|e| e["args"]["name"].as_str().unwrap()).collect()
        };
        assert_eq!(named("process_name"), ["xe: submissions, not busy time"]);
        assert_eq!(named("thread_name"), ["rcs0\"", "rcs0\" (2)"]);
    }
}
