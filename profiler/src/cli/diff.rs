//! `aiprof diff`: what changed between two profiles, or two traces.

use super::destination;
use super::diff_traces;
use super::input::{self, ProfileCommand, ReadCounts};
use super::memory::MemoryArgs;
use super::output::{OutputFile, keep_inputs};
use super::profile_out::{ValueArgs, ViewArgs};
use super::values::{named, parse_duration};
use super::{Verbosity, usage_error};
use aiprof_formats::export::diff::{self, ComparedProfile, DiffOptions, SampleCount, Widths};
use aiprof_formats::export::folded::{self, FoldedStacks};
use aiprof_formats::export::formats::{FOLDED, SVG};
use aiprof_formats::export::tables::plain::{self, TableFormat};
use aiprof_formats::export::{ExportOptions, FileFormat, Weight};
use aiprof_formats::import::open::{Contents, Input};
use aiprof_model::profile::{Profile, Values};
use aiprof_record::capture::{self, ReplayOptions};
use aiprof_system::memory;
use aiprof_tables::Table;
use aiprof_tables::compare::shares::SLICES;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum, ValueHint};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Functions in the text output, without `--limit`.
const ROWS: usize = 30;

/// Options of `aiprof diff`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each frame's share of the total is compared, so the two recordings may have \
                        different lengths. The first line shows whether anything changed. Each \
                        change has its 95 % interval. In flame graphs, red frames grew and blue \
                        frames shrank. Grey frames did not change, or the change is within noise."
)]
pub(crate) struct DiffArgs {
    /// Profile or trace from before the change; `-` reads a profile from stdin
    ///
    /// A profile is a capture (.aiprof), folded stacks, pprof, or device samples of iaprof or
    /// unitrace. A trace is a file of events that `aiprof analyze` reads.
    #[arg(value_hint = ValueHint::FilePath)]
    before: PathBuf,

    /// Profile or trace from after the change: the same kind of file
    #[arg(value_hint = ValueHint::FilePath)]
    after: PathBuf,

    /// File to write: .svg for a flame graph, .txt, .csv or .json for tables; `-`: stdout
    ///
    /// .svg is a differential flame graph. Without this option, tables go to stdout.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath,
        help_heading = "Output")]
    output: Option<PathBuf>,

    /// Output format; overrides the file's extension [default without -o: text]
    #[arg(long, value_enum, value_name = "FORMAT", help_heading = "Output")]
    format: Option<DiffFormat>,

    /// Maximum number of rows in each table [default: 30 as text, otherwise all]
    #[arg(long, value_name = "N", help_heading = "Output")]
    limit: Option<usize>,

    /// Time that one sample of folded stacks stands for, such as 10.101ms
    ///
    /// Without this option, aiprof finds the longest time that divides all values. If it finds
    /// none, give --period. If the values are numbers of samples, use --weight samples.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Values")]
    period: Option<Duration>,

    #[command(flatten, next_help_heading = "Values")]
    values: ValueArgs,

    #[command(flatten, next_help_heading = "Limits")]
    memory: MemoryArgs,

    /// Which of the two profiles determines the widths of frames
    #[arg(long, value_parser = named(WIDTHS), default_value = "after", help_heading = "View")]
    widths: Widths,

    /// Compare processes by their IDs too; IDs differ between recordings
    #[arg(long, help_heading = "View")]
    keep_pids: bool,

    /// Compare device instructions by their offsets too; offsets differ between builds
    #[arg(long, help_heading = "View")]
    keep_offsets: bool,

    /// Invert stacks: the device or the leaf comes first
    #[arg(long, help_heading = "View")]
    inverted: bool,

    /// Title of the flame graph [default: the names of the two files]
    #[arg(long, help_heading = "Output")]
    title: Option<String>,
}

/// The formats of `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DiffFormat {
    /// Differential flame graph for a browser
    Svg,
    /// Tables as text
    Text,
    /// Tables as CSV
    Csv,
    /// Tables as JSON
    Json,
}

