//! `flame`: stacks as a picture, as text, or as pprof.

use crate::LakeArgs;
use crate::open::OpenLake;
use crate::output;
use crate::select::{self, SelectArgs, UsageError, column};
use crate::shares::{floats, sum_of, texts};
use aiprof_formats::export::folded::{FoldedStacks, MAX_TOTAL, write_stacks};
use aiprof_formats::export::formats::{FOLDED, PAGE, PPROF, SVG};
use aiprof_formats::export::svg::{self, Caption};
use aiprof_formats::export::{ExportOptions, FileFormat, Weight, pprof};
use anyhow::Result;
use clap::Args;
use datafusion::functions_aggregate::expr_fn::max;
use datafusion::prelude::{Expr, col};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Options of `flame`.
#[derive(Debug, Args)]
pub(crate) struct FlameArgs {
    #[command(flatten)]
    lake: LakeArgs,
    #[command(flatten)]
    select: SelectArgs,

    /// Output file: .svg, .html, .folded or .pb.gz
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Use this column or label as the root of stacks: service, host, version, ...
    #[arg(long, value_name = "KEY")]
    by: Option<String>,

    /// Invert stacks, so that the leaf comes first
    #[arg(long)]
    inverted: bool,
}

/// Stacks of a time, and what their values are.
pub(crate) struct LakeStacks {
    /// Sorted frame by frame.
    stacks: Vec<(String, u64)>,
    unit: String,
}

impl LakeStacks {
    /// What the values of [`LakeStacks::folded`] are.
    pub(crate) fn weight(&self) -> Weight {
        match self.unit.as_str() {
            "nanoseconds" => Weight::Time,
            "bytes" => Weight::Bytes,
            _ => Weight::Samples,
        }
    }

    /// As what can be drawn.
    pub(crate) fn folded(&self) -> Result<FoldedStacks> {
        let total = self.stacks.iter().map(|(_, value)| *value);
        let total = total.fold(0, u64::saturating_add);
        let folded = match self.weight() {
            Weight::Time => FoldedStacks::from_nanoseconds(self.stacks.clone()),
            Weight::Bytes | Weight::Samples => FoldedStacks {
                stacks: self.stacks.clone(),
                total,
            },
        };
        anyhow::ensure!(
            folded.total <= MAX_TOTAL,
            "the sum of the values is too large for a flame graph"
        );
        Ok(folded)
    }
}

/// Asks for stacks.
pub(crate) async fn stacks(
    asked: &OpenLake,
    range: &Range<u64>,
    filter: Expr,
    by: Option<&str>,
) -> Result<LakeStacks> {
    let mut groups = vec![col("stack")];
    if let Some(key) = by {
        groups.push(column(key)?.alias("key"));
    }
    let (found, unit) = asked
        .ask(
            range,
            |table| {
                let sums = vec![
                    sum_of("value").alias("value"),
                    max(col("unit")).alias("unit"),
                ];
                table
                    .filter(filter.clone())?
                    .aggregate(groups.clone(), sums)
            },
            |batches| {
                let mut found: BTreeMap<String, f64> = BTreeMap::new();
                let mut unit = String::new();
                for batch in &batches {
                    let (stacks, values) = (texts(batch, "stack")?, floats(batch, "value")?);
                    let keys = match by {
                        Some(_) => texts(batch, "key")?,
                        None => vec![String::new(); stacks.len()],
                    };
                    unit = texts(batch, "unit")?.pop().unwrap_or(unit);
                    for ((stack, value), key) in stacks.into_iter().zip(values).zip(keys) {
                        let stack = rooted(&key, stack);
                        *found.entry(stack).or_default() += value;
                    }
                }
                Ok((found, unit))
            },
        )
        .await?;
    // Less than 0 is nothing.
    let stacks = found
        .into_iter()
        .map(|(stack, value)| (stack, value as u64));
    let mut stacks: Vec<(String, u64)> = stacks.filter(|(_, value)| *value > 0).collect();
    stacks.sort_unstable_by(|a, b| a.0.split(';').cmp(b.0.split(';')));
    Ok(LakeStacks { stacks, unit })
}

/// A stack that begins with a value.
fn rooted(key: &str, stack: String) -> String {
    let stack = match stack.is_empty() {
        true => "[no stack]".to_owned(),
        false => stack,
    };
    let key: String = key
        .chars()
        .map(|c| if c == ';' || c.is_control() { ':' } else { c })
        .collect();
    match key.trim() {
        "" => stack,
        key => format!("{key};{stack}"),
    }
}

/// The kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    Svg,
    Html,
    Folded,
    Pprof,
}

impl FileKind {
    fn of(path: &Path) -> Result<Self> {
        match FileFormat::of_file(path) {
            Some(format) if format == &SVG => Ok(Self::Svg),
            Some(format) if format == &PAGE => Ok(Self::Html),
            Some(format) if format == &FOLDED => Ok(Self::Folded),
            Some(format) if format == &PPROF => Ok(Self::Pprof),
            _ if path.as_os_str() == "-" => Ok(Self::Folded),
            _ => {
                let what = "the name of the output must end in .svg, .html, .folded or .pb.gz";
                Err(UsageError(format!("{}: {what}", path.display())).into())
            }
        }
    }
}

/// Asks and writes.
pub(crate) async fn run(args: FlameArgs) -> Result<()> {
    let kind = FileKind::of(&args.output)?;
    let range = args.select.range(select::now())?;
    let asked = OpenLake::open(&args.lake).await?;
    let filter = args.select.filter(&range)?;
    let found = stacks(&asked, &range, filter, args.by.as_deref()).await?;
    if found.stacks.is_empty() {
        output::note(&args.select.has_none());
    }
    let options = ExportOptions {
        weight: found.weight(),
        inverted: args.inverted,
        ..ExportOptions::default()
    };
    let date = |unix_ns: u64| {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(unix_ns);
        humantime::format_rfc3339_seconds(time).to_string()
    };
    let caption = Caption {
        title: args
            .select
            .service
            .clone()
            .unwrap_or_else(|| "all services".to_owned()),
        subtitle: format!(
            "{} from {} to {}",
            args.select.sample_type,
            date(range.start),
            date(range.end)
        ),
        ..Caption::default()
    };
    output::to(Some(&args.output), |out| {
        match kind {
            FileKind::Svg => svg::write_folded(&found.folded()?, &caption, &options, out)?,
            FileKind::Folded => write_stacks(&found.folded()?, &options, out)?,
            FileKind::Pprof => {
                let of = (args.select.sample_type.as_str(), found.unit.as_str());
                pprof::write_values(&found.stacks, of, out)?;
            }
            FileKind::Html => {
                let mut picture = Vec::new();
                svg::write_folded(&found.folded()?, &caption, &options, &mut picture)?;
                let picture = String::from_utf8(picture)?;
                // The picture without what only a file of its own begins with.
                let begin = picture.find("<svg").unwrap_or(0);
                let page = picture.get(begin..).unwrap_or_default();
                writeln!(
                    out,
                    "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>aiprof</title>"
                )?;
                out.write_all(page.as_bytes())?;
            }
        }
        Ok(())
    })
}
