//! The options of a recording, and the plan that they make.

mod plan;

use super::choice::{self, ChoiceArgs, KernelArgs};
use super::control_args::ControlArgs;
use super::destination::{Destination, format_parser};
use super::option_rules::{
    COMMAND, CYCLES, EVENTS_KEPT, FILE_CAPABILITIES, FINDINGS, Holding, PROBES, TRACE,
};
use super::profile_out::{ValueArgs, ViewArgs};
use super::{usage_error, values};
use aiprof_formats::export::FileFormat;
use aiprof_formats::export::formats::PAGE;
use aiprof_live::cgroup;
use aiprof_live::config::{
    MAX_FREQUENCY_HZ, MIN_FREQUENCY_HZ, RecordConfig, STACK_LIMIT, SamplingEvent,
};
use aiprof_live::device::{DeviceOptions, ReplaySpec};
use aiprof_live::driver::StandIn;
use aiprof_live::launch::Credentials;
use aiprof_live::probe_files;
use aiprof_live::torch::TorchOptions;
use aiprof_model::probes::Tables;
use aiprof_model::probes::driver_table::DriverTables;
use aiprof_model::probes::table::Switch;
use aiprof_system::files::caller;
use aiprof_system::files::rights;
use aiprof_system::os::privileges;
use anyhow::{Context, Result};
use clap::{Args, ValueHint, value_parser};
pub(crate) use plan::RecordingPlan;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Headings of the groups of options in the help. Options without one come first.
const OUTPUT: &str = "Output";
const PROCESSES: &str = "What to record";
const TIMES: &str = "When to record";
const SAMPLING: &str = "How to sample";
const CONTENTS: &str = "What profiles show";
const ACCELERATORS: &str = "Accelerators";

/// What drives the sampling.
const EVENTS: &[(&str, &str, SamplingEvent)] = &[
    (
        "cpu-clock",
        "The CPU's clock: each sample stands for the same on-CPU time; works on every machine",
        SamplingEvent::CpuClock,
    ),
    (
        "cycles",
        "Hardware cycles; needs a machine with hardware counters",
        SamplingEvent::Cycles,
    ),
];

/// Options of `aiprof` and `aiprof record`.
#[derive(Debug, Args)]
#[command(override_usage = "aiprof record [OPTIONS] [--] [COMMAND [ARGS]...]")]
pub(crate) struct RecordArgs {
    // First, as a flattened group's heading would also hold for what follows it.
    /// Program to run; the recording ends when it ends
    #[arg(value_name = "COMMAND", trailing_var_arg = true,
          value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,

    /// Run COMMAND as the user who called sudo, in that user's HOME, not as root
    #[arg(long, requires = "command")]
    as_user: bool,

    /// Record this rank of a job separately
    ///
    /// Without this option, ranks of a job that run on one machine share a recording. When
    /// mpirun, torchrun, srun or a similar launcher starts several aiprofs, only the first one
    /// records. It uses its own options and -o, and ends when the commands of all ranks have
    /// ended. The other aiprofs only run their commands.
    #[arg(long, hide_short_help = true, requires = "command")]
    no_join: bool,

    /// Write the profile to FILE; the extension selects the format
    ///
    /// FILE.folded: folded stacks. FILE.svg: flame graph. FILE.pb.gz or FILE.pprof: pprof.
    /// FILE.otlp: OTLP profiles. FILE.json or FILE.json.gz: Chrome trace of calls and samples.
    /// FILE.pftrace: the same for Perfetto, with no limit on its length. FILE.html: findings and
    /// tables of what devices did. FILE.stalls.csv or FILE.iaprof: device samples, as unitrace
    /// or iaprof writes them. FILE.aiprof: capture, for `aiprof report`. DIR/: directory for
    /// TensorBoard, created if it does not exist. `-`: stdout.
    ///
    /// Without -o, aiprof writes folded stacks to stdout, or the summary if stdout is a
    /// terminal. The file appears only when it is complete. It belongs to the user who called
    /// sudo.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath, help_heading = OUTPUT)]
    output: Option<PathBuf>,

    /// Format of the output, regardless of its file name
    #[arg(long, value_parser = format_parser(None), value_name = "FORMAT", help_heading = OUTPUT)]
    format: Option<&'static FileFormat>,

