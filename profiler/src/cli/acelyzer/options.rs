//! acelyzer 1.3.0's options, and ours.

use super::argparse::{Opt, Values};

/// What an option sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Id {
    Help,
    Counter,
    CompilerInfo,
    LogLevel,
    EventFilter,
    EventLimit,
    Filter,
    Format,
    Freq,
    Flow,
    FreqScaling,
    Input,
    Intermediate,
    SkipEvents,
    DropGlobals,
    NoMpSync,
    Overlap,
    MaxTidStreams,
    Profile,
    Output,
    BuildCollEvent,
    MpSyncV2,
    SplitEvents,
    NoStats,
    SyncToDev,
    Verify,
    AutopilotData,
    KeepPrep,
    KeepNames,
    DisableTb,
    Tb,
    DisableFile,
    FlexTsFix,
    DisableInputWarnings,
    CommSummarizeSeq,
    PowerStats,
    TimeUnit,
    IgnoreCrit,
    Version,
    CompatBugs,
    PowerScale,
}

/// Counters that `-C` takes.
pub(super) const COUNTERS: &[&str] = &[
    "power_ts4",
    "power_ts3",
    "coll_bw",
    "bandwidth",
    "prep_queue",
    "rcu_util",
];
/// Formats that `-f` takes.
pub(super) const FORMATS: &[&str] = &["json", "pddf", "protobuf", "text"];
/// Ways that `-O` takes.
pub(super) const OVERLAPS: &[&str] = &["drop", "tid", "async", "warn", "shift"];
/// Units that `--time_unit` takes.
pub(super) const TIME_UNITS: &[&str] = &["ms", "ns"];

const fn flag(id: Id, short: &'static str, long: &'static str, help: &'static str) -> Opt<Id> {
    let (values, metavar) = (Values::Flag, "");
    Opt {
        id,
        short,
        long,
        exact: false,
        values,
        metavar,
        help,
    }
}

const fn one(
    id: Id,
    short: &'static str,
    long: &'static str,
    metavar: &'static str,
    help: &'static str,
) -> Opt<Id> {
    let values = Values::One;
    Opt {
        id,
        short,
        long,
        exact: false,
        values,
        metavar,
        help,
    }
}

