//! The options of a recording, and the plan that they make.

use super::choice::{self, ChoiceArgs, KernelArgs};
use super::control_args::{ControlArgs, Steering};
use super::destination::{Destination, OutputPlace, format_parser};
use super::option_rules::{
    COMMAND, CYCLES, EVENTS_KEPT, FILE_CAPABILITIES, FINDINGS, Holding, PROBES, TRACE,
};
use super::profile_out::{ValueArgs, ViewArgs};
use super::{usage_error, values};
use aiprof_formats::export::formats::{CAPTURE, PAGE, PPROF};
use aiprof_formats::export::{ExportOptions, FileFormat};
use aiprof_live::cgroup;
use aiprof_live::config::{
    Event, MAX_FREQUENCY_HZ, MIN_FREQUENCY_HZ, ProbeConfig, RecordConfig, STACK_LIMIT, WaitConfig,
};
use aiprof_live::device::{DeviceOptions, ReplaySpec};
use aiprof_live::driver::StandIn;
use aiprof_live::launch::Credentials;
use aiprof_live::probe_files;
use aiprof_live::torch::TorchOptions;
use aiprof_model::labels::MAX_LABELS;
use aiprof_model::probes::Tables;
use aiprof_model::probes::driver_table::DriverTables;
use aiprof_model::probes::table::Switch;
use aiprof_record::capture::ReplayOptions;
use aiprof_record::kernel_choice::KernelChoice;
use aiprof_system::files::caller;
use aiprof_system::files::rights;
use aiprof_system::os::privileges;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum, ValueHint, value_parser};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Functions that the helper for device times, or the library that it asks, calls at least once for
/// each command. They are not probed then, for a probe costs more than the call.
const TIMED_INSIDE: [&str; 6] = [
    // CUPTI asks for the name with each launch, and reports it.
    "cuFuncGetName",
    "cuKernelGetName",
    "clGetEventInfo",
    "clGetEventProfilingInfo",
    "clReleaseEvent",
    "clRetainEvent",
];

/// Headings of the groups of options in the help. Options without one come first.
const OUTPUT: &str = "Output";
const PROCESSES: &str = "What to record";
const TIMES: &str = "When to record";
const SAMPLING: &str = "How to sample";
const CONTENTS: &str = "What profiles show";
const ACCELERATORS: &str = "Accelerators";

/// Options of `aiprof` and `aiprof record`.
#[derive(Debug, Args)]
#[command(override_usage = "aiprof record [OPTIONS] [--] [COMMAND [ARGS]...]")]
pub(crate) struct RecordArgs {
    // First, as a flattened group's heading would also hold for what follows it.
    /// Program to run; the recording ends when it ends
    #[arg(value_name = "COMMAND", trailing_var_arg = true,
          value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,

    /// Run COMMAND as the user who called sudo, not as root
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
    #[arg(long, hide_short_help = true, value_enum,
          default_value_t = EventArg::from(RecordConfig::default().event), help_heading = SAMPLING)]
    event: EventArg,

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

/// What drives the sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EventArg {
    /// The CPU's clock: each sample stands for the same on-CPU time; works on every machine
    CpuClock,
    /// Hardware cycles; needs a machine with hardware counters
    Cycles,
}

impl From<Event> for EventArg {
    fn from(event: Event) -> Self {
        match event {
            Event::CpuClock => Self::CpuClock,
            Event::Cycles => Self::Cycles,
        }
    }
}