    /// Title of the flame graph
    #[arg(
        long,
        hide_short_help = true,
        default_value = "",
        hide_default_value = true,
        help_heading = OUTPUT
    )]
    title: String,

    /// Only this process and the children it starts (repeatable)
    ///
    /// Without COMMAND and -d, the recording ends when all processes given with -p have ended.
    #[arg(short, long, value_name = "PID", value_delimiter = ',',
          value_parser = values::parse_pid, help_heading = PROCESSES)]
    pid: Vec<u32>,

    /// Only processes in this cgroup (v2) and the cgroups below it
    ///
    /// PATH is a directory of the cgroup file system, or a path below its root, such as
    /// system.slice/docker.service.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath, help_heading = PROCESSES)]
    cgroup: Option<PathBuf>,

    /// Only COMMAND and the children it starts
    ///
    /// aiprof records them from COMMAND's first instruction on: samples, waits, calls,
    /// launches, and what devices did for them. Without --only, the whole machine is recorded
    /// while COMMAND runs. A process that another one (a daemon, systemd) starts for COMMAND is
    /// not its child.
    #[arg(long, conflicts_with = "pid", help_heading = PROCESSES)]
    only: bool,

    #[command(flatten, next_help_heading = PROCESSES)]
    choice: ChoiceArgs,

    /// Attach a label to the whole recording (repeatable)
    ///
    /// Example: --label job=nightly. Use it with --by, or find it in pprof files and captures.
    /// Those always have the labels container, pod, unit, user and rank of each process.
    #[arg(long, value_name = "KEY=VALUE", hide_short_help = true,
          value_parser = choice::parse_label, help_heading = PROCESSES)]
    label: Vec<(String, String)>,

    /// End the recording after this time: 30, 30s, 2m, 1h
    ///
    /// The time starts with the first sample, or with COMMAND if there is one. A recording
    /// with COMMAND ends earlier if COMMAND ends earlier. Without -d, -p and COMMAND, it lasts
    /// until Ctrl-C.
    #[arg(short, long, value_parser = values::parse_duration, help_heading = TIMES)]
    duration: Option<Duration>,

    /// Record without end and write a profile for each window of this length
    ///
    /// The recording lasts until it is stopped. -o names a directory. Files are called
    /// aiprof-YYYYmmddTHHMMSSZ.EXT, after the window's start in UTC. Their format is pprof
    /// unless --format selects another one. All files are kept unless --keep limits their
    /// number.
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration,
          requires = "output", help_heading = TIMES)]
    every: Option<Duration>,

    /// With --every, keep only the newest N files
    #[arg(long, value_name = "N", requires = "every", hide_short_help = true,
          value_parser = value_parser!(u32).range(1..), help_heading = TIMES)]
    keep: Option<u32>,

    #[command(flatten, next_help_heading = TIMES)]
    control: ControlArgs,

    /// Samples per second on each CPU
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = RecordConfig::default().frequency_hz,
          value_parser = value_parser!(u32).range(i64::from(MIN_FREQUENCY_HZ)..=i64::from(MAX_FREQUENCY_HZ)),
          help_heading = SAMPLING)]
    frequency: u32,

    /// Event that triggers a sample
    #[arg(long, hide_short_help = true, value_parser = values::named(EVENTS),
          default_value = "cpu-clock", help_heading = SAMPLING)]
    event: SamplingEvent,

    /// With --off-cpu or --wall, ignore waits shorter than TIME, such as 10us
    #[arg(long, hide_short_help = true, value_name = "TIME", default_value = "0us",
          value_parser = values::parse_span, help_heading = SAMPLING)]
    min_wait: u64,

    /// Maximum number of stacks of accelerator calls per second on each CPU; 0: none
    ///
    /// Further calls are recorded and counted without a stack. The summary shows their number.
    /// A stack takes a few microseconds.
    #[arg(long, value_name = "N", hide_short_help = true, default_value_t = STACK_LIMIT,
          value_parser = value_parser!(u32).range(..=1_000_000), help_heading = SAMPLING)]
    call_stacks: u32,

    /// Leave out kernel stacks
    #[arg(long, hide_short_help = true, help_heading = SAMPLING)]
    no_kernel: bool,

    /// Record idle CPUs too
    #[arg(long, hide_short_help = true, help_heading = SAMPLING)]
    idle: bool,

    #[command(flatten, next_help_heading = CONTENTS)]
    values: ValueArgs,

    #[command(flatten, next_help_heading = CONTENTS)]
    view: ViewArgs,

    #[command(flatten, next_help_heading = CONTENTS)]
    kernels: KernelArgs,

    /// Do not show inlined functions as frames
    #[arg(long, hide_short_help = true, help_heading = CONTENTS)]
    no_inlines: bool,

    /// Also show the C frames of the Python interpreter
    ///
    /// Without this option, a Python function replaces the interpreter's C functions that run
    /// it.
    #[arg(long, hide_short_help = true, help_heading = CONTENTS)]
    python_c_frames: bool,

    /// Leave out the driver's frames between launches and devices
    ///
    /// A call that launches work or executes a command list may submit the work through an
    /// ioctl. The stack then has frames of the driver and of the Linux kernel between the
    /// runtime's function and `-`.
    #[arg(long, hide_short_help = true, help_heading = CONTENTS)]
    no_driver_frames: bool,

    /// Record the device times of COMMAND's operations, as its runtime reports them
    ///
    /// CUDA: a small helper is loaded into COMMAND through NVIDIA's interface
    /// (CUDA_INJECTION64_PATH). It uses CUPTI to find when each kernel, copy and fill ran. It
    /// changes no result and prints nothing; a launch takes slightly longer. If the program uses
    /// CUPTI itself (torch.profiler), both get records at first. Once the program's own tool
    /// starts to take CUPTI's records, aiprof gets none. If the variable is already set, CUDA
    /// devices are not timed.
    ///
    /// Level Zero: the loader loads the helper as one of its drivers (LD_LIBRARY_PATH). The
    /// helper gives each command an event that records when the command ran.
    ///
    /// OpenCL: the helper is a layer of the loader (OPENCL_LAYERS), beside COMMAND's own
    /// layers. It creates queues with profiling and reads the times of each command. The
    /// program sees only the times that it requested.
    ///
    /// Exact times of these devices need this option. Without it, aiprof only knows that an
    /// operation ran between the call that launched it and the call that waited for it. If
    /// COMMAND cannot load the helper, it runs without it, and aiprof prints why.
    #[arg(long, help_heading = ACCELERATORS)]
    device_timing: bool,

    /// Record the ranges that COMMAND names with NVTX and ITT
    ///
    /// A small helper is loaded into COMMAND through the interfaces of NVIDIA and Intel
    /// (NVTX_INJECTION64_PATH, INTEL_LIBITTNOTIFY64), as nsys and VTune do. It writes each start
    /// and end into memory and prints nothing. If one of these variables is already set, ranges
    /// of that interface are not recorded. Traces, captures and their tables have the ranges as annotations of
    /// the threads, like PyTorch's `record_function`. ROCTX needs no helper: its ranges are in
    /// every trace and capture.
    #[arg(long, hide_short_help = true, help_heading = ACCELERATORS)]
    ranges: bool,

    /// Record PyTorch's operators for 1s, or for WINDOW, in each process
    ///
    /// WINDOW is a length, such as 500ms. LENGTH/EVERY, such as 500ms/30s, repeats it.
    ///
    /// aiprof uses Kineto's on-demand protocol, as dynolog does. COMMAND and its children need
    /// no change. Processes of -p must have been started with KINETO_USE_DAEMON=1. Traces show
    /// operators, `record_function` and `ProfilerStep` as spans of their threads, with the line
    /// of Python that called them. Profiles of CPU time show them as frames below that line.
    /// PyTorch may crash at exit if the program ends within seconds of such a request.
    #[arg(long, hide_short_help = true, value_name = "WINDOW", num_args = 0..=1, require_equals = true,
          default_missing_value = "1s", value_parser = values::parse_torch_window,
          help_heading = ACCELERATORS)]
    torch_ops: Option<TorchOptions>,

    /// Make the AIU runtime of COMMAND record what its devices do
    ///
    /// aiprof sets the environment variables that enable timing and activity records in IBM's
    /// AIU runtime, unless they are already set. Exact times of AIU devices need these records.
    /// Without them, aiprof only knows that an operation ran between the call that launched it
    /// and the call that waited for it. With this option, a profile of CPU time also shows what
    /// the devices did, below the stacks that launched it. The option is not needed for this if
    /// the machine has an AIU and the program enables the records itself.
    #[arg(long, hide_short_help = true, help_heading = ACCELERATORS)]
    aiu_timing: bool,

    /// Let programs choose when their launches are recorded
    ///
    /// Programs call __itt_resume and __itt_pause, as for VTune and unitrace. Before the first
    /// of these calls, the variable PTI_ENABLE_COLLECTION decides: nothing is recorded if it is
    /// unset or begins with 0. Calls made while collection is off are counted, but not recorded.
    /// CPU samples are not affected.
    #[arg(long, hide_short_help = true, help_heading = ACCELERATORS)]
    conditional_collection: bool,

    /// Do not sample accelerators
    ///
    /// By default, aiprof samples the stalls of Intel GPUs with the xe driver and attributes
    /// them to the call paths that launched the work. It also reads the activity records of
    /// AIUs. Only one profiler can sample a GPU at a time.
    #[arg(long, conflicts_with_all = ["replay_device", "device_cycles", "device_share", "save_device"],
          help_heading = ACCELERATORS)]
    no_devices: bool,

    /// Device cycles between two samples; the device uses the nearest value it supports
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = value_parser!(u32).range(1..),
          help_heading = ACCELERATORS)]
    device_cycles: Option<u32>,

    /// Read only one in N samples of a device, chosen at random
    #[arg(long, hide_short_help = true, value_name = "N", default_value_t = DeviceOptions::default().one_record_of,
          value_parser = value_parser!(u32).range(1..), help_heading = ACCELERATORS)]
    device_share: u32,

    /// If a device is unknown, decode its samples with the layout of the most similar device
    #[arg(long, hide_short_help = true, help_heading = ACCELERATORS)]
    nearest_layout: bool,

    /// Also save each device's raw sample data in this directory, for --replay-device
    #[arg(long, hide_short_help = true, value_name = "DIR", value_hint = ValueHint::DirPath,
          help_heading = ACCELERATORS)]
    save_device: Option<PathBuf>,

    /// Read device samples from a file, a FIFO or a socket (repeatable)
    ///
    /// SPEC is LAYOUT:PATH[,KEY=VALUE...], such as xe2:/tmp/stalls. LAYOUT is pvc, xe2, xe3 or
    /// xe3p, or capture for a file of --save-device. The keys are card and gt (their numbers),
    /// base (address of the first instruction, 0x...), cycles (device cycles between samples) and
    /// name (shown in outputs). The samples go through the same code as those of hardware. Every output
    /// marks them as replayed.
    #[arg(long, hide_short_help = true, value_name = "SPEC", help_heading = ACCELERATORS)]
    replay_device: Vec<ReplaySpec>,

    /// Use this eBPF object instead of the built-in one
    #[arg(long, value_name = "FILE", hide = true, value_hint = ValueHint::FilePath)]
    bpf_object: Option<PathBuf>,

    /// Observe the ioctls of DEVICE as if it belonged to TABLE
    #[arg(long, value_name = "TABLE=DEVICE", hide = true, value_parser = values::parse_stand_in)]
    admit_device: Vec<StandIn>,
}

