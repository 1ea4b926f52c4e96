//! unitrace 2.3's options: which aiprof has, and why not the others.

/// What an option sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Id {
    HostTiming,
    DeviceTiming,
    Submission,
    Timeline,
    CclSummary,
    OpenCl,
    Verbose,
    SeparateTiles,
    Output,
    OutputDir,
    ResultDir,
    StartPaused,
    Session,
    Pause,
    Resume,
    Stop,
    Chrome,
    Include,
    Exclude,
    IncludeFile,
    ExcludeFile,
    Ranks,
    FollowChildren,
    Version,
    Help,
}

/// What becomes of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Has {
    /// It does what unitrace's does.
    Yes(Id),
    /// It is taken and changes nothing, for this reason.
    Nothing(&'static str),
    /// It is refused, for this reason.
    No(&'static str),
}

/// An option.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opt {
    /// `-x`, or empty.
    pub(super) short: &'static str,
    /// `--name`.
    pub(super) long: &'static str,
    /// What stands for its value in the help; empty: it has none.
    pub(super) value: &'static str,
    /// What becomes of it.
    pub(super) has: Has,
    /// What it does; empty for those that aiprof does not have.
    pub(super) help: &'static str,
}

const fn yes(
    short: &'static str,
    long: &'static str,
    value: &'static str,
    id: Id,
    help: &'static str,
) -> Opt {
    Opt {
        short,
        long,
        value,
        has: Has::Yes(id),
        help,
    }
}

const fn nothing(long: &'static str, value: &'static str, why: &'static str) -> Opt {
    Opt {
        short: "",
        long,
        value,
        has: Has::Nothing(why),
        help: "",
    }
}

const fn no(
    short: &'static str,
    long: &'static str,
    value: &'static str,
    why: &'static str,
) -> Opt {
    Opt {
        short,
        long,
        value,
        has: Has::No(why),
        help: "",
    }
}

const METRICS: &str = "hardware metrics other than stalls need code inside of the program, and \
    aiprof has none; stalls of Intel GPUs are in `aiprof -o x.aiprof COMMAND` and `aiprof stalls`";
const IN_TRACE: &str = "Write a Chrome trace of calls, launches and devices";

