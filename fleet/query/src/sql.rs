//! `sql`, `files` and `compact`: what is for those who know the lake.

use crate::LakeArgs;
use crate::open::{OpenLake, TABLE, collect, config, is_gone};
use crate::output::{Cell, OutputTable, TableArgs, note};
use crate::select::{self, in_range, parse_time};
use aiprof_lake::{CompactOptions, Lake};
use anyhow::{Context as _, Result};
use clap::Args;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::DFSchema;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::FunctionRegistry as _;
use datafusion::execution::context::SQLOptions;
use datafusion::functions::core::expr_fn::get_field_path;
use datafusion::logical_expr::GetFieldAccess;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawFieldAccessExpr};
use datafusion::prelude::lit;
use std::ops::Range;
use std::sync::Arc;

/// Options of `sql`.
#[derive(Debug, Args)]
pub(crate) struct SqlArgs {
    #[command(flatten)]
    lake: LakeArgs,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    table: TableArgs,

    /// SQL query, which can only read
    ///
    /// docs/lake.md describes the columns.
    query: String,
}

/// A time.
#[derive(Clone, Debug, Args)]
struct TimeArgs {
    /// Include windows that began at this time or later
    #[arg(
        long,
        value_name = "TIME",
        allow_hyphen_values = true,
        default_value = "-1d"
    )]
    from: String,

    /// Include windows that began before this time
    #[arg(
        long,
        value_name = "TIME",
        allow_hyphen_values = true,
        default_value = "now"
    )]
    to: String,
}

impl TimeArgs {
    fn range(&self) -> Result<Range<u64>> {
        let now = select::now();
        Ok(parse_time(&self.from, now)?..parse_time(&self.to, now)?)
    }
}

/// `labels['key']`: a label.
#[derive(Debug)]
struct Labels;

impl ExprPlanner for Labels {
    fn plan_field_access(
        &self,
        expr: RawFieldAccessExpr,
        _schema: &DFSchema,
    ) -> DataFusionResult<PlannerResult<RawFieldAccessExpr>> {
        let GetFieldAccess::NamedStructField { name } = &expr.field_access else {
            return Ok(PlannerResult::Original(expr));
        };
        let name = lit(name.clone());
        Ok(PlannerResult::Planned(get_field_path(
            expr.expr,
            vec![name],
        )))
    }
}

/// Asks and writes.
pub(crate) async fn run(args: SqlArgs) -> Result<()> {
    let range = args.time.range()?;
    let asked = OpenLake::open(&args.lake).await?;
    let mut tries = 0;
    let batches = loop {
        tries += 1;
        match query(&asked, &range, &args.query).await? {
            Ok(batches) => break batches,
            Err(error) if tries < 3 && is_gone(&error) => continue,
            Err(error) => return Err(asked.explain(&range, error).await),
        }
    };
    let mut table = OutputTable::default();
    for batch in &batches {
        add(&mut table, batch)?;
    }
    table.write(&args.table)
}

async fn query(
    asked: &OpenLake,
    range: &Range<u64>,
    query: &str,
) -> Result<DataFusionResult<Vec<RecordBatch>>> {
    let mut session = asked.session(range).await?;
    session.register_expr_planner(Arc::new(Labels))?;
    let all = session.table(TABLE).await?.filter(in_range(range))?;
    session.deregister_table(TABLE)?;
    session.register_table(TABLE, all.into_view())?;
    let options = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false);
    let planned = session.sql_with_options(query, options).await;
    let planned = planned.context("cannot run the query")?;
    let empty = RecordBatch::new_empty(Arc::clone(planned.schema().inner()));
    Ok(collect(planned).await.map(|mut batches| {
        batches.push(empty);
        batches
    }))
}

/// Adds rows to a table.
fn add(table: &mut OutputTable, batch: &RecordBatch) -> Result<()> {
    if table.columns.is_empty() {
        let fields = batch.schema();
        table.columns = fields
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect();
    }
    let options = FormatOptions::default();
    let columns: Vec<_> = batch
        .columns()
        .iter()
        .map(|column| ArrayFormatter::try_new(column, &options))
        .collect::<Result<_, _>>()?;
    for row in 0..batch.num_rows() {
        let cells = columns.iter().zip(batch.columns()).map(|(shown, column)| {
            let text = shown.value(row).to_string();
            match column.data_type() {
                DataType::Int64 | DataType::Int32 | DataType::UInt64 | DataType::UInt32 => {
                    text.parse().map_or(Cell::Text(text), Cell::Integer)
                }
                DataType::Float64 => text
                    .parse()
                    .map_or(Cell::Text(text), |number| Cell::Number(number, 4)),
                _ => Cell::Text(text),
            }
        });
        table.rows.push(cells.collect());
    }
    Ok(())
}

/// Options of `files`.
#[derive(Debug, Args)]
#[command(after_help = "Prints paths for a local lake, and s3:// URLs for S3.")]
pub(crate) struct FilesArgs {
    #[command(flatten)]
    lake: LakeArgs,
    #[command(flatten)]
    time: TimeArgs,
}

/// Writes the files that count.
pub(crate) async fn files(args: FilesArgs) -> Result<()> {
    let range = args.time.range()?;
    let asked = OpenLake::open(&args.lake).await?;
    let files = asked.files(&range).await?;
    let root = args.lake.lake.trim_end_matches('/');
    let root = root.strip_prefix("file://").unwrap_or(root);
    crate::output::to(None, |out| {
        for file in &files {
            writeln!(out, "{root}/{}", file.path)?;
        }
        Ok(())
    })
}

/// Options of `compact`.
#[derive(Debug, Args)]
pub(crate) struct CompactArgs {
    #[command(flatten)]
    lake: LakeArgs,

    /// Delete days that are older than this, such as 30d
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    keep: Option<std::time::Duration>,

    /// Keep replaced files for this long, because queries may still read them
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "10m")]
    grace: std::time::Duration,
}

/// Compacts.
pub(crate) async fn compact(args: CompactArgs) -> Result<()> {
    let config = config(&args.lake, args.keep);
    // It must be there: a path that is mistaken is not made.
    let lake = Lake::open_to_read(&config)?;
    if lake.days().await?.is_empty() {
        note("the lake is empty: it has no folder date=YYYY-MM-DD");
    }
    let options = CompactOptions {
        grace: args.grace,
        ..CompactOptions::default()
    };
    let done = lake.compact(&options, select::now()).await?;
    note(&format!(
        "merged {} files of {} bytes into {} of {} bytes; deleted {} replaced files and {} days; \
         {} files are unreadable; {} merges were done by other processes",
        done.merged,
        done.merged_bytes,
        done.files,
        done.bytes,
        done.swept,
        done.expired_days,
        done.unreadable,
        done.lost_races
    ));
    // All else is done, and somebody must look.
    anyhow::ensure!(
        done.unreadable == 0,
        "cannot read a file of the lake; queries that include its date fail until you remove it: \
         {}",
        done.last_unreadable
    );
    Ok(())
}