impl RecordArgs {
    /// Whether it ends by itself: with a time, processes or a command.
    pub(crate) fn has_an_end(&self) -> bool {
        self.duration.is_some() || !self.pid.is_empty() || !self.command.is_empty()
    }

    /// What the rules between options are about. `probes`: calls and kernels are recorded.
    fn holding(&self, destination: &Destination, replays: bool, probes: bool) -> Holding {
        let own = [
            (COMMAND, !self.command.is_empty()),
            ("--pid", !self.pid.is_empty()),
            ("--only", self.only),
            ("--every", self.every.is_some()),
            ("--bpf-object", self.bpf_object.is_some()),
            ("--min-wait", self.min_wait > 0),
            ("--aiu-timing", self.aiu_timing),
            ("--torch-ops", self.torch_ops.is_some()),
            ("--device-timing", self.device_timing),
            ("--ranges", self.ranges),
            ("--replay-device", replays),
            ("--conditional-collection", self.conditional_collection),
            (CYCLES, self.event != SamplingEvent::CpuClock),
            // Otherwise whoever may run aiprof could load any eBPF program.
            (FILE_CAPABILITIES, privileges::is_elevated_by_file()),
            (EVENTS_KEPT, destination.keeps_events()),
            (TRACE, destination.is_trace()),
            (FINDINGS, destination.format == &PAGE),
            (PROBES, probes),
        ];
        let given = self.view.given().into_iter().chain(self.values.given());
        let given = given
            .chain(self.kernels.given())
            .chain(self.control.given());
        Holding::of_format(destination.format).with(given.chain(own))
    }
}

