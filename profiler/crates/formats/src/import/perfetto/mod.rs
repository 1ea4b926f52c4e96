//! Traces of Perfetto: files of `TracePacket`s (`.pftrace`, `.perfetto-trace`), of
//! which the track events are read.
//!
//! One packet is held at a time. Tracks may be described behind their events. A begin may
//! stand behind its end, because packets of several sequences come in any order. So rows
//! and pairs are found once the file is over.

mod args;
mod clocks;
mod finish;
mod flows;
pub(super) mod frame;
mod proto;
mod reader;
mod sequence;
mod stages;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod tracks;

use super::dialects::{self, FileHeader};
use super::json::{End, Reading, job_hash};
use aiprof_model::timeline::{Begins, Event, Job, Ph, Stated, Timeline};
use frame::{Frames, Next};
use reader::PacketReader;
use std::io::{self, Read};
use thiserror::Error;

/// Why a file cannot be read at all.
#[derive(Debug, Error)]
pub enum PerfettoError {
    /// It cannot be read, or not be decompressed.
    #[error("cannot read beyond byte {offset}: {error}")]
    Io {
        /// Where.
        offset: u64,
        /// The system's error.
        error: io::Error,
    },
    /// It is empty.
    #[error("the file is empty")]
    Empty,
    /// It begins like no trace.
    #[error("not a Perfetto trace: no packet begins at byte {offset}")]
    NotATrace {
        /// Where.
        offset: u64,
    },
}

/// Reads a trace and adds it to a timeline. `path` is its name for messages and for
/// the job's; `from` its bytes, decompressed.
///
/// # Errors
/// The file has no trace in it. A damaged trace is no error: intact packets are kept,
/// and [`Reading`] lists the damage.
pub fn read(
    from: impl Read + Send,
    path: &str,
    into: &mut Timeline,
) -> Result<Reading, PerfettoError> {
    let mut frames = Frames::new(from);
    match frames.first() {
        Ok(Some(_)) => {}
        Ok(None) => return Err(PerfettoError::Empty),
        Err(error) => return Err(PerfettoError::Io { offset: 0, error }),
    }
    let start = into.events.len();
    let job = into.jobs.len() as u32;
    let mut reader = PacketReader::new(into);
    let mut packet = Vec::new();
    let mut is_empty = true;
    let end = loop {
        match frames.next(&mut packet) {
            Next::Packet(offset) => {
                is_empty = false;
                reader.packet(&packet, offset, true);
            }
            Next::Over(end) => break end,
        }
    };
    let own = reader.origin;
    let problems = reader.finish(job, start);
    let is_recording = is_recording(into, start);
    if is_recording {
        name_flows(into, start);
    }
    if is_empty && end != End::Whole {
        return Err(PerfettoError::NotATrace {
            offset: frames.offset(),
        });
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    let header = FileHeader {
        has_devices: false,
        is_recording,
        name,
    };
    let found = dialects::settle(into, start, header);
    let mut begins = Begins::default();
    let events = into.events.get(start..).unwrap_or_default();
    events.iter().for_each(|event| begins.add(event));
    into.jobs.push(Job {
        path: path.to_owned(),
        name: name.to_owned(),
        hash: job_hash(path),
        dialect: found.dialect,
        writer: found.writer,
        rank: found.rank,
        is_processed: !is_recording && is_analyzed(into, start),
        stated: Stated::default(),
        is_recording,
    });
    Ok(Reading {
        job,
        events: start..into.events.len(),
        problems,
        end,
        is_acelyzer_output: false,
        is_synthetic: false,
        day_us: None,
        base_ns: None,
        earliest: begins.first(),
        origin: own.unwrap_or(into.origin()),
    })
}

/// Gives arrows the name that they have in other formats: Perfetto's have none.
fn name_flows(timeline: &mut Timeline, start: usize) {
    let name = timeline.names.intern("ac2g");
    for event in timeline.events.get_mut(start..).unwrap_or_default() {
        if matches!(event.ph, Ph::FlowStart | Ph::FlowEnd) {
            (event.name, event.cat) = (name, name);
        }
    }
}

/// Whether an analysis wrote it: its slices have the rank and the file that they are of.
fn is_analyzed(timeline: &Timeline, start: usize) -> bool {
    let events = timeline.events.get(start..).unwrap_or_default();
    let mut slices = events.iter().filter(|event| event.is_slice());
    let has = |event: &Event, key| timeline.arg(event, key).is_some();
    slices.any(|event| has(event, "rank") && has(event, "jobname"))
}

/// Whether aiprof recorded it, which a mark shows.
fn is_recording(timeline: &Timeline, start: usize) -> bool {
    let events = timeline.events.get(start..).unwrap_or_default();
    events.iter().any(|event| {
        let is_mark = event.ph == Ph::Instant && timeline.name(event.name) == "recording";
        let version = timeline.arg(event, "version").filter(|_| is_mark);
        version.is_some_and(|version| version.starts_with("\"aiprof "))
    })
}
