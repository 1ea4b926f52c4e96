//! Reading a capture event by event, for what keeps single events.

use super::{
    ImportError, Record, ReplayOptions, StoredNames, open, open_file, read_record, warn_if_cut,
};
use crate::{
    profile::{Losses, Meta},
    wire::Event,
};
use std::{
    fs::File,
    io::{Read, Seek as _, SeekFrom},
    ops::ControlFlow,
    path::Path,
};

/// How to read a capture.
#[derive(Clone, Copy, Debug)]
pub struct ScanOptions {
    /// What is left out of events and names; `launches` means nothing here.
    pub replay: ReplayOptions,
    /// Keep the names of code: the larger part of [`Scanned`], and the same each time.
    pub names: bool,
}

/// What a capture holds besides events.
#[derive(Debug, Default)]
pub struct Scanned {
    /// About the recording.
    pub meta: Meta,
    /// On-CPU nanoseconds of a sample; 0: samples are of a hardware counter.
    pub period_ns: u64,
    /// Names of code.
    pub names: StoredNames,
    /// What was lost while recording, but for what shows in the events.
    pub losses: Losses,
}

/// Reads a capture, giving each event to `take` in time order until that breaks.
/// A capture that is cut off or damaged gives what is whole, with a warning.
///
/// # Errors
/// [`ImportError`] names the file and what is wrong with it.
pub fn scan(
    path: &Path,
    options: &ScanOptions,
    take: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> Result<Scanned, ImportError> {
    scan_file(path, open_file(path)?, options, take)
}

/// [`scan`] of an open file, from its start; `path` is for messages.
///
/// # Errors
/// As [`scan`].
pub fn scan_file(
    path: &Path,
    mut file: File,
    options: &ScanOptions,
    take: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> Result<Scanned, ImportError> {
    file.seek(SeekFrom::Start(0))
        .map_err(|source| ImportError::Read {
            path: path.to_owned(),
            source,
        })?;
    let stream = open(path, file)?;
    let (scanned, problem) = scan_stream(stream, *options, take)
        .ok_or_else(|| ImportError::Headless(path.to_owned()))?;
    warn_if_cut(path, problem);
    Ok(scanned)
}

/// Reads a record stream; `None` if there is no header. The second value says what
/// cut the stream short, if anything did.
fn scan_stream(
    mut stream: impl Read,
    options: ScanOptions,
    take: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> Option<(Scanned, Option<String>)> {
    let Ok(Some(Record::Header { meta, period_ns })) = read_record(&mut stream) else {
        return None;
    };
    let mut scanned = Scanned {
        meta,
        period_ns,
        ..Scanned::default()
    };
    let mut ended = false;
    let problem = loop {
        match read_record(&mut stream) {
            Ok(Some(Record::Events(events))) => {
                for mut event in events {
                    options.replay.thin(&mut event);
                    if take(event).is_break() {
                        return Some((scanned, None));
                    }
                }
            }
            Ok(Some(record)) => ended |= scanned.keep(record, options),
            Ok(None) => break (!ended).then(|| "it ends too early".to_owned()),
            Err(error) => break Some(error.to_string()),
        }
    };
    Some((scanned, problem))
}

impl Scanned {
    /// Takes in what is no event; returns whether it is the end mark.
    fn keep(&mut self, record: Record, options: ScanOptions) -> bool {
        match record {
            Record::Names(names) if options.names => {
                self.names.take(names, options.replay.inlines);
            }
            Record::Text { file, segments } if options.names => {
                self.names.texts.insert(file, segments);
            }
            Record::Cgroup { id, path } if options.names => {
                self.names.cgroups.insert(id, path);
            }
            Record::End { meta, losses, .. } => {
                self.meta = meta;
                self.losses = losses;
                return true;
            }
            _ => {}
        }
        false
    }
}
