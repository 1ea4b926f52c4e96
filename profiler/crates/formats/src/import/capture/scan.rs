//! Reading a capture event by event, for what keeps single events.

use super::{ImportError, Record, ReplayOptions, StoredNames, reader::file_records};
use aiprof_model::{
    profile::{Losses, Meta},
    wire::Event,
};
use aiprof_system::files::caller;
use std::{
    fs::File,
    io::{Seek as _, SeekFrom},
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
    let file = caller::open(path).map_err(|source| ImportError::Read {
        path: path.to_owned(),
        source,
    })?;
    scan_file(path, file, options, take)
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
    let mut scanned = Scanned::default();
    file_records(path, file, |record| match record {
        Record::Events(events) => events.into_iter().all(|mut event| {
            options.replay.thin(&mut event);
            take(event).is_continue()
        }),
        other => {
            scanned.keep(other, options);
            true
        }
    })?;
    Ok(scanned)
}

impl Scanned {
    /// Takes in what is no event.
    fn keep(&mut self, record: Record, options: &ScanOptions) {
        match record {
            Record::Header { meta, period_ns } => {
                (self.meta, self.period_ns) = (meta, period_ns);
            }
            Record::End { meta, losses, .. } => {
                self.meta = meta;
                self.losses = losses;
            }
            names if options.names => self.names.take(names, &options.replay),
            _ => {}
        }
    }
}
