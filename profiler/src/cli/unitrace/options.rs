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

const METRICS: &str = "hardware metrics other than stalls need code inside the program, and aiprof \
    has none; for stalls of Intel GPUs use `aiprof -o x.aiprof COMMAND` and `aiprof stalls`";
const IN_TRACE: &str = "Write a Chrome trace of calls, launches and operations on devices";

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
        "Print a line for each kernel and copy when it has ended",
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
        "Include OpenCL, not only Level Zero",
    ),
    yes(
        "-v",
        "--verbose",
        "",
        Id::Verbose,
        "Separate kernels by SIMD width, work groups and sizes, and copies by bytes",
    ),
    yes(
        "",
        "--separate-tiles",
        "",
        Id::SeparateTiles,
        "Show sub-devices separately, where the program uses them separately",
    ),
    yes(
        "-o",
        "--output",
        "FILE",
        Id::Output,
        "Write tables to FILE.<pid>[.<rank>], with the extension last [default: stderr]",
    ),
    yes(
        "",
        "--output-dir-path",
        "DIR",
        Id::OutputDir,
        "Write Chrome traces to DIR",
    ),
    yes(
        "",
        "--result-dir",
        "DIR",
        Id::ResultDir,
        "Write everything to DIR/[rank_<rank>.]<name>.<pid>/",
    ),
    yes(
        "",
        "--start-paused",
        "",
        Id::StartPaused,
        "Start paused; the program resumes with __itt_resume or PTI_ENABLE_COLLECTION",
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
        "Name this recording for --pause, --resume and --stop; --start-paused lets it begin paused",
    ),
    yes(
        "",
        "--pause",
        "NAME",
        Id::Pause,
        "Pause the recording with this session name, and do nothing else",
    ),
    yes(
        "",
        "--resume",
        "NAME",
        Id::Resume,
        "Resume the recording with this session name, and do nothing else",
    ),
    yes(
        "",
        "--stop",
        "NAME",
        Id::Stop,
        "Pause the recording with this session name until its COMMAND ends and tables are written",
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
        "Keep only device operations whose name contains one of NAMES",
    ),
    yes(
        "",
        "--exclude-kernels",
        "NAMES",
        Id::Exclude,
        "Leave out those whose name contains one of NAMES, after --include-kernels",
    ),
    yes(
        "",
        "--include-kernels-file",
        "FILE",
        Id::IncludeFile,
        "Like --include-kernels, with the names in a file",
    ),
    yes(
        "",
        "--exclude-kernels-file",
        "FILE",
        Id::ExcludeFile,
        "Like --exclude-kernels, with the names in a file",
    ),
    yes(
        "",
        "--ranks-to-sample",
        "RANKS",
        Id::Ranks,
        "Record only these ranks of an MPI job; the others run without being recorded",
    ),
    yes(
        "",
        "--follow-child-process",
        "0|1",
        Id::FollowChildren,
        "0: write no tables for the processes that COMMAND starts",
    ),
    yes("", "--version", "", Id::Version, "Print the version"),
    yes("", "--help", "", Id::Help, "Print this help"),
    nothing("--demangle", "", "names are always demangled"),
    nothing("--tid", "", "it applies to --call-logging only"),
    nothing("--pid", "", "it applies to --call-logging only"),
    nothing(
        "--chrome-no-thread-on-device",
        "",
        "the trace has a track for each queue of a device",
    ),
    nothing(
        "--chrome-no-engine-on-device",
        "",
        "the trace has a track for each queue of a device",
    ),
    nothing(
        "--chrome-event-buffer-size",
        "N",
        "aiprof limits its own memory, and does not use the program's",
    ),
    nothing(
        "--teardown-on-signal",
        "N",
        "tables are always written, however the program ends",
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
        "ITT tasks are visible only to a library in the program; `aiprof --ranges` can load one",
    ),
    no(
        "",
        "--chrome-kmd-logging",
        "SCRIPT",
        "aiprof runs no scripts; `aiprof -o t.json COMMAND` records the driver's calls and fences",
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
        "use `aiprof -o x.aiprof COMMAND`, then `aiprof stalls x.aiprof`",
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
        "it applies to metrics, which aiprof does not record",
    ),
    no(
        "",
        "--system-time",
        "",
        "aiprof's times are always those of CLOCK_MONOTONIC",
    ),
];
