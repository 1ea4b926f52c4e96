//! `aiprof roofline`: what bounds kernels, by the metrics that unitrace takes.

use super::output::OutputFile;
use super::usage_error;
use aiprof_formats::export::html;
use aiprof_formats::export::tables::plain::{self, TableFormat};
use aiprof_formats::import::open;
use aiprof_formats::import::unitrace_metrics::KernelMetrics;
use aiprof_system::files::caller;
use aiprof_tables::roofline::{self, DevicePeaks};
use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum, ValueHint};
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Largest file of a device's peaks.
const MAX_PEAKS: u64 = 1 << 20;

const EXAMPLES: &str = "\
Example:
  unitrace -q -g ComputeBasic -o bytes.csv ./app       (Intel's: two runs with metrics)
  unitrace -q -g VectorEngine138 -o flops.csv ./app
  aiprof roofline bytes.metrics.*.csv flops.metrics.*.csv --device PVC_1tile.csv -o roofline.html

A device file has the same lines as the files in unitrace's roofline/device_configs (GFLOP/s
and GB/s):
  PlatformName,PVC_1tile
  FP16_GFLOPS,39000           FP16_XMX_GFLOPS,314000
  BF16_XMX_GFLOPS,314000      FP32_GFLOPS,32000      FP64_GFLOPS,32000
  GPU_MEMORY_BW_in_GB_per_sec,1055                   L3_BW_in_GB_per_sec,2043";

/// Options of `aiprof roofline`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct RooflineArgs {
    /// Files of `unitrace -q` with the groups ComputeBasic and VectorEngine138, in any order
    #[arg(value_hint = ValueHint::FilePath)]
    inputs: Vec<PathBuf>,

    /// Another input, for command lines of unitrace's roofline.py
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    compute: Vec<PathBuf>,

    /// Another input, for command lines of unitrace's roofline.py
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    memory: Vec<PathBuf>,

    /// File with the peak rates of the device; --help shows an example
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    device: PathBuf,

    /// File to write: .html, .csv, .json or .txt; `-` writes to stdout
    ///
    /// The extension chooses the format.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    output: Option<PathBuf>,

    /// Output format; overrides the file's extension
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<RooflineFormat>,
}

/// What the result is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RooflineFormat {
    /// Text for a terminal
    Text,
    /// Page with a chart
    Html,
    /// Table as CSV
    Csv,
    /// Table as JSON
    Json,
}

impl RooflineFormat {
    fn of(path: Option<&Path>) -> Result<Self> {
        let extension = path.and_then(Path::extension);
        let extension = extension.map(|extension| extension.to_string_lossy());
        Ok(match extension.as_deref() {
            None | Some("txt") => Self::Text,
            Some("html" | "htm") => Self::Html,
            Some("csv") => Self::Csv,
            Some("json") => Self::Json,
            Some(other) => {
                return Err(usage_error(format!(
                    "unknown extension .{other}: use .html, .csv, .json or .txt with -o"
                )));
            }
        })
    }
}

/// Writes the roofline.
///
/// # Errors
/// A file cannot be read, has no metrics, or the result not be written.
pub(crate) fn run(args: &RooflineArgs) -> Result<()> {
    let output = args
        .output
        .as_deref()
        .filter(|path| *path != Path::new("-"));
    let format = match args.format {
        Some(format) => format,
        None => RooflineFormat::of(output)?,
    };
    let peaks = peaks(&args.device)?;
    let inputs = [&args.inputs[..], &args.compute, &args.memory].concat();
    let metrics = metrics(&inputs)?;
    let (kernels, all_ns, notes) = metrics.kernels();
    if kernels.is_empty() {
        bail!(
            "no kernel has both bytes and operations: name two files of one program, that of \
             `unitrace -q -g ComputeBasic` and that of `unitrace -q -g VectorEngine138`"
        );
    }
    let rows = roofline::rows(kernels, all_ns, &peaks);
    let mut file = OutputFile::open(output)?;
    let format = match format {
        RooflineFormat::Html => {
            let names = inputs.iter().filter_map(|path| path.file_name());
            let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
            html::roofline::write(&names.join(", "), &rows, &peaks, &notes, &mut file)?;
            return file.commit();
        }
        RooflineFormat::Text => TableFormat::Text,
        RooflineFormat::Csv => TableFormat::Csv,
        RooflineFormat::Json => TableFormat::Json,
    };
    let table = roofline::table(&rows, &peaks, notes);
    plain::write(&[table], format, &mut file)?;
    file.commit()
}

/// Reads the peak rates of a device.
///
/// # Errors
/// The file cannot be read, or a rate is missing.
pub(super) fn peaks(path: &Path) -> Result<DevicePeaks> {
    let shown = path.display();
    let text = caller::read_to_string(path, MAX_PEAKS);
    let text = text.with_context(|| format!("cannot read {shown}"))?;
    DevicePeaks::parse(&text).with_context(|| format!("cannot use {shown}"))
}

fn metrics(inputs: &[PathBuf]) -> Result<KernelMetrics> {
    if inputs.is_empty() {
        return Err(usage_error(
            "no input: name the files that `unitrace -q` wrote",
        ));
    }
    let mut metrics = KernelMetrics::default();
    for path in inputs {
        let context = || format!("cannot read {}", path.display());
        let file = caller::open(path).and_then(open::decompressed);
        let mut file = BufReader::new(file.with_context(context)?);
        metrics.read(&mut file).with_context(context)?;
    }
    Ok(metrics)
}