impl DiffFormat {
    /// The format of a file, by its name.
    ///
    /// # Errors
    /// A usage error: the name gives no format.
    fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().unwrap_or_default();
        let format = FileFormat::of_file(path);
        Ok(match extension.to_str() {
            _ if format == Some(&SVG) => Self::Svg,
            Some("csv") => Self::Csv,
            Some("json") => Self::Json,
            _ if format == Some(&FOLDED) => Self::Text,
            _ if destination::is_device(path) => Self::Text,
            _ => {
                return Err(usage_error(
                    "the extension names no format: write a difference as .svg, .txt, .csv or \
                     .json, or give --format",
                ));
            }
        })
    }

    /// As the format of tables; `None`: it is a picture.
    fn of_tables(self) -> Option<TableFormat> {
        match self {
            Self::Svg => None,
            Self::Text => Some(TableFormat::Text),
            Self::Csv => Some(TableFormat::Csv),
            Self::Json => Some(TableFormat::Json),
        }
    }
}

/// Which recording gives the frames their widths.
const WIDTHS: &[(&str, &str, Widths)] = &[
    (
        "after",
        "The second profile: shows what is new or grew, not what vanished",
        Widths::After,
    ),
    (
        "before",
        "The first profile: shows what vanished, not what is new",
        Widths::Before,
    ),
];

