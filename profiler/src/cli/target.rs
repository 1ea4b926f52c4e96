//! Where a finished profile goes: opened before it is made, written when it is.

use super::destination::Destination;
use super::input::Stacks;
use super::output::OutputFile;
use super::profile_out;
use super::usage_error;
use aiprof_formats::export::summary::SummaryOptions;
use aiprof_formats::export::svg::{self, Caption};
use aiprof_formats::export::{ExportOptions, Format, folded, pprof, summary};
use aiprof_model::profile::Profile;
use anyhow::{Context, Result, bail};
use std::io::{self, Write};
use std::path::Path;

/// A place that is open.
#[derive(Debug)]
pub(crate) enum Target {
    /// The summary, on a terminal or into a file.
    Summary(Option<OutputFile>),
    /// stdout.
    Stdout(Format),
    /// A file.
    File(OutputFile, Format),
}

impl Target {
    /// Opens a place for a profile.
    ///
    /// # Errors
    /// Something is wrong with it.
    pub(crate) fn open(destination: &Destination) -> Result<Self> {
        Ok(match destination {
            Destination::SummaryFile(path) => Self::Summary(Some(OutputFile::create(path)?)),
            Destination::Stdout(format) => Self::Stdout(*format),
            Destination::File(path, format) => Self::File(OutputFile::create(path)?, *format),
            Destination::Summary
            | Destination::Directory(_)
            | Destination::Dumps(..)
            | Destination::Windows { .. } => Self::Summary(None),
        })
    }

    /// A line about what is written, if it is a file.
    pub(crate) fn note(&self) -> Option<String> {
        match self {
            Self::Summary(file) => file.as_ref()?.note("the summary"),
            Self::Stdout(_) => None,
            Self::File(file, format) => file.note(format.what()),
        }
    }

    /// Writes a profile.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(self, profile: &Profile, options: &ExportOptions) -> Result<()> {
        match self {
            Self::Summary(None) => profile_out::write_summary(profile, options.shown),
            Self::Summary(Some(file)) => profile_out::write_summary_file(profile, options, file),
            Self::Stdout(format) => profile_out::write_stdout(profile, format, options),
            Self::File(file, format) => profile_out::write_file(profile, format, options, file),
        }
    }

    /// Writes stacks that were folded already.
    ///
    /// # Errors
    /// They cannot be written, or the format needs more than they are.
    pub(crate) fn write_stacks(
        self,
        stacks: &Stacks,
        title: &str,
        options: &ExportOptions,
    ) -> Result<()> {
        let (file, format) = match self {
            Self::Summary(file) => (file, None),
            Self::Stdout(format) => (None, Some(format)),
            Self::File(file, format) => (Some(file), Some(format)),
        };
        let layout = profile_out::summary_options(options.shown, file.is_some());
        let text = Text {
            stacks,
            title,
            layout,
        };
        let Some(mut file) = file else {
            let mut out = io::BufWriter::new(io::stdout().lock());
            let written = text.write(format, options, &mut out);
            written.context("cannot write to stdout")?;
            return out.flush().context("cannot write to stdout");
        };
        let context = format!("cannot write {}", file.path().display());
        text.write(format, options, &mut file).context(context)?;
        file.commit()
    }
}

/// Stacks, and what stands around them.
struct Text<'a> {
    stacks: &'a Stacks,
    title: &'a str,
    layout: SummaryOptions,
}

impl Text<'_> {
    /// Writes them in a format; `None`: as the summary.
    fn write(
        &self,
        format: Option<Format>,
        options: &ExportOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        let (folded, title) = (&self.stacks.folded, self.title);
        let written = match format {
            None => summary::write_folded(folded, title, options.weight, &self.layout, out),
            Some(Format::Svg) => {
                let caption = Caption {
                    title: title.to_owned(),
                    subtitle: format!("from {}", self.stacks.contents.what()),
                    ..Caption::default()
                };
                svg::write_folded(folded, &caption, options, out)
            }
            Some(Format::Folded) => folded::write_stacks(folded, options, out),
            Some(Format::Pprof) => pprof::write_folded(folded, options, out),
            Some(other) => bail!("{} cannot be made from folded stacks", other.what()),
        };
        Ok(written?)
    }
}

/// Checks whether stacks can be written to a place, before they are read.
///
/// # Errors
/// The format needs more than stacks.
pub(crate) fn check_stacks(stacks: &Path, destination: &Destination) -> Result<()> {
    match destination.format() {
        Some(format @ (Format::UnitraceCsv | Format::Iaprof)) => Err(usage_error(format!(
            "{} needs device samples, which {} does not contain; use a capture",
            format.what(),
            stacks.display()
        ))),
        Some(Format::Otlp) => Err(usage_error(format!(
            "OTLP profiles need times and processes, but {} has only stacks; use a capture",
            stacks.display()
        ))),
        _ => Ok(()),
    }
}