/// All options, in acelyzer's order; then those that it does not have, which cannot be
/// shortened so that acelyzer's can be as before.
pub(super) static OPTIONS: &[Opt<Id>] = &[
    flag(Id::Help, "-h", "--help", "Show this help and exit"),
    Opt {
        id: Id::Counter,
        short: "-C",
        long: "--counter",
        exact: false,
        values: Values::Many,
        metavar: "[{power_ts4,power_ts3,coll_bw,bandwidth,prep_queue,rcu_util} ...]",
        help: "Counters to make, separated by blanks. power_ts4 takes the charge at TS4 \
               and gives watts, power_ts3 at TS3 and per cycle: one of the two. bandwidth: \
               data transfers; coll_bw: collectives; prep_queue: pending Cmpt Prep; \
               rcu_util: utilization, needs -c. (default: power_ts4 coll_bw prep_queue \
               rcu_util)",
    },
    one(
        Id::CompilerInfo,
        "-c",
        "--compiler_info",
        "COMPILER_INFO",
        "Where ideal cycles come from: a compiler log, or one for each rank separated by \
         commas, or the inductor cache directory of torch-spyre with \
         inductor-spyre/KERNEL/perf/ideal_cycles.json",
    ),
    one(
        Id::LogLevel,
        "-D",
        "--loglevel",
        "{0,1,2,3,4}",
        "What to print: 0 errors, 1 warnings, 2 information, 3 details, 4 every step \
         (default: 2)",
    ),
    one(
        Id::EventFilter,
        "",
        "--event_filter",
        "EVENT_FILTER",
        "Drop events by ATTRIBUTE:REGEX[,...], where REGEX is found in the attribute, as \
         in 'name:Prep$,args.Type:^Multi'. Neither , nor : can be part of REGEX",
    ),
    one(
        Id::EventLimit,
        "",
        "--event_limit",
        "EVENT_LIMIT",
        "Look at some events only, as in '{\"ts_start\": 1234.5, \"count\": 100}'. Keys: \
         skip and count (events), ts_start and ts_end (us), no_count_types (phases that \
         are always kept, default 'M')",
    ),
    one(
        Id::Filter,
        "-F",
        "--filter",
        "FILTER",
        "Phases to write, as in XM; others are left out",
    ),
    one(
        Id::Format,
        "-f",
        "--format",
        "{json,pddf,protobuf,text}",
        "Format of the output: json; pddf, a table of the events; text, for the report of \
         -V (default: json)",
    ),
    one(
        Id::Freq,
        "",
        "--freq",
        "FREQ",
        "Frequencies in MHz, SOC[:CORE]: of the device's cycle counter, and of the cores \
         to which ideal cycles refer (default: 1000.0:1100.0)",
    ),
    flag(
        Id::Flow,
        "",
        "--flow",
        "Find flows between senders and receivers",
    ),
    one(
        Id::FreqScaling,
        "",
        "--freq_scaling",
        "FREQ_SCALING",
        "Obsolete: use --freq",
    ),
    one(
        Id::Input,
        "-i",
        "--input",
        "INPUT",
        "Input files, separated by commas or blanks; the last part of each may be a \
         pattern, in quotes",
    ),
    flag(
        Id::Intermediate,
        "-I",
        "--intermediate",
        "Write the events after each stage, too, to OUTPUT_NN_STAGE",
    ),
    flag(
        Id::SkipEvents,
        "-k",
        "--skip_events",
        "No power from Cmpt Exec to Cmpt Exec or DmaI, nor from DmaO to DmaI",
    ),
    flag(
        Id::DropGlobals,
        "",
        "--drop_globals",
        "Drop host events that only frame others, such as round trips and callbacks",
    ),
    flag(
        Id::NoMpSync,
        "-M",
        "--no_mp_sync",
        "Leave the clocks of the ranks as they are",
    ),
    one(
        Id::Overlap,
        "-O",
        "--overlap",
        "{drop,tid,async,warn,shift}",
        "What to do if two events of a thread overlap in part. drop: drop the later one. \
         tid: move it to another tid. async: make it asynchronous. warn: only count it. \
         shift: let it start some nanoseconds later (default: tid)",
    ),
    one(
        Id::MaxTidStreams,
        "",
        "--max_tid_streams",
        "MAX_TID_STREAMS",
        "Other tids that -O tid may use for each tid; -1: any number (default: 5)",
    ),
    one(
        Id::Profile,
        "-P",
        "--profile",
        "PROFILE",
        "Stages to run: a JSON file, or one of default, everything, torch_minimal",
    ),
    one(
        Id::Output,
        "-o",
        "--output",
        "OUTPUT",
        "Output file; tables take their names from it (default: \
         processed_trace.pt.trace.json, with --disable_tb processed_trace.json, with -V \
         report.json)",
    ),
    flag(
        Id::BuildCollEvent,
        "-R",
        "--build_coll_event",
        "Make an event of each collective, with its bandwidth; needs --flow",
    ),
    flag(
        Id::MpSyncV2,
        "-S",
        "--use_mp_sync_v2",
        "Align the clocks of ranks in acelyzer's second way",
    ),
    flag(
        Id::SplitEvents,
        "-s",
        "--split_events",
        "Obsolete: split device events into DmaI, Cmpt and DmaO",
    ),
    flag(
        Id::NoStats,
        "-t",
        "--no_stats",
        "Write no statistics tables",
    ),
    flag(Id::SyncToDev, "-T", "--sync_to_dev", "Has no effect"),
    flag(
        Id::Verify,
        "-V",
        "--verify",
        "Verify the input instead: overlapping kernels, kernels outside of their parents; \
         exit code 1 if it fails",
    ),
    one(
        Id::AutopilotData,
        "",
        "--autopilot_data",
        "AUTOPILOT_DATA",
        "Has no effect (default: ai_kernel.db)",
    ),
    flag(
        Id::KeepPrep,
        "",
        "--keep_prep",
        "Keep Cmpt Prep events besides their counter",
    ),
    flag(
        Id::KeepNames,
        "",
        "--keep_names",
        "Keep the numbers in kernel names, which are otherwise taken out for aggregation",
    ),
    flag(
        Id::DisableTb,
        "",
        "--disable_tb",
        "Leave names and processes as they are, for viewers of Chrome traces",
    ),
    flag(
        Id::Tb,
        "",
        "--tb",
        "Write one file per rank for TensorBoard; takes the profile torch_minimal unless \
         -P is given",
    ),
    flag(
        Id::DisableFile,
        "",
        "--disable_file",
        "Write no trace; tables are written",
    ),
    flag(
        Id::FlexTsFix,
        "",
        "--flex_ts_fix",
        "Move jobs whose device events lie outside of their round trip",
    ),
    flag(
        Id::DisableInputWarnings,
        "",
        "--disable_input_warnings",
        "Has no effect",
    ),
    flag(
        Id::CommSummarizeSeq,
        "",
        "--comm_summarize_seq",
        "Make one send and one receive of each communication sequence",
    ),
    flag(
        Id::PowerStats,
        "",
        "--power-stats",
        "Print statistics of power with and without kernels running",
    ),
    one(
        Id::TimeUnit,
        "",
        "--time_unit",
        "{ms,ns}",
        "Unit in which viewers show times (default: ns)",
    ),
    flag(
        Id::IgnoreCrit,
        "",
        "--ignore_crit",
        "Report counters that run backwards as an error and go on",
    ),
    flag(
        Id::Version,
        "",
        "--version",
        "Print the version of acelyzer whose options these are",
    ),
    Opt {
        id: Id::CompatBugs,
        short: "",
        long: "--compat-bugs",
        exact: true,
        values: Values::Flag,
        metavar: "",
        help: "Give the timestamps of acelyzer 1.3.0 where they are wrong, too",
    },
    Opt {
        id: Id::PowerScale,
        short: "",
        long: "--power-scale",
        exact: true,
        values: Values::One,
        metavar: "FACTOR|auto",
        help: "Multiply watts by FACTOR; auto: find the factor that gives plausible power, and \
               print it (default: 1)",
    },
];
