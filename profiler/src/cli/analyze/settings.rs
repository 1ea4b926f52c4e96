//! From the options of `aiprof analyze` to the configuration of an analysis.

use super::{AnalyzeArgs, AnalyzeFormat, CounterArg};
use crate::cli::analysis_plan::{AnalysisPlan, Format};
use crate::cli::output::STDOUT;
use crate::cli::sibling_files;
use crate::cli::time_arg::Moment;
use crate::cli::{Verbosity, usage_error};
use aiprof_formats::import::torch_log;
use aiprof_model::kernel_classes::KernelClasses;
use aiprof_model::probes::MAX_BYTES;
use aiprof_system::files::caller;
use aiprof_trace::analyze::config::{
    AnalysisConfig, EventFilter, PowerScale, PowerSource, TraceCounters,
};
use aiprof_trace::analyze::messages::Level;
use aiprof_trace::torch::log::TorchLog;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};

/// The output if it is a directory for TensorBoard: its name ends in a slash, it exists as a
/// directory, or the format requires one.
pub(super) fn directory(args: &AnalyzeArgs) -> Option<&Path> {
    let output = args.output.as_deref().filter(|_| !args.verify)?;
    let ends_so = output.as_os_str().as_encoded_bytes().ends_with(b"/");
    let is_directory = match args.format {
        Some(format) => format == AnalyzeFormat::Tensorboard,
        None => ends_so || caller::is_dir(output),
    };
    is_directory.then_some(output)
}

/// The output's format, by its extension.
fn format(args: &AnalyzeArgs) -> Result<Format> {
    if !args.table.is_empty() {
        return Ok(Format::Json);
    }
    let Some(output) = &args.output else {
        return Ok(match args.verify {
            true => Format::Text,
            false => Format::Json,
        });
    };
    match args.format {
        _ if args.verify => {}
        Some(AnalyzeFormat::Chrome | AnalyzeFormat::Tensorboard) => return Ok(Format::Json),
        Some(AnalyzeFormat::Perfetto) => return Ok(Format::Protobuf),
        Some(AnalyzeFormat::Page) => return Ok(Format::Html),
        Some(
            AnalyzeFormat::Text | AnalyzeFormat::Csv | AnalyzeFormat::Json | AnalyzeFormat::Summary,
        ) => {}
        None if directory(args).is_some() => return Ok(Format::Json),
        None => {}
    }
    let extension = output
        .extension()
        .map(|extension| extension.to_string_lossy());
    Ok(match extension.as_deref() {
        Some("pftrace" | "perfetto-trace") => Format::Protobuf,
        Some("html" | "htm") => Format::Html,
        Some("json" | "gz") => Format::Json,
        _ if args.verify => Format::Text,
        None => Format::Json,
        Some(other) => {
            return Err(usage_error(format!(
                "unknown extension .{other}: use .json, .json.gz, .pftrace or .html with -o"
            )));
        }
    })
}

/// The plan that options make.
///
/// # Errors
/// A usage error.
pub(super) fn config(args: &AnalyzeArgs, verbosity: Verbosity) -> Result<AnalysisPlan> {
    let is_stdout = args.output.as_deref() == Some(Path::new("-"));
    let directory = directory(args);
    if is_stdout && directory.is_some() {
        return Err(usage_error(
            "--format tensorboard writes a directory: name it with -o DIR/",
        ));
    }
    let tensorboard = args.tensorboard || directory.is_some();
    let write_trace = args.output.is_some() && args.table.is_empty();
    let format = format(args)?;
    Ok(AnalysisPlan {
        inputs: args.inputs.iter().map(|name| stdin_of(name)).collect(),
        compiler_info: args.compiler_info.clone(),
        classes: kernel_classes(&args.kernel_classes)?,
        analysis: AnalysisConfig {
            shorten_names: tensorboard,
            shows_events: write_trace && format != Format::Html,
            ..analysis_config(args)?
        },
        verify: args.verify,
        output: match (&args.output, directory) {
            (Some(_), _) if is_stdout => PathBuf::from(STDOUT),
            (_, Some(directory)) => {
                let first = args.inputs.first().map(Path::new).unwrap_or(directory);
                sibling_files::tensorboard_place(directory, first)
            }
            (output, None) => output.clone().unwrap_or_default(),
        },
        format,
        tensorboard,
        write_trace,
        write_tables: !args.no_tables && !is_stdout && !is_device(args.output.as_deref()),
        intermediate: Vec::new(),
        shows_ms: false,
        level: match (verbosity.is_quiet(), verbosity.is_verbose()) {
            (true, _) => Level::Error,
            (false, true) => Level::Debug,
            (false, false) => Level::Warn,
        },
    })
}

