//! Reads Chrome traces, and checks what every one must fulfil.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::Value;

/// Added by aiprof to a thread's number for the track of its samples.
pub const SAMPLES: u64 = 2_000_000_000;

/// A complete event.
#[derive(Clone, Debug)]
pub struct Span {
    /// Name.
    pub name: String,
    /// Category.
    pub category: String,
    /// Process id.
    pub pid: u64,
    /// Thread id, or the number of a track.
    pub tid: u64,
    /// Begin, ns since the recording's.
    pub start: u64,
    /// End, likewise.
    pub end: u64,
    /// Arguments.
    pub args: Value,
    /// Stack of a sample: root first, frames separated by `;`.
    pub stack: String,
}

/// A trace.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Complete events, in the order of the file.
    pub spans: Vec<Span>,
    /// All other events.
    pub others: Vec<Value>,
    /// About the recording.
    pub about: Value,
}

impl Trace {
    /// Reads a file, `.gz` or not.
    ///
    /// # Errors
    /// When it cannot be read, is no trace, or breaks a rule of [`Self::check`].
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let mut bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        if path.extension().is_some_and(|e| e == "gz") {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(bytes.as_slice()).read_to_end(&mut plain)?;
            bytes = plain;
        }
        let trace = Self::parse(&bytes)?;
        trace.check()?;
        Ok(trace)
    }

    /// Reads the text of a trace.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let mut whole: Value = serde_json::from_slice(bytes).context("not JSON")?;
        ensure!(whole["displayTimeUnit"] == "ns", "displayTimeUnit");
        let events = whole["traceEvents"].take();
        let Value::Array(events) = events else {
            anyhow::bail!("no traceEvents");
        };
        let (mut spans, mut others) = (Vec::new(), Vec::new());
        let frames = whole["stackFrames"].take();
        for event in events {
            if event["ph"] == "X" {
                let mut span = span(&event).with_context(|| event.to_string())?;
                if !event["sf"].is_null() {
                    span.stack = stack(&frames, &event["sf"])?;
                }
                spans.push(span);
            } else {
                others.push(event);
            }
        }
        Ok(Self {
            spans,
            others,
            about: whole["otherData"].take(),
        })
    }

    /// Whether spans are in the order of time, and on each track properly nested,
    /// parents first.
    ///
    /// # Errors
    /// When not; the span is named.
    pub fn check(&self) -> anyhow::Result<()> {
        let mut open: BTreeMap<(u64, u64), Vec<u64>> = BTreeMap::new();
        let mut last = 0;
        for span in &self.spans {
            ensure!(span.start >= last, "not in order: {span:?}");
            last = span.start;
            let around = open.entry((span.pid, span.tid)).or_default();
            while around.last().is_some_and(|&end| end <= span.start) {
                around.pop();
            }
            let fits = around.last().is_none_or(|&end| span.end <= end);
            ensure!(fits, "not nested: {span:?} in {around:?}");
            around.push(span.end);
        }
        Ok(())
    }

    /// The spans of calls.
    pub fn calls(&self) -> impl Iterator<Item = &Span> {
        let others = ["sample", "submission", "wait"];
        self.spans
            .iter()
            .filter(move |span| !others.contains(&span.category.as_str()))
    }

    /// What devices did, for operations whose times are known.
    #[must_use]
    pub fn device_spans(&self) -> Vec<&Span> {
        let categories = ["kernel", "gpu_memcpy", "gpu_memset"];
        let is_device = |span: &&Span| categories.contains(&span.category.as_str());
        self.spans.iter().filter(is_device).collect()
    }

    /// The spans of submissions to devices.
    pub fn submissions(&self) -> impl Iterator<Item = &Span> {
        self.spans
            .iter()
            .filter(|span| span.category == "submission")
    }

    /// CLOCK_MONOTONIC at the recording's begin, ns.
    ///
    /// # Errors
    /// When the trace does not contain it.
    pub fn start_ns(&self) -> anyhow::Result<u64> {
        number(&self.about["start_monotonic_ns"])
    }

    /// The name that a metadata event gives a process (`tid` `None`) or a track.
    #[must_use]
    pub fn name(&self, pid: u64, tid: Option<u64>) -> Option<&str> {
        let what = match tid {
            None => "process_name",
            Some(_) => "thread_name",
        };
        let found = self.others.iter().find(|event| {
            event["ph"] == "M"
                && event["name"] == what
                && event["pid"] == pid
                && tid.is_none_or(|tid| event["tid"] == tid)
        });
        found?["args"]["name"].as_str()
    }
}

/// A number, or a text that is one since JavaScript could not hold it.
///
/// # Errors
/// When it is neither.
pub fn number(value: &Value) -> anyhow::Result<u64> {
    let text = || value.as_str()?.parse().ok();
    value.as_u64().or_else(text).context("no number")
}

fn span(event: &Value) -> anyhow::Result<Span> {
    let text = |key: &str| event[key].as_str().map(str::to_owned).context("no text");
    // Nanoseconds are decimals of a double that holds them exactly for 100 days.
    let time = |key: &str| -> anyhow::Result<u64> {
        let micros = event[key].as_f64().context("no time")?;
        ensure!(micros >= 0.0, "{key} is negative");
        Ok((micros * 1000.0).round() as u64)
    };
    let start = time("ts")?;
    Ok(Span {
        name: text("name")?,
        category: text("cat")?,
        pid: number(&event["pid"])?,
        tid: number(&event["tid"])?,
        start,
        end: start + time("dur")?,
        args: event["args"].clone(),
        stack: String::new(),
    })
}

/// The stack that ends in a member of `stackFrames`.
fn stack(frames: &Value, leaf: &Value) -> anyhow::Result<String> {
    let mut names = Vec::new();
    let mut next = leaf;
    while let Some(id) = next.as_str() {
        let frame = &frames[id];
        names.push(
            frame["name"]
                .as_str()
                .with_context(|| format!("no frame {id}"))?,
        );
        ensure!(names.len() < 10_000, "a stack without an end");
        next = &frame["parent"];
    }
    names.reverse();
    Ok(names.join(";"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(spans: &[(u64, u64)]) -> Trace {
        let events = spans.iter().map(|(ts, dur)| {
            let (ts, dur) = (*ts as f64, *dur as f64);
            serde_json::json!({"ph": "X", "name": "n", "cat": "c", "pid": 1, "tid": 2,
                "ts": ts, "dur": dur, "args": {}})
        });
        let events: Vec<_> = events.collect();
        let whole = serde_json::json!({"displayTimeUnit": "ns", "traceEvents": events});
        Trace::parse(whole.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn wrong_traces_are_found() {
        assert!(trace(&[(0, 10), (0, 5), (5, 5), (10, 1)]).check().is_ok());
        assert!(trace(&[(1, 1), (0, 1)]).check().is_err());
        assert!(trace(&[(0, 5), (4, 2)]).check().is_err());
        assert!(trace(&[(0, 5), (0, 10)]).check().is_err());
        assert!(Trace::parse(b"[]").is_err() && Trace::parse(b"{").is_err());
    }
}