impl From<EventArg> for Event {
    fn from(event: EventArg) -> Self {
        match event {
            EventArg::CpuClock => Self::CpuClock,
            EventArg::Cycles => Self::Cycles,
        }
    }
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
            (CYCLES, self.event != EventArg::CpuClock),
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

/// A recording as it will be done: consistent, and free of clap types.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// What the session records.
    pub(crate) config: RecordConfig,
    /// The command to run; empty: none.
    pub(crate) command: Vec<OsString>,
    /// Who runs it; `None`: this process's user.
    pub(crate) as_user: Option<Credentials>,
    /// When to end at the latest.
    pub(crate) duration: Option<Duration>,
    /// Where the profile goes.
    pub(crate) destination: Destination,
    /// How it is steered while it runs.
    pub(crate) steering: Steering,
    /// How the captures of the last seconds are read, where they become something else.
    pub(crate) replay: ReplayOptions,
    /// How the profile is written.
    pub(crate) export: ExportOptions,
    /// Which device kernels it has.
    pub(crate) kernels: KernelChoice,
    /// Whether the command's AIU runtime is to record what its devices do.
    pub(crate) aiu_timing: bool,
    /// How PyTorch is asked for its operators; `None`: it is not.
    pub(crate) torch: Option<TorchOptions>,
    /// Put the helper into COMMAND.
    pub(crate) device_timing: bool,
    /// Put it where COMMAND's ranges are found.
    pub(crate) ranges: bool,
    /// Record COMMAND and its children alone.
    pub(crate) only_command: bool,
    /// Whether accelerators are observed only because they are there.
    pub(crate) is_unasked: bool,
    /// What is recorded, in words that are equal for ranks of a job that can have one
    /// recording; `None`: not with others.
    pub(crate) shared: Option<String>,
}

impl Plan {
    /// Checks the options against each other and the machine. `has_aiu`: it has AIUs,
    /// whose records are read unasked.
    ///
    /// # Errors
    /// A usage error, or what is wrong with a file or process that was named.
    pub(crate) fn new(mut args: RecordArgs, has_aiu: bool) -> Result<Self> {
        let destination = destination(&args)?;
        let shared = shared(&mut args, &destination);
        let launches = args.values.launches();
        let waits = args.values.waits().map(|options| WaitConfig {
            least_ns: args.min_wait,
            options,
        });
        let only_samples = launches.is_none() && waits.is_none();
        let joins = !args.no_devices && only_samples && !destination.keeps_events();
        let devices = DeviceOptions {
            aiu: joins && (has_aiu || args.aiu_timing || args.device_timing),
            xe: !args.no_devices && only_samples,
            cycles_per_sample: args.device_cycles,
            one_record_of: args.device_share,
            nearest_layout: args.nearest_layout,
            replay: std::mem::take(&mut args.replay_device),
            save: std::mem::take(&mut args.save_device),
        };
        let probes = destination.keeps_events() || !only_samples || devices.is_on();
        args.holding(&destination, !devices.replay.is_empty(), probes)
            .check()?;
        let source_lines = destination.format.has_source_lines || args.view.has_lines();
        let cgroup = args.cgroup.as_deref().map(find_cgroup).transpose()?;
        let choice = args.choice.of_this_machine(cgroup::containers)?;
        if args.label.len() > MAX_LABELS {
            let message = format!("--label can be given at most {MAX_LABELS} times");
            return Err(usage_error(message));
        }
        let kernels = args.kernels.choice();
        let steering = args.control.steering();
        let is_asked = args.aiu_timing
            || args.device_timing
            || !devices.replay.is_empty()
            || devices.save.is_some()
            || args.conditional_collection;
        let is_unasked = probes && joins && !is_asked;
        let becomes_trace = destination.format.is_trace();
        let probes = probes.then(|| {
            let (mut tables, drivers) = tables();
            if args.device_timing {
                tables = tables.without(&TIMED_INSIDE);
            }
            ProbeConfig {
                tables: Arc::new(tables),
                drivers: Arc::new(drivers),
                waits: devices.is_on() || waits.is_some() || destination.keeps_events(),
                late_libraries: launches.is_some()
                    || waits.is_some()
                    || becomes_trace
                    || steering.window.is_some()
                    || !steering.triggers.is_empty()
                    || args.device_timing
                    || args.ranges,
                exact_call_times: args.values.times_calls()
                    || becomes_trace
                    || steering.wants_call_times(),
                command: args.command.clone(),
                helpers: match (args.device_timing, args.ranges) {
                    (true, _) => aiprof_live::timing::files(),
                    (false, true) => aiprof_live::timing::range_files(),
                    (false, false) => Vec::new(),
                },
                pids: args.pid.clone(),
                switches: switches(args.conditional_collection),
                stand_ins: args.admit_device,
                stack_limit: args.call_stacks,
                ..ProbeConfig::default()
            }
        });
        let mut export = args.view.options(args.values);
        // The other processes of such a recording cannot be asked for later.
        export.all_processes |= matches!(
            destination.place,
            OutputPlace::Windows { .. } | OutputPlace::Dumps(_)
        );
        Ok(Self {
            as_user: as_user(args.as_user)?,
            duration: args.duration,
            destination,
            export,
            kernels,
            aiu_timing: args.aiu_timing,
            torch: args.torch_ops,
            device_timing: args.device_timing,
            ranges: args.ranges,
            only_command: args.only,
            is_unasked,
            shared,
            replay: ReplayOptions {
                inlines: !args.no_inlines,
                source_lines,
                kernel_stacks: !args.no_kernel,
                launches,
                waits: waits.map(|waits| waits.options),
                python_c_frames: args.python_c_frames,
                driver_frames: !args.no_driver_frames,
            },
            config: RecordConfig {
                frequency_hz: args.frequency,
                event: args.event.into(),
                include_idle: args.idle,
                kernel_stacks: !args.no_kernel,
                inlines: !args.no_inlines,
                python_c_frames: args.python_c_frames,
                driver_frames: !args.no_driver_frames,
                source_lines,
                pids: args.pid,
                // Set with its process.
                only_command: false,
                cgroup,
                choice,
                labels: args.label,
                title: args.title,
                command: display_command(&args.command),
                launches,
                waits,
                probes,
                devices,
                also_launches: false,
                continuous: args.every.is_some(),
                start_paused: steering.start_paused,
                triggers: steering.triggers.clone(),
                window: steering.window,
                bpf_object: args.bpf_object,
            },
            steering,
            command: args.command,
        })
    }
}

