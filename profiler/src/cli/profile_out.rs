//! From a finished profile to where it was asked for.

use super::destination::Destination;
use super::output::OutputFile;
use super::{choice, screen, usage_error};
use aiprof_analysis::aggregate::{LaunchOptions, WaitOptions};
use aiprof_formats::export::summary::SummaryOptions;
use aiprof_formats::export::{self, ExportOptions, Format, Shown, Weight};
use aiprof_model::profile::{Profile, StallTable};
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::io::{self, BufWriter, Write};

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
    /// OTLP profiles, as OpenTelemetry's collectors take them
    Otlp,
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
            Self::Otlp => Format::Otlp,
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
    /// The width of frames
    #[arg(long, value_enum, default_value_t = WeightArg::default())]
    weight: WeightArg,

    /// Instead of CPU time: what was given to accelerators, by the call paths that did
    ///
    /// Each stack ends in the function of the runtime, `-`, and the kernel or the
    /// operation. Calls are recorded whenever a capture is, so a capture can be reported
    /// either way; time-in-call needs one that was recorded with --events time-in-call.
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with = "weight")]
    events: Option<EventsArg>,

    /// Instead of CPU time: the time in which threads waited, and what for
    ///
    /// Each stack ends in what was waited for: a lock, I/O, time, a pipe or socket, a
    /// process, the accelerator, or a CPU. Waits of a sampling period (-F) or more are all
    /// recorded, of shorter ones as many as stand for the rest. A capture can be reported
    /// either way if it was recorded with this or with --wall; traces have the waits of a
    /// recording beside its samples.
    #[arg(long, conflicts_with = "events")]
    off_cpu: bool,

    /// CPU time and waits in one picture
    #[arg(long, hide_short_help = true, conflicts_with_all = ["events", "off_cpu"])]
    wall: bool,

    /// With --off-cpu or --wall: who woke the thread, as the leaf of its stack; of a trace
    /// as an argument
    #[arg(long, hide_short_help = true, conflicts_with = "events")]
    wakers: bool,
}

impl ValueArgs {
    /// How waits are added up, if they are.
    pub(crate) fn waits(self) -> Option<WaitOptions> {
        (self.off_cpu || self.wall).then_some(WaitOptions {
            wall: self.wall,
            wakers: self.wakers,
        })
    }

    /// Whether `--wakers` was given.
    pub(crate) fn has_wakers(self) -> bool {
        self.wakers
    }

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
#[derive(Clone, Debug, Default, clap::Args)]
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

    /// Begin stacks with a label: `container=0123`
    ///
    /// container, pod, namespace, pod_name, container_name, unit (of systemd), user, rank,
    /// local_rank, device, or a key of --label. For folded stacks and flame graphs; pprof has all labels in any case.
    #[arg(long = "by", value_name = "LABEL", hide_short_help = true, value_parser = choice::parse_key)]
    by_label: Option<String>,

    /// Source lines too: `parse (json.c:42)`
    ///
    /// The same function at another line is another frame then. Of what runs on CPUs, from
    /// DWARF: of programs built with -g, or whose debug files are there. For folded stacks
    /// and flame graphs; pprof and captures have them in any case.
    #[arg(long, hide_short_help = true, conflicts_with = "device_only")]
    lines: bool,

    /// CPU samples of all processes, also beside samples of devices
    ///
    /// Where devices were sampled, a profile has the CPU samples of the processes that
    /// launched work, and says how many others there are. For flame graphs, folded stacks and
    /// pprof.
    #[arg(long, conflicts_with_all = ["cpu_only", "device_only", "events"])]
    all_processes: bool,
}

impl ViewArgs {
    /// What of these options needs more than folded stacks.
    pub(crate) fn of_more_than_stacks(&self) -> Option<&'static str> {
        let given = [
            (self.device_only, "--device-only"),
            (self.cpu_only, "--cpu-only"),
            (self.by_stall, "--by-stall"),
            (self.by_label.is_some(), "--by"),
            (self.lines, "--lines"),
            (self.all_processes, "--all-processes"),
        ];
        let mut given = given.into_iter().filter(|(is_given, _)| *is_given);
        given.next().map(|(_, option)| option)
    }

    /// Whether the source lines of frames are looked up, also for what has no place for
    /// them without being told so.
    pub(crate) fn has_lines(&self) -> bool {
        self.lines
    }

    /// How profiles are written.
    pub(crate) fn options(&self, values: ValueArgs) -> ExportOptions {
        ExportOptions {
            weight: values.weight(),
            shown: match (self.cpu_only, self.device_only) {
                (true, _) => Shown::Cpu,
                (_, true) => Shown::Device,
                _ => Shown::All,
            },
            inverted: self.inverted,
            by_stall: self.by_stall,
            by_label: self.by_label.clone(),
            source_lines: self.lines,
            all_processes: self.all_processes,
            ..ExportOptions::default()
        }
    }

    /// Checks the options against the format.
    ///
    /// # Errors
    /// A usage error for an option that this format has no use for.
    pub(crate) fn check(&self, destination: &Destination) -> Result<()> {
        let format = destination.format();
        let has_frames = matches!(format, Some(Format::Folded | Format::Svg));
        for (given, option) in [
            (self.inverted, "--inverted"),
            (self.by_stall, "--by-stall"),
            (self.by_label.is_some(), "--by"),
        ] {
            if given && !has_frames {
                return Err(usage_error(format!(
                    "{option} is for folded stacks and flame graphs: use -o FILE.folded or \
                     FILE.svg, or --format"
                )));
            }
        }
        if self.lines && !has_frames {
            return Err(usage_error(match destination.has_source_lines() {
                true => {
                    "--lines is for folded stacks and flame graphs: this format has source \
                         lines in any case"
                }
                false => {
                    "--lines is for folded stacks and flame graphs: use -o FILE.folded or \
                          FILE.svg, or --format"
                }
            }));
        }
        if self.all_processes && !format.is_some_and(chooses_processes) {
            return Err(usage_error(
                "--all-processes is for flame graphs, folded stacks and pprof: all else has all \
                 processes in any case",
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

/// Whether what is written has only the processes that launched work, where devices were
/// sampled.
fn chooses_processes(format: Format) -> bool {
    matches!(
        format,
        Format::Folded | Format::Svg | Format::Pprof | Format::Otlp
    )
}

/// A line that says which processes are not in what is written, if any.
pub(crate) fn note_of_processes(
    profile: &Profile,
    destination: &Destination,
    options: &ExportOptions,
) -> Option<String> {
    let format = destination
        .format()
        .filter(|format| chooses_processes(*format));
    format.and_then(|_| export::processes_left_out(profile, options))
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
    say_if_no_label(profile, options);
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

/// A label that nothing has is perhaps mistyped.
fn say_if_no_label(profile: &Profile, options: &ExportOptions) {
    let Some(label) = &options.by_label else {
        return;
    };
    let mut samples = profile.samples.iter();
    if samples.all(|sample| profile.label(sample, label).is_none()) {
        tracing::warn!(
            "no process has a label {label}: --by takes container, pod, namespace, pod_name, \
             container_name, unit, user, rank, local_rank, device and the keys of --label"
        );
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
    say_if_no_label(profile, options);
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
