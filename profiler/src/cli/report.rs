//! `aiprof report`: a capture, or counts of another tool, become any other output.

use super::choice::{self, ChoiceArgs, KernelArgs};
use super::destination::Destination;
use super::input::{self, Counts, ProfileCommand};
use super::memory::MemoryArgs;
use super::output::keep_inputs;
use super::profile_out::{self, ProfileFormat, ValueArgs, ViewArgs};
use super::target::{self, Target};
use super::trace_out::{self, TraceOut};
use super::{Verbosity, usage_error};
use aiprof_formats::export::{ExportOptions, Format, Weight};
use aiprof_formats::import::open::Contents;
use aiprof_model::profile::Profile;
use aiprof_record::aggregate::WaitOptions;
use aiprof_record::capture::ReplayOptions;
use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum, ValueHint};
use std::path::{Path, PathBuf};

/// Options of `aiprof report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Capture to convert, or another tool's profile; `-` reads stdin
    ///
    /// A capture is what `aiprof -o FILE.aiprof` writes; it can be converted to any other format.
    /// Folded stacks, pprof profiles and the device samples (stalls) of iaprof or unitrace can be
    /// converted to flame graphs and other profiles.
    #[arg(value_hint = ValueHint::FilePath)]
    input: PathBuf,

    /// File to write; its extension chooses the format; `-` writes to stdout
    ///
    /// Extensions: .folded, .svg, .pb.gz, .pprof, .otlp, .json, .json.gz, .pftrace, .html,
    /// .stalls.csv and .iaprof. `DIR/` writes a trace for TensorBoard. Without this option, a
    /// terminal gets a summary, and a pipe gets folded stacks.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath,
        help_heading = "Output")]
    output: Option<PathBuf>,

    /// Output format; overrides the file's extension
    #[arg(long, value_parser = formats(), value_name = "FORMAT", help_heading = "Output")]
    format: Option<ProfileFormat>,

    #[command(flatten, next_help_heading = "Values")]
    values: ValueArgs,

    #[command(flatten, next_help_heading = "View")]
    view: ViewArgs,

    #[command(flatten, next_help_heading = "Selection")]
    choice: ChoiceArgs,

    #[command(flatten, next_help_heading = "Selection")]
    kernels: KernelArgs,

    /// Leave out the part of stacks inside the Linux kernel
    #[arg(long, help_heading = "Stacks")]
    no_kernel: bool,

    /// Do not show inlined functions as frames
    #[arg(long, help_heading = "Stacks")]
    no_inlines: bool,

    /// Show the C frames of the Python interpreter too
    #[arg(long, help_heading = "Stacks")]
    python_c_frames: bool,

    /// Leave out the driver's frames between a launch and the device
    #[arg(long, help_heading = "Stacks")]
    no_driver_frames: bool,

    /// Title of the flame graph
    #[arg(long, help_heading = "Output")]
    title: Option<String>,

    #[command(flatten, next_help_heading = "Limits")]
    memory: MemoryArgs,
}

/// The formats of `--format`. Captures are not listed: a report reads them.
fn formats() -> impl TypedValueParser<Value = ProfileFormat> {
    let listed = ProfileFormat::value_variants().iter().filter_map(|format| {
        let value = format.to_possible_value()?;
        Some(value.hide(*format == ProfileFormat::Capture))
    });
    PossibleValuesParser::new(listed).try_map(|name| ProfileFormat::from_str(&name, false))
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
            "report reads captures and does not write them: choose another format",
        ));
    }
    if args.values.has_wakers() && args.values.waits().is_none() && !destination.is_trace() {
        return Err(usage_error("--wakers needs --off-cpu or --wall"));
    }
    let kernels = args.kernels.choice(&destination)?;
    keep_inputs([path.as_path()], args.output.as_deref())?;
    let input = input::open(path)?;
    let contents = input.contents;
    if contents == Contents::Capture && destination.is_trace() {
        if let Some(option) = args.choice.given() {
            return Err(usage_error(format!(
                "report applies {option} only to profiles: write a profile, such as -o FILE.svg, or \
                 give {option} when you record the trace"
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
                let (wanted, has) = (weight_name(wanted), weight_name(stacks.weight));
                tracing::warn!("{} has no {wanted}: values are {has}", path.display());
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
            "--events applies only to profiles: a trace always has launches and samples",
        ));
    }
    let out = TraceOut::open(destination, path)?;
    let mut options = replay_options(args, destination);
    // A trace always has the waits of a recording.
    options.waits = Some(WaitOptions {
        wall: true,
        wakers: args.values.has_wakers(),
    });
    trace_out::from_file(path, options, args.title.as_deref(), out)
}

/// Writes a profile. Returns a line with the processes that are not in it, if any.
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
            "no sample belongs to processes {}: `aiprof report {}` lists the processes",
            choice.describe(),
            args.input.display()
        );
    }
    if export.weight == Weight::Time && input::tells_no_times(&profile) {
        tracing::warn!("the recording has no times: values are numbers of samples");
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
        Weight::Samples => "numbers of samples",
        Weight::Bytes => "bytes",
    }
}