/// What is done with the events.
fn analysis_config(args: &AnalyzeArgs) -> Result<AnalysisConfig> {
    let (soc, core) = match &args.freq {
        Some(text) => frequencies(text)?,
        None => (None, None),
    };
    let has = |counter| args.counters.contains(&counter);
    let base = AnalysisConfig::default();
    let filters = args.drop.iter().map(|item| EventFilter::parse(item));
    let filters = filters.collect::<Result<Vec<_>, _>>();
    let mut limit = base.event_limit.clone();
    let us = |moment: Option<Moment>| moment.and_then(Moment::us);
    limit.ts_start = us(args.from).unwrap_or(limit.ts_start);
    limit.ts_end = us(args.to).unwrap_or(limit.ts_end);
    Ok(AnalysisConfig {
        event_filter: filters.map_err(usage_error)?,
        event_limit: limit,
        soc_mhz: soc.unwrap_or(base.soc_mhz),
        is_given: soc.is_some(),
        is_fitted: soc.is_none(),
        core_mhz: core.unwrap_or(base.core_mhz),
        move_jobs: !args.no_job_shifts,
        align_ranks: !args.no_alignment,
        overlap: args.overlap,
        keeps_rows: !args.table.is_empty(),
        counters: TraceCounters {
            power: has(CounterArg::Power).then_some(PowerSource::Ts4),
            collectives: has(CounterArg::Collectives),
            transfers: has(CounterArg::Transfers),
            memory: has(CounterArg::Memory),
            preparations: has(CounterArg::Preparations),
            utilization: has(CounterArg::Utilization) && !args.compiler_info.is_empty(),
        },
        power_scale: power_scale(&args.power_scale)?,
        flows: !args.no_flows,
        collective_spans: !args.no_flows,
        torch_log: torch_log(args.torch_log.as_deref())?,
        ..base
    })
}

/// The built-in classes of kernels and those of files; later files come first.
fn kernel_classes(files: &[PathBuf]) -> Result<KernelClasses> {
    let mut classes = KernelClasses::default();
    for path in files {
        let shown = path.display().to_string();
        let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX);
        let text = caller::read_to_string(path, limit);
        let text = text.with_context(|| format!("cannot read {shown}"))?;
        classes.add(&shown, &text).map_err(|mistakes| {
            let lines: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
            usage_error(lines.join("\n"))
        })?;
    }
    Ok(classes)
}

/// The compiler's log.
fn torch_log(path: Option<&Path>) -> Result<TorchLog> {
    let Some(path) = path else {
        return Ok(TorchLog::default());
    };
    let shown = path.display();
    let log = torch_log::load(path).with_context(|| format!("cannot read {shown}"))?;
    if log.is_empty() {
        let what = "no graph breaks and no recompilations are in this file";
        tracing::warn!("{shown}: {what}; use what TORCH_LOGS=graph_breaks,recompiles prints");
    }
    if log.lost > 0 {
        tracing::warn!(
            "{shown}: {} entries or parts of very long lines exceed the limits and were left out",
            log.lost
        );
    }
    Ok(log)
}

/// Whether it is a device or a pipe, which files cannot stand beside.
fn is_device(output: Option<&Path>) -> bool {
    let found = output.and_then(|path| caller::metadata(path).ok());
    found.is_some_and(|found| !found.is_file() && !found.is_dir())
}

/// `-` is stdin.
fn stdin_of(name: &str) -> String {
    match name {
        "-" => "/dev/stdin".to_owned(),
        name => name.to_owned(),
    }
}

/// `SOC[:CORE]` in MHz.
fn frequencies(text: &str) -> Result<(Option<f64>, Option<f64>)> {
    let number = |text: &str| {
        let number: f64 = text.parse().map_err(|_| {
            usage_error(format!(
                "--freq needs frequencies in MHz, such as 557.05:1100; got {text:?}"
            ))
        })?;
        match number > 0.0 && number < 1e6 {
            true => Ok(Some(number)),
            false => Err(usage_error(format!(
                "--freq must be above 0 and below 1000000 MHz; got {number}"
            ))),
        }
    };
    match text.split_once(':') {
        Some((soc, core)) => Ok((number(soc)?, number(core)?)),
        None => Ok((number(text)?, None)),
    }
}

fn power_scale(text: &str) -> Result<PowerScale> {
    if text == "auto" {
        return Ok(PowerScale::Auto);
    }
    match text.parse::<f64>() {
        Ok(factor) if factor > 0.0 && factor.is_finite() => Ok(PowerScale::Fixed(factor)),
        _ => Err(usage_error(format!(
            "--power-scale must be a factor above 0, or auto; got {text:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::kernel_classes::KernelClass;

    #[test]
    fn classes_of_files_come_first_and_their_mistakes_end_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, class: &str| {
            let path = dir.path().join(name);
            let row = format!("[[kernel]]\nclass = \"{class}\"\nnames = [\"nccl*\"]\n");
            std::fs::write(&path, row).unwrap();
            path
        };
        let (first, second) = (write("a", "copy"), write("b", "compute"));
        let class = |files: &[PathBuf]| kernel_classes(files).unwrap().of("ncclKernel");
        assert_eq!(class(&[]), KernelClass::Communication);
        assert_eq!(class(std::slice::from_ref(&first)), KernelClass::Copy);
        assert_eq!(class(&[first.clone(), second]), KernelClass::Compute);
        let error =
            |file: PathBuf| format!("{:#}", kernel_classes(&[first.clone(), file]).unwrap_err());
        let message = error(write("c", "copies"));
        assert!(
            message.contains("/c:2:9: unknown class `copies`; known: compute, "),
            "{message}"
        );
        assert!(error(dir.path().join("none")).contains("cannot read "));
    }

    #[test]
    fn devices_have_nothing_beside_them() {
        assert!(is_device(Some(Path::new("/dev/null"))));
        assert!(!is_device(Some(Path::new("/no/such/file"))));
        assert!(!is_device(Some(Path::new("/"))) && !is_device(None));
    }
}