/// The tables that are used only if asked for.
pub(super) fn switches(conditional_collection: bool) -> Vec<Switch> {
    let wanted = conditional_collection.then_some(Switch::ConditionalCollection);
    wanted.into_iter().collect()
}

/// The built-in tables and the user's, of runtimes and of drivers.
pub(super) fn tables() -> (Tables, DriverTables) {
    let loaded = probe_files::load(Path::new(probe_files::USER_TABLES));
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    (loaded.tables, loaded.drivers)
}

pub(super) fn as_user(wanted: bool) -> Result<Option<Credentials>> {
    // Without root, the command always runs as the caller.
    if !wanted || !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let (uid, gid) = rights::sudo_caller().ok_or_else(|| {
        usage_error(
            "--as-user needs SUDO_UID and SUDO_GID, which are not set: start aiprof with sudo",
        )
    })?;
    Ok(Some(Credentials::of_user(uid, gid)))
}

/// The directory of a cgroup, given as that or relative to the hierarchy's root.
pub(super) fn find_cgroup(path: &Path) -> Result<PathBuf> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let candidates = [path.to_owned(), cgroup::root().join(relative)];
    let found = candidates
        .into_iter()
        .find(|directory| cgroup::is_group(directory))
        .with_context(|| {
            format!(
                "{} is not a cgroup (v2): give a directory below {}, or a path relative to it; \
                 `systemd-cgls` lists all cgroups",
                path.display(),
                cgroup::root().display()
            )
        })?;
    Ok(caller::canonicalize(found)?)
}

/// The command line as one string, for titles.
pub(super) fn display_command(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}
