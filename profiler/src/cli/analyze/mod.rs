//! `aiprof analyze`: traces become calibrated traces, tables and findings.

mod settings;
mod tables;

use super::analysis::{self, Analysis};
use super::analysis_plan::AnalysisPlan;
use super::memory::MemoryArgs;
use super::output::{self, STDOUT};
use super::sibling_files::{self, WrittenFiles};
use super::stdout;
use super::time_arg::{Moment, parse_moment};
use super::values::named;
use super::wanted_tables::WantedTables;
use super::{EXIT_DAMAGED, Verbosity, log, screen, usage_error};
use aiprof_formats::export::tables::plain::TableFormat;
use aiprof_formats::export::{analysis_text, findings};
use aiprof_model::timeline::Stretch;
use aiprof_system::files::caller;
use aiprof_tables::categories::Aggregator;
use aiprof_trace::analyze::config::OverlapMode;
use aiprof_trace::analyze::messages::Messages;
use aiprof_trace::critical::WhatIf;
use anyhow::{Result, bail};
use clap::{Args, FromArgMatches as _, ValueEnum, ValueHint};
use serde_json::json;
use settings::{config, directory};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  aiprof analyze trace.json                    findings and tables on the terminal
  aiprof analyze trace.json -o out.json        a calibrated trace for ui.perfetto.dev,
                                               with out_report.html and out_*.csv beside it
  aiprof analyze trace.json -o report.html     the report only, as a page for a browser
  aiprof analyze rank*.json.gz -o all.json     several ranks, their clocks aligned
  aiprof analyze t.json -c compile.log         utilization, from the compiler's ideal cycles
  aiprof analyze t.json -o big.pftrace         Perfetto's format, for very large traces
  aiprof analyze x.aiprof --from 10s --to 20s  ten seconds of a long recording
  aiprof analyze t.json -o runs/               for TensorBoard: --logdir runs
  aiprof analyze trace.json --json | jq '.findings[0]'    the most expensive finding
  aiprof analyze t.json --table kernels        one table; --table list prints all names

Reads captures of aiprof (.aiprof) and the traces made from them, traces of the AIU's
runtime (FLEX), of PyTorch's profiler (Kineto) and of Perfetto, and acelyzer's output. The
files may be compressed (.gz, .zst).

Exit status:
  0  success
  1  no input could be read, the inputs have no events, a result could not be written, or
     a check of --verify failed
  2  the command line is wrong
  3  results were written, but an input is damaged and parts of it are missing";

/// What happens to events of one row that overlap.
const OVERLAPS: &[(&str, &str, OverlapMode)] = &[
    (
        "rows",
        "put the later span on a lane of its own",
        OverlapMode::SpareRow,
    ),
    ("drop", "leave out the later span", OverlapMode::Drop),
    (
        "async",
        "make the later span an asynchronous span",
        OverlapMode::Async,
    ),
    ("count", "only count the overlaps", OverlapMode::Count),
    (
        "shift",
        "move the later span, if it has to move by less than 5 ns",
        OverlapMode::Shift,
    ),
];

/// Options of `aiprof analyze`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "`aiprof analyze --help` has examples.")]
pub(crate) struct AnalyzeArgs {
    /// Captures and traces to analyze; `-` reads stdin
    ///
    /// A pattern in quotes, such as 'dir/rank*.json', stands for several files.
    #[arg(required_unless_present = "table", value_name = "INPUT", value_hint = ValueHint::FilePath)]
    inputs: Vec<String>,

