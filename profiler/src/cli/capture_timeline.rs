//! The timeline of a capture.
//!
//! Events that do not fit into memory wait in temporary files that have no names: they
//! are gone with this process, however that ends.

use aiprof_model::timeline::recorded::Recorded;
use aiprof_record::capture::{self, CaptureItem, ReplayOptions};
use aiprof_record::store::Store;
use aiprof_record::timeline::{CommandDetail, Replay};
use aiprof_system::files::{caller, directory::Directory};
use anyhow::{Context, Result};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

/// Opens a capture.
///
/// # Errors
/// It cannot be read.
pub(crate) fn open(path: &Path) -> Result<File> {
    caller::open(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The timeline of a capture: its events in order of time, and what they refer to.
/// `path` is its name for messages, `detail` what of devices' commands is wanted; temporary
/// files go to `directory`, if not where the system has them.
///
/// # Errors
/// A file could not be read or written.
pub(crate) fn timeline(
    path: &Path,
    file: File,
    options: ReplayOptions,
    detail: CommandDetail,
    directory: Option<&Directory>,
) -> Result<(Recorded, Store)> {
    let mut store = Some(store(directory));
    let mut replay: Option<Replay<Store>> = None;
    let wakers = options.waits.is_some_and(|waits| waits.wakers);
    let mut failed = None;
    let scanned = capture::scan_file(path, file, options, &mut |scan| {
        let taken = match scan {
            CaptureItem::Period(period_ns) => {
                let begin = |store| Replay::new(period_ns, wakers, store).with_commands(detail);
                replay = store.take().map(begin);
                Ok(())
            }
            CaptureItem::Event(event) => replay
                .as_mut()
                .map_or(Ok(()), |replay| replay.event(&event)),
        };
        match taken {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    let finished = match (failed, replay) {
        (Some(error), _) => Err(error),
        (None, Some(replay)) => replay.finish(scanned.meta, &scanned.losses, &scanned.names),
        (None, None) => Err(io::ErrorKind::InvalidData.into()),
    };
    finished.context("cannot store the events of the recording")
}

/// Where events wait; temporary files go to `directory`, if not where the system has them.
pub(crate) fn store(directory: Option<&Directory>) -> Store {
    let directory = directory.cloned();
    Store::new(Box::new(move || temporary(directory.as_ref())))
}

/// A file for what does not fit into memory.
///
/// # Errors
/// There is no place for one.
pub(crate) fn temporary(directory: Option<&Directory>) -> io::Result<File> {
    match directory.map(Directory::scratch) {
        Some(Ok(file)) => Ok(file),
        Some(Err(_)) | None => caller::scratch(),
    }
}