/// Compares the two and writes the difference.
///
/// # Errors
/// An input cannot be read, or the output cannot be written.
pub(crate) fn run(args: &DiffArgs, verbosity: Verbosity) -> Result<()> {
    args.memory.apply()?;
    let mut options = DiffOptions {
        widths: args.widths,
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
    let format = match (args.format, target) {
        (Some(format), _) => format,
        (None, Some(path)) => DiffFormat::of(path)?,
        (None, None) => DiffFormat::Text,
    };
    if args.inverted && format != DiffFormat::Svg {
        return Err(usage_error(
            "--inverted applies only to flame graphs: use -o FILE.svg",
        ));
    }
    let read = [&args.before, &args.after].map(PathBuf::as_path);
    keep_inputs(read, target)?;
    let mut file = OutputFile::open(target)?;
    let cannot_write = file.cannot_write();
    let context = || cannot_write.clone();
    let read = DiffInputs::read(args)?;
    match (format.of_tables(), &read) {
        (Some(format), read) => {
            let tables = read.tables(args, &options, rows(args, format))?;
            plain::write(&tables, format, &mut file).with_context(context)?;
        }
        (None, DiffInputs::Profiles { before, after, .. }) => {
            let found = diff::compare(before, after, &options);
            let (before, after) = (&before.stacks, &after.stacks);
            diff::write_svg(before, after, &title(args), &options, &found, &mut file)
                .with_context(context)?;
        }
        (None, DiffInputs::Traces) => {
            return Err(usage_error(
                "traces cannot be compared in a flame graph: write tables with -o FILE.txt, .csv \
                 or .json",
            ));
        }
    }
    let note = file.note(match format {
        DiffFormat::Svg => "a flame graph",
        _ => "tables",
    });
    file.commit()?;
    verbosity.say(&note);
    Ok(())
}

/// Rows of each table.
fn rows(args: &DiffArgs, format: TableFormat) -> usize {
    let usual = match format {
        TableFormat::Text => ROWS,
        TableFormat::Csv | TableFormat::Json | TableFormat::Summary => usize::MAX,
    };
    args.limit.unwrap_or(usual)
}

/// What is compared with what.
fn title(args: &DiffArgs) -> String {
    let name = |path: &Path| path.file_name().unwrap_or_default().display().to_string();
    match &args.title {
        Some(title) => title.clone(),
        None => format!("from {} to {}", name(&args.before), name(&args.after)),
    }
}

/// What is compared.
enum DiffInputs {
    /// Profiles.
    Profiles {
        before: Box<ComparedProfile>,
        after: Box<ComparedProfile>,
        /// Both are captures that have work of devices.
        has_work: bool,
    },
    /// Traces, or a trace and a capture; they are read when they are compared.
    Traces,
}

impl DiffInputs {
    /// Sees what both are, and reads them if they are profiles.
    fn read(args: &DiffArgs) -> Result<Self> {
        let open = |path: &Path| {
            let path = input::named(path);
            let input = input::open(&path)?;
            Ok::<_, anyhow::Error>((path, input))
        };
        let (before, after) = (open(&args.before)?, open(&args.after)?);
        let has_events = |of: Contents| of.is_trace() || of == Contents::Capture;
        let (old, new) = (before.1.contents, after.1.contents);
        if has_events(old) && has_events(new) && (old.is_trace() || new.is_trace()) {
            return Ok(Self::Traces);
        }
        let ((before, old_work), (after, new_work)) = (read(before, args)?, read(after, args)?);
        Ok(Self::Profiles {
            before: Box::new(before),
            after: Box::new(after),
            has_work: old_work && new_work && old == Contents::Capture && new == old,
        })
    }

    fn tables(&self, args: &DiffArgs, options: &DiffOptions, rows: usize) -> Result<Vec<Table>> {
        let (before, after) = (&args.before, &args.after);
        let mut tables = match self {
            Self::Profiles { before, after, .. } => {
                let found = diff::compare(before, after, options);
                vec![diff::table(before, after, options, &found, rows)]
            }
            Self::Traces => Vec::new(),
        };
        if matches!(self, Self::Traces | Self::Profiles { has_work: true, .. }) {
            let mut more = diff_traces::tables(before, after)?;
            more.iter_mut().for_each(|table| table.cut(rows));
            tables.append(&mut more);
        }
        Ok(tables)
    }
}

/// Reads folded stacks, or makes them from another file of counts. Also returns whether there is
/// work of devices.
fn read(from: (PathBuf, Input), args: &DiffArgs) -> Result<(ComparedProfile, bool)> {
    let values = args.values;
    let (path, input) = from;
    let path = &path;
    let replay = ReplayOptions {
        launches: values.launches(),
        waits: values.waits(),
        ..ReplayOptions::default()
    };
    let weight = values.weight();
    let no_times = || {
        let path = path.display();
        usage_error(format!(
            "{path} has no times: compare numbers of samples with --weight samples"
        ))
    };
    let context = || format!("cannot read {}", path.display());
    let mut slices = Vec::new();
    let profile = if input.contents == Contents::Capture {
        let mut failed = None;
        let profile = capture::replay_slices(path, input.text, &replay, SLICES, |slice| {
            match folded_of(&slice, values) {
                Ok(folded) => slices.push(folded),
                Err(error) => failed = Some(error),
            }
        })?;
        memory::check().with_context(context)?;
        if let Some(error) = failed {
            return Err(error).with_context(context);
        }
        profile
    } else {
        match input::counts(path, input, ProfileCommand::Diff, &replay, weight)? {
            ReadCounts::Stacks(stacks) if stacks.weight == weight => {
                let stacks = of_stacks(stacks.folded, weight, args.period);
                return Ok((stacks, false));
            }
            ReadCounts::Stacks(stacks) if stacks.weight == Weight::Samples => {
                return Err(no_times());
            }
            ReadCounts::Stacks(_) => {
                let path = path.display();
                bail!("{path} has neither times nor numbers of samples to compare");
            }
            ReadCounts::Profile(profile) => *profile,
        }
    };
    if weight == Weight::Time && input::tells_no_times(&profile) {
        return Err(no_times());
    }
    let has_work = profile.samples.iter().any(|one| one.device.is_some());
    let read = ComparedProfile {
        stacks: folded_of(&profile, values).with_context(context)?,
        slices,
        samples: draws(&profile),
    };
    Ok((read, has_work))
}

/// A profile's stacks.
fn folded_of(profile: &Profile, values: ValueArgs) -> Result<FoldedStacks> {
    let mut text = Vec::new();
    let options = ExportOptions {
        // Also if only one of the recordings has samples of devices.
        all_processes: true,
        ..ViewArgs::default().options(values)
    };
    folded::write(profile, &options, &mut text)?;
    Ok(folded::read(&mut text.as_slice())?)
}

/// How many samples a profile is of, if it is of samples of CPUs alone.
fn draws(profile: &Profile) -> SampleCount {
    let is_of_cpus = profile.values == Values::CpuTime
        && profile.samples.iter().all(|sample| sample.device.is_none());
    match is_of_cpus {
        true => SampleCount::Known(profile.total_count()),
        false => SampleCount::NoDraws,
    }
}

/// Stacks that were folded already: values are samples, or times of some period.
fn of_stacks(stacks: FoldedStacks, weight: Weight, period: Option<Duration>) -> ComparedProfile {
    let samples = match (weight, period) {
        (Weight::Samples, _) => SampleCount::Known(stacks.total),
        (Weight::Bytes, _) => SampleCount::NotKnown,
        (Weight::Time, None) => SampleCount::of_times(&stacks),
        (Weight::Time, Some(period)) => {
            let period = period.as_secs_f64() * 1e6;
            SampleCount::Known((stacks.total as f64 / period.max(1.0)).round() as u64)
        }
    };
    ComparedProfile {
        stacks,
        slices: Vec::new(),
        samples,
    }
}
