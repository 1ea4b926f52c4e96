//! Profiles of JAX and TensorFlow, `*.xplane.pb`: an `XSpace`, a list of planes.
//!
//! A plane is held at a time. Its lines become events of the Trace Event Format, as the tools of
//! these frameworks show them, and are read like any other of them.

mod proto;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use super::json::{self, End, JsonError, Reading, Trouble};
use super::perfetto::frame::{Frames, Next};
use aiprof_model::json::quote;
use aiprof_model::timeline::{Stretch, Timeline};
use prost::Message as _;
use proto::{Line, NamedEntry, NamedMetadata, Plane, Stat, XEvent};
use rustc_hash::FxHashMap;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

/// Longest plane, bytes.
const MAX_PLANE: u64 = 512 << 20;

/// Whether a file begins as an `XSpace` does: with a plane that has a name. A trace of
/// Perfetto, which is a list too, has no such field there.
pub(super) fn is_xspace(head: &[u8]) -> bool {
    let field = |bytes: &[u8], key: u8| -> Option<usize> {
        let rest = bytes.strip_prefix(&[key])?;
        let len = rest.iter().position(|byte| *byte < 0x80)?;
        Some(len + 2)
    };
    let Some(mut plane) = field(head, 0x0a).and_then(|at| head.get(at..)) else {
        return false;
    };
    // The plane's number.
    if let Some(at) = field(plane, 0x08) {
        plane = plane.get(at..).unwrap_or_default();
    }
    let name = field(plane, 0x12).and_then(|at| plane.get(at..));
    let starts = [&b"/host:"[..], b"/device:", b"#Chip", b"Task Environment"];
    name.is_some_and(|name| starts.iter().any(|start| name.starts_with(start)))
}

/// Reads a profile and adds it to a timeline, but for what is outside of a stretch of time.
/// `path` is its name for messages and for the job's; `from` its bytes, decompressed.
///
/// # Errors
/// There is no plane with events in it. A damaged file is no error: intact planes are kept, and
/// [`Reading`] lists the damage.
pub fn read(
    from: impl Read + Send,
    path: &str,
    kept: Stretch,
    into: &mut Timeline,
) -> Result<Reading, JsonError> {
    let outcome = Arc::new(Mutex::new(PlanesOutcome {
        end: End::Whole,
        bad: None,
    }));
    let text = PlaneText {
        frames: Frames::with_limit(from, MAX_PLANE),
        plane: None,
        planes: 0,
        text: b"[".to_vec(),
        at: 0,
        is_over: false,
        outcome: Arc::clone(&outcome),
    };
    let mut reading = json::read_within(text, path, kept, into)?;
    let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
    reading.end = outcome.end.clone();
    if let Some(offset) = outcome.bad {
        reading.problems.add(Trouble::BadPacket, offset);
    }
    Ok(reading)
}

/// How the reading of planes went.
struct PlanesOutcome {
    end: End,
    /// Where the first plane that cannot be decoded is.
    bad: Option<u64>,
}

/// A plane on its way.
struct OpenPlane {
    number: u64,
    lines: std::vec::IntoIter<Line>,
    events: FxHashMap<i64, NamedMetadata>,
    stats: FxHashMap<i64, NamedMetadata>,
}

/// Planes as the text of a list of events.
struct PlaneText<R> {
    frames: Frames<R>,
    plane: Option<OpenPlane>,
    planes: u64,
    text: Vec<u8>,
    /// What of the text was given.
    at: usize,
    is_over: bool,
    outcome: Arc<Mutex<PlanesOutcome>>,
}

impl<R: Read> Read for PlaneText<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at == self.text.len() && !self.is_over {
            self.text.clear();
            self.at = 0;
            self.more();
        }
        let rest = self.text.get(self.at..).unwrap_or_default();
        let len = rest.len().min(out.len());
        if let (Some(to), Some(from)) = (out.get_mut(..len), rest.get(..len)) {
            to.copy_from_slice(from);
        }
        self.at += len;
        Ok(len)
    }
}

impl<R: Read> PlaneText<R> {
    /// The text of the next line, or of the next plane's name.
    fn more(&mut self) {
        if let Some(plane) = &mut self.plane {
            let mut out = String::new();
            match plane.lines.next() {
                Some(line) => plane.line(&line, &mut out),
                None => self.plane = None,
            }
            self.text = out.into_bytes();
            return;
        }
        let mut bytes = Vec::new();
        match self.frames.next(&mut bytes) {
            Next::Packet(offset) => match Plane::decode(&bytes[..]) {
                Ok(plane) => self.begin(plane),
                Err(_) => self.note(|outcome| {
                    outcome.bad.get_or_insert(offset);
                }),
            },
            Next::Over(end) => {
                self.is_over = true;
                self.text = b"]".to_vec();
                self.note(|outcome| outcome.end = end);
            }
        }
    }

