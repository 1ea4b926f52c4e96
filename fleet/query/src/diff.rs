//! `diff`: what changed between two times, versions or hosts.

use crate::LakeArgs;
use crate::flame;
use crate::open::OpenLake;
use crate::output::{Cell, OutputTable, TableArgs, note};
use crate::select::{self, SelectArgs, UsageError};
use crate::shares::{self, Hosts, MIN_HOSTS, Replicates, Values};
use crate::statistics::{discoveries, verdict};
use aiprof_formats::export::diff::{DiffOptions, write_svg};
use aiprof_tables::compare::Verdict;
use aiprof_tables::compare::shares::{FunctionChange, SharesCompared};
use anyhow::Result;
use clap::Args;
use datafusion::prelude::Expr;
use std::ops::Range;
use std::path::PathBuf;

/// Share of the changes that are called so which may be none.
const LEVEL: f64 = 0.05;

/// Options of `diff`.
#[derive(Debug, Args)]
#[command(
    after_help = "SIDE is a time (yesterday, 2026-11-26, -2h..-1h) or a condition on a column \
                        or label (version=1.2, host=web-1). Conditions apply to the time from \
                        --from to --to. The table compares the shares of the functions' own time."
)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    lake: LakeArgs,
    #[command(flatten)]
    select: SelectArgs,

    /// Side to compare with: a time or KEY=VALUE
    #[arg(long, value_name = "SIDE", allow_hyphen_values = true)]
    before: String,

    /// Side that may have changed: a time or KEY=VALUE
    #[arg(long, value_name = "SIDE", allow_hyphen_values = true)]
    after: String,

    /// Maximum number of rows
    #[arg(long, default_value_t = 30)]
    limit: usize,

    /// Also draw a differential flame graph
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    table: TableArgs,
}

/// A time, and what is wanted of it.
struct Side {
    range: Range<u64>,
    filter: Expr,
    is_time: bool,
}

impl Side {
    fn of(text: &str, select: &SelectArgs, now: u64) -> Result<Self> {
        if let Some(range) = select::parse_range(text, now)? {
            let filter = select.filter(&range)?;
            return Ok(Self {
                range,
                filter,
                is_time: true,
            });
        }
        if !text.contains('=') {
            let what = "neither a time (FROM..TO, yesterday, 2026-11-26) nor KEY=VALUE";
            return Err(UsageError(format!("{text}: {what}")).into());
        }
        let range = select.range(now)?;
        let filter = select.filter(&range)?.and(select::equals(text)?);
        Ok(Self {
            range,
            filter,
            is_time: false,
        })
    }

    /// Whether both are times that have one in common.
    fn overlaps(&self, other: &Self) -> bool {
        let is_before = |a: &Self, b: &Self| a.range.start < b.range.end;
        self.is_time && other.is_time && is_before(self, other) && is_before(other, self)
    }
}

/// Compares and writes.
pub(crate) async fn run(args: DiffArgs) -> Result<()> {
    let now = select::now();
    let asked = OpenLake::open(&args.lake).await?;
    let before = Side::of(&args.before, &args.select, now)?;
    let after = Side::of(&args.after, &args.select, now)?;
    let mut hosts = Hosts::default();
    let mut ask = async |side: &Side| -> Result<Values> {
        let found = shares::ask(&asked, &side.range, side.filter.clone(), &[], &mut hosts);
        Ok(found.await?.into_values().next().unwrap_or_default())
    };
    let (from, to) = (ask(&before).await?, ask(&after).await?);
    for (text, values) in [(&args.before, &from), (&args.after, &to)] {
        if values.total() <= 0.0 {
            anyhow::bail!("{text}: {}", args.select.has_none());
        }
    }
    let changes = from.changes(&to);
    let chances: Vec<Option<f64>> = changes.iter().map(|(_, change)| change.chance).collect();
    let holds = discoveries(&chances, LEVEL);
    let mut rows: Vec<_> = changes
        .into_iter()
        .zip(holds)
        .map(|((name, change), holds)| (name, change, verdict(&change, holds)))
        .collect();
    rows.sort_by(|a, b| {
        let size = |change: f64| -change.abs();
        let by_size = size(a.1.change()).total_cmp(&size(b.1.change()));
        a.2.cmp(&b.2).then(by_size).then_with(|| a.0.cmp(&b.0))
    });
    let changed = rows.iter().filter(|row| row.2 == Verdict::Changed).count();
    if before.overlaps(&after) {
        note("the two times overlap: windows that are in both times are counted on both sides");
    }
    let of = match from.replicates(&to) {
        Replicates::Hosts => format!("{} and {} hosts", from.hosts(), to.hosts()),
        Replicates::Pieces(_) => {
            format!("parts of the time, because there are fewer than {MIN_HOSTS} hosts")
        }
    };
    if from.has_few_others(&to) {
        note(
            "the sides have different hosts: permanent differences between hosts look like changes",
        );
    }
    note(&format!(
        "{changed} of {} functions changed; 95 % intervals from {of}",
        rows.len()
    ));
    if let Some(path) = &args.svg {
        let found = SharesCompared {
            functions: rows
                .iter()
                .map(|(name, change, said)| FunctionChange {
                    name: name.clone(),
                    own: *change,
                    total: *change,
                    own_verdict: *said,
                    total_verdict: *said,
                })
                .collect(),
            changed,
            comparisons: chances.iter().flatten().count(),
            has_intervals: chances.iter().any(Option::is_some),
            has_slices: false,
        };
        let side =
            async |side: &Side| flame::stacks(&asked, &side.range, side.filter.clone(), None).await;
        let (old, new) = (side(&before).await?, side(&after).await?);
        let mut options = DiffOptions::default();
        options.export.weight = new.weight();
        let (old, new) = (old.folded()?, new.folded()?);
        let title = format!("{} to {}", args.before, args.after);
        crate::output::to(Some(path), |out| {
            Ok(write_svg(&old, &new, &title, &options, &found, out)?)
        })?;
    }
    let mut table = OutputTable::new(&["change", "half", "before", "after", "verdict", "function"]);
    for (name, change, said) in rows.into_iter().take(args.limit) {
        table.rows.push(vec![
            Cell::Number(100.0 * change.change(), 2),
            change
                .half
                .map_or(Cell::None, |half| Cell::Number(100.0 * half, 2)),
            Cell::Number(100.0 * change.before, 2),
            Cell::Number(100.0 * change.after, 2),
            Cell::Text(said.word().to_owned()),
            Cell::Text(name),
        ]);
    }
    table.write(&args.table)
}
