//! From a finished profile to where it was asked for.

use super::destination::Destination;
use super::output::OutputFile;
use super::{choice, screen, usage_error};
use aiprof_formats::export::summary::SummaryOptions;
use aiprof_formats::export::{self, ExportOptions, Format, Shown, Weight};
use aiprof_model::profile::{Profile, StallTable};
use aiprof_record::aggregate::{LaunchOptions, WaitOptions};
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::io::{self, BufWriter, Write};

/// Width of texts in files.
const FILE_WIDTH: usize = 100;

/// The formats of `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileFormat {
    /// Folded stacks: one line per stack, for flame graph tools
    Folded,
    /// Flame graph for a browser
    Svg,
    /// pprof, gzipped
    Pprof,
    /// OTLP profiles, for OpenTelemetry collectors
    Otlp,
    /// Stall counts by device instruction, as unitrace writes them
    UnitraceCsv,
    /// iaprof's interchange text: stalls by launch and instruction
    Iaprof,
    /// Chrome trace, for Perfetto and speedscope
    Chrome,
    /// Trace in Perfetto's own format: any length, with the stacks of samples
    Perfetto,
    /// HTML page with findings and tables of what devices did
    Page,
    /// The whole recording, for `aiprof report`
    Capture,
    /// Trace for TensorBoard's PyTorch plugin, in a directory
    Tensorboard,
    /// Short text: totals and hottest functions
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
    /// On-CPU time, and device time, in microseconds
    #[default]
    Time,
    /// Number of samples
    Samples,
}

/// The weights of `--events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EventsArg {
    /// Number of kernels, copies and fills that were launched
    Launches,
    /// Wall-clock time in functions of runtimes, without nested calls
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
    /// What the width of a frame shows
    #[arg(long, hide_short_help = true, value_enum, default_value_t = WeightArg::default())]
    weight: WeightArg,

    /// Instead of CPU time, show accelerator calls by the call paths that made them
    ///
    /// Each stack ends in the function of the runtime, a frame `-` (the border between CPU and
    /// device), and the kernel or operation. Captures always contain calls. Only time-in-call
    /// needs a capture that was recorded with --events time-in-call.
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with = "weight")]
    events: Option<EventsArg>,

    /// Instead of CPU time, show how long threads waited, and for what
    ///
    /// Each stack ends in what the thread waited for: a lock, I/O, a timer (sleep), a pipe or
    /// socket, a process, the accelerator, or a CPU. All waits of at least a sampling period (-F)
    /// are recorded. Shorter waits are sampled, and each sample stands for several waits. A
    /// capture has waits only if it was recorded with --off-cpu or --wall. Traces show waits
    /// beside the samples.
    #[arg(long, conflicts_with = "events")]
    off_cpu: bool,

    /// Show CPU time and waits together
    #[arg(long, hide_short_help = true, conflicts_with_all = ["events", "off_cpu"])]
    wall: bool,

    /// With --off-cpu or --wall, show who woke the thread
    ///
    /// The waker is the leaf of the stack. In a trace it is an argument of the wait.
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
    /// Invert stacks: device or leaf first
    ///
    /// aiprof draws flame graphs from the top down. With this option, the leaf or the device is at
    /// the top, and callers are below the functions that they call. For folded stacks and flame
    /// graphs.
    #[arg(long)]
    inverted: bool,

    /// Show only device samples
    #[arg(long, conflicts_with_all = ["cpu_only", "events"])]
    device_only: bool,

    /// Show only CPU samples
    #[arg(long, hide_short_help = true, conflicts_with = "events")]
    cpu_only: bool,

    /// Group device samples by stall reason first
    ///
    /// The stall reason is the first frame after `-` (the border between CPU and device), before
    /// the kernel's source, name and instruction. For folded stacks and flame graphs.
    #[arg(long, hide_short_help = true, conflicts_with_all = ["cpu_only", "events"])]
    by_stall: bool,

    /// Begin each stack with this label, such as `container=0123`
    ///
    /// LABEL is container, pod, namespace, pod_name, container_name, unit (of systemd), user,
    /// rank, local_rank, device, or a key of --label. For folded stacks and flame graphs; pprof
    /// always contains all labels.
    #[arg(long = "by", value_name = "LABEL", hide_short_help = true, value_parser = choice::parse_key)]
    by_label: Option<String>,

    /// Add source lines to frames: `parse (json.c:42)`
    ///
    /// A function then has a separate frame for each of its lines. The lines of CPU code come
    /// from DWARF: build the program with -g, or install its debug files. For folded stacks and
    /// flame graphs; pprof, OTLP and captures always contain source lines.
    #[arg(long, hide_short_help = true, conflicts_with = "device_only")]
    lines: bool,

    /// Show CPU samples of all processes, even if devices were sampled
    ///
    /// Without this option, a profile with device samples contains only the CPU samples of
    /// processes that launched work. aiprof prints how many others it left out. For flame
    /// graphs, folded stacks, pprof and OTLP.
    #[arg(long, hide_short_help = true, conflicts_with_all = ["cpu_only", "device_only", "events"])]
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

    /// Whether `--lines` was given: source lines of frames are then looked up also for formats that
    /// show them only if asked.
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
                    "{option} applies only to folded stacks and flame graphs: use -o FILE.folded \
                     or FILE.svg, or --format"
                )));
            }
        }
        if self.lines && !has_frames {
            return Err(usage_error(match destination.has_source_lines() {
                true => {
                    "--lines applies only to folded stacks and flame graphs: this format always \
                     contains source lines"
                }
                false => {
                    "--lines applies only to folded stacks and flame graphs: use -o FILE.folded or \
                     FILE.svg, or --format"
                }
            }));
        }
        if self.all_processes && !format.is_some_and(chooses_processes) {
            return Err(usage_error(
                "--all-processes applies only to flame graphs, folded stacks, pprof and OTLP: \
                 other formats always contain all processes",
            ));
        }
        if self.cpu_only && matches!(format, Some(Format::UnitraceCsv | Format::Iaprof)) {
            return Err(usage_error(
                "--cpu-only cannot be used with this format, which contains only device samples",
            ));
        }
        let events = format.is_some_and(|f| f.is_trace() || f == Format::Capture);
        for (given, option) in [
            (self.device_only, "--device-only"),
            (self.cpu_only, "--cpu-only"),
        ] {
            if given && events {
                return Err(usage_error(format!(
                    "{option} applies only to profiles: traces and captures always contain all \
                     samples"
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

/// A line with the processes that are not in what is written, if any.
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
            tracing::warn!("the table of stalls is empty: no device was sampled");
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
            "no process has the label {label}: --by accepts container, pod, namespace, pod_name, \
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
