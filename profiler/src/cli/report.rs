//! `aiprof report`: a capture, or counts of another tool, become any other output.

use super::choice::{self, ChoiceArgs, KernelArgs};
use super::destination::Destination;
use super::input::{self, Counts, ProfileCommand};
use super::memory::MemoryArgs;
use super::profile_out::{self, ProfileFormat, ValueArgs, ViewArgs};
use super::target::{self, Target};
use super::trace_out::{self, TraceOut};
use super::{Verbosity, usage_error};
use aiprof_analysis::aggregate::WaitOptions;
use aiprof_formats::export::{ExportOptions, Format, Weight};
use aiprof_formats::import::capture::ReplayOptions;
use aiprof_formats::import::open::Contents;
use aiprof_model::profile::Profile;
use anyhow::Result;
use clap::{Args, ValueHint};
use std::path::{Path, PathBuf};

/// Options of `aiprof report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Capture, as written by `aiprof -o FILE.aiprof`; for flame graphs and the like also
    /// folded stacks, pprof, and what iaprof or unitrace's stall sampling wrote; -: stdin
    #[arg(value_hint = ValueHint::FilePath)]
    input: PathBuf,

    /// Where the profile goes; its extension chooses the format (.folded, .svg,
    /// .pb.gz, .json, .json.gz, .pftrace, .html); DIR/: a trace for TensorBoard; -: stdout
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    output: Option<PathBuf>,

    /// Format of the profile, whatever its file is called
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<ProfileFormat>,

    #[command(flatten)]
    values: ValueArgs,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    choice: ChoiceArgs,

    #[command(flatten)]
    kernels: KernelArgs,

    /// Leave out kernel stacks
    #[arg(long)]
    no_kernel: bool,

    /// Do not expand inlined functions
    #[arg(long)]
    no_inlines: bool,

    /// Show the frames of Python's interpreter too
    #[arg(long)]
    python_c_frames: bool,

    /// Leave out the driver's frames between launches and devices
    #[arg(long)]
    no_driver_frames: bool,

    /// Title of the flame graph
    #[arg(long)]
    title: Option<String>,

    #[command(flatten)]
    memory: MemoryArgs,
}

impl ReportArgs {
    /// What of these options needs more than folded stacks.
    fn of_more_than_stacks(&self) -> Option<&'static str> {
        let given = [
            (self.values.launches().is_some(), "--events"),
            (self.values.waits().is_some(), "--off-cpu and --wall"),
            (self.no_kernel, "--no-kernel"),
            (self.no_inlines, "--no-inlines"),
            (self.python_c_frames, "--python-c-frames"),
            (self.no_driver_frames, "--no-driver-frames"),
        ];
        let mut given = given.into_iter().filter(|(is_given, _)| *is_given);
        let own = given.next().map(|(_, option)| option);
        let own = own.or_else(|| self.choice.given());
        let own = own.or_else(|| self.kernels.given());
        own.or_else(|| self.view.of_more_than_stacks())
    }
}

