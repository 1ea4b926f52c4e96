//! From a finished profile to where it was asked for.

use super::output::OutputFile;
use super::stdout;
use super::{screen, usage_error};
use aiprof_analysis::aggregate::LaunchOptions;
use aiprof_formats::export::summary::SummaryOptions;
use aiprof_formats::export::{self, ExportOptions, Format, Shown, Weight};
use aiprof_model::profile::{Profile, StallTable};
use aiprof_system::files::caller;
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Width of texts in files.
const FILE_WIDTH: usize = 100;

/// The formats of `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileFormat {
    /// Folded stacks: one line per stack, for any flame graph tool
    Folded,
    /// Flame graph for a browser
    Svg,
    /// pprof, gzipped
    Pprof,
    /// Stall counts by device instruction, as unitrace writes them
    UnitraceCsv,
    /// iaprof's interchange text: stalls by launch and instruction
    Iaprof,
    /// Chrome trace, for Perfetto and speedscope
    Chrome,
    /// Trace in Perfetto's own format: of any length, with the stacks of samples
    Perfetto,
    /// Findings and tables of what devices did, as a page for a browser
    Page,
    /// The recording itself, for `aiprof report`
    Capture,
    /// Trace for TensorBoard's PyTorch plugin, in a directory
    Tensorboard,
    /// Short text for people: totals, hottest functions
    Summary,
}

impl ProfileFormat {
    /// The format of the file; `None`: the summary, which is for people, and what is a
    /// directory.
    pub(crate) fn of_file(self) -> Option<Format> {
        Some(match self {
            Self::Folded => Format::Folded,
            Self::Svg => Format::Svg,
            Self::Pprof => Format::Pprof,
            Self::UnitraceCsv => Format::UnitraceCsv,
            Self::Iaprof => Format::Iaprof,
            Self::Chrome => Format::Chrome,
            Self::Perfetto => Format::Perfetto,
            Self::Page => Format::Page,
            Self::Capture => Format::Capture,
            Self::Tensorboard | Self::Summary => return None,
        })
    }
}

/// The meanings of `--weight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum WeightArg {
    /// On-CPU time, and busy time of devices, in microseconds
    #[default]
    Time,
    /// Number of samples
    Samples,
}

/// The weights of `--events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EventsArg {
    /// How many kernels, copies and fills were given to devices
    Launches,
    /// Wall-clock time in the runtimes' functions, without calls nested in them
    TimeInCall,
    /// Bytes moved by copies and fills
    Bytes,
}

impl From<EventsArg> for Weight {
    fn from(events: EventsArg) -> Self {
        match events {
            EventsArg::Launches => Self::Samples,
            EventsArg::TimeInCall => Self::Time,
            EventsArg::Bytes => Self::Bytes,
        }
    }
}

/// What profiles are of, and what their values mean: options of all that makes one.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct ValueArgs {
    /// What the width of a frame means
    #[arg(long, value_enum, default_value_t = WeightArg::default())]
    weight: WeightArg,

    /// Instead of CPU time: what was given to accelerators, by the call paths that did
    ///
    /// Each stack ends in the function of the runtime, `-`, and the kernel or the
    /// operation. Calls are recorded whenever a capture is, so a capture can be reported
    /// either way; time-in-call needs one that was recorded with --events time-in-call.
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with = "weight")]
    events: Option<EventsArg>,
}

impl ValueArgs {
    /// What the values mean.
    pub(crate) fn weight(self) -> Weight {
        match self.events {
            Some(events) => events.into(),
            None => self.weight.into(),
        }
    }

    /// Whether the profile is of launches and calls.
    pub(crate) fn launches(self) -> Option<LaunchOptions> {
        self.events.map(|_| LaunchOptions {
            timed: self.times_calls(),
        })
    }

    /// Whether all calls must be timed.
    pub(crate) fn times_calls(self) -> bool {
        self.events == Some(EventsArg::TimeInCall)
    }
}

impl From<WeightArg> for Weight {
    fn from(weight: WeightArg) -> Self {
        match weight {
            WeightArg::Time => Self::Time,
            WeightArg::Samples => Self::Samples,
        }
    }
}

