//! `regressions`: what deploys changed.
//!
//! Versions of a service follow each other by when each was first seen; of those that ran
//! already when the time begins, by when each was last seen. Each is compared with the one
//! before, function by function. All these comparisons together are held against
//! false discoveries (Benjamini and Hochberg), and changes that are too small to matter are
//! not told.

use crate::LakeArgs;
use crate::open::Asked;
use crate::output::{Cell, Table, TableArgs, note};
use crate::select::{self, SelectArgs};
use crate::shares::{self, Hosts, Values};
use crate::statistics::discoveries;
use aiprof_lake::time::HOUR_NS;
use anyhow::Result;
use clap::Args;
use std::collections::BTreeMap;
use std::ops::Range;

/// Options of `regressions`.
#[derive(Debug, Args)]
pub(crate) struct RegressionsArgs {
    #[command(flatten)]
    lake: LakeArgs,
    #[command(flatten)]
    select: SelectArgs,

    /// The column or label that a deploy changes
    #[arg(long, default_value = "version")]
    label: String,

    /// Smallest change that is told, in points
    #[arg(long, value_name = "POINTS", default_value_t = 0.2)]
    least: f64,

    /// Share of what is told that may be false
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    level: f64,

    /// Also tell what shrank
    #[arg(long)]
    improvements: bool,

    #[command(flatten)]
    table: TableArgs,
}

/// Finds and writes.
pub(crate) async fn run(args: RegressionsArgs) -> Result<()> {
    let range = args.select.range(select::now())?;
    let asked = Asked::open(&args.lake).await?;
    let by = ["service", args.label.as_str()];
    let mut hosts = Hosts::default();
    let filter = args.select.filter(&range)?;
    let found = shares::ask(&asked, &range, filter, &by, &mut hosts).await?;
    let mut services: BTreeMap<String, Vec<(String, Values)>> = BTreeMap::new();
    for (key, values) in found {
        let mut key = key.into_iter();
        let (Some(service), Some(version)) = (key.next(), key.next()) else {
            continue;
        };
        // What has no version was not deployed.
        if !version.is_empty() {
            services.entry(service).or_default().push((version, values));
        }
    }
    let (mut all, mut deploys, mut side_by_side) = (Vec::new(), 0, 0);
    let unsure = unsure(&range);
    let begin = i64::try_from(range.start).unwrap_or(i64::MAX);
    let since_begin = |first: i64| first.saturating_sub(begin) < unsure;
    for (service, mut versions) in services {
        versions.sort_by_key(|(_, values)| match since_begin(values.first) {
            true => (begin, values.last),
            false => (values.first, values.last),
        });
        for pair in versions.windows(2) {
            let [(old, before), (new, after)] = pair else {
                continue;
            };
            let both = since_begin(before.first) && since_begin(after.first);
            if both && after.last.saturating_sub(before.last) < unsure {
                side_by_side += 1;
                continue;
            }
            deploys += 1;
            for (function, change) in before.changes(after) {
                // What is small on both sides can have no change that is told. The mean does
                // not know the change.
                if 100.0 * (change.before + change.after) >= args.least {
                    all.push((service.clone(), old.clone(), new.clone(), function, change));
                }
            }
        }
    }
    let chances: Vec<Option<f64>> = all.iter().map(|row| row.4.chance).collect();
    let holds = discoveries(&chances, args.level);
    let compared = chances.iter().flatten().count();
    let mut told: Vec<_> = all
        .into_iter()
        .zip(holds)
        .filter(|(row, holds)| *holds && 100.0 * row.4.change().abs() >= args.least)
        .map(|(row, _)| row)
        .filter(|row| args.improvements || row.4.change() > 0.0)
        .collect();
    told.sort_by(|a, b| b.4.change().abs().total_cmp(&a.4.change().abs()));
    note(&format!(
        "{} regressions in {deploys} deploys ({compared} comparisons)",
        told.len()
    ));
    if side_by_side > 0 {
        note(&format!(
            "{side_by_side} pairs of versions ran side by side all the time: which is newer is \
             not known; a longer time (--from), or diff, may tell"
        ));
    }
    let columns = [
        "change", "half", "before", "after", "service", "old", "new", "function",
    ];
    let mut table = Table::new(&columns);
    for (service, old, new, function, change) in told {
        table.rows.push(vec![
            Cell::Number(100.0 * change.change(), 2),
            Cell::Number(100.0 * change.half.unwrap_or(0.0), 2),
            Cell::Number(100.0 * change.before, 2),
            Cell::Number(100.0 * change.after, 2),
            Cell::Text(service),
            Cell::Text(old),
            Cell::Text(new),
            Cell::Text(function),
        ]);
    }
    table.write(&args.table)
}

/// Nanoseconds within which what was seen first in a time may have run before it: a window is
/// an hour at most.
fn unsure(range: &Range<u64>) -> i64 {
    let tenth = (range.end.saturating_sub(range.start) / 10).min(HOUR_NS);
    i64::try_from(tenth).unwrap_or(i64::MAX)
}
