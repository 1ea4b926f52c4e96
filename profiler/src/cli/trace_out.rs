//! From a capture to a trace.
//!
//! A recording whose output is a trace is a capture first, in a temporary file that
//! has no name: it is gone with this process, however that ends.

use super::output::OutputFile;
use aiprof_formats::export::chrome::{Scratch, Survey, Totals, Trace};
use aiprof_formats::import::capture::{self, ReplayOptions, ScanOptions};
use aiprof_system::files::{caller, directory::Directory};
use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};
use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;

/// Where a trace goes.
#[derive(Debug)]
pub(crate) enum TraceOut {
    /// stdout, not compressed.
    Stdout,
    /// A file, compressed if its name ends in `.gz`.
    File(OutputFile),
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
    let directory = match &out {
        TraceOut::File(file) => file.directory().cloned(),
        TraceOut::Stdout => None,
    };
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
        match out {
            TraceOut::Stdout => {
                let mut stdout = io::stdout().lock();
                let totals = self.convert(&mut stdout)?;
                stdout.flush().context("cannot write to stdout")?;
                Ok(totals)
            }
            TraceOut::File(mut file) => {
                let name = file.path().to_string_lossy().to_ascii_lowercase();
                let totals = if name.ends_with(".gz") {
                    let mut packed = GzEncoder::new(&mut file, Compression::default());
                    let totals = self.convert(&mut packed)?;
                    packed.finish().context("cannot write the trace")?;
                    totals
                } else {
                    self.convert(&mut file)?
                };
                file.commit()?;
                Ok(totals)
            }
        }
    }

    /// Reads the capture twice and writes the trace.
    fn convert(self, out: &mut dyn Write) -> Result<Totals> {
        let mut survey = Survey::default();
        let mut scanned = self.scan(true, &mut |event| {
            survey.event(&event);
            ControlFlow::Continue(())
        })?;
        if let Some(title) = self.title {
            scanned.meta.title = title.to_owned();
        }
        let period_ns = match scanned.period_ns {
            0 => scanned.meta.period_ns,
            fixed => fixed,
        };
        let directory = self.directory.clone();
        let mut scratch = || temporary(directory.as_ref());
        let scratch: &mut Scratch<'_> = &mut scratch;
        let mut trace = Trace::new(&survey, &scanned.names, period_ns, scratch);
        let mut failed = None;
        self.scan(false, &mut |event| match trace.event(&event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        let written = match failed {
            Some(error) => Err(error),
            None => trace.finish(&scanned.meta, &scanned.losses, out),
        };
        written.context("cannot write the trace")
    }

    fn scan(
        &self,
        names: bool,
        take: &mut dyn FnMut(aiprof_model::wire::Event) -> ControlFlow<()>,
    ) -> Result<capture::Scanned> {
        let options = ScanOptions {
            replay: self.options,
            names,
        };
        let file = self.file.try_clone().context("cannot read the recording")?;
        Ok(capture::scan_file(self.path, file, &options, take)?)
    }
}

/// A file for what does not fit into memory.
fn temporary(directory: Option<&Directory>) -> io::Result<File> {
    match directory.map(Directory::scratch) {
        Some(Ok(file)) => Ok(file),
        Some(Err(_)) | None => caller::scratch(),
    }
}