    /// File to write; its extension chooses the format; `-` writes to stdout
    ///
    /// .json, .json.gz and .pftrace write the trace, with tables and reports beside it. .html
    /// writes the report only. `DIR/` writes a trace for TensorBoard. With --table, the file
    /// has the tables: .csv, .json, or text. Without this option, only the summary is printed.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath,
        help_heading = "Output")]
    output: Option<PathBuf>,

    /// Output format; overrides the file's extension
    #[arg(long, value_enum, value_name = "FORMAT", help_heading = "Output")]
    format: Option<AnalyzeFormat>,

    /// Print the findings as JSON instead of the summary; same as --format json
    ///
    /// With --table, the tables are written as JSON.
    #[arg(long, conflicts_with_all = ["format", "verify"], help_heading = "Output")]
    json: bool,

    /// Print only these tables, or write them to -o; `list` prints all names
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with_all = ["verify",
        "tensorboard"], help_heading = "Tables")]
    table: Vec<String>,

    /// Sort the rows by this column, largest first
    #[arg(
        long,
        value_name = "COLUMN",
        requires = "table",
        help_heading = "Tables"
    )]
    sort_by: Option<String>,

    /// Maximum number of rows in each table
    #[arg(long, value_name = "N", requires = "table", help_heading = "Tables")]
    limit: Option<usize>,

    /// Mark the events of the critical path in the trace (argument critical_path_us)
    #[arg(
        long,
        requires = "output",
        conflicts_with = "table",
        help_heading = "Trace"
    )]
    critical_path: bool,

    /// Limit the tables critical-path and trace-diff to annotations whose name contains TEXT
    ///
    /// The tables have only events that start within such an annotation.
    #[arg(long, value_name = "TEXT", help_heading = "Tables")]
    annotation: Option<String>,

    /// With --annotation: use only the N-th matching annotation, counted from 0
    #[arg(
        long,
        value_name = "N",
        requires = "annotation",
        help_heading = "Tables"
    )]
    instance: Option<usize>,

    /// Compute the table critical-path as if NAME took FACTOR of its time (repeatable)
    ///
    /// NAME is a part of a name: gemm=0.5 halves the time of everything with gemm in its name.
    #[arg(
        long,
        value_name = "NAME=FACTOR",
        requires = "table",
        help_heading = "Tables"
    )]
    what_if: Vec<WhatIf>,

    /// Limit the table kernel-sequences to operators whose name contains TEXT
    #[arg(long, value_name = "TEXT", requires = "table", help_heading = "Tables")]
    operator: Option<String>,

    /// Give calls with different input shapes separate rows in the tables key-averages and flops
    #[arg(long, requires = "table", help_heading = "Tables")]
    by_shape: bool,

    /// Give calls with different innermost N Python frames separate rows in key-averages
    #[arg(long, value_name = "N", requires = "table", help_heading = "Tables")]
    group_by_stack: Option<usize>,

    /// File with the peak rates of the device, for the table flops
    ///
    /// The table then shows the percent of the roofline, and what bounds each kernel.
    /// `aiprof roofline --help` has an example of such a file.
    #[arg(long, value_name = "FILE", requires = "table", value_hint = ValueHint::FilePath,
        help_heading = "Tables")]
    device: Option<PathBuf>,

    /// Categories of kernels, for the tables categories and category-summary
    ///
    /// An INI file that unitrace's categorize.py can read, or the JSON that categorize.py or
    /// `aiprof categorize` writes.
    #[arg(long, value_name = "FILE", requires = "table", value_hint = ValueHint::FilePath,
        help_heading = "Tables")]
    categories: Option<PathBuf>,

    /// How category-summary combines the values of a kernel in several ranks
    #[arg(long, value_parser = named(&Aggregator::ALL), value_name = "NAME", default_value = "mean",
        help_heading = "Tables")]
    aggregator: Aggregator,

    /// File that shows by their names what your kernels are for (repeatable)
    ///
    /// A TOML file, in which kernels get a class: compute, communication, message, copy or
    /// memory-set. Its rows come before the built-in ones. docs/tables.md has an example.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Input")]
    kernel_classes: Vec<PathBuf>,

    /// Log of TORCH_LOGS=graph_breaks,recompiles, to explain graph breaks
    ///
    /// The file has what PyTorch printed with this variable: why torch.compile broke graphs
    /// and why it compiled again.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Input")]
    torch_log: Option<PathBuf>,

    /// Logs of the AIU compiler, one for each rank or one for all, or a cache directory
    ///
    /// The directory is the inductor cache of torch-spyre, which has the ideal cycles of kernels.
    #[arg(short, long, value_name = "PATH", value_delimiter = ',', value_hint = ValueHint::AnyPath,
        help_heading = "Input")]
    compiler_info: Vec<PathBuf>,

    /// Frequencies in MHz: SOC is that of the device's counter, CORE that of its cores
    ///
    /// An example is 557.05:1100.
    /// Only for AIUs: the compiler's ideal cycles refer to the frequency of the cores. Without this
    /// option, aiprof finds the frequency of the counter from the trace, and CORE is 1100.
    #[arg(long, value_name = "SOC[:CORE]", help_heading = "Calibration")]
    freq: Option<String>,

    /// Counters to add to the trace, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST", help_heading = "Trace",
        default_values_t = [CounterArg::Power, CounterArg::Collectives, CounterArg::Transfers,
            CounterArg::Memory, CounterArg::Preparations, CounterArg::Utilization])]
    counters: Vec<CounterArg>,

    /// Factor that converts the counter of electric charge to power, or auto
    ///
    /// Power in watts is FACTOR x 12 V x charge / 512 / us. auto chooses the known factor that
    /// gives plausible power.
    #[arg(
        long,
        value_name = "FACTOR",
        default_value = "auto",
        help_heading = "Calibration"
    )]
    power_scale: String,

    /// Do not align the clocks of ranks
    #[arg(long, help_heading = "Calibration")]
    no_alignment: bool,

    /// Do not move AIU jobs whose device events lie outside their round trip
    ///
    /// The round trip of a job is the time from the call that starts it to the end of the wait for
    /// it.
    #[arg(long, help_heading = "Calibration")]
    no_job_shifts: bool,

    /// What to do with spans that partly overlap on one track
    #[arg(long, value_parser = named(OVERLAPS), value_name = "MODE", default_value = "rows",
        help_heading = "Trace")]
    overlap: OverlapMode,

    /// Leave out spans of collectives, and arrows between senders and receivers
    #[arg(long, help_heading = "Trace")]
    no_flows: bool,

    /// Write the trace of -o FILE as for -o DIR/: with short kernel names, and one for each rank
    #[arg(long, help_heading = "Trace")]
    tensorboard: bool,

    /// Leave out events with a matching attribute: name:^Memcpy, args.Type:Cast$
    #[arg(long, value_name = "ATTRIBUTE:REGEX", help_heading = "Input")]
    drop: Vec<String>,

    /// Leave out events that end before TIME, such as 10s, 1.5ms or 2m
    ///
    /// A time with a unit counts from the earliest event of all files, as the positions in reports
    /// do. A number without a unit is a time stamp of the trace, in microseconds. To analyze a long
    /// recording in parts, give times with a unit: only then do the events that are left out take no
    /// memory.
    #[arg(long, value_name = "TIME", value_parser = parse_moment, help_heading = "Input")]
    from: Option<Moment>,

    /// Leave out events that start after TIME, in the form of --from
    #[arg(long, value_name = "TIME", value_parser = parse_moment, help_heading = "Input")]
    to: Option<Moment>,

    /// Only check the traces for kernels that overlap or ran at an impossible time
    ///
    /// A kernel of a GPU must not begin before the call that launched it. A kernel of an AIU must
    /// lie between the launch and the end of the wait for it. Kernels without a launch are reported
    /// too.
    #[arg(long, help_heading = "Output")]
    verify: bool,

    /// Do not write tables and reports beside the trace
    #[arg(long, help_heading = "Output")]
    no_tables: bool,

    #[command(flatten, next_help_heading = "Limits")]
    memory: MemoryArgs,
}

