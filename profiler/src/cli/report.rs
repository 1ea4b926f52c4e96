//! `aiprof report`: a capture, or a recording of another tool, becomes any other output.

use super::input::{self, Foreign};
use super::memory::MemoryArgs;
use super::output::OutputFile;
use super::profile_out::{self, Destination, ProfileFormat, ValueArgs, ViewArgs};
use super::trace_out::{self, TraceOut};
use super::{screen, usage_error};
use aiprof_formats::export::svg::{self, Caption};
use aiprof_formats::export::{Format, Weight, folded};
use aiprof_formats::import::capture::ReplayOptions;
use aiprof_system::files::caller;
use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use std::io::{self, BufReader};
use std::path::PathBuf;

/// Options of `aiprof report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Capture, as written by `aiprof -o FILE.aiprof`, or what iaprof or unitrace's
    /// stall sampling wrote; folded stacks (.folded, .txt) for a flame graph
    #[arg(value_hint = ValueHint::FilePath)]
    capture: PathBuf,

    /// Where the profile goes; its extension chooses the format (.folded, .svg,
    /// .pb.gz, .json, .json.gz, .pftrace, .html)
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    output: Option<PathBuf>,

    /// Format of the profile, whatever its file is called
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<ProfileFormat>,

    #[command(flatten)]
    values: ValueArgs,

    #[command(flatten)]
    view: ViewArgs,

    /// Leave out kernel stacks
    #[arg(long)]
    no_kernel: bool,

    /// Do not expand inlined functions
    #[arg(long)]
    no_inlines: bool,

    /// Title of the flame graph
    #[arg(long)]
    title: Option<String>,

    #[command(flatten)]
    memory: MemoryArgs,
}

/// Folded stacks can be drawn, and nothing else: they have no events and no losses.
fn draw_folded(args: &ReportArgs, destination: &Destination) -> Result<()> {
    let (Destination::File(_, Format::Svg) | Destination::Stdout(Format::Svg)) = destination else {
        return Err(usage_error(
            "folded stacks can be drawn (-o FILE.svg) or compared (aiprof diff); other formats \
             are made from a capture, as `aiprof -o FILE.aiprof` writes it",
        ));
    };
    if args.values.launches().is_some() {
        return Err(usage_error(
            "--events needs a capture: folded stacks are of one kind",
        ));
    }
    let path = args.capture.display();
    let file = caller::open(&args.capture).with_context(|| format!("cannot read {path}"))?;
    let folded = folded::read(&mut BufReader::new(file));
    let folded = folded.with_context(|| format!("cannot read {path}"))?;
    let options = args.view.options(args.values);
    let caption = Caption {
        title: args.title.clone().unwrap_or_else(|| path.to_string()),
        subtitle: "from folded stacks".to_owned(),
        ..Caption::default()
    };
    match destination {
        Destination::File(path, _) => {
            let mut file = OutputFile::create(path)?;
            svg::write_folded(&folded, &caption, &options, &mut file)?;
            file.commit()
        }
        _ => {
            let mut out = io::stdout().lock();
            let written = svg::write_folded(&folded, &caption, &options, &mut out);
            written.context("cannot write to stdout")
        }
    }
}

/// Replays the capture and writes the profile.
///
/// # Errors
/// The capture cannot be read, or the profile cannot be written.
pub(crate) fn run(args: &ReportArgs) -> Result<()> {
    args.memory.apply()?;
    let destination = Destination::new(args.output.as_deref(), args.format)?;
    args.view.check(&destination)?;
    if input::is_folded(&args.capture) {
        return draw_folded(args, &destination);
    }
    let file = match &destination {
        Destination::Stdout(Format::Capture) | Destination::File(_, Format::Capture) => {
            return Err(usage_error(
                "a capture is what report reads: choose another format",
            ));
        }
        Destination::File(path, format) => Some((OutputFile::create(path)?, *format)),
        _ => None,
    };
    let options = ReplayOptions {
        inlines: !args.no_inlines,
        source_lines: destination.has_source_lines(),
        kernel_stacks: !args.no_kernel,
        launches: args.values.launches(),
    };
    if destination.is_trace() {
        if Foreign::of(&args.capture).is_some() {
            return Err(usage_error(
                "a trace needs a capture: this file has counts, no events",
            ));
        }
        let out = match (file, &destination) {
            (Some((file, format)), _) => TraceOut::new(Some(file), format),
            (None, Destination::Stdout(format)) => TraceOut::new(None, *format),
            (None, _) => TraceOut::new(None, Format::Chrome),
        };
        return trace_out::from_file(&args.capture, options, args.title.as_deref(), out);
    }
    let mut profile = input::profile(&args.capture, &options)?;
    if let Some(title) = &args.title {
        profile.meta.title.clone_from(title);
    }
    let mut export = args.view.options(args.values);
    if export.weight == Weight::Time && input::tells_no_times(&profile) {
        tracing::warn!("the recording tells no times: values are numbers of samples");
        export.weight = Weight::Samples;
    }
    match (file, destination) {
        (Some((file, format)), _) => profile_out::write_file(&profile, format, &export, file),
        (None, Destination::Stdout(format)) => profile_out::write_stdout(&profile, format, &export),
        (None, _) => {
            profile_out::write_summary(&profile, export.shown)?;
            let capture = args.capture.display();
            screen::say(&format!(
                "for a flame graph: aiprof report {capture} -o flame.svg"
            ));
            Ok(())
        }
    }
}
