//! `aiprof stalls`: why device kernels stall, by kernel, line and instruction.

use super::input;
use super::memory::MemoryArgs;
use super::output::OutputFile;
use super::stall_input::{self, StallInputs};
use super::stall_sources::Sources;
use super::values::named;
use super::{Verbosity, screen, usage_error};
use aiprof_formats::export::ExportError;
use aiprof_formats::export::html;
use aiprof_formats::export::stalls::{self, By, StallView};
use aiprof_symbols::symbolize::device::isa::Platform;
use aiprof_trace::analyze::device_stalls::StallReport;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum, ValueHint};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Kernels that are named when none is called as wanted.
const NAMED: usize = 8;
/// Width of texts in files.
const FILE_WIDTH: usize = 120;

const EXAMPLES: &str = "\
Examples:
  aiprof stalls x.aiprof                      the kernels of a capture: lines, instructions, causes
  aiprof stalls x.aiprof -k gemm --by reason  one kernel, the instructions of each stall reason
  aiprof stalls x.aiprof -k gemm --listing    its disassembly with samples, lines and producers
  aiprof stalls x.aiprof -o stalls.html       a page; .csv and .json for programs
  aiprof stalls perf.123.csv --modules dump/  device samples of unitrace, with the folder that
                                              IGC_ShaderDumpEnable=1 wrote

Stall reasons:
  active      an instruction was issued: no stall
  sbid        waits for a scoreboard token: memory, systolic array or math. The report names
              the slow instruction that holds the token, not the one that waits
  dist_acc    waits for the result of an earlier in-order instruction, or for an accumulator
  send        no slot was free to send a message
  pipestall   the instruction was ready, but its pipe was busy
  sync        waits for a barrier or another synchronization
  control     waits until a branch is resolved
  inst_fetch  the instruction was not in the cache
  tdr         an earlier thread of a pixel shader had to come first
  other       another reason, which the device does not report

Exit status:
  1   the file cannot be read, has no device samples, or has none of the chosen kernel
  2   the command line is wrong";

/// Options of `aiprof stalls`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct StallsArgs {
    /// Capture with device samples, or output of unitrace or iaprof; `-` reads stdin
    ///
    /// unitrace's output is the CSV of `unitrace --stall-sampling`, iaprof's output is its text.
    #[arg(value_hint = ValueHint::FilePath)]
    input: PathBuf,

    /// Module of device code, or a folder of modules (repeatable)
    ///
    /// A module is a zebin or an archive of zebins. A folder is one that Intel's compiler wrote
    /// with IGC_ShaderDumpEnable=1. Captures contain the modules that programs gave to their
    /// runtimes. Tables of other tools contain none: without modules there are counts, but no
    /// instructions, lines and causes.
    #[arg(long, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath,
        help_heading = "Device code")]
    modules: Vec<PathBuf>,

    /// Show only kernels whose name contains NAME, as in the source or mangled
    #[arg(short, long, value_name = "NAME", help_heading = "Selection")]
    kernel: Option<String>,

    /// Show only devices whose name contains NAME
    #[arg(long, value_name = "NAME", help_heading = "Selection")]
    device: Option<String>,

    /// Maximum number of kernels and of rows; 0: all [default: 10; .csv and .json: all]
    ///
    /// The number of rows applies to each table.
    #[arg(short = 'n', long, value_name = "N", help_heading = "Selection")]
    top: Option<usize>,

    /// Leave out rows with less than PERCENT of all samples
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent,
        help_heading = "Selection")]
    min_share: f64,

    /// What one row of a table stands for
    #[arg(long, value_parser = named(ROWS), default_value = "instruction", help_heading = "View")]
    by: By,

    /// Show the disassembly of the kernels, with samples at each instruction
    #[arg(long, help_heading = "View")]
    listing: bool,

    /// File to write: .txt, .html, .csv or .json; `-` writes to stdout
    ///
    /// The extension chooses the format.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath,
        help_heading = "Output")]
    output: Option<PathBuf>,

    /// Output format; overrides the file's extension
    #[arg(long, value_enum, value_name = "FORMAT", help_heading = "Output")]
    format: Option<StallsFormat>,

    /// Folder with the sources, to show the text of source lines
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "View")]
    source_dir: Option<PathBuf>,

    /// Decode device code for this platform instead of the one that the module states
    #[arg(long, value_enum, value_name = "NAME", help_heading = "Device code")]
    platform: Option<PlatformArg>,

    #[command(flatten, next_help_heading = "Limits")]
    memory: MemoryArgs,
}

/// What one row stands for.
const ROWS: &[(&str, &str, By)] = &[
    ("line", "Source lines", By::Line),
    (
        "instruction",
        "Instructions and why they stall",
        By::Instruction,
    ),
    ("kernel", "Kernels", By::Kernel),
    (
        "reason",
        "Instructions, separately for each stall reason",
        By::Reason,
    ),
];

/// What the report is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StallsFormat {
    /// Text for a terminal
    Text,
    /// Page for a browser
    Html,
    /// Table as CSV
    Csv,
    /// Everything, as JSON
    Json,
}

