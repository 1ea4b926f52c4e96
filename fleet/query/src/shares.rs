//! Values of functions by cluster: by host, or by host and part of the time.

use crate::open::OpenLake;
use crate::select::column;
use crate::statistics::{Clusters, Design};
use aiprof_lake::time::NS_PER_US;
use aiprof_tables::compare::Difference;
use anyhow::{Context as _, Result};
use datafusion::arrow::array::{Array as _, AsArray as _, RecordBatch};
use datafusion::arrow::datatypes::{ArrowPrimitiveType, DataType, Float64Type, Int64Type};
use datafusion::functions_aggregate::expr_fn::{count_distinct, max, min, sum};
use datafusion::logical_expr::{cast, when};
use datafusion::prelude::{Expr, col, lit};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

/// Parts of a time of all hosts together, at most: with few hosts they are the clusters.
const PARTS: u64 = 2000;
/// Parts of all hosts of groups of few hosts together, of which they are the clusters; and of
/// each of these hosts at least.
const SMALL_PARTS: u64 = 200_000;
const LEAST_PARTS: u64 = 64;
/// Most groups that are known to have few hosts.
const MAX_SMALL: usize = 1000;
/// Shortest part: a window at the defaults.
const MIN_PART_NS: u64 = 60_000_000_000;
/// Fewest hosts of a side for hosts to be the clusters.
pub(crate) const MIN_HOSTS: usize = 6;
/// Into how many pieces the time of a host is cut where pieces are the clusters. What runs in
/// a minute runs in the next, too: only long pieces are nearly independent (the method of
/// batch means; 10 to 30 are usual: Schmeiser 1982).
const PIECES: i64 = 16;
/// Most functions that are kept apart.
const MAX_FUNCTIONS: usize = 1_000_000;

/// Length of a part of a time. `hosts` hosts together have `all` parts, and each host has at least
/// `least`.
fn part(range: &Range<u64>, hosts: i64, (all, least): (u64, u64)) -> i64 {
    let hosts = u64::try_from(hosts).unwrap_or(0).max(1);
    let parts = (all / hosts).clamp(least, PARTS);
    let length = ((range.end - range.start) / parts).max(MIN_PART_NS);
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// How many hosts a value of the first of `by` has: those of the group of it that has fewest,
/// and most.
type HostCounts = BTreeMap<String, (i64, i64)>;

/// When the part of the time begins that a row is of, nanoseconds. Where a group has few hosts, the
/// parts are shorter.
fn part_begin(range: &Range<u64>, counts: &HostCounts, key: Option<Expr>) -> Expr {
    let begin = |length: i64| time_ns() / lit(length) * lit(length);
    let is_small = |(fewest, _): &(i64, i64)| *fewest < MIN_HOSTS as i64;
    let hosts = |of: &dyn Fn(&(i64, i64)) -> bool| -> i64 {
        let hosts = counts.values().filter(|hosts| of(hosts));
        hosts.map(|(_, most)| *most).sum()
    };
    let small: Vec<&String> = counts
        .iter()
        .filter(|(_, hosts)| is_small(hosts))
        .map(|(name, _)| name)
        .collect();
    let all = begin(part(range, hosts(&|_| true), (PARTS, 1)));
    let (Some(key), 1..=MAX_SMALL) = (key, small.len()) else {
        return all;
    };
    let shorter = begin(part(range, hosts(&is_small), (SMALL_PARTS, LEAST_PARTS)));
    let names = small.into_iter().map(|name| lit(name.as_str())).collect();
    let of_small = when(key.in_list(names, false), shorter).otherwise(all.clone());
    of_small.unwrap_or(all)
}

/// When the window of a row began, nanoseconds.
fn time_ns() -> Expr {
    cast(col("time"), DataType::Int64) * lit(NS_PER_US)
}

/// Values by host and when a part of the time begins, nanoseconds since the Unix epoch.
type Parts = Clusters;

/// Values of one group: all of a side, or a version of a service.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    functions: HashMap<String, Parts>,
    totals: Parts,
    /// When the first and the last window of it began, nanoseconds since the Unix epoch.
    pub(crate) first: i64,
    pub(crate) last: i64,
}

/// Texts as numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(HashMap<String, u32>);