/// Which samples a profile shows, and in which order of frames.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct ViewArgs {
    /// Turn stacks around: the device or leaf first
    ///
    /// Who had it done is above. For folded stacks and flame graphs.
    #[arg(long)]
    inverted: bool,

    /// Only samples of devices
    #[arg(long, conflicts_with_all = ["cpu_only", "events"])]
    device_only: bool,

    /// Only samples of CPUs
    #[arg(long, conflicts_with = "events")]
    cpu_only: bool,

    /// Merge samples of devices by their stall reason first
    ///
    /// The reason comes right after `-`, before the device's source. For folded stacks
    /// and flame graphs.
    #[arg(long, conflicts_with_all = ["cpu_only", "events"])]
    by_stall: bool,

    /// CPU samples of all processes, also beside samples of devices
    ///
    /// Where devices were sampled, a flame graph has the CPU samples of the processes that
    /// launched work, and says how many others there are. For flame graphs.
    #[arg(long, conflicts_with_all = ["cpu_only", "device_only", "events"])]
    all_processes: bool,
}

impl ViewArgs {
    /// What of these options needs more than folded stacks.
    pub(crate) fn of_more_than_stacks(self) -> Option<&'static str> {
        let given = [
            (self.device_only, "--device-only"),
            (self.cpu_only, "--cpu-only"),
            (self.by_stall, "--by-stall"),
            (self.all_processes, "--all-processes"),
        ];
        let mut given = given.into_iter().filter(|(is_given, _)| *is_given);
        given.next().map(|(_, option)| option)
    }

    /// How profiles are written.
    pub(crate) fn options(self, values: ValueArgs) -> ExportOptions {
        ExportOptions {
            weight: values.weight(),
            shown: match (self.cpu_only, self.device_only) {
                (true, _) => Shown::Cpu,
                (_, true) => Shown::Device,
                _ => Shown::All,
            },
            inverted: self.inverted,
            by_stall: self.by_stall,
            all_processes: self.all_processes,
            ..ExportOptions::default()
        }
    }

    /// Checks the options against the format.
    ///
    /// # Errors
    /// A usage error for an option that this format has no use for.
    pub(crate) fn check(self, destination: &Destination) -> Result<()> {
        let format = destination.format();
        let has_frames = matches!(format, Some(Format::Folded | Format::Svg));
        for (given, option) in [(self.inverted, "--inverted"), (self.by_stall, "--by-stall")] {
            if given && !has_frames {
                return Err(usage_error(format!(
                    "{option} is for folded stacks and flame graphs: use -o FILE.folded or \
                     FILE.svg, or --format"
                )));
            }
        }
        if self.all_processes && format != Some(Format::Svg) {
            return Err(usage_error(
                "--all-processes is for flame graphs: other formats have all processes in any \
                 case",
            ));
        }
        if self.cpu_only && matches!(format, Some(Format::UnitraceCsv | Format::Iaprof)) {
            return Err(usage_error(
                "--cpu-only leaves nothing for this format: it has samples of devices only",
            ));
        }
        let events = format.is_some_and(|f| f.is_trace() || f == Format::Capture);
        for (given, option) in [
            (self.device_only, "--device-only"),
            (self.cpu_only, "--cpu-only"),
        ] {
            if given && events {
                return Err(usage_error(format!(
                    "{option} is for profiles: traces and captures hold everything"
                )));
            }
        }
        Ok(())
    }
}

/// Where a profile goes, and as what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A short text on the terminal.
    Summary,
    /// The same text in a file.
    SummaryFile(PathBuf),
    /// A directory for TensorBoard.
    Directory(PathBuf),
    /// stdout.
    Stdout(Format),
    /// A file.
    File(PathBuf, Format),
    /// One file per window in a directory.
    Windows {
        /// The directory.
        directory: PathBuf,
        /// Format of each file.
        format: Format,
        /// Length of a window.
        every: Duration,
        /// How many files to keep; `None`: all.
        keep: Option<u32>,
    },
}

impl Destination {
    /// Whether it tells the source lines of frames: others have names only.
    pub(crate) fn has_source_lines(&self) -> bool {
        let (Self::Stdout(format) | Self::File(_, format) | Self::Windows { format, .. }) = self
        else {
            return false;
        };
        // Of a capture it may be made yet.
        matches!(format, Format::Pprof | Format::Capture)
    }

    /// Whether single events are kept, not only what they add up to.
    pub(crate) fn keeps_events(&self) -> bool {
        self.is_trace()
            || matches!(
                self,
                Self::File(_, Format::Capture) | Self::Stdout(Format::Capture)
            )
    }

    /// Whether it is a timeline.
    pub(crate) fn is_trace(&self) -> bool {
        match self {
            Self::File(_, format) | Self::Stdout(format) => format.is_trace(),
            Self::Directory(_) => true,
            Self::Summary | Self::SummaryFile(_) | Self::Windows { .. } => false,
        }
    }

