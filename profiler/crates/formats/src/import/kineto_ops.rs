//! The operators in a trace of Kineto that a recording asked for.
//!
//! Only the spans of operators and annotations are taken: calls of runtimes and what
//! devices did are in the recording itself. Times are microseconds since
//! `baseTimeNanoseconds`, of CLOCK_REALTIME. Source: kineto 114171df,
//! libkineto/src/output_json.cpp.

use super::json::{self, BASE, JsonError};
use aiprof_model::timeline::{Ph, Timeline};
use aiprof_model::wire::ops::MAX_SPANS;
use aiprof_model::wire::{ClockPair, OpKind, OpSpan, OpsPart, OpsRead};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;
use std::io::Read;

/// Most spans of a window.
pub const MAX_WINDOW: usize = 1 << 20;
/// Most threads of a window.
const MAX_THREADS: usize = 4096;
/// Most bytes of a name or of shapes; what is longer is cut.
const MAX_TEXT: usize = 512;
/// The argument with the shapes of an operator's inputs.
const SHAPES: &str = "Input Dims";

/// Why a trace has no operators to read.
#[derive(Debug, thiserror::Error)]
pub enum OpsError {
    /// It is no trace.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// Its times cannot be placed.
    #[error("it has no {BASE}")]
    NoClock,
}

/// Reads the operators of a trace. `clock`: both clocks, read when the window was over;
/// `tid`: the thread of a trace's number, `None` if it is none.
///
/// # Errors
/// The text has no trace in it, or does not give the time from which its times count. What
/// is damaged is left out.
pub fn read_ops(
    from: impl Read + Send,
    clock: &ClockPair,
    tid: impl Fn(i64) -> Option<u32>,
) -> Result<OpsRead, OpsError> {
    let mut timeline = Timeline::default();
    json::read(from, "operators", &mut timeline)?;
    let base = timeline.metadata.iter().find(|(key, _)| key == BASE);
    let base: i64 = base
        .and_then(|(_, text)| text.parse().ok())
        .ok_or(OpsError::NoClock)?;
    // Where the trace's times begin, CLOCK_MONOTONIC nanoseconds.
    let ahead = i128::from(clock.unix_ns) - i128::from(clock.time_ns);
    let origin = i128::from(base) + i128::from(timeline.origin()) * 1000 - ahead;
    let mut read = OpsRead::default();
    let mut writer = PartWriter::default();
    let mut threads = FxHashSet::default();
    let events = std::mem::take(&mut timeline.events);
    for event in events.iter().filter(|event| event.ph == Ph::Complete) {
        let Some(kind) = OpKind::of_category(timeline.name(event.cat)) else {
            continue;
        };
        let thread = timeline.tid(event).number().and_then(&tid);
        let has_room = |tid: &u32| threads.len() < MAX_THREADS || threads.contains(tid);
        let thread = thread.filter(has_room);
        let begin = u64::try_from(origin + i128::from(event.start.nearest_nanos())).ok();
        let length = u64::try_from(event.length.nanos()).ok();
        let known = thread.zip(begin).zip(length);
        let Some(((tid, begin_ns), length_ns)) = known.filter(|_| read.spans < MAX_WINDOW as u64)
        else {
            read.refused += 1;
            continue;
        };
        read.spans += 1;
        threads.insert(tid);
        let number = |key| timeline.arg(event, key).and_then(|text| text.parse().ok());
        let shapes = timeline
            .arg(event, SHAPES)
            .filter(|_| kind == OpKind::Operator);
        let span = OpSpan {
            tid,
            kind,
            name: writer.text(timeline.name(event.name)),
            shapes: shapes.map(|shapes| writer.text(shapes)),
            begin_ns,
            length_ns,
            sequence: number("Sequence number"),
            forward_thread: number("Fwd thread id").filter(|&thread: &u64| thread != 0),
        };
        writer.part.spans.push(span);
        if writer.part.spans.len() >= MAX_SPANS {
            read.parts.push(writer.take());
        }
    }
    let mut last = writer.take();
    last.is_last = true;
    last.refused = read.refused;
    read.parts.push(last);
    Ok(read)
}

/// Makes a part, each text once.
#[derive(Default)]
struct PartWriter {
    part: OpsPart,
    index: FxHashMap<String, u32>,
}

impl PartWriter {
    fn text(&mut self, text: &str) -> u32 {
        let text = shorter(text);
        if let Some(&known) = self.index.get(text.as_ref()) {
            return known;
        }
        let new = self.part.texts.len() as u32;
        self.part.texts.push(text.to_string());
        self.index.insert(text.into_owned(), new);
        new
    }

    fn take(&mut self) -> OpsPart {
        self.index.clear();
        std::mem::take(&mut self.part)
    }
}