    fn note(&self, change: impl FnOnce(&mut PlanesOutcome)) {
        change(&mut self.outcome.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn begin(&mut self, plane: Plane) {
        self.planes += 1;
        let named = |entries: Vec<NamedEntry>| {
            let entries = entries.into_iter();
            entries
                .filter_map(|entry| Some((entry.key, entry.value?)))
                .collect()
        };
        let mut out = String::new();
        if !plane.lines.is_empty() {
            name_row(&mut out, "process", self.planes, None, &plane.name);
        }
        self.text = out.into_bytes();
        self.plane = Some(OpenPlane {
            number: self.planes,
            lines: plane.lines.into_iter(),
            events: named(plane.events),
            stats: named(plane.stats),
        });
    }
}

/// Adds the event that names a process or thread.
fn name_row(out: &mut String, what: &str, pid: u64, tid: Option<i64>, name: &[u8]) {
    let _ = write!(out, "{{\"ph\":\"M\",\"name\":\"{what}_name\",\"pid\":{pid}");
    if let Some(tid) = tid {
        let _ = write!(out, ",\"tid\":{tid}");
    }
    out.push_str(",\"args\":{\"name\":");
    quote(out, &String::from_utf8_lossy(name));
    out.push_str("}},\n");
}

impl OpenPlane {
    /// Adds the name and the events of a line.
    fn line(&self, line: &Line, out: &mut String) {
        let tid = match line.display_id {
            0 => line.id,
            id => id,
        };
        let named = [&line.display_name, &line.name];
        if let Some(name) = named.into_iter().find(|name| !name.is_empty()) {
            name_row(out, "thread", self.number, Some(tid), name);
        }
        for event in line
            .events
            .iter()
            .filter(|event| event.occurrences.is_none())
        {
            self.event(line, tid, event, out);
        }
    }

    fn event(&self, line: &Line, tid: i64, event: &XEvent, out: &mut String) {
        let begin = i128::from(line.timestamp_ns) * 1000 + i128::from(event.offset_ps.unwrap_or(0));
        let (pid, length) = (self.number, i128::from(event.duration_ps.max(0)));
        let _ = write!(out, "{{\"ph\":\"X\",\"pid\":{pid},\"tid\":{tid},\"ts\":");
        write_ps(out, begin);
        out.push_str(",\"dur\":");
        write_ps(out, length);
        out.push_str(",\"name\":");
        let known = self.events.get(&event.metadata_id);
        let named = known.map(|known| [&known.display, &known.name]);
        let mut named = named.into_iter().flatten();
        let name = named.find(|name| !name.is_empty());
        quote(
            out,
            &String::from_utf8_lossy(name.map_or(&[], Vec::as_slice)),
        );
        let mut open = ",\"args\":{";
        for stat in &event.stats {
            let Some(key) = self.stats.get(&stat.metadata_id) else {
                continue;
            };
            out.push_str(open);
            open = ",";
            quote(out, &String::from_utf8_lossy(&key.name));
            out.push(':');
            self.value(stat, out);
        }
        out.push_str(if open == "," { "}},\n" } else { "},\n" });
    }

    fn value(&self, stat: &Stat, out: &mut String) {
        let reference = || self.stats.get(&i64::try_from(stat.reference?).ok()?);
        if let Some(text) = &stat.text {
            quote(out, &String::from_utf8_lossy(text));
        } else if let Some(text) = reference() {
            quote(out, &String::from_utf8_lossy(&text.name));
        } else if let Some(number) = stat.int {
            let _ = write!(out, "{number}");
        } else if let Some(number) = stat.uint {
            let _ = write!(out, "{number}");
        } else if let Some(number) = stat.double.filter(|number| number.is_finite()) {
            let _ = write!(out, "{number:?}");
        } else {
            out.push_str("null");
        }
    }
}

/// Writes picoseconds as microseconds.
fn write_ps(out: &mut String, ps: i128) {
    let sign = if ps < 0 { "-" } else { "" };
    let ps = ps.unsigned_abs();
    let _ = write!(out, "{sign}{}.{:06}", ps / 1_000_000, ps % 1_000_000);
}
