//! The plan of a recording: options that fit together, and free of clap types.

use super::{RecordArgs, as_user, display_command, find_cgroup, switches, tables};
use crate::cli::control_args::Steering;
use crate::cli::destination::{Destination, OutputPlace};
use crate::cli::usage_error;
use aiprof_formats::export::formats::{CAPTURE, PPROF};
use aiprof_formats::export::{ExportOptions, FileFormat};
use aiprof_live::cgroup;
use aiprof_live::config::{ProbeConfig, RecordConfig, WaitConfig};
use aiprof_live::device::DeviceOptions;
use aiprof_live::launch::Credentials;
use aiprof_live::torch::TorchOptions;
use aiprof_model::labels::MAX_LABELS;
use aiprof_record::capture::ReplayOptions;
use aiprof_record::kernel_choice::KernelChoice;
use aiprof_system::files::caller;
use anyhow::Result;
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

/// A recording as it will be done: consistent, and free of clap types.
#[derive(Clone, Debug)]
pub(crate) struct RecordingPlan {
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

impl RecordingPlan {
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
                event: args.event,
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
        let known = FileFormat::names_of_windows();
        return Err(usage_error(format!(
            "--every writes only profiles: use --format {known}"
        )));
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
