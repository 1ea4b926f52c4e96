//! Writers: one file per output format, from a [`Profile`] to a [`Write`].
//!
//! Writers open no files and read no clock. Their output depends on the profile
//! and the options alone, byte for byte, so that tests can compare it.
//! The formats are described in `docs/output-formats.md`.

pub mod analysis_text;
pub mod chrome;
mod code;
pub mod device;
mod device_kernels;
pub mod diff;
pub mod findings;
mod flame;
pub mod folded;
pub mod html;
pub mod iaprof;
mod launchers;
mod launches;
pub(crate) mod names;
pub mod otlp;
mod palette;
pub mod perfetto;
pub mod pprof;
pub mod push;
mod services;
mod stacks;
pub mod stalls;
pub mod summary;
pub mod svg;
pub mod tables;
mod text;
pub mod trace;
pub mod trace_events;
pub mod unitrace_csv;

pub use launchers::processes_left_out;
pub(crate) use stacks::round_to_microseconds;

use aiprof_model::profile::{Profile, Sample};
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Folded stacks: one line per unique stack, see [`folded`].
    Folded,
    /// A flame graph, see [`svg`].
    Svg,
    /// pprof's `profile.proto`, gzip-compressed, see [`pprof`].
    Pprof,
    /// OpenTelemetry's profiles: a request that can be posted, see [`otlp`].
    Otlp,
    /// Stall counts by instruction, see [`unitrace_csv`].
    UnitraceCsv,
    /// iaprof's interchange text, see [`iaprof`].
    Iaprof,
    /// A Chrome trace, see [`chrome`]. It is made of events, never of a finished
    /// profile: [`write()`] refuses it.
    Chrome,
    /// A trace in Perfetto's own format, see [`perfetto`]. As with [`Self::Chrome`].
    Perfetto,
    /// A page with findings and tables, see [`html`]. As with [`Self::Chrome`].
    Page,
    /// aiprof's own capture. It is written while recording, never from a
    /// finished profile: [`write()`] refuses it.
    Capture,
}

impl Format {
    /// All formats, in the order in which help texts list them.
    pub const ALL: [Self; 10] = [
        Self::Folded,
        Self::Svg,
        Self::Pprof,
        Self::Otlp,
        Self::UnitraceCsv,
        Self::Iaprof,
        Self::Chrome,
        Self::Perfetto,
        Self::Page,
        Self::Capture,
    ];

    /// The format's name, as [`FromStr`] reads it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Folded => "folded",
            Self::Svg => "svg",
            Self::Pprof => "pprof",
            Self::Otlp => "otlp",
            Self::UnitraceCsv => "unitrace-csv",
            Self::Iaprof => "iaprof",
            Self::Chrome => "chrome",
            Self::Perfetto => "perfetto",
            Self::Page => "page",
            Self::Capture => "capture",
        }
    }

    /// What a file of this format is, for people.
    pub fn what(self) -> &'static str {
        match self {
            Self::Folded => "folded stacks",
            Self::Svg => "a flame graph",
            Self::Pprof => "a pprof profile",
            Self::Otlp => "OTLP profiles",
            Self::UnitraceCsv => "a stall table",
            Self::Iaprof => "iaprof's text",
            Self::Chrome => "a Chrome trace",
            Self::Perfetto => "a Perfetto trace",
            Self::Page => "a page of findings",
            Self::Capture => "a capture",
        }
    }

    /// The file name extension to use for a format, without the leading dot.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Folded => "folded",
            Self::Svg => "svg",
            Self::Pprof => "pb.gz",
            Self::Otlp => "otlp",
            Self::UnitraceCsv => "stalls.csv",
            Self::Iaprof => "iaprof",
            Self::Chrome => "json",
            Self::Perfetto => "pftrace",
            Self::Page => "html",
            Self::Capture => "aiprof",
        }
    }

    /// The format that a file name asks for, whatever its case; `None` when the
    /// extension is not known.
    ///
    /// `.folded`, `.collapsed` and `.txt` are folded stacks, `.svg` is a flame graph,
    /// `.pb.gz` and `.pprof` are pprof, `.otlp` is OTLP. `.stalls.csv` is unitrace's table
    /// of stalls, `.iaprof` is iaprof's text, `.json` and `.json.gz` are Chrome traces.
    /// `.pftrace` and `.perfetto-trace` are Perfetto's, `.html` is a page, `.aiprof` is a
    /// capture.
    pub fn from_extension(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        let known = [
            (".folded", Self::Folded),
            (".collapsed", Self::Folded),
            (".txt", Self::Folded),
            (".svg", Self::Svg),
            (".pb.gz", Self::Pprof),
            (".pprof", Self::Pprof),
            (".otlp", Self::Otlp),
            (".stalls.csv", Self::UnitraceCsv),
            (".iaprof", Self::Iaprof),
            (".json", Self::Chrome),
            (".json.gz", Self::Chrome),
            (".pftrace", Self::Perfetto),
            (".perfetto-trace", Self::Perfetto),
            (".html", Self::Page),
            (".aiprof", Self::Capture),
        ];
        known
            .into_iter()
            .find(|(extension, _)| name.ends_with(extension))
            .map(|(_, format)| format)
    }
}

