//! From a recording or a capture to a trace.
//!
//! Events that do not fit into memory wait in temporary files that have no names: they
//! are gone with this process, however that ends.

use super::analyze;
use super::output::OutputFile;
use aiprof_analysis::timeline::Replay;
use aiprof_formats::export::{Format, chrome, html, perfetto::recording};
use aiprof_formats::import::capture::{self, ReplayOptions, Scan};
use aiprof_formats::timeline::Store;
use aiprof_model::timeline::recorded::{Recorded, Totals};
use aiprof_system::files::{caller, directory::Directory};
use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};
use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;

/// Where a trace goes, and as what.
#[derive(Debug)]
pub(crate) struct TraceOut {
    /// A file, compressed if its name ends in `.gz`; `None`: stdout, not compressed.
    file: Option<OutputFile>,
    format: Format,
}

impl TraceOut {
    /// To a file, or to stdout.
    pub(crate) fn new(file: Option<OutputFile>, format: Format) -> Self {
        Self { file, format }
    }
}

impl TraceOut {
    /// Where the events of the recording wait until the trace is written: in the directory
    /// of the output, where there should be room for them; where there is no place, with
    /// the system's temporary files.
    ///
    /// # Errors
    /// There is no place there either.
    pub(crate) fn store(&self) -> Result<Store> {
        let directory = self.file.as_ref().and_then(OutputFile::directory);
        // What is wrong with the place shows before the recording.
        let file = temporary(directory);
        file.map(drop).with_context(|| {
            let places = std::env::temp_dir();
            format!(
                "cannot create a temporary file in {} (name another place with TMPDIR)",
                places.display()
            )
        })?;
        Ok(store(directory))
    }

    /// Writes the trace of a recording; gives what is in it. `path` is the recording's
    /// name.
    ///
    /// # Errors
    /// A file could not be read or written.
    pub(crate) fn write(self, recorded: &Recorded, events: Store, path: &Path) -> Result<Totals> {
        let format = self.format;
        let Some(mut file) = self.file else {
            let mut stdout = io::stdout().lock();
            convert(recorded, events, path, format, &mut stdout)?;
            stdout.flush().context("cannot write to stdout")?;
            return Ok(recorded.totals.clone());
        };
        let name = file.path().to_string_lossy().to_ascii_lowercase();
        if name.ends_with(".gz") {
            let mut packed = GzEncoder::new(&mut file, Compression::default());
            convert(recorded, events, path, format, &mut packed)?;
            packed.finish().context("cannot write the trace")?;
        } else {
            convert(recorded, events, path, format, &mut file)?;
        }
        file.commit()?;
        Ok(recorded.totals.clone())
    }
}

fn convert(
    recorded: &Recorded,
    events: Store,
    path: &Path,
    format: Format,
    out: &mut dyn Write,
) -> Result<()> {
    let written = match format {
        Format::Perfetto => recording::write(recorded, events, out),
        Format::Page => html::write(&analyze::of_recording(recorded, events, path)?, out),
        _ => chrome::write(recorded, events, out),
    };
    written.context("cannot write the trace")
}

/// Writes the trace of a capture file.
///
/// # Errors
/// A file could not be read or written.
pub(crate) fn from_file(
    path: &Path,
    options: ReplayOptions,
    title: Option<&str>,
    out: TraceOut,
) -> Result<()> {
    let directory = out.file.as_ref().and_then(OutputFile::directory).cloned();
    let file = caller::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (mut recorded, events) = timeline(path, file, options, directory.as_ref())?;
    if let Some(title) = title {
        title.clone_into(&mut recorded.meta.title);
    }
    out.write(&recorded, events, path).map(drop)
}

/// The timeline of a capture: its events in order of time, and what they refer to.
/// `path` is its name for messages; temporary files go to `directory`, if not where the
/// system has them.
///
/// # Errors
/// A file could not be read or written.
pub(crate) fn timeline(
    path: &Path,
    file: File,
    options: ReplayOptions,
    directory: Option<&Directory>,
) -> Result<(Recorded, Store)> {
    let mut store = Some(store(directory));
    let mut replay: Option<Replay<Store>> = None;
    let mut failed = None;
    let scanned = capture::scan_file(path, file, options, &mut |scan| {
        let taken = match scan {
            Scan::Period(period_ns) => {
                replay = store.take().map(|store| Replay::new(period_ns, store));
                Ok(())
            }
            Scan::Event(event) => replay
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
    finished.context("cannot keep the events of the recording")
}

fn store(directory: Option<&Directory>) -> Store {
    let directory = directory.cloned();
    Store::new(Box::new(move || temporary(directory.as_ref())))
}

/// A file for what does not fit into memory.
fn temporary(directory: Option<&Directory>) -> io::Result<File> {
    match directory.map(Directory::scratch) {
        Some(Ok(file)) => Ok(file),
        Some(Err(_)) | None => caller::scratch(),
    }
}
