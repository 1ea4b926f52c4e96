//! The options of a recording, and the plan that they make.

use super::choice::{self, ChoiceArgs, KernelArgs};
use super::control_args::{ControlArgs, Steering};
use super::destination::Destination;
use super::profile_out::{ProfileFormat, ValueArgs, ViewArgs};
use super::{usage_error, values};
use aiprof_analysis::kernel_choice::KernelChoice;
use aiprof_collect::cgroup;
use aiprof_collect::config::{
    Event, MAX_FREQUENCY_HZ, MIN_FREQUENCY_HZ, ProbeConfig, RecordConfig, STACK_LIMIT, WaitConfig,
};
use aiprof_collect::device::{DeviceOptions, ReplaySpec};
use aiprof_collect::driver::StandIn;
use aiprof_collect::launch::Credentials;
use aiprof_collect::probe_files;
use aiprof_collect::torch::TorchOptions;
use aiprof_formats::export::{ExportOptions, Format};
use aiprof_formats::import::capture::ReplayOptions;
use aiprof_model::labels::MAX_LABELS;
use aiprof_model::probes::Tables;
use aiprof_model::probes::driver_table::DriverTables;
use aiprof_model::probes::table::Switch;
use aiprof_system::files::caller;
use aiprof_system::files::rights;
use aiprof_system::os::privileges;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum, ValueHint, value_parser};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Functions that the helper for device times, or what it asks, calls once or more for each
/// command: they are not probed then, for a probe costs more than the call.
const TIMED_INSIDE: [&str; 6] = [
    // CUPTI asks for the name with each launch, and tells it.
    "cuFuncGetName",
    "cuKernelGetName",
    "clGetEventInfo",
    "clGetEventProfilingInfo",
    "clReleaseEvent",
    "clRetainEvent",
];

/// Options of `aiprof` and `aiprof record`.
#[derive(Debug, Args)]
#[command(override_usage = "aiprof record [OPTIONS] [--] [COMMAND [ARGS]...]")]
pub(crate) struct RecordArgs {
    /// Where the profile goes; its extension chooses the format
    ///
    /// FILE.folded (folded stacks), FILE.svg (flame graph), FILE.pb.gz (pprof), FILE.json or
    /// FILE.json.gz (Chrome trace of calls and samples), FILE.pftrace (the same for
    /// Perfetto, of any length), FILE.html (findings and tables of what devices did) or
    /// FILE.aiprof (capture, for `aiprof report`). DIR/ is a directory for TensorBoard, made
    /// if it is not there. `-` is stdout. Without -o the profile
    /// goes to stdout as folded stacks, or as a short summary if stdout is a terminal. The
    /// file appears whole or not at all, and belongs to the caller of sudo.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    output: Option<PathBuf>,

    /// Format of the profile, whatever its file is called
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<ProfileFormat>,

    /// End the recording after this time: 30, 30s, 2m, 1h
    ///
    /// It counts from the first sample on, and with COMMAND from its start; then the
    /// recording ends with COMMAND if that comes first. With neither, it lasts until
    /// Ctrl-C.
    #[arg(short, long, value_parser = values::parse_duration)]
    duration: Option<Duration>,