impl Format {
    /// Whether it is made of events, not of a finished profile.
    pub fn is_trace(self) -> bool {
        matches!(self, Self::Chrome | Self::Perfetto | Self::Page)
    }
}

impl FromStr for Format {
    type Err = ExportError;

    fn from_str(name: &str) -> Result<Self, ExportError> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| ExportError::UnknownFormat(name.to_owned()))
    }
}

/// What the number behind a stack, or the width of a frame, means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weight {
    /// On-CPU time, and busy time of devices, in microseconds.
    #[default]
    Time,
    /// Number of samples, or of launches.
    Samples,
    /// Bytes moved by launches.
    Bytes,
}

/// Which samples are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shown {
    /// All.
    #[default]
    All,
    /// Those of CPUs.
    Cpu,
    /// Those of devices.
    Device,
}

impl Shown {
    /// Whether a sample is shown.
    pub fn includes(self, sample: &Sample) -> bool {
        match self {
            Self::All => true,
            Self::Cpu => sample.device.is_none(),
            Self::Device => sample.device.is_some(),
        }
    }
}

/// Options of all writers. pprof carries all weights; `weight` is the one that is
/// shown first.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportOptions {
    /// What folded values and frame widths mean.
    pub weight: Weight,
    /// Which samples are written.
    pub shown: Shown,
    /// Write stacks from the leaf to the root: what the device (or the CPU) does
    /// first, who had it done above. Folded stacks and flame graphs only.
    pub inverted: bool,
    /// Move the stall reason of device samples to the front of their device frames,
    /// so that they are merged by it first. Folded stacks and flame graphs only.
    pub by_stall: bool,
    /// Begin every stack with the value of this label: `container=0123`, before the name
    /// of the process. Folded stacks and flame graphs only.
    pub by_label: Option<String>,
    /// Write where in the source a frame is after its name: `parse (json.c:42)`, so that
    /// the same function at another line is another frame. Only for code on CPUs, and where
    /// the profile has it. Folded stacks and flame graphs only.
    pub source_lines: bool,
    /// Start folded output with a `# ` comment per loss and about device samples,
    /// which flame graph tools skip. Folded stacks only.
    pub loss_comments: bool,
    /// Write CPU samples of all processes also where devices were sampled. Otherwise a
    /// profile of both has the processes that launched work ([`processes_left_out`] counts
    /// the others). Flame graphs, folded stacks, pprof and OTLP only.
    pub all_processes: bool,
    /// Frames narrower than this share of the whole, in percent, are not drawn.
    /// Flame graphs only.
    pub min_width_percent: f64,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            weight: Weight::Time,
            shown: Shown::All,
            inverted: false,
            by_stall: false,
            by_label: None,
            source_lines: false,
            loss_comments: false,
            all_processes: false,
            // A tenth of a pixel at the usual width of a browser window.
            min_width_percent: 0.01,
        }
    }
}