/// What of each file is looked at.
///
/// # Errors
/// A usage error: it ends before it begins.
fn kept(args: &AnalyzeArgs) -> Result<Stretch> {
    let since = |moment: Option<Moment>| moment.and_then(Moment::since);
    let kept = Stretch {
        from: since(args.from).unwrap_or(Stretch::ALL.from),
        to: since(args.to).unwrap_or(Stretch::ALL.to),
    };
    match kept.from <= kept.to {
        true => Ok(kept),
        false => Err(usage_error("--from is after --to")),
    }
}

/// The formats of `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AnalyzeFormat {
    /// Chrome trace, for Perfetto and speedscope
    Chrome,
    /// Trace in Perfetto's own format
    Perfetto,
    /// Page with findings and tables, for a browser
    Page,
    /// Trace for TensorBoard's PyTorch plugin, in a directory
    Tensorboard,
    /// Tables as text, with --table
    Text,
    /// Tables as CSV, with --table
    Csv,
    /// Findings as JSON; with --table, the tables
    Json,
    /// The JSON of unitrace's summary.py, with --table category-summary
    Summary,
}

impl AnalyzeFormat {
    /// The format of tables; `None`: it is one of traces.
    fn of_tables(self) -> Option<TableFormat> {
        match self {
            Self::Text => Some(TableFormat::Text),
            Self::Csv => Some(TableFormat::Csv),
            Self::Json => Some(TableFormat::Json),
            Self::Summary => Some(TableFormat::Summary),
            Self::Chrome | Self::Perfetto | Self::Page | Self::Tensorboard => None,
        }
    }
}

