//! From a capture to a trace.
//!
//! A recording whose output is a trace is a capture first, in a temporary file that
//! has no name: it is gone with this process, however that ends.

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

/// The capture of a recording that becomes a trace.
#[derive(Debug)]
pub(crate) struct TraceCapture {
    file: File,
    directory: Option<Directory>,
}

impl TraceCapture {
    /// Creates it in the directory of the output, where there should be room for it;
    /// where there is no place, with the system's temporary files.
    ///
    /// # Errors
    /// There is no place there either.
    pub(crate) fn new(directory: Option<&Directory>) -> Result<Self> {
        let file = temporary(directory).with_context(|| {
            let places = std::env::temp_dir();
            format!(
                "cannot create a temporary file in {} (name another place with TMPDIR)",
                places.display()
            )
        })?;
        Ok(Self {
            file,
            directory: directory.cloned(),
        })
    }

    /// A handle for writing the capture.
    ///
    /// # Errors
    /// No more descriptors.
    pub(crate) fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Writes the trace of the finished capture; gives what is in it.
    ///
    /// # Errors
    /// A file could not be read or written.
    pub(crate) fn write(self, options: ReplayOptions, out: TraceOut) -> Result<Totals> {
        let source = Source {
            path: Path::new("the recording"),
            file: self.file,
            options,
            title: None,
            directory: self.directory,
        };
        source.write(out)
    }
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
    let source = Source {
        path,
        file,
        options,
        title,
        directory,
    };
    source.write(out).map(drop)
}

/// A capture, and what its trace shall be like.
struct Source<'a> {
    /// Its name, for messages.
    path: &'a Path,
    file: File,
    options: ReplayOptions,
    title: Option<&'a str>,
    /// Where temporary files go, if not where the system has them.
    directory: Option<Directory>,
}

impl Source<'_> {
    fn write(self, out: TraceOut) -> Result<Totals> {
        let format = out.format;
        let Some(mut file) = out.file else {
            let mut stdout = io::stdout().lock();
            let totals = self.convert(format, &mut stdout)?;
            stdout.flush().context("cannot write to stdout")?;
            return Ok(totals);
        };
        let name = file.path().to_string_lossy().to_ascii_lowercase();
        let totals = if name.ends_with(".gz") {
            let mut packed = GzEncoder::new(&mut file, Compression::default());
            let totals = self.convert(format, &mut packed)?;
            packed.finish().context("cannot write the trace")?;
            totals
        } else {
            self.convert(format, &mut file)?
        };
        file.commit()?;
        Ok(totals)
    }

    /// Reads the capture and writes the trace.
    fn convert(self, format: Format, out: &mut dyn Write) -> Result<Totals> {
        let (mut recorded, store) =
            timeline(self.path, self.file, self.options, self.directory.as_ref())?;
        if let Some(title) = self.title {
            title.clone_into(&mut recorded.meta.title);
        }
        let written = match format {
            Format::Perfetto => recording::write(&recorded, store, out),
            Format::Page => {
                let report = analyze::of_recording(&recorded, store, self.path)?;
                html::write(&report, out)
            }
            _ => chrome::write(&recorded, store, out),
        };
        written.context("cannot write the trace")?;
        Ok(recorded.totals)
    }
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
    let directory = directory.cloned();
    let mut store = Some(Store::new(Box::new(move || temporary(directory.as_ref()))));
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

/// A file for what does not fit into memory.
fn temporary(directory: Option<&Directory>) -> io::Result<File> {
    match directory.map(Directory::scratch) {
        Some(Ok(file)) => Ok(file),
        Some(Err(_)) | None => caller::scratch(),
    }
}
