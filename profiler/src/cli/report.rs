//! `aiprof report`: a capture, or counts of another tool, become any other output.

use super::capture_timeline;
use super::choice::{self, ChoiceArgs, KernelArgs};
use super::destination::{Destination, format_parser};
use super::input::{self, ProfileCommand, ReadCounts};
use super::memory::MemoryArgs;
use super::open_output::{self, OpenOutput};
use super::option_rules::{Holding, PROBES, TRACE, TRACE_OF_CAPTURE, WAITS, first_given};
use super::output::keep_inputs;
use super::profile_out::{self, ValueArgs, ViewArgs};
use super::{Verbosity, usage_error};
use aiprof_formats::export::formats::CAPTURE;
use aiprof_formats::export::{ExportOptions, FileFormat, Weight};
use aiprof_formats::import::open::Contents;
use aiprof_model::profile::Profile;
use aiprof_record::aggregate::WaitOptions;
use aiprof_record::capture::ReplayOptions;
use anyhow::Result;
use clap::{Args, ValueHint};
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
    // Captures are not listed: a report reads them.
    #[arg(long, value_parser = format_parser(Some(&CAPTURE)), value_name = "FORMAT",
        help_heading = "Output")]
    format: Option<&'static FileFormat>,

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

impl ReportArgs {
    /// The first of these options that needs more than folded stacks.
    fn of_more_than_stacks(&self) -> Option<&'static str> {
        let own = [
            ("--events", self.values.launches().is_some()),
            (WAITS, self.values.waits().is_some()),
            ("--no-kernel", self.no_kernel),
            ("--no-inlines", self.no_inlines),
            ("--python-c-frames", self.python_c_frames),
            ("--no-driver-frames", self.no_driver_frames),
        ];
        let chosen = self.choice.given().into_iter().chain(self.kernels.given());
        let view = self.view.given().into_iter();
        let view = view.filter(|(option, _)| *option != "--inverted");
        first_given(own.into_iter().chain(chosen).chain(view))
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
    let format = destination.format;
    let holding = Holding::of_format(format).with(args.view.given());
    holding.check()?;
    if format == &CAPTURE {
        return Err(usage_error(
            "report reads captures and does not write them: choose another format",
        ));
    }
    let values = args.values.given().into_iter();
    let is_trace = destination.is_trace();
    // A file of stacks has no launches to begin with.
    let values = values.filter(|(option, _)| *option != "--events");
    let also = [
        (PROBES, true),
        (TRACE, is_trace),
        (TRACE_OF_CAPTURE, is_trace),
    ];
    let holding = holding.with(values.chain(args.kernels.given()).chain(also));
    holding.check()?;
    let kernels = args.kernels.choice();
    keep_inputs([path.as_path()], args.output.as_deref())?;
    let input = input::open(path)?;
    let contents = input.contents;
    if contents == Contents::Capture && is_trace {
        if let Some(option) = first_given(args.choice.given()) {
            return Err(usage_error(format!(
                "report applies {option} only to profiles: write a profile, such as -o FILE.svg, or \
                 give {option} when you record the trace"
            )));
        }
        drop(input);
        holding
            .with([("--events", args.values.launches().is_some())])
            .check()?;
        let written = trace(args, path, &destination)?;
        verbosity.say(&written);
        return Ok(());
    }
    if is_trace {
        return Err(match input::is_counts(contents) {
            true => input::not_of_this(path, contents, format),
            false => input::refused(path, contents, ProfileCommand::Report),
        });
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
        open_output::check_stacks(path, format)?;
    }
    let target = OpenOutput::open(&destination, path)?;
    let note = target.note();
    let options = replay_options(args, &destination);
    let wanted = args.values.weight();
    let counts = input::counts(path, input, ProfileCommand::Report, &options, wanted)?;
    let mut export = args.view.options(args.values);
    let mut shown = None;
    match counts {
        ReadCounts::Profile(mut profile) => {
            let out = kernels.keep(&mut profile);
            if !kernels.is_all() {
                verbosity.say([choice::kernels_left_out(&out)].iter());
            }
            shown = of_profile(args, *profile, export, target, format)?;
        }
        ReadCounts::Stacks(stacks) => {
            if stacks.weight != wanted {
                let (wanted, has) = (weight_name(wanted), weight_name(stacks.weight));
                tracing::warn!("{} has no {wanted}: values are {has}", path.display());
            }
            export.weight = stacks.weight;
            let title = args.title.clone().unwrap_or(path.display().to_string());
            target.write_stacks(&stacks, &title, &export)?;
        }
    }
    let hint = destination.is_shown_summary().then(|| {
        let shown = path.display();
        format!("for a flame graph: aiprof report {shown} -o flame.svg")
    });
    verbosity.say(shown.iter().chain(&note).chain(&hint));
    Ok(())
}

fn replay_options(args: &ReportArgs, destination: &Destination) -> ReplayOptions {
    ReplayOptions {
        inlines: !args.no_inlines,
        source_lines: destination.format.has_source_lines || args.view.has_lines(),
        kernel_stacks: !args.no_kernel,
        launches: args.values.launches(),
        waits: args.values.waits(),
        python_c_frames: args.python_c_frames,
        driver_frames: !args.no_driver_frames,
    }
}

/// Writes what is made of a capture's events; gives a line for each file.
fn trace(args: &ReportArgs, path: &Path, destination: &Destination) -> Result<Vec<String>> {
    let out = OpenOutput::open(destination, path)?;
    let mut options = replay_options(args, destination);
    // A trace always has the waits of a recording.
    options.waits = Some(WaitOptions {
        wall: true,
        wakers: args.values.has_wakers(),
    });
    let capture = capture_timeline::open(path)?;
    out.write_trace_of(path, capture, options, args.title.as_deref())
}

/// Writes a profile. Returns a line with the processes that are not in it, if any.
fn of_profile(
    args: &ReportArgs,
    mut profile: Profile,
    mut export: ExportOptions,
    target: OpenOutput,
    format: &FileFormat,
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
    target.write_profile(&profile, &export)?;
    Ok(profile_out::note_of_processes(&profile, format, &export))
}

fn weight_name(weight: Weight) -> &'static str {
    match weight {
        Weight::Time => "times",
        Weight::Samples => "numbers of samples",
        Weight::Bytes => "bytes",
    }
}
