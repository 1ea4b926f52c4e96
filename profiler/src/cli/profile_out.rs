//! Options of what profiles show.

use super::choice;
use super::option_rules::WAITS;
use super::values::named;
use aiprof_formats::export::{self, ExportOptions, FileFormat, Shown, Weight};
use aiprof_model::profile::Profile;
use aiprof_record::aggregate::{LaunchOptions, WaitOptions};
use clap::ValueEnum;

/// The meanings of `--weight`.
const WEIGHTS: &[(&str, &str, Weight)] = &[
    (
        "time",
        "On-CPU time, and device time, in microseconds",
        Weight::Time,
    ),
    ("samples", "Number of samples", Weight::Samples),
];

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
    #[arg(long, hide_short_help = true, value_parser = named(WEIGHTS), default_value = "time")]
    weight: Weight,

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

    /// Whether each of these options was given.
    pub(crate) fn given(self) -> [(&'static str, bool); 3] {
        [
            ("--events", self.events.is_some()),
            (WAITS, self.waits().is_some()),
            ("--wakers", self.wakers),
        ]
    }

    /// Whether `--wakers` was given.
    pub(crate) fn has_wakers(self) -> bool {
        self.wakers
    }

    /// What the values mean.
    pub(crate) fn weight(self) -> Weight {
        match self.events {
            Some(events) => events.into(),
            None => self.weight,
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
    /// Whether each of these options was given.
    pub(crate) fn given(&self) -> [(&'static str, bool); 7] {
        [
            ("--inverted", self.inverted),
            ("--device-only", self.device_only),
            ("--cpu-only", self.cpu_only),
            ("--by-stall", self.by_stall),
            ("--by", self.by_label.is_some()),
            ("--lines", self.lines),
            ("--all-processes", self.all_processes),
        ]
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
}

/// A line with the processes that are not in what is written, if any.
pub(crate) fn note_of_processes(
    profile: &Profile,
    format: &FileFormat,
    options: &ExportOptions,
) -> Option<String> {
    let leaves_out = format.shows()?.leaves_out_processes();
    leaves_out.then(|| export::processes_left_out(profile, options))?
}
