//! A place for a result, which is opened before there is one: a file or stdout, and the format.

use super::analyze_recording;
use super::capture_timeline;
use super::destination::{Destination, OutputPlace};
use super::input::InputStacks;
use super::output::{self, OutputFile};
use super::screen;
use super::sibling_files::tensorboard_place;
use super::usage_error;
use aiprof_formats::export::formats::{ProfilePart, ProfileWriter};
use aiprof_formats::export::svg::Caption;
use aiprof_formats::export::{ExportOptions, FileFormat, FormatSource};
use aiprof_model::profile::{Profile, StallTable};
use aiprof_model::timeline::recorded::{Recorded, Totals};
use aiprof_record::capture::ReplayOptions;
use aiprof_record::store::Store;
use aiprof_record::timeline::CommandDetail;
use anyhow::{Context, Result, bail};
use flate2::{Compression, write::GzEncoder};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Width of texts in files.
const FILE_WIDTH: usize = 100;

/// An opened file or stdout, and the format that is written to it.
#[derive(Debug)]
pub(crate) struct OpenOutput {
    pub(crate) file: OutputFile,
    pub(crate) format: &'static FileFormat,
}

impl OpenOutput {
    /// Opens a place for one result. The file in a directory for TensorBoard is named after `input`.
    ///
    /// # Errors
    /// Something is wrong with the place, or it is one of several results.
    pub(crate) fn open(destination: &Destination, input: &Path) -> Result<Self> {
        let file = match &destination.place {
            OutputPlace::Stdout => OutputFile::open(None)?,
            OutputPlace::File(path) => OutputFile::create(path)?,
            OutputPlace::Directory(directory) => {
                output::open_directory(directory)?;
                OutputFile::create(&tensorboard_place(directory, input))?
            }
            OutputPlace::Windows { .. } | OutputPlace::Dumps(_) => {
                bail!("this destination holds several results")
            }
        };
        let format = destination.format;
        Ok(Self { file, format })
    }

    /// A line about what is written, if it is a file.
    pub(crate) fn note(&self) -> Option<String> {
        self.file.note(self.format.what)
    }

    /// A writer for a capture, which the recording writes.
    ///
    /// # Errors
    /// No more descriptors.
    pub(crate) fn capture_writer(&self) -> io::Result<Box<BufWriter<File>>> {
        Ok(Box::new(BufWriter::new(self.file.handle()?)))
    }

    /// Where events wait until a trace is written: in the directory of the output, where there
    /// should be room for them. If there is none, with the system's temporary files.
    ///
    /// # Errors
    /// There is no place there either.
    pub(crate) fn store(&self) -> Result<Store> {
        let directory = self.file.directory();
        // What is wrong with the place shows before the recording.
        let file = capture_timeline::temporary(directory);
        file.map(drop).with_context(|| {
            let places = std::env::temp_dir();
            format!(
                "cannot create a temporary file in {} (name another directory with TMPDIR)",
                places.display()
            )
        })?;
        Ok(capture_timeline::store(directory))
    }

    /// Writes a profile.
    ///
    /// # Errors
    /// The output cannot be written, and no file is left behind; or the format is not made from a
    /// profile.
    pub(crate) fn write_profile(
        mut self,
        profile: &Profile,
        options: &ExportOptions,
    ) -> Result<()> {
        let Some(writer) = self.format.profile_writer() else {
            bail!("{} is not made from a profile", self.format.what);
        };
        warn_of_samples_left_out(profile, writer);
        warn_if_no_label(profile, options);
        let written = (writer.write)(profile, &self.layout(options), &mut self.file);
        written.with_context(|| self.file.cannot_write())?;
        self.file.commit()
    }

    /// Writes stacks that were folded already.
    ///
    /// # Errors
    /// They cannot be written, or the format needs more than they are.
    pub(crate) fn write_stacks(
        mut self,
        stacks: &InputStacks,
        title: &str,
        options: &ExportOptions,
    ) -> Result<()> {
        let writer = self.format.profile_writer();
        let Some(write) = writer.and_then(|writer| writer.write_stacks) else {
            bail!("{} cannot be made from folded stacks", self.format.what);
        };
        let caption = Caption {
            title: title.to_owned(),
            subtitle: format!("from {}", stacks.contents.what()),
            ..Caption::default()
        };
        let layout = self.layout(options);
        let written = write(&stacks.folded, &caption, &layout, &mut self.file);
        written.with_context(|| self.file.cannot_write())?;
        self.file.commit()
    }