/// Why a profile could not be written or a folded file not be read.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Reading or writing failed. A closed pipe is
    /// [`io::ErrorKind::BrokenPipe`].
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A capture was asked for.
    #[error("a capture is written while recording and cannot be made from a finished profile")]
    CaptureNotWritable,
    /// A trace was asked for.
    #[error("a trace or page is made from a recording's events, not from a finished profile")]
    TraceNotWritable,
    /// The name is not one of [`Format::ALL`].
    #[error(
        "unknown format `{0}` (known: folded, svg, pprof, otlp, unitrace-csv, iaprof, chrome, \
         perfetto, page, capture)"
    )]
    UnknownFormat(String),
    /// A line of a folded file is not `STACK VALUE`.
    #[error("line {line}: not a folded stack (expected `frame;frame;... VALUE`)")]
    NotFolded {
        /// Line number, from 1.
        line: u64,
    },
    /// A line of a folded file has no space before its value.
    #[error(
        "line {line}: no space before the value (iaprof of July 2025, tag `tiber`, writes such \
         lines); correct the file with: sed -E 's/(_\\[g\\])([0-9]+)$/\\1 \\2/'"
    )]
    NoSpace {
        /// Line number, from 1.
        line: u64,
    },
    /// A line of a folded file is longer than [`folded::MAX_LINE`].
    #[error("line {line} is too long (limit: {max} bytes)", max = folded::MAX_LINE)]
    LineTooLong {
        /// Line number, from 1.
        line: u64,
    },
    /// A folded file is larger than [`folded::MAX_INPUT`].
    #[error(
        "the file is too large: aiprof reads at most {max} bytes of folded stacks",
        max = folded::MAX_INPUT
    )]
    InputTooLarge,
    /// The values of a folded file add up to more than [`folded::MAX_TOTAL`].
    #[error(
        "line {line}: the sum of the values up to here exceeds the limit of {max}",
        max = folded::MAX_TOTAL
    )]
    TotalTooLarge {
        /// Line number, from 1.
        line: u64,
    },
    /// The weights of a profile add up to more than [`folded::MAX_TOTAL`].
    #[error("the sum of the samples' weights exceeds the limit of {max}", max = folded::MAX_TOTAL)]
    WeightsTooLarge,
}

/// Writes a profile in a format.
///
/// The output is buffered inside; `out` needs no buffer of its own.
///
/// # Errors
///
/// [`ExportError::CaptureNotWritable`] for [`Format::Capture`],
/// [`ExportError::TraceNotWritable`] for [`Format::Chrome`], [`Format::Perfetto`] and [`Format::Page`],
/// [`ExportError::WeightsTooLarge`] for a profile of a thousand years (a
/// corrupt one), [`ExportError::Io`] when `out` fails.
pub fn write(
    profile: &Profile,
    format: Format,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    match format {
        Format::Folded => folded::write(profile, options, out),
        Format::Svg => svg::write(profile, options, out),
        Format::Pprof => pprof::write(profile, options, out),
        Format::Otlp => otlp::write(profile, options, out),
        Format::UnitraceCsv => unitrace_csv::write(profile, out),
        Format::Iaprof => iaprof::write(profile, out),
        Format::Chrome | Format::Perfetto | Format::Page => Err(ExportError::TraceNotWritable),
        Format::Capture => Err(ExportError::CaptureNotWritable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_choose_formats() {
        let format = |name: &str| Format::from_extension(Path::new(name));
        assert_eq!(format("out.folded"), Some(Format::Folded));
        assert_eq!(format("/tmp/a.b/OUT.TXT"), Some(Format::Folded));
        assert_eq!(format("x.svg"), Some(Format::Svg));
        assert_eq!(format("x.pb.gz"), Some(Format::Pprof));
        assert_eq!(format("x.pprof"), Some(Format::Pprof));
        assert_eq!(format("x.aiprof"), Some(Format::Capture));
        assert_eq!(format("trace.json"), Some(Format::Chrome));
        assert_eq!(format("TRACE.JSON.GZ"), Some(Format::Chrome));
        assert_eq!(format("x.pftrace"), Some(Format::Perfetto));
        assert_eq!(format("x.gz"), None);
        assert_eq!(format("svg"), None);
        assert_eq!(format(".."), None);
    }

    #[test]
    fn names_are_read_back() {
        for format in Format::ALL {
            assert_eq!(format.name().parse::<Format>().unwrap(), format);
            let file = format!("x.{}", format.extension());
            assert_eq!(Format::from_extension(Path::new(&file)), Some(format));
        }
        let error = "png".parse::<Format>().unwrap_err().to_string();
        assert!(error.contains("png") && error.contains("folded"), "{error}");
    }

    #[test]
    fn captures_are_refused() {
        let mut out = Vec::new();
        let result = write(
            &Profile::default(),
            Format::Capture,
            &ExportOptions::default(),
            &mut out,
        );
        assert!(matches!(result, Err(ExportError::CaptureNotWritable)));
        assert!(out.is_empty());
    }
}