impl Hosts {
    fn of(&mut self, host: &str) -> u32 {
        if let Some(known) = self.0.get(host) {
            return *known;
        }
        let new = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0.insert(host.to_owned(), new);
        new
    }
}

/// Asks for the values of all functions in a time, by the values of some columns.
pub(crate) async fn ask(
    asked: &OpenLake,
    range: &Range<u64>,
    filter: Expr,
    by: &[&str],
    hosts: &mut Hosts,
) -> Result<BTreeMap<Vec<String>, Values>> {
    let key = by.first().map(|key| column(key)).transpose()?;
    let keys: Vec<Expr> = by
        .iter()
        .enumerate()
        .map(|(at, key)| Ok(column(key)?.alias(format!("by{at}"))))
        .collect::<Result<_>>()?;
    let counts: HostCounts = asked
        .ask(
            range,
            |table| {
                let hosts = vec![count_distinct(col("host_id")).alias("hosts")];
                table.filter(filter.clone())?.aggregate(keys.clone(), hosts)
            },
            |batches| {
                let mut counts = HostCounts::new();
                for batch in &batches {
                    let hosts = numbers(batch, "hosts")?;
                    let names = match by.is_empty() {
                        true => vec![String::new(); hosts.len()],
                        false => texts(batch, "by0")?,
                    };
                    for (name, hosts) in names.into_iter().zip(hosts) {
                        let known = counts.entry(name).or_insert((hosts, hosts));
                        *known = (known.0.min(hosts), known.1.max(hosts));
                    }
                }
                Ok(counts)
            },
        )
        .await?;
    let part = part_begin(range, &counts, key);
    let mut groups = keys;
    groups.extend([col("function"), col("host_id"), part.alias("part")]);
    let batches = asked
        .ask(
            range,
            |table| {
                let first = min(time_ns()).alias("first");
                let last = max(time_ns()).alias("last");
                let values = vec![sum(col("value")).alias("value"), first, last];
                table
                    .filter(filter.clone())?
                    .aggregate(groups.clone(), values)
            },
            Ok,
        )
        .await?;
    let mut found: BTreeMap<Vec<String>, Values> = BTreeMap::new();
    for batch in &batches {
        let text = |name: &str| texts(batch, name);
        let keys = (0..by.len()).map(|at| text(&format!("by{at}")));
        let keys: Vec<Vec<String>> = keys.collect::<Result<_>>()?;
        let (functions, ids) = (text("function")?, text("host_id")?);
        let (parts, values) = (numbers(batch, "part")?, numbers(batch, "value")?);
        let (firsts, lasts) = (numbers(batch, "first")?, numbers(batch, "last")?);
        for row in 0..batch.num_rows() {
            let key = keys.iter().map(|column| column[row].clone()).collect();
            let new = || Values {
                first: i64::MAX,
                ..Values::default()
            };
            let group = found.entry(key).or_insert_with(new);
            let cluster = (hosts.of(&ids[row]), parts[row]);
            let value = values[row] as f64;
            group.first = group.first.min(firsts[row]);
            group.last = group.last.max(lasts[row]);
            *group.totals.entry(cluster).or_default() += value;
            let function = functions[row].as_str();
            if let Some(known) = group.functions.get_mut(function) {
                *known.entry(cluster).or_default() += value;
                continue;
            }
            if group.functions.len() == MAX_FUNCTIONS {
                anyhow::bail!(
                    "too many functions (limit: {MAX_FUNCTIONS}): select one service with --service"
                );
            }
            let new = BTreeMap::from([(cluster, value)]);
            group.functions.insert(function.to_owned(), new);
        }
    }
    Ok(found)
}

/// A column as texts.
pub(crate) fn texts(batch: &RecordBatch, name: &str) -> Result<Vec<String>> {
    let column = batch.column_by_name(name).context("a column is missing")?;
    let column = datafusion::arrow::compute::cast(column, &DataType::Utf8)?;
    let column = column.as_string::<i32>();
    let value = |row: usize| match column.is_null(row) {
        true => String::new(),
        false => column.value(row).to_owned(),
    };
    Ok((0..column.len()).map(value).collect())
}

