//! Values of functions by cluster: by host, or by host and part of the time.

use crate::open::Asked;
use crate::select::column;
use crate::statistics::{self, Clusters};
use aiprof_analysis::compare::Difference;
use anyhow::{Context as _, Result};
use datafusion::arrow::array::{Array as _, AsArray as _, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::functions_aggregate::expr_fn::{count_distinct, min, sum};
use datafusion::logical_expr::cast;
use datafusion::prelude::{Expr, col, lit};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

/// Parts of a time of all hosts together, at most: with few hosts they are the clusters.
const PARTS: u64 = 2000;
/// Shortest part: a window at the defaults.
const MIN_PART_NS: u64 = 60_000_000_000;
/// Fewest hosts of a side for hosts to be the clusters.
pub(crate) const MIN_HOSTS: usize = 6;
/// Most functions that are kept apart.
const MAX_FUNCTIONS: usize = 1_000_000;

/// Length of a part of a time, for so many hosts.
fn part(range: &Range<u64>, hosts: u64) -> u64 {
    let parts = (PARTS / hosts.max(1)).max(1);
    ((range.end - range.start) / parts).max(MIN_PART_NS)
}

/// Values of one group: all of a side, or a version of a service.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    /// Of each function, by cluster: host and part.
    functions: HashMap<String, BTreeMap<(u32, i64), f64>>,
    totals: BTreeMap<(u32, i64), f64>,
    /// When the first of it was, nanoseconds since the Unix epoch.
    pub(crate) first: i64,
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
    asked: &Asked,
    range: &Range<u64>,
    filter: Expr,
    by: &[&str],
    hosts: &mut Hosts,
) -> Result<BTreeMap<Vec<String>, Values>> {
    let count = asked
        .ask(
            range,
            |table| {
                let hosts = vec![count_distinct(col("host_id")).alias("hosts")];
                table.filter(filter.clone())?.aggregate(vec![], hosts)
            },
            |batches| {
                let counts = batches.iter().map(|batch| numbers(batch, "hosts"));
                Ok(counts.collect::<Result<Vec<_>>>()?.concat())
            },
        )
        .await?;
    let count = count.first().copied().unwrap_or(0);
    let part = part(range, u64::try_from(count).unwrap_or(0));
    let part = i64::try_from(part).unwrap_or(i64::MAX);
    let bucket = cast(col("time"), DataType::Int64) / lit(part);
    let mut groups: Vec<Expr> = by
        .iter()
        .enumerate()
        .map(|(at, key)| column(key).alias(format!("by{at}")))
        .collect();
    groups.extend([col("function"), col("host_id"), bucket.alias("part")]);
    let batches = asked
        .ask(
            range,
            |table| {
                let first = min(cast(col("time"), DataType::Int64)).alias("first");
                let values = vec![sum(col("value")).alias("value"), first];
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
        let firsts = numbers(batch, "first")?;
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
            *group.totals.entry(cluster).or_default() += value;
            let function = functions[row].as_str();
            if let Some(known) = group.functions.get_mut(function) {
                *known.entry(cluster).or_default() += value;
                continue;
            }
            if group.functions.len() == MAX_FUNCTIONS {
                anyhow::bail!("more than {MAX_FUNCTIONS} functions: ask for a service");
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

/// A column as numbers.
pub(crate) fn numbers(batch: &RecordBatch, name: &str) -> Result<Vec<i64>> {
    let column = batch.column_by_name(name).context("a column is missing")?;
    let column = datafusion::arrow::compute::cast(column, &DataType::Int64)?;
    Ok(column.as_primitive::<Int64Type>().values().to_vec())
}

/// What clusters of a comparison are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replicates {
    Hosts,
    Parts,
}

impl Values {
    /// The hosts.
    pub(crate) fn hosts(&self) -> usize {
        let hosts: BTreeSet<u32> = self.totals.keys().map(|(host, _)| *host).collect();
        hosts.len()
    }

    /// All of it.
    pub(crate) fn total(&self) -> f64 {
        self.totals.values().sum()
    }

    /// Hosts, where there are enough of both, else parts of the time.
    pub(crate) fn replicates(&self, other: &Self) -> Replicates {
        match self.hosts().min(other.hosts()) >= MIN_HOSTS {
            true => Replicates::Hosts,
            false => Replicates::Parts,
        }
    }

    fn clusters(
        of: &BTreeMap<(u32, i64), f64>,
        replicates: Replicates,
        parts: &mut HashMap<(u32, i64), u32>,
    ) -> Clusters {
        let mut clusters = Clusters::new();
        for (key, value) in of {
            let cluster = match replicates {
                Replicates::Hosts => key.0,
                Replicates::Parts => {
                    let new = u32::try_from(parts.len()).unwrap_or(u32::MAX);
                    *parts.entry(*key).or_insert(new)
                }
            };
            *clusters.entry(cluster).or_default() += value;
        }
        clusters
    }

    /// How the share of each function changed to another group's.
    pub(crate) fn changes(&self, after: &Self) -> Vec<(String, Difference)> {
        let replicates = self.replicates(after);
        let mut parts = HashMap::new();
        let mut clusters =
            |of: &BTreeMap<(u32, i64), f64>| Self::clusters(of, replicates, &mut parts);
        let totals = (clusters(&self.totals), clusters(&after.totals));
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
            let change = statistics::change((&before, &totals.0), (&now, &totals.1));
            changes.push((name.clone(), change));
        }
        changes
    }
}
