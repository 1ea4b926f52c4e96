//! Reading a capture event by event, for what keeps single events.

use super::{CaptureRecord, ImportError, ReplayOptions, StoredNames, reader::records_ahead};
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

/// What a capture gives on the way.
#[derive(Debug)]
pub enum CaptureItem {
    /// On-CPU nanoseconds of a CPU sample, before all events; 0: samples are of a hardware
    /// counter, and it is not known.
    Period(u64),
    /// An event, in order of time.
    Event(Event),
}

/// What a capture holds besides events.
#[derive(Debug, Default)]
pub struct Scanned {
    /// About the recording.
    pub meta: Meta,
    /// Names of code.
    pub names: StoredNames,
    /// What was lost while recording, but for what shows in the events.
    pub losses: Losses,
}

/// Reads a capture, giving what is in it to `take` in time order until that breaks.
/// A capture that is cut off or damaged gives what is whole, with a warning.
///
/// # Errors
/// [`ImportError`] names the file and what is wrong with it.
pub fn scan(
    path: &Path,
    options: ReplayOptions,
    take: &mut dyn FnMut(CaptureItem) -> ControlFlow<()>,
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
    options: ReplayOptions,
    take: &mut dyn FnMut(CaptureItem) -> ControlFlow<()>,
) -> Result<Scanned, ImportError> {
    file.seek(SeekFrom::Start(0))
        .map_err(|source| ImportError::Read {
            path: path.to_owned(),
            source,
        })?;
    let mut scanned = Scanned::default();
    records_ahead(path, file, |record| match record {
        CaptureRecord::Events(events) => events.into_iter().all(|mut event| {
            options.thin(&mut event);
            take(CaptureItem::Event(event)).is_continue()
        }),
        CaptureRecord::Header { meta, period_ns } => {
            let known = match period_ns {
                0 => meta.period_ns,
                fixed => fixed,
            };
            scanned.meta = meta;
            take(CaptureItem::Period(known)).is_continue()
        }
        other => {
            scanned.keep(other, options);
            true
        }
    })?;
    Ok(scanned)
}

impl Scanned {
    /// Takes in what is no event.
    fn keep(&mut self, record: CaptureRecord, options: ReplayOptions) {
        match record {
            CaptureRecord::End { meta, losses, .. } => {
                self.meta = meta;
                self.losses = losses;
            }
            names => self.names.take(names, &options),
        }
    }
}