/// A column of numbers.
pub(crate) fn numbers(batch: &RecordBatch, name: &str) -> Result<Vec<i64>> {
    primitives::<Int64Type>(batch, name)
}

/// Numbers that may be more than fits into 64 bits: the nanoseconds of a fleet's CPUs.
pub(crate) fn floats(batch: &RecordBatch, name: &str) -> Result<Vec<f64>> {
    primitives::<Float64Type>(batch, name)
}

fn primitives<T: ArrowPrimitiveType>(batch: &RecordBatch, name: &str) -> Result<Vec<T::Native>> {
    let column = batch.column_by_name(name).context("a column is missing")?;
    let column = datafusion::arrow::compute::cast(column, &T::DATA_TYPE)?;
    Ok(column.as_primitive::<T>().values().to_vec())
}

/// The sum of a column of whole numbers. One of 64 bits would begin anew at 292 years of CPU
/// time; this one is exact up to 104 days, and to 15 digits beyond.
pub(crate) fn sum_of(name: &str) -> Expr {
    sum(cast(col(name), DataType::Float64))
}

/// What clusters of a comparison are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replicates {
    Hosts,
    /// Pieces of the time of a host, with their length in nanoseconds.
    Pieces(i64),
}

impl Replicates {
    fn clusters(self, of: &Parts) -> Clusters {
        let mut clusters = Clusters::new();
        for (&(host, begin), value) in of {
            let piece = match self {
                Self::Hosts => 0,
                Self::Pieces(length) => begin / length,
            };
            *clusters.entry((host, piece)).or_default() += value;
        }
        clusters
    }
}

impl Values {
    /// How many hosts it is of.
    pub(crate) fn hosts(&self) -> usize {
        self.host_numbers().len()
    }

    /// The hosts.
    pub(crate) fn host_numbers(&self) -> BTreeSet<u32> {
        self.totals.keys().map(|(host, _)| *host).collect()
    }

    /// Whether there are few hosts, and others than another's: what hosts differ by looks like
    /// a change then.
    pub(crate) fn has_few_others(&self, other: &Self) -> bool {
        let (own, others) = (self.host_numbers(), other.host_numbers());
        own.len().min(others.len()) < MIN_HOSTS && own != others
    }

    /// What some of the hosts have.
    pub(crate) fn of_hosts(&self, hosts: &BTreeSet<u32>) -> Self {
        let only = |of: &Parts| -> Parts {
            let parts = of.iter().filter(|((host, _), _)| hosts.contains(host));
            parts.map(|(at, value)| (*at, *value)).collect()
        };
        let functions = self.functions.iter();
        let functions = functions.map(|(name, of)| (name.clone(), only(of)));
        Self {
            functions: functions.filter(|(_, of)| !of.is_empty()).collect(),
            totals: only(&self.totals),
            ..*self
        }
    }

    /// All of it.
    pub(crate) fn total(&self) -> f64 {
        self.totals.values().sum()
    }

    /// Hosts, where there are enough of both, else pieces of the time.
    pub(crate) fn replicates(&self, other: &Self) -> Replicates {
        if self.hosts().min(other.hosts()) >= MIN_HOSTS {
            return Replicates::Hosts;
        }
        let span = |values: &Self| {
            let begins = || values.totals.keys().map(|(_, begin)| *begin);
            begins().max().unwrap_or(0) - begins().min().unwrap_or(0)
        };
        // The same for both: of a host that is on both sides at once pieces are pairs.
        Replicates::Pieces(span(self).max(span(other)) / PIECES + 1)
    }