/// What is recorded and how it is written, without what may differ between ranks of a job that
/// share one recording. `None`: the recording is not shared, or not of the whole machine.
fn shared(args: &mut RecordArgs, destination: &Destination) -> Option<String> {
    let is_whole = args.pid.is_empty() && args.cgroup.is_none() && !args.only;
    let is_alone = args.no_join || args.control.has_ready_fd();
    if args.command.is_empty() || is_alone || !is_whole {
        return None;
    }
    let own = (
        args.output.take(),
        std::mem::take(&mut args.command),
        std::mem::take(&mut args.label),
        std::mem::take(&mut args.title),
    );
    let shared = format!("{:?} {args:?}", destination.format);
    (args.output, args.command, args.label, args.title) = own;
    Some(shared)
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

/// Where the results go.
fn destination(args: &RecordArgs) -> Result<Destination> {
    if args.control.window().is_some() {
        let format = args.format.unwrap_or(&CAPTURE);
        if format.extension().is_empty() {
            return Err(usage_error(
                "--window cannot write this format: use another --format, or none for captures",
            ));
        }
        let place = OutputPlace::Dumps(directory_of(args, "--window")?);
        return Ok(Destination { format, place });
    }
    let Some(every) = args.every else {
        return Destination::new(args.output.as_deref(), args.format);
    };
    let format = args.format.unwrap_or(&PPROF);
    if every < Duration::from_secs(1) {
        return Err(usage_error("--every must be at least 1s"));
    }
    if !format.is_of_windows() {
        return Err(usage_error(
            "--every writes only profiles: use --format folded, svg, pprof or otlp",
        ));
    }
    let place = OutputPlace::Windows {
        directory: directory_of(args, "--every")?,
        every,
        keep: args.keep,
    };
    Ok(Destination { format, place })
}

/// The directory that `-o` names for the files that an option writes.
fn directory_of(args: &RecordArgs, option: &str) -> Result<PathBuf> {
    match &args.output {
        Some(file) if FileFormat::of_file(file).is_some() && !caller::exists(file) => {
            Err(usage_error(format!(
                "{option} writes files into a directory, and {} looks like a file name: give a \
                 directory, and select the format with --format",
                file.display()
            )))
        }
        Some(directory) if directory != Path::new("-") => Ok(directory.clone()),
        _ => Err(usage_error(format!("{option} needs a directory: -o DIR"))),
    }
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