/// All of them, in the order of the help.
pub(super) static OPTIONS: &[Opt] = &[
    yes(
        "-h",
        "--host-timing",
        "",
        Id::HostTiming,
        "Times of host calls, by function",
    ),
    yes(
        "-d",
        "--device-timing",
        "",
        Id::DeviceTiming,
        "Times of kernels and copies on devices, and properties of kernels",
    ),
    yes(
        "-s",
        "--kernel-submission",
        "",
        Id::Submission,
        "Times from append to submit to execute, by kernel",
    ),
    yes(
        "-t",
        "--device-timeline",
        "",
        Id::Timeline,
        "A line for each kernel and copy that has ended",
    ),
    yes(
        "-r",
        "--ccl-summary-report",
        "",
        Id::CclSummary,
        "Times of oneCCL's calls, by function",
    ),
    yes(
        "",
        "--opencl",
        "",
        Id::OpenCl,
        "OpenCL too, not only Level Zero",
    ),
    yes(
        "-v",
        "--verbose",
        "",
        Id::Verbose,
        "Kernels by SIMD width, work groups and sizes, copies by bytes",
    ),
    yes(
        "",
        "--separate-tiles",
        "",
        Id::SeparateTiles,
        "Sub-devices by themselves, as far as the program uses them by themselves",
    ),
    yes(
        "-o",
        "--output",
        "FILE",
        Id::Output,
        "Tables to FILE.<pid>[.<rank>] with its extension last [without: to stderr]",
    ),
    yes(
        "",
        "--output-dir-path",
        "DIR",
        Id::OutputDir,
        "Chrome traces to DIR",
    ),
    yes(
        "",
        "--result-dir",
        "DIR",
        Id::ResultDir,
        "Everything to DIR/[rank_<rank>.]<name>.<pid>/",
    ),
    yes(
        "",
        "--start-paused",
        "",
        Id::StartPaused,
        "Begin when the program says so: __itt_resume, PTI_ENABLE_COLLECTION",
    ),
    yes(
        "",
        "--conditional-collection",
        "",
        Id::StartPaused,
        "The older name of --start-paused",
    ),
    yes(
        "",
        "--session",
        "NAME",
        Id::Session,
        "Let others pause and resume this recording; with --start-paused it begins paused",
    ),
    yes(
        "",
        "--pause",
        "NAME",
        Id::Pause,
        "Pause the recording of that session, and do nothing else",
    ),
    yes(
        "",
        "--resume",
        "NAME",
        Id::Resume,
        "Resume it, and do nothing else",
    ),
    yes(
        "",
        "--stop",
        "NAME",
        Id::Stop,
        "Pause it for good: its tables are written when its COMMAND ends",
    ),
    yes("", "--chrome-call-logging", "", Id::Chrome, IN_TRACE),
    yes("", "--chrome-kernel-logging", "", Id::Chrome, IN_TRACE),
    yes("", "--chrome-device-logging", "", Id::Chrome, IN_TRACE),
    yes("", "--chrome-sycl-logging", "", Id::Chrome, IN_TRACE),
    yes("", "--chrome-mpi-logging", "", Id::Chrome, IN_TRACE),
    yes("", "--chrome-ccl-logging", "", Id::Chrome, IN_TRACE),
    yes("", "--chrome-dnn-logging", "", Id::Chrome, IN_TRACE),
    yes(
        "",
        "--include-kernels",
        "NAMES",
        Id::Include,
        "Only commands of devices with one of these parts in their names",
    ),
    yes(
        "",
        "--exclude-kernels",
        "NAMES",
        Id::Exclude,
        "Of these, none with one of these parts",
    ),
    yes(
        "",
        "--include-kernels-file",
        "FILE",
        Id::IncludeFile,
        "As --include-kernels, from a file",
    ),
    yes(
        "",
        "--exclude-kernels-file",
        "FILE",
        Id::ExcludeFile,
        "As --exclude-kernels, from a file",
    ),
    yes(
        "",
        "--ranks-to-sample",
        "RANKS",
        Id::Ranks,
        "Run the other ranks of an MPI job without recording them",
    ),
    yes(
        "",
        "--follow-child-process",
        "0|1",
        Id::FollowChildren,
        "0: no tables of the processes that COMMAND starts",
    ),
    yes("", "--version", "", Id::Version, "Print the version"),
    yes("", "--help", "", Id::Help, "Print this help"),
    nothing("--demangle", "", "names are demangled in any case"),
    nothing("--tid", "", "it is for --call-logging"),
    nothing("--pid", "", "it is for --call-logging"),
    nothing(
        "--chrome-no-thread-on-device",
        "",
        "the trace has a row for each queue of a device",
    ),
    nothing(
        "--chrome-no-engine-on-device",
        "",
        "the trace has a row for each queue of a device",
    ),
    nothing(
        "--chrome-event-buffer-size",
        "N",
        "aiprof's own memory is bounded, the program's is not used",
    ),
    nothing(
        "--teardown-on-signal",
        "N",
        "tables are written however the program ends",
    ),
    nothing(
        "--reset-event-on-device",
        "0|1",
        "aiprof adds no events to the program",
    ),
    no(
        "-c",
        "--call-logging",
        "",
        "`aiprof trace COMMAND` prints each call with its arguments and result",
    ),
    no(
        "",
        "--chrome-itt-logging",
        "",
        "tasks of ITT call no function unless a collector is loaded into the program",
    ),
    no(
        "",
        "--chrome-kmd-logging",
        "SCRIPT",
        "aiprof runs no scripts; `aiprof -o t.json COMMAND` has the driver's calls and fences",
    ),
    no("-q", "--metric-query", "", METRICS),
    no("-k", "--metric-sampling", "", METRICS),
    no("-g", "--group", "GROUP", METRICS),
    no("-i", "--sampling-interval", "US", METRICS),
    no("", "--idle-sampling", "", METRICS),
    no("", "--metric-list", "", METRICS),
    no(
        "",
        "--stall-sampling",
        "",
        "stalls are in a recording: `aiprof -o x.aiprof COMMAND`, then `aiprof stalls x.aiprof`",
    ),
    no(
        "",
        "--device-list",
        "",
        "`aiprof doctor` shows the devices that can be observed",
    ),
    no(
        "",
        "--devices-to-sample",
        "DEVICES",
        "it is for metrics, which aiprof does not have",
    ),
    no(
        "",
        "--system-time",
        "",
        "times are those of CLOCK_MONOTONIC",
    ),
];