    /// How the share of each function changed to another group's.
    pub(crate) fn changes(&self, after: &Self) -> Vec<(String, Difference)> {
        let replicates = self.replicates(after);
        let clusters = |of: &Parts| replicates.clusters(of);
        let design = Design::new(&clusters(&self.totals), &clusters(&after.totals));
        let names: BTreeSet<&String> = self
            .functions
            .keys()
            .chain(after.functions.keys())
            .collect();
        let none = BTreeMap::new();
        let mut changes = Vec::with_capacity(names.len());
        for name in names {
            let before = clusters(self.functions.get(name).unwrap_or(&none));
            let now = clusters(after.functions.get(name).unwrap_or(&none));
            changes.push((name.clone(), design.change(&before, &now)));
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_fleet_testkit::Random;

    /// Values of a function `f`.
    fn of_f(own: Parts, totals: Parts) -> Values {
        Values {
            functions: HashMap::from([("f".to_owned(), own)]),
            totals,
            first: 0,
            last: 0,
        }
    }

    /// Minutes of a host in which the share of `f` wanders: each minute's share depends mostly on
    /// the minute before.
    fn wandering(random: &mut Random, (begin, minutes): (i64, i64), lasting: f64) -> Values {
        let (mut totals, mut own) = (Parts::new(), Parts::new());
        let (share, mut now) = (0.1, 0.0);
        for minute in 0..minutes {
            now = lasting * now + 0.02 * (random.unit() - 0.5);
            let hits = (0..300).filter(|_| random.unit() < share + now).count();
            let at = (0, (begin + minute) * 60_000_000_000);
            totals.insert(at, 300.0);
            own.insert(at, hits as f64);
        }
        of_f(own, totals)
    }

    #[test]
    fn minutes_that_resemble_each_other_are_not_counted_as_many() {
        let mut random = Random(3);
        let runs = 500;
        for (lasting, minutes) in [(0.0, 240), (0.8, 480), (0.9, 240)] {
            let (mut by_pieces, mut by_minutes) = (0, 0);
            for _ in 0..runs {
                let before = wandering(&mut random, (1000, minutes), lasting);
                let after = wandering(&mut random, (3000, minutes), lasting);
                let changes = before.changes(&after);
                let [(_, change)] = &changes[..] else {
                    panic!("{changes:?}");
                };
                by_pieces += usize::from(change.change().abs() <= change.half.unwrap());
                // As if each were a host.
                let alone = |of: &Parts| -> Clusters {
                    let parts = of.iter().zip(0..);
                    parts.map(|((at, value), n)| ((n, at.1), *value)).collect()
                };
                let design = Design::new(&alone(&before.totals), &alone(&after.totals));
                let own = |values: &Values| alone(&values.functions["f"]);
                let change = design.change(&own(&before), &own(&after));
                by_minutes += usize::from(change.change().abs() <= change.half.unwrap());
            }
            println!("{lasting}: {by_pieces}, by minutes {by_minutes}, of {runs}");
            let expected = 465..=490;
            assert!(
                expected.contains(&by_pieces),
                "{lasting}: {by_pieces} of {runs}"
            );
            let is_test = lasting == 0.0 || by_minutes < 400;
            assert!(is_test, "{lasting}: {by_minutes} of {runs}: no test");
        }
    }

    #[test]
    fn what_hosts_differ_by_does_not_hide_what_changed() {
        let mut random = Random(8);
        let runs = 300;
        let (mut inside, mut widest) = (0, 0.0_f64);
        let shares = [0.1, 0.25, 0.4];
        let mut side = |begin: i64, more: f64| {
            let (mut totals, mut own) = (Parts::new(), Parts::new());
            for (host, share) in (0..).zip(shares) {
                for minute in 0..60 {
                    let at = (host, (begin + minute) * 60_000_000_000);
                    let hits = (0..300).filter(|_| random.unit() < share + more).count();
                    totals.insert(at, 300.0);
                    own.insert(at, hits as f64);
                }
            }
            of_f(own, totals)
        };
        for _ in 0..runs {
            let change = side(1000, 0.0).changes(&side(2000, 0.05))[0].1;
            let half = change.half.unwrap();
            inside += usize::from((change.change() - 0.05).abs() <= half);
            widest = widest.max(half);
        }
        println!("{inside} of {runs}, at most {widest}");
        assert!(inside >= 282, "{inside} of {runs}");
        assert!(widest < 0.015, "{widest}");
    }

    #[test]
    fn pieces_are_of_the_time_that_there_is() {
        let mut random = Random(4);
        // A quarter of an hour, of a day that was asked for.
        let before = wandering(&mut random, (0, 15), 0.8);
        let after = wandering(&mut random, (700, 15), 0.8);
        assert!(before.changes(&after)[0].1.half.is_some());
        let empty = Values::default();
        assert!(empty.changes(&empty).is_empty());
        assert_eq!(before.changes(&empty)[0].1.half, None);
    }
}