impl StallsFormat {
    /// Its description, for people.
    fn what(self) -> &'static str {
        match self {
            Self::Text => "a report",
            Self::Html => "a report, for a browser",
            Self::Csv => "a table",
            Self::Json => "everything, as JSON",
        }
    }

    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "txt" | "text" | "asm" => Some(Self::Text),
            "html" | "htm" => Some(Self::Html),
            "csv" => Some(Self::Csv),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// As [`Platform`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PlatformArg {
    /// Tiger Lake, Alder Lake, DG1
    #[value(alias = "tgl")]
    XeLp,
    /// XeHP SDV
    XeHp,
    /// DG2 (Arc A, Flex), Meteor Lake
    #[value(alias = "dg2")]
    XeHpg,
    /// Ponte Vecchio (Data Center GPU Max)
    #[value(alias = "pvc")]
    XeHpc,
    /// Lunar Lake, Battlemage
    #[value(aliases = ["bmg", "lnl"])]
    Xe2,
    /// Panther Lake
    #[value(alias = "ptl")]
    Xe3,
    /// Nova Lake P, Crescent Island
    Xe3p,
}

impl From<PlatformArg> for Platform {
    fn from(platform: PlatformArg) -> Self {
        match platform {
            PlatformArg::XeLp => Self::XeLp,
            PlatformArg::XeHp => Self::XeHp,
            PlatformArg::XeHpg => Self::XeHpg,
            PlatformArg::XeHpc => Self::XeHpc,
            PlatformArg::Xe2 => Self::Xe2,
            PlatformArg::Xe3 => Self::Xe3,
            PlatformArg::Xe3p => Self::Xe3p,
        }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let value: f64 = text
        .trim_end_matches('%')
        .parse()
        .map_err(|_| "not a number".to_owned())?;
    match (0.0..=100.0).contains(&value) {
        true => Ok(value),
        false => Err("not between 0 and 100".to_owned()),
    }
}

/// Reads the samples, analyses and writes them.
///
/// # Errors
/// An input cannot be read or has nothing of what is asked for, or the report cannot be written.
pub(crate) fn run(args: &StallsArgs, verbosity: Verbosity) -> Result<()> {
    args.memory.apply()?;
    let format = format(args)?;
    if args.listing && matches!(format, StallsFormat::Csv | StallsFormat::Json) {
        return Err(usage_error(
            "--listing writes text or a page only: use -o FILE.txt or FILE.html",
        ));
    }
    let mut file = OutputFile::open(args.output.as_deref())?;
    let mut input = stall_input::read(&StallInputs {
        input: &input::named(&args.input),
        modules: &args.modules,
        platform: args.platform.map(Platform::from),
    })?;
    let all: Vec<String> = input.sampled.iter().map(|s| s.kernel.clone()).collect();
    input.sampled.retain(|sampled| is_wanted(args, sampled));
    if input.sampled.is_empty() {
        bail!("{}", nothing_wanted(args, all));
    }
    let report = StallReport::of(input.title, input.notes, input.sampled);
    let sources = Sources::new(args.source_dir.as_deref())?;
    let source = |file: &str, line: u32| sources.line(file, line);
    let view = StallView {
        by: args.by,
        top: match (args.top, format) {
            (Some(0), _) | (None, StallsFormat::Csv | StallsFormat::Json) => None,
            (Some(top), _) => Some(top),
            (None, _) => StallView::default().top,
        },
        min_percent: args.min_share,
        width: match file.is_stdout() {
            true => screen::width(),
            false => FILE_WIDTH,
        },
        color: file.is_stdout() && screen::has_colors(),
        source: &source,
    };
    let written = write(&report, &view, format, args.listing, &mut file);
    written.with_context(|| file.cannot_write())?;
    let note = file.note(format.what());
    file.commit()?;
    verbosity.say(&note);
    Ok(())
}

fn format(args: &StallsArgs) -> Result<StallsFormat> {
    match (args.format, args.output.as_deref()) {
        (Some(format), _) => Ok(format),
        (None, None) => Ok(StallsFormat::Text),
        (None, Some(path)) if path == Path::new("-") => Ok(StallsFormat::Text),
        (None, Some(path)) => StallsFormat::of(path).ok_or_else(|| {
            usage_error(format!(
                "the extension of {} names no format: use .txt, .html, .csv or .json, or give \
                 --format",
                path.display()
            ))
        }),
    }
}

fn write(
    report: &StallReport,
    view: &StallView<'_>,
    format: StallsFormat,
    listing: bool,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    match format {
        StallsFormat::Text if listing => stalls::write_listing(report, view, out),
        StallsFormat::Text => stalls::write_text(report, view, out),
        StallsFormat::Html => html::stalls::write(report, view, listing, out),
        StallsFormat::Csv => stalls::write_csv(report, view, out),
        StallsFormat::Json => stalls::write_json(report, view, out),
    }
}

fn is_wanted(args: &StallsArgs, sampled: &aiprof_trace::analyze::device_stalls::Sampled) -> bool {
    let has = |part: &Option<String>, names: &[&str]| {
        part.as_ref()
            .is_none_or(|part| names.iter().any(|name| name.contains(&**part)))
    };
    let mangled = sampled.code.as_ref().map_or("", |code| &code.kernel.name);
    has(&args.kernel, &[&sampled.kernel, mangled]) && has(&args.device, &[&sampled.device])
}

fn nothing_wanted(args: &StallsArgs, mut kernels: Vec<String>) -> String {
    kernels.sort();
    kernels.dedup();
    let more = match kernels.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    kernels.truncate(NAMED);
    let kernels: Vec<String> = kernels
        .iter()
        .map(|k| k.escape_debug().to_string())
        .collect();
    format!(
        "{}: no samples of this kernel or device; the sampled kernels are {}{more}",
        args.input.display(),
        kernels.join(", ")
    )
}