    /// Only this process and the children it starts (repeatable)
    ///
    /// Without COMMAND and -d, the recording ends when all these processes have ended.
    #[arg(short, long, value_name = "PID", value_delimiter = ',',
          value_parser = values::parse_pid)]
    pid: Vec<u32>,

    /// Only processes in this cgroup (v2) and those below it
    ///
    /// A directory of the cgroup file system, or a path below its root, such as
    /// system.slice/docker.service.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    cgroup: Option<PathBuf>,

    /// Only COMMAND and the children it starts
    ///
    /// From COMMAND's first instruction on: samples, waits, calls, launches and what devices
    /// did for them. Without this, COMMAND only says how long the whole machine is recorded.
    /// A process that COMMAND has started by another (a daemon, systemd) is not its child.
    #[arg(long, conflicts_with = "pid")]
    only: bool,

    #[command(flatten)]
    choice: ChoiceArgs,

    #[command(flatten)]
    kernels: KernelArgs,

    /// Label all that is recorded (repeatable)
    ///
    /// For --by, and for pprof and captures, which have container, pod, unit, user and rank
    /// of processes in any case.
    #[arg(long, value_name = "KEY=VALUE", hide_short_help = true, value_parser = choice::parse_label)]
    label: Vec<(String, String)>,

    /// Samples per second and CPU
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = RecordConfig::default().frequency_hz,
          value_parser = value_parser!(u32).range(i64::from(MIN_FREQUENCY_HZ)..=i64::from(MAX_FREQUENCY_HZ)))]
    frequency: u32,

    #[command(flatten)]
    control: ControlArgs,

    #[command(flatten)]
    values: ValueArgs,

    #[command(flatten)]
    view: ViewArgs,

    /// What drives the sampling
    #[arg(long, hide_short_help = true, value_enum, default_value_t = EventArg::from(RecordConfig::default().event))]
    event: EventArg,

    /// With --off-cpu or --wall: leave out shorter waits, such as 10us
    #[arg(long, hide_short_help = true, value_name = "TIME", default_value = "0us",
          value_parser = values::parse_span)]
    min_wait: u64,

    /// Stacks of accelerator calls per second and CPU at most; 0: none
    ///
    /// Calls beyond it are recorded and counted without a stack, and the summary says
    /// how many. A stack takes some microseconds.
    #[arg(long, value_name = "N", hide_short_help = true, default_value_t = STACK_LIMIT,
          value_parser = value_parser!(u32).range(..=1_000_000))]
    call_stacks: u32,

    /// Leave out kernel stacks
    #[arg(long, hide_short_help = true)]
    no_kernel: bool,

    /// Do not expand inlined functions
    #[arg(long, hide_short_help = true)]
    no_inlines: bool,

    /// Show the frames of Python's interpreter too
    ///
    /// A Python function stands for the C functions of the interpreter that run it, unless
    /// this is given.
    #[arg(long, hide_short_help = true)]
    python_c_frames: bool,

    /// Leave out the driver's frames between launches and devices
    ///
    /// Where the call that launches, or executes a list, hands the work over by an ioctl, the
    /// frames of the driver and of the kernel stand below its function.
    #[arg(long, hide_short_help = true)]
    no_driver_frames: bool,

    /// Record idle CPUs too
    #[arg(long, hide_short_help = true)]
    idle: bool,

    /// Title of the flame graph
    #[arg(
        long,
        hide_short_help = true,
        default_value = "",
        hide_default_value = true
    )]
    title: String,

    /// Always on: write a profile of each window of this length
    ///
    /// Until stopped. -o names a directory then; files are called aiprof-YYYYmmddTHHMMSSZ.EXT after the
    /// window's start in UTC, in pprof format unless --format says otherwise. All are kept,
    /// unless --keep says how many.
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration, requires = "output")]
    every: Option<Duration>,

    /// With --every, keep only the newest N files
    #[arg(long, value_name = "N", requires = "every", hide_short_help = true,
          value_parser = value_parser!(u32).range(1..))]
    keep: Option<u32>,

    /// Let programs say when their launches are recorded
    ///
    /// As they do for VTune and unitrace: by __itt_resume and __itt_pause; before the first of these by the variable
    /// PTI_ENABLE_COLLECTION: off where it is unset or begins with 0. Other calls are
    /// left out and counted. Samples are not concerned.
    #[arg(long, hide_short_help = true)]
    conditional_collection: bool,

    /// Run COMMAND as the user who called sudo, not as root
    #[arg(long, requires = "command")]
    as_user: bool,

    /// Record by itself, also as one of several ranks of a job
    ///
    /// Where mpirun, torchrun, srun and their like start several aiprofs on a machine, the
    /// first records, with all options and its -o, until the commands of all have ended; the
    /// others only run theirs.
    #[arg(long, hide_short_help = true, requires = "command")]
    no_join: bool,

    /// Have the AIU's runtime record what its devices do
    ///
    /// Sets the environment variables of COMMAND that switch timing and activity records
    /// on in IBM's AIU runtime, as far as they are not set already. Only with records are
    /// the times of AIU devices known exactly; without them they lie between the calls
    /// that launch work and those that wait for it. A profile of CPU time has what the
    /// devices did below the stacks that launched it then, as it has wherever aiprof
    /// finds an AIU.
    #[arg(long, hide_short_help = true)]
    aiu_timing: bool,

    /// Record PyTorch's operators too, in a window of each process: 1s, or WINDOW
    ///
    /// PyTorch is asked by Kineto's on-demand protocol, as dynolog does: COMMAND and what it
    /// starts need no change, and neither do processes of -p that were started with
    /// KINETO_USE_DAEMON=1. Traces have the operators, `record_function` and `ProfilerStep` as
    /// spans of their threads, with the line of Python that called them; profiles of CPU time
    /// have them as frames below that line. WINDOW is a length, or LENGTH/EVERY for one
    /// after the other, as in 500ms/30s. PyTorch may crash at exit if it ends within
    /// seconds of such a request.
    #[arg(long, hide_short_help = true, value_name = "WINDOW", num_args = 0..=1, require_equals = true,
          default_missing_value = "1s", value_parser = values::parse_torch_window)]
    torch_ops: Option<TorchOptions>,
    /// Have COMMAND's devices timed from inside, by the runtime's own means
    ///
    /// CUDA: a small helper is loaded into COMMAND by the way that NVIDIA provides
    /// (CUDA_INJECTION64_PATH) and asks CUPTI when each kernel, copy and fill ran. It
    /// changes no result and prints nothing; a launch takes a little longer. Where the
    /// program uses CUPTI itself (torch.profiler, Nsight), or the variable is set already,
    /// it steps back. Level Zero: the loader takes the helper for its drivers
    /// (LD_LIBRARY_PATH), and commands signal events with timestamps. Only so are the
    /// times of such devices known exactly; without them they lie between the calls that
    /// launch work and those that wait for it.
    ///
    /// OpenCL: the helper is a layer of the loader (OPENCL_LAYERS), beside COMMAND's own.
    /// It has queues created with profiling and reads the times of each command; the
    /// program gets only those that it asked for.
    ///
    /// Where COMMAND cannot load the helper, it runs without, and aiprof prints why.
    #[arg(long)]
    device_timing: bool,

    /// Record the ranges that COMMAND names with NVTX and ITT
    ///
    /// A small helper is loaded into COMMAND by the ways that NVIDIA and Intel provide
    /// (NVTX_INJECTION64_PATH, INTEL_LIBITTNOTIFY64), as nsys and VTune do. It writes each
    /// begin and end into memory, prints nothing, and where a variable is set already it
    /// steps back. Traces, captures and their tables have the ranges as annotations of the
    /// threads, as PyTorch's `record_function`. ROCTX needs no helper: its ranges are
    /// recorded in any trace and capture.
    #[arg(long, hide_short_help = true)]
    ranges: bool,

    /// Sample a device that is a file, a FIFO or a socket (repeatable)
    ///
    /// LAYOUT:PATH[,gt=N][,card=N][,base=0xADDR][,cycles=N][,name=TEXT], as in
    /// xe2:/tmp/stalls. Its samples go through the same code as those of hardware, and
    /// every output says that they were replayed.
    #[arg(long, hide_short_help = true, value_name = "SPEC")]
    replay_device: Vec<ReplaySpec>,

    /// Do not sample accelerators
    ///
    /// By default, what Intel GPUs of the xe driver stall on is sampled and charged to the
    /// call paths that launched it, and so is what AIUs record of themselves. Only one
    /// profiler can sample a GPU at a time.
    #[arg(long, conflicts_with_all = ["replay_device", "device_cycles", "device_share", "save_device"])]
    no_devices: bool,

    /// Device cycles between two samples of a device; the nearest that it can
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    device_cycles: Option<u32>,

    /// Read only one of N samples of a device, chosen at random
    #[arg(long, hide_short_help = true, value_name = "N", default_value_t = DeviceOptions::default().one_record_of,
          value_parser = value_parser!(u32).range(1..))]
    device_share: u32,

    /// Read an unknown device's samples as those of the nearest that is known
    #[arg(long, hide_short_help = true)]
    nearest_layout: bool,

    /// Keep the bytes of each device in this folder too, for --replay-device
    #[arg(long, hide_short_help = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    save_device: Option<PathBuf>,

    /// Use this eBPF object in place of the built-in one
    #[arg(long, value_name = "FILE", hide = true, value_hint = ValueHint::FilePath)]
    bpf_object: Option<PathBuf>,

    /// Observe the ioctls of this device as if it were one of that table's
    #[arg(long, value_name = "TABLE=DEVICE", hide = true, value_parser = values::parse_stand_in)]
    admit_device: Vec<StandIn>,

    /// Program to run; the recording lasts as long as it does
    #[arg(value_name = "COMMAND", trailing_var_arg = true,
          value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// What drives the sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EventArg {
    /// The CPU's clock: each sample is the same on-CPU time; works everywhere
    CpuClock,
    /// Hardware cycles, where the machine has counters
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
        args.view.check(&destination)?;
        if args.bpf_object.is_some() && privileges::is_elevated_by_file() {
            // Otherwise whoever may run aiprof could load any eBPF program.
            return Err(usage_error(
                "--bpf-object needs root itself, not a program file with capabilities",
            ));
        }
        if args.only && args.command.is_empty() {
            return Err(usage_error(
                "--only records COMMAND and its children, and there is none: put it behind the \
                 options, as in `aiprof --only -o flame.svg -- make -j8`; a process that runs \
                 already is recorded by -p PID",
            ));
        }
        if args.aiu_timing && args.command.is_empty() {
            return Err(usage_error(
                "--aiu-timing sets the environment of COMMAND, and there is none: a program \
                 that runs already must switch its activity records on by itself",
            ));
        }
        check_torch(&args)?;
        if args.device_timing && args.command.is_empty() {
            return Err(usage_error(
                "--device-timing sets the environment of COMMAND, and there is none: nothing \
                 can be put into a program that runs already",
            ));
        }
        check_ranges(&args, &destination)?;
        let launches = args.values.launches();
        if launches.is_some() && destination.is_trace() {
            return Err(usage_error(
                "--events is for profiles: a trace has launches and samples in any case",
            ));
        }
        let waits = args.values.waits().map(|options| WaitConfig {
            least_ns: args.min_wait,
            options,
        });
        if waits.is_none() && args.values.has_wakers() {
            return Err(usage_error("--wakers is for --off-cpu and --wall"));
        }
        if waits.is_none() && args.min_wait > 0 {
            return Err(usage_error("--min-wait is for --off-cpu and --wall"));
        }
        if waits.is_some() && !destination.has_waits() {
            return Err(usage_error(
                "--off-cpu and --wall are for profiles, captures and traces: a page of findings \
                 has no waits",
            ));
        }
        if waits.is_some() && args.event != EventArg::CpuClock {
            return Err(usage_error(
                "--off-cpu and --wall are of time, and --event cycles is of cycles: choose one",
            ));
        }
        let source_lines = destination.has_source_lines() || args.view.has_lines();
        let cgroup = args.cgroup.as_deref().map(find_cgroup).transpose()?;
        let choice = args.choice.of_this_machine()?;
        if args.label.len() > MAX_LABELS {
            let message = format!("--label can be given {MAX_LABELS} times at most");
            return Err(usage_error(message));
        }
        if launches.is_some() && !args.replay_device.is_empty() {
            return Err(usage_error(
                "--events counts launches, and --replay-device samples what they did: \
                 choose one, or write a capture and report it both ways",
            ));
        }
        let only_samples = launches.is_none() && waits.is_none();
        let joins = !args.no_devices && only_samples && !destination.keeps_events();
        let devices = DeviceOptions {
            aiu: joins && (has_aiu || args.aiu_timing || args.device_timing),
            xe: !args.no_devices && only_samples,
            cycles_per_sample: args.device_cycles,
            one_record_of: args.device_share,
            nearest_layout: args.nearest_layout,
            replay: args.replay_device,
            save: args.save_device,
        };
        let probes = destination.keeps_events() || !only_samples || devices.is_on();
        if args.conditional_collection && !probes {
            return Err(usage_error(
                "--conditional-collection is for launches: add --events, or write a trace \
                 or a capture",
            ));
        }
        let kernels = args.kernels.choice(&destination)?;
        let steering = args.control.steering(probes)?;
        if let Some(option) = args.kernels.given().filter(|_| !probes) {
            return Err(usage_error(format!(
                "{option} is for launches and samples of devices, and --no-devices leaves none: \
                 add --events"
            )));
        }
        let is_asked = args.aiu_timing
            || args.device_timing
            || !devices.replay.is_empty()
            || devices.save.is_some()
            || args.conditional_collection;
        let is_unasked = probes && joins && !is_asked;
        let becomes_trace = destination.is_trace()
            || matches!(destination, Destination::Dumps(_, format) if format.is_trace());
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
                    (true, _) => aiprof_collect::timing::files(),
                    (false, true) => aiprof_collect::timing::range_files(),
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
        // Nobody can ask such a recording for the others later.
        export.all_processes |= matches!(
            destination,
            Destination::Windows { .. } | Destination::Dumps(..)
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
                calm: args.every.is_some(),
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

/// Whether ranges can be recorded in such a recording, and shown.
fn check_ranges(args: &RecordArgs, destination: &Destination) -> Result<()> {
    if args.ranges && args.command.is_empty() {
        return Err(usage_error(
            "--ranges sets the environment of COMMAND, and there is none: nothing can be put \
             into a program that runs already",
        ));
    }
    if args.ranges && !destination.keeps_events() {
        return Err(usage_error(
            "--ranges is for traces and captures: a profile has stacks and no ranges. Add \
             -o trace.json.gz, or -o x.aiprof",
        ));
    }
    Ok(())
}

/// Whether PyTorch can be asked for its operators in such a recording.
fn check_torch(args: &RecordArgs) -> Result<()> {
    if args.torch_ops.is_none() {
        return Ok(());
    }
    if args.command.is_empty() && args.pid.is_empty() {
        return Err(usage_error(
            "--torch-ops asks programs one by one: give COMMAND, or -p PID of one that was \
             started with KINETO_USE_DAEMON=1",
        ));
    }
    if args.every.is_some() {
        return Err(usage_error(
            "--torch-ops and --every do not go together: operators become known after their \
             window, when its profile may be written",
        ));
    }
    if args.values.launches().is_some() {
        return Err(usage_error(
            "--torch-ops is for CPU samples and traces: a profile of launches has no operators",
        ));
    }
    Ok(())
}

/// What is recorded and how it is written, without what may differ between ranks of a job
/// that have one recording; `None`: it is not to be shared, or not of the whole machine.
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
    let shared = format!("{:?} {args:?}", destination.format());
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

/// Where the last seconds go.
fn dumps(args: &RecordArgs) -> Result<Destination> {
    let format = match args.format {
        None => Some(Format::Capture),
        Some(format) => format.of_file(),
    };
    let Some(format) = format else {
        return Err(usage_error(
            "--window writes files: choose another format, or none for captures",
        ));
    };
    match &args.output {
        Some(file) if Format::from_extension(file).is_some() && !caller::exists(file) => {
            let message = format!(
                "--window writes its files into a directory, and {} looks like a file: name a \
                 directory, and choose the format with --format",
                file.display()
            );
            Err(usage_error(message))
        }
        Some(directory) if directory != Path::new("-") => {
            Ok(Destination::Dumps(directory.clone(), format))
        }
        _ => Err(usage_error("--window needs a directory: -o DIR")),
    }
}

fn destination(args: &RecordArgs) -> Result<Destination> {
    if args.control.window().is_some() {
        return dumps(args);
    }
    let Some(every) = args.every else {
        return Destination::new(args.output.as_deref(), args.format);
    };
    let format = match args.format {
        None => Some(Format::Pprof),
        Some(format) => format.of_file(),
    };
    let format = format.filter(|format| !(format.is_trace() || *format == Format::Capture));
    if every < Duration::from_secs(1) {
        return Err(usage_error("--every must be at least 1s"));
    }
    let Some(format) = format else {
        return Err(usage_error(
            "--every writes finished profiles: use --format folded, svg, pprof or otlp",
        ));
    };
    match &args.output {
        Some(file) if Format::from_extension(file).is_some() && !caller::exists(file) => {
            let message = format!(
                "--every writes a file per window into a directory, and {} looks like a file: \
                 name a directory, and choose the format with --format",
                file.display()
            );
            Err(usage_error(message))
        }
        Some(directory) if directory != Path::new("-") => Ok(Destination::Windows {
            directory: directory.clone(),
            format,
            every,
            keep: args.keep,
        }),
        _ => Err(usage_error("--every needs a directory: -o DIR")),
    }
}

pub(super) fn as_user(wanted: bool) -> Result<Option<Credentials>> {
    // Without root, the command runs as the caller in any case.
    if !wanted || !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let (uid, gid) = rights::sudo_caller().ok_or_else(|| {
        usage_error("--as-user needs SUDO_UID and SUDO_GID, as sudo sets them: they are not set")
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
                "{} is not a cgroup (v2): name a directory below {}, or its path from there; \
                 `systemd-cgls` lists them",
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
