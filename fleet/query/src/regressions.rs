//! `regressions`: what deploys changed.
//!
//! Versions of a service are in the order in which each was first seen. Those that ran already when
//! the time begins, or came at once, are in the order in which each was last seen. Each is compared
//! with the one that ran before it came, function by function: after a version was rolled back that
//! is not the one before. All these comparisons together are held against false discoveries
//! (Benjamini and Hochberg), and changes that are too small to matter are not shown.
//!
//! Hosts differ, and that is no regression: where there are few of them only those that ran
//! both versions are compared.

use crate::LakeArgs;
use crate::open::OpenLake;
use crate::output::{Cell, OutputTable, TableArgs, note};
use crate::select::{self, SelectArgs};
use crate::shares::{self, Hosts, MIN_HOSTS, Values};
use crate::statistics::discoveries;
use aiprof_lake::time::HOUR_NS;
use anyhow::Result;
use clap::Args;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Versions that come within this many nanoseconds come at once: windows begin at other times on
/// other hosts.
const AT_ONCE_NS: i64 = 300_000_000_000;

/// Options of `regressions`.
#[derive(Debug, Args)]
pub(crate) struct RegressionsArgs {
    #[command(flatten)]
    lake: LakeArgs,
    #[command(flatten)]
    select: SelectArgs,

    /// Column or label that changes with a deployment
    #[arg(long, default_value = "version")]
    label: String,

    /// Smallest change to report, in percentage points
    #[arg(long, value_name = "POINTS", default_value_t = 0.2, value_parser = points)]
    least: f64,

    /// Accepted share of false reports (false discovery rate)
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = share)]
    level: f64,

    /// Also report functions that became cheaper
    #[arg(long)]
    improvements: bool,

    #[command(flatten)]
    table: TableArgs,
}

/// Finds and writes.
pub(crate) async fn run(args: RegressionsArgs) -> Result<()> {
    let range = args.select.range(select::now())?;
    let asked = OpenLake::open(&args.lake).await?;
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
    let (mut all, mut deploys, mut side_by_side, mut other_hosts) = (Vec::new(), 0, 0, 0);
    let order = Order::of(&range);
    for (service, mut versions) in services {
        versions.sort_by_key(|(_, values)| order.key(values));
        for (at, (new, after)) in versions.iter().enumerate().skip(1) {
            let older = versions.get(..at).unwrap_or_default();
            let Some((old, before)) = order.predecessor(older, after) else {
                continue;
            };
            if order.is_unknown(before, after) {
                side_by_side += 1;
                continue;
            }
            let Some((before, after)) = comparable(before, after) else {
                other_hosts += 1;
                continue;
            };
            deploys += 1;
            for (function, change) in before.changes(&after) {
                // What is small on both sides can have no change that is shown. The mean does not
                // know the change.
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
        "regressions: {}, deploys compared: {deploys} ({compared} comparisons)",
        told.len()
    ));
    if other_hosts > 0 {
        note(&format!(
            "{other_hosts} deploys are not compared: there are fewer than {MIN_HOSTS} hosts, and \
             none ran both versions, so differences between hosts would look like changes"
        ));
    }
    if side_by_side > 0 {
        note(&format!(
            "{side_by_side} pairs of versions ran side by side all the time, so it is unknown \
             which is newer: try a longer time (--from), or `aiprof-query diff`"
        ));
    }
    let columns = [
        "change", "half", "before", "after", "service", "old", "new", "function",
    ];
    let mut table = OutputTable::new(&columns);
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

/// What of two versions is compared: all of it, or of few hosts those that ran both; `None`:
/// none did.
fn comparable<'a>(
    before: &'a Values,
    after: &'a Values,
) -> Option<(Cow<'a, Values>, Cow<'a, Values>)> {
    if !before.has_few_others(after) {
        return Some((Cow::Borrowed(before), Cow::Borrowed(after)));
    }
    let (old, new) = (before.host_numbers(), after.host_numbers());
    let both: BTreeSet<u32> = old.intersection(&new).copied().collect();
    let of_both = |values: &Values| Cow::Owned(values.of_hosts(&both));
    (!both.is_empty()).then(|| (of_both(before), of_both(after)))
}

/// In what order versions came.
struct Order {
    begin: i64,
    /// Nanoseconds within which what was seen first in the time may have run before it: a
    /// window is an hour at most.
    unsure: i64,
}

impl Order {
    fn of(range: &Range<u64>) -> Self {
        let tenth = (range.end.saturating_sub(range.start) / 10).min(HOUR_NS);
        Self {
            begin: i64::try_from(range.start).unwrap_or(i64::MAX),
            unsure: i64::try_from(tenth).unwrap_or(i64::MAX),
        }
    }

    /// Whether it may have run before the time begins.
    fn since_begin(&self, values: &Values) -> bool {
        values.first.saturating_sub(self.begin) < self.unsure
    }

    fn key(&self, values: &Values) -> (i64, i64) {
        match self.since_begin(values) {
            true => (self.begin, values.last),
            // The order of those that come at once is by when they go.
            false => (values.first / AT_ONCE_NS, values.last),
        }
    }

    /// The one of older versions that ran when this came: of several the last that came.
    fn predecessor<'a>(
        &self,
        older: &'a [(String, Values)],
        new: &Values,
    ) -> Option<&'a (String, Values)> {
        let ran = |values: &Values| values.first < new.first && new.first <= values.last;
        let running = older.iter().rev().find(|(_, values)| ran(values));
        match self.since_begin(new) {
            // What ran before it is not in the time: the order is that of their ends.
            true => older.last(),
            false => running.or_else(|| older.iter().max_by_key(|(_, values)| values.last)),
        }
    }

    /// Whether two ran side by side all the time, so that it is not known which is newer.
    fn is_unknown(&self, before: &Values, after: &Values) -> bool {
        let (old, new) = (self.key(before), self.key(after));
        old.0 == new.0 && after.last.saturating_sub(before.last) < self.unsure
    }
}

/// A number of points.
fn points(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    match (0.0..=100.0).contains(&number) {
        true => Ok(number),
        false => Err("must be 0 to 100".to_owned()),
    }
}

/// A share, of which 0 and 1 are none.
fn share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    match number > 0.0 && number < 1.0 {
        true => Ok(number),
        false => Err("must be between 0 and 1".to_owned()),
    }
}