    /// From `-o` and `--format`.
    ///
    /// # Errors
    /// A usage error if the format is not known, or binary and for a terminal; stdout
    /// is closed and needed.
    pub(crate) fn new(output: Option<&Path>, format: Option<ProfileFormat>) -> Result<Self> {
        let destination = Self::decide(output, format, io::stdout().is_terminal())?;
        if matches!(destination, Self::Summary | Self::Stdout(_)) {
            stdout::require()?;
        }
        Ok(destination)
    }

    fn decide(
        output: Option<&Path>,
        format: Option<ProfileFormat>,
        terminal: bool,
    ) -> Result<Self> {
        let is_dash = output == Some(Path::new("-"));
        let file = output.filter(|_| !is_dash);
        match (file, format) {
            (Some(path), format) if is_directory(path, format)? => {
                Ok(Self::Directory(path.to_owned()))
            }
            (None, Some(ProfileFormat::Tensorboard)) => Err(usage_error(
                "--format tensorboard writes a directory: name it with -o DIR/",
            )),
            (Some(path), Some(ProfileFormat::Summary)) => Ok(Self::SummaryFile(path.to_owned())),
            (None, Some(ProfileFormat::Summary)) => Ok(Self::Summary),
            (None, None) if terminal && !is_dash => Ok(Self::Summary),
            (Some(path), format) => {
                let format = format
                    .and_then(ProfileFormat::of_file)
                    .or_else(|| Format::from_extension(path))
                    .or_else(|| is_device(path).then_some(Format::Folded));
                let format = format.ok_or_else(|| unknown_extension(path))?;
                Ok(Self::File(path.to_owned(), format))
            }
            (None, format) => {
                let format = format.and_then(ProfileFormat::of_file);
                let format = format.unwrap_or(Format::Folded);
                if terminal && matches!(format, Format::Pprof | Format::Capture | Format::Perfetto)
                {
                    return Err(usage_error(
                        "this format is not for a terminal: name a file with -o FILE",
                    ));
                }
                Ok(Self::Stdout(format))
            }
        }
    }

    /// The format; `None`: the summary for a terminal, which is none.
    pub(crate) fn format(&self) -> Option<Format> {
        match self {
            Self::Summary | Self::SummaryFile(_) => None,
            Self::Directory(_) => Some(Format::Chrome),
            Self::Stdout(format) | Self::File(_, format) | Self::Windows { format, .. } => {
                Some(*format)
            }
        }
    }

    /// Whether the profile goes through stdout to something that is no terminal.
    pub(crate) fn uses_stdout(&self) -> bool {
        match self {
            Self::Stdout(_) => true,
            Self::Summary => !io::stdout().is_terminal(),
            Self::SummaryFile(_) | Self::File(..) | Self::Directory(_) | Self::Windows { .. } => {
                false
            }
        }
    }

    /// Whether files are written.
    pub(crate) fn writes_files(&self) -> bool {
        !matches!(self, Self::Summary | Self::Stdout(_))
    }
}

/// Whether `-o` names a directory, for TensorBoard: it ends in a slash, is one already, or
/// the format says so.
///
/// # Errors
/// It is a directory, and the format is a file's.
pub(crate) fn is_directory(path: &Path, format: Option<ProfileFormat>) -> Result<bool> {
    let is_directory = path.as_os_str().as_encoded_bytes().ends_with(b"/") || caller::is_dir(path);
    match format {
        Some(ProfileFormat::Tensorboard) => Ok(true),
        Some(_) if is_directory => {
            let example = path.join("profile.svg");
            Err(usage_error(format!(
                "{} is a directory, and this format is a file: name one in it, such as -o {}",
                path.display(),
                example.display()
            )))
        }
        _ => Ok(is_directory),
    }
}

