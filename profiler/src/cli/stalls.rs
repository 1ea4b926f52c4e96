//! `aiprof stalls`: why device kernels stall, by kernel, line and instruction.

use super::input;
use super::memory::MemoryArgs;
use super::output::OutputFile;
use super::stall_input::{self, Inputs};
use super::stall_sources::Sources;
use super::stdout;
use super::{Verbosity, screen, usage_error};
use aiprof_analysis::analyze::device_stalls::StallReport;
use aiprof_formats::export::ExportError;
use aiprof_formats::export::html;
use aiprof_formats::export::stalls::{self, By, StallView};
use aiprof_symbols::symbolize::device::isa::Platform;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum, ValueHint};
use std::io::{self, Write};
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
  aiprof stalls perf.123.csv --modules dump/  what `unitrace --stall-sampling` wrote, with the
                                              folder of IGC_ShaderDumpEnable=1

Stall reasons:
  active      an instruction was issued: no stall
  sbid        a scoreboard token: memory, systolic array, math. The instruction that holds
              the token is named: it is the slow one, not the one that waits
  dist_acc    the result of an in-order instruction so far back in a pipe, or an accumulator
  send        no slot was free to send a message
  pipestall   ready, but the pipe was taken
  sync        a barrier or another synchronization
  control     a branch was being resolved
  inst_fetch  the instruction was not in the cache
  tdr         an earlier thread of a pixel shader had to come first
  other       a reason that the device does not tell apart

Exit status:
  1   the file cannot be read, or has no samples of devices, or none of the kernel
  2   the command line is wrong";

/// Options of `aiprof stalls`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct StallsArgs {
    /// Capture with samples of devices, CSV of `unitrace --stall-sampling`, or iaprof's text;
    /// -: stdin
    #[arg(value_hint = ValueHint::FilePath)]
    input: PathBuf,

    /// Module of device code (zebin, archive of zebins), or a folder with such, as Intel's
    /// compiler writes with IGC_ShaderDumpEnable=1 (repeatable)
    ///
    /// Captures have the modules that programs gave their runtimes; tables of other tools
    /// have none, and without them there are counts but no instructions, lines and causes.
    #[arg(long, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    modules: Vec<PathBuf>,

    /// Only kernels with this in their name, as in the source or mangled
    #[arg(short, long, value_name = "NAME")]
    kernel: Option<String>,

    /// Only devices with this in their name
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Most rows of each table, and most kernels; 0: all [default: 10; .csv and .json: all]
    #[arg(short = 'n', long, value_name = "N")]
    top: Option<usize>,

    /// Leave out what has less than this part of all samples, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    min_share: f64,

    /// What tables have a row for
    #[arg(long, value_enum, default_value_t = ByArg::Instruction)]
    by: ByArg,

    /// Show the disassembly of the kernels, with samples at each instruction
    #[arg(long)]
    listing: bool,

    /// Where the report goes; its extension chooses the format (.txt, .html, .csv, .json);
    /// -: stdout
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    output: Option<PathBuf>,

    /// Format of the report, whatever its file is called
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<FormatArg>,

    /// Folder with the sources, to show lines as they are written
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    source_dir: Option<PathBuf>,

    /// Decode device code for this platform, whatever its module says
    #[arg(long, value_enum, value_name = "NAME")]
    platform: Option<PlatformArg>,

    #[command(flatten)]
    memory: MemoryArgs,
}

/// As [`By`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ByArg {
    /// Source lines
    Line,
    /// Instructions and why they stall
    Instruction,
    /// Kernels
    Kernel,
    /// Instructions, for each stall reason by itself
    Reason,
}

impl From<ByArg> for By {
    fn from(by: ByArg) -> Self {
        match by {
            ByArg::Line => Self::Line,
            ByArg::Instruction => Self::Instruction,
            ByArg::Kernel => Self::Kernel,
            ByArg::Reason => Self::Reason,
        }
    }
}

/// What the report is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    /// For a terminal
    Text,
    /// A page
    Html,
    /// A table
    Csv,
    /// Everything
    Json,
}

impl FormatArg {
    /// What it is, for people.
    fn what(self) -> &'static str {
        match self {
            Self::Text => "a report",
            Self::Html => "a report, for a browser",
            Self::Csv => "a table",
            Self::Json => "everything, for programs",
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
/// What is to be read cannot be, has nothing of what is asked for, or the report cannot
/// be written.
pub(crate) fn run(args: &StallsArgs, verbosity: Verbosity) -> Result<()> {
    args.memory.apply()?;
    let format = format(args)?;
    if args.listing && matches!(format, FormatArg::Csv | FormatArg::Json) {
        return Err(usage_error(
            "--listing is text or a page: -o FILE.txt or FILE.html",
        ));
    }
    let output = args.output.as_deref();
    let output = output.filter(|path| *path != Path::new("-"));
    if output.is_none() {
        stdout::require()?;
    }
    let file = output.map(OutputFile::create).transpose()?;
    let mut input = stall_input::read(&Inputs {
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
        by: args.by.into(),
        top: match (args.top, format) {
            (Some(0), _) | (None, FormatArg::Csv | FormatArg::Json) => None,
            (Some(top), _) => Some(top),
            (None, _) => StallView::default().top,
        },
        min_percent: args.min_share,
        width: if file.is_some() {
            FILE_WIDTH
        } else {
            screen::width()
        },
        color: file.is_none() && screen::has_colors(),
        source: &source,
    };
    let Some(mut file) = file else {
        return Ok(write(
            &report,
            &view,
            format,
            args.listing,
            &mut io::stdout().lock(),
        )?);
    };
    let context = format!("cannot write {}", file.path().display());
    write(&report, &view, format, args.listing, &mut file).context(context)?;
    let note = file.note(format.what());
    file.commit()?;
    verbosity.say(&note);
    Ok(())
}

fn format(args: &StallsArgs) -> Result<FormatArg> {
    match (args.format, args.output.as_deref()) {
        (Some(format), _) => Ok(format),
        (None, None) => Ok(FormatArg::Text),
        (None, Some(path)) if path == Path::new("-") => Ok(FormatArg::Text),
        (None, Some(path)) => FormatArg::of(path).ok_or_else(|| {
            usage_error(format!(
                "{}: the extension is none of .txt, .html, .csv, .json; or give --format",
                path.display()
            ))
        }),
    }
}

fn write(
    report: &StallReport,
    view: &StallView<'_>,
    format: FormatArg,
    listing: bool,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    match format {
        FormatArg::Text if listing => stalls::write_listing(report, view, out),
        FormatArg::Text => stalls::write_text(report, view, out),
        FormatArg::Html => html::stalls::write(report, view, listing, out),
        FormatArg::Csv => stalls::write_csv(report, view, out),
        FormatArg::Json => stalls::write_json(report, view, out),
    }
}

fn is_wanted(
    args: &StallsArgs,
    sampled: &aiprof_analysis::analyze::device_stalls::Sampled,
) -> bool {
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
        "{}: no samples of such a kernel or device; it has {}{more}",
        args.input.display(),
        kernels.join(", ")
    )
}
