//! `aiprof diff`: what changed between two profiles.

use super::destination;
use super::input::{self, Counts, ProfileCommand};
use super::memory::MemoryArgs;
use super::output::OutputFile;
use super::profile_out::{ValueArgs, ViewArgs};
use super::stdout;
use super::{Verbosity, screen, usage_error};
use aiprof_formats::export::diff::{self, DiffOptions, Widths};
use aiprof_formats::export::folded::{self, FoldedStacks};
use aiprof_formats::export::{self, ExportOptions, Format, Weight};
use aiprof_formats::import::capture::ReplayOptions;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum, ValueHint};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Functions in the text output.
const ROWS: usize = 30;

/// Options of `aiprof diff`.
#[derive(Debug, Args)]
#[command(
    after_help = "BEFORE is scaled to the total of AFTER, so recordings of different \
                        lengths compare. Red frames grew, blue ones shrank."
)]
pub(crate) struct DiffArgs {
    /// Profile from before: a capture (.aiprof), folded stacks, pprof, or what iaprof or
    /// unitrace's stall sampling wrote; -: stdin
    #[arg(value_hint = ValueHint::FilePath)]
    before: PathBuf,

    /// Profile from after: a capture (.aiprof), folded stacks, pprof, or what iaprof or
    /// unitrace's stall sampling wrote
    #[arg(value_hint = ValueHint::FilePath)]
    after: PathBuf,

    /// Write a differential flame graph to FILE.svg, or a table to FILE.txt; without
    /// it, or as -, to stdout
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    output: Option<PathBuf>,

    /// Format of the difference, whatever its file is called [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<FormatArg>,

    #[command(flatten)]
    values: ValueArgs,

    #[command(flatten)]
    memory: MemoryArgs,

    /// Which of the two gives the frames their widths
    #[arg(long, value_enum, default_value_t = WidthsArg::default())]
    widths: WidthsArg,

    /// Keep process ids apart; they differ between recordings
    #[arg(long)]
    keep_pids: bool,

    /// Keep offsets of device instructions apart; they differ between builds
    #[arg(long)]
    keep_offsets: bool,

    /// Turn stacks around: the device or leaf first
    #[arg(long)]
    inverted: bool,

    /// Title of the flame graph; the names of the two without it
    #[arg(long)]
    title: Option<String>,
}

/// The formats of `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    /// Differential flame graph for a browser
    Svg,
    /// Table of functions
    Text,
}

/// Which recording gives the frames their widths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum WidthsArg {
    /// The second: what is new or grew is visible, what vanished is not
    #[default]
    After,
    /// The first: what vanished is visible, what is new is not
    Before,
}

/// Compares the two and writes the difference.
///
/// # Errors
/// An input cannot be read, or the output cannot be written.
pub(crate) fn run(args: &DiffArgs, verbosity: Verbosity) -> Result<()> {
    args.memory.apply()?;
    let mut options = DiffOptions {
        widths: match args.widths {
            WidthsArg::After => Widths::After,
            WidthsArg::Before => Widths::Before,
        },
        keep_pids: args.keep_pids,
        keep_offsets: args.keep_offsets,
        ..DiffOptions::default()
    };
    options.export.weight = args.values.weight();
    options.export.inverted = args.inverted;
    let target = args
        .output
        .as_deref()
        .filter(|path| *path != Path::new("-"));
    let (mut file, svg) = match target {
        Some(path) => {
            let svg = match (args.format, Format::from_extension(path)) {
                (Some(format), _) => format == FormatArg::Svg,
                (None, Some(Format::Svg)) => true,
                (None, Some(Format::Folded)) => false,
                (None, None) if destination::is_device(path) => false,
                _ => {
                    return Err(usage_error(
                        "a difference is written as .svg or .txt, or say --format",
                    ));
                }
            };
            (Some(OutputFile::create(path)?), svg)
        }
        None => {
            stdout::require()?;
            (None, args.format == Some(FormatArg::Svg))
        }
    };
    if args.inverted && !svg {
        return Err(usage_error(
            "--inverted is for flame graphs: use -o FILE.svg",
        ));
    }
    let before = read(&args.before, args.values)?;
    let after = read(&args.after, args.values)?;
    let mut stdout = BufWriter::new(io::stdout().lock());
    let out: &mut dyn Write = match &mut file {
        Some(file) => file,
        None => &mut stdout,
    };
    let written = if svg {
        diff::write_svg(&before, &after, &title(args), &options, out)
    } else {
        diff::write_text(&before, &after, &options, ROWS, screen::width(), out)
    };
    let context = || match target {
        Some(path) => format!("cannot write {}", path.display()),
        None => "cannot write to stdout".to_owned(),
    };
    written.with_context(context)?;
    let Some(file) = file else {
        return stdout.flush().with_context(context);
    };
    let note = file.note(if svg { "a flame graph" } else { "a table" });
    file.commit()?;
    verbosity.say(&note);
    Ok(())
}

/// What is compared with what.
fn title(args: &DiffArgs) -> String {
    let name = |path: &Path| path.file_name().unwrap_or_default().display().to_string();
    match &args.title {
        Some(title) => title.clone(),
        None => format!("from {} to {}", name(&args.before), name(&args.after)),
    }
}

/// Reads folded stacks, or makes them from another file of counts.
fn read(path: &Path, values: ValueArgs) -> Result<FoldedStacks> {
    let path = &input::named(path);
    let replay = ReplayOptions {
        launches: values.launches(),
        waits: values.waits(),
        ..ReplayOptions::default()
    };
    let (input, weight) = (input::open(path)?, values.weight());
    let no_times = || {
        let path = path.display();
        usage_error(format!(
            "{path} tells no times: compare numbers of samples, with --weight samples"
        ))
    };
    let profile = match input::counts(path, input, ProfileCommand::Diff, &replay, weight)? {
        Counts::Stacks(stacks) if stacks.weight == weight => return Ok(stacks.folded),
        Counts::Stacks(stacks) if stacks.weight == Weight::Samples => return Err(no_times()),
        Counts::Stacks(_) => {
            let path = path.display();
            bail!("{path} has neither times nor samples, which could be compared");
        }
        Counts::Profile(profile) => profile,
    };
    if weight == Weight::Time && input::tells_no_times(&profile) {
        return Err(no_times());
    }
    let mut text = Vec::new();
    let options = ExportOptions {
        // Also if only one of the recordings has samples of devices.
        all_processes: true,
        ..ViewArgs::default().options(values)
    };
    export::write(&profile, Format::Folded, &options, &mut text)?;
    let folded = folded::read(&mut text.as_slice());
    folded.with_context(|| format!("cannot read {}", path.display()))
}