/// A counter, for the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CounterArg {
    /// Power in watts, from the counter of electric charge (`Power`) in AIU traces
    Power,
    /// Bandwidth of collectives
    Collectives,
    /// Bandwidth of copies from and to the device
    Transfers,
    /// Allocated memory, from the allocations in the trace
    Memory,
    /// Number of preparations that wait (AIU)
    Preparations,
    /// Utilization, from the compiler's ideal cycles (AIU)
    Utilization,
}

/// Analyses the traces.
///
/// # Errors
/// No trace can be read, or a result not be written.
pub(crate) fn run(args: &AnalyzeArgs, verbosity: Verbosity) -> Result<u8> {
    if args.output.is_none() {
        stdout::require()?;
    }
    if args.table.iter().any(|name| name == "list") {
        return tables::list_tables();
    }
    tables::check_format(args)?;
    args.memory.apply()?;
    let wanted = tables::wanted_tables(args)?;
    let config = config(args, verbosity)?;
    let kept = kept(args)?;
    let also = [&args.torch_log, &args.categories, &args.device];
    let also = also.into_iter().flatten().chain(&args.kernel_classes);
    let also: Vec<_> = also.map(PathBuf::as_path).collect();
    let files = files(&config, &also)?;
    if let Some(directory) = directory(args) {
        output::open_directory(directory)?;
    }
    let mut messages = Messages::new(config.level);
    let mut show = |text: &str| screen::set_progress(text);
    let wants_progress = screen::has_progress() && !verbosity.is_quiet();
    let mut analysis = Analysis {
        progress: wants_progress.then_some(&mut show as &mut dyn FnMut(&str)),
        tables: wanted,
        ..silent(&config, kept, &mut messages)
    };
    let result = match config.verify {
        true => analysis
            .verify(&files)
            .map(|failed| (None, u8::from(failed))),
        false => analysis.run(&files).map(|report| (Some(report), 0)),
    };
    let written = std::mem::take(&mut analysis.written);
    let made = std::mem::take(&mut analysis.tables.made);
    let done = match analysis.is_damaged {
        true => EXIT_DAMAGED,
        false => 0,
    };
    screen::clear_progress();
    log::analysis(&messages);
    let (report, status) = result?;
    if !verbosity.is_quiet() {
        written.say();
    }
    let Some(report) = report else {
        return Ok(if status == 0 { done } else { status });
    };
    if !args.table.is_empty() {
        tables::write_tables(args, &made)?;
        return Ok(done);
    }
    if wants_findings(args) {
        let mut out = std::io::stdout().lock();
        findings::write(&report, &mut out)?;
        out.flush()?;
        return Ok(done);
    }
    if config.output == Path::new(STDOUT) {
        if !verbosity.is_quiet() {
            analysis_text::write(&report, &mut std::io::stderr().lock())?;
        }
        return Ok(done);
    }
    let mut out = std::io::stdout().lock();
    analysis_text::write(&report, &mut out)?;
    out.flush()?;
    Ok(done)
}

/// Whether findings go to stdout as JSON.
fn wants_findings(args: &AnalyzeArgs) -> bool {
    let is_json = args.json || args.format == Some(AnalyzeFormat::Json);
    is_json && args.table.is_empty()
}

