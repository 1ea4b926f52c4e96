//! The tables of `aiprof analyze --table`.

use super::{AnalyzeArgs, AnalyzeFormat};
use crate::cli::categorize::categories_of;
use crate::cli::output::OutputFile;
use crate::cli::roofline::peaks;
use crate::cli::usage_error;
use crate::cli::wanted_tables::WantedTables;
use aiprof_formats::export::tables::plain::{self, TableFormat};
use aiprof_tables::unitrace::categories as category_tables;
use aiprof_tables::{self as tables, Options, Table};
use aiprof_trace::critical::PathOptions;
use anyhow::Result;
use std::io::Write as _;
use std::path::Path;

/// Names the tables that there are.
pub(super) fn list_tables() -> Result<u8> {
    let mut out = std::io::stdout().lock();
    let widest = tables::ALL.iter().map(|entry| entry.name.len()).max();
    let width = widest.unwrap_or(0);
    for entry in tables::ALL {
        writeln!(out, "{:<width$}  {}", entry.name, entry.about)?;
    }
    out.flush()?;
    Ok(0)
}

/// Whether the format is one of what is asked for.
pub(super) fn check_format(args: &AnalyzeArgs) -> Result<()> {
    let is_of_tables = args.format.map(|format| format.of_tables().is_some());
    let is_json = args.format == Some(AnalyzeFormat::Json);
    match (args.table.is_empty(), is_of_tables) {
        _ if is_json && args.table.is_empty() && args.output.is_none() => {
            match args.inputs.is_empty() {
                true => Err(usage_error("no input: name at least one trace")),
                false => Ok(()),
            }
        }
        (true, Some(true)) => Err(usage_error(
            "--format text, csv and summary need --table NAME; without --table, --format json \
             prints to stdout and cannot be used with -o",
        )),
        (false, Some(false)) => Err(usage_error(
            "--table cannot write this format: use --format text, csv or json",
        )),
        (true, Some(false)) if args.output.is_none() => Err(usage_error(
            "--format needs a file to write: name it with -o",
        )),
        _ if args.inputs.is_empty() => Err(usage_error("no input: name at least one trace")),
        _ if args.format == Some(AnalyzeFormat::Summary)
            && args.table != [category_tables::SUMMARY] =>
        {
            Err(usage_error(
                "--format summary needs --table category-summary and no other table",
            ))
        }
        _ => Ok(()),
    }
}

pub(super) fn wanted_tables(args: &AnalyzeArgs) -> Result<WantedTables> {
    let entries = args.table.iter().map(|name| tables::entry(name));
    let entries: Result<Vec<_>, _> = entries.collect();
    Ok(WantedTables {
        entries: entries.map_err(usage_error)?,
        options: Options {
            sort_by: args.sort_by.clone(),
            limit: args.limit,
            path: PathOptions {
                annotation: args.annotation.clone(),
                instance: args.instance,
            },
            what_if: args.what_if.clone(),
            operator: args.operator.clone(),
            by_shape: args.by_shape,
            group_by_stack: args.group_by_stack.unwrap_or(0),
            categories: categories_of(args.categories.as_deref())?,
            aggregator: args.aggregator,
            peaks: args.device.as_deref().map(peaks).transpose()?,
        },
        made: Vec::new(),
        marks_path: args.critical_path,
    })
}

/// Writes the tables where they are wanted, in the format that `--format` or the name gives.
pub(super) fn write_tables(args: &AnalyzeArgs, tables: &[Table]) -> Result<()> {
    let name = args
        .output
        .as_deref()
        .filter(|name| *name != Path::new("-"));
    let extension = name.and_then(Path::extension);
    let by_name = match extension.and_then(|extension| extension.to_str()) {
        Some("csv") => TableFormat::Csv,
        Some("json") => TableFormat::Json,
        _ => TableFormat::Text,
    };
    let format = args.format.and_then(AnalyzeFormat::of_tables);
    let format = match args.json {
        true => TableFormat::Json,
        false => format.unwrap_or(by_name),
    };
    let mut file = OutputFile::open(name)?;
    plain::write(tables, format, &mut file)?;
    file.commit()
}
