//! From a recording or a capture to a trace.
//!
//! Events that do not fit into memory wait in temporary files that have no names: they
//! are gone with this process, however that ends.

use super::analyze_recording;
use super::destination::Destination;
use super::output::{self, OutputFile};
use aiprof_formats::export::{Format, chrome, html, perfetto::recording};
use aiprof_model::timeline::recorded::{Recorded, Totals};
use aiprof_record::capture::{self, ReplayOptions, Scan};
use aiprof_record::store::Store;
use aiprof_record::timeline::{CommandDetail, Replay};
use aiprof_system::files::{caller, directory::Directory};
use anyhow::{Context, Result, bail};
use flate2::{Compression, write::GzEncoder};
use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Where a trace goes, and as what.
#[derive(Debug)]
pub(crate) enum TraceOut {
    /// stdout, not compressed.
    Stdout(Format),
    /// A file, compressed if its name ends in `.gz`.
    File(OutputFile, Format),
    /// The trace of a directory for TensorBoard.
    Directory(OutputFile),
}

impl TraceOut {
    /// Opens the place of a trace; a directory's is called after `input`.
    ///
    /// # Errors
    /// Something is wrong with the place, or it is none of a trace.
    pub(crate) fn open(destination: &Destination, input: &Path) -> Result<Self> {
        Ok(match destination {
            Destination::Stdout(format) => Self::Stdout(*format),
            Destination::File(path, format) => Self::File(OutputFile::create(path)?, *format),
            Destination::Directory(directory) => {
                output::open_directory(directory)?;
                Self::Directory(OutputFile::create(&tensorboard_place(directory, input))?)
            }
            _ => bail!("this destination cannot hold a trace"),
        })
    }

    fn file(&self) -> Option<&OutputFile> {
        match self {
            Self::Stdout(_) => None,
            Self::File(file, _) | Self::Directory(file) => Some(file),
        }
    }

    /// Where the events of the recording wait until the trace is written: in the directory of the
    /// output, where there should be room for them. If there is none, with the system's temporary
    /// files.
    ///
    /// # Errors
    /// There is no place there either.
    pub(crate) fn store(&self) -> Result<Store> {
        let directory = self.file().and_then(OutputFile::directory);
        // What is wrong with the place shows before the recording.
        let file = temporary(directory);
        file.map(drop).with_context(|| {
            let places = std::env::temp_dir();
            format!(
                "cannot create a temporary file in {} (name another directory with TMPDIR)",
                places.display()
            )
        })?;
        Ok(store(directory))
    }

    /// Writes the trace of a recording; gives what is in it, and a line for each file that
    /// was written. `path` is the recording's name.
    ///
    /// # Errors
    /// A file could not be read or written.
    pub(crate) fn write(
        self,
        recorded: &Recorded,
        events: Store,
        path: &Path,
    ) -> Result<(Totals, Vec<String>)> {
        let totals = recorded.totals.clone();
        let (mut file, format) = match self {
            Self::Stdout(format) => {
                let mut stdout = io::stdout().lock();
                convert(recorded, events, path, format, &mut stdout)?;
                stdout.flush().context("cannot write to stdout")?;
                return Ok((totals, Vec::new()));
            }
            Self::Directory(file) => {
                let written = analyze_recording::tensorboard(recorded, events, path, file)?;
                return Ok((totals, written.lines()));
            }
            Self::File(file, format) => (file, format),
        };
        let name = file.path().to_string_lossy().to_ascii_lowercase();
        if name.ends_with(".gz") {
            let mut packed = GzEncoder::new(&mut file, Compression::default());
            convert(recorded, events, path, format, &mut packed)?;
            packed.finish().context("cannot write the trace")?;
        } else {
            convert(recorded, events, path, format, &mut file)?;
        }
        let note = file.note(format.what());
        file.commit()?;
        Ok((totals, note.into_iter().collect()))
    }
}

/// The trace of an input in a directory for TensorBoard, which goes by these names.
pub(super) fn tensorboard_place(directory: &Path, input: &Path) -> PathBuf {
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    let ends = [
        ".gz",
        ".zst",
        ".json",
        ".trace",
        ".pt",
        ".aiprof",
        ".pftrace",
        ".perfetto-trace",
    ];
    let mut name = &*name;
    for end in ends {
        name = name.strip_suffix(end).unwrap_or(name);
    }
    directory.join(format!("{name}.pt.trace.json"))
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
        Format::Page => html::write(
            &analyze_recording::of_recording(recorded, events, path)?,
            out,
        ),
        _ => chrome::write(recorded, events, out),
    };
    written.context("cannot write the trace")
}

/// Writes the trace of a capture file; gives a line for each file that was written.
///
/// # Errors
/// A file could not be read or written.
pub(crate) fn from_file(
    path: &Path,
    options: ReplayOptions,
    title: Option<&str>,
    out: TraceOut,
) -> Result<Vec<String>> {
    let directory = out.file().and_then(OutputFile::directory).cloned();
    let file = caller::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (mut recorded, events) = timeline(
        path,
        file,
        options,
        CommandDetail::default(),
        directory.as_ref(),
    )?;
    if let Some(title) = title {
        title.clone_into(&mut recorded.meta.title);
    }
    let (_, lines) = out.write(&recorded, events, path)?;
    Ok(lines)
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
            Scan::Period(period_ns) => {
                let begin = |store| Replay::new(period_ns, wakers, store).with_commands(detail);
                replay = store.take().map(begin);
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
    finished.context("cannot store the events of the recording")
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