/// A text of at most [`MAX_TEXT`] bytes and a mark.
fn shorter(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_TEXT {
        return text.into();
    }
    let end = (0..=MAX_TEXT).rev().find(|&at| text.is_char_boundary(at));
    let kept = text.get(..end.unwrap_or(0)).unwrap_or_default();
    format!("{kept}...").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as torch 2.15 wrote them (names and numbers changed).
    const TRACE: &str = r#"{
  "schemaVersion": 1, "deviceProperties": [],
  "displayTimeUnit": "ms", "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
  { "ph": "X", "cat": "user_annotation", "name": "my_step", "pid": 819, "tid": 820,
    "ts": 4812302656763.973, "dur": 13836.582,
    "args": { "External id": 1, "Record function id": 0, "Ev Idx": 0 } },
  { "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 819, "tid": 820,
    "ts": 4812302656897.171, "dur": 3910.408,
    "args": { "External id": 2,"Sequence number": 7, "Fwd thread id": 0,
              "Input Dims": [[512, 512], [512, 256]], "Ev Idx": 1 } },
  { "ph": "X", "cat": "cpu_op", "name": "MmBackward0", "pid": 819, "tid": 821,
    "ts": 4812302660000.000, "dur": 5.000,
    "args": { "Sequence number": 7, "Fwd thread id": 1, "Ev Idx": 2 } },
  { "ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 819, "tid": 99,
    "ts": 4812302660000.000, "dur": 5.000, "args": {} },
  { "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7,
    "ts": 4812302660000.000, "dur": 5.000, "args": {} },
  { "ph": "s", "id": 3, "pid": 819, "tid": 820, "ts": 4812302656897.171,
    "cat": "fwdbwd", "name": "fwdbwd" } ],
  "traceName": "/tmp/x.json" }"#;

    /// `baseTimeNanoseconds` + 4812302656763.973 us are 1795669328656763973 ns since 1970.
    const ANNOTATION_UNIX_NS: u64 = 1_795_669_328_656_763_973;

    fn read(text: &str) -> Result<OpsRead, OpsError> {
        let clock = ClockPair {
            unix_ns: ANNOTATION_UNIX_NS,
            time_ns: 5_000_000_000,
        };
        let tid = |tid| u32::try_from(tid).ok().filter(|&tid| tid != 99);
        read_ops(text.as_bytes(), &clock, tid)
    }

    #[test]
    fn operators_and_annotations_have_host_times() {
        let read = read(TRACE).unwrap();
        assert_eq!((read.spans, read.refused, read.parts.len()), (3, 1, 1));
        let part = &read.parts[0];
        assert!(part.is_last);
        let of = |span: &OpSpan| {
            let shapes = span.shapes.map(|shapes| part.text(shapes).to_owned());
            let name = part.text(span.name).to_owned();
            (name, span.tid, span.begin_ns, span.length_ns, shapes)
        };
        let found: Vec<_> = part.spans.iter().map(of).collect();
        let shapes = Some("[[512, 512], [512, 256]]".to_owned());
        let begin = 5_000_000_000;
        let expected: Vec<(String, u32, u64, u64, Option<String>)> = vec![
            ("my_step".to_owned(), 820, begin, 13_836_582, None),
            (
                "aten::mm".to_owned(),
                820,
                begin + 133_198,
                3_910_408,
                shapes,
            ),
            (
                "MmBackward0".to_owned(),
                821,
                begin + 3_236_027,
                5_000,
                None,
            ),
        ];
        assert_eq!(found, expected);
        let kinds: Vec<_> = part.spans.iter().map(|span| span.kind).collect();
        assert_eq!(kinds[..2], [OpKind::Annotation, OpKind::Operator]);
        let links: Vec<_> = part
            .spans
            .iter()
            .map(|s| (s.sequence, s.forward_thread))
            .collect();
        assert_eq!(links, [(None, None), (Some(7), None), (Some(7), Some(1))]);
    }

    #[test]
    fn long_windows_come_in_parts_and_long_texts_are_cut() {
        let name = "é".repeat(MAX_TEXT);
        let event = format!(
            r#"{{"ph":"X","cat":"cpu_op","name":"{name}","pid":1,"tid":2,"ts":1.0,"dur":1.0}}"#
        );
        let events = vec![event; MAX_SPANS + 1].join(",");
        let text =
            format!(r#"{{"baseTimeNanoseconds": {ANNOTATION_UNIX_NS}, "traceEvents":[{events}]}}"#);
        let read = read(&text).unwrap();
        let lens: Vec<_> = read.parts.iter().map(|part| part.spans.len()).collect();
        assert_eq!(lens, [MAX_SPANS, 1]);
        let lasts: Vec<_> = read.parts.iter().map(|part| part.is_last).collect();
        assert_eq!(lasts, [false, true]);
        let text = &read.parts[1].texts[0];
        assert!(
            text.len() <= MAX_TEXT + 3 && text.ends_with("é..."),
            "{text}"
        );
    }

    #[test]
    fn what_is_no_trace_is_refused_and_damage_left_out() {
        assert!(matches!(read("no trace"), Err(OpsError::Json(_))));
        let without = TRACE.replace("baseTimeNanoseconds", "otherTime");
        assert!(matches!(read(&without), Err(OpsError::NoClock)));
        // Before the machine's start.
        let early = TRACE.replace("1790857026000000000", "790857026000000000");
        let early = read(&early).unwrap();
        assert_eq!((early.spans, early.refused), (0, 4));
        for len in 0..TRACE.len() {
            if TRACE.is_char_boundary(len) {
                let _ = read(&TRACE[..len]);
            }
        }
    }
}