/// Whether a path names no file but a device or a descriptor: /dev/null, /dev/stderr.
pub(crate) fn is_device(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

fn unknown_extension(path: &Path) -> anyhow::Error {
    usage_error(format!(
        "the name {} does not tell the format: use .folded, .svg, .pb.gz, .json, .pftrace, .html, \
         .stalls.csv, .iaprof or .aiprof, DIR/ for TensorBoard, or say --format",
        path.display()
    ))
}

/// Writes a profile to an opened file and completes it.
///
/// # Errors
/// The file could not be written; nothing is left behind then.
pub(crate) fn write_file(
    profile: &Profile,
    format: Format,
    options: &ExportOptions,
    mut file: OutputFile,
) -> Result<()> {
    say_what_is_left_out(profile, format);
    let context = format!("cannot write {}", file.path().display());
    export::write(profile, format, options, &mut file).context(context)?;
    file.commit()
}

/// Tables of stalls have no place for some samples.
fn say_what_is_left_out(profile: &Profile, format: Format) {
    if !matches!(format, Format::UnitraceCsv | Format::Iaprof) {
        return;
    }
    let written = StallTable::of(profile).total();
    match StallTable::uncounted(profile) {
        0 if written == 0 => {
            tracing::warn!("no device was sampled: the table of stalls is empty");
        }
        0 => {}
        n => tracing::warn!(
            "{n} device samples without a stall reason or an instruction are not in the table"
        ),
    }
}

/// Writes a profile to stdout.
///
/// # Errors
/// stdout could not be written, for example because it is closed.
pub(crate) fn write_stdout(
    profile: &Profile,
    format: Format,
    options: &ExportOptions,
) -> Result<()> {
    say_what_is_left_out(profile, format);
    let mut out = BufWriter::new(io::stdout().lock());
    export::write(profile, format, options, &mut out).context("cannot write to stdout")?;
    out.flush().context("cannot write to stdout")
}

/// How the short text is laid out.
pub(crate) fn summary_options(shown: Shown, is_file: bool) -> SummaryOptions {
    let default = SummaryOptions::default();
    SummaryOptions {
        width: if is_file { FILE_WIDTH } else { screen::width() },
        color: !is_file && screen::has_colors(),
        shown,
        ..default
    }
}

/// Writes the short text to an opened file and completes it.
///
/// # Errors
/// The file could not be written; nothing is left behind then.
pub(crate) fn write_summary_file(
    profile: &Profile,
    options: &ExportOptions,
    mut file: OutputFile,
) -> Result<()> {
    let context = format!("cannot write {}", file.path().display());
    let layout = summary_options(options.shown, true);
    export::summary::write(profile, &layout, &mut file).context(context)?;
    file.commit()
}

/// Writes the short text for a terminal.
///
/// # Errors
/// stdout could not be written.
pub(crate) fn write_summary(profile: &Profile, shown: Shown) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let options = summary_options(shown, false);
    export::summary::write(profile, &options, &mut out).context("cannot write to stdout")?;
    out.flush().context("cannot write to stdout")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_destination_follows_from_output_format_and_terminal() {
        use Destination::{Directory, File, Stdout, Summary};
        let file = |name: &str, format| File(name.into(), format);
        for (output, format, terminal, expected) in [
            (None, None, true, Summary),
            (None, None, false, Stdout(Format::Folded)),
            (None, Some(ProfileFormat::Svg), true, Stdout(Format::Svg)),
            (
                None,
                Some(ProfileFormat::Pprof),
                false,
                Stdout(Format::Pprof),
            ),
            (Some("-"), None, true, Stdout(Format::Folded)),
            (None, Some(ProfileFormat::Summary), true, Summary),
            (None, Some(ProfileFormat::Summary), false, Summary),
            (Some("-"), Some(ProfileFormat::Summary), false, Summary),
            (
                Some("a.svg"),
                Some(ProfileFormat::Summary),
                true,
                Destination::SummaryFile("a.svg".into()),
            ),
            (Some("a/"), None, true, Directory("a/".into())),
            (Some("/"), None, false, Directory("/".into())),
            (
                Some("a"),
                Some(ProfileFormat::Tensorboard),
                true,
                Directory("a".into()),
            ),
            (
                Some("/dev/null"),
                None,
                true,
                file("/dev/null", Format::Folded),
            ),
            (Some("a.svg"), None, true, file("a.svg", Format::Svg)),
            (Some("a.pb.gz"), None, true, file("a.pb.gz", Format::Pprof)),
            (
                Some("a.aiprof"),
                None,
                false,
                file("a.aiprof", Format::Capture),
            ),
            (
                Some("a.svg"),
                Some(ProfileFormat::Folded),
                true,
                file("a.svg", Format::Folded),
            ),
            (
                Some("a"),
                Some(ProfileFormat::Folded),
                true,
                file("a", Format::Folded),
            ),
        ] {
            let found = Destination::decide(output.map(Path::new), format, terminal).unwrap();
            assert_eq!(found, expected, "{output:?} {format:?} {terminal}");
        }
    }

    #[test]
    fn binary_on_a_terminal_and_unknown_names_are_refused() {
        for (output, format) in [
            (None, Some(ProfileFormat::Pprof)),
            (Some("-"), Some(ProfileFormat::Capture)),
            (Some("profile"), None),
            (Some("a/"), Some(ProfileFormat::Svg)),
            (None, Some(ProfileFormat::Tensorboard)),
            (Some("-"), Some(ProfileFormat::Tensorboard)),
            (None, Some(ProfileFormat::Perfetto)),
            (Some("profile.xyz"), None),
        ] {
            let error = Destination::decide(output.map(Path::new), format, true).unwrap_err();
            assert_eq!(crate::cli::exit_code(&error), 2, "{output:?} {format:?}");
        }
    }
}
