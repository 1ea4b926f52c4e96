//! `top`: what takes most.

use crate::LakeArgs;
use crate::open::OpenLake;
use crate::output::{Cell, OutputTable, TableArgs, note};
use crate::select::{self, SelectArgs, column, is_column};
use crate::shares::{floats, numbers, sum_of, texts};
use anyhow::Result;
use clap::Args;
use datafusion::functions_aggregate::expr_fn::sum;
use datafusion::prelude::col;
use std::collections::{HashMap, HashSet};

/// Options of `top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    lake: LakeArgs,
    #[command(flatten)]
    select: SelectArgs,

    /// Column or label to group by: function, service, host, kernel, device, ...
    ///
    /// You can name any column, such as idle_cause, or any label.
    #[arg(long, default_value = "function")]
    by: String,

    /// Also show total values, which include called functions; only with --by function
    #[arg(long)]
    total: bool,

    /// Maximum number of rows
    #[arg(long, default_value_t = 30)]
    limit: usize,

    #[command(flatten)]
    table: TableArgs,
}

/// What one has.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    own: f64,
    total: f64,
    count: i64,
}

/// Asks and writes.
pub(crate) async fn run(args: TopArgs) -> Result<()> {
    let range = args.select.range(select::now())?;
    let asked = OpenLake::open(&args.lake).await?;
    let filter = args.select.filter(&range)?;
    let with_stacks = args.total && args.by == "function";
    let key = match with_stacks {
        true => col("stack"),
        false => column(&args.by)?,
    };
    let found: Vec<(String, f64, i64)> = asked
        .ask(
            &range,
            |table| {
                let sums = vec![
                    sum_of("value").alias("value"),
                    sum(col("count")).alias("count"),
                ];
                table
                    .filter(filter.clone())?
                    .aggregate(vec![key.clone().alias("key")], sums)
            },
            |batches| {
                let mut found = Vec::new();
                for batch in &batches {
                    let keys = texts(batch, "key")?;
                    let (values, counts) = (floats(batch, "value")?, numbers(batch, "count")?);
                    let rows = keys.into_iter().zip(values).zip(counts);
                    found.extend(rows.map(|((key, value), count)| (key, value, count)));
                }
                Ok(found)
            },
        )
        .await?;
    if found.is_empty() {
        note(&args.select.has_none());
    } else if !is_column(&args.by) && found.iter().all(|(key, ..)| key.is_empty()) {
        note(&format!("no samples have a label {}", args.by));
    }
    let all: f64 = found.iter().map(|row| row.1).sum();
    let mut sums: HashMap<&str, Sum> = HashMap::new();
    for (key, value, count) in &found {
        let mut add = |name, own: bool, total: bool| {
            let sum: &mut Sum = sums.entry(name).or_default();
            if own {
                sum.own += *value;
                sum.count = sum.count.saturating_add(*count);
            }
            if total {
                sum.total += *value;
            }
        };
        if !with_stacks {
            add(key.as_str(), true, false);
            continue;
        }
        let mut seen = HashSet::new();
        for frame in key.split(';') {
            // The time of a function that calls itself counts once.
            add(frame, false, seen.insert(frame));
        }
        add(key.rsplit(';').next().unwrap_or_default(), true, false);
    }
    let mut rows: Vec<(&str, Sum)> = sums.into_iter().collect();
    let order = |sum: &Sum| match with_stacks {
        true => sum.total,
        false => sum.own,
    };
    rows.sort_by(|a, b| {
        let by_name = || a.0.cmp(b.0);
        order(&b.1).total_cmp(&order(&a.1)).then_with(by_name)
    });
    let percent = |value: f64| Cell::Number(100.0 * value / all.max(1.0), 2);
    let name = args.by.as_str();
    let mut table = match with_stacks {
        true => OutputTable::new(&["total", "total_percent", "own", "own_percent", name]),
        false => OutputTable::new(&["value", "percent", "samples", name]),
    };
    for (name, sum) in rows.into_iter().take(args.limit) {
        let name = Cell::Text(name.to_owned());
        table.rows.push(match with_stacks {
            true => vec![
                Cell::whole(sum.total),
                percent(sum.total),
                Cell::whole(sum.own),
                percent(sum.own),
                name,
            ],
            false => vec![
                Cell::whole(sum.own),
                percent(sum.own),
                Cell::Integer(sum.count),
                name,
            ],
        });
    }
    table.write(&args.table)
}