    /// The options, for a text that fits this place.
    fn layout(&self, options: &ExportOptions) -> ExportOptions {
        let (width, color) = match self.file.is_stdout() {
            true => (screen::width(), screen::has_colors()),
            false => (FILE_WIDTH, false),
        };
        ExportOptions {
            width,
            color,
            ..options.clone()
        }
    }

    /// Writes the trace of a recording; gives what is in it, and a line for each file that was
    /// written. `path` is the recording's name.
    ///
    /// # Errors
    /// A file could not be read or written.
    pub(crate) fn write_trace(
        mut self,
        recorded: &Recorded,
        events: Store,
        path: &Path,
    ) -> Result<(Totals, Vec<String>)> {
        let totals = recorded.totals.clone();
        if matches!(self.format.source, FormatSource::Directory) {
            let written = analyze_recording::tensorboard(recorded, events, path, self.file)?;
            return Ok((totals, written.lines()));
        }
        let (file, source) = (&mut self.file, &self.format.source);
        let name = file.path().to_string_lossy().to_ascii_lowercase();
        if name.ends_with(".gz") {
            let mut packed = GzEncoder::new(file, Compression::default());
            write_events(recorded, events, path, source, &mut packed)?;
            packed.finish().context("cannot write the trace")?;
        } else {
            write_events(recorded, events, path, source, file)?;
        }
        let note = self.note();
        self.file.commit()?;
        Ok((totals, note.into_iter().collect()))
    }

    /// Writes the trace of a capture; gives a line for each file that was written. `title` replaces
    /// that of the recording.
    ///
    /// # Errors
    /// A file could not be read or written.
    pub(crate) fn write_trace_of(
        self,
        path: &Path,
        capture: File,
        options: ReplayOptions,
        title: Option<&str>,
    ) -> Result<Vec<String>> {
        let directory = self.file.directory();
        let detail = CommandDetail::default();
        let read = capture_timeline::timeline(path, capture, options, detail, directory);
        let (mut recorded, events) = read?;
        if let Some(title) = title {
            title.clone_into(&mut recorded.meta.title);
        }
        let (_, lines) = self.write_trace(&recorded, events, path)?;
        Ok(lines)
    }
}

fn write_events(
    recorded: &Recorded,
    events: Store,
    path: &Path,
    source: &FormatSource,
    out: &mut dyn Write,
) -> Result<()> {
    let written = match source {
        FormatSource::Timeline(write) => write(recorded, events, out),
        FormatSource::Report(write) => write(
            &analyze_recording::of_recording(recorded, events, path)?,
            out,
        ),
        FormatSource::Profile(_) | FormatSource::Directory | FormatSource::Capture => {
            bail!("this format is not made from events")
        }
    };
    written.context("cannot write the trace")
}

/// Checks whether stacks can be written to a place, before they are read.
///
/// # Errors
/// The format needs more than stacks.
pub(crate) fn check_stacks(stacks: &Path, format: &FileFormat) -> Result<()> {
    let (stacks, what) = (stacks.display(), format.what);
    match format.profile_writer() {
        Some(writer) if writer.write_stacks.is_some() => Ok(()),
        Some(writer) if writer.shows == ProfilePart::Stalls => Err(usage_error(format!(
            "{what} needs device samples, which {stacks} does not contain; use a capture"
        ))),
        Some(_) => Err(usage_error(format!(
            "{what} need times and processes, but {stacks} has only stacks; use a capture"
        ))),
        None => Ok(()),
    }
}

/// Tables of stalls have no place for some samples.
fn warn_of_samples_left_out(profile: &Profile, writer: ProfileWriter) {
    if writer.shows != ProfilePart::Stalls {
        return;
    }
    let written = StallTable::of(profile).total();
    match StallTable::uncounted(profile) {
        0 if written == 0 => {
            tracing::warn!("the table of stalls is empty: no device was sampled");
        }
        0 => {}
        n => tracing::warn!(
            "{n} device samples without a stall reason or an instruction are not in the table"
        ),
    }
}

/// A label that nothing has is perhaps mistyped.
fn warn_if_no_label(profile: &Profile, options: &ExportOptions) {
    let Some(label) = &options.by_label else {
        return;
    };
    let mut samples = profile.samples.iter();
    if samples.all(|sample| profile.label(sample, label).is_none()) {
        tracing::warn!(
            "no process has the label {label}: --by accepts container, pod, namespace, pod_name, \
             container_name, unit, user, rank, local_rank, device and the keys of --label"
        );
    }
}