/// Runs an analysis that shows no progress, with the words of a command line after
/// `aiprof analyze`.
///
/// # Errors
/// Those of `run`.
pub(super) fn run_with<T>(
    words: &[OsString],
    run: impl FnOnce(&mut Analysis<'_>) -> Result<T>,
) -> Result<T> {
    let command = AnalyzeArgs::augment_args(clap::Command::new("analyze").no_binary_name(true));
    let args = AnalyzeArgs::from_arg_matches(&command.try_get_matches_from(words)?)?;
    let (config, kept) = (config(&args, Verbosity::default())?, kept(&args)?);
    let mut messages = Messages::new(config.level);
    let result = run(&mut silent(&config, kept, &mut messages));
    log::analysis(&messages);
    result
}

/// An analysis that shows no progress and makes no tables.
fn silent<'a>(config: &'a AnalysisPlan, kept: Stretch, messages: &'a mut Messages) -> Analysis<'a> {
    Analysis {
        config,
        other: application(),
        messages,
        progress: None,
        kept,
        inputs: Vec::new(),
        stalls: Vec::new(),
        lost: std::collections::BTreeMap::new(),
        written: WrittenFiles::default(),
        tables: WantedTables::default(),
        is_damaged: false,
    }
}

/// What wrote a trace.
fn application() -> serde_json::Value {
    json!({"Application": format!("aiprof {}", env!("CARGO_PKG_VERSION"))})
}

/// The traces to read; what is wrong with names shows before any work is done. `also`: other
/// files that are read.
fn files(config: &AnalysisPlan, also: &[&Path]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for pattern in &config.inputs {
        let found = analysis::files(std::slice::from_ref(pattern));
        if found.is_empty() {
            bail!("no such file: {pattern}");
        }
        files.extend(found);
    }
    if let Some(path) = config
        .compiler_info
        .iter()
        .find(|path| !caller::exists(path))
    {
        bail!("no such file: {}", path.display());
    }
    let output = &config.output;
    if caller::is_dir(output) {
        let example = output.join("out.json");
        bail!(
            "{} is a directory; name a file in it, such as -o {}",
            output.display(),
            example.display()
        );
    }
    let mut written = sibling_files::places(output);
    written.push(output.clone());
    if config.tensorboard {
        written.push(analysis::merged_path(config));
    }
    let read = files.iter().chain(&config.compiler_info);
    output::keep_inputs(
        read.map(PathBuf::as_path).chain(also.iter().copied()),
        written.iter().map(PathBuf::as_path),
    )?;
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(inputs: &[&Path], output: &Path) -> AnalysisPlan {
        let text = |path: &&Path| path.to_string_lossy().into_owned();
        AnalysisPlan {
            inputs: inputs.iter().map(text).collect(),
            output: output.to_owned(),
            ..AnalysisPlan::default()
        }
    }

    #[test]
    fn names_are_checked_before_any_work() {
        let dir = tempfile::tempdir().unwrap();
        let (here, lost) = (dir.path().join("a.json"), dir.path().join("b.json"));
        std::fs::write(&here, "[]").unwrap();
        let none = Path::new("");
        assert_eq!(
            files(&config(&[&here], none), &[]).unwrap(),
            std::slice::from_ref(&here)
        );
        let message = |config: &AnalysisPlan| format!("{:#}", files(config, &[]).unwrap_err());
        assert!(message(&config(&[&here, &lost], none)).contains("no such file: "));
        // Another name of the same file.
        let link = dir.path().join("link.json");
        std::os::unix::fs::symlink(&here, &link).unwrap();
        assert!(message(&config(&[&here], &link)).contains("would be overwritten"));
        // A name of what stands beside the output.
        let report = dir.path().join("x_report.json");
        std::fs::write(&report, "[]").unwrap();
        let beside = config(&[&here, &report], &dir.path().join("x.json"));
        assert!(message(&beside).contains("x_report.json is an input and would be overwritten"));
        assert!(message(&config(&[&here], dir.path())).contains("such as -o"));
        let mut config = config(&[&here], none);
        config.compiler_info.push(lost);
        assert!(message(&config).contains("no such file: "));
    }
}