/// Replays the capture and writes the profile.
///
/// # Errors
/// The capture cannot be read, or the profile cannot be written.
pub(crate) fn run(args: &ReportArgs, verbosity: Verbosity) -> Result<()> {
    args.memory.apply()?;
    let path = &input::named(&args.input);
    let destination = Destination::new(args.output.as_deref(), args.format)?;
    args.view.check(&destination)?;
    if destination.format() == Some(Format::Capture) {
        return Err(usage_error(
            "a capture is what report reads: choose another format",
        ));
    }
    if args.values.has_wakers() && args.values.waits().is_none() && !destination.is_trace() {
        return Err(usage_error("--wakers is for --off-cpu and --wall"));
    }
    let kernels = args.kernels.choice(&destination)?;
    let input = input::open(path)?;
    let contents = input.contents;
    if contents == Contents::Capture && destination.is_trace() {
        if let Some(option) = args.choice.given() {
            return Err(usage_error(format!(
                "{option} of report is for profiles: give it to the recording of a trace, or \
                 make a profile, such as -o FILE.svg"
            )));
        }
        drop(input);
        let written = trace(args, path, &destination)?;
        verbosity.say(&written);
        return Ok(());
    }
    let is_of_counts = input::is_counts(contents);
    if is_of_counts && let Some(format) = destination.format().filter(|f| f.is_trace()) {
        return Err(input::not_of_this(path, contents, format));
    }
    let is_stacks = matches!(contents, Contents::Folded | Contents::Pprof);
    if is_stacks && let Some(option) = args.of_more_than_stacks() {
        return Err(usage_error(format!(
            "{option} needs a capture: {} is {}",
            path.display(),
            contents.what()
        )));
    }
    if is_stacks {
        target::check_stacks(path, &destination)?;
    }
    let target = Target::open(&destination)?;
    let note = target.note();
    let options = replay_options(args, &destination);
    let wanted = args.values.weight();
    let counts = input::counts(path, input, ProfileCommand::Report, &options, wanted)?;
    let mut export = args.view.options(args.values);
    let mut shown = None;
    match counts {
        Counts::Profile(mut profile) => {
            let out = kernels.keep(&mut profile);
            if !kernels.is_all() {
                verbosity.say([choice::kernels_left_out(&out)].iter());
            }
            shown = of_profile(args, *profile, export, target, &destination)?;
        }
        Counts::Stacks(stacks) => {
            if stacks.weight != wanted {
                let has = weight_name(stacks.weight);
                tracing::warn!("{} has no such values: they are {has}", path.display());
            }
            export.weight = stacks.weight;
            let title = args.title.clone().unwrap_or(path.display().to_string());
            target.write_stacks(&stacks, &title, &export)?;
        }
    }
    let hint = matches!(destination, Destination::Summary).then(|| {
        let shown = path.display();
        format!("for a flame graph: aiprof report {shown} -o flame.svg")
    });
    verbosity.say(shown.iter().chain(&note).chain(&hint));
    Ok(())
}

fn replay_options(args: &ReportArgs, destination: &Destination) -> ReplayOptions {
    ReplayOptions {
        inlines: !args.no_inlines,
        source_lines: destination.has_source_lines() || args.view.has_lines(),
        kernel_stacks: !args.no_kernel,
        launches: args.values.launches(),
        waits: args.values.waits(),
        python_c_frames: args.python_c_frames,
        driver_frames: !args.no_driver_frames,
    }
}

/// Writes what is made of a capture's events; gives a line for each file.
fn trace(args: &ReportArgs, path: &Path, destination: &Destination) -> Result<Vec<String>> {
    if args.values.launches().is_some() {
        return Err(usage_error(
            "--events is for profiles: a trace has launches and samples in any case",
        ));
    }
    let out = TraceOut::open(destination, path)?;
    let mut options = replay_options(args, destination);
    // A trace has the waits of a recording in any case.
    options.waits = Some(WaitOptions {
        wall: true,
        wakers: args.values.has_wakers(),
    });
    trace_out::from_file(path, options, args.title.as_deref(), out)
}

/// Writes a profile; gives a line that says which processes are not in it, if any.
fn of_profile(
    args: &ReportArgs,
    mut profile: Profile,
    mut export: ExportOptions,
    target: Target,
    destination: &Destination,
) -> Result<Option<String>> {
    if let Some(title) = &args.title {
        profile.meta.title.clone_from(title);
    }
    let choice = args.choice.of_a_recording();
    if !choice.keep(&mut profile) {
        tracing::warn!(
            "no sample is of processes {}: `aiprof report {}` shows which there are",
            choice.describe(),
            args.input.display()
        );
    }
    if export.weight == Weight::Time && input::tells_no_times(&profile) {
        tracing::warn!("the recording tells no times: values are numbers of samples");
        export.weight = Weight::Samples;
    }
    target.write(&profile, &export)?;
    Ok(profile_out::note_of_processes(
        &profile,
        destination,
        &export,
    ))
}

fn weight_name(weight: Weight) -> &'static str {
    match weight {
        Weight::Time => "times",
        Weight::Samples => "numbers",
        Weight::Bytes => "bytes",
    }
}
